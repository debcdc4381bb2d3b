"""`metacount code`: the code of a module or a formula, as it runs."""

from __future__ import annotations

import ast
import os

from metacount.cli.answer import Answer
from metacount.cli.report import Block, Grid, Report, Text, bold, dim, is_terminal
from metacount.errors import InputError, nearest, shown
from metacount.frozen import frozen
from metacount.package import PACKAGE

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence


def run(args: argparse.Namespace) -> Answer:
    chosen = find_codes(args.names) if args.names else codes()
    heads = ("name", "kind", "file", "line", "says")
    rows = [(c.name, c.kind, c.file, c.line, c.says) for c in chosen]
    return Answer(
        report=lambda: _texts(chosen) if args.names else _listing(chosen),
        data=lambda: [code.to_dict() for code in chosen],
        table=lambda: Grid(heads=heads, rows=rows, align="<<<><"),
    )


def _listing(chosen: Sequence[Code]) -> Report:
    sections: list[list[Block]] = []
    for file in dict.fromkeys(code.file for code in chosen):
        rows = [(f"  {c.name}", c.says) for c in chosen if c.file == file]
        grid = Grid(heads=(), rows=rows, align="<", prose=True)
        sections.append([Text(f"metacount/{file}", bold), grid])
    return [*sections, [Text("metacount code NAME prints one.")]]


def _texts(chosen: Sequence[Code]) -> Report:
    sections: list[list[Block]] = []
    for i, code in enumerate(chosen):
        text = _painted(code.text) if is_terminal() else code.text
        head = dim(f"metacount/{code.file}, line {code.line}")
        lines = [*([""] if i else []), head, *text.split("\n")]
        sections.append([Text(line, unbroken=True) for line in lines])
    return sections


def _painted(text: str) -> str:
    from rich.console import Console
    from rich.syntax import Syntax

    console = Console(force_terminal=True, width=max(map(len, text.splitlines())))
    with console.capture() as captured:
        console.print(Syntax(text, "python", theme="ansi_dark", background_color="default"))
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


FOLDERS = ("modules", "formulas")


@frozen
class Code:
    """A class or a function of ours: where it stands, and its text with its docstring."""

    name: str
    kind: str  # class or function
    file: str  # below the package, with /
    line: int
    text: str
    says: str  # the first line of its docstring

    def to_dict(self) -> dict[str, object]:
        """Return plain data."""
        data = {name: getattr(self, name) for name in ("name", "kind", "file", "line", "says")}
        return {**data, "file": f"metacount/{self.file}", "code": self.text}


def codes() -> tuple[Code, ...]:
    """List every public class and function of the modules and of the formulas, file by file."""
    return tuple(
        code
        for folder in FOLDERS
        for file in sorted(os.listdir(os.path.join(PACKAGE, folder)))
        if file.endswith(".py") and not file.startswith("_")
        for code in _of_file(f"{folder}/{file}")
    )


def find_codes(names: list[str]) -> tuple[Code, ...]:
    """Find the code of each name: a class, a function, or a topic, which is all of one file.

    >>> [code.name for code in find_codes(["ffn.FeedForward", "rmsnorm"])]
    ['FeedForward', 'RMSNorm']
    """
    known = codes()
    chosen: dict[Code, None] = {}
    for name in names:
        lower = name.lower()
        topic, _, last = lower.rpartition(".")
        ways = (
            [code for code in known if code.name == name],
            [code for code in known if _path(code) == lower],
            [c for c in known if c.name.lower() == last and topic in ("", _topic(c), _path(c))],
            [c for c in known if _topic(c) == lower and c.file.startswith("modules")],
        )
        those = next(filter(None, ways), None)
        if those is None:
            words = {code.name.lower(): code.name for code in known}
            words |= {_topic(code): _topic(code) for code in known}
            remedy = nearest(name, words, "`metacount code` lists what there is")
            raise InputError(f"code '{shown(name)}' is not known; {remedy}")
        chosen |= dict.fromkeys(those)
    return tuple(chosen)


def _topic(code: Code) -> str:
    return os.path.basename(code.file).removesuffix(".py")


def _path(code: Code) -> str:
    return code.file.removesuffix(".py").replace("/", ".")


def _of_file(file: str) -> Iterator[Code]:
    with open(os.path.join(PACKAGE, file), encoding="utf-8") as opened:
        text = opened.read()
    lines = text.splitlines()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            start = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            yield Code(
                name=node.name,
                kind="class" if isinstance(node, ast.ClassDef) else "function",
                file=file,
                line=start,
                says=(ast.get_docstring(node) or "").partition("\n")[0],
                text="\n".join(lines[start - 1 : node.end_lineno]),
            )
