"""Arithmetic on expressions that refuses what would be too large before it is made."""

from __future__ import annotations

from typing import Any

import sympy

from metacount.resolve import InputError, shown

MAX_DIGITS = 40  # of one number
MAX_BITS = 2_000  # of a number that arithmetic gives
MAX_EXPONENT = 16  # of what is no plain number
MAX_DEGREE = 48
MAX_TERMS = 4_000  # of the formula multiplied out


class Value:
    """An expression, and upper bounds on what multiplying it out can give."""

    def __init__(
        self, expr: Any, *, terms: int = 1, degree: int = 0, bits: int = 1, calls: int = 0
    ) -> None:
        self.expr, self.terms, self.degree, self.bits, self.calls = expr, terms, degree, bits, calls
        too_large = terms > MAX_TERMS or degree > MAX_DEGREE or bits > MAX_BITS
        if too_large:
            raise InputError(
                "the formula is too large to multiply out: at most "
                f"{MAX_TERMS} terms of degree {MAX_DEGREE} and numbers of {MAX_BITS} bits"
            )


def number(word: str) -> Value:
    digits = word.replace("_", "")
    mantissa, _, exponent = digits.lower().partition("e")
    if len(mantissa) > MAX_DIGITS or len(exponent) > 3 or abs(int(exponent or 0)) > MAX_DIGITS:
        raise InputError(f"the number {shown(word)} is too long; at most {MAX_DIGITS} digits")
    number = sympy.Rational(digits)  # decimals are exact: 2.5 is 5/2
    return Value(number, bits=_bits(number))


def _bits(number: Any) -> int:
    return int(number.p).bit_length() + int(number.q).bit_length()


def negative(value: Value) -> Value:
    return Value(-value.expr, terms=value.terms, degree=value.degree, bits=value.bits,
                 calls=value.calls)  # fmt: skip


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


def raised(base: Value, exponent: Any) -> Value:
    if not exponent.is_Integer:
        raise InputError("an exponent of the formula must be a whole number, written as digits")
    n = int(exponent)
    most = MAX_EXPONENT if base.degree else MAX_BITS
    if abs(n) > most or base.bits * abs(n) > MAX_BITS or base.terms ** min(abs(n), 32) > MAX_TERMS:
        raise InputError(f"a power of the formula is too large: exponents go up to {MAX_EXPONENT}, "
                         f"numbers to {MAX_BITS} bits")  # fmt: skip
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
