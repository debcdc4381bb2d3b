"""What somebody may have done to a size, read off two tables: what is missing, what is too much.

A number in a size's place, another size, a ratio, one more or one less, a size left out of a
product, a factor: each connects a monomial that the model has with one that only the formula has.
"""

from __future__ import annotations

from fractions import Fraction
from math import isqrt
from typing import TYPE_CHECKING

from metacount.algebra.monomials import Monomial, Table, substituted, times
from metacount.check.comparison import named
from metacount.check.names import BYTES_LETTER, LETTERS, NAMES
from metacount.check.parts import listed
from metacount.frozen import frozen
from metacount.spec.field import altered

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import sympy

    from metacount.algebra.monomials import Space

# How much less likely than a known mistake.
GROUPS = 0.15  # all heads in place of the groups' own; a number that is another one here
AS_WRITTEN = 0.3  # less, where the sum stands in the formula
UNWRITTEN = 9.0  # a number that nobody wrote, such as the mean of two that are there
LIKELY, POSSIBLE, ODD, STRANGE = 0.0, 0.2, 0.6, 9.0  # the last is dropped


@frozen
class Change:
    """One thing done to all of a table: in words, how unlikely, and to which letter or product."""

    words: str
    cost: float
    place: int | None  # the letter that something stands for
    by: Table | None  # what stands for it
    factor: tuple[Fraction, Monomial] | None = None  # or what everything is multiplied by

    @property
    def whole(self) -> bool:
        """Whether all of a table is multiplied, whatever is in it."""
        return self.factor is not None and not any(n < 0 for n in self.factor[1])

    def of(self, table: Table) -> Table | None:
        """Return the table with the change made."""
        if self.place is not None and self.by is not None:
            return substituted(table, self.place, self.by)
        assert self.factor is not None
        number, powers = self.factor
        # a product that stands for another one is changed where it is all there
        below = [(i, -n) for i, n in enumerate(powers) if n < 0]
        changed: Table = {}
        for key, value in table.items():
            fits = all(key[i] >= n for i, n in below)
            for new, scaled in (
                times({key: value}, number, powers) if fits else {key: value}
            ).items():
                changed[new] = changed.get(new, Fraction(0)) + scaled
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
# Products that are read as one size where a formula has another way to get it.
PAIRS = {
    ("d_model", "/n_heads"): ("head_dim", "v_head_dim", "qk_nope_head_dim"),
    ("head_dim", "n_heads"): ("d_model",),
    ("head_dim", "n_kv_heads"): ("d_model",),
}
# Products that people write one number for, beside a size squared.
NUMBERS = {
    ("n_heads", "head_dim"),
    ("n_kv_heads", "head_dim"),
    ("batch_size", "bytes_per_value"),
    ("batch_size", "seq_len"),
}
NEAR = 4  # times as large or as small: still a number for the same size
FAR = 64
# Of a width: 4·d and 8/3·d are usual, 19/6·d is an accident.
RATIOS = {Fraction(ratio) for ratio in ("1", "2", "3", "4", "8/3")}
RARE = {Fraction(ratio) for ratio in ("5", "8", "2/3", "4/3", "16/3", "3/2", "5/2", "7/2")}
NO_SEQ_LEN = "not multiplied by seq_len (counted for one token)"

# What is done, to the letter at which place (of all: -1), with which number and monomial.
Hint = tuple[str, int, Fraction, Monomial]
MULTI_HEAD = "multi-head, not grouped-query attention"
# A layer more or less than there are, of all and of the dense ones.
ONE_LAYER = {
    name: tuple(f"one {word} too {much}" for much in ("many", "few"))
    for name, word in (("n_layers", "layer"), ("n_dense_layers", "dense layer"))
}


class Changes:
    """The changes that two tables suggest."""

    def __init__(
        self, space: Space, numbers: Mapping[sympy.Expr, int], written: frozenset[int] | None
    ) -> None:
        self.space, self.here = space, space.values(numbers)
        self.written = written  # numbers in the formula's text, where there is one, for no size
        self.names = [
            NAMES.get(letter.name) if letter.is_Symbol else None for letter in space.letters
        ]
        self.found: dict[Hint, Change | None] = {}
        self.known = {written: self.found}

    def read(self, written: frozenset[int] | None) -> Changes:
        """Take the numbers of a formula that stand for no size as `written`."""
        self.written = written
        self.found = self.known.setdefault(written, {})
        return self

    def between(
        self, scope: Table, difference: Table, summands: tuple[Table, ...] = ()
    ) -> Iterator[Change]:
        """Yield the changes of `scope` that make a monomial of `difference`, theirs less ours.

        `summands` are theirs as they were written, before equal monomials were added up.
        """
        seen = set()
        alone = {item for one in summands if len(one) == 1 for item in one.items()}
        found = [*difference.items(), *(one for one in alone if difference.get(one[0]) != one[1])]
        for key in self._hints(scope, difference, found):
            if key not in seen:
                seen.add(key)
                if key not in self.found:
                    change = self._change(*key)
                    self.found[key] = None if change and change.cost >= STRANGE else change
                change = self.found[key]
                if change is not None:
                    kind, i, number, added = key
                    seen_so = kind == "plus" and not any(added) and _is_written(summands, i, number)
                    yield altered(change, cost=change.cost - AS_WRITTEN) if seen_so else change

    def _hints(
        self, scope: Table, difference: Table, found: list[tuple[Monomial, Fraction]]
    ) -> Iterator[Hint]:
        for p, a in scope.items():
            left = difference.get(p, Fraction(0))
            gone = left * a < 0
            if gone:
                ratio = 1 + left / a
                if ratio > 0:
                    yield "times", -1, ratio, self.space.one
                yield from self._zero(p)
            for t, value in found:
                ratio = value / a
                if t == p:
                    if ratio > 0:
                        yield "times", -1, 1 + ratio, self.space.one
                    continue
                r = tuple(map(int.__sub__, t, p))
                below = [i for i, n in enumerate(r) if n < 0]
                if len(below) > 2 or sum(map(abs, r)) > 5:
                    continue
                one = len(below) == 1 and r[below[0]] == -1
                if one:
                    yield "plus", below[0], ratio, tuple(max(n, 0) for n in r)
                if not gone or ratio <= 0:
                    continue
                for number in {ratio, -value / left}:
                    for i in below:
                        if r[i] == -1 and p[i] == 1:
                            added = tuple(0 if j == i else n for j, n in enumerate(r))
                            yield "by", i, number, added
                    if not one or p[below[0]] != 1:
                        yield "times", -1, number, r

    def _zero(self, p: Monomial) -> Iterator[Hint]:
        name = "n_dense_layers"
        i = self.space.place.get(LETTERS[name])
        if i is not None and p[i] == 1:
            yield "by", i, Fraction(0), self.space.one

    def _change(self, kind: str, i: int, number: Fraction, added: Monomial) -> Change | None:
        if kind == "times":
            return self._times(number, added)
        return (self._by if kind == "by" else self._plus)(i, number, added)

    def _by(self, i: int, number: Fraction, added: Monomial) -> Change | None:
        name, by = self.names[i], {added: number}
        if name is None:
            return None
        if number == 0:
            words = "n_layers in place of n_layers - n_dense_layers (in the dense layers too)"
            return Change(words=words, cost=POSSIBLE, place=i, by={})
        if not any(added):
            return self._number(i, name, number)
        if added[i]:
            text = self.text(by)
            return Change(words=f"{text} in place of {name}", cost=ODD, place=i, by=by)
        letters = [(self.names[j], n) for j, n in enumerate(added) if n]
        cost = STRANGE
        if len(letters) == 1:
            ((other, _),) = letters
            kind = next((k for k in KINDS if name in k), ())
            if letters[0][1] != 1:
                cost = STRANGE
            elif other is None:  # a floor, min or max: of the size, or for a width
                call = self.space.expr(by)
                near = self.here[i] / NEAR <= self.space.value(by, self.here) <= self.here[i] * NEAR
                if near and (name in WIDTHS or LETTERS[name] in call.free_symbols):
                    cost = POSSIBLE if name != "d_model" else STRANGE
            elif other in kind:
                cost = LIKELY if number == 1 else POSSIBLE if name in WIDTHS else STRANGE
                if name == "n_positions":  # rather the one table twice, and not the other
                    cost = max(cost, POSSIBLE)
                if number not in RATIOS:
                    cost = ODD if number in RARE and cost < STRANGE else STRANGE
        elif number == 1:
            cost = POSSIBLE if self._is_pair(added, name) else STRANGE
        if cost >= STRANGE:
            return None
        text = self.text(by)
        if (other := letters[0][0]) and (name, text) == ("n_kv_heads", "n_heads"):
            text = "n_heads"
            words = f"{text} in place of {name} ({MULTI_HEAD})"
        else:
            words = f"{text} in place of {name}"
        # asked last: what was sorted out above may divide by a number of layers that is 0
        same = self.space.value(by, self.here) == self.here[i]
        return Change(words=words, cost=cost + (ODD if same else 0), place=i, by=by)

    def letter(self, i: int, other: Monomial) -> Change | None:
        """Return the change that puts another size in a size's place."""
        return self._by(i, Fraction(1), other)

    def number(self, i: int, number: int) -> Change | None:
        """Return the change that puts a number in a size's place, None where it is too far off."""
        change = self._by(i, Fraction(number), self.space.one)
        return None if change is None or change.cost >= STRANGE else change

    def _is_pair(self, added: Monomial, name: str) -> bool:
        key = tuple(
            sorted(f"{'/' if n < 0 else ''}{self.names[j]}" for j, n in enumerate(added) if n)
        )
        return any(tuple(sorted(pair)) == key and name in ours for pair, ours in PAIRS.items())

    def _number(self, i: int, name: str, number: Fraction) -> Change | None:
        here = self.here[i]
        by = {self.space.one: number}
        if number == here:
            return Change(
                words=f"nothing at these sizes, as {name} = {_plain(here)}",
                cost=POSSIBLE,
                place=i,
                by=by,
            )
        if number == 1:
            if name == "bytes_per_value":
                return Change(words="values, not bytes", cost=LIKELY, place=i, by=by)
            words = NO_SEQ_LEN if name == "seq_len" else f"not multiplied by {name}"
            return Change(words=words, cost=POSSIBLE, place=i, by=by)
        off = max(number / here, here / number)
        cost = POSSIBLE if off <= NEAR else ODD if off <= FAR else STRANGE
        if self.written is not None and int(number) not in self.written and number > 2:
            cost += UNWRITTEN
        if number.denominator != 1:
            cost = STRANGE
        words = f"{_plain(number)} stands where {name} = {_plain(here)} belongs"
        return Change(words=words, cost=cost, place=i, by=by)

    def _plus(self, i: int, number: Fraction, added: Monomial) -> Change | None:
        name = self.names[i]
        if name is None or abs(number) > 4 or number.denominator != 1:
            return None
        letters = [(self.names[j], n) for j, n in enumerate(added) if n]
        if len(letters) > 1 or any(n != 1 or other is None for other, n in letters):
            return None
        if letters:
            kind = next((k for k in KINDS if name in k), ())
            cost = POSSIBLE if letters[0][0] in kind and abs(number) == 1 else STRANGE
            if kind != EXPERTS:
                cost = STRANGE
        else:
            # a row of the vocabulary more is as much as a norm more, which people rather write
            likely = abs(number) == 1 and name != "vocab_size"
            cost = POSSIBLE if likely else ODD
            if name == "n_dense_layers":
                cost = ODD if abs(number) == 1 else STRANGE
            if name in (*WIDTHS, "batch_size", "bytes_per_value"):
                cost = STRANGE
        by = {_letter(self.space.one, i): Fraction(1), added: number}
        if by.keys() != {_letter(self.space.one, i), added} or len(by) < 2:
            return None
        words = f"{self.text(by)} in place of {name}"
        if name in ONE_LAYER and abs(number) == 1 and not letters:
            words = ONE_LAYER[name][number < 0]
        return Change(words=words, cost=cost, place=i, by=by)

    def _times(self, number: Fraction, r: Monomial) -> Change | None:
        above = [(self.names[i], n) for i, n in enumerate(r) if n > 0]
        below = [(self.names[i], -n) for i, n in enumerate(r) if n < 0]
        if not above and not below:
            said = {
                2: ("counted twice", POSSIBLE),
                3: ("counted three times", ODD),
                Fraction(1, 2): ("only half counted", POSSIBLE),
            }
            default = (
                f"a factor of {_plain(max(number, 1 / number))} too "
                f"{'much' if number > 1 else 'little'}",
                STRANGE,
            )
            words, cost = said.get(number, default)
            return Change(words=words, cost=cost, place=None, by=None, factor=(number, r))
        if any(name is None for name, _ in above + below):
            return None
        if not below:
            one = number == 1 and sum(n for _, n in above) == 1
            cost = ODD if one and above[0][0] in REPEATED else STRANGE
            if cost >= STRANGE:
                return None
            words = f"multiplied by {self.text({r: number})} once too often"
        elif not above and number == 1:
            cost = POSSIBLE if sum(n for _, n in below) == 1 else STRANGE
            words = f"not multiplied by {self.text({tuple(-n for n in r): Fraction(1)})}"
            if below == [("seq_len", 1)]:
                words += " (seq_len in place of seq_len²)"
        else:
            new = {tuple(max(n, 0) for n in r): number}
            old = tuple(max(-n, 0) for n in r)
            if above and (len(above) > 1 or number != 1):
                return None
            text = self.text({old: Fraction(1)})
            pair = len(above) == 1 and number == 1 and self._is_pair(old, above[0][0] or "")
            cost = POSSIBLE if pair else STRANGE
            if not above:
                value = self.space.value({old: Fraction(1)}, self.here)
                near = number.denominator == 1 and value / NEAR <= number <= value * NEAR
                names = {name for name, _ in below}
                if near and (len(below) == 1 or any(names == {*pair} for pair in NUMBERS)):
                    cost = ODD + GROUPS * (number != value)
                words = f"{_plain(number)} stands where {text} = {_plain(value)} belongs"
                root, wrote = isqrt(int(number)), int(number)
                if len(below) == 1 and below[0][1] == 2 and root * root == number:
                    name, here, wrote = below[0][0], isqrt(int(value)), root
                    words = f"{root} stands where {name} = {here} belongs"
                if self.written is not None and number > 2 and wrote not in self.written:
                    cost += UNWRITTEN
            else:
                words = f"{self.text(new)} in place of {text}"
                if pair and {name for name, _ in below} == {"n_kv_heads", "head_dim"}:
                    words = f"d_model, for n_heads·head_dim, in place of {text} ({MULTI_HEAD})"
                    cost = GROUPS
        return Change(words=words, cost=cost, place=None, by=None, factor=(number, r))

    def text(self, table: Table) -> str:
        """Write a table in our names."""
        return named(self.space.expr(table))


def _is_written(summands: tuple[Table, ...], i: int, number: Fraction) -> bool:
    """Tell whether a size plus a number stands in a formula: (N + 1)·d."""
    return any(
        table.get((*key[:i], key[i] - 1, *key[i + 1 :])) == number * value
        for table in summands
        for key, value in table.items()
        if key[i] == 1
    )


def _letter(one: Monomial, i: int) -> Monomial:
    return (*one[:i], 1, *one[i + 1 :])


def _plain(number: Fraction) -> str:
    """Write a number as people do in a formula: no commas."""
    return str(number)


# Of a whole count: multiply-adds, a backward too, units of 2^10, 2^20 and 2^30 bytes.
FACTORS = {Fraction(n) for n in (2, 3, 4, 6, "1/2", "3/2", "1/3", "1/4", "1/6")}
BINARY = {Fraction(1, 2**power) for power in (10, 20, 30)}
FACTORS |= BINARY
TOO = (" too much", " too little")
UNITS = ("batch_size", "seq_len", "kv_len", "n_layers")


def factors(space: Space, theirs: Table, ours: Table, quantity: str) -> Iterator[Change]:
    """Yield changes by a factor, a number and units,
    by which a monomial of theirs differs from ours.
    """
    units = {space.place[LETTERS[name]] for name in UNITS if LETTERS[name] in space.place}
    units |= {space.place[BYTES_LETTER]} if BYTES_LETTER in space.place else set()
    seen = set()
    for mine, value in ours.items():
        for other, theirs_value in theirs.items():
            powers = tuple(map(int.__sub__, other, mine))
            found = (theirs_value / value, powers)
            if found in seen or found == (Fraction(1), space.one):
                continue
            seen.add(found)
            number, _ = found
            if all(not n or i in units for i, n in enumerate(powers)) and number > 0:
                letters = [(a, n) for a, n in zip(space.letters, powers, strict=True) if n]
                words = factor_words(number, letters, quantity)
                cache = quantity == "kv_cache_bytes"
                in_units = cache and number in BINARY
                vague = cache and words.startswith("a factor") and words.endswith(TOO)
                if number == 1 or in_units or (number in FACTORS and not letters):
                    yield Change(
                        words=words,
                        cost=0.15 + 0.2 * len(letters) + vague,
                        place=None,
                        by=None,
                        factor=found,
                    )


def factor_words(factor: Fraction, powers: list[tuple[sympy.Expr, int]], quantity: str) -> str:
    """Say what it usually means when a whole count is off by a factor."""
    said = [_number_words(factor, quantity)] if factor != 1 else []
    missing = [named(letter) for letter, n in powers if n < 0 and letter != BYTES_LETTER]
    extra = [named(letter) for letter, n in powers if n > 0 and letter != BYTES_LETTER]
    for letter, n in powers:
        if letter == BYTES_LETTER:
            said.append("values, not bytes" if n < 0 else "multiplied by the bytes of a value")
    if missing:
        said.append(
            NO_SEQ_LEN if missing == ["seq_len"] else f"not multiplied by {listed(missing)}"
        )
    if extra:
        said.append(f"multiplied by {listed(extra)} once too often")
    return ", ".join(said)


def _number_words(factor: Fraction, quantity: str) -> str:
    large = factor if factor > 1 else 1 / factor
    text = f"a factor of {large}"
    flops = quantity.endswith("_flops")
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if quantity == "kv_cache_bytes" and factor == Fraction(1, 2**power):
            return f"{unit}, not bytes"
    words = {
        Fraction(1, 2): "multiply-adds, not FLOPs",
        Fraction(3): "a forward and a backward, not the forward alone",
        Fraction(4): "forward, recomputation and backward, not the forward alone",
        Fraction(3, 2): "multiply-adds of a forward and a backward",
        Fraction(2): "FLOPs counted twice",
    }
    if flops and factor in words:
        return f"{text}: {words[factor]}"
    if quantity == "kv_cache_bytes":
        said = {
            Fraction(1, 2): "keys or values only, or values of one byte, or not bytes",
            Fraction(2): "keys and values counted twice, or the bytes of a value",
        }
        if factor in said:
            return f"{text}: {said[factor]}"
    return text + TOO[factor < 1]
