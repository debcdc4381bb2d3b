"""What a lesson is about: the reader's model, its sizes in letters, the language's words."""

from __future__ import annotations

from fractions import Fraction

from metacount import units
from metacount.errors import SpecError
from metacount.spec import legend

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, TypeAlias

    from metacount.resolve import Model
    from metacount.spec import ModelSpec

    Rows: TypeAlias = list[tuple[str, ...]]
    Values: TypeAlias = dict[str, Callable[["Here"], object]]  # numbers, texts, rows, exercises


class Here:
    """The model of the reader's choice, and the words of the reader's language."""

    def __init__(self, model: Model, words: dict[str, str]) -> None:
        self.model, self.words = model, words

    @property
    def spec(self) -> ModelSpec:
        """The parts of the model."""
        return self.model.spec

    def say(self, word: str) -> str:
        """Look up a word of a computed cell in the reader's language."""
        if word not in self.words:
            raise SpecError("lesson", "has no word for a cell", word, "add it to words.txt")
        return self.words[word]

    def sizes(self, *names: str) -> list[tuple[str, str, str, str]]:
        """List letter, name, value and meaning of sizes, those that the model has."""
        return [
            (legend.by_name(n).letter, n, shown(getattr(self.spec, n)), self._meaning(n))
            for n in names
            if getattr(self.spec, n)
        ]

    def _meaning(self, name: str) -> str:
        return self.words.get(name) or legend.by_name(name).meaning


# what every lesson knows
COMMON: Values = {
    "name": lambda here: here.model.name.partition(" (")[0],
    "model": lambda here: here.model.id,
    "d_model": lambda here: here.spec.d_model,
    "n_layers": lambda here: here.spec.n_layers,
    "zero": lambda here: 0,
    "unit": lambda here: 1,
}


def shown(value: object, how: str = "", here: Here | None = None) -> str:
    """Format a computed value as it stands in a text. Formats:
    short, plain, percent, bytes, flops, sci, fixed, four.

    >>> shown(4096), shown(6738415616, "short"), shown(Fraction(2, 3), "percent"), shown(0.125)
    ('4,096', '6.74B', '66.7 %', '0.125')
    """
    if how:
        return FORMATS[how](value)
    if isinstance(value, bool):
        word = "yes" if value else "no"
        return here.say(word) if here else word
    if isinstance(value, int):
        return units.exact(value)
    if isinstance(value, Fraction) and value.denominator == 1:
        return units.exact(value.numerator)
    if isinstance(value, Fraction | float):
        return minus(f"{float(value):.4g}")
    return str(value)


def vector(values: Iterable[object], how: str = "") -> str:
    """Format numbers as a row.

    >>> vector((1.0, -0.5)), vector((1.0, -0.5), "fixed")
    ('(1, −0.5)', '(1.00, −0.50)')
    """
    return f"({', '.join(shown(value, how) for value in values)})"


def matrix(rows_: Iterable[Iterable[object]]) -> str:
    """Format a small matrix in one line, row after row.

    >>> matrix(((1.0, 0.0), (0.0, -1.0)))
    '[1 0; 0 −1]'
    """
    return f"[{'; '.join(' '.join(map(shown, row)) for row in rows_)}]"


def minus(text: str) -> str:
    """Give a number's text the minus sign that is as wide as its digits.

    >>> minus("-0.5")
    '−0.5'
    """
    return text.replace("-", "−", 1) if text.startswith("-") else text


def percent(value: Fraction | int | float) -> str:
    """Format a ratio in percent; what is not the whole is never shown as 100 %.

    >>> percent(Fraction(1, 3)), percent(Fraction(1, 10**6))
    ('33.3 %', '<0.1 %')
    """
    ratio = Fraction(value)
    return units.share(ratio.numerator, ratio.denominator)


FORMATS: dict[str, Callable[[Any], str]] = {
    "short": units.short,
    "plain": str,
    "percent": percent,
    "bytes": units.gib,
    "flops": units.flops,
    "sci": lambda value: minus(f"{float(value):.0e}"),
    "fixed": lambda value: minus(f"{float(value):.2f}"),
    "four": lambda value: minus(f"{float(value):.4f}"),
}


def rows(items: Iterable[Iterable[object]]) -> Rows:
    """Format the rows of a table, each cell as a text.

    >>> rows([("d", 4096, Fraction(1, 2))])
    [('d', '4,096', '0.5')]
    """
    return [tuple(shown(cell) for cell in item) for item in items]


def same(hand: float, run: float, what: str) -> float:
    """Return `run`, which must be what was computed by hand;
    otherwise the lesson ends with an error.

    >>> same(0.1 + 0.2, 0.3, "a sum")
    0.3
    >>> same(1.0, 1.1, "a sum")
    Traceback (most recent call last):
    AssertionError: a sum: by hand 1.0, run 1.1
    """
    if abs(hand - run) > 1e-9 * max(1.0, abs(hand)):
        raise AssertionError(f"{what}: by hand {hand}, run {run}")
    return run
