"""A formula written as text, read as arithmetic: never run as code, and never for long.

Numbers, names, + - * / // % **, parentheses, min, max, floor, ceil and round_up(x, m); also the
signs that `metacount formula` prints: N·d·(E + 3·k·m_e), S². What is read is a tree, which
`at` takes to numbers and `exact.in_letters` to letters; length and depth have a bound here.
"""

from __future__ import annotations

import operator
import re
from fractions import Fraction
from math import ceil, floor

from metacount.errors import MAX_DIGITS, InputError, shown

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    import sympy

MAX_LENGTH = 10_000  # characters
MAX_TOKENS = 3_000
MAX_DEPTH = 40  # parentheses and signs inside each other

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
CALLS = {"floor": (1, 1), "ceil": (1, 1), "ceiling": (1, 1), "round_up": (2, 2), "Mod": (2, 2)}
CALLS |= dict.fromkeys(("min", "Min", "max", "Max"), (2, 4))  # the fewest and the most values
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

NO_NUMBER = Fraction(0)  # the value of what is no number


class Node:
    """A step of a formula: `kind` number (`value`), name (`word`), or what is done to `parts`.

    The others are + (of all parts), neg, *, /, //, %, **, min, max, floor and ceil.
    """

    __slots__ = ("kind", "parts", "value", "word")

    def __init__(
        self,
        kind: str,
        parts: tuple[Node, ...] = (),
        *,
        word: str = "",
        value: Fraction = NO_NUMBER,
    ) -> None:
        self.kind, self.parts, self.word, self.value = kind, parts, word, value

    def steps(self) -> list[Node]:
        """List this node and all below it, each after its parts; a product may be deep."""
        nodes, left = [], [self]
        while left:
            node = left.pop()
            nodes.append(node)
            left += node.parts
        return nodes[::-1]

    def folded(self, step: Callable[[Node, list[Any]], Any]) -> Any:
        """Return what `step` makes of this node, given what it made of the node's parts."""
        done: list[Any] = []
        for node in self.steps():
            n = len(node.parts)
            values = done[len(done) - n :]
            del done[len(done) - n :]
            done.append(step(node, values))
        return done[0]


class Formula:
    """What a text says: its tree, the names of sizes in it, and how a sign was read."""

    def __init__(self, tree: Node, notes: list[str]) -> None:
        self.tree, self.notes = tree, notes
        words = (node.word for node in tree.steps() if node.kind == "name")
        self.names: tuple[str, ...] = tuple(dict.fromkeys(words))


def read(text: str) -> Formula:
    """Parse the formula in `text`; raise an `InputError` where it is none.

    >>> read("2*n_layers*min(seq_len, window)").names
    ('n_layers', 'seq_len', 'window')
    """
    parser = _Parser(_tokens(text))
    return Formula(parser.formula(), parser.notes)


def number(word: str) -> Fraction:
    """Read a number as it is written: a decimal is exact, 2.5 is 5/2."""
    digits = word.replace("_", "")
    mantissa, _, exponent = digits.lower().partition("e")
    if len(mantissa) > MAX_DIGITS or len(exponent) > 3 or abs(int(exponent or 0)) > MAX_DIGITS:
        raise InputError(f"the number {shown(word)} is too long; at most {MAX_DIGITS} digits")
    return Fraction(digits)


def _tokens(text: str) -> list[tuple[str, str, int]]:
    if len(text) > MAX_LENGTH:
        raise InputError(f"a formula of {len(text)} characters is too long; at most {MAX_LENGTH}")
    if not text.strip():
        raise InputError(f"the formula is empty; {ALLOWED}")
    tokens: list[tuple[str, str, int]] = []
    at = 0
    while at < len(text):
        match = TOKEN.match(text, at)
        if match is None:  # pragma: no cover  # `other` takes every character
            raise InputError(f"column {at + 1} cannot be read")
        kind = str(match.lastgroup)
        word = match[kind]
        if kind == "other":
            what = FOUND.get(word, f"'{shown(word)}'")
            raise InputError(f"{what} at column {match.start(kind) + 1} of the formula; {ALLOWED}")
        if kind != "end":
            tokens.append((kind, SAME.get(word, word), match.start(kind) + 1))
        at = match.end()
    if len(tokens) > MAX_TOKENS:
        raise InputError(f"the formula has more than {MAX_TOKENS} numbers, names and signs")
    return tokens


class _Parser:
    """Sums of products of powers. Chains are loops; only parentheses and signs go deeper."""

    def __init__(self, tokens: list[tuple[str, str, int]]) -> None:
        self.tokens, self.at, self.depth = tokens, 0, 0
        self.notes: list[str] = []

    def formula(self) -> Node:
        tree = self._sum()
        if self.at < len(self.tokens):
            raise self._unexpected()
        return tree

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
            return InputError(
                f"a sign is missing before '{shown(word)}' at column {column}; "
                "write * between factors"
            )
        if word == "(" and before == "name":
            called = shown(self.tokens[self.at - 1][1])
            return InputError(f"a call of '{called}' at column {column}; {ALLOWED}")
        return InputError(
            f"'{shown(word)}' is out of place at column {column} of the formula; {ALLOWED}"
        )

    def _inside(self, part: Callable[[], Node]) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise InputError(f"the formula is nested more than {MAX_DEPTH} deep")
        node = part()
        self.depth -= 1
        return node

    def _sum(self) -> Node:
        terms = [self._product()]
        while sign := self._take("+", "-"):
            term = self._product()
            terms.append(Node("neg", (term,)) if sign == "-" else term)
        return terms[0] if len(terms) == 1 else Node("+", tuple(terms))

    def _product(self) -> Node:
        product = self._signed()
        while sign := self._take("*", "/", "//", "%"):
            product = Node(sign, (product, self._signed()))
        return product

    def _signed(self) -> Node:
        sign = self._take("+", "-")
        if not sign:
            return self._power()
        value = self._inside(self._signed)
        return Node("neg", (value,)) if sign == "-" else value

    def _power(self) -> Node:
        base = self._atom()
        if self.at < len(self.tokens) and self.tokens[self.at][0] == "raised":
            digits = self.tokens[self.at][1].translate(RAISED)
            self.at += 1
            return Node("**", (base, Node("number", value=number(digits))))
        if sign := self._take("**", "^"):
            if sign == "^" and "^ is read as a power" not in self.notes:
                self.notes.append("^ is read as a power")
            return Node("**", (base, self._inside(self._signed)))
        return base

    def _atom(self) -> Node:
        if self.at >= len(self.tokens):
            raise self._unexpected()
        kind, word, _ = self.tokens[self.at]
        if kind == "number":
            self.at += 1
            return Node("number", value=number(word))
        if self._take("("):
            value = self._inside(self._sum)
            self._close()
            return value
        if kind != "name" or word in WORDS:
            raise self._unexpected()
        self.at += 1
        if self._peek() == "(":
            if word not in CALLS:
                raise self._unexpected()
            return self._call(word)
        return Node("name", word=word)

    def _close(self) -> None:
        if not self._take(")"):
            if self.at >= len(self.tokens):
                raise InputError("a parenthesis of the formula is not closed")
            raise self._unexpected()

    def _call(self, word: str) -> Node:
        given: list[Node] = []
        while self._take("," if given else "("):
            given.append(self._inside(self._sum))
        self._close()
        fewest, most = CALLS[word]
        if not fewest <= len(given) <= most:
            wanted = str(fewest) if fewest == most else f"{fewest} to {most}"
            raise InputError(f"{word} takes {wanted} values: got {len(given)}")
        if word == "Mod":
            return Node("%", tuple(given))
        if word == "round_up":
            return Node("*", (Node("ceil", (Node("/", tuple(given)),)), given[1]))
        return Node({"ceiling": "ceil"}.get(word, word.lower()), tuple(given))


Number = int | Fraction

MAX_BITS = 2_000  # of a numerator or a denominator
CHOSEN, ROUNDED = ("min", "max"), ("floor", "ceil")


def at(tree: Node, numbers: Mapping[str, Number]) -> Number:
    """Return the exact value with a number for every name.

    >>> at(read("d//2 + d/2").tree, {"d": 7})
    Fraction(13, 2)
    """

    def step(node: Node, values: list[Number]) -> Number:
        if node.kind == "name":
            value = numbers[node.word]
        elif node.kind == "number":
            value = simplest(node.value)
        else:
            value = OPERATIONS[node.kind](*values)
        bits = max(abs(value.numerator).bit_length(), value.denominator.bit_length())
        if bits > MAX_BITS:
            raise InputError(f"the formula makes numbers of more than {MAX_BITS} bits")
        return value

    value: Number = tree.folded(step)
    return value


def simplest(value: Number) -> Number:
    """Return a whole number as an int."""
    return value.numerator if value.denominator == 1 else value


def _dividing(divide: Callable[[Number, Number], Number]) -> Callable[[Number, Number], Number]:
    def divided(above: Number, below: Number) -> Number:
        if below == 0:
            raise InputError("the formula divides by zero at the sizes of the model")
        return divide(above, below)

    return divided


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
    return simplest(power)


OPERATIONS: dict[str, Callable[..., Number]] = {
    "+": lambda *values: sum(values),
    "neg": operator.neg,
    "*": operator.mul,
    "/": _dividing(lambda above, below: simplest(Fraction(above) / below)),
    "//": _dividing(operator.floordiv),
    "%": _dividing(operator.mod),
    "**": _power,
    "min": min,
    "max": max,
    "floor": floor,
    "ceil": ceil,
}


def literals(tree: Node) -> tuple[Fraction, ...]:
    """List the numbers that stand in the formula, exponents apart."""
    powers = {id(node.parts[1]) for node in tree.steps() if node.kind == "**"}
    numbers = (node for node in tree.steps() if node.kind == "number" and id(node) not in powers)
    return tuple(dict.fromkeys(node.value for node in numbers))


def crossings(tree: Node) -> list[tuple[Node, Node]]:
    """List pairs of expressions whose order decides:
    what min and max choose from, and 0 for rounding.

    Of ⌊a/b⌋ and a % b that is a against b: below one, the quotient is 0.
    """
    pairs: list[tuple[Node, Node]] = []
    for node in tree.steps():
        if node.kind in CHOSEN:
            pairs += [(a, b) for i, a in enumerate(node.parts) for b in node.parts[i + 1 :]]
        elif node.kind in ("//", "%"):
            pairs.append((node.parts[0], node.parts[1]))
        elif node.kind in ROUNDED and node.parts[0].kind == "/":
            pairs.append((node.parts[0].parts[0], node.parts[0].parts[1]))
    return pairs


SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def in_letters(expr: sympy.Expr) -> str:
    """Write an expression as a person does.

    >>> import sympy
    >>> S, d, h_d = sympy.symbols("S d h_d")
    >>> in_letters(2 * d * S**2 * (h_d + 1))
    '2·S²·d·(h_d + 1)'
    """
    text = re.sub(r"\*\*(\d+)", lambda power: power[1].translate(SUPERSCRIPTS), str(expr))
    return text.replace("*", "·").replace("Min(", "min(")
