"""What the ranks of a mesh send each other in one forward and backward of each part of a model.

>>> from metacount.spec import ModelSpec
>>> llama = ModelSpec(
...     kind="decoder", d_model=4096, n_layers=32, vocab_size=32000, n_heads=32, n_kv_heads=32,
...     head_dim=128, d_ff=11008, activation="silu", gated=True, norm="rmsnorm", position="rope")
>>> moved = block_moves(llama, Rank(tp=8), n_tokens=2048, train=True)
>>> for move in moved:  # a block of LLaMA-7B
...     print(move.phase, move.kind, move.values)
forward all-reduce 8388608
forward all-reduce 8388608
backward all-reduce 8388608
backward all-reduce 8388608
"""

from __future__ import annotations

from metacount.formulas.covered import NORMS_AFTER
from metacount.formulas.dim import Dim
from metacount.formulas.sharding import Cut, Rank, cut_values, gathered_values, is_expert, piece
from metacount.frozen import frozen
from metacount.spec import ModelSpec
from metacount.spec.attention import Attention
from metacount.spec.mla import LatentAttention
from metacount.spec.moe import Mixture
from metacount.spec.stack import WITH_ATTENTION, WITH_DENSE, WITH_EXPERTS

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Iterable

COUNT_BYTES = 8  # of how many rows go to an expert, an int64
SUM_BYTES = 4  # of a gradient that goes around a ring, in float32


@frozen
class Move:
    """One collective: when, what it does, among whom, and the values of the whole tensor.

    `kept`: they are not of the type that is computed with: "counts" are whole numbers; a "choice"'s
    weights are in float32 or wider, "router" too where what is gathered is cast to another type;
    "sums" are in float32.
    """

    phase: str
    kind: str
    group: str
    values: Dim
    kept: str = ""

    def width(self, computed: int, *, cast: bool) -> int:
        """Return the bytes of one value; `computed` is those of the type that is computed with.

        Where what is gathered is cast, so is what experts read, weights of the choice too.
        """
        if self.kept == "counts":
            return COUNT_BYTES
        if self.kept == "sums":
            return SUM_BYTES
        if self.kept == "router" or (self.kept == "choice" and not cast):
            return max(computed, 4)
        return computed


def attention_moves(spec: ModelSpec, rank: Rank, *, n_tokens: Dim, train: bool) -> list[Move]:
    """List the collectives of one self-attention whose heads are split over ranks.

    forward: the sum of what the heads give, n·d
    backward: the sum of the gradients of what the heads read: n·d; of MLA the latents and the
    rotated key, n·r_q (n·d without one), n·d_c and n·d_r; and of the weights of norms that all
    heads share

    Returns: collectives; none for tp 1.
    Source: Shoeybi et al. 2019, arXiv:1909.08053, sec. 3 (their f and g).
    Not counted: what ZeRO moves, see `spread_moves`.
    """
    mixer, d = spec.last_stack.attention, spec.d_model
    if rank.tp == 1:
        return []
    found = [Move(phase="forward", kind="all-reduce", group="tp", values=n_tokens * d)]
    if not train:
        return found
    if isinstance(mixer, LatentAttention):
        query = d if mixer.q_lora_rank is None else mixer.q_lora_rank
        widths = [query, mixer.kv_lora_rank, mixer.qk_rope_head_dim]
    else:
        widths = [d]
    if isinstance(mixer, Attention):
        weights = {"head": 1, "layernorm": 2}.get(mixer.qk_norm, 0)
        found += 2 * weights * [_summed("backward", mixer.head_dim)]
    return found + [_summed("backward", n_tokens * width) for width in widths]


def ring_moves(spec: ModelSpec, rank: Rank, *, n_tokens: Dim, train: bool) -> list[Move]:
    """List the collectives of one fused attention whose ranks hold parts of each sequence.

    A rank has keys and values of n tokens, of h_kv / tp heads: 2·n·h_kv/tp·d; of MLA all heads
    are apart, and values are filled up to the width of keys.
    forward: those of all cp ranks are gathered
    backward: they are gathered again, and their gradients go around, cp steps to the next rank

    Returns: collectives; none for cp 1.
    Source: Liu et al. 2023, arXiv:2310.01889, sec. 3 (the ring); torch's context parallelism, whose
    default gathers where the paper passes on, and sums gradients in float32.

    >>> from metacount.catalog import entry
    >>> llama = entry("llama3-8b").spec()
    >>> [(m.kind, m.values) for m in ring_moves(llama, Rank(cp=2), n_tokens=1024, train=False)]
    [('all-gather', 4194304)]
    """
    if rank.cp == 1:
        return []
    mixer = spec.last_stack.attention
    if isinstance(mixer, LatentAttention):
        heads, width = mixer.n_heads, 2 * (mixer.qk_nope_head_dim + mixer.qk_rope_head_dim)
    else:
        assert isinstance(mixer, Attention)
        heads, width = mixer.n_kv_heads, 2 * mixer.head_dim
    mine = n_tokens * (heads // rank.tp) * width
    gathered = Move(phase="forward", kind="all-gather", group="cp", values=rank.cp * mine)
    if not train:
        return [gathered]
    again = Move(phase="backward", kind="all-gather", group="cp", values=rank.cp * mine)
    step = Move(phase="backward", kind="permute", group="cp", values=mine, kept="sums")
    return [gathered, again, *[step] * rank.cp]


def feed_forward_moves(d_model: Dim, rank: Rank, *, n_tokens: Dim, train: bool) -> list[Move]:
    """List the collectives of a feed-forward whose hidden width is cut: n·d forward, n·d backward.

    Returns: collectives; none for tp 1.
    Source: Shoeybi et al. 2019, arXiv:1909.08053, sec. 3.
    """
    if rank.tp == 1:
        return []
    phases = ("forward", "backward") if train else ("forward",)
    return [_summed(phase, n_tokens * d_model) for phase in phases]


def mixture_moves(
    part: Mixture, d_model: Dim, rank: Rank, *, n_tokens: Dim, train: bool
) -> list[Move]:
    """List an MoE layer's collectives: experts cut like a feed-forward, or whole on ranks apart.

    cut: n·d forward, n·d and the n·k weights of the choice backward
    whole: each rank sends its n / tp tokens to k experts each, and gets as many back (all-to-all,
    k·n/tp·d, twice; as often backward), and before it how many rows each of the E experts gets; the
    ranks that had the same tokens gather the results (n·d), and backward the gradients of tokens
    and weights

    Returns: collectives, for ranks that get as many rows as they send.
    Source: Lepikhin et al. 2020, arXiv:2006.16668, sec. 3.1; Singh et al. 2023, arXiv:2303.06318,
    sec. 4 (tokens that several ranks have are sent once).
    """
    whole = feed_forward_moves(d_model, rank, n_tokens=n_tokens, train=train)
    shared = whole if part.shared is not None else []
    if rank.ep == 1:
        weights = _summed("backward", n_tokens * part.top_k, kept="router")
        return [*whole, *([weights] if train and rank.tp != 1 else []), *shared]
    rows = piece(n_tokens, rank.tp, rank.tp_index) * part.top_k
    found = [
        Move(phase="forward", kind="all-to-all", group="ep", values=part.n_experts, kept="counts")
    ]
    phases = ("forward", "backward") if train else ("forward",)
    for phase in phases:
        found += 2 * [Move(phase=phase, kind="all-to-all", group="ep", values=rows * d_model)]
    if rank.tp != 1:
        padded = rank.tp * -(-n_tokens // rank.tp)
        found += [
            Move(phase=phase, kind="all-gather", group="tp", values=padded * d_model)
            for phase in phases
        ]
        if train:
            found.append(
                Move(
                    phase="backward",
                    kind="all-gather",
                    group="tp",
                    values=padded * part.top_k,
                    kept="choice",
                )
            )
    return found + shared


def block_moves(
    spec: ModelSpec, rank: Rank, *, n_tokens: Dim, train: bool, mixer: str = "A", ffn: str = "F"
) -> list[Move]:
    """List the collectives of one block: its attention's and its feed-forward's.

    `mixer` and `ffn` are its letters in the patterns of its stack. A mixer with a state is whole on
    every rank, and sends nothing.

    Source: `ring_moves`, `attention_moves`, `feed_forward_moves`, `mixture_moves`.
    """
    stack = spec.last_stack
    found: list[Move] = []
    if mixer in WITH_ATTENTION:
        found = ring_moves(spec, rank, n_tokens=n_tokens, train=train)
        found += attention_moves(spec, rank, n_tokens=n_tokens, train=train)
    if ffn in WITH_EXPERTS:
        assert stack.mixture is not None
        found += mixture_moves(stack.mixture, spec.d_model, rank, n_tokens=n_tokens, train=train)
    if ffn in WITH_DENSE:
        found += feed_forward_moves(spec.d_model, rank, n_tokens=n_tokens, train=train)
    return sorted(found, key=lambda move: move.phase != "forward")


def recomputed_moves(
    spec: ModelSpec,
    rank: Rank,
    *,
    n_tokens: Dim,
    mixer: str = "A",
    ffn: str = "F",
    products: bool = False,
) -> list[Move]:
    """List the collectives of a checkpointed block's second forward, which the backward runs.

    Those of the forward; but the last of the `tp` group only if something after it is kept: a norm
    behind the branch, or the product with the shared experts' gate. torch stops where the last
    tensor that was kept is there again. Where the results of `products` are kept, attention is not
    run again, and nobody's keys and values are gathered.

    Source: Korthikanti et al. 2022, arXiv:2205.05198, sec. 3 (recomputation); torch's
    `torch.utils.checkpoint`, which stops early.

    >>> from metacount.catalog import entry
    >>> llama, rank = entry("llama-7b").spec(), Rank(tp=8)
    >>> [move.kind for move in recomputed_moves(llama, rank, n_tokens=2048)]
    ['all-reduce']
    """
    moves = block_moves(spec, rank, n_tokens=n_tokens, train=False, mixer=mixer, ffn=ffn)
    stack = spec.last_stack
    shared = None if stack.mixture is None else stack.mixture.shared
    gated = ffn == "E" and shared is not None and shared.gate
    needed = gated or stack.norms.placement in NORMS_AFTER
    if moves and moves[-1].group == "tp" and not needed:
        del moves[-1]
    return [
        Move(phase="backward", kind=move.kind, group=move.group, values=move.values, kept=move.kept)
        for move in moves
        if not (products and move.group == "cp")
    ]


def embedding_moves(width: Dim, rank: Rank, *, n_tokens: Dim) -> list[Move]:
    """List the collectives of a token table cut by the vocabulary: a sum of n·e; nothing backward.

    Source: Shoeybi et al. 2019, arXiv:1909.08053, sec. 3.
    """
    return [] if rank.tp == 1 else [_summed("forward", n_tokens * width)]


def head_moves(
    width: Dim, vocab_size: Dim, rank: Rank, *, n_tokens: Dim, train: bool
) -> list[Move]:
    """List the collectives of a head cut by the vocabulary: n·V logits on each rank; backward n·e.

    The vocabulary is padded to parts of equal size.

    Source: Shoeybi et al. 2019, arXiv:1909.08053, sec. 3 (their first way, without the fused loss).
    """
    if rank.tp == 1:
        return []
    padded = rank.tp * -(-vocab_size // rank.tp)
    found = [Move(phase="forward", kind="all-gather", group="tp", values=n_tokens * padded)]
    return [*found, _summed("backward", n_tokens * width)] if train else found


def spread_moves(cuts: Iterable[Cut], rank: Rank, *, zero: int) -> list[Move]:
    """List the collectives by which ZeRO spreads tensors that are gathered together, once each.

    zero 3: gathered forward, gathered again backward, gradients scattered; 2 and 1: gathered
    once; 0: the gradients are summed. Experts that are whole have a group of their own.

    Returns: collectives; none for a group of one rank.
    Source: Rajbhandari et al. 2019, arXiv:1910.02054, sec. 7; FSDP2's `fully_shard`.
    """
    found, tensors = [], list(cuts)
    for group, degree, expert in (("dp", rank.shard, False), ("copies", rank.copies, True)):
        mine = [cut for cut in tensors if is_expert(cut, rank) is expert]
        if degree == 1 or not mine:
            continue
        moved = gathered_values if zero else cut_values
        values = sum(moved(cut, rank) for cut in mine)
        gradients = sum(moved(cut, rank) for cut in mine if cut.trained)  # not an indexer's
        runs = [("forward", "all-gather", values), ("backward", "reduce-scatter", gradients)]
        runs += [("backward", "all-gather", values)] if zero == 3 else []
        if zero == 0:
            runs = [("backward", "all-reduce", gradients)]
        found += [Move(phase=phase, kind=kind, group=group, values=n) for phase, kind, n in runs]
    return found


def _summed(phase: str, values: Dim, *, kept: str = "") -> Move:
    return Move(phase=phase, kind="all-reduce", group="tp", values=values, kept=kept)
