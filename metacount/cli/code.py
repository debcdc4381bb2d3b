"""`metacount code`: the code of a module or a formula, as it runs."""

from __future__ import annotations

from metacount.cli.answer import Answer
from metacount.cli.layout import bold, dim, is_terminal
from metacount.cli.options import FORMATS, option
from metacount.cli.report import Grid, Text

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from metacount.cli.options import Option
    from metacount.cli.report import Block, Report
    from metacount.sources import Code


def options() -> Sequence[Option]:
    return (
        option(
            "names",
            "NAME",
            "a class or a function (RMSNorm, apply_rope, glu_params), or a topic: all of norm, "
            "ffn, attention, mla, moe, position, ...",
            nargs="*",
        ),
        *FORMATS,
    )


def run(args: argparse.Namespace) -> Answer:
    from metacount.sources import codes, find_codes

    found = find_codes(args.names) if args.names else codes()
    return Answer(
        report=lambda: _texts(found) if args.names else _listing(found),
        data=lambda: [code.to_dict() for code in found],
        table=lambda: Grid(
            heads=("name", "kind", "file", "line", "says"),
            rows=[(c.name, c.kind, c.file, c.line, c.says) for c in found],
            align="<<<><",
        ),
    )


def _listing(found: Sequence[Code]) -> Report:
    """Report every name with what its docstring says, file by file."""
    sections: list[list[Block]] = []
    for file in dict.fromkeys(code.file for code in found):
        rows = [(f"  {c.name}", c.says) for c in found if c.file == file]
        grid = Grid(heads=(), rows=rows, align="<", prose=True)
        sections.append([Text(f"metacount/{file}", bold), grid])
    return [*sections, [Text("metacount code NAME prints one.")]]


def _texts(found: Sequence[Code]) -> Report:
    """Report the code itself, each piece below the file and the line where it stands."""
    sections: list[list[Block]] = []
    for i, code in enumerate(found):
        text = _painted(code.text) if is_terminal() else code.text
        head = dim(f"metacount/{code.file}, line {code.line}")
        lines = [*([""] if i else []), head, *text.split("\n")]
        sections.append([Text(line, whole=True) for line in lines])
    return sections


def _painted(text: str) -> str:
    """Paint Python code in the terminal's own colours."""
    from rich.console import Console
    from rich.syntax import Syntax

    console = Console(force_terminal=True, width=max(map(len, text.splitlines())))
    with console.capture() as captured:
        console.print(Syntax(text, "python", theme="ansi_dark", background_color="default"))
    return "\n".join(line.rstrip() for line in captured.get().splitlines())
