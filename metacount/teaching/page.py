"""What a lesson is about and what it becomes: the reader's model, blocks of a page, exercises."""

from __future__ import annotations

import os
from functools import lru_cache

from metacount.errors import SpecError
from metacount.frozen import frozen
from metacount.spec import Request, legend
from metacount.teaching.texts import Known, shown
from metacount.textbook.closed_form import closed_form
from metacount.textbook.count import fitted

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import TypeAlias

    from metacount.files import Json
    from metacount.resolve import Model
    from metacount.spec import ModelSpec

    Rows: TypeAlias = list[tuple[str, ...]]
    Values: TypeAlias = Mapping[str, Callable[["Here"], object] | object]

PAGES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pages")


@frozen
class Block:
    """One piece of a page. kind: heading, paragraph, equation, table or exercise.

    A table has `heads` and `rows`; an exercise has the command to type in `text`, with `...` for
    what is asked, and the same with the answer in `answer`.
    """

    kind: str
    text: str = ""
    heads: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    answer: str = ""

    def to_dict(self, *, answers: bool) -> Json:
        """Return the block as plain data; an exercise has its answer only if `answers`."""
        if self.kind == "table":
            rows_ = [list(row) for row in self.rows]
            return {"kind": "table", "heads": list(self.heads), "rows": rows_}
        if self.kind == "exercise":
            answer = {"answer": self.answer} if answers else {}
            return {"kind": "exercise", "command": self.text, **answer}
        return {"kind": self.kind, "text": self.text}


@frozen
class Exercise:
    """A question that `metacount check` judges: `formula` is a right answer for the model.

    `settings` are those of the exercise, on top of the reader's.
    """

    formula: str
    quantity: str = "params"
    settings: tuple[str, ...] = ()


@frozen
class Page:
    """A whole lesson on one model in one language. `values` are the numbers and words put in."""

    topic: str
    lang: str
    model: str
    name: str
    changes: Json
    title: str
    blocks: tuple[Block, ...]
    values: Json
    exercises: tuple[Exercise, ...]

    def to_dict(self, *, answers: bool = False) -> Json:
        """Return the page as plain data; exercises have answers only where they are asked for."""
        return {
            "topic": self.topic,
            "lang": self.lang,
            "model": self.model,
            "name": self.name,
            "changes": self.changes,
            "title": self.title,
            "blocks": [block.to_dict(answers=answers) for block in self.blocks],
            "values": self.values,
        }


# what every lesson knows
COMMON: Values = {
    "name": lambda here: here.model.name.partition(" (")[0],
    "model": lambda here: here.model.id,
    "zero": 0,
    "unit": 1,
}


class Here(Known):
    """The model of the reader's choice, what a page computes of it, and the language's words.

    A name of a page is one of `functions`, computed once, or else a field of the model.
    """

    def __init__(self, model: Model, lang: str, functions: Values) -> None:
        self.model, self.words, self.functions = model, read_words(lang), {**COMMON, **functions}
        self.computed: dict[str, object] = {}
        super().__init__(self.computed, lang)

    @property
    def spec(self) -> ModelSpec:
        """The parts of the model."""
        return self.model.spec

    def name(self, name: str) -> object:
        """Compute what stands under a name in the topic's values, or look up the model's field."""
        if name not in self.computed:
            if name in self.functions:
                value = self.functions[name]
                self.computed[name] = value(self) if callable(value) else value
            elif hasattr(self.spec, name):
                self.computed[name] = getattr(self.spec, name)
            else:
                raise SpecError("lesson", "has a name that nothing computes", name, "see its page")
        return self.computed[name]

    def say(self, word: str) -> str:
        """Look up a word of a computed cell in the reader's language."""
        if word not in self.words:
            raise SpecError("lesson", "has no word for a cell", word, "add it to words.txt")
        return self.words[word]

    def sizes(self, *names: str) -> list[tuple[str, str, str, str]]:
        """List letter, name, value and meaning of sizes, those that the model has."""
        terms = {name: legend.by_name(name) for name in names if getattr(self.spec, name)}
        return [
            (term.letter, n, shown(getattr(self.spec, n)), self.words.get(n) or term.meaning)
            for n, term in terms.items()
        ]


def read_page(lang: str, name: str) -> str:
    """Read the text of a topic in a language, as it stands in the folder."""
    with open(os.path.join(PAGES, lang, name), encoding="utf-8") as file:
        return file.read()


@lru_cache
def read_words(lang: str) -> dict[str, str]:
    """Read the words that computed cells are made of: `key = word`, one a line.

    >>> read_words("en")["read"], read_words("zh")["read"]
    ('the whole sequence', '整个序列')
    """
    lines = read_page(lang, "words.txt").splitlines()
    pairs = (line.partition(" = ") for line in lines if line)
    return {key: word for key, _, word in pairs}


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


def rows(items: Iterable[Iterable[object]]) -> Rows:
    """Format the rows of a table, each cell as a text."""
    return [tuple(shown(cell) for cell in item) for item in items]


def same(hand: float, run: float, what: str) -> float:
    """Return `run`, which must be what was computed by hand; else the lesson ends with an error.

    >>> same(0.1 + 0.2, 0.3, "a sum")
    0.3
    >>> same(1.0, 1.1, "a sum")
    Traceback (most recent call last):
    AssertionError: a sum: by hand 1.0, run 1.1
    """
    if abs(hand - run) > 1e-9 * max(1.0, abs(hand)):
        raise AssertionError(f"{what}: by hand {hand}, run {run}")
    return run


# Right answers to the exercises: closed forms as `metacount check` reads them.


def closed(spec: ModelSpec, quantity: str) -> str:
    """Write one quantity of a model in letters, part after part, as one types it.

    >>> from metacount.catalog import entry
    >>> closed(entry("llama-7b").spec(), "kv_cache_bytes")
    '2*B*N*S*c*h_d*h_kv'
    """
    form = closed_form(spec, fitted(spec, Request()), quantity)
    return " + ".join(str(part) for part in form.parts.values())


def asked(spec: ModelSpec, quantity: str = "params") -> Exercise:
    """Make the exercise that asks for one quantity of a model."""
    return Exercise(formula=closed(spec, quantity), quantity=quantity)


def after(spec: ModelSpec, changes: dict[str, object]) -> Exercise:
    """Make the exercise that asks for the parameters of the model with other values of fields."""
    settings = tuple(f"{name}={str(value).lower()}" for name, value in changes.items())
    return Exercise(formula=closed(spec.replace(**changes), "params"), settings=settings)


def allowed(spec: ModelSpec, changes: dict[str, object]) -> dict[str, object]:
    """Return `changes`, without prediction modules; nothing if a rule forbids what they make."""
    if spec.n_mtp_layers is not None:
        gone = {"n_mtp_layers": None} | ({"mtp_dense": False} if spec.mtp_dense else {})
        changes = {**changes, **gone}
    try:
        spec.replace(**changes)
    except SpecError:
        return {}
    return changes
