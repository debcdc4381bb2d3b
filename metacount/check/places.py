"""Where a formula is tried that letters do not decide: real sizes, and where the formula turns.

Small sizes at random find a wrong term; only sizes beside a number that stands in a formula, and
those of models that people trained, find a branch that is taken at large sizes.
"""

from __future__ import annotations

import random
from fractions import Fraction
from functools import cache
from itertools import combinations
from math import ceil, floor
from typing import TYPE_CHECKING

from metacount import catalog
from metacount.check.repaired import LAYERED, with_sizes
from metacount.check.trials import COUNTED, Case, free_sizes, random_cases, sizes_of
from metacount.spec import DTYPE_BYTES, LIMITS, MAX_TOKENS, ModelSpec, Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

SMALL, MIDDLE, MIXED = 200, 150, 250  # cases of each kind
MOST = 1_600  # cases in all
MOST_PAIRS = 200
MOST_LITERALS = 60
MOST_BESIDE = 700  # cases beside the numbers of a formula
OBVIOUS = 4  # numbers up to here are tried by small sizes anyway
LARGEST = 2**31
GRID = 41  # powers of two that are looked at for a crossing
FAR = 2**20  # a large size, so that a product gets large
BASES = 6  # cases from which a crossing is looked for

# How large a size is in models that people trained: the range that is drawn from.
RANGES = {
    "vocab_size": (100, 300_000),
    "n_positions": (64, 200_000),
    "window": (2, 200_000),
    "n_experts": (2, 2_048),
    "top_k": (1, 16),
    "n_heads": (1, 256),
    "n_kv_heads": (1, 128),
    "head_dim": (2, 512),
    "n_buckets": (4, 256),
    "rotary_dim": (2, 256),
}
LENGTHS = (1, 2, 128, 512, 4_096, 8_192, 32_768, 131_072, 1_048_576)
LAYERS, WIDTHS = (1, 200), (8, 65_536)
RUNS = {"batch_size": (1, 512), "seq_len": (1, 2**20), "source_len": (1, 2**20)}


class Gap:
    """The difference of two expressions whose order decides, and the sizes it depends on."""

    def __init__(
        self, names: tuple[str, ...], at: Callable[[Case, dict[str, int]], Fraction]
    ) -> None:
        self.names, self.at = names, at


def places(
    case: Case, literals: Iterable[Fraction], gaps: Iterable[Gap] = (), *, run: bool = True
) -> list[Case]:
    """List models of the structure of `case`, other than `case` itself: the most telling first.

    `literals` are the numbers that stand in the formula; each of `gaps` is a
    difference whose sign decides. Without `run` nobody asks
    for batch and lengths, and they stay.
    """
    own = [*_catalog(case)]
    turns = _turns([case, *own[: BASES - 1]], gaps)
    numbers = _numbers(literals)
    beside = [*_beside(case, numbers, turns)]
    found = [*own, *_unruled(case), *_varied(case), *_spread(beside, MOST_BESIDE)]
    found += random_cases(*case, SMALL)
    draw = random.Random(1)
    found += [c for _ in range(MIDDLE) if (c := _middle(case, draw)) is not None]
    found += _together(case, turns)
    found += _mixed(case, own, numbers, turns, draw)
    if not run:
        found = [(spec, case[1]) for spec, _ in found]
    return _distinct(case, found)[:MOST]


def _distinct(case: Case, found: list[Case]) -> list[Case]:
    seen, kept = {_key(case)}, []
    for other in found:
        if (key := _key(other)) not in seen:
            seen.add(key)
            kept.append(other)
    return kept


def _key(case: Case) -> tuple[object, ...]:
    return tuple(repr(value) for part in case for value in part.to_dict().values())


def _spread(cases: list[Case], most: int) -> list[Case]:
    """Pick at most so many of `cases`, from all over."""
    if len(cases) <= most:
        return cases
    return [cases[i * len(cases) // most] for i in range(most)]


@cache
def _specs() -> tuple[ModelSpec, ...]:
    found = (entry for entry in catalog.entries() if entry.sizes is not None)
    return tuple(entry.spec() for entry in found)


def _catalog(case: Case) -> Iterator[Case]:
    """Yield the structure of `case` at the sizes of the models
    of the catalog that have these sizes.

    Models that have them all come first; of others, the sizes that they have.
    """
    spec = case[0]
    names = free_sizes(spec)
    others = sorted(_specs(), key=lambda other: sum(not getattr(other, name) for name in names))
    for other in others:
        sizes = {name: size for name in names if (size := getattr(other, name))}
        if other.attention == spec.attention and len(sizes) > 2:
            yield from with_sizes(case, sizes)
    for length in LENGTHS:
        yield from with_sizes(case, {"seq_len": length})


def _unruled(case: Case) -> Iterator[Case]:
    """Yield sizes that a spec refuses, but no architecture: T5 may have any number of buckets."""
    spec, run = case
    if spec.n_buckets is not None:
        for more in (1, 2, 3):
            yield spec.substituted(n_buckets=spec.n_buckets + more), run


def _varied(case: Case) -> Iterator[Case]:
    """Yield the model's own sizes with one of them changed."""
    for name, size in sizes_of(case).items():
        for value in (size + 1, size - 1, 2 * size, size // 2, 3 * size, 10 * size):
            yield from with_sizes(case, {name: value})
    for dtype in DTYPE_BYTES:
        if dtype != case[1].dtype:
            yield case[0], Workload(**{**case[1].to_dict(), "dtype": dtype})


def _numbers(literals: Iterable[Fraction]) -> list[int]:
    """List the numbers to look beside: those of the formula, their products and quotients."""
    first: dict[int, None] = {}
    for number in literals:
        for whole in (
            abs(floor(number)),
            abs(ceil(number)),
            abs(number.numerator),
            number.denominator,
        ):
            if 0 < whole <= LARGEST:
                first[whole] = None
    base = [*first][:MOST_LITERALS]
    made = dict.fromkeys(base)
    for a in base:
        for b in base:
            if 1 < b < a:
                made |= dict.fromkeys((a // b, -(-a // b), a * b))
    return [n for n in made if OBVIOUS < n <= LARGEST]


def _around(number: int, name: str) -> tuple[int, ...]:
    """List a number, both its sides, and, but for layers, far above:
    thousands of layers take long to look at.
    """
    near = (number, number - 1, number + 1, number + 2, 2 * number + 1, number // 2)
    return near if name in LAYERED else (*near, 10 * number, 1_000 * number)


def _beside(case: Case, numbers: list[int], turns: list[dict[str, int]]) -> Iterator[Case]:
    """Yield the model's own sizes, one beside a number of the formula or
    where a gap changes sign.
    """
    for turn in turns:
        name, *_ = turn
        for value in _around(turn[name], name):
            yield from with_sizes(case, {**turn, name: value})
    for number in numbers:
        for name in sizes_of(case):
            for value in _around(number, name):
                yield from with_sizes(case, {name: value})


def _turns(bases: list[Case], gaps: Iterable[Gap]) -> list[dict[str, int]]:
    """Find sizes at which the sign of a gap changes, all others as in one of `bases`.

    Where none can be so large, another one that the gap depends on is made large first.
    """
    found: list[dict[str, int]] = []
    for gap in gaps:
        for base in bases:
            sizes = sizes_of(base)
            names = [name for name in gap.names if name in sizes]
            for name in names:
                for value in _crossings(gap, base, name, {}):
                    found.append({name: value})
                    if value <= _limit(name):
                        continue
                    for other in names:
                        large = {other: min(_limit(other), FAR)}
                        if other != name:
                            for again in _crossings(gap, base, name, large):
                                found.append({name: again, **large})
    unique = {tuple(turn.items()): turn for turn in found}
    return [*unique.values()][:MOST_LITERALS]


def _limit(name: str) -> int:
    return LIMITS.get(name, MAX_TOKENS)


def _crossings(gap: Gap, base: Case, name: str, others: dict[str, int]) -> Iterator[int]:
    """Yield the sizes for `name` at which the gap has another sign than at one less."""

    def sign(size: int) -> int:
        value = gap.at(base, {**others, name: size})
        return (value > 0) - (value < 0)

    low = 1
    try:
        before = sign(low)
        for power in range(1, GRID):
            high = 2**power
            after = sign(high)
            if before != after:
                yield _turn(sign, low, high, before)
            low, before = high, after
    except (ValueError, ArithmeticError):  # it divides by zero somewhere
        return


def _turn(sign: Callable[[int], int], low: int, high: int, before: int) -> int:
    """Find the smallest size between `low` and `high` that has not the sign `before`."""
    while high - low > 1:
        middle = (low + high) // 2
        if sign(middle) == before:
            low = middle
        else:
            high = middle
    return high


def _together(case: Case, turns: list[dict[str, int]]) -> list[Case]:
    """List cases just past two turns at once:
    a product shows only where both factors have turned.
    """
    past = [{name: size + 1 for name, size in turn.items()} for turn in turns]
    pairs = [{**a, **b} for a, b in combinations(past, 2) if not a.keys() & b.keys()]
    return [other for sizes in pairs[:MOST_PAIRS] for other in with_sizes(case, sizes)]


def _middle(case: Case, draw: random.Random) -> Case | None:
    """Draw sizes of any magnitude up to those of the largest models."""
    sizes = {name: _drawn(name, draw) for name in sizes_of(case) if name != "prefix_len"}
    return next(with_sizes(case, sizes), None)


def _drawn(name: str, draw: random.Random) -> int:
    low, high = RUNS.get(name) or RANGES.get(name) or (LAYERS if name in COUNTED else WIDTHS)
    if name == "n_layers":
        low, high = LAYERS
    value = int(low * (high / low) ** draw.random())
    # as people choose widths, or any number
    return max(64, value // 64 * 64) if high > 10_000 and draw.random() < 0.7 else value


def _mixed(
    case: Case,
    own: list[Case],
    numbers: list[int],
    turns: list[dict[str, int]],
    draw: random.Random,
) -> Iterator[Case]:
    """Draw each size from the model, from another one,
    beside a number of the formula, or at random.
    """
    here = sizes_of(case)
    for _ in range(MIXED):
        sizes = {}
        for name, size in here.items():
            kind = draw.randrange(4)
            beside = [*(turn[name] for turn in turns if name in turn), *numbers]
            if kind == 0 and own:
                size = sizes_of(draw.choice(own)).get(name, size)
            elif kind == 1 and beside:
                size = draw.choice(_around(draw.choice(beside), name))
            elif kind == 2 and name != "prefix_len":
                size = _drawn(name, draw)
            sizes[name] = size
        yield from with_sizes(case, sizes)
