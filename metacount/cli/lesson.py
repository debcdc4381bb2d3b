"""`metacount lesson`: a page of teaching, computed as it is printed; `metacount.lesson`."""

from __future__ import annotations

import re
from functools import partial

from metacount.cli.answer import Answer, Pieces, prepare_for_torch
from metacount.cli.claims import GLUE, INDENT, prose
from metacount.cli.report import (
    Grid,
    Lines,
    Text,
    bold,
    cells,
    dim,
    in_text,
    noted_table,
    table,
    width_of,
    wrapped,
)
from metacount.errors import InputError
from metacount.frozen import frozen
from metacount.languages import checked_language, terminal_language
from metacount.measure.isolated import isolated

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from metacount.cli.report import Report
    from metacount.files import Json
    from metacount.resolve import Given
    from metacount.teaching.lessons import Block, Page

WIDEST = 88  # cells of a line: a page is read, not scanned
COMMAND = re.compile(r"`[^`]{1,48}`")  # short enough not to be broken
NUMBER = re.compile(r"[-+−<>≈]?\d[\d,.]*(e[-+−]?\d+)?( ?[%×A-Za-z]+)?|[-–]|")


def run(args: argparse.Namespace) -> Answer | Pieces:
    from metacount.teaching.lessons import page_of, runs_modules

    lang = terminal_language() if args.lang is None else checked_language(args.lang)
    if args.topic is None:
        if args.model is not None or args.settings or args.answers or args.markdown:
            raise InputError("lesson needs TOPIC for that; `metacount lesson` lists them")
        return Answer(report=lambda: _topics(lang), data=lambda: _listing(lang))
    if runs_modules(args.topic):
        prepare_for_torch()
    page = page_of(args.topic, args.model, lang, args.settings)
    lesson = Lesson(page=page, answers=args.answers)
    if args.markdown:
        return Pieces(text=lesson.to_markdown())
    return Answer(report=lambda: report_of(page, lesson.answers), data=lesson.to_dict)


@frozen
class Lesson:
    """A computed lesson; `page` has its blocks. Without `answers` those of exercises are hidden."""

    page: Page
    answers: bool = False

    @property
    def text(self) -> str:
        """The page as a terminal shows it."""
        return in_text(report_of(self.page, self.answers))

    def to_dict(self) -> Json:
        """Convert the page to plain data."""
        return self.page.to_dict(answers=self.answers)

    def to_markdown(self) -> str:
        """Write the page as Markdown."""
        return _markdown(self.page, self.answers)

    def _repr_markdown_(self) -> str:
        return self.to_markdown()


@isolated
def lesson(
    topic: str, model: Given | None = None, *, lang: str | None = None, answers: bool = False
) -> Lesson:
    """Compute the lesson on a topic for a model; `lang` is en or zh, by default the terminal's.

    >>> lesson("block", "llama-7b", lang="en").page.values["block"]
    202383360
    """
    from metacount.teaching.lessons import page_of

    return Lesson(page=page_of(topic, model, lang or terminal_language()), answers=answers)


def _listing(lang: str) -> list[dict[str, str]]:
    from metacount.teaching.lessons import TOPICS, source_of, title_of

    return [
        {"topic": t, "title": title_of(t, lang), "model": source_of(t).head["model"]}
        for t in TOPICS
    ]


def _topics(lang: str) -> Report:
    rows = [(each["topic"], each["title"], each["model"]) for each in _listing(lang)]
    heads = {"en": ("topic", "title", "model"), "zh": ("主题", "标题", "模型")}[lang]
    return [[Grid(heads=heads, rows=rows, align="<<<")], [Text("metacount lesson moe --answers")]]


def report_of(page: Page, answers: bool) -> Report:
    """Report the page in lines no wider than the terminal, and not wider than is good to read."""
    changed = "".join(f" --set {name}={value}" for name, value in page.changes.items())
    head = [
        Text(page.title, bold, most=WIDEST),
        Text(f"{page.name} ({page.model}){changed}", dim, most=WIDEST),
    ]
    blocks = [
        [Lines(partial(_lines, block, answers=answers), most=WIDEST)] for block in page.blocks
    ]
    return [head, *blocks]


def _lines(block: Block, width: int, *, answers: bool) -> list[str]:
    if block.kind == "heading":
        return [bold(block.text)]
    if block.kind == "table":
        return [INDENT + line for line in _table(block, width - len(INDENT))]
    if block.kind == "equation":
        return [
            INDENT * 2 + line
            for text in block.text.splitlines()
            for line in _broken(text, width - 2 * len(INDENT))
        ]
    if block.kind == "exercise":
        command = block.answer if answers else block.text
        first, *rest = _broken(command, width - 2 * len(INDENT))
        return [INDENT + "$ " + first, *(INDENT * 2 + line for line in rest)]
    return prose(COMMAND.sub(lambda it: it[0].replace(" ", GLUE), block.text), width)


def _table(block: Block, width: int) -> list[str]:
    align = "".join(
        ">" if all(NUMBER.fullmatch(row[i]) for row in block.rows) else "<"
        for i in range(len(block.heads))
    )
    if width_of(block.heads, block.rows) > width and align[-1] == "<":
        firsts = "".join(align[:-1])
        return noted_table(block.heads, _aligned(block.rows, firsts), "<" * len(firsts), width)
    return table(block.heads, block.rows, align)


def _aligned(rows: Sequence[Sequence[str]], align: str) -> list[tuple[str, ...]]:
    """Pad the cells of rows so that columns of numbers already stand at the right."""
    widths = [max(cells(row[i]) for row in rows) for i in range(len(align))]
    return [
        (
            *(
                cell if side == "<" else " " * (size - cells(cell)) + cell
                for cell, side, size in zip(row[:-1], align, widths, strict=True)
            ),
            row[-1],
        )
        for row in rows
    ]


def _broken(text: str, width: int) -> list[str]:
    """Break an equation into lines of at most `width`; one that fits keeps its own spacing."""
    if cells(text) <= width:
        return [text]
    first, *rest = wrapped(text, width - len(INDENT))
    return [first, *(INDENT + line for line in rest)]


def _markdown(page: Page, answers: bool) -> str:
    parts = [f"# {page.title}", f"*{page.name}* (`{page.model}`)"]
    for block in page.blocks:
        if block.kind == "heading":
            parts.append(f"## {block.text}")
        elif block.kind == "table":
            rows = [block.heads, ("---",) * len(block.heads), *block.rows]
            parts.append("\n".join("| " + " | ".join(_cell(c) for c in row) + " |" for row in rows))
        elif block.kind == "equation":
            parts.append(f"```text\n{block.text}\n```")
        elif block.kind == "exercise":
            parts.append(f"```sh\n{block.answer if answers else block.text}\n```")
        else:
            parts.append(block.text)
    return "\n\n".join(parts) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
