"""A forward by formula as text: part by part, each operation with its shapes and its cost."""

from __future__ import annotations

from metacount import units
from metacount.views.layout import bold, columns, dim, paragraph, wrapped

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Iterator

    from metacount.textbook.forward import ForwardStep, ForwardTable

WIDEST, FLOPS = 120, 10


def forward_text(name: str, table: ForwardTable) -> str:
    """Write a forward: title, letters, lines of each operation, total."""
    width, run = min(columns(), WIDEST), table.workload
    lines = [bold(name), f"{run.batch_size} × {units.exact(run.seq_len)} tokens, {run.dtype}", ""]
    letters = ", ".join(f"{letter}\0=\0{number}" for letter, number in table.numbers.items())
    lines += [*(line.replace("\0", " ") for line in paragraph("letters", letters, width)), ""]
    for part in table.parts:
        times = f"  ×{part.times}, each" if part.times > 1 else ""
        *first, last = wrapped(part.name, width - len(times))
        lines += [*map(bold, first), bold(last) + times]
        for step in part.steps:
            lines += (f"  {line}" for line in _lines(step, width - 2))
        lines.append("")
    lines += paragraph("total", f"{units.exact(table.matmul_flops)} FLOPs", width)
    text = (
        "by the formulas, without running a module: FLOPs are of matrix products alone, 2 for each "
        "multiply-add; saved is what the backward needs of a step that trains everything, counted "
        f"where it is first needed, with {table.attention} attention."
    )
    return "\n".join(line.rstrip() for line in (*lines, *paragraph("read ", text, width))) + "\n"


def _lines(step: ForwardStep, width: int) -> Iterator[str]:
    said = f"{step.equation}  W {step.weight}" if step.weight else step.equation
    text = f"{step.name}  {said}" if said else step.name
    figure = f"{units.flops(step.flops_value):>{FLOPS}}" if step.flops_value else ""
    price = f"{step.flops}  {figure}" if figure else ""
    if len(text) + 2 + len(price) <= width:
        yield text + (f"{price:>{width - len(text)}}" if price else "")
    else:
        yield from _fitted(text, width)
        yield from (f"{line:>{width}}" for line in _fitted(price, width))
    saved = f"; saves {step.saved} = {units.gib(step.saved_value)}" if step.saved else ""
    first, *more = wrapped(f"→ {step.result}{saved}", width - 6)
    yield "    " + dim(first)
    yield from ("      " + dim(line) for line in more)


def _fitted(text: str, width: int) -> list[str]:
    """Break a line where it is too long; its gaps are kept where it is not."""
    return [text] if len(text) <= width else wrapped(text, width)
