"""Claims, and texts in two languages with braces and the one evaluator of what stands there.

A sentence stands in a data file or a page, in English and in Chinese. It may have conditions: it is
printed where all of them hold for what was computed now. Between braces stands what is put in:

    {d_model}, {moe()}          what was computed under a name; a part of the model, or a size
    {ffn("llama-7b")}           of another model
    {off:.1g}, {share:.2%}      with a format: one of `FORMATS`, or Python's
    {params(n_layers=1)}        of the model with other values of fields
    {"yes" if holds else "no"}  one of two texts

An expression is made of these, of whole numbers, texts, + - * / // % ** (`/` is exact),
comparisons, and, or, not, lists, [it for it in ... if ...], and what something has: row.name.
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

    from metacount.files import Json
    from metacount.formulas.dim import Dim

    Values: TypeAlias = dict[str, Any]  # plain ones under names, for a text to speak of
else:
    Values = dict

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
        texts: dict[str, str] = json.load(file)
    return texts


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
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
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
    "sum": lambda lang, values: sum(values.values() if isinstance(values, dict) else values),
    "round": lambda lang, value: round(value),
    "text": lambda lang, value: str(value),
    "all": lambda lang, values: all(values),
    "count": lambda lang, values: len(values),
    "dict": lambda lang, **values: values,
    "label": lambda lang, text: label(text),
    "beside": lambda lang, text, count: stated_beside(label(text), count),
    "range": lambda lang, start, end: range(start, end),
    "abs": lambda lang, value: abs(value),
    "flat": lambda lang, lists: [it for each in lists for it in each],
    "by": lambda lang, rows, name: sorted(rows, key=lambda row: row[name]),
    "min": lambda lang, values: min(values),
    "row": lambda lang, values: vector(values, "fixed"),
    "numbered": lambda lang, values: [{"n": n, "value": it} for n, it in enumerate(values)],
    "falling": lambda lang, values: values == sorted(values, reverse=True),
}


class Known:
    """What the names in a text stand for: values, other texts that are made of them, functions."""

    def __init__(
        self,
        values: dict[str, object],
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

    def call(self, name: str, arguments: Sequence[Any], options: Mapping[str, Any]) -> object:
        """Call one of `FUNCTIONS`."""
        if name not in FUNCTIONS:
            raise SpecError(
                "claim", "has a sentence with an unknown function", name, "see teaching/texts.py"
            )
        return FUNCTIONS[name](self.lang, *arguments, **options)

    def with_row(self, row: Mapping[str, object]) -> Known:
        """Return the same, with what is known of one row besides."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, values={**self.values, **row})
        return other


def computed(text: str, known: Known | Mapping[str, Dim]) -> Any:
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


def _walk(node: ast.expr, known: Known | Mapping[str, Dim]) -> Any:
    match node:
        case ast.Constant(value=value) if value is None or type(value) in (int, str, bool):
            return value
        case ast.Name(id=name):
            return known.name(name) if isinstance(known, Known) else known[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return OPERATORS[type(op)](_walk(left, known), _walk(right, known))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in OPERATORS:
            return OPERATORS[type(op)](_walk(operand, known))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in OPERATORS:
            return OPERATORS[type(op)](_walk(left, known), _walk(right, known))
        case ast.BoolOp(op=op, values=[*firsts, last]):
            for value in (_walk(part, known) for part in firsts):
                if bool(value) is isinstance(op, ast.Or):
                    return value
            return _walk(last, known)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _walk(body if _walk(test, known) else orelse, known)
    if isinstance(known, Known):
        return _walk_further(node, known)
    raise _not_understood(node)


def _walk_further(node: ast.expr, known: Known) -> Any:
    match node:
        case ast.List(elts=elements):
            return [_walk(element, known) for element in elements]
        case ast.Subscript(value=owner, slice=index):
            return _walk(owner, known)[_walk(index, known)]
        case ast.Attribute(value=owner, attr=name):
            inside = _walk(owner, known)
            if isinstance(inside, Known):
                return inside.name(name)
            return inside[name] if isinstance(inside, dict) else getattr(inside, name)
        case ast.ListComp(
            elt=element,
            generators=[ast.comprehension(target=ast.Name(id=name), iter=each, ifs=ifs)],
        ):
            rows = (known.with_row({name: value}) for value in _walk(each, known))
            return [_walk(element, row) for row in rows if all(_walk(it, row) for it in ifs)]
        case ast.Call(func=ast.Name(id=name)):
            return known.call(name, *_arguments(node, known))
        case ast.Call(func=ast.Attribute(value=owner, attr=name)):
            inside, (arguments, options) = _walk(owner, known), _arguments(node, known)
            if isinstance(inside, Known):
                return inside.call(name, arguments, options)
            return getattr(inside, name)(*arguments, **options)
    raise _not_understood(node)


def _arguments(node: ast.Call, known: Known) -> tuple[list[Any], dict[str, Any]]:
    options: dict[str, Any] = {}
    for it in node.keywords:
        value = _walk(it.value, known)
        options |= value if it.arg is None else {it.arg: value}
    return [_walk(argument, known) for argument in node.args], options


def _not_understood(node: ast.expr) -> SpecError:
    return SpecError(
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


def rows_of(value: object) -> Iterable[Mapping[str, object]]:
    """Return the rows that a sentence is written for; what is no list of rows is an error."""
    if not isinstance(value, list | tuple) or not all(isinstance(row, dict) for row in value):
        raise TypeError(f"a sentence for each row needs a list of rows: got {value!r}")
    return value


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
        if how in FORMATS:
            return FORMATS[how](value)
        return format(float(value) if isinstance(value, Fraction) else value, how)
    if isinstance(value, bool):
        return translated("yes" if value else "no", lang)
    if isinstance(value, int):
        return units.exact(value)
    if isinstance(value, Fraction) and value.denominator == 1:
        return units.exact(value.numerator)
    if isinstance(value, Fraction | float):
        return minus(f"{float(value):.4g}")
    if isinstance(value, list | tuple):
        return translated(", ", lang).join(shown(item, "", lang) for item in value)
    return str(value)


def percent(part: int | Fraction, places: int = 1) -> str:
    """Format a ratio in percent.

    >>> percent(Fraction(2, 3)), percent(Fraction(-1, 8), 2)
    ('66.7 %', '-12.50 %')
    """
    digits = round(abs(Fraction(part)) * 100 * 10**places)
    integer, rest = divmod(digits, 10**places)
    sign = "-" if digits and part < 0 else ""
    return f"{sign}{integer}.{rest:0{places}d} %"


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


def vector(values: Iterable[object], how: str = "") -> str:
    """Format numbers as a row.

    >>> vector((1.0, -0.5)), vector((1.0, -0.5), "fixed")
    ('(1, −0.5)', '(1.00, −0.50)')
    """
    return f"({', '.join(shown(value, how) for value in values)})"


def matrix(rows: Iterable[Iterable[object]]) -> str:
    """Format a small matrix in one line, row after row.

    >>> matrix(((1.0, 0.0), (0.0, -1.0)))
    '[1 0; 0 −1]'
    """
    return f"[{'; '.join(' '.join(map(shown, row)) for row in rows)}]"


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


# Numbers as somebody printed them: what they say, and how far they are from the exact ones

UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


@frozen
class Label:
    """A number as somebody printed it. `step` is one unit of its last digit, 0 if it is exact.

    A whole number with all its digits is exact. Any other number says its last digit and no more:
    67.11M is right for what rounds to it, 67,105,000 to 67,115,000. K, M, B are powers of 1000.
    """

    text: str
    value: Fraction
    step: Fraction

    def holds(self, exact: int | Fraction) -> bool:
        """Tell whether `exact` is the number, or rounds to it."""
        return 2 * abs(exact - self.value) <= self.step

    def rounded(self, exact: int | Fraction) -> str:
        """Format `exact` with as many decimals as the label has, in its unit.

        >>> label("46B").rounded(46_702_792_704), label("67 %").rounded(Fraction(1, 3))
        ('47B', '33 %')
        """
        if not self.step:
            return f"{exact:,}" if isinstance(exact, int) else str(exact)
        number, unit = _split(self.text)
        places = len(number.partition(".")[2])
        digits = round(exact / self.step)
        integer, rest = divmod(digits, 10**places)
        return (f"{integer:,}.{rest:0{places}d}" if places else f"{integer:,}") + unit


def label(text: str) -> Label:
    """Read the number that a text prints.

    >>> printed = label("67.11M")
    >>> printed.holds(67_108_864), printed.holds(67_115_001), printed.holds(67_104_999)
    (True, False, False)
    >>> label("2.25").holds(Fraction(22495, 10000)), label("9/4").holds(Fraction(22495, 10000))
    (True, False)
    >>> label("7 apples")
    Traceback (most recent call last):
    ValueError: a claimed number is 1,234, 67.11M, 0.67, 67 % or 9/4: got '7 apples'
    """
    number, unit = _split(text)
    plain = number.replace(",", "")
    try:
        value = Fraction(plain)
    except ValueError:
        value = None
    scale = Fraction(1, 100) if unit.strip() == "%" else Fraction(UNITS.get(unit, 0))
    if value is None or not scale:
        raise ValueError(f"a claimed number is 1,234, 67.11M, 0.67, 67 % or 9/4: got {text!r}")
    decimals = len(plain.partition(".")[2])
    exact = "/" in plain or (not unit and not decimals)
    return Label(
        text=text, value=value * scale, step=Fraction(0) if exact else scale / 10**decimals
    )


def _split(text: str) -> tuple[str, str]:
    """Split a label into digits and unit.

    >>> _split("67.11M"), _split("67 %")
    (('67.11', 'M'), ('67', ' %'))
    """
    end = max(i for i, char in enumerate("0" + text) if char.isdigit())
    return text[:end], text[end:]


def stated_beside(stated: Label, count: int | Fraction) -> dict[str, Any]:
    """Lay a claimed number beside the exact one: does it hold, to what that rounds, how far off."""
    return {
        "label": stated.text,
        "exact": count,
        "holds": stated.holds(count),
        "rounds": bool(stated.step),
        "rounded": stated.rounded(count),
        **apart(stated.value, count),
    }


def number(n: int | Fraction, written: Callable[[int], str] = units.exact) -> str:
    """Format a number, which need not be whole.

    >>> number(1234), number(Fraction(1, 3))
    ('1,234', '1/3')
    """
    return written(int(n)) if Fraction(n).denominator == 1 else str(n)


def apart(stated: int | Fraction, count: int | Fraction) -> dict[str, Any]:
    """Compute how far a number is from the exact one.

    >>> apart(7, 10), apart(1010, 10)
    ({'few': True, 'off': '3'}, {'few': False, 'off': '1,000'})
    """
    return {"few": stated < count, "off": number(abs(Fraction(stated) - count))}


# What a claim is, and what is said of it in the end

RIGHT, CONDITIONAL, WRONG = "right", "conditional", "wrong"
VERDICTS = (RIGHT, CONDITIONAL, WRONG)


@frozen
class Claim:
    """A statement, and which judge with which options decides about it.

    `claimed` holds numbers as they were printed ("67.11M"): the digits say how exact they are.
    The sentences of `explain` and `condition` are printed where what they say was computed.
    """

    id: str
    topic: str
    statement: str
    statement_zh: str
    model: str | None
    claimed: Any
    judge: str
    options: Json
    condition: Text
    explain: tuple[Sentence, ...]

    def said(self, lang: str) -> str:
        """Return the statement in a language."""
        return self.statement_zh if lang == "zh" else self.statement

    @property
    def stated(self) -> object:
        """What is claimed: a number as printed, several by name, or a formula."""
        return self.options.get("formula") if self.claimed is None else self.claimed


@frozen
class Verdict:
    """The verdict on one claim, as it is printed in a language; `verdict` is one of `VERDICTS`."""

    claim: Claim
    verdict: str
    correct: str
    condition: str | None
    reason: str
    computation: tuple[str, ...]
    witness: str
    headline: str = ""
    lang: str = "en"

    @property
    def statement(self) -> str:
        """The statement in the verdict's language."""
        return self.claim.said(self.lang)

    def to_dict(self) -> Json:
        """Return the verdict as plain data under public names."""
        return {
            "id": self.claim.id,
            "topic": self.claim.topic,
            "statement": self.statement,
            "model": self.claim.model,
            "claimed": self.claim.stated,
            "verdict": self.verdict,
            "correct": self.correct,
            "condition": self.condition,
            "reason": self.reason,
            "computation": list(self.computation),
            "witness": self.witness,
            "lang": self.lang,
        }
