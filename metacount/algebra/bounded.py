"""A formula in letters: arithmetic on expressions that refuses what is too large before it is made.

Numbers of terms, degrees and digits have a bound; time has none here, so that `limits` is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sympy

from metacount.algebra.numeric import MAX_BITS
from metacount.algebra.text import Node, read
from metacount.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAX_EXPONENT = 16  # of what is no plain number
MAX_DEGREE = 48
MAX_TERMS = 4_000  # of the formula multiplied out
MAX_BELOW = 24  # terms of a divisor
MAX_SUMS_BELOW = 4  # divisors that are sums
MAX_CALLS = 24  # of floor, ceil, min, max, // and %
MAX_CALL_DEPTH = 4
CALLS = {"min": sympy.Min, "max": sympy.Max, "floor": sympy.floor, "ceil": sympy.ceiling}


class Value:
    """An expression, and upper bounds on what multiplying it out can give."""

    def __init__(
        self, expr: sympy.Expr, *, terms: int = 1, degree: int = 0, bits: int = 1, calls: int = 0
    ) -> None:
        self.expr, self.terms, self.degree, self.bits, self.calls = expr, terms, degree, bits, calls
        too_large = terms > MAX_TERMS or degree > MAX_DEGREE or bits > MAX_BITS
        if too_large:
            raise InputError(
                "the formula is too large to multiply out: at most "
                f"{MAX_TERMS} terms of degree {MAX_DEGREE} and numbers of {MAX_BITS} bits"
            )


def _bits(number: sympy.Rational) -> int:
    return int(number.p).bit_length() + int(number.q).bit_length()


def negative(value: Value) -> Value:
    return Value(
        -value.expr, terms=value.terms, degree=value.degree, bits=value.bits, calls=value.calls
    )


def added(values: list[Value]) -> Value:
    if len(values) == 1:
        return values[0]
    return Value(
        sympy.Add(*(value.expr for value in values)),
        terms=sum(value.terms for value in values),
        degree=max(value.degree for value in values),
        bits=max(value.bits for value in values) + len(values).bit_length(),
        calls=max(value.calls for value in values),
    )


def multiplied(a: Value, b: Value) -> Value:
    terms = a.terms * b.terms
    return Value(
        # only what is small is made: the bounds are looked at first
        a.expr * b.expr if terms <= MAX_TERMS else a.expr,
        terms=terms,
        degree=a.degree + b.degree,
        bits=a.bits + b.bits,
        calls=max(a.calls, b.calls),
    )


def raised(base: Value, exponent: sympy.Expr) -> Value:
    if not exponent.is_Integer:
        raise InputError("an exponent of the formula must be a whole number, written as digits")
    n = int(exponent)
    most = MAX_EXPONENT if base.degree else MAX_BITS
    if abs(n) > most or base.bits * abs(n) > MAX_BITS or base.terms ** min(abs(n), 32) > MAX_TERMS:
        raise InputError(
            f"a power of the formula is too large: exponents go up to {MAX_EXPONENT}, "
            f"numbers to {MAX_BITS} bits"
        )
    if n < 0 and base.expr == 0:
        raise InputError("the formula divides by zero")
    if n < 0 and base.terms > 1:
        raise InputError("a negative power of a sum; write / instead")
    return Value(
        base.expr**n,
        terms=base.terms ** abs(n),
        degree=base.degree * abs(n),
        bits=base.bits * max(abs(n), 1),
        calls=base.calls,
    )


def in_letters(tree: Node, sizes: Mapping[str, sympy.Expr]) -> tuple[sympy.Expr, list[sympy.Expr]]:
    """Return the formula as a SymPy expression, with an expression for every name.

    Also what it divides by that may be 0 at some sizes, though it may cancel.
    """
    making = _Making(sizes)
    value = making.whole(tree)
    if value.expr.has(sympy.zoo, sympy.nan, sympy.oo):
        raise InputError("the formula divides by zero")
    return value.expr, [below for below in making.below if not below.is_nonzero]


def parse(
    text: str, meaning: Callable[[tuple[str, ...]], Mapping[str, sympy.Expr]]
) -> tuple[sympy.Expr, list[str]]:
    """Parse the formula in `text` into a SymPy expression,
    with what is worth saying about how it was read.

    `meaning` gives the expression of every name in it.
    """
    formula = read(text)
    expr, _ = in_letters(formula.tree, meaning(formula.names))
    return expr, formula.notes


class _Making:
    """One formula on its way to an expression, step by step."""

    def __init__(self, sizes: Mapping[str, sympy.Expr]) -> None:
        self.sizes, self.calls, self.sums_below = sizes, 0, 0
        self.below: list[sympy.Expr] = []  # what it divides by

    def whole(self, tree: Node) -> Value:
        done: list[Value] = []
        for node in tree.steps():
            n = len(node.parts)
            values = done[len(done) - n :]
            del done[len(done) - n :]
            done.append(self._step(node, values))
        return done[0]

    def _step(self, node: Node, values: list[Value]) -> Value:
        kind = node.kind
        if kind == "number":
            number = sympy.Rational(node.value.numerator, node.value.denominator)
            return Value(number, bits=_bits(number))
        if kind == "name":
            expr = self.sizes[node.word]
            return Value(expr, terms=4 if expr.is_Add else 1, degree=1)
        if kind == "+":
            return added(values)
        if kind == "neg":
            return negative(values[0])
        if kind == "*":
            return multiplied(*values)
        if kind == "/":
            return self._divided(*values)
        if kind in ("//", "%"):
            return self._floor_division(*values, rest=kind == "%")
        if kind == "**":
            if values[1].expr.is_negative:
                self.below.append(values[0].expr)
            return raised(values[0], values[1].expr)
        return self._opaque(CALLS[kind], [value.expr for value in values], values)

    def _floor_division(self, above: Value, below: Value, *, rest: bool) -> Value:
        quotient = self._opaque(sympy.floor, [self._divided(above, below).expr], [above, below])
        # as Python: a % b is a - b·(a // b)
        return added([above, negative(multiplied(below, quotient))]) if rest else quotient

    def _divided(self, a: Value, b: Value) -> Value:
        if b.expr == 0:
            raise InputError("the formula divides by zero")
        self.sums_below += b.expr.is_Add
        self.below.append(b.expr)
        if b.terms > MAX_BELOW or self.sums_below > MAX_SUMS_BELOW:
            raise InputError(
                f"a formula divides by at most {MAX_SUMS_BELOW} sums, of at most {MAX_BELOW} terms"
            )
        return Value(
            a.expr / b.expr,
            terms=a.terms,
            degree=a.degree + b.degree,
            bits=a.bits + b.bits,
            calls=max(a.calls, b.calls),
        )

    def _opaque(
        self, function: Callable[..., sympy.Expr], exprs: list[sympy.Expr], arguments: list[Value]
    ) -> Value:
        """Return one letter for a call that is not multiplied out; what is in it is bounded."""
        self.calls += 1
        nested = 1 + max(value.calls for value in arguments)
        if self.calls > MAX_CALLS or nested > MAX_CALL_DEPTH:
            raise InputError(
                f"at most {MAX_CALLS} of floor, ceil, min, max, // and % in a "
                f"formula, {MAX_CALL_DEPTH} deep"
            )
        if sum(value.terms for value in arguments) > MAX_BELOW:
            raise InputError(f"at most {MAX_BELOW} terms inside floor, ceil, min, max, // and %")
        bits = max(value.bits for value in arguments)
        return Value(function(*exprs), terms=2, degree=1, bits=bits, calls=nested)
