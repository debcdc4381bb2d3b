"""Exact expressions: values, whether one is zero, formulas in letters, tables of monomials.

A formula in letters is arithmetic that refuses what is too large before it is made: numbers of
terms, degrees and digits have a bound; time has none here, so that `limits` is needed. A table is
an expanded expression, from monomial to coefficient: quick to add, compare and rewrite. Its
exponents may be negative (d/h); a floor, a min or a max counts as one more letter.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import ceil, floor, lcm, prod
from typing import TYPE_CHECKING, NamedTuple

import sympy

from metacount.algebra.text import MAX_BITS, Node
from metacount.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

MOST_REMAINDERS = 64
MOST_RESIDUES = 4096  # cases to look at, to see that a quotient is always whole


def value_at(expr: sympy.Expr, numbers: Mapping[sympy.Symbol, int]) -> Fraction:
    """Return the exact value of `expr` with a number for each of its letters.

    >>> d, h = sympy.symbols("d h")
    >>> value_at(sympy.floor(d / h) + d / 2, {d: 7, h: 3})
    Fraction(11, 2)
    """
    if expr.is_Symbol:
        return Fraction(numbers[expr])
    if expr.is_Rational:
        return Fraction(int(expr.p), int(expr.q))
    if not expr.args:
        raise ValueError(f"{expr} has no exact value")
    values = [value_at(arg, numbers) for arg in expr.args]
    if expr.is_Add:
        return sum(values, Fraction(0))
    if expr.is_Mul:
        return prod(values, start=Fraction(1))
    if expr.is_Pow:
        power: Fraction = values[0] ** int(values[1])
        return power
    return Fraction(_CALLS[type(expr)](*values))


_CALLS: dict[type, Callable[..., Fraction | int]] = {
    sympy.floor: floor,
    sympy.ceiling: ceil,
    sympy.Min: min,
    sympy.Max: max,
}


def plain(expr: sympy.Expr) -> sympy.Expr:
    """Multiply out `expr` and drop the floors and ceilings that change nothing.

    >>> S = sympy.Symbol("S", integer=True, positive=True)
    >>> plain(sympy.floor(S * (S - 1) / 2) - S**2 / 2)
    -S/2
    """
    integers = {
        call: call.args[0]
        for call in expr.atoms(sympy.floor, sympy.ceiling)
        if is_whole(call.args[0])
    }
    return sympy.expand(expr.xreplace(integers) if integers else expr)


def is_whole(expr: sympy.Expr) -> bool:
    """Tell whether `expr` is a whole number whatever whole numbers its letters are.

    A polynomial over n is, when it is a multiple of n for every remainder of its letters.
    """
    if expr.is_integer:
        return True
    above, below = sympy.together(expr).as_numer_denom()
    letters = sorted(above.free_symbols, key=str)
    if not below.is_Integer or not above.is_polynomial(*letters):
        return False
    n = int(below)
    if n ** len(letters) > MOST_RESIDUES:
        return False
    return all(
        value_at(above, dict(zip(letters, rests, strict=True))) % n == 0
        for rests in product(range(n), repeat=len(letters))
    )


def is_zero(expr: sympy.Expr) -> bool | None:
    """Tell whether `expr` is 0 for all sizes; None where floors, min or max leave it open.

    Sizes are whole numbers from 1; those at which a divisor is 0 are not spoken of.
    """
    simple = plain(expr)
    if simple == 0:
        return True
    if not simple.atoms(sympy.floor, sympy.ceiling, sympy.Min, sympy.Max):
        return bool(sympy.cancel(simple) == 0)
    if sympy.cancel(_opaque(simple)) == 0:
        return True
    cases = _by_remainder(simple)
    return True if cases and all(plain(case) == 0 for case in cases) else None


def _by_remainder(expr: sympy.Expr) -> list[sympy.Expr]:
    """Rewrite `expr` for each remainder of the one letter whose multiples its floors divide out."""
    calls = expr.atoms(sympy.floor, sympy.ceiling)
    below = {
        int(sympy.denom(sympy.together(c.args[0])))
        for c in calls
        if sympy.denom(sympy.together(c.args[0])).is_Integer
    }
    letters = {letter for call in calls for letter in call.free_symbols}
    period = lcm(*below) if below else 0
    if len(letters) != 1 or not 1 < period <= MOST_REMAINDERS:
        return []
    times = sympy.Dummy(integer=True, nonnegative=True)
    (letter,) = letters
    return [expr.xreplace({letter: period * times + rest}) for rest in range(period)]


def _opaque(expr: sympy.Expr) -> sympy.Expr:
    """Put a letter for each floor, ceiling, min and max of `expr`."""
    calls = expr.atoms(sympy.floor, sympy.ceiling, sympy.Min, sympy.Max)
    outer = {call: sympy.Dummy() for call in sorted(calls, key=sympy.count_ops, reverse=True)}
    return expr.xreplace(outer)


MAX_EXPONENT = 16  # of what is no plain number
MAX_DEGREE = 48
MAX_TERMS = 4_000  # of the formula multiplied out
MAX_BELOW = 24  # terms of a divisor
MAX_SUMS_BELOW = 4  # divisors that are sums
MAX_CALLS = 24  # of floor, ceil, min, max, // and %
MAX_CALL_DEPTH = 4
OPAQUE = {"min": sympy.Min, "max": sympy.Max, "floor": sympy.floor, "ceil": sympy.ceiling}


TOO_LARGE = (
    "the formula is too large to multiply out: at most "
    f"{MAX_TERMS} terms of degree {MAX_DEGREE} and numbers of {MAX_BITS} bits"
)


class Value(NamedTuple):
    """An expression, and upper bounds on what multiplying it out can give."""

    expr: sympy.Expr
    terms: int = 1
    degree: int = 0
    bits: int = 1
    calls: int = 0  # of floor, min, ... inside each other


def in_letters(tree: Node, sizes: Mapping[str, sympy.Expr]) -> tuple[sympy.Expr, list[sympy.Expr]]:
    """Return the formula as a SymPy expression, with an expression for every name.

    Also what it divides by that may be 0 at some sizes, though it may cancel.
    """
    making = _Making(sizes)
    value: Value = tree.folded(making.step)
    if value.expr.has(sympy.zoo, sympy.nan, sympy.oo):
        raise InputError("the formula divides by zero")
    return value.expr, [below for below in making.below if not below.is_nonzero]


class _Making:
    """One formula on its way to an expression, step by step."""

    def __init__(self, sizes: Mapping[str, sympy.Expr]) -> None:
        self.sizes, self.calls, self.sums_below = sizes, 0, 0
        self.below: list[sympy.Expr] = []  # what it divides by

    def step(self, node: Node, values: list[Value]) -> Value:
        value = self._made(node, values)
        if value.terms > MAX_TERMS or value.degree > MAX_DEGREE or value.bits > MAX_BITS:
            raise InputError(TOO_LARGE)
        return value

    def _made(self, node: Node, values: list[Value]) -> Value:
        kind = node.kind
        if kind == "number":
            p, q = node.value.numerator, node.value.denominator
            return Value(sympy.Rational(p, q), bits=p.bit_length() + q.bit_length())
        if kind == "name":
            expr = self.sizes[node.word]
            return Value(expr, terms=4 if expr.is_Add else 1, degree=1)
        if kind == "+":
            return _added(*values)
        if kind == "neg":
            return _negative(*values)
        if kind == "*":
            return _multiplied(*values)
        if kind == "/":
            return self._divided(*values)
        if kind == "**":
            return self._raised(*values)
        if kind not in ("//", "%"):
            return self._called(OPAQUE[kind], [value.expr for value in values], values)
        above, below = values
        quotient = self._called(sympy.floor, [self._divided(above, below).expr], values)
        if kind == "//":
            return quotient
        return _added(above, _negative(_multiplied(below, quotient)))  # as in Python

    def _raised(self, base: Value, exponent: Value) -> Value:
        if not exponent.expr.is_Integer:
            raise InputError("an exponent of the formula must be a whole number, written as digits")
        n = int(exponent.expr)
        most = MAX_EXPONENT if base.degree else MAX_BITS
        terms = base.terms ** min(abs(n), 32)
        if abs(n) > most or base.bits * abs(n) > MAX_BITS or terms > MAX_TERMS:
            raise InputError(
                f"a power of the formula is too large: exponents go up to {MAX_EXPONENT}, "
                f"numbers to {MAX_BITS} bits"
            )
        if n < 0 and base.expr == 0:
            raise InputError("the formula divides by zero")
        if n < 0 and base.terms > 1:
            raise InputError("a negative power of a sum; write / instead")
        self.below += [base.expr] if n < 0 else []
        bits = base.bits * max(abs(n), 1)
        return Value(base.expr**n, base.terms ** abs(n), base.degree * abs(n), bits, base.calls)

    def _divided(self, a: Value, b: Value) -> Value:
        if b.expr == 0:
            raise InputError("the formula divides by zero")
        self.sums_below += b.expr.is_Add
        self.below.append(b.expr)
        if b.terms > MAX_BELOW or self.sums_below > MAX_SUMS_BELOW:
            raise InputError(
                f"a formula divides by at most {MAX_SUMS_BELOW} sums, of at most {MAX_BELOW} terms"
            )
        return _multiplied(a, b)._replace(expr=a.expr / b.expr, terms=a.terms)

    def _called(
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


def _negative(value: Value) -> Value:
    return value._replace(expr=-value.expr)


def _added(*values: Value) -> Value:
    exprs, terms, degrees, bits, calls = zip(*values, strict=True)
    longest = max(bits) + len(values).bit_length()
    return Value(sympy.Add(*exprs), sum(terms), max(degrees), longest, max(calls))


def _multiplied(a: Value, b: Value) -> Value:
    terms = a.terms * b.terms
    # only what is small is made: the bounds are looked at first
    expr = a.expr * b.expr if terms <= MAX_TERMS else a.expr
    return Value(expr, terms, a.degree + b.degree, a.bits + b.bits, max(a.calls, b.calls))


Monomial = tuple[int, ...]
Table = dict[Monomial, Fraction]
Key = frozenset[tuple[Monomial, Fraction]]


class NotMonomials(ValueError):
    """An expression that is no sum of monomials, such as 1/(d + 1)."""


class Space:
    """The letters of some expressions, in order, and the tables over them."""

    def __init__(self, exprs: Iterable[sympy.Expr]) -> None:
        letters: set[sympy.Expr] = set()
        for expr in exprs:
            calls = expr.atoms(sympy.floor, sympy.ceiling, sympy.Min, sympy.Max)
            letters |= expr.free_symbols | calls
        self.letters = sorted(letters, key=str)
        self.place = {letter: i for i, letter in enumerate(self.letters)}
        self.one: Monomial = (0,) * len(self.letters)

    def table(self, expr: sympy.Expr) -> Table:
        """Multiply out `expr` into a table."""
        table: Table = {}
        for term in sympy.Add.make_args(sympy.expand(expr)):
            factor, rest = term.as_coeff_Mul()
            if not factor.is_Rational:
                raise NotMonomials(str(term))
            exponents = [0] * len(self.letters)
            for power in () if rest == 1 else sympy.Mul.make_args(rest):
                base, exponent = (power, 1) if power in self.place else power.as_base_exp()
                if base not in self.place or not sympy.sympify(exponent).is_Integer:
                    raise NotMonomials(str(term))
                exponents[self.place[base]] += int(exponent)
            key = tuple(exponents)
            table[key] = table.get(key, Fraction(0)) + Fraction(int(factor.p), int(factor.q))
        return {key: value for key, value in table.items() if value}

    def expr(self, table: Table) -> sympy.Expr:
        """Return a table as a SymPy expression."""
        return sympy.Add(
            *(
                sympy.Rational(value.numerator, value.denominator)
                * sympy.Mul(*(a**n for a, n in zip(self.letters, key, strict=True) if n))
                for key, value in table.items()
            )
        )

    def values(self, numbers: Mapping[sympy.Symbol, int]) -> list[Fraction]:
        """Return the value of each letter."""
        return [value_at(letter, numbers) for letter in self.letters]

    def value(self, table: Table, values: list[Fraction]) -> Fraction:
        """Return the value of a table with a value for each letter."""
        total = Fraction(0)
        for key, factor in table.items():
            above, below = factor.numerator, factor.denominator
            for value, n in zip(values, key, strict=True):
                if n > 0:
                    above, below = above * value.numerator**n, below * value.denominator**n
                elif n < 0:
                    above, below = above * value.denominator**-n, below * value.numerator**-n
            total += Fraction(above, below) if above % below else above // below
        return total


def substituted(table: Table, place: int, by: Table) -> Table | None:
    """Put a polynomial in a letter's place; None where it would stand below a line."""
    replaced: Table = {}
    powers: dict[int, Table] = {}
    for key, value in table.items():
        n = key[place]
        if not n:
            replaced[key] = replaced[key] + value if key in replaced else value
            continue
        if n not in powers:
            power = _power(by, n)
            if power is None:
                return None
            powers[n] = power
        rest = (*key[:place], 0, *key[place + 1 :])
        for other, factor in powers[n].items():
            new, more = tuple(map(int.__add__, rest, other)), value * factor
            replaced[new] = replaced[new] + more if new in replaced else more
    return {key: value for key, value in replaced.items() if value}


def _power(by: Table, n: int) -> Table | None:
    if len(by) == 1:
        ((key, value),) = by.items()
        return {tuple(n * e for e in key): value**n}
    if n < 0:
        return None
    power = by
    for _ in range(n - 1):
        product: Table = {}
        for a, x in power.items():
            for b, y in by.items():
                key = tuple(map(int.__add__, a, b))
                product[key] = product.get(key, Fraction(0)) + x * y
        power = {key: value for key, value in product.items() if value}
    return power


def less(a: Table, b: Table) -> Table:
    """Subtract b from a."""
    rest = dict(a)
    for key, value in b.items():
        if key not in rest:
            rest[key] = -value
        elif rest[key] == value:
            del rest[key]
        else:
            rest[key] -= value
    return rest


def plus(a: Table, b: Table) -> Table:
    """Add b to a."""
    return less(a, times(b, Fraction(-1)))


def times(a: Table, factor: Fraction, powers: Monomial | None = None) -> Table:
    """Multiply `a` by a number and a monomial."""
    if powers is None:
        return {key: factor * value for key, value in a.items()}
    return {tuple(map(int.__add__, key, powers)): factor * value for key, value in a.items()}


def key_of(table: Table) -> Key:
    """Return a key that two equal tables have in common."""
    return frozenset(table.items())


class Named(int):
    """A number of a config that remembers the expression it is, through + - * // of numbers."""

    expr: sympy.Expr

    def __new__(cls, value: int, expr: sympy.Expr) -> Named:
        """Return the number `value`, which is `expr`."""
        made = super().__new__(cls, value)
        made.expr = expr
        return made

    def __deepcopy__(self, _memo: object) -> Named:
        return self


def _naming(name: str, *, reflected: bool) -> Callable[[Named, int], int]:
    plainly = getattr(int, f"__{'r' * reflected}{name}__")

    def named(self: Named, other: int) -> int:
        value: int = plainly(int(self), int(other) if isinstance(other, Named) else other)
        if type(value) is not int or isinstance(other, bool):
            return value  # a float all the same, or nothing that is a size
        left, right = (other, self) if reflected else (self, other)
        a, b = (n.expr if isinstance(n, Named) else sympy.Integer(int(n)) for n in (left, right))
        if name == "floordiv":
            return Named(value, a / b if int(left) % int(right) == 0 else sympy.floor(a / b))
        return Named(value, {"add": a + b, "sub": a - b, "mul": a * b}[name])

    return named


for _name in ("add", "sub", "mul", "floordiv"):
    setattr(Named, f"__{_name}__", _naming(_name, reflected=False))
    if _name != "floordiv":
        setattr(Named, f"__r{_name}__", _naming(_name, reflected=True))
