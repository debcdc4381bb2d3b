"""Texts in two languages with braces, and the one evaluator of what stands between them.

A sentence stands in a data file or a page, in English and in Chinese. It may have conditions: it is
printed where all of them hold for what was computed now. Between braces stands what is put in:

    {d_model}, {moe()}          what was computed under a name; a part of the model, or a size
    {ffn("llama-7b")}           of another model
    {off:.1g}, {share:.2%}      with a format: one of `FORMATS`, or Python's
    {"yes" if holds else "no"}  one of two texts

An expression is made of these, of whole numbers, texts, + - * / // % **, comparisons, and, or, not.
An unknown name is an error. The words that are data (names of parts) are in `words.json`.
"""

from __future__ import annotations

import ast
import json
import operator
import os
import re
from fractions import Fraction
from functools import lru_cache

from metacount import units
from metacount.errors import SpecError
from metacount.frozen import frozen

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Any, TypeAlias

    from metacount.formulas.dim import Dim

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data")


def translated(english: str, lang: str, **values: str | int) -> str:
    """Translate a text by the table, and put in its values; English where it has none.

    >>> translated("{n} statement", "en", n=1), translated("{n} statement", "zh", n=1)
    ('1 statement', '1 条说法')
    """
    text = english if lang == "en" else chinese().get(english, english)
    return text.format(**values) if values else text


@lru_cache
def chinese() -> dict[str, str]:
    """Read the Chinese of every word of the table, by the English."""
    with open(os.path.join(DATA, "words.json"), encoding="utf-8") as file:
        found: dict[str, str] = json.load(file)
    return found


OPERATORS: dict[type[ast.AST], Callable[..., object]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda a, b: Fraction(a, b) if isinstance(a, int | Fraction) else a / b,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Not: operator.not_,
    ast.USub: operator.neg,
}
BRACES = re.compile(r"\{([^{}]*?)(?::([\w.,+%]+))?\}")
FUNCTIONS: dict[str, Callable[..., object]] = {
    # the words of data in the language: one, or each of several
    "word": lambda lang, text: (
        translated(text, lang) if isinstance(text, str) else [translated(t, lang) for t in text]
    ),
    "join": lambda lang, parts, between: between.join(shown(part, "", lang) for part in parts),
    # whether there is anything: no text or list that is empty, no number that is absent or 0
    "some": lambda lang, value: bool(value),
    "capital": lambda lang, text: text[:1].upper() + text[1:],
}


class Known:
    """What the names in a text stand for: values, other texts that are made of them, functions."""

    def __init__(
        self,
        values: Mapping[str, object],
        lang: str = "en",
        texts: Mapping[str, Text] | None = None,
    ) -> None:
        self.values, self.lang, self.texts = values, lang, texts or {}

    def name(self, name: str) -> object:
        """Look up a value, or write the text of that name."""
        if name in self.values:
            return self.values[name]
        if name in self.texts:
            return written(self.texts[name], self)
        raise SpecError(
            "claim",
            "has a sentence with a name that was not computed",
            name,
            f"known are {', '.join([*self.values, *self.texts])}",
        )

    def call(self, name: str, arguments: Sequence[object]) -> object:
        """Call one of `FUNCTIONS`."""
        if name not in FUNCTIONS:
            raise SpecError(
                "claim", "has a sentence with an unknown function", name, "see teaching/texts.py"
            )
        return FUNCTIONS[name](self.lang, *arguments)

    def with_row(self, row: Mapping[str, object]) -> Known:
        """Return the same, with what is known of one row besides."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, values={**self.values, **row})
        return other


def computed(text: str, known: Known | Mapping[str, Dim]) -> object:
    """Compute the value of one expression of the data.

    >>> computed("4*d**2 == 64 and not (d > 4)", {"d": 4})
    True
    """
    return _walk(_parsed(text), known)


@lru_cache(4096)
def _parsed(text: str) -> ast.expr:
    return ast.parse(text.strip(), mode="eval").body


def evaluated(formula: str, sizes: Mapping[str, Dim]) -> Dim:
    """Evaluate a formula in our names with `sizes` put in: ints, or symbols.

    >>> evaluated("4*d_model**2", {"d_model": 3})
    36
    """
    try:
        return computed(formula, sizes)
    except (KeyError, SyntaxError, SpecError) as error:
        raise ValueError(
            f"a formula is made of sizes, whole numbers, + - * / **: {error}"
        ) from None


def _walk(node: ast.expr, known: Known | Mapping[str, Dim]) -> object:
    if isinstance(node, ast.Constant) and type(node.value) in (int, str, bool):
        return node.value
    if isinstance(node, ast.Name):
        return known.name(node.id) if isinstance(known, Known) else known[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](_walk(node.left, known), _walk(node.right, known))
    if isinstance(node, ast.UnaryOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](_walk(node.operand, known))
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in OPERATORS:
        left, right = _walk(node.left, known), _walk(node.comparators[0], known)
        return OPERATORS[type(node.ops[0])](left, right)
    if isinstance(node, ast.BoolOp):
        found = (bool(_walk(part, known)) for part in node.values)
        return all(found) if isinstance(node.op, ast.And) else any(found)
    if isinstance(node, ast.IfExp):
        return _walk(node.body if _walk(node.test, known) else node.orelse, known)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and isinstance(known, Known):
        return known.call(node.func.id, [_walk(argument, known) for argument in node.args])
    raise SpecError(
        "claim",
        "has an expression that is not understood",
        ast.unparse(node),
        "see metacount/teaching/texts.py",
    )


@frozen
class Sentence:
    """A sentence in both languages, and the conditions under which it is true.

    With `each`, an expression, it is written for each row of a list, whose names it then knows;
    `between` stands between those.
    """

    say: str
    say_zh: str
    where: tuple[str, ...] = ()
    each: str = ""
    between: str = ""


if TYPE_CHECKING:
    Text: TypeAlias = tuple[Sentence, ...]


def text_of(data: Any) -> Text:
    """Read a text of the data: one sentence or several.

    A sentence is an object with the fields of `Sentence`, or one text that reads alike in both
    languages.
    """
    items = data if isinstance(data, list) else [data]
    return tuple(
        Sentence(say=item, say_zh=item)
        if isinstance(item, str)
        else Sentence(**{"say_zh": item["say"], **item, "where": tuple(item.get("where", ()))})
        for item in items
    )


def written(text: Text, known: Known) -> str:
    """Write those of a text's sentences whose conditions hold, with their values put in."""
    between = {sentence.between for sentence in text if sentence.between}
    return translated(between.pop() if between else " ", known.lang).join(lines(text, known))


def lines(text: Text, known: Known) -> Iterator[str]:
    """Write the sentences one by one, those with `each` as often as there are rows."""
    for sentence in text:
        say = sentence.say_zh if known.lang == "zh" else sentence.say
        for row in rows_of(computed(sentence.each, known)) if sentence.each else ({},):
            inside = known.with_row(row) if row else known
            if all(computed(condition, inside) is True for condition in sentence.where):
                yield filled(say, inside)


def rows_of(found: object) -> Iterable[Mapping[str, object]]:
    """Return the rows that a sentence is written for; what is no list of rows is an error."""
    if not isinstance(found, list | tuple) or not all(isinstance(row, dict) for row in found):
        raise TypeError(f"a sentence for each row needs a list of rows: got {found!r}")
    return found


def filled(text: str, known: Known) -> str:
    """Put what stands between braces into a text."""
    return BRACES.sub(lambda it: shown(computed(it[1], known), it[2] or "", known.lang), text)


def shown(value: object, how: str = "", lang: str = "en") -> str:
    """Format a computed value as it stands in a text: by one of `FORMATS`, or by Python's own.

    >>> shown(4096), shown(6738415616, "short"), shown(Fraction(2, 3), "percent"), shown(0.125)
    ('4,096', '6.74B', '66.7 %', '0.125')
    >>> shown(Fraction(2, 3), ".2%"), shown(1e-17, ".0e"), shown(["a", "b"], "", "zh")
    ('66.67 %', '1e-17', 'a、b')
    """
    if how.endswith("%") and isinstance(value, int | float | Fraction):
        return percent(Fraction(value), int(how[1:-1]))
    if how:
        return FORMATS[how](value) if how in FORMATS else format(value, how)
    if isinstance(value, bool):
        return translated("yes" if value else "no", lang)
    if isinstance(value, int):
        return units.exact(value)
    if isinstance(value, Fraction) and value.denominator == 1:
        return units.exact(value.numerator)
    if isinstance(value, Fraction | float):
        return minus(f"{float(value):.4g}")
    if isinstance(value, list | tuple):
        return translated(", ", lang).join(shown(one, "", lang) for one in value)
    return str(value)


def percent(part: int | Fraction, places: int = 1) -> str:
    """Format a ratio in percent.

    >>> percent(Fraction(2, 3)), percent(Fraction(-1, 8), 2)
    ('66.7 %', '-12.50 %')
    """
    digits = round(abs(Fraction(part)) * 100 * 10**places)
    whole, rest = divmod(digits, 10**places)
    sign = "-" if digits and part < 0 else ""
    return f"{sign}{whole}.{rest:0{places}d} %"


def share(value: Fraction | int | float) -> str:
    """Format a ratio in percent; what is not the whole is never shown as 100 %.

    >>> share(Fraction(1, 3)), share(Fraction(1, 10**6))
    ('33.3 %', '<0.1 %')
    """
    ratio = Fraction(value)
    return units.share(ratio.numerator, ratio.denominator)


def minus(text: str) -> str:
    """Give a number's text the minus sign that is as wide as its digits.

    >>> minus("-0.5")
    '−0.5'
    """
    return text.replace("-", "−", 1) if text.startswith("-") else text


FORMATS: dict[str, Callable[[Any], str]] = {
    "short": units.short,
    "plain": str,
    "signed": units.signed,
    "percent": share,
    "relative": lambda ratio: units.relative(ratio.numerator, ratio.denominator),
    "bytes": units.gib,
    "flops": units.flops,
    "sci": lambda value: minus(f"{float(value):.0e}"),
    "fixed": lambda value: minus(f"{float(value):.2f}"),
    "four": lambda value: minus(f"{float(value):.4f}"),
}
