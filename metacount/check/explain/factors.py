"""A whole count that is off by a factor, in words."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from metacount.check.condition import named
from metacount.check.explain.change import Change
from metacount.check.explain.sizes import NO_SEQ_LEN
from metacount.check.given.vocabulary import BYTES_LETTER, LETTERS
from metacount.check.parts.alike import listed

if TYPE_CHECKING:
    from collections.abc import Iterator

    import sympy

    from metacount.algebra.monomials import Space, Table

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
