"""The blocks of a stack: how many there are of each kind, in numbers, letters or arrays.

Patterns repeat over the layers, a law says which have experts, the last ones may borrow keys and
values. What distinguishes the mixers of blocks and what distinguishes their feed-forwards is
counted apart, as every count is a sum over branches.
"""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.formulas.block import Layer, has_queries
from metacount.formulas.dim import Dim, floor_div, is_symbolic, is_zero, smaller
from metacount.frozen import frozen
from metacount.spec import ModelSpec
from metacount.spec.attention import Attention
from metacount.spec.field import altered
from metacount.spec.position import Rope
from metacount.spec.stack import (
    BESIDE,
    SHARING,
    WITH_ATTENTION,
    WITH_DENSE,
    WITH_EXPERTS,
    WITH_STATE,
    Stack,
    common_period,
)

ANY_MIXER, ANY_FFN = "ARPSN", "FEBN"


def lettered_layers(n_layers: Dim, pattern: str, letters: str) -> Dim:
    """Count the layers whose letter is one of `letters`, `pattern` repeated over the layers.

    Letter i of a pattern of length p falls on the layers i, i + p, … below N: ⌈(N - i) / p⌉ =
    (N + p - 1 - i) // p of them. Sum over the letters asked for, or N less the sum over the others
    where these are fewer.

    Returns: a count.
    Source: Jamba, arXiv:2403.19887, sec. 3.1 (one attention layer in eight).

    >>> lettered_layers(32, "RRRRARRR", "A")  # Jamba
    4
    """
    period = len(pattern)
    reaches = [reach for reach, letter in enumerate(reversed(pattern)) if letter in letters]
    others = [reach for reach in range(period) if reach not in reaches]
    if len(others) < len(reaches):
        return n_layers - sum(floor_div(n_layers + reach, period) for reach in others)
    return sum(floor_div(n_layers + reach, period) for reach in reaches)


def windowed_layers(n_layers: Dim, pattern: str) -> Dim:
    """Count the layers that see a window only: letter L of a pattern repeated over the layers.

    Returns: a count.
    Source: Gemma 3, arXiv:2503.19786, sec. 2 (LLLLLG).

    >>> windowed_layers(62, "LLLLLG")  # Gemma 3 27B
    52
    """
    if set(pattern) == {"L"}:
        return n_layers
    period = len(pattern)
    return sum(
        floor_div(n_layers + reach, period)
        for reach, letter in enumerate(reversed(pattern))
        if letter == "L"
    )


def layers_by_law(
    n_layers: Dim, *, n_dense_layers: Dim = 0, moe_every: Dim = 1, moe_offset: Dim = 0
) -> Dim:
    """Count a stack's MoE layers: i >= n_dense_layers, from 0, where moe_every divides i + 1 - o.

    o is moe_offset, which is less than moe_every. Numbers up to N that are o more than a multiple
    of moe_every, less those up to the dense layers:
    (N - o) // moe_every - (min(n_dense_layers, N) - o) // moe_every

    Returns: a count; a symbol for either count is taken at its word: n_dense_layers <= N.
    Source: DeepSeek-V3, arXiv:2412.19437, sec. 4.2 (leading dense layers); Fedus et al. 2021,
    arXiv:2101.03961, table 9 (Switch-Base, expert frequency 1/2).

    >>> layers_by_law(61, n_dense_layers=3)  # DeepSeek-V3
    58
    >>> layers_by_law(12, moe_every=2)  # one stack of Switch-Base
    6
    >>> layers_by_law(12, moe_every=4, moe_offset=2)  # layers 1, 5 and 9
    3
    """
    if is_symbolic(n_layers) or is_symbolic(n_dense_layers):
        leading = n_dense_layers
    else:
        leading = smaller(n_dense_layers, n_layers)
    upto_last = floor_div(n_layers - moe_offset, moe_every)
    return upto_last - floor_div(leading - moe_offset, moe_every)


def moe_layers(spec: ModelSpec, n_layers: Dim) -> Dim:
    """Count the MoE blocks in a stack of n_layers: by the mixture's law, or by a pattern."""
    mixture = spec.last_stack.mixture
    if mixture is None:
        return 0
    if spec.last_stack.names_experts:
        return lettered_layers(n_layers, spec.last_stack.ffn_pattern, WITH_EXPERTS)
    dense: Dim = mixture.n_dense_layers
    if spec.has_encoder:
        dense = smaller(dense, n_layers)  # one of two stacks may have fewer layers
    return layers_by_law(
        n_layers, n_dense_layers=dense, moe_every=mixture.every, moe_offset=mixture.offset
    )


def dense_layers(spec: ModelSpec, n_layers: Dim) -> Dim:
    """Count the blocks with a dense feed-forward in a stack, alone or beside experts."""
    pattern = spec.last_stack.ffn_pattern
    if set(pattern) == {"F"}:
        return n_layers - moe_layers(spec, n_layers)
    return lettered_layers(n_layers, pattern, WITH_DENSE)


def attention_layers(spec: ModelSpec) -> tuple[Dim, Dim]:
    """Count the (decoder) stack's blocks that see a window only, and those that see everything."""
    last = spec.last_stack
    with_any = lettered_layers(last.n_layers, last.mixer_pattern, WITH_ATTENTION)
    windowed = windowed_layers(last.n_layers, last.seen)
    return windowed, with_any - windowed


def borrowing_layers(spec: ModelSpec) -> Dim:
    """Count the blocks whose attention reads keys and values of an earlier block: the last ones.

    Source: Gemma 3n's released code, its num_kv_shared_layers; Brandon et al. 2024,
    arXiv:2405.12981, sec. 3 (attention across layers).
    """
    mixer = spec.last_stack.attention
    return mixer.n_kv_shared_layers if isinstance(mixer, Attention) else 0


def caching_layers(spec: ModelSpec) -> tuple[Dim, Dim]:
    """Count the blocks that keep keys and values: windowed ones, and those that see everything.

    All blocks with attention but the last `borrowing_layers`.
    """
    windowed, full = attention_layers(spec)
    n_borrowing, last = borrowing_layers(spec), spec.last_stack
    if is_zero(n_borrowing):
        return windowed, full
    n_making = last.n_layers - n_borrowing  # of layers that borrow, all have attention
    near = windowed_layers(n_making, last.seen)
    return near, n_making - near


def recurrent_layers(spec: ModelSpec) -> Dim:
    """Count the blocks whose mixer keeps a state."""
    last = spec.last_stack
    return lettered_layers(last.n_layers, last.mixer_pattern, WITH_STATE)


def indexed_layers(spec: ModelSpec, n_layers: Dim) -> Dim:
    """Count the blocks with a block indexer in a stack of n_layers."""
    mixer = spec.last_stack.attention
    index = mixer.indexer if isinstance(mixer, Attention) else None
    return 0 if index is None else lettered_layers(n_layers, index.pattern, "I")


def rotated_layers(spec: ModelSpec, n_layers: Dim, n_attending: Dim) -> Dim:
    """Count the blocks whose attention rotates queries and keys, `n_attending` having attention."""
    positions, last = spec.positions, spec.last_stack
    if not isinstance(positions, Rope):
        return 0
    if positions.nope_every is None:
        return n_attending
    if set(last.mixer_pattern) <= set("AP"):
        return positions.law.count(n_layers)
    if not isinstance(n_layers, int) or not isinstance(positions.nope_every, int):
        raise SpecError(
            "nope_every",
            "has no formula for training in letters beside a pattern of mixers",
            positions.nope_every,
            "give numbers",
        )
    attending = (i for i in range(n_layers) if last.mixer_of(i) in WITH_ATTENTION)
    return sum(positions.law.holds(i) for i in attending)


@frozen
class Kind:
    """How many blocks of a stack have this mixer, or this feed-forward.

    Numbers may be negative: blocks that differ in two ways are counted as if each way stood alone,
    and once less as the plain kind. Every sum over branches is right all the same.
    """

    times: Dim
    layer: Layer


def mixer_kinds(spec: ModelSpec, stack: Stack, *, in_detail: bool = True) -> list[Kind]:
    """List the mixers of a stack's blocks.

    Not `in_detail`: without what changes neither weights nor products, which is whether positions
    rotate, and the last block's queries.
    """
    last, n = spec.last_stack, stack.n_layers
    of_encoder = spec.has_encoder and stack is not spec.decoder
    plain = Layer(of_encoder=of_encoder)
    found: list[Kind] = []
    pattern = last.mixer_pattern
    for letter, letters in (("A", "A"), ("P", "P"), ("R", "R" + SHARING)):
        if not set(pattern) & set(letters):
            continue
        times = lettered_layers(n, pattern, letters)
        base = altered(plain, mixer=letter)
        if letter == "R":
            found.append(Kind(times=times, layer=base))
            continue
        found += _attention_kinds(spec, stack, base, times, in_detail)
    return found


def _attention_kinds(
    spec: ModelSpec, stack: Stack, base: Layer, times: Dim, in_detail: bool
) -> list[Kind]:
    """List the attentions of blocks with one letter: the plain kind, and what differs from it."""
    last, n = spec.last_stack, stack.n_layers
    different: list[tuple[Dim, dict[str, bool]]] = []
    if last.attention.window is not None:
        different.append((windowed_layers(n, last.seen), {"windowed": True}))
    if isinstance(spec.positions, Rope):
        base = altered(base, rotated=True)
        if spec.positions.nope_every is not None and in_detail:
            different.append((times - rotated_layers(spec, n, times), {"rotated": False}))
    different.append((indexed_layers(spec, n), {"indexed": True}))
    different.append((borrowing_layers(spec), {"borrows": True}))
    if not last.norms.first:
        different.append((1, {"first_norm": False}))
    if has_queries(spec) and in_detail:
        different.append((1, {"queried": True}))
    found = [Kind(times=times, layer=base)]
    for number, fields in different:
        if not is_zero(number):
            found.append(Kind(times=number, layer=altered(base, **fields)))
            found.append(Kind(times=-number, layer=base))
    return found


def feed_forward_kinds(spec: ModelSpec, stack: Stack) -> list[Kind]:
    """List the feed-forwards of a stack's blocks."""
    last, n = spec.last_stack, stack.n_layers
    part = last.feed_forward
    if part is None:
        return []
    both = lettered_layers(n, last.ffn_pattern, BESIDE)
    dense, routed = dense_layers(spec, n) - both, moe_layers(spec, n) - both
    second = 0 if part.second is None else lettered_layers(n, part.second_pattern, "W")
    plain = Layer(of_encoder=spec.has_encoder and stack is not spec.decoder)
    found = [
        Kind(times=routed, layer=altered(plain, ffn="E")),
        Kind(times=both, layer=altered(plain, ffn=BESIDE)),
    ]
    if part.d_ff is not None and last.shared is None:
        found.append(Kind(times=dense - second, layer=plain))
        found.append(Kind(times=second, layer=altered(plain, second=True)))
    return [kind for kind in found if not is_zero(kind.times)]


def shared_uses(spec: ModelSpec, stack: Stack) -> Dim:
    """Count the blocks that use one of the blocks that are stored once."""
    return lettered_layers(stack.n_layers, spec.last_stack.mixer_pattern, SHARING)


def layers_with(spec: ModelSpec, n_layers: Dim, *, mixers: str = ANY_MIXER, ffns: str) -> Dim:
    """Count the blocks whose mixer is one of `mixers` and whose feed-forward is one of `ffns`.

    A, R, P, S, N and F, E, B, N as in the two patterns; E also where a mixture's own law says so.

    >>> from metacount.catalog import entry
    >>> jamba = entry("jamba-1.5-mini").spec()
    >>> [layers_with(jamba, 32, mixers=mixer, ffns="E") for mixer in "AR"]
    [0, 16]
    """
    last = spec.last_stack
    if set(last.mixer_pattern) <= set(mixers):
        both = lettered_layers(n_layers, last.ffn_pattern, BESIDE)
        routed = moe_layers(spec, n_layers) - both
        dense = dense_layers(spec, n_layers) - both
        found = {"E": routed, "F": dense, "B": both, "N": n_layers - routed - dense - both}
        return sum(found[ffn] for ffn in ffns)
    if not set(last.mixer_pattern) & set(mixers):
        return 0
    if last.mixture is not None and not last.names_experts:
        return _by_law(spec, n_layers, mixers, ffns)
    period = common_period(len(last.mixer_pattern), len(last.ffn_pattern))
    having = "".join("x" if _has(last, i, mixers, ffns) else "-" for i in range(period))
    return lettered_layers(n_layers, having, "x")


def _has(last: Stack, index: int, mixers: str, ffns: str) -> bool:
    return last.mixer_of(index) in mixers and last.ffn_of(index) in ffns


def _by_law(spec: ModelSpec, n_layers: Dim, mixers: str, ffns: str) -> Dim:
    """Count block by block: a law of the mixture and a pattern of the mixers share no letter."""
    if not isinstance(n_layers, int):
        raise SpecError(
            "mixer_pattern",
            "has no formula for training in letters beside a law of the mixture",
            spec.mixer_pattern,
            "give numbers, or an ffn_pattern",
        )
    return sum(_has(spec.last_stack, i, mixers, ffns) for i in range(n_layers))
