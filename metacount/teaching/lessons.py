"""Pages that teach one topic each, in English and Chinese, computed while they are made.

`pages/LANGUAGE/TOPIC.md` is the prose: it holds no number. Where one belongs stands a name between
braces (see `texts`); `topics/TOPIC.py` holds, under that name, what computes it for the model at
hand. A page is blocks of lines between empty lines:

# Title
## Heading
A paragraph, over as many lines as it needs.
    an equation, indented by four spaces
| head | head |
| cell | {name:format} |
| {rows} |                    rows that one function gives
{exercise}                    alone on its line
{? moe and not shared} before any of these: only where it holds
"""

from __future__ import annotations

import re
from fractions import Fraction
from importlib import import_module

from metacount.errors import InputError, SpecError, nearest, shown
from metacount.languages import checked_language
from metacount.measure.isolated import randomness_of_its_own
from metacount.resolve import find_model, model_of
from metacount.spec.rules import beyond_branches
from metacount.teaching.page import Block, Exercise, Here, Page, read_page
from metacount.teaching.texts import computed, filled
from metacount.teaching.texts import shown as as_text

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from metacount.resolve import Given, Model

# topic -> the model of a reader who names none
TOPICS = {
    "block": "textbook-block",
    "embedding": "gpt2-medium",
    "norm": "llama-7b",
    "ffn": "llama-7b",
    "position": "llama-7b",
    "attention": "llama-7b",
    "moe": "mixtral-8x7b",
    "qwen3": "qwen3-32b",
    "gpt": "gpt2",
    "compute": "llama-7b",
    "paper": "llama3-8b",
}
# these run modules, and so import torch
RUNNING = ("norm", "ffn", "position", "attention", "moe", "gpt")
CONDITION = re.compile(r"\{\? ([^{}]+)\} ?")
NAMED = re.compile(r"\{(\w+)\}")


def checked_topic(topic: str) -> str:
    """Return the topic, or raise an `InputError` with the nearest names."""
    if topic not in TOPICS:
        close = nearest(str(topic), TOPICS, f"choose one of {', '.join(TOPICS)}")
        raise InputError(f"lesson '{shown(topic)}' is not known; {close}")
    return topic


def values_of(topic: str) -> ModuleType:
    """Import the file that computes a topic's values: VALUES, SUCH_AS, NEEDS and `fits`."""
    return import_module(f"metacount.teaching.topics.{topic}")


def title_of(topic: str, lang: str) -> str:
    """Return the title of a topic; it names no value."""
    return read_page(lang, f"{topic}.md").partition("\n")[0].removeprefix("# ")


def page_of(
    topic: str, model: Given | None = None, lang: str = "en", settings: Sequence[str] = ()
) -> Page:
    """Compute the lesson on a topic for a model, by default the topic's own.

    Raises `InputError` for a topic, language or model that is not known, and for a model of which
    the lesson would not be true.

    >>> page_of("block", "llama-7b", "en").values["block"]
    202383360
    """
    checked_language(lang)
    found = _found(TOPICS[checked_topic(topic)] if model is None else model, settings)
    values = values_of(topic)
    such_as = f"choose for example {', '.join(values.SUCH_AS)}"
    if not values.fits(found.spec):
        raise InputError(f"lesson {topic} needs {values.NEEDS}: {found.id} has not; {such_as}")
    more = beyond_branches(found.spec)
    if more and topic != "paper":  # whose figures are of the whole model
        raise InputError(
            f"lesson {topic} has no word for {more} of {found.id}, which has more in and around "
            f"its blocks; {such_as}"
        )
    with randomness_of_its_own(topic in RUNNING):
        return _page(topic, Here(found, lang, values.VALUES))


def _found(model: Given, settings: Sequence[str]) -> Model:
    return find_model(model, settings) if isinstance(model, str) else model_of(model)


def _page(topic: str, here: Here) -> Page:
    """Make the page of every block of the text, without the lines whose conditions do not hold."""
    blocks: list[Block] = []
    title, model = "", here.model
    exercises: list[Exercise] = []
    for text in re.split(r"\n(?: *\n)+", read_page(here.lang, f"{topic}.md").strip("\n")):
        lines = text.splitlines()
        first = CONDITION.sub("", lines[0])
        lines = [CONDITION.sub("", line) for line in lines if _holds(line, here)]
        if not lines:
            continue
        if first.startswith("# "):
            title = filled(lines[0].removeprefix("# "), here)
        elif made := _block(first, lines, here, exercises):
            blocks.append(made)
    plain = {k: float(v) if isinstance(v, Fraction) else v for k, v in here.computed.items()}
    return Page(
        topic=topic,
        lang=here.lang,
        model=model.id,
        name=model.name,
        changes=model.changes,
        title=title,
        blocks=tuple(blocks),
        values={k: v for k, v in plain.items() if isinstance(v, bool | int | float | str)},
        exercises=tuple(exercises),
    )


def _holds(line: str, here: Here) -> bool:
    condition = CONDITION.match(line)
    return condition is None or bool(computed(condition[1], here))


def _block(first: str, lines: list[str], here: Here, exercises: list[Exercise]) -> Block | None:
    if first.startswith("## "):
        return Block(kind="heading", text=filled(lines[0].removeprefix("## "), here))
    if first.startswith("|"):
        return _table(lines, here) if len(lines) > 1 else None
    if first.startswith("    "):
        filled_ = [filled(line, here)[4:].rstrip() for line in lines]
        return Block(kind="equation", text="\n".join(filled_))
    if named := NAMED.fullmatch(lines[0]):
        value = here.name(named[1])
        if not isinstance(value, Exercise):
            return Block(kind="equation", text=str(value))
        exercises.append(value)
        return _exercise(value, here.model)
    return Block(kind="paragraph", text=filled(_joined(lines), here))


def _table(lines: list[str], here: Here) -> Block | None:
    cells = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
    heads = tuple(filled(cell, here) for cell in cells[0])
    rows: list[tuple[str, ...]] = []
    for row in cells[1:]:
        named = NAMED.fullmatch(row[0]) if len(row) == 1 else None
        if named and isinstance(found := here.name(named[1]), list):
            rows += [tuple(as_text(cell, "", here.lang) for cell in each) for each in found]
        else:
            rows.append(tuple(filled(cell, here) for cell in row))
    if any(len(row) != len(heads) for row in rows):
        raise SpecError(
            "lesson",
            "has a table whose rows do not have the cells of its head",
            heads,
            "see its page",
        )
    return Block(kind="table", heads=heads, rows=tuple(rows)) if rows else None


def _exercise(value: Exercise, model: Model) -> Block:
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
