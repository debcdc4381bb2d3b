"""A forward in order as text: module by module, each step with its equation and its shapes."""

from __future__ import annotations

from metacount import units
from metacount.views.layout import bold, columns, dim, paragraph

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from metacount.flow.result import Flow
    from metacount.flow.steps import Step

    Shown = tuple[str, str]  # one shape in letters and in numbers

PARAMS, FLOPS = 7, 10  # characters of the two figures
WIDEST = 120


def flow_text(flow: Flow) -> str:
    """Write a flow: title, letters, one block of lines a step, totals."""
    width = min(columns(), WIDEST)
    title = bold(flow.name) + (f"  ({flow.model})" if flow.model not in ("", flow.name) else "")
    lines = [title, *([_run(flow)] if flow.workload else []), ""]
    used = _used(flow.steps)
    if used:
        terms = [
            f"{one.letter} = {one.value}\0{one.name}" for one in flow.letters if one.letter in used
        ]
        text = ", ".join(term.replace(" = ", "\0=\0") for term in terms)
        lines += [*(line.replace("\0", " ") for line in paragraph("letters", text, width)), ""]
    head = f"{'params':>{PARAMS}}  {'FLOPs':>{FLOPS}}"
    lines.append(bold(f"{'step':<{width - len(head)}}{head}"))
    lines += _lines(flow.steps, 0, width, flow.depth)
    lines += ["", *_closing(flow, width)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _used(steps: Sequence[Step]) -> set[str]:
    """Find the letters that the shapes of these steps are written in."""
    found: set[str] = set()
    for step in steps:
        for terms in (*step.input_letters, *step.output_letters):
            for term in terms:
                found |= set(
                    "".join(c if c.isalnum() or c == "_" else " " for c in term or "").split()
                )
        found |= _used(step.inside)
    return found


def _run(flow: Flow) -> str:
    run = flow.workload
    batch, length = run["batch_size"], run["seq_len"]
    many = "1 sequence" if batch == 1 else f"{units.exact(batch)} sequences"
    if flow.decode:
        return f"one more token of {many}, {units.exact(length)} positions in all, {run['dtype']}"
    text = f"{many} of {units.exact(length)} tokens, {run['dtype']}"
    if run.get("source_len"):
        text += f"; the encoder reads {units.exact(run['source_len'])}"
    return text


def _closing(flow: Flow, width: int) -> list[str]:
    lines = paragraph(
        "total",
        f"{units.exact(flow.params)} parameters, {units.exact(flow.matmul_flops)} FLOPs",
        width,
    )
    if flow.unused:
        text = f"{units.exact(flow.unused)} parameters take no part in this forward"
        lines += paragraph("other", text, width)
    rotary = sum(times * step.uncounted for times, step in flow.walk())
    if rotary:
        text = f"{units.exact(rotary)} FLOPs make tables of angles and are in no figure"
        lines += paragraph("also ", text, width)
    text = (
        f"in execution order, read off a run of the {flow.source} module on the meta device. "
        "Figures of what repeats (×N) are of one. FLOPs are of matrix products alone, 2 for each "
        "multiply-add."
    )
    lines += paragraph("read ", text, width)
    for note in flow.notes:
        lines += paragraph("note ", note, width)
    return lines


def _lines(steps: Sequence[Step], indent: int, width: int, depth: int | None) -> Iterator[str]:
    for step in steps:
        label = _label(step)
        if _opened(step, depth):
            kind = step.module if step.module != _last(step.name) else ""
            kind = f"  {kind}" * bool(kind) + ", each" * (step.times > 1)
            text = " " * indent + bold(label) + dim(kind)
            yield _figured(text, indent + len(label) + len(kind), step, width)
            yield from _lines(step.inside, indent + 2, width, depth and depth - 1)
        else:
            yield from _simple(step, indent, width)


def _opened(step: Step, depth: int | None) -> bool:
    return bool(step.inside) and depth != 1 and step.like is None


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _label(step: Step) -> str:
    return step.name + (f" ×{step.times}" if step.times > 1 else "")


def _simple(step: Step, indent: int, width: int) -> Iterator[str]:
    """Yield the lines of a step: what it is, and its shapes unless it repeats another."""
    label, shown = _label(step), _figures(step)
    room = width - (len(shown) + 2 if shown else 0)
    start = indent + len(label) + (2 if label else 0)
    said = _said(step, room - start)
    if label and start + len(said) > room:
        yield _figured(" " * indent + bold(label), indent + len(label), step, width)
        yield " " * (indent + 2) + said
    else:
        text = " " * indent + bold(label) + "  " * bool(label) + said
        length, price = start + len(said), step.flops_letters
        if price and step.flops and room - length >= len(price) + 2:
            text += " " * (room - length - len(price)) + dim(price)
            length = room
        yield _figured(text, length, step, width)
    if step.like is None:
        inner = indent + 4
        yield from (" " * inner + dim(line) for line in _shapes(step, width - inner))


def _said(step: Step, room: int) -> str:
    """Choose the equation; else the statement, if it fits; else the module and what ran in it."""
    if step.like is not None:
        return f"as {step.like}"
    if step.equation is not None:
        return step.equation
    if step.inside:
        return step.module + ", each" * (step.times > 1)
    if step.alone and step.code and len(step.code) <= room:
        return step.code
    given = step.code.partition(" = ")[0] if " = " in step.code else step.code.partition(" ")[0]
    ran = " ".join(step.operators) or "reshaped"
    text = ": ".join(part for part in (step.module or given, ran) if part)
    if len(text) > room:
        n = len(step.operators)
        text = step.module or (f"{n} operators, {step.operators[0]} first" if n else given)
    return text


def _figures(step: Step) -> str:
    if not (step.params or step.flops):
        return ""
    params = units.short(step.params) if step.params else ""
    flops = units.flops(step.flops) if step.flops else ""
    return f"{params:>{PARAMS}}  {flops:>{FLOPS}}"


def _figured(text: str, length: int, step: Step, width: int) -> str:
    """Write a line with the step's figures at its end; `length` is that of the text as seen."""
    shown = _figures(step)
    if not shown:
        return text
    gap = width - len(shown) - length
    if gap < 1:
        return f"{text}\n{' ' * (width - len(shown))}{shown}"
    return text + " " * gap + shown


def _shapes(step: Step, width: int) -> list[str]:
    """Write shapes in letters and in numbers; once where inputs and outputs are of one shape."""
    ends = [_shown(step.inputs, step.input_letters), _shown(step.outputs, step.output_letters)]
    if not step.inputs or len({*ends[0], *ends[1]}) == 1:
        ends = ends[1:]
    letters, numbers = ([_counted(end, which) for end in ends] for which in (0, 1))
    parts = [letters] if letters == numbers else [letters, numbers]
    whole = [" → ".join(part) for part in parts]
    if len(" = ".join(whole)) <= width:
        return [" = ".join(whole)]
    lines: list[str] = []
    for mark, part, text in zip(("", "= "), parts, whole, strict=False):
        if len(mark + text) <= width:
            lines.append(mark + text)
            continue
        for start, end in zip((mark, "  → "), part, strict=False):
            lines += _wrapped(start, end.split("; "), width)
    return lines


def _shown(
    shapes: Sequence[tuple[int, ...]], letters: Sequence[Sequence[str | None]]
) -> list[Shown]:
    named = letters or [(None,) * len(shape) for shape in shapes]
    return [
        (
            "[" + ", ".join(t or str(n) for n, t in zip(shape, terms, strict=True)) + "]",
            "[" + ", ".join(map(str, shape)) + "]",
        )
        for shape, terms in zip(shapes, named, strict=True)
    ]


def _counted(shapes: list[Shown], which: int) -> str:
    """Write shapes in letters (0) or in numbers (1), those that come again with ×."""
    times = {shape: shapes.count(shape) for shape in shapes}
    return "; ".join(shape[which] + (f" ×{n}" if n > 1 else "") for shape, n in times.items())


def _wrapped(start: str, shapes: list[str], width: int) -> list[str]:
    lines = [start + shapes[0]]
    for shape in shapes[1:]:
        if len(lines[-1]) + 2 + len(shape) <= width:
            lines[-1] += "; " + shape
        else:
            lines[-1] += ";"
            lines.append(" " * len(start) + shape)
    return lines
