"""The code of modules and formulas: a list of what there is, or the text of some."""

from __future__ import annotations

from metacount.views.layout import bold, columns, dim, is_terminal, noted_table

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from metacount.sources import Code


def listing_text(found: Sequence[Code]) -> str:
    """Write every name with what its docstring says, file by file."""
    width, file = columns(), ""
    lines: list[str] = []
    for code in found:
        if code.file != file:
            file = code.file
            lines += ["", bold(f"metacount/{file}")]
            of_file = [(f"  {c.name}", c.says) for c in found if c.file == file]
            lines += noted_table((), of_file, "<", width)
    return "\n".join([*lines[1:], "", "metacount code NAME prints one."]) + "\n"


def code_text(found: Sequence[Code]) -> str:
    """Write the code itself, each piece below the file and the line where it stands."""
    parts = []
    for code in found:
        head = dim(f"metacount/{code.file}, line {code.line}")
        parts.append(f"{head}\n{_painted(code.text) if is_terminal() else code.text}\n")
    return "\n\n".join(parts)


def _painted(text: str) -> str:
    """Paint Python code in the terminal's own colours."""
    from rich.console import Console
    from rich.syntax import Syntax

    console = Console(force_terminal=True, width=max(map(len, text.splitlines())))
    with console.capture() as captured:
        console.print(Syntax(text, "python", theme="ansi_dark", background_color="default"))
    return "\n".join(line.rstrip() for line in captured.get().splitlines())
