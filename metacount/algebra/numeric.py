"""A formula as numbers: its exact value at given sizes, in bounded time, without letters."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor
from typing import TYPE_CHECKING

from metacount.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from metacount.algebra.text import Node

Number = int | Fraction

MAX_BITS = 2_000  # of a numerator or a denominator
CALLS: dict[str, Callable[[list[Number]], Number]] = {"min": min, "max": max}
ROUNDED: dict[str, Callable[[Number], int]] = {"floor": floor, "ceil": ceil}
DIVIDED = ("/", "//", "%")


def at(tree: Node, numbers: Mapping[str, Number]) -> Number:
    """Return the exact value with a number for every name.

    >>> from metacount.algebra.text import read
    >>> at(read("d//2 + d/2").tree, {"d": 7})
    Fraction(13, 2)
    """
    done: list[Number] = []
    for node in tree.steps():
        n = len(node.parts)
        values = done[len(done) - n :]
        del done[len(done) - n :]
        value = _value(node, values, numbers)
        bits = max(abs(value.numerator).bit_length(), value.denominator.bit_length())
        if bits > MAX_BITS:
            raise InputError(f"the formula makes numbers of more than {MAX_BITS} bits")
        done.append(value)
    return done[0]


def _value(node: Node, values: list[Number], numbers: Mapping[str, Number]) -> Number:
    kind = node.kind
    if kind == "number":
        return _plain(node.value)
    if kind == "name":
        return numbers[node.word]
    if kind == "+":
        return sum(values)
    if kind == "neg":
        return -values[0]
    if kind == "*":
        return values[0] * values[1]
    if kind in DIVIDED:
        return _divided(kind, *values)
    if kind == "**":
        return _power(*values)
    if kind in ROUNDED:
        return int(ROUNDED[kind](values[0]))
    return CALLS[kind](values)


def _plain(value: Number) -> Number:
    return value.numerator if value.denominator == 1 else value


def _divided(kind: str, above: Number, below: Number) -> Number:
    if below == 0:
        raise InputError("the formula divides by zero at the sizes of the model")
    if kind == "/":
        return _plain(Fraction(above) / below)
    return above // below if kind == "//" else above % below


def _power(base: Number, exponent: Number) -> Number:
    if exponent.denominator != 1:
        raise InputError("an exponent of the formula must be a whole number, written as digits")
    n = int(exponent)
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if base == 0 and n < 0:
        raise InputError("the formula divides by zero at the sizes of the model")
    if abs(n) > MAX_BITS or bits * abs(n) > MAX_BITS + bits:
        raise InputError(f"the formula makes numbers of more than {MAX_BITS} bits")
    power: Number = base**n if n >= 0 else Fraction(base) ** n
    return _plain(power)


def literals(tree: Node) -> tuple[Fraction, ...]:
    """List the numbers that stand in the formula, exponents apart."""
    powers = {id(node.parts[1]) for node in tree.steps() if node.kind == "**"}
    found = (node for node in tree.steps() if node.kind == "number" and id(node) not in powers)
    return tuple(dict.fromkeys(node.value for node in found))


def crossings(tree: Node) -> list[tuple[Node, Node]]:
    """List pairs of expressions whose order decides:
    what min and max choose from, and 0 for rounding.

    Of ⌊a/b⌋ and a % b that is a against b: below one, the quotient is 0.
    """
    pairs: list[tuple[Node, Node]] = []
    for node in tree.steps():
        if node.kind in CALLS:
            pairs += [(a, b) for i, a in enumerate(node.parts) for b in node.parts[i + 1 :]]
        elif node.kind in ("//", "%"):
            pairs.append((node.parts[0], node.parts[1]))
        elif node.kind in ROUNDED and node.parts[0].kind == "/":
            pairs.append((node.parts[0].parts[0], node.parts[0].parts[1]))
    return pairs
