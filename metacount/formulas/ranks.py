"""What one rank of a mesh holds of each tensor: cut by tensor or expert parallelism, then by ZeRO.

>>> mixtral = Cut(role="moe", shape=(8, 28672, 4096), axis=1, parts=2, top_k=2)
>>> mine = Rank(tp=4, ep=8, shard=64, copies=32)
>>> product(mixtral.shape), product(cut_shape(mixtral, mine)), shard_values(mixtral, mine)
(939524096, 117440512, 3670016)
"""

from __future__ import annotations

from metacount.formulas.dim import Dim, chunk, smaller
from metacount.formulas.tape import BACKWARD, Move, Rank, Weight, product
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


def cuts_of(weights: Iterable[Weight]) -> list[Cut]:
    """List tensors as they are stored, each with the axis that tensor parallelism cuts.

    Returns: tensors; what is repeated comes so often, experts are stacked in one.
    Source: Shoeybi et al. 2019, arXiv:1909.08053, sec. 3; an operation says how its weight is cut.
    """
    cuts = []
    for weight in weights:
        shape, axis = weight.shape, weight.cut
        if weight.used is not None:
            shape = (weight.times, *shape)
            axis = None if axis is None else axis + 1
        cut = Cut(
            role=weight.role,
            shape=shape,
            axis=axis,
            parts=weight.halves,
            top_k=weight.used,
            trained=weight.seen,
        )
        if weight.used is not None:
            cuts.append(cut)
        elif weight.size:
            cuts += weight.times * [cut]
    return cuts


def is_expert(cut: Cut, rank: Rank) -> bool:
    """Tell whether a tensor is spread over the ranks that hold the same experts.

    >>> is_expert(Cut(role="moe", shape=(8, 28672, 4096), top_k=2), Rank(ep=8))
    True
    """
    return cut.top_k is not None and rank.ep != 1


def cut_shape(cut: Cut, rank: Rank) -> tuple[Dim, ...]:
    """Return the shape of a rank's part before ZeRO: whole experts with `ep`, else of the axis.

    Source: Shoeybi et al. 2019, arXiv:1909.08053, sec. 3 (columns and rows); Lepikhin et al. 2020,
    arXiv:2006.16668, sec. 3.1 (experts).

    >>> cut_shape(Cut(role="ffn", shape=(11008, 4096), axis=0), Rank(tp=8))  # LLaMA-7B
    (1376, 4096)
    """
    sizes = list(cut.shape)
    if is_expert(cut, rank):
        sizes[0] = sizes[0] // rank.ep  # which divides the experts
    elif cut.axis is not None:
        size = sizes[cut.axis] // cut.parts
        sizes[cut.axis] = cut.parts * chunk(size, rank.tp, rank.tp_index)
    return tuple(sizes)


def active_values(cut: Cut, rank: Rank) -> Dim:
    """Count the values of a rank's part that one token uses at most: of its experts, top_k.

    >>> active_values(Cut(role="moe", shape=(8, 28672, 4096), top_k=2), Rank(ep=8))  # Mixtral
    117440512
    """
    shape = cut_shape(cut, rank)
    if cut.top_k is None:
        return product(shape)
    return smaller(cut.top_k, shape[0]) * product(shape[1:])


def shard_values(cut: Cut, rank: Rank) -> Dim:
    """Count the values that ZeRO leaves on a rank: a chunk of the first axis of its part.

    Of a tensor of fewer experts than copies it is the second axis, where the copies divide that.

    Source: Rajbhandari et al. 2019, arXiv:1910.02054, sec. 5 (who holds what); FSDP2's
    `fully_shard` (by rows); torchtitan, which gives it the second axis of few experts.

    >>> shard_values(Cut(role="norm", shape=(4096,)), Rank(shard=512))
    8
    """
    sizes, axis, degree, index = _spread(cut, rank)
    sizes[axis] = chunk(sizes[axis], degree, index)
    return product(sizes)


def gathered_values(cut: Cut, rank: Rank) -> Dim:
    """Count the values that move when ranks gather their shards, which are padded to equal size.

    >>> gathered_values(Cut(role="norm", shape=(4096,)), Rank(shard=3))
    4098
    """
    sizes, axis, degree, _ = _spread(cut, rank)
    sizes[axis] = degree * -(-sizes[axis] // degree)
    return product(sizes)


def _spread(cut: Cut, rank: Rank) -> tuple[list[Dim], int, Dim, Dim]:
    """Return the shape before ZeRO, the axis that it spreads, how many ranks, and which is this."""
    sizes = list(cut_shape(cut, rank))
    if not is_expert(cut, rank):
        return sizes, 0, rank.shard, rank.shard_index
    axis = 0
    if all(isinstance(n, int) for n in (*sizes, rank.copies)):
        axis = int(sizes[0] < rank.copies and sizes[1] % rank.copies == 0)
    return sizes, axis, rank.copies, rank.copy_index


def spread_moves(cuts: Iterable[Cut], rank: Rank, *, zero: int) -> list[Move]:
    """List the collectives by which ZeRO spreads tensors that are gathered together, once each.

    zero 3: gathered forward, gathered again backward, gradients scattered; 2 and 1: gathered
    once; 0: the gradients are summed. Experts that are whole have a group of their own.

    Returns: collectives; none for a group of one rank.
    Source: Rajbhandari et al. 2019, arXiv:1910.02054, sec. 7; FSDP2's `fully_shard`.
    """
    moves, tensors = [], list(cuts)
    for group, degree, expert in (("dp", rank.shard, False), ("copies", rank.copies, True)):
        mine = [cut for cut in tensors if is_expert(cut, rank) is expert]
        if degree == 1 or not mine:
            continue

        def moved(cut: Cut) -> Dim:
            return gathered_values(cut, rank) if zero else product(cut_shape(cut, rank))

        values = sum(moved(cut) for cut in mine)
        gradients = sum(moved(cut) for cut in mine if cut.trained)  # not an indexer's
        runs = [("forward", "all-gather", values), (BACKWARD, "reduce-scatter", gradients)]
        runs += [(BACKWARD, "all-gather", values)] if zero == 3 else []
        if zero == 0:
            runs = [(BACKWARD, "all-reduce", gradients)]
        moves += [Move(phase, kind, group, n) for phase, kind, n in runs]
    return moves


def rank_spec(spec: ModelSpec, rank: Rank) -> ModelSpec:
    """Return the spec of a model whose blocks have a rank's sizes.

    A rank has h / tp heads, h_kv / tp of keys and values, and its chunk of every hidden width; the
    residual width, and so norms, latents and the inputs of the branches, are whole on every rank.

    Returns: a spec whose sizes are not checked.
    Source: Shoeybi et al. 2019, arXiv:1909.08053, sec. 3; experts as `cut_shape`.

    >>> from metacount.catalog import entry
    >>> mine = rank_spec(entry("llama-7b").spec(), Rank(tp=8))
    >>> mine.n_heads, mine.head_dim, mine.d_ff, mine.d_model
    (4, 128, 1376, 4096)
    """
    tp, mixture = rank.tp, spec.last_stack.mixture

    def mine(width: Dim) -> Dim:
        return chunk(width, tp, rank.tp_index)

    sizes: dict[str, Dim] = {}
    for name in ("n_heads", "n_kv_heads", "n_heads_windowed", "n_kv_heads_windowed"):
        if getattr(spec, name) is not None:
            sizes[name] = getattr(spec, name) // tp
    if spec.d_ff is not None:
        sizes["d_ff"] = mine(spec.d_ff)
    if mixture is not None and rank.ep == 1:
        sizes["d_ff_expert"] = mine(mixture.d_ff)
    if mixture is not None and mixture.shared is not None:
        d_ff = mixture.d_ff if mixture.shared.d_ff is None else mixture.shared.d_ff
        sizes["n_shared_experts"], sizes["d_ff_shared"] = 1, mine(mixture.shared.n_experts * d_ff)
    return spec.substituted(**sizes)
