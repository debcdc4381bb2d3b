"""What may have been done to a size everywhere or in one part: another size or a number for it,
one more or less, left out of a product, a factor.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from metacount.algebra.exact import Monomial, Table, substituted, times
from metacount.check.comparison import named
from metacount.check.names import BYTES_LETTER, NAMES
from metacount.check.parts import listed
from metacount.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import sympy

    from metacount.algebra.exact import Space

# How much less likely than a known mistake.
LIKELY, GROUPS, POSSIBLE, ODD = 0.0, 0.15, 0.2, 0.6
AS_WRITTEN = 0.3  # less, where the sum stands in the formula


@frozen
class Change:
    """One thing done to a table: in words, how unlikely, and what is put for which product.

    A product that is none (`old` has no letter) stands for everything.
    """

    words: str
    cost: float
    old: Monomial
    by: Table

    @property
    def of_all(self) -> bool:
        """Whether all of a table is multiplied, whatever is in it."""
        return not any(self.old)

    @property
    def place(self) -> int | None:
        """The letter that something else is put for, where it is one alone."""
        return self.old.index(1) if sum(self.old) == 1 else None

    @property
    def moves(self) -> set[Monomial]:
        """How the powers of a product with the change differ from those without."""
        moves = {tuple(map(int.__sub__, key, self.old)) for key in self.by}
        if self.place is not None and len(self.by) == 1:
            moves |= {tuple(2 * n for n in move) for move in moves}  # of a size squared
        return moves if len(moves) < 2 else {move for move in moves if any(move)}

    def of(self, table: Table) -> Table | None:
        """Return the table with the change made."""
        if (place := self.place) is not None:
            return substituted(table, place, self.by)
        changed: Table = {}
        for key, value in table.items():
            fits = all(a >= b for a, b in zip(key, self.old, strict=True) if b)
            rest = tuple(map(int.__sub__, key, self.old)) if fits else key
            for new, factor in (times(self.by, value, rest) if fits else {key: value}).items():
                changed[new] = changed[new] + factor if new in changed else factor
        return {key: value for key, value in changed.items() if value}


WIDTHS = (
    "d_model",
    "head_dim",
    "d_ff",
    "d_ff_expert",
    "d_ff_shared",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "d_embedding",
)
WHOLE_WIDTHS = ("d_model", "d_ff", "d_ff_expert")  # of which others are a multiple
EXPERTS = ("n_experts", "top_k", "n_shared_experts")
REPEATED = (*EXPERTS, "n_heads", "n_layers", "batch_size", "seq_len", "kv_len", "bytes_per_value")
KINDS: tuple[tuple[str, ...], ...] = (
    WIDTHS,
    ("n_heads", "n_kv_heads"),
    EXPERTS,
    ("n_layers", "n_dense_layers", "n_encoder_layers"),
    ("seq_len", "kv_len", "source_len", "window"),
    ("vocab_size", "n_positions"),
)
HEAD_WIDTHS = ("head_dim", "v_head_dim", "qk_nope_head_dim")  # d_model/n_heads, for some
# Products that people write one number or the width for.
PAIRS = (
    ("n_heads", "head_dim"),
    ("n_kv_heads", "head_dim"),
    ("batch_size", "bytes_per_value"),
    ("batch_size", "seq_len"),
)
NEAR, FAR = 4, 64  # times as large or as small: still a number for the same size; hardly
# Of a width: 4·d and 8/3·d are usual, 19/6·d is an accident.
RATIOS = {Fraction(ratio): POSSIBLE for ratio in ("2", "3", "4", "8/3")}
RATIOS |= {Fraction(r): ODD for r in ("5", "8", "2/3", "4/3", "16/3", "3/2", "5/2", "7/2")}
NO_SEQ_LEN = "not multiplied by seq_len (counted for one token)"
MULTI_HEAD = "multi-head, not grouped-query attention"
# A layer more or less than there are, of all and of the dense ones.
ONE_LAYER = {
    name: (f"one {word} too few", f"one {word} too many")
    for name, word in (("n_layers", "layer"), ("n_dense_layers", "dense layer"))
}
COPIES = ("counted twice", "counted three times", "only half counted")


class Changes:
    """The changes of a model's sizes, by how they move the powers of a product.

    `sums` are those that stand in the formula, before it was multiplied out.
    """

    def __init__(
        self,
        space: Space,
        numbers: Mapping[sympy.Expr, int],
        theirs: Table,
        ours: Table,
        sums: Iterable[sympy.Expr] = (),
    ) -> None:
        self.space = space
        self.sums = set()  # a letter and the number that is added to it in the formula: (N + 1)·d
        for total in sums:
            number, rest = total.as_coeff_Add()
            factor, letter = rest.as_coeff_Mul()
            self.sums.add((letter, number / factor))
        self.sizes = space.values(numbers)
        self.names = {
            i: NAMES[letter.name]
            for i, letter in enumerate(space.letters)
            if letter.is_Symbol and letter.name in NAMES
        }
        self.place = {name: i for i, name in self.names.items()}
        self.usual = [change for i in self.names for change in self._others(i, theirs, ours)]
        self.usual += [change for i in self.names for change in self._steps(i, ours)]
        self.usual += [*self._products()]
        factors = map(Fraction, ("2", "3", "1/2"))
        self.usual += [
            Change(words=words, cost=cost, old=space.one, by={space.one: n})
            for words, n, cost in zip(COPIES, factors, (POSSIBLE, ODD, POSSIBLE), strict=True)
        ]
        self.by_move: dict[Iterable[int], dict[Monomial, list[Change]]] = {}

    def between(self, table: Table, target: Table, written: frozenset[int]) -> Iterator[Change]:
        """Yield the changes that make of a product of `table` one of `target`.

        `written` are the numbers of the formula that were read as no size.
        """
        if written not in self.by_move:
            index = self.by_move[written] = {}
            for change in (*self.usual, *self.numbers(written)):
                for move in change.moves or [self.space.one]:
                    index.setdefault(move, []).append(change)
        index = self.by_move[written]
        moves = {tuple(map(int.__sub__, t, key)) for t in target for key in table}
        return iter({id(c): c for move in moves for c in index.get(move, ())}.values())

    def _power(self, *powers: tuple[int, int]) -> Monomial:
        return tuple(sum(n for j, n in powers if j == i) for i in range(len(self.space.one)))

    def _others(self, i: int, theirs: Table, ours: Table) -> Iterator[Change]:
        """Yield the other sizes that may stand for one, and what is made of them."""
        name, letter, unit = self.names[i], self._power((i, 1)), Fraction(1)

        def instead(by: Table, cost: float, note: str = "") -> Change:
            words = f"{self.text(by)} in place of {name}{note}"
            cost += ODD * (self.space.value(by, self.sizes) == self.sizes[i])
            return Change(words=words, cost=cost, old=letter, by=by)

        kind = next((kind for kind in KINDS if name in kind), ())
        for other in kind:
            if other == name or (j := self.place.get(other)) is None:
                continue
            by = self._power((j, 1))
            note = f" ({MULTI_HEAD})" if name == "n_kv_heads" else ""
            # rather the one table twice, and not the other
            yield instead({by: unit}, POSSIBLE if name == "n_positions" else LIKELY, note)
            if other in WHOLE_WIDTHS:
                yield from (instead({by: ratio}, cost) for ratio, cost in RATIOS.items())
            if kind is EXPERTS:
                yield instead({letter: unit, by: -unit}, POSSIBLE)
                yield instead({letter: unit, by: unit}, POSSIBLE)
        if name in HEAD_WIDTHS and {"d_model", "n_heads"} <= self.place.keys():
            quotient = self._power((self.place["d_model"], 1), (self.place["n_heads"], -1))
            yield instead({quotient: unit}, POSSIBLE)
        if name in WIDTHS and name != "d_model":
            yield from (instead(by, POSSIBLE) for by in self._calls(i, theirs, ours))

    def _steps(self, i: int, ours: Table) -> Iterator[Change]:
        """Yield a size with some more or less, left out of a product, or once too often in it."""
        name, letter = self.names[i], self._power((i, 1))
        none, itself = self.space.one, {letter: Fraction(1)}
        for n in (1, -1, 2, -2, 3, -3, 4, -4):
            if name in (*WIDTHS, "batch_size", "bytes_per_value"):
                break
            # a row of the vocabulary more is as much as a norm more, which is likelier
            likely = abs(n) == 1 and name not in ("vocab_size", "n_positions", "n_dense_layers")
            cost = POSSIBLE if likely else ODD
            cost -= AS_WRITTEN * ((self.space.letters[i], n) in self.sums)
            by = {**itself, none: Fraction(n)}
            words = f"{self.text(by)} in place of {name}"
            if name in ONE_LAYER and abs(n) == 1:
                words = ONE_LAYER[name][n > 0]
            yield Change(words=words, cost=cost, old=letter, by=by)
        if name == "n_dense_layers":
            words = "n_layers in place of n_layers - n_dense_layers (in the dense layers too)"
            yield Change(words=words, cost=POSSIBLE, old=letter, by={})
        if any(key[i] > 1 for key in ours):
            words = f"not multiplied by {name}"
            words += " (seq_len in place of seq_len²)" * (name == "seq_len")
            yield Change(words=words, cost=POSSIBLE, old=self._power((i, 2)), by=itself)
        if name in REPEATED:
            words = f"multiplied by {name} once too often"
            yield Change(words=words, cost=ODD, old=none, by=itself)

    def _calls(self, i: int, theirs: Table, ours: Table) -> Iterator[Table]:
        """Yield the multiples of a floor, ceiling, min or max of theirs that may be a width."""
        for j, letter in enumerate(self.space.letters):
            if letter.is_Symbol or any(key[j] for key in ours):
                continue
            for key, value in theirs.items():
                old = tuple(n + (k == i) - (k == j) for k, n in enumerate(key))
                if key[j] == 1 and old in ours:
                    by = {self._power((j, 1)): value / ours[old]}
                    if (
                        0
                        < self.sizes[i] / NEAR
                        <= self.space.value(by, self.sizes)
                        <= (self.sizes[i] * NEAR)
                    ):
                        yield by

    def _products(self) -> Iterator[Change]:
        """Yield the width of the model in place of that of all heads."""
        d = self.place.get("d_model")
        for pair in PAIRS[:2]:
            if d is not None and all(name in self.place for name in pair):
                old = self._power(*((self.place[name], 1) for name in pair))
                by = {self._power((d, 1)): Fraction(1)}
                text = self.text({old: Fraction(1)})
                words, cost = f"d_model in place of {text}", POSSIBLE
                if pair[0] == "n_kv_heads":
                    words = f"d_model, for n_heads·head_dim, in place of {text} ({MULTI_HEAD})"
                    cost = GROUPS
                yield Change(words=words, cost=cost, old=old, by=by)

    def numbers(self, written: Iterable[int]) -> Iterator[Change]:
        """Yield the changes that put a number of a formula, or 1, in the place of sizes."""
        for i, name in self.names.items():
            old = self._power((i, 1))
            for number in sorted({1, *written}):
                if change := self._number(name, self.sizes[i], number, old):
                    yield change
        for pair in PAIRS:
            if all(name in self.place for name in pair):
                old = self._power(*((self.place[name], 1) for name in pair))
                value = self.space.value({old: Fraction(1)}, self.sizes)
                for number in sorted(written):
                    if number > 2 and value / NEAR <= number <= value * NEAR:
                        text = self.text({old: Fraction(1)})
                        yield Change(
                            words=f"{number} stands where {text} = {value} belongs",
                            cost=ODD + GROUPS * (number != value),
                            old=old,
                            by={self.space.one: Fraction(number)},
                        )

    def _number(self, name: str, size: Fraction, number: int, old: Monomial) -> Change | None:
        cost, words = POSSIBLE, f"{number} stands where {name} = {size} belongs"
        if number == size:
            words = f"nothing at these sizes, as {name} = {size}"
        elif number == 1:
            words = NO_SEQ_LEN if name == "seq_len" else f"not multiplied by {name}"
            if name == "bytes_per_value":
                words, cost = "values, not bytes", LIKELY
        elif (off := max(number / size, size / number)) > NEAR:
            cost = ODD
            if off > FAR:
                return None
        return Change(words=words, cost=cost, old=old, by={self.space.one: Fraction(number)})

    def text(self, table: Table) -> str:
        """Write a table in our names."""
        return named(self.space.expr(table))


# Of a whole count: multiply-adds, a backward too, units of 2^10, 2^20 and 2^30 bytes.
FACTORS = {Fraction(n) for n in (2, 3, 4, 6, "1/2", "3/2", "1/3", "1/4", "1/6")}
BINARY = {Fraction(1, 2**power) for power in (10, 20, 30)}
FACTORS |= BINARY
UNITS = ("batch_size", "seq_len", "kv_len", "n_layers", "bytes_per_value")
FLOPS = {
    Fraction(1, 2): "multiply-adds, not FLOPs",
    Fraction(3): "a forward and a backward, not the forward alone",
    Fraction(4): "forward, recomputation and backward, not the forward alone",
    Fraction(3, 2): "multiply-adds of a forward and a backward",
    Fraction(2): "FLOPs counted twice",
}
CACHE = {
    Fraction(1, 2): "keys or values only, or values of one byte, or not bytes",
    Fraction(2): "keys and values counted twice, or the bytes of a value",
}


def factors(space: Space, theirs: Table, ours: Table, quantity: str) -> Iterator[Change]:
    """Yield the factors, of a number and units, by which a monomial of theirs differs from ours."""
    units = {i for i, a in enumerate(space.letters) if a.is_Symbol and NAMES.get(a.name) in UNITS}
    cache, seen = quantity == "kv_cache_bytes", set()
    for mine, value in ours.items():
        for other, theirs_value in theirs.items():
            powers, number = tuple(map(int.__sub__, other, mine)), theirs_value / value
            places = {i for i, n in enumerate(powers) if n}
            usual = number == 1 if places else number in FACTORS
            if (number == 1 and not places) or (number, powers) in seen:
                continue
            seen.add((number, powers))
            if places <= units and (usual or (cache and number in BINARY)):
                letters = [(a, n) for a, n in zip(space.letters, powers, strict=True) if n]
                words = factor_words(number, letters, quantity)
                vague = cache and words.startswith("a factor") and ":" not in words
                yield Change(
                    words=words,
                    cost=0.15 + 0.2 * len(letters) + vague,
                    old=space.one,
                    by={powers: number},
                )


def factor_words(factor: Fraction, powers: list[tuple[sympy.Expr, int]], quantity: str) -> str:
    """Say what it usually means when a whole count is off by a factor."""
    words = [_number_words(factor, quantity)] if factor != 1 else []
    names = {
        sign: [named(a) for a, n in powers if n * sign > 0 and a != BYTES_LETTER]
        for sign in (1, -1)
    }
    if bytes_power := dict(powers).get(BYTES_LETTER):
        words += ["values, not bytes" if bytes_power < 0 else "multiplied by the bytes of a value"]
    if missing := names[-1]:
        words += [NO_SEQ_LEN if missing == ["seq_len"] else f"not multiplied by {listed(missing)}"]
    if names[1]:
        words.append(f"multiplied by {listed(names[1])} once too often")
    return ", ".join(words)


def _number_words(factor: Fraction, quantity: str) -> str:
    text = f"a factor of {max(factor, 1 / factor)}"
    meant = {}
    if quantity.endswith("_flops"):
        meant = FLOPS
    elif quantity == "kv_cache_bytes":
        for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
            if factor == Fraction(1, 2**power):
                return f"{unit}, not bytes"
        meant = CACHE
    if factor in meant:
        return f"{text}: {meant[factor]}"
    return text + (" too much" if factor > 1 else " too little")
