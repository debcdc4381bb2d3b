"""What one rank of a mesh holds of each tensor: cut by tensor or expert parallelism, then by ZeRO.

>>> from metacount.formulas.block import block_weights
>>> from metacount.spec import ModelSpec
>>> mixtral = ModelSpec(
...     kind="decoder", d_model=4096, n_layers=32, vocab_size=32000, n_heads=32, n_kv_heads=8,
...     head_dim=128, activation="silu", gated=True, n_experts=8, top_k=2, d_ff_expert=14336,
...     norm="rmsnorm", position="rope")
>>> cuts = cuts_of(block_weights(mixtral, ffn="E"))
>>> sum(whole_values(cut) for cut in cuts)  # a block of Mixtral 8x7B
1451270144
>>> mine = Rank(tp=4, ep=8, shard=64, copies=32)
>>> sum(cut_values(cut, mine) for cut in cuts), sum(shard_values(cut, mine) for cut in cuts)
(186687488, 5673088)
"""

from __future__ import annotations

from metacount.formulas.dim import Dim, smaller
from metacount.formulas.ends import end_weights, stack_end_weights, table_width
from metacount.formulas.indexer import BLOCK
from metacount.formulas.terms import Weight, product
from metacount.frozen import frozen
from metacount.spec import ModelSpec

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Iterable


@frozen
class Cut:
    """A stored tensor: its role, its shape, and the axis that a rank has a part of.

    `axis` None: whole on every rank. `parts` tensors stand one after another along the axis, each
    cut for itself. `top_k`: the tensor is of all experts, of which a token uses so many. `trained`:
    it has a gradient; an indexer has none.
    """

    role: str
    shape: tuple[Dim, ...]
    axis: int | None = None
    parts: int = 1
    top_k: Dim | None = None
    trained: bool = True


@frozen
class Rank:
    """The degrees that matter to a tensor, and the indices of one rank in them.

    `shard` ranks hold the same part of a dense tensor, `copies` the same experts: ZeRO spreads each
    over these. With `ep` 1, experts are cut by `tp` like everything else. `cp` ranks hold parts of
    the same sequences and exchange keys and values.
    """

    tp: Dim = 1
    ep: Dim = 1
    cp: Dim = 1
    shard: Dim = 1
    copies: Dim = 1
    tp_index: Dim = 0
    shard_index: Dim = 0
    copy_index: Dim = 0


def piece(size: Dim, degree: Dim, index: Dim) -> Dim:
    """Count the values of `size` that rank `index` of `degree` has: ⌈size / degree⌉, then the rest.

    max(0, min(c, size - index·c)) with c = ⌈size / degree⌉

    Returns: a count; the last ranks may have fewer, or none.
    Source: `torch.chunk`, by which torch's DTensor and FSDP2 cut.

    >>> [piece(10, 4, index) for index in range(4)], [piece(2, 4, index) for index in range(4)]
    ([3, 3, 3, 1], [1, 1, 0, 0])
    """
    each = -(-size // degree)
    mine = smaller(each, size - index * each)
    return mine - smaller(mine, 0)


def cut_shape(cut: Cut, rank: Rank) -> tuple[Dim, ...]:
    """Return the shape of a rank's part: whole experts with `ep`, else a piece of the axis.

    Returns: a shape.
    Source: Shoeybi et al. 2019, arXiv:1909.08053, sec. 3 (columns and rows); Lepikhin et al. 2020,
    arXiv:2006.16668, sec. 3.1 (experts).

    >>> cut_shape(Cut(role="ffn", shape=(11008, 4096), axis=0), Rank(tp=8))  # LLaMA-7B
    (1376, 4096)
    """
    sizes = list(cut.shape)
    if cut.top_k is not None and rank.ep != 1:
        sizes[0] = sizes[0] // rank.ep  # which divides the experts
    elif cut.axis is not None:
        one = sizes[cut.axis] // cut.parts
        sizes[cut.axis] = cut.parts * piece(one, rank.tp, rank.tp_index)
    return tuple(sizes)


def whole_values(cut: Cut) -> Dim:
    """Count the values of a tensor that is whole on one device.

    >>> whole_values(Cut(role="ffn", shape=(11008, 4096), axis=0))  # LLaMA-7B
    45088768
    """
    return product(cut.shape)


def cut_values(cut: Cut, rank: Rank) -> Dim:
    """Count the values of a rank's part before ZeRO.

    Source: `cut_shape`.

    >>> cut_values(Cut(role="ffn", shape=(11008, 4096), axis=0), Rank(tp=8))  # LLaMA-7B
    5636096
    """
    return product(cut_shape(cut, rank))


def active_values(cut: Cut, rank: Rank) -> Dim:
    """Count the values of a rank's part that one token uses at most: of its experts, top_k.

    Source: `cut_shape`.

    >>> active_values(Cut(role="moe", shape=(8, 28672, 4096), top_k=2), Rank(ep=8))  # Mixtral
    117440512
    """
    shape = cut_shape(cut, rank)
    if cut.top_k is None:
        return product(shape)
    return smaller(cut.top_k, shape[0]) * product(shape[1:])


def shard_values(cut: Cut, rank: Rank) -> Dim:
    """Count the values that ZeRO leaves on a rank: a piece of the first axis of its part.

    Of a tensor of fewer experts than copies it is the second axis, where the copies divide that.

    Source: Rajbhandari et al. 2019, arXiv:1910.02054, sec. 5 (who holds what); FSDP2's
    `fully_shard` (by rows); torchtitan, which gives it the second axis of few experts.

    >>> shard_values(Cut(role="norm", shape=(4096,)), Rank(shard=512))
    8
    >>> shard_values(Cut(role="moe", shape=(8, 28672, 4096), top_k=2), Rank(ep=8, copies=32))
    3670016
    """
    sizes, axis, (degree, index) = *_spread_axis(cut, rank), _spread(cut, rank)
    sizes[axis] = piece(sizes[axis], degree, index)
    return product(sizes)


def gathered_values(cut: Cut, rank: Rank) -> Dim:
    """Count the values that move when ranks gather their shards, which are padded to equal size.

    Source: `shard_values`; FSDP2 pads each tensor to shards of equal size.

    >>> gathered_values(Cut(role="norm", shape=(4096,)), Rank(shard=3))
    4098
    """
    sizes, axis, (degree, _) = *_spread_axis(cut, rank), _spread(cut, rank)
    sizes[axis] = degree * -(-sizes[axis] // degree)
    return product(sizes)


def _spread_axis(cut: Cut, rank: Rank) -> tuple[list[Dim], int]:
    sizes = list(cut_shape(cut, rank))
    if not is_expert(cut, rank) or not all(isinstance(n, int) for n in (*sizes, rank.copies)):
        return sizes, 0
    return sizes, int(sizes[0] < rank.copies and sizes[1] % rank.copies == 0)


def is_expert(cut: Cut, rank: Rank) -> bool:
    """Tell whether a tensor is spread over the ranks that hold the same experts.

    >>> is_expert(Cut(role="moe", shape=(8, 28672, 4096), top_k=2), Rank(ep=8))
    True
    """
    return cut.top_k is not None and rank.ep != 1


def _spread(cut: Cut, rank: Rank) -> tuple[Dim, Dim]:
    if is_expert(cut, rank):
        return rank.copies, rank.copy_index
    return rank.shard, rank.shard_index


# What is cut by columns (of what comes out, the first axis), with its bias, and what by rows (of
# what goes in), whose bias is added once, after the sum, and is whole.
COLUMNS = frozenset(
    [
        "q_proj",
        "k_proj",
        "v_proj",
        "q_b_proj",
        "kv_b_proj",
        "gate_proj",
        "up_proj",
        "embed_tokens",
        "lm_head",
        "core",
    ]
)
ROWS = frozenset(["o_proj", "down_proj"])


def cuts_of(weights: Iterable[Weight]) -> list[Cut]:
    """List the tensors as they are stored, each with the axis that tensor parallelism cuts.

    To heads and hidden widths by columns, from them by rows, the vocabulary by its rows, sinks with
    their heads; whole experts are cut inside. Norms, routers and latents are whole on every rank.

    Returns: tensors; what is repeated comes so often, experts are stacked in one.
    Source: Shoeybi et al. 2019, arXiv:1909.08053, sec. 3; of MLA, only what makes heads is cut.

    >>> from metacount.formulas.ffn import ffn_weights
    >>> [cut.axis for cut in cuts_of(ffn_weights(4096, 11008, gated=True))]  # LLaMA-7B
    [0, 0, 1]
    """
    found = []
    for weight in weights:
        # tensors of a mixer with a state have names without an owner: no rank has a part of them
        owner = weight.name.rpartition(".")[0].rpartition(".")[2]
        if weight.used is not None:
            name = weight.name.rpartition(".")[2]
            inner, parts = (2 if name == "down_proj" else 1), 1 + (name == "gate_up_proj")
            shape, k = (weight.times, *weight.shape), weight.used
            found.append(Cut(role=weight.role, shape=shape, axis=inner, parts=parts, top_k=k))
        elif weight.size:
            by_rows = owner in ROWS and len(weight.shape) == 2
            axis = 0 if owner in COLUMNS else 1 if by_rows else None
            trained = not weight.name.startswith(f"{BLOCK}.")
            cut = Cut(role=weight.role, shape=weight.shape, axis=axis, trained=trained)
            found += weight.times * [cut]
    return found


def end_cuts(spec: ModelSpec) -> tuple[list[Cut], list[Cut]]:
    """List the tensors before the first block, the token table first, and those after the last.

    Source: `ends.end_weights`, `ends.stack_end_weights`.
    """
    after = ("norm", "lm_head", "head_transform", "pooler")
    weights = (*end_weights(spec), *stack_end_weights(spec))  # the token table is the first
    last = [weight for weight in weights if weight.name.partition(".")[0] in after]
    first = [weight for weight in weights if weight.name.partition(".")[0] not in after]
    return cuts_of(first), cuts_of(last)


def own_head_cut(spec: ModelSpec) -> list[Cut]:
    """List the head's matrix of a last stage that does not have the table it is tied to.

    Source: `ends.end_weights`.
    """
    if spec.head is None or not spec.head.tied:
        return []
    shape = (spec.vocab_size, table_width(spec))
    return [Cut(role="head", shape=shape, axis=0)]


def kept_spec(spec: ModelSpec, rank: Rank) -> ModelSpec:
    """Return the spec of a model whose blocks keep for their backward what those of a rank keep.

    A rank has h / tp heads, h_kv / tp of keys and values, and its piece of every hidden width; the
    residual width, and so norms, latents and the inputs of the branches, are whole on every rank.

    Returns: a spec whose sizes are not checked.
    Source: Shoeybi et al. 2019, arXiv:1909.08053, sec. 3; experts as `cut_shape`.

    >>> from metacount.catalog import entry
    >>> mine = kept_spec(entry("llama-7b").spec(), Rank(tp=8))
    >>> mine.n_heads, mine.head_dim, mine.d_ff, mine.d_model
    (4, 128, 1376, 4096)
    """
    tp, mixture = rank.tp, spec.last_stack.mixture

    def mine(width: Dim) -> Dim:
        return piece(width, tp, rank.tp_index)

    sizes: dict[str, Dim] = {}
    if spec.n_heads is not None:
        sizes["n_heads"] = spec.n_heads // tp
    if spec.n_kv_heads is not None:
        sizes["n_kv_heads"] = spec.n_kv_heads // tp
    if spec.d_ff is not None:
        sizes["d_ff"] = mine(spec.d_ff)
    if mixture is not None and rank.ep == 1:
        sizes["d_ff_expert"] = mine(mixture.d_ff)
    if mixture is not None and mixture.shared is not None:
        one = mixture.d_ff if mixture.shared.d_ff is None else mixture.shared.d_ff
        sizes["n_shared_experts"], sizes["d_ff_shared"] = 1, mine(mixture.shared.n_experts * one)
    return spec.substituted(**sizes)
