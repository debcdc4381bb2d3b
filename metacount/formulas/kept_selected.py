"""What blocks keep where the results of their matrix products are kept and all else is repeated."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.formulas import stack
from metacount.formulas.attention import lettered_layers
from metacount.formulas.dim import Dim, is_zero
from metacount.formulas.forward import MATH, WRITTEN, Attending, Kept, Pass, attention_of
from metacount.formulas.kept_attention import core_kept
from metacount.formulas.kept_masks import self_attending
from metacount.formulas.terms import CACHED, SOURCE, TOKENS, Weight
from metacount.spec import ModelSpec
from metacount.spec.attention import Attention
from metacount.spec.mla import LatentAttention
from metacount.spec.position import TransformerXL
from metacount.spec.stack import WITH_ATTENTION


def results_terms(spec: ModelSpec, run: Pass, n: Dim, n_layers: Dim, *, cross: bool) -> list[Kept]:
    """List the results of the matrix products of all blocks of a stack.

    of a matrix [m, d] its n rows of m; of attention the scores of every pair of positions and the
    sums of values; of a fused kernel its result, the log-sum-exp and the random state

    Returns: terms, exact; without the inputs of blocks.
    Source: torch.utils.checkpoint with a policy that keeps every product.
    Not counted: what a block computes beside products, which is repeated.

    >>> from metacount.catalog import entry
    >>> from metacount.formulas.kept import bytes_of
    >>> run, llama = Pass(batch_size=1, seq_len=2048), entry("llama-7b").spec()
    >>> # q, k, v, o and the sums of values; the scores of 32 heads; gate, up and down
    >>> 2 * 2048 * (5 * 4096 + 32 * 2048 + 2 * 11008 + 4096)
    459276288
    >>> bytes_of(results_terms(llama, run, 2048, 1, cross=False))
    459276288
    """
    _check_covered(spec)
    rows = {
        TOKENS: run.batch_size * n,
        CACHED: run.batch_size * n,
        SOURCE: run.batch_size * run.source,
    }
    kept: list[Kept] = []
    for times, weights in stack.in_blocks(spec, n_layers, cross=cross):
        if not is_zero(times):
            kept += [_result(one, rows[one.rows], run, times) for one in weights if one.rows]
    n_attending = lettered_layers(n_layers, spec.last_stack.mixer_pattern, WITH_ATTENTION)
    part = attention_of(spec)
    assert part is not None  # a model without attention has a mixer with a state
    kept += [_in_all(one, n_attending) for one in _core(self_attending(spec, run, n), part)]
    if cross:
        kept += [_in_all(one, n_layers) for one in _core(run.attending(n, run.source), part)]
    return kept


def _result(weight: Weight, rows: Dim, run: Pass, times: Dim) -> Kept:
    """Build the term of what one matrix gives for its rows, in all blocks."""
    used = weight.times if weight.used is None else weight.used
    name = weight.name.removesuffix(".weight").rpartition(".")[2]
    return Kept(
        role=weight.role,
        name=f"{name}: result",
        values=times * used * rows * weight.shape[0],
        width=run.widths.value,
    )


def _core(attending: Attending, part: Attention | LatentAttention) -> list[Kept]:
    """List the results of one attention's two products, or what a fused kernel keeps of them."""
    rows = attending.tokens * part.n_heads
    if isinstance(part, LatentAttention):
        keys, values = part.qk_nope_head_dim + part.qk_rope_head_dim, part.v_head_dim
    else:
        keys = values = part.head_dim
    if attending.attention in WRITTEN:
        widths = attending.widths
        width = widths.wide if attending.attention == MATH else widths.value
        return [
            attending.term("scores", rows * attending.n_keys, width=width),
            attending.term("sums of values", rows * values, width=width),
        ]
    # the kernel's values are as wide as its keys
    result = attending.term("sums of values", rows * keys)
    return [result, *core_kept(attending, part, sinks=False)]


def _in_all(term: Kept, times: Dim) -> Kept:
    return Kept(role=term.role, name=term.name, values=times * term.values, width=term.width)


def _check_covered(spec: ModelSpec) -> None:
    """Raise `SpecError` for a block whose products are more than these."""
    part = attention_of(spec)
    indexed = part is not None and part.indexer is not None
    relative = isinstance(spec.positions, TransformerXL)
    keeps = not is_zero(stack.recurrent_layers(spec))  # shared blocks stand beside such a mixer
    if keeps or indexed or relative:
        raise SpecError(
            "checkpointing",
            "has no formula for this model's mixer",
            "selective",
            "choose none or full, or measure it",
        )
