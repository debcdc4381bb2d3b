"""Pages that teach one topic each, in English and Chinese, computed while they are made.

`pages/TOPIC.md` is a lesson. Its head says for whom it is and which names stand for what:

model: of a reader who names none       examples: others that fit
needs: what a model must have, in words  fits: the same as an expression
unsaid: fields of models of which the text would not be true
runs: the file of `experiments/` whose functions it calls (it imports torch)
name = expression                        see `texts` and `Here` for what it may be made of

The text holds no number: where one belongs stands an expression between braces. It is blocks of
lines between empty lines, with the Chinese of a line below it behind `> `, and of a heading or a
cell behind `//`:

# Title // Title in Chinese
A paragraph, over as many lines as it needs.
> The same in Chinese.
    an equation, indented by four spaces
| head | head |
| cell | {expression:format} |     a cell that is a list is several cells
| {rows} |                         rows that one expression gives
{each m in list} | {m.name} |      a row for each
{exercise}                         alone on its line
{? moe and not shared} before any of these: only where it holds
"""

from __future__ import annotations

import os
import re
from fractions import Fraction
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from metacount import catalog
from metacount.errors import InputError, SpecError, nearest, shown
from metacount.frozen import frozen
from metacount.languages import checked_language
from metacount.resolve import find_model, model_of
from metacount.spec import ModelSpec, Request, legend
from metacount.spec.rules import beyond_branches
from metacount.teaching import counts
from metacount.teaching.parts import Subject, models
from metacount.teaching.texts import Known, computed, evaluated, filled
from metacount.teaching.texts import shown as as_text
from metacount.textbook.closed_form import closed_form
from metacount.textbook.count import fitted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from metacount.files import Json
    from metacount.resolve import Given, Model

PAGES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pages")
TOPICS = (
    "block",
    "embedding",
    "norm",
    "ffn",
    "position",
    "attention",
    "moe",
    "qwen3",
    "gpt",
    "compute",
    "paper",
)
CONDITION = re.compile(r"\{\? ([^{}]+)\} ?")
EACH = re.compile(r"\{each (\w+) in ([^{}]+)\} ?")
ALONE = re.compile(r"\{([^{}]+?)(?::([\w.,+%]+))?\}")
DEFINITION = re.compile(r"(\w+) = (.+)")
OTHER_LANGUAGE = "> "
CELL = " // "  # between the languages of a heading or a cell


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
            rows = [list(row) for row in self.rows]
            return {"kind": "table", "heads": list(self.heads), "rows": rows}
        if self.kind == "exercise":
            answer = {"answer": self.answer} if answers else {}
            return {"kind": "exercise", "command": self.text, **answer}
        return {"kind": self.kind, "text": self.text}


@frozen
class Exercise:
    """A question that `metacount check` judges: `formula` is a right answer for the model.

    `changes` are the fields that the exercise sets, on top of the reader's.
    """

    formula: str
    quantity: str
    changes: Json


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


@frozen
class Source:
    """A lesson as it is written: its head, its definitions by name, and its text."""

    head: Mapping[str, str]
    definitions: Mapping[str, str]
    text: str

    @property
    def examples(self) -> str:
        """Models that fit."""
        return self.head["examples"]


@lru_cache
def source_of(topic: str) -> Source:
    """Read the page of a topic."""
    with open(os.path.join(PAGES, f"{topic}.md"), encoding="utf-8") as file:
        head, _, text = file.read().removeprefix("---\n").partition("\n---\n")
    lines = head.replace("\n    ", " ").splitlines()
    definitions = {m[1]: m[2] for m in map(DEFINITION.fullmatch, lines) if m}
    pairs = (line.partition(": ") for line in lines if line and not DEFINITION.fullmatch(line))
    return Source(head={k: v for k, _, v in pairs}, definitions=definitions, text=text)


def text_in(text: str, lang: str) -> str:
    """Return the text of a page in one language.

    >>> text_in("# One // 一\\nTwo.\\n> 二。", "zh")
    '# 一\\n二。'
    """
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith(OTHER_LANGUAGE):
            if lang != "en":
                condition = CONDITION.match(lines[-1])
                lines[-1] = (condition[0] if condition else "") + line[len(OTHER_LANGUAGE) :]
            continue
        bare = CONDITION.sub("", line)
        if bare.startswith("#"):
            english, _, chinese = line.partition(CELL)
            marks = re.match(r"(\{\?[^{}]*\} ?)?#+ ", line)
            line = english if lang == "en" or not chinese or not marks else marks[0] + chinese
        elif "|" in bare and (bare.startswith(("|", "{each "))):
            cells = (cell.strip().partition(CELL) for cell in line.split("|"))
            words = ((en if lang == "en" else zh or en) for en, _, zh in cells)
            line = " | ".join(words).strip()
        lines.append(line)
    return "\n".join(lines)


def checked_topic(topic: str) -> str:
    """Return the topic, or raise an `InputError` with the nearest names."""
    if topic not in TOPICS:
        close = nearest(str(topic), TOPICS, f"choose one of {', '.join(TOPICS)}")
        raise InputError(f"lesson '{shown(topic)}' is not known; {close}")
    return topic


def runs_modules(topic: str) -> bool:
    """Tell whether a lesson runs modules, and so imports torch."""
    return "runs" in source_of(checked_topic(topic)).head


def title_of(topic: str, lang: str) -> str:
    """Return the title of a topic; it names no value."""
    text = text_in(source_of(topic).text.lstrip("\n"), lang)
    return text.partition("\n")[0].removeprefix("# ").strip()


class Here(Subject):
    """The model of a page, and what the page's names stand for.

    A name is defined in the page's head, and computed once, or one of those below, or else a field
    of the model. A function is one of those below, or what `Subject` knows: of `counts`, of the
    page's experiments.
    """

    def __init__(self, model: Model, lang: str, source: Source, **values: object) -> None:
        self.model, self.source, self.computed = model, source, dict(values)
        runs = source.head.get("runs", "").split()
        run = (import_module(f"metacount.teaching.experiments.{file}") for file in runs)
        self.uses = (counts, *run)
        super().__init__({}, lang)

    @property
    def spec(self) -> ModelSpec:
        """The parts of the model."""
        return self.model.spec

    def name(self, name: str) -> Any:
        """Compute what stands under a name."""
        if name in self.values:
            return self.values[name]
        if name not in self.computed:
            if name in self.source.definitions:
                value = computed(self.source.definitions[name], self)
            elif name in NAMES:
                value = NAMES[name](self)
            elif hasattr(self.spec, name):
                value = getattr(self.spec, name)
            else:
                raise SpecError("lesson", "has a name that nothing computes", name, "see its page")
            self.computed[name] = value
        return self.computed[name]

    def call(self, name: str, arguments: Sequence[Any], options: Mapping[str, Any]) -> object:
        """Call one of `ABOUT_MODELS`, an experiment, or what `Subject` knows."""
        if name in ABOUT_MODELS:
            return ABOUT_MODELS[name](self, *arguments, **options)
        return super().call(name, arguments, options)

    def of(self, model: Model, **values: object) -> Here:
        """Return what the page's names stand for, of another model."""
        return Here(model, self.lang, self.source, **values)


def _with(names: Here, spec: ModelSpec, label: object = None) -> Here:
    return names.of(type(names.model)(**{**vars(names.model), "spec": spec}), label=label)


def _models(names: Here, ids: str) -> list[Here]:
    known = (id for id in ids.split() if catalog.entry(id).sizes is not None)
    return [names.of(find_model(id)) for id in known]


def _by_size(models: Iterable[Here]) -> list[Here]:
    return sorted(models, key=lambda it: (it.call("params", (), {}), it.model.id))


def _with_others(names: Here, ids: str) -> list[Here]:
    others = (it for it in _models(names, ids) if it.model.id != names.model.id)
    return _by_size([names, *others])


def _shape(names: Here, text: str) -> list[str]:
    spec = names.spec
    known = {term.letter: getattr(spec, term.name) for term in legend.MODEL_TERMS}
    known |= {"B": names.name("batch"), "S": names.name("seq")}
    known["h_kv"] = known["h_kv"] or spec.n_heads
    return [f"[{text}]", str([evaluated(side, known) for side in text.split(", ")])]


def _ask(names: Here, quantity: str, /, **changes: object) -> Exercise:
    """Ask for a quantity of the model with other values of fields; the answer is in letters."""
    spec = names.spec.replace(**changes)
    form = closed_form(spec, fitted(spec, Request()), quantity)
    formula = " + ".join(str(part) for part in form.parts.values())
    return Exercise(formula=formula, quantity=quantity, changes=changes)


NAMES: dict[str, Callable[[Here], object]] = {
    "spec": lambda names: names.spec,
    "resolved": lambda names: names.model,
    "name": lambda names: names.model.name.partition(" (")[0],
    "model": lambda names: names.model.id,
    "changes": lambda names: names.model.changes,
    "listed": lambda names: names.model.entry,
    "entry": lambda names: names.model.published,
    "batch": lambda names: fitted(names.spec, Request()).batch_size,
    "seq": lambda names: fitted(names.spec, Request()).seq_len,
    "zero": lambda names: 0,
    "unit": lambda names: 1,
}
ABOUT_MODELS: dict[str, Callable[..., object]] = {
    # the model with other values of fields; the second goes without the rules of what can be
    "changed": lambda names, label=None, /, **it: _with(names, names.spec.replace(**it), label),
    "substituted": lambda names, **fields: _with(names, names.spec.substituted(**fields)),
    "ask": _ask,
    "models": _models,
    "catalog": lambda names: _by_size(names.of(find_model(entry.id)) for entry, _ in models()),
    "beside": _with_others,
    "shape": _shape,
    "users": lambda _, field, value: sum(getattr(spec, field) == value for _, spec in models()),
}


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
    source = source_of(checked_topic(topic))
    given = source.head["model"] if model is None else model
    chosen = find_model(given, settings) if isinstance(given, str) else model_of(given)
    names = Here(chosen, lang, source)
    if not computed(source.head["fits"], names):
        raise InputError(
            f"lesson {topic} needs {source.head['needs']}: {chosen.id} has not; choose for example "
            f"{source.examples}"
        )
    unsaid = (name for name in source.head.get("unsaid", "").split() if getattr(chosen.spec, name))
    more = beyond_branches(chosen.spec) or next(unsaid, "")
    if more and topic != "paper":  # whose figures are of the whole model
        raise InputError(
            f"lesson {topic} has no word for {more} of {chosen.id}, which has more in and around "
            f"its blocks; choose for example {source.examples}"
        )
    names.computed.clear()
    return _page(topic, names)


def _page(topic: str, names: Here) -> Page:
    blocks: list[Block] = []
    title, model = "", names.model
    exercises: list[Exercise] = []
    for text in re.split(r"\n(?: *\n)+", text_in(names.source.text, names.lang).strip("\n")):
        lines = text.splitlines()
        first = CONDITION.sub("", lines[0])
        lines = [CONDITION.sub("", line) for line in lines if _holds(line, names)]
        if not lines:
            continue
        if first.startswith("# "):
            title = filled(lines[0].removeprefix("# "), names)
        elif made := _block(first, lines, names, exercises):
            blocks.append(made)
    plain = {k: float(v) if isinstance(v, Fraction) else v for k, v in names.computed.items()}
    return Page(
        topic=topic,
        lang=names.lang,
        model=model.id,
        name=model.name,
        changes=model.changes,
        title=title,
        blocks=tuple(blocks),
        values={k: v for k, v in plain.items() if isinstance(v, bool | int | float | str)},
        exercises=tuple(exercises),
    )


def _holds(line: str, names: Here) -> bool:
    condition = CONDITION.match(line)
    return condition is None or bool(computed(condition[1], names))


def _block(first: str, lines: list[str], names: Here, exercises: list[Exercise]) -> Block | None:
    if first.startswith("## "):
        return Block(kind="heading", text=filled(lines[0].removeprefix("## "), names).strip())
    if first.startswith("|"):
        return _table(lines, names) if len(lines) > 1 else None
    if first.startswith("    "):
        equations = [filled(line, names)[4:].rstrip() for line in lines]
        return Block(kind="equation", text="\n".join(equations))
    if alone := ALONE.fullmatch(lines[0]):
        value = computed(alone[1], names)
        if not isinstance(value, Exercise):
            return Block(kind="equation", text=str(value))
        exercises.append(value)
        return _exercise(value, names.model)
    return Block(kind="paragraph", text=filled(_joined(lines), names))


def _table(lines: list[str], names: Here) -> Block | None:
    heads = _rows(_cells(lines[0]), names)[0]
    rows: list[tuple[str, ...]] = []
    for line in lines[1:]:
        each = EACH.match(line)
        items = computed(each[2], names) if each else [None]
        assert isinstance(items, list)
        for item in items:
            inside = names.with_row({each[1]: item}) if each else names
            rows += _rows(_cells(line[each.end() :] if each else line), inside)
    if any(len(row) != len(heads) for row in rows):
        raise SpecError(
            "lesson",
            "has a table whose rows do not have the cells of its head",
            heads,
            "see its page",
        )
    return Block(kind="table", heads=heads, rows=tuple(rows)) if rows else None


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _rows(cells: list[str], names: Known) -> list[tuple[str, ...]]:
    """Write a row; one whose only cell is a list of rows is these rows."""
    row: list[str] = []
    for cell in cells:
        alone = ALONE.fullmatch(cell)
        value = computed(alone[1], names) if alone else None
        if alone and isinstance(value, list):
            if len(cells) == 1 and all(isinstance(each, list | tuple) for each in value):
                return [tuple(as_text(it, "", names.lang) for it in each) for each in value]
            row += [as_text(it, alone[2] or "", names.lang) for it in value]
        else:
            row.append(filled(cell, names))
    return [tuple(row)]


def _exercise(value: Exercise, model: Model) -> Block:
    options = f" {model.id}" if " " not in model.id else " MODEL"
    # what the exercise changes takes the place of what the reader changed
    changes = {name: str(new).lower() for name, new in {**model.changes, **value.changes}.items()}
    options += "".join(f" --set {name}={new}" for name, new in changes.items())
    options += f" --quantity {value.quantity}" if value.quantity != "params" else ""
    return Block(
        kind="exercise",
        text=f'metacount check "..."{options}',
        answer=f'metacount check "{value.formula}"{options}',
    )


def _joined(texts: list[str]) -> str:
    joined = texts[0]
    for text in texts[1:]:
        wide = joined[-1:] >= "\u2e80" and text[:1] >= "\u2e80"
        joined += text if wide else " " + text
    return joined
