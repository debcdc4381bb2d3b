"""Makes a lesson: reads its text, computes what the placeholders name, puts both together."""

from __future__ import annotations

from fractions import Fraction
from importlib import import_module

from metacount.errors import InputError, SpecError, nearest, shown
from metacount.languages import checked_language
from metacount.lessons import RUNNING, TOPICS
from metacount.lessons.here import COMMON, Here
from metacount.lessons.here import shown as as_text
from metacount.lessons.page import Block, Exercise, Page
from metacount.lessons.source import (
    PLACEHOLDER,
    Line,
    Piece,
    cells_of,
    pieces,
    read_text,
    read_words,
)
from metacount.resolve import find_model, model_of
from metacount.spec.rules import beyond_branches

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from types import ModuleType

    from metacount.resolve import Given, Model


def checked_topic(topic: str) -> str:
    """Return the topic, or raise an `InputError` with the nearest names."""
    if topic not in TOPICS:
        close = nearest(str(topic), TOPICS, f"choose one of {', '.join(TOPICS)}")
        raise InputError(f"lesson '{shown(topic)}' is not known; {close}")
    return topic


def parts_of(topic: str) -> ModuleType:
    """Import the file that computes a topic's values: VALUES, SUCH_AS, NEEDS and `fits`."""
    return import_module(f"metacount.lessons.parts.{topic}")


def title_of(topic: str, lang: str) -> str:
    """Read the title of a lesson."""
    return next(pieces(read_text(lang, topic))).lines[0].text.removeprefix("# ")


def page_of(
    topic: str, model: Given | None = None, lang: str = "en", settings: Sequence[str] = ()
) -> Page:
    """Compute a lesson for a model, the topic's own where none is given.

    >>> page = page_of("block", "llama-7b")
    >>> page.values["block"]
    202383360
    """
    words = read_words(checked_language(lang))
    found = _found(TOPICS[checked_topic(topic)] if model is None else model, settings)
    parts = parts_of(topic)
    if not parts.fits(found.spec):
        raise InputError(
            f"lesson {topic} needs {parts.NEEDS}: {found.id} has not; "
            f"choose for example {', '.join(parts.SUCH_AS)}"
        )
    more = beyond_branches(found.spec)
    if more and topic != "paper":  # whose figures are of the whole model
        raise InputError(
            f"lesson {topic} has no word for {more} of {found.id}, which has more in and around "
            f"its blocks; choose for example {', '.join(parts.SUCH_AS)}"
        )
    with _randomness(topic):
        return _Making(topic, lang, Here(found, words), parts).page()


def _found(model: Given, settings: Sequence[str]) -> Model:
    return find_model(model, settings) if isinstance(model, str) else model_of(model)


def _randomness(topic: str) -> AbstractContextManager[None]:
    """Keep what a lesson draws at random inside from changing the reader's random state."""
    from contextlib import nullcontext

    if topic not in RUNNING:
        return nullcontext()
    import torch

    return torch.random.fork_rng(devices=[])


class _Making:
    """One page in the making: what was computed so far, by name."""

    def __init__(self, topic: str, lang: str, here: Here, parts: ModuleType) -> None:
        self.topic, self.lang, self.here = topic, lang, here
        self.functions = {**COMMON, **parts.VALUES}
        self.values: dict[str, object] = {}
        self.exercises: list[Exercise] = []

    def page(self) -> Page:
        """Make the page of every piece of the text, without those whose conditions do not hold."""
        blocks: list[Block] = []
        title = ""
        for piece in pieces(read_text(self.lang, self.topic)):
            lines = [line for line in piece.lines if self._holds(line)]
            if not lines or (piece.kind == "table" and len(lines) < 2):
                continue
            if piece.kind == "title":
                title = self._filled(lines[0].text.removeprefix("# "))
            elif made := self._block(piece, lines):
                blocks.append(made)
        model = self.here.model
        plain = {k: float(v) if isinstance(v, Fraction) else v for k, v in self.values.items()}
        told = {k: v for k, v in plain.items() if isinstance(v, bool | int | float | str)}
        return Page(
            topic=self.topic,
            lang=self.lang,
            model=model.id,
            name=model.name,
            changes=model.changes,
            title=title,
            blocks=tuple(blocks),
            values=told,
            exercises=tuple(self.exercises),
        )

    def value(self, name: str) -> object:
        """Compute what a placeholder's function gives, once."""
        if name not in self.values:
            if name not in self.functions:
                raise SpecError(
                    "lesson",
                    "has a placeholder that nothing computes",
                    name,
                    f"see metacount/lessons/parts/{self.topic}.py",
                )
            self.values[name] = self.functions[name](self.here)
        return self.values[name]

    def _holds(self, line: Line) -> bool:
        return all(bool(self.value(name)) is wanted for name, wanted in line.where)

    def _filled(self, text: str) -> str:
        return PLACEHOLDER.sub(
            lambda found: as_text(self.value(found[1]), found[2] or "", self.here), text
        )

    def _block(self, piece: Piece, lines: list[Line]) -> Block | None:
        texts = [line.text for line in lines]
        if piece.kind == "table":
            return self._table(texts)
        if piece.kind == "equation":
            filled = [self._filled(text) for text in texts]
            return Block(kind="equation", text="\n".join(line[4:].rstrip() for line in filled))
        if piece.kind == "value" and (named := PLACEHOLDER.fullmatch(texts[0])):
            value = self.value(named[1])
            if isinstance(value, Exercise):
                return self._exercise(value)
            return Block(kind="equation", text=str(value))
        if piece.kind == "heading":
            return Block(kind="heading", text=self._filled(texts[0].removeprefix("## ")))
        return Block(kind="paragraph", text=self._filled(_joined(texts)))

    def _table(self, texts: list[str]) -> Block | None:
        heads = tuple(self._filled(cell) for cell in cells_of(texts[0]))
        rows: list[tuple[str, ...]] = []
        for text in texts[1:]:
            cells = cells_of(text)
            named = PLACEHOLDER.fullmatch(cells[0]) if len(cells) == 1 else None
            if named and isinstance(found := self.value(named[1]), list):
                rows += [tuple(as_text(cell, "", self.here) for cell in row) for row in found]
            else:
                rows.append(tuple(self._filled(cell) for cell in cells))
        if any(len(row) != len(heads) for row in rows):
            raise SpecError(
                "lesson",
                "has a table whose rows do not have the cells of its head",
                heads,
                "see its text",
            )
        return Block(kind="table", heads=heads, rows=tuple(rows)) if rows else None

    def _exercise(self, value: Exercise) -> Block:
        self.exercises.append(value)
        model = self.here.model
        options = f" {model.id}" if " " not in model.id else " MODEL"
        # what the exercise changes takes the place of what the reader changed
        changes = {name: str(value).lower() for name, value in model.changes.items()}
        changes |= {name: new for name, _, new in (s.partition("=") for s in value.settings)}
        options += "".join(f" --set {name}={new}" for name, new in changes.items())
        options += f" --quantity {value.quantity}" if value.quantity != "params" else ""
        return Block(
            kind="exercise",
            text=f'metacount check "..."{options}',
            answer=f'metacount check "{value.formula}"{options}',
        )


def _joined(texts: list[str]) -> str:
    """Join lines into one; between Chinese characters no space comes in."""
    joined = texts[0]
    for text in texts[1:]:
        wide = joined[-1:] >= "\u2e80" and text[:1] >= "\u2e80"
        joined += text if wide else " " + text
    return joined
