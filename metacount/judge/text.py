"""A formula written as text, read as arithmetic: never run as code, and never for long.

Numbers, names, + - * / // % **, parentheses, min, max, floor, ceil and round_up(x, m); also the
signs that `metacount formula` prints: N·d·(E + 3·k·m_e), S². Everything has a bound: length,
depth, digits, exponents, and the number of terms that multiplying out could give.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import sympy

from metacount.judge.bounded import Value, added, multiplied, negative, number, raised
from metacount.resolve import InputError, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAX_LENGTH = 10_000  # characters
MAX_TOKENS = 3_000
MAX_DEPTH = 40  # parentheses and signs inside each other
MAX_BELOW = 24  # terms of a divisor
MAX_SUMS_BELOW = 4  # divisors that are sums
MAX_CALLS = 24  # of floor, ceil, min, max, // and %
MAX_CALL_DEPTH = 4

TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:[0-9][0-9_]*(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<name>[A-Za-z_][A-Za-z_0-9]*)"
    r"|(?P<raised>[⁰¹²³⁴⁵⁶⁷⁸⁹]+)"
    r"|(?P<sign>\*\*|//|[-+*/%^(),·×⋅∙−])"
    r"|(?P<end>$)"
    r"|(?P<other>.))",
    re.DOTALL,
)
SAME = {"·": "*", "×": "*", "⋅": "*", "∙": "*", "−": "-"}
RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")
CALLS = {
    "min": (2, 4), "Min": (2, 4), "max": (2, 4), "Max": (2, 4), "floor": (1, 1), "ceil": (1, 1),
    "ceiling": (1, 1), "round_up": (2, 2), "Mod": (2, 2),
}  # fmt: skip
ALLOWED = (
    "a formula has numbers, names, + - * / // % **, parentheses, min, max, floor, ceil, round_up"
)
FOUND = {
    "[": "indexing",
    ".": "an attribute",
    "=": "an assignment or a comparison",
    "<": "a comparison",
    ">": "a comparison",
    "'": "a text",
    '"': "a text",
    "{": "a set",
    ":": "a colon",
    ";": "a second statement",
    "!": "a factorial or a comparison",
}
WORDS = ("lambda", "if", "else", "for", "in", "not", "and", "or", "is", "import", "await", "yield")


def names_in(text: str) -> tuple[str, ...]:
    """The names of sizes in `text`, in order; an `InputError` where it is no formula.

    >>> names_in("2*n_layers*min(seq_len, window)")
    ('n_layers', 'seq_len', 'window')
    """
    tokens = _tokens(text)
    follows = [*tokens[1:], ("end", "", 0)]
    return tuple(
        dict.fromkeys(
            word
            for (kind, word, _), (_, after, _) in zip(tokens, follows, strict=True)
            if kind == "name" and not (word in CALLS and after == "(")
        )
    )


def parse(
    text: str, meaning: Callable[[tuple[str, ...]], Mapping[str, Any]]
) -> tuple[Any, list[str]]:
    """The formula in `text` as a SymPy expression, and what is worth saying about how it was read.

    `meaning` gives the expression of every name in it.
    """
    names = names_in(text)
    parser = _Parser(_tokens(text))
    _Parser(_tokens(text)).whole()  # what is no formula is said before a name that is unknown
    parser.sizes = dict(meaning(names))
    value = parser.whole()
    if value.expr.has(sympy.zoo, sympy.nan, sympy.oo):
        raise InputError("the formula divides by zero")
    return value.expr, parser.notes


def _tokens(text: str) -> list[tuple[str, str, int]]:
    if len(text) > MAX_LENGTH:
        raise InputError(f"a formula of {len(text)} characters is too long; at most {MAX_LENGTH}")
    if not text.strip():
        raise InputError(f"the formula is empty; {ALLOWED}")
    tokens: list[tuple[str, str, int]] = []
    at = 0
    while at < len(text):
        found = TOKEN.match(text, at)
        if found is None:  # pragma: no cover  # `other` takes every character
            raise InputError(f"column {at + 1} cannot be read")
        kind = str(found.lastgroup)
        word = found[kind]
        if kind == "other":
            what = FOUND.get(word, f"'{shown(word)}'")
            raise InputError(f"{what} at column {found.start(kind) + 1} of the formula; {ALLOWED}")
        if kind != "end":
            tokens.append((kind, SAME.get(word, word), found.start(kind) + 1))
        at = found.end()
    if len(tokens) > MAX_TOKENS:
        raise InputError(f"the formula has more than {MAX_TOKENS} numbers, names and signs")
    return tokens


class _Parser:
    """Sums of products of powers. Chains are loops; only parentheses and signs go deeper."""

    def __init__(self, tokens: list[tuple[str, str, int]]) -> None:
        self.tokens, self.at, self.depth, self.calls = tokens, 0, 0, 0
        self.sums_below = 0
        self.sizes: dict[str, Any] | None = None  # None: only looking whether it is a formula
        self.notes: list[str] = []

    def whole(self) -> Value:
        self.at = self.depth = self.calls = self.sums_below = 0
        value = self._sum()
        if self.at < len(self.tokens):
            raise self._unexpected()
        return value

    def _peek(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def _take(self, *signs: str) -> str:
        if self._peek() in signs and self.tokens[self.at][0] == "sign":
            self.at += 1
            return self.tokens[self.at - 1][1]
        return ""

    def _unexpected(self) -> InputError:
        if self.at >= len(self.tokens):
            return InputError("the formula ends too early: a number or a name is missing")
        kind, word, column = self.tokens[self.at]
        if word in WORDS:
            return InputError(f"'{word}' at column {column} of the formula; {ALLOWED}")
        before = self.tokens[self.at - 1][0] if self.at else ""
        if kind in ("number", "name") and before in ("number", "name", "raised"):
            return InputError(f"a sign is missing before '{shown(word)}' at column {column}; "
                              "write * between factors")  # fmt: skip
        if word == "(" and before == "name":
            called = shown(self.tokens[self.at - 1][1])
            return InputError(f"a call of '{called}' at column {column}; {ALLOWED}")
        return InputError(f"'{shown(word)}' is out of place at column {column} of the formula; "
                          f"{ALLOWED}")  # fmt: skip

    def _deeper(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise InputError(f"the formula is nested more than {MAX_DEPTH} deep")

    def _sum(self) -> Value:
        values = [self._product()]
        while sign := self._take("+", "-"):
            value = self._product()
            values.append(negative(value) if sign == "-" else value)
        return added(values)

    def _product(self) -> Value:
        value = self._signed()
        while sign := self._take("*", "/", "//", "%"):
            other = self._signed()
            if sign == "*":
                value = multiplied(value, other)
            elif sign == "/":
                value = self._divided(value, other)
            else:
                value = self._floor_division(value, other, rest=sign == "%")
        return value

    def _signed(self) -> Value:
        sign = self._take("+", "-")
        if not sign:
            return self._power()
        self._deeper()
        value = self._signed()
        self.depth -= 1
        return negative(value) if sign == "-" else value

    def _power(self) -> Value:
        base = self._atom()
        if self.at < len(self.tokens) and self.tokens[self.at][0] == "raised":
            digits = self.tokens[self.at][1].translate(RAISED)
            self.at += 1
            return raised(base, number(digits).expr)
        if sign := self._take("**", "^"):
            if sign == "^" and "^ is read as a power" not in self.notes:
                self.notes.append("^ is read as a power")
            self._deeper()
            exponent = self._signed()
            self.depth -= 1
            return raised(base, exponent.expr)
        return base

    def _atom(self) -> Value:
        if self.at >= len(self.tokens):
            raise self._unexpected()
        kind, word, _ = self.tokens[self.at]
        if kind == "number":
            self.at += 1
            return number(word)
        if self._take("("):
            self._deeper()
            value = self._sum()
            self._close()
            self.depth -= 1
            return value
        if kind != "name" or word in WORDS:
            raise self._unexpected()
        self.at += 1
        if self._peek() == "(":
            if word not in CALLS:
                raise self._unexpected()
            return self._call(word)
        if self.sizes is None:
            return Value(sympy.Dummy(positive=True, integer=True), degree=1)
        expr = self.sizes[word]
        return Value(expr, terms=4 if expr.is_Add else 1, degree=1)

    def _close(self) -> None:
        if not self._take(")"):
            if self.at >= len(self.tokens):
                raise InputError("a parenthesis of the formula is not closed")
            raise self._unexpected()

    def _call(self, word: str) -> Value:
        self._take("(")
        self._deeper()
        arguments = [self._sum()]
        while self._take(","):
            arguments.append(self._sum())
        self._close()
        self.depth -= 1
        fewest, most = CALLS[word]
        if not fewest <= len(arguments) <= most:
            wanted = str(fewest) if fewest == most else f"{fewest} to {most}"
            raise InputError(f"{word} takes {wanted} values: got {len(arguments)}")
        first, exprs = arguments[0], [value.expr for value in arguments]
        if word == "Mod":
            return self._floor_division(first, arguments[1], rest=True)
        if word == "round_up":
            below = arguments[1]
            steps = self._opaque(sympy.ceiling, [self._divided(first, below).expr], arguments)
            return multiplied(steps, below)
        function = {"min": sympy.Min, "max": sympy.Max, "floor": sympy.floor}.get(
            word.lower(), sympy.ceiling
        )
        return self._opaque(function, exprs, arguments)

    def _floor_division(self, above: Value, below: Value, *, rest: bool) -> Value:
        quotient = self._opaque(sympy.floor, [self._divided(above, below).expr], [above, below])
        # as Python: a % b is a - b·(a // b)
        return added([above, negative(multiplied(below, quotient))]) if rest else quotient

    def _divided(self, a: Value, b: Value) -> Value:
        if b.expr == 0:
            raise InputError("the formula divides by zero")
        self.sums_below += b.expr.is_Add
        if b.terms > MAX_BELOW or self.sums_below > MAX_SUMS_BELOW:
            raise InputError(f"a formula divides by at most {MAX_SUMS_BELOW} sums, "
                             f"of at most {MAX_BELOW} terms")  # fmt: skip
        return Value(
            a.expr / b.expr,
            terms=a.terms,
            degree=a.degree + b.degree,
            bits=a.bits + b.bits,
            calls=max(a.calls, b.calls),
        )

    def _opaque(self, function: Any, exprs: list[Any], arguments: list[Value]) -> Value:
        """A call that is not multiplied out: it counts as one letter, what is in it is bounded."""
        self.calls += 1
        nested = 1 + max(value.calls for value in arguments)
        if self.calls > MAX_CALLS or nested > MAX_CALL_DEPTH:
            raise InputError(f"at most {MAX_CALLS} of floor, ceil, min, max, // and % in a "
                             f"formula, {MAX_CALL_DEPTH} deep")  # fmt: skip
        if sum(value.terms for value in arguments) > MAX_BELOW:
            raise InputError(f"at most {MAX_BELOW} terms inside floor, ceil, min, max, // and %")
        bits = max(value.bits for value in arguments)
        return Value(function(*exprs), terms=2, degree=1, bits=bits, calls=nested)
