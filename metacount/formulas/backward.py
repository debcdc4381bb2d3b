"""The matrix products of a backward: two for each of the forward, but where no gradient flows.

y = x·W has the gradients dx = dy·Wᵀ and dW = xᵀ·dy, each as many multiply-adds as y itself.
"""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.formulas import indexer, model, stack, sublayers
from metacount.formulas.backward_mixers import beyond_twice
from metacount.formulas.covered import (
    NORMS_AFTER,
    check_around,
    check_fused_run,
    check_reached,
)
from metacount.formulas.dim import Dim, when
from metacount.formulas.forward import EAGER, FLASH, FULL, WRITTEN, Pass, attention_of
from metacount.formulas.indexed import block_index, indexed_layers
from metacount.formulas.kept_masks import attention_way
from metacount.formulas.layers import layers_with
from metacount.spec import ModelSpec
from metacount.spec.mla import LatentAttention
from metacount.spec.position import TransformerXL
from metacount.spec.stack import WITH_DENSE

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.formulas.terms import Weight

IN_BLOCKS = ("position", "attention", "recurrent", "ffn", "moe")
# the last matrix of a mixer that keeps a state
OUT = ("out_proj", "o_proj", "linear_out")


def backward_matmul_flops_by_role(spec: ModelSpec, run: Pass) -> dict[str, Dim]:
    """Count the FLOPs of a backward by role, every parameter of the model trained.

    2 × the forward's, for a gradient of each factor, but
    - the projection of Transformer-XL's sinusoids 1 ×: they have no gradient
    - a pooler 0: the loss does not see it; an indexer 0: no gradient passes its choice
    + a fused kernel: its scores once more; flash: the zeros that MLA's values are filled with
    + a mixer with a state: what its chunks need, see `backward_mixers.beyond_twice`

    Returns: every role in order, exact.
    Source: Rumelhart, Hinton and Williams 1986, doi:10.1038/323533a0 (the two gradients); Dao et
    al. 2022, arXiv:2205.14135, algorithm 4 (flash).
    Not counted: softmax, norms, activations, rotary embedding, routing, biases, the look-ups.

    >>> from metacount.catalog import entry
    >>> run = Pass(batch_size=1, seq_len=128)
    >>> by_role = backward_matmul_flops_by_role(entry("llama-7b").spec(), run)
    >>> sum(by_role.values()) == 2 * model.matmul_flops(
    ...     entry("llama-7b").spec(), batch_size=1, seq_len=128)
    True
    """
    check_fused_run(spec, run)
    check_reached(spec)
    if spec.embedding is None:
        raise SpecError(
            "vocab_size",
            "has no formula for a backward: what is given instead of tokens has no gradient",
            None,
            "measure it instead",
        )
    forward = model.matmul_flops_by_role(
        spec,
        batch_size=run.batch_size,
        seq_len=run.seq_len,
        source_len=run.source_len,
    )
    found = {role: 2 * flops for role, flops in forward.items()}
    if spec.pooler:
        # [B, d] @ [d, d] of the forward
        found["other"] -= 2 * (2 * run.batch_size * spec.d_model * spec.d_model)
    if isinstance(spec.positions, TransformerXL):
        found["position"] -= projected_sinusoids(spec, run)
    found["attention"] += score_flops(spec, run)
    if run.attention == FLASH:
        # dP = dO·vᵀ and dV = pᵀ·dO meet the zeros
        found["attention"] += 2 * filled_flops(spec, run)
    found["attention"] -= 2 * choosing_flops(spec, run)
    beyond = beyond_twice(spec.last_stack.recurrent, run.batch_size, run.seq_len)
    found["recurrent"] += stack.recurrent_layers(spec) * beyond
    return found


def recompute_matmul_flops_by_role(spec: ModelSpec, run: Pass) -> dict[str, Dim]:
    """Count the FLOPs of what a backward computes a second time, by role.

    full checkpointing: the forward of the blocks once more, up to the last tensor that is kept;
    without checkpoints nothing, as what a fused kernel repeats is its backward's own; nothing with
    selective ones, which keep the results of all products

    Returns: every role in order, exact.
    Source: Chen et al. 2016, arXiv:1604.06174; `not_repeated`.
    Not counted: softmax, norms, activations, rotary embedding, routing, biases.

    >>> from metacount.catalog import entry
    >>> run = Pass(batch_size=1, seq_len=128, checkpointing="full")
    >>> sum(recompute_matmul_flops_by_role(entry("llama-7b").spec(), run).values())
    1297080123392
    """
    check_fused_run(spec, run)
    found: dict[str, Dim] = dict.fromkeys(model.ROLES, 0)
    if run.checkpointing != FULL:
        return found
    check_around(spec)
    forward, spared = forward_flops_by_role(spec, run), not_repeated(spec, run)
    for role in (*IN_BLOCKS, *(("other",) if spec.last_stack.shared is not None else ())):
        found[role] = forward[role] - spared.get(role, 0)
    return found


def forward_flops_by_role(spec: ModelSpec, run: Pass) -> dict[str, Dim]:
    """Count the FLOPs of the forward by role, with the zeros that a fused kernel multiplies.

    Source: `model.matmul_flops_by_role`, `filled_flops`.
    """
    found = model.matmul_flops_by_role(
        spec, batch_size=run.batch_size, seq_len=run.seq_len, source_len=run.source_len
    )
    if run.attention == FLASH:
        found["attention"] += filled_flops(spec, run)
    return found


def projected_sinusoids(spec: ModelSpec, run: Pass) -> Dim:
    """Count the FLOPs of projecting Transformer-XL's sinusoids in all blocks, as the forward does.

    [T, d] @ [d, h·h_d], once per block: 2·T·d·h·h_d
    """
    mixer = attention_of(spec)
    assert mixer is not None  # positions of an attention
    width = mixer.n_heads * spec.head_dim
    return spec.last_stack.n_layers * 2 * run.seq_len * spec.d_model * width


def choosing_flops(spec: ModelSpec, run: Pass) -> Dim:
    """Count the FLOPs of every indexer's forward, whose choice of positions has no gradient.

    Source: `indexer.index_flops`, `indexer.block_index_flops`; every pair of positions is scored.
    """
    mixer = attention_of(spec)
    n_tokens = run.batch_size * run.seq_len
    pairs = n_tokens * run.seq_len
    index = block_index(spec)
    if index is not None:
        own = indexer.block_index_flops(
            n_tokens,
            pairs,
            spec.d_model,
            n_index_heads=index.n_heads,
            index_head_dim=index.head_dim,
        )
        return indexed_layers(spec, spec.last_stack.n_layers) * own
    if not isinstance(mixer, LatentAttention) or mixer.indexer is None:
        return 0
    one = indexer.index_flops(
        n_tokens,
        pairs,
        spec.d_model,
        q_lora_rank=mixer.q_lora_rank,
        n_index_heads=mixer.indexer.n_heads,
        index_head_dim=mixer.indexer.head_dim,
    )
    return attending_layers(spec) * one


def attending_layers(spec: ModelSpec) -> Dim:
    """Count the blocks of the (decoder) stack that have attention."""
    return sum(stack.attention_layers(spec))


def pairs_of_positions(spec: ModelSpec, run: Pass, *, own: bool = True) -> Dim:
    """Count the pairs of positions of all attentions, every head's: B·h·S·T of each layer.

    Without those of a stack's `own` positions, those of cross-attention.
    """
    layers, mixer, source = attending_layers(spec), attention_of(spec), run.source
    assert mixer is not None  # who asks has asked
    pairs = when(own, layers * run.seq_len * run.seq_len)
    if spec.has_encoder:
        assert spec.encoder is not None
        pairs += when(own, spec.encoder.n_layers * source * source)
        pairs += layers * run.seq_len * source
    return run.batch_size * mixer.n_heads * pairs


def score_flops(spec: ModelSpec, run: Pass) -> Dim:
    """Count the FLOPs of q·kᵀ in all attentions that a kernel runs: 2 × a query's width a pair.

    Source: Vaswani et al. 2017, arXiv:1706.03762, eq. 1.
    """
    mixer = attention_of(spec)
    if mixer is None or run.attention == EAGER:
        return 0
    if isinstance(mixer, LatentAttention):
        width = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim
    else:
        width = spec.head_dim
    own = attention_way(spec, run) not in WRITTEN
    return 2 * pairs_of_positions(spec, run, own=own) * width


def filled_flops(spec: ModelSpec, run: Pass) -> Dim:
    """Count the FLOPs of the zeros that a fused kernel's values are filled with, in one product.

    MLA's values are narrower than its keys: 2 × the difference, per pair of positions.
    """
    mixer = attention_of(spec)
    if not isinstance(mixer, LatentAttention):
        return 0
    width = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim - mixer.v_head_dim
    return 2 * pairs_of_positions(spec, run) * width


def not_repeated(spec: ModelSpec, run: Pass) -> dict[str, Dim]:
    """Count the FLOPs of the blocks' forward that full checkpointing does not compute again.

    Repeating a block ends with the last tensor that its backward needs. Where that is the input of
    the last matrix, the product itself is left out: 2·n·d·m in a block without a norm after its
    feed-forward, 2·n·d·E_s·m_s with shared experts and no gate on them, in a block without a
    feed-forward 2·n·d × the width of its mixer, else nothing.

    Returns: FLOPs of all blocks by role.
    Source: torch.utils.checkpoint with `early_stop`.
    """
    found: dict[str, Dim] = {}
    last = spec.last_stack
    if last.norms.placement in NORMS_AFTER:
        return found
    # of OLMo Hybrid's blocks, those with attention have a norm after the feed-forward
    mixers = "R" if last.norms.placement == "hybrid" else "ARPSN"
    lengths = [run.source, run.seq_len] if spec.has_encoder else [run.seq_len]
    dense, mixture = last.feed_forward, last.mixture
    for part, n in zip(spec.stacks, lengths, strict=True):
        per_width = 2 * run.batch_size * n * spec.d_model
        spared: list[tuple[str, Dim, Dim]] = []
        if dense is not None and dense.d_ff is not None:
            layers = layers_with(spec, part.n_layers, mixers=mixers, ffns=WITH_DENSE)
            spared.append(("ffn", layers, dense.d_ff))
        if mixture is not None and mixture.shared is not None and not mixture.shared.gate:
            width = mixture.d_ff if mixture.shared.d_ff is None else mixture.shared.d_ff
            layers = layers_with(spec, part.n_layers, mixers=mixers, ffns="E")
            spared.append(("moe", layers, mixture.shared.n_experts * width))
        for role, letters, weights in (
            ("attention", "AP", sublayers.attention_weights),
            ("recurrent", "RS", sublayers.recurrent_weights),
        ):
            having = {*letters} & {*mixers} & {*last.mixer_pattern}
            if having:
                layers = layers_with(spec, part.n_layers, mixers="".join(having), ffns="N")
                spared.append((role, layers, _width_of(weights(spec))))
        for role, layers, width in spared:
            found[role] = found.get(role, 0) + layers * per_width * width
    return found


def _width_of(weights: tuple[Weight, ...]) -> Dim:
    """Return the width of what a mixer's last matrix, [d, width], reads."""
    (last,) = (w for w in weights if w.name.removesuffix(".weight").rpartition(".")[2] in OUT)
    return last.shape[1]
