"""Other sizes for a model's structure: at random, as small as they go, where a formula turns.

Small sizes at random find a wrong term; only sizes beside a number that stands in a formula, and
those of models that people trained, find a branch that is taken at large sizes.
"""

from __future__ import annotations

import random
from contextlib import suppress
from fractions import Fraction
from functools import cache
from itertools import combinations, islice
from math import ceil, floor, gcd
from typing import TYPE_CHECKING, NamedTuple

from metacount import catalog
from metacount.errors import SpecError
from metacount.spec import DTYPE_BYTES, LIMITS, MAX_TOKENS, ModelSpec, Workload, legend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

Case = tuple[ModelSpec, Workload]

WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 16, 17, 19, 24, 29, 31, 64, 96)
COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13)
NAMES = tuple(term.name for term in legend.MODEL_TERMS)
LAYERED = ("n_layers", "n_encoder_layers", "n_dense_layers")
COUNTED = (
    *LAYERED,
    *("n_kv_heads", "top_k", "n_shared_experts", "moe_every", "moe_offset", "n_groups"),
    *("top_groups", "n_token_types", "nope_every", "n_mtp_layers"),
)
ATTEMPTS = 40  # for each case that is wanted; most keep the rules at once


def free_sizes(spec: ModelSpec) -> tuple[str, ...]:
    """Name the fields of `spec` that are sizes; what is 0 or None is structure and stays."""
    names = [name for name in NAMES if getattr(spec, name)]
    return tuple(n for n in names if n != "moe_every" or spec.moe_every > 1)


def random_cases(spec: ModelSpec, workload: Workload, n: int, *, seed: int = 0) -> list[Case]:
    """Draw up to `n` valid models of the structure of `spec`, each with a workload."""
    draw = random.Random(seed)
    specs = (
        other
        for _ in range(n * ATTEMPTS)
        for other, _run in with_sizes((spec, workload), _small_sizes(spec, draw))
    )
    return [(other, _small_run(other, workload, draw)) for other in islice(specs, n)]


def alike(spec: ModelSpec, other: ModelSpec) -> ModelSpec:
    """Return `other` with those of its sizes equal that are equal in `spec`.

    Raises `SpecError` where the rules of sizes allow no such model.
    """
    equal = {}
    if spec.n_kv_heads and spec.n_kv_heads == spec.n_heads:
        equal["n_kv_heads"] = other.n_heads
    d_model = other.d_model
    if spec.head_dim and spec.n_heads * spec.head_dim == spec.d_model:
        equal["d_model"] = d_model = other.n_heads * other.head_dim
    if spec.d_ff and spec.d_ff % spec.d_model == 0:
        equal["d_ff"] = spec.d_ff // spec.d_model * d_model
    return other.replace(**equal)


def _small_sizes(spec: ModelSpec, draw: random.Random) -> dict[str, int]:
    sizes = {n: draw.choice(COUNTS if n in COUNTED else WIDTHS) for n in free_sizes(spec)}
    if "vocab_size" in sizes:
        sizes["vocab_size"] = draw.randint(20, 200)
    if "n_kv_heads" in sizes:
        sizes["n_heads"] = sizes["n_kv_heads"] * draw.choice((1, 1, 2, 3, 5))
    if "head_dim" in sizes and draw.random() < 0.3:
        # many formulas take this for granted
        sizes["head_dim"] += sizes["head_dim"] % 2
        sizes["d_model"] = sizes["n_heads"] * sizes["head_dim"]
    return sizes


def _small_run(spec: ModelSpec, workload: Workload, draw: random.Random) -> Workload:
    seq_len = draw.randint(1, 40)
    return Workload(
        batch_size=draw.randint(1, 5),
        seq_len=seq_len,
        dtype=draw.choice([*DTYPE_BYTES]),
        source_len=draw.randint(1, 40) if spec.has_encoder else None,
        prefix_len=draw.randint(1, seq_len) if workload.prefix_len else 0,
    )


def shrunk(case: Case, differs: Callable[[Case], bool]) -> Case:
    """Lower the sizes of a case, one after the other, as long as the two still differ."""
    while (
        smaller := next((other for other in _smaller(case) if differs(other)), None)
    ) is not None:
        case = smaller
    return case


def _smaller(case: Case) -> Iterator[Case]:
    """Yield the case with one size lowered: to the smallest that the rules allow first."""
    spec, run = case
    plain = run.to_dict()
    for name, size in sizes_of(case).items():
        cuts = (4, 16, 64, 256, 1024) if name in LIMITS else (16,)
        parts = (size // 2, *(size - size // n for n in cuts), size - 1)
        for lower in sorted(n for n in {*range(1, 7), *parts} if 0 < n < size):
            with suppress(SpecError):
                if name in LIMITS:
                    yield spec.replace(**{name: lower}), run
                elif name != "seq_len" or lower >= run.prefix_len:
                    yield spec, Workload(**{**plain, name: lower})
    if run.dtype != "int8":
        yield spec, Workload(**{**plain, "dtype": "int8"})


def sizes_of(case: Case) -> dict[str, int]:
    """Return every size of the model and of the run."""
    spec, run = case
    sizes = {name: getattr(spec, name) for name in free_sizes(spec)}
    sizes |= {"batch_size": run.batch_size, "seq_len": run.seq_len}
    if spec.has_encoder:
        sizes["source_len"] = run.encoder_len
    return {**sizes, "prefix_len": run.prefix_len} if run.prefix_len else sizes


MOE_LAYERS = 2_000


def with_sizes(case: Case, changes: dict[str, int]) -> Iterator[Case]:
    """Yield the case with some sizes changed, others as the rules want; or nothing."""
    spec, run = case
    sizes = {name: size for name, size in changes.items() if name in LIMITS}
    runs = {name: size for name, size in changes.items() if name not in LIMITS}
    if min(changes.values()) < 1 or any(size > LIMITS[name] for name, size in sizes.items()):
        return
    if spec.is_moe and any(sizes.get(name, 0) > MOE_LAYERS for name in LAYERED):
        return  # which of them have experts is looked at one by one: that takes long
    try:
        other = spec.replace(**_repaired(spec, sizes)) if sizes else spec
        if "prefix_len" not in runs and run.prefix_len:
            runs["prefix_len"] = min(run.prefix_len, runs.get("seq_len", run.seq_len))
        if max(runs.values(), default=1) <= MAX_TOKENS:
            yield other, Workload(**{**run.to_dict(), **runs}) if runs else run
    except SpecError:
        return


def _repaired(spec: ModelSpec, changes: dict[str, int]) -> dict[str, int]:
    """Return the sizes with `changes` made, and with what the rules want then."""
    sizes = {name: getattr(spec, name) for name in free_sizes(spec)} | changes

    def alone(name: str, other: str) -> bool:
        """Tell whether `name` was asked for and `other` was not, which then gives way."""
        return name in changes and other not in changes

    heads, kv = sizes.get("n_heads"), sizes.get("n_kv_heads")
    if heads and kv and heads % kv:
        if alone("n_kv_heads", "n_heads"):
            sizes["n_heads"] = kv * max(1, heads // kv)
        else:
            sizes["n_kv_heads"] = gcd(heads, kv)
    experts, groups = sizes.get("n_experts"), sizes.get("n_groups")
    if experts and sizes["top_k"] > experts:
        if alone("top_k", "n_experts"):
            experts = sizes["n_experts"] = sizes["top_k"]
        else:
            sizes["top_k"] = experts
    if experts and groups and experts % groups:
        sizes["n_experts"] = groups * max(2, experts // groups)
    if groups and sizes["top_groups"] > groups:
        sizes["top_groups"] = groups
    if sizes.get("n_dense_layers", 0) >= sizes["n_layers"]:
        if alone("n_dense_layers", "n_layers"):
            sizes["n_layers"] = sizes["n_dense_layers"] + 1
        else:
            sizes["n_dense_layers"] = sizes["n_layers"] - 1
    for name in ("head_dim", "rotary_dim", "qk_rope_head_dim"):
        if name in sizes and (spec.position == "rope" or name == "qk_rope_head_dim"):
            sizes[name] += sizes[name] % 2
    if "rotary_dim" in sizes and "head_dim" in sizes:
        sizes["rotary_dim"] = min(sizes["rotary_dim"], sizes["head_dim"])
    if "index_block_len" in sizes:
        sizes["n_index_heads"] = sizes["n_kv_heads"]
        sizes["index_head_dim"] = max(
            sizes["index_head_dim"], sizes.get("rotary_dim", sizes["head_dim"])
        )
        sizes["index_local_blocks"] = min(sizes["index_local_blocks"], sizes["index_top_blocks"])
    if "n_buckets" in sizes:
        sizes["n_buckets"] = -(-sizes["n_buckets"] // 4) * 4
        sizes["max_distance"] = max(sizes["max_distance"], sizes["n_buckets"] + 1)
    if "position_offset" in sizes:
        sizes["n_positions"] = max(sizes["n_positions"], sizes["position_offset"] + 1)
    if sizes.get("window") == 1:
        sizes["window"] = 2
    return sizes


SMALL, MIDDLE = 200, 150  # cases of each kind
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
LAYER_RANGE, WIDTH_RANGE = (1, 200), (8, 65_536)
RUNS = {"batch_size": (1, 512), "seq_len": (1, 2**20), "source_len": (1, 2**20)}


class Gap(NamedTuple):
    """The difference of two expressions whose order decides, and the sizes it depends on."""

    names: tuple[str, ...]
    at: Callable[[Case, dict[str, int]], Fraction]


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
    neighbours = [*_near(case, _numbers(literals), turns)]
    step = max(1, len(neighbours) / MOST_BESIDE)  # from all over
    neighbours = [neighbours[int(i * step)] for i in range(min(len(neighbours), MOST_BESIDE))]
    draw = random.Random(1)
    others = [*own, *_unruled(case), *_varied(case), *neighbours, *random_cases(*case, SMALL)]
    others += [other for _ in range(MIDDLE) for other in _middle(case, draw)]
    others += _together(case, turns)
    unique = {repr([part.to_dict() for part in case]): case}
    for spec, workload in others:
        other = spec, workload if run else case[1]
        unique.setdefault(repr([part.to_dict() for part in other]), other)
    return [*unique.values()][1 : MOST + 1]


@cache
def _specs() -> tuple[ModelSpec, ...]:
    return tuple(entry.spec() for entry in catalog.entries() if entry.sizes is not None)


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
    for name, size in sizes_of(case).items():
        for value in (size + 1, size - 1, 2 * size, size // 2, 3 * size, 10 * size):
            yield from with_sizes(case, {name: value})
    for dtype in DTYPE_BYTES:
        if dtype != case[1].dtype:
            yield case[0], Workload(**{**case[1].to_dict(), "dtype": dtype})


def _numbers(literals: Iterable[Fraction]) -> list[int]:
    """List the numbers to look beside: those of the formula, their products and quotients."""
    first = dict.fromkeys(
        n
        for number in literals
        for n in (abs(floor(number)), abs(ceil(number)), abs(number.numerator), number.denominator)
        if 0 < n <= LARGEST
    )
    base = [*first][:MOST_LITERALS]
    made = dict.fromkeys(base)
    for a in base:
        for b in base:
            if 1 < b < a:
                made |= dict.fromkeys((a // b, -(-a // b), a * b))
    return [n for n in made if OBVIOUS < n <= LARGEST]


def _around(number: int, name: str) -> tuple[int, ...]:
    """List a number, both its sides, and far above; many layers take long."""
    near = (number, number - 1, number + 1, number + 2, 2 * number + 1, number // 2)
    return near if name in LAYERED else (*near, 10 * number, 1_000 * number)


def _near(case: Case, numbers: list[int], turns: list[dict[str, int]]) -> Iterator[Case]:
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
    turns: list[dict[str, int]] = []
    for gap in gaps:
        for base in bases:
            sizes = sizes_of(base)
            names = [name for name in gap.names if name in sizes]
            for name in names:
                for value in _crossings(gap, base, name, {}):
                    turns.append({name: value})
                    if value <= _limit(name):
                        continue
                    for other in names:
                        large = {other: min(_limit(other), FAR)}
                        if other != name:
                            for again in _crossings(gap, base, name, large):
                                turns.append({name: again, **large})
    unique = {tuple(turn.items()): turn for turn in turns}
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
    """List cases past two turns: a product shows only where both have turned."""
    past = [{name: size + 1 for name, size in turn.items()} for turn in turns]
    pairs = [{**a, **b} for a, b in combinations(past, 2) if not a.keys() & b.keys()]
    return [other for sizes in pairs[:MOST_PAIRS] for other in with_sizes(case, sizes)]


def _middle(case: Case, draw: random.Random) -> Iterator[Case]:
    sizes = {name: _drawn(name, draw) for name in sizes_of(case) if name != "prefix_len"}
    return with_sizes(case, sizes)


def _drawn(name: str, draw: random.Random) -> int:
    low, high = (
        RUNS.get(name) or RANGES.get(name) or (LAYER_RANGE if name in COUNTED else WIDTH_RANGE)
    )
    if name == "n_layers":
        low, high = LAYER_RANGE
    value = int(low * (high / low) ** draw.random())
    # as people choose widths, or any number
    return max(64, value // 64 * 64) if high > 10_000 and draw.random() < 0.7 else value
