"""Reads a lesson's text: blocks of lines between empty lines, with placeholders.

# Title
## Heading
A paragraph, over as many lines as it needs.
    an equation, indented by four spaces
| head | head |
| cell | {{ name:format }} |
| {{ rows }} |                    rows that one function gives
{{ exercise }}                    alone on its line
{{? name }} before any of these   only where it computes to something true
{{? not name }}                   or to nothing
"""

from __future__ import annotations

import os
import re

from metacount.frozen import frozen

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Iterator

TEXTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "text")
PLACEHOLDER = re.compile(r"\{\{ (\w+)(?::(\w+))? \}\}")
CONDITION = re.compile(r"\{\{\? (not )?(\w+) \}\} ?")
INDENT = " " * 4


@frozen
class Line:
    """A line and the conditions that stand before it: names, each with whether it must hold."""

    text: str
    where: tuple[tuple[str, bool], ...]


@frozen
class Piece:
    """Lines of one kind: title, heading, paragraph, equation, table or value."""

    kind: str
    lines: tuple[Line, ...]


def read_text(lang: str, name: str) -> str:
    """Read the text of a topic in a language, as it stands in the folder."""
    with open(os.path.join(TEXTS, lang, f"{name}.txt"), encoding="utf-8") as file:
        return file.read()


def read_words(lang: str) -> dict[str, str]:
    """Read the words that computed cells are made of: `key = word`, one a line.

    >>> read_words("en")["yes"], read_words("zh")["yes"]
    ('yes', '是')
    """
    lines = read_text(lang, "words").splitlines()
    pairs = (line.partition(" = ") for line in lines if line)
    return {key: word for key, _, word in pairs}


def pieces(text: str) -> Iterator[Piece]:
    """Yield the blocks of a text in order.

    >>> [piece.kind for piece in pieces("# T\\n\\nIt is {{ n }}.\\n\\n| a |\\n| {{ n }} |\\n")]
    ['title', 'paragraph', 'table']
    """
    for block in re.split(r"\n(?: *\n)+", text.strip("\n")):
        lines = tuple(map(_line, block.splitlines()))
        yield Piece(kind=_kind(lines[0].text), lines=lines)


def _line(text: str) -> Line:
    where = []
    while found := CONDITION.match(text):
        where.append((found[2], not found[1]))
        text = text[found.end() :]
    return Line(text=text, where=tuple(where))


def _kind(first: str) -> str:
    for start, kind in {"# ": "title", "## ": "heading", "|": "table", INDENT: "equation"}.items():
        if first.startswith(start):
            return kind
    return "value" if PLACEHOLDER.fullmatch(first) else "paragraph"


def placeholders(text: str) -> list[str]:
    """List every placeholder and condition of a text, without spaces, in order.

    >>> placeholders("{{? moe }} {{ d_model }} of {{ share:percent }}")
    ['?moe', 'd_model', 'share:percent']
    """
    found = re.findall(r"\{\{(.*?)\}\}", text)
    return ["".join(each.split()) for each in found]


def cells_of(line: str) -> tuple[str, ...]:
    """Split a table's line into its cells.

    >>> cells_of("| a | {{ n }} |")
    ('a', '{{ n }}')
    """
    return tuple(cell.strip() for cell in line.strip().strip("|").split("|"))
