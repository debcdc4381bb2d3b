"""Names a size by the letters it is made of, from what it was at several sizes of the same model.

One number says nothing: 4096 may be d, h·h_d or a window. The same forward is run at other sizes,
and a size is named only by what gives its number in every run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from itertools import combinations
from math import prod
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from metacount.check.sizes import free_sizes
from metacount.flow.steps import Named, Shape, Step
from metacount.spec import ModelSpec, Workload, legend
from metacount.spec.stack import OF_LAYERS, OF_LISTS

if TYPE_CHECKING:
    from collections.abc import Iterator


Numbers: TypeAlias = tuple[Fraction, ...]  # of one size, one a run

TIMES = ((1, 1), (1, 2), (2, 1), (1, 3), (3, 1), (2, 3), (3, 2))  # each letter of a sum
EXTRAS = (-2, -1, 1, 2)
FACTORS = (1, 2, 3, 4)  # before a bracket


def prime_factors(n: int) -> set[int]:
    """Find the primes that divide a whole number.

    >>> sorted(prime_factors(60))
    [2, 3, 5]
    """
    factors, p = set(), 2
    while p * p <= n:
        while n % p == 0:
            factors.add(p)
            n //= p
        p += 1
    return factors | ({n} if n > 1 else set())


class Letters:
    """The letters of one model, with their values in each of several runs.

    The first run is the one that is shown; in the others every letter has a prime of its own.

    >>> runs = [{"B": 1, "d": 8, "h": 4, "h_d": 2}, {"B": 3, "d": 101, "h": 7, "h_d": 26},
    ...         {"B": 5, "d": 103, "h": 11, "h_d": 34}]
    >>> letters = Letters(runs)
    >>> letters.name([8, 182, 374]), letters.name([8, 101, 103]), letters.name([8, 8, 8])
    ('h·h_d', 'd', '8')
    >>> letters.name([10, 127, 137]), letters.name([8, 9, 99]) is None
    ('d + h_d', True)
    """

    def __init__(self, runs: Sequence[Mapping[str, int]]) -> None:
        self.runs = runs
        self._order = [self._elimination(run) for run in runs[1:]]
        self._known: dict[tuple[int, ...], str | None] = {}

    def _elimination(self, run: Mapping[str, int]) -> list[tuple[str, int, int]]:
        """List letters, each with a prime that no letter after it has, and how often it has it."""
        factors = {name: prime_factors(value) for name, value in run.items() if value > 1}
        order: list[tuple[str, int, int]] = []
        while factors:
            for name, own in factors.items():
                others = set().union(*(f for other, f in factors.items() if other != name))
                if own - others:
                    prime = max(own - others)
                    order.append((name, prime, _power(run[name], prime)))
                    break
            else:  # two letters of equal primes: neither can be told
                return order
            del factors[name]
        return order

    def name(self, numbers: Sequence[int]) -> str | None:
        """Name the size that had these numbers, one for each run; None where no name is known."""
        key = tuple(numbers)
        if key not in self._known:
            self._known[key] = self._named(key)
        return self._known[key]

    def _named(self, numbers: tuple[int, ...]) -> str | None:
        if len(set(numbers)) == 1:
            return str(numbers[0])
        if not self._order or 0 in numbers:
            return None
        values = tuple(map(Fraction, numbers))
        plain = self._monomial(values)
        if plain is not None:
            return plain
        # a product of letters and a sum: what divides all runs stands before the bracket
        powers = [self._powers(n, i)[0] for i, n in enumerate(values[1:])]
        common = {
            name: least
            for name in self.runs[0]
            if (least := min(powers_of.get(name, 0) for powers_of in powers)) > 0
        }
        return self._bracket(values, common) or (self._bracket(values, {}) if common else None)

    def _bracket(self, numbers: Numbers, common: Mapping[str, int]) -> str | None:
        """Write a sum, with a number and the letters that are common to it before its bracket."""
        rests = [n / _value(common, run) for n, run in zip(numbers, self.runs, strict=True)]
        for factor in FACTORS:
            added = self._sum(tuple(rest / factor for rest in rests))
            if added is not None and (common or factor > 1):
                return f"{self._product(Fraction(factor), common)}·({added})"
            if added is not None:
                return added
        return None

    def _monomial(self, numbers: Numbers) -> str | None:
        """Write a product of letters, with a number before it."""
        if any(n <= 0 for n in numbers):
            return None
        powers = [self._powers(n, i) for i, n in enumerate(numbers[1:])]
        first, rest = powers[0]
        if any(pair != (first, rest) for pair in powers) or not first:
            return None
        holds = rest * _value(first, self.runs[0]) == numbers[0]
        return self._product(rest, first) if holds else None

    def _sum(self, numbers: Numbers) -> str | None:
        """Write a sum of two letters, or of a product of letters and a small number."""
        if numbers in self._sums:
            return self._sums[numbers]
        for extra in EXTRAS:
            product = self._monomial(tuple(n - extra for n in numbers))
            if product is not None:
                return f"{product} {'-' if extra < 0 else '+'} {abs(extra)}"
        return None

    def _powers(self, number: Fraction, i: int) -> tuple[dict[str, int], Fraction]:
        """Count how often each letter divides a number of a run, and return what is left."""
        rest, exponents = number, {}
        for name, prime, times in self._order[i]:
            # a length of eight chunks has the prime 2 three times
            power = int((_power(rest.numerator, prime) - _power(rest.denominator, prime)) / times)
            if power:
                exponents[name] = power
                rest /= Fraction(self.runs[i + 1][name]) ** power
        return exponents, rest

    def _product(self, factor: Fraction, powers: Mapping[str, int]) -> str:
        names = [name for name in self.runs[0] if name in powers]
        above = [_raised(name, powers[name]) for name in names if powers[name] > 0]
        below = [_raised(name, -powers[name]) for name in names if powers[name] < 0]
        if factor.numerator != 1 or not above:
            above.insert(0, str(factor.numerator))
        if factor.denominator != 1:
            below.insert(0, str(factor.denominator))
        text = "·".join(above)
        return text + "".join(f"/{name}" for name in below)

    @cached_property
    def _sums(self) -> dict[Numbers, str]:
        """Every sum of two letters, once or a few times each, by its values."""
        sums: dict[Numbers, str] = {}
        for a, b in combinations(self.runs[0], 2):
            for x, y in TIMES:
                both = tuple(Fraction(x * run[a] + y * run[b]) for run in self.runs)
                sums.setdefault(both, f"{_times(x, a)} + {_times(y, b)}")
        return sums


def _value(powers: Mapping[str, int], run: Mapping[str, int]) -> Fraction:
    return prod((Fraction(run[name]) ** power for name, power in powers.items()), start=Fraction(1))


def _power(n: int, prime: int) -> int:
    exponent = 0
    while n % prime == 0:
        n, exponent = n // prime, exponent + 1
    return exponent


def _raised(name: str, power: int) -> str:
    return name if power == 1 else name + "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(n)] for n in str(power))


def _times(factor: int, name: str) -> str:
    return name if factor == 1 else f"{factor}·{name}"


def named(
    steps: tuple[Step, ...], others: Sequence[tuple[Step, ...]], letters: Letters
) -> tuple[Step, ...]:
    """Give the steps letters, where the other runs went through the same steps."""
    if any(len(other) != len(steps) for other in others):
        return tuple(map(unnamed, steps))
    return tuple(
        _named(step, [other[i] for other in others], letters) for i, step in enumerate(steps)
    )


def unnamed(step: Step) -> Step:
    """Complete the equations of a step of which no letter is known."""
    return _filled(replace(step, inside=tuple(map(unnamed, step.inside))))


def _named(step: Step, others: list[Step], letters: Letters) -> Step:
    if any(_kind(other) != _kind(step) for other in others):
        return unnamed(step)
    simple = not step.inside
    step = replace(
        step,
        inside=named(step.inside, [other.inside for other in others], letters),
        input_letters=_shapes([s.inputs for s in (step, *others)], letters),
        output_letters=_shapes([s.outputs for s in (step, *others)], letters),
        params_letters=letters.name([s.params for s in (step, *others)]) if simple else None,
        flops_letters=letters.name([s.flops for s in (step, *others)]) if simple else None,
    )
    return _filled(step)


def _kind(step: Step) -> tuple[object, ...]:
    ranks = tuple(tuple(map(len, shapes)) for shapes in (step.inputs, step.outputs))
    return step.name, step.module, step.times, step.code, ranks


def _shapes(runs: list[tuple[Shape, ...]], letters: Letters) -> tuple[Named, ...]:
    return tuple(
        tuple(letters.name(sizes) for sizes in zip(*shapes, strict=True))
        for shapes in zip(*runs, strict=True)
    )


def _filled(step: Step) -> Step:
    """Put the width of a step's first input in the place of its equation that waits for it."""
    if step.equation is None or "{last}" not in step.equation:
        return step
    known = step.input_letters[0][-1] if step.input_letters else None
    width = known or str(step.inputs[0][-1])
    text = f"({width})" if " " in width else width
    return replace(step, equation=step.equation.replace("{last}", text))


EVEN = ("head_dim", "head_dim_windowed", "qk_rope_head_dim", "rotary_dim", "rotary_dim_windowed")
RUNS = 2  # beside the one that is shown

# Which blocks are of which kind: what is run must stay the same.
STRUCTURE = frozenset((
    *OF_LAYERS, *OF_LISTS, "position_offset", "max_distance",
    # how many blocks there are, and are chosen, is told as it is
    "index_block_len", "index_top_blocks", "index_local_blocks", "sparse_ratio", "heavy_ratio",
))  # fmt: skip
# No two letters of a run share a prime, and none is 2 or 3, which stand before letters.
SMALL = {
    "top_k": (5, 7),
    "n_shared_experts": (7, 5),
    "n_token_types": (5, 7),
    "top_groups": (11, 13),
    "n_groups": (13, 17),
    "conv_kernel": (7, 5),
    "linear_chunk_size": (11, 13),
    "ssm_chunk_size": (11, 13),
}
CHUNKS = ("linear_chunk_size", "ssm_chunk_size")
# A size that must divide another, which is so many times as large.
DIVIDES = {
    "n_linear_k_heads": "n_linear_v_heads",
    "n_ssm_groups": "n_ssm_heads",
    "n_lru_blocks": "lru_width",
}
BATCHES = (19, 23)
COUNTS = ((29, 31, 37, 43, 41), (31, 29, 41, 37, 43))
LENGTHS = ((47, 53), (67, 71))  # of the sequence, and of what an encoder reads
WINDOWS = {"inside": (23, 61), "beyond": (991, 997)}
POSITIONS = (499, 503)
WIDTHS = tuple(
    tuple(n for n in range(start, start + 190) if all(n % p for p in (2, 3, 5, 7, 11, 13, 17, 19)))
    for start in (73, 269)
)


class Sized(NamedTuple):
    """A model, what it runs, and the value of each letter there."""

    spec: ModelSpec
    workload: Workload
    letters: dict[str, int]


def other_sizes(spec: ModelSpec, workload: Workload, *, decode: bool) -> list[Sized]:
    """Return the same structure at `RUNS` other sizes."""
    sizes = []
    for n in range(RUNS):
        run = _workload(spec, workload, n)
        other = spec.substituted(**_values(spec, workload, n))
        sizes.append(Sized(other, run, letters_of_run(other, run, decode=decode)))
    return sizes


def letters_of_run(spec: ModelSpec, workload: Workload, *, decode: bool) -> dict[str, int]:
    """Return the letters in the order of a product; equal sizes share the first one."""
    lengths = {"B": workload.batch_size, "T" if decode else "S": workload.seq_len}
    if spec.has_encoder:
        lengths["S_e"] = workload.encoder_len
    sizes = {}
    for name in free_sizes(spec):
        if name in STRUCTURE or (name == "n_kv_heads" and spec.n_kv_heads == spec.n_heads):
            continue
        if name == "n_index_heads" and spec.n_index_heads == spec.n_kv_heads:
            continue
        sizes[legend.by_name(name).letter] = int(getattr(spec, name))
    return {**lengths, **sizes}


def _workload(spec: ModelSpec, workload: Workload, n: int) -> Workload:
    """Return another run, of as many chunks where a mixer goes through chunks."""
    seq_len, source = LENGTHS[n]
    for name in CHUNKS:
        size = getattr(spec, name)
        if size is not None and size != 1:
            quotient, rest = divmod(workload.seq_len, size)
            seq_len = SMALL[name][n] * quotient + (SMALL[name][n] - 1 if rest else 0)
    return Workload(
        batch_size=BATCHES[n],
        seq_len=seq_len,
        dtype=workload.dtype,
        source_len=None if workload.source_len is None else source,
        prefix_len=min(workload.prefix_len, seq_len - 1),
    )


def _values(spec: ModelSpec, workload: Workload, n: int) -> dict[str, int]:
    """Return another value for each size that is free."""
    counts, widths = iter(COUNTS[n]), iter(WIDTHS[n])
    names = [name for name in free_sizes(spec) if name not in STRUCTURE]
    values = {
        name: SMALL[name][n] if name in SMALL else next(widths)
        for name in names
        if getattr(spec, name) != 1
    }
    heads = next(counts)
    if spec.n_heads not in (1, None):
        values["n_heads"] = heads * values.get("o_groups", 1)
    if "n_kv_heads" in values:
        same = spec.n_kv_heads == spec.n_heads
        values["n_kv_heads"] = heads if same else next(counts)
        values["n_heads"] = heads if same else heads * values["n_kv_heads"]
    _fit_heads(values, counts)
    for part, product in DIVIDES.items():
        if product in values:
            values[product] = next(counts) * values.get(part, 1)
    if "index_top_k" in values:
        inside = spec.index_top_k < workload.seq_len // (spec.sparse_ratio or 1)
        values["index_top_k"] = WINDOWS["inside" if inside else "beyond"][n]
        values["index_head_dim"] += values.get("qk_rope_head_dim", values.get("rotary_dim", 0))
    values |= _of_block_index(spec, values, counts)
    if "n_experts" in values:
        values["n_experts"] = next(counts) * values.get("n_groups", 1)
    if "n_buckets" in values:
        values["n_buckets"] = 4 * next(counts)
    if spec.window is not None:
        values["window"] = WINDOWS["inside" if spec.window < workload.seq_len else "beyond"][n]
    if "n_positions" in values:
        values["n_positions"] = POSITIONS[n]
    return values


def _fit_heads(values: dict[str, int], counts: Iterator[int]) -> None:
    """Change sizes so that heads fall into groups, in windows too, and have the pairs that turn."""
    if "n_kv_heads_windowed" in values:
        values["n_kv_heads_windowed"] = next(counts)
        values["n_heads"] = values.get("n_heads", 1) * values["n_kv_heads_windowed"]
    if "n_heads_windowed" in values:
        groups = values.get("n_kv_heads_windowed", values.get("n_kv_heads", 1))
        values["n_heads_windowed"] = next(counts) * groups
    for name in EVEN:
        if name in values:
            values[name] *= 2
    near = "head_dim_windowed" if "head_dim_windowed" in values else "head_dim"
    for turned, head in (("rotary_dim", "head_dim"), ("rotary_dim_windowed", near)):
        if turned in values and values[turned] > values[head]:
            values[turned], values[head] = values[head], values[turned]


def _of_block_index(
    spec: ModelSpec, values: dict[str, int], counts: Iterator[int]
) -> dict[str, int]:
    """Return values of an index that go with attention's: as many heads as keys have."""
    if spec.index_block_len is None:
        return {}
    rotated = values.get("rotary_dim", values["head_dim"])
    values_of = {"index_head_dim": values["index_head_dim"] + rotated}
    if spec.n_index_heads == spec.n_kv_heads:
        return {**values_of, "n_index_heads": values.get("n_kv_heads", 1)}
    if "n_index_heads" in values:
        heads = next(counts)
        return {**values_of, "n_index_heads": heads, "n_heads": heads * values["n_heads"]}
    return values_of
