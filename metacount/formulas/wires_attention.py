"""The gradients of one attention, followed through its forward: heads of their own, or MLA."""

from __future__ import annotations

from metacount.formulas import indexer
from metacount.formulas.dim import Dim
from metacount.formulas.forward import MATH, WRITTEN, Attending, Pass
from metacount.formulas.kept import bytes_of
from metacount.formulas.kept_attention import attention_kept, core_kept
from metacount.formulas.kept_masks import has_mask, self_attending, window_kept
from metacount.formulas.kept_model import attention_terms
from metacount.formulas.wires import Step, Wires
from metacount.frozen import frozen
from metacount.spec import ModelSpec
from metacount.spec.attention import Attention
from metacount.spec.indexer import BlockIndexer, Indexer
from metacount.spec.mla import LatentAttention

MEMORY = "memory"  # what needs the encoder's result
INPUT = "input"  # what needs the input of a branch


@frozen
class Given:
    """What comes into a block, and whether it has a gradient: x, a bias of scores, a memory."""

    x: bool
    bias: bool
    memory: bool


def attend(
    wires: Wires, spec: ModelSpec, run: Pass, n: Dim, given: Given, index: int
) -> tuple[bool, set[str]]:
    """Run the self-attention of one block; say whether its result has a gradient, and what needs.

    Source: `kept_model.attention_terms`.
    """
    part, rotated = spec.last_stack.attention, spec.has_rope_layer(index)
    attending = self_attending(spec, run, n, biased=given.bias)
    gradients = {"bias"} if given.bias else set[str]()
    if isinstance(part, LatentAttention):
        flows = _latent(wires, attending, part, given.x, gradients)
    else:
        assert isinstance(part, Attention)  # who asks has asked
        flows = _grouped(wires, attending, part, "self_attn", given, gradients)
        if spec.has_index_layer(index):
            assert part.indexer is not None  # whose layer it is
            _index(wires, attending, part.indexer)
    wires.keep(attention_terms(spec, run, n, rotated=rotated, biased=given.bias), gradients)
    if has_mask(spec, index):
        wires.keep(window_kept(spec, run, n), gradients)
    return flows, gradients


def attend_across(
    wires: Wires, spec: ModelSpec, run: Pass, n: Dim, given: Given
) -> tuple[bool, set[str]]:
    """Run the cross-attention of one block, as `attend`.

    Source: `kept_attention.attention_kept`.
    """
    part, attending = spec.last_stack.attention, run.attending(n, run.source)
    assert isinstance(part, Attention)  # the spec requires it
    gradients: set[str] = set()
    alone = Given(x=given.x, bias=False, memory=given.memory)
    flows = _grouped(wires, attending, part, "cross_attn", alone, gradients)
    wires.keep(attention_kept(attending, part, spec.last_stack.norms), gradients)
    return flows, gradients


def _grouped(
    wires: Wires,
    attending: Attending,
    part: Attention,
    name: str,
    given: Given,
    gradients: set[str],
) -> bool:
    own = name == "self_attn"
    x = given.x
    source, reads = (x, INPUT) if own else (given.memory, MEMORY)
    q = wires.linear(f"{name}.q_proj", x, attending.tokens, INPUT, gradients)
    q = wires.normed(f"{name}.q_norm", "norm of queries", q, gradients)
    k = wires.linear(f"{name}.k_proj", source, attending.source_tokens, reads, gradients)
    k = wires.normed(f"{name}.k_norm", "norm of keys", k, gradients)
    v = wires.linear(f"{name}.v_proj", source, attending.source_tokens, reads, gradients)
    sinks = f"{name}.core.sinks" in wires.trained
    heads = (part.head_dim, part.head_dim)
    y = _core(wires, attending, part, heads, (q, k, v), (given.bias, sinks), gradients)
    return wires.linear(f"{name}.o_proj", y, attending.tokens, "o_proj", gradients)


def _latent(
    wires: Wires, attending: Attending, part: LatentAttention, x: bool, gradients: set[str]
) -> bool:
    n, name = attending.tokens, "self_attn"
    if part.q_lora_rank is None:
        q = wires.linear(f"{name}.q_proj", x, n, INPUT, gradients)
    else:
        q = wires.linear(f"{name}.q_a_proj", x, n, INPUT, gradients)
        q = wires.normed(f"{name}.q_a_layernorm", "norm of the query latent", q, gradients)
        q = wires.linear(f"{name}.q_b_proj", q, n, "q_b_proj", gradients)
    latent = wires.linear(f"{name}.kv_a_proj_with_mqa", x, n, INPUT, gradients)
    # the latent and the rotated key are one tensor, and have a gradient together: wherever the
    # latent has one, what is expanded from it has
    kept = wires.normed(f"{name}.kv_a_layernorm", "norm of the latent", latent, gradients)
    expanded = wires.linear(f"{name}.kv_b_proj", kept, n, "kv_b_proj", gradients)
    if latent:
        gradients.add("rotated key")
    if part.indexer is not None:
        _index(wires, attending, part.indexer)
    widths = (part.qk_nope_head_dim + part.qk_rope_head_dim, part.v_head_dim)
    flows = (q, expanded, expanded)
    y = _core(wires, attending, part, widths, flows, (False, False), gradients)
    return wires.linear(f"{name}.o_proj", y, n, "o_proj", gradients)


def _index(wires: Wires, attending: Attending, part: Indexer | BlockIndexer) -> None:
    """Run an indexer, whose choice has no gradient: nothing of it is needed.

    Source: `indexer.indexer_products`, `indexer.block_indexer_products`.
    """
    in_blocks = isinstance(part, BlockIndexer)
    for name in ("k_proj", "q_proj") if in_blocks else ("wk", "wq_b", "weights_proj"):
        wires.linear(f"{indexer.BLOCK}.{name}", False, attending.tokens, "", set())
    pairs = attending.tokens * attending.n_keys
    products = indexer.block_indexer_products if in_blocks else indexer.indexer_products
    for product in products(part.n_heads, part.head_dim):
        wires.multiply(product.role, 2 * pairs * product.width, (False, False), 0)


def _core(
    wires: Wires,
    attending: Attending,
    part: Attention | LatentAttention,
    widths: tuple[Dim, Dim],
    flows: tuple[bool, bool, bool],
    beside: tuple[bool, bool],
    gradients: set[str],
) -> bool:
    """Run softmax(q·kᵀ + bias)·v: note which gradients there are, say if the result has one."""
    (q, k, v), (bias, sinks), (keys, values) = flows, beside, widths
    scores = q or k or bias
    softmax = scores or sinks
    gradients.update(
        name
        for name, has in (("q", q), ("k", k), ("v", v), ("scores", scores), ("softmax", softmax))
        if has
    )
    rows = attending.tokens * part.n_heads
    pairs, role = rows * attending.n_keys, "attention"
    if attending.attention in WRITTEN:
        wide = attending.widths.wide if attending.attention == MATH else 0
        wires.multiply(role, 2 * pairs * keys, (q, k), pairs, wide)
        wires.multiply(role, 2 * pairs * values, (softmax, v), rows * values, wide)
        return softmax or v
    # one kernel: 2 products, in its backward 5, of values that are as wide as the keys
    one, any_ = 2 * pairs * keys, q or k or v
    numbers = bytes_of(core_kept(attending, part, sinks=False))
    result = attending.widths.value * rows * keys + numbers
    wires.steps.append(
        Step(role=role, flops=2 * one, backward=5 * any_ * one, needs=any_, result=result)
    )
    return any_
