"""`metacount flow`: the forward of a model in execution order, run or by the formulas."""

from __future__ import annotations

import re
from functools import partial

from metacount import units
from metacount.cli.answer import Answer, prepare_for_torch
from metacount.cli.options import own_module, request_of
from metacount.cli.report import Grid, Lines, Notes, Text, bold, columns, dim, title, wrapped
from metacount.errors import InputError
from metacount.resolve import find_any, find_model

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from metacount.cli.report import Block, Cell, Report
    from metacount.flow.result import Flow
    from metacount.flow.steps import Step
    from metacount.textbook.forward import ForwardPart, ForwardTable

    Shown = tuple[str, str]  # one shape in letters and in numbers

DEVICES = {"meta": "the meta device", "cpu": "the CPU"}
PARAMS, FLOPS = 7, 10  # characters of the two figures
WIDEST = 120


def run(args: argparse.Namespace) -> Answer:
    if args.depth is not None and args.depth < 1:
        raise InputError(f"--depth must be at least 1: got {args.depth}; leave it out to see all")
    own = own_module(args)
    if args.formula:
        return _by_formula(args)
    model = find_any(args.model, args.settings) if own is None else own
    prepare_for_torch()
    if own is None:
        from metacount.flow.run import flow

        result = flow(model, request_of(args), decode=args.decode, reference=args.reference)
    else:
        from metacount.summary.modules import typed_inputs
        from metacount.summary.summary import ModuleSummary

        inputs = typed_inputs(own.module, args.input)
        result = ModuleSummary(own.module).flow(*inputs, device=args.device)
    result = result.only(args.only) if args.only else result
    result = result.down_to(args.depth)
    return Answer(
        report=lambda: report_of(result),
        data=result.to_dict,
        table=lambda: _table(result),
        model=model,
    )


def _by_formula(args: argparse.Namespace) -> Answer:
    from metacount.textbook.count import fitted
    from metacount.textbook.forward import forward_table

    model = find_model(args.model, args.settings)
    table = forward_table(model.spec, fitted(model.spec, request_of(args)))
    return Answer(
        report=lambda: _forward_report(model.name, table),
        data=lambda: {"model": model.name, **table.to_dict()},
        table=lambda: _forward_grid(table),
        model=model,
    )


def report_of(flow: Flow) -> Report:
    """Report a flow: title, letters, one block of lines a step, totals."""
    used = _used(flow.steps)
    terms = [f"{t.letter}\0=\0{t.value}\0{t.name}" for t in flow.letters if t.letter in used]
    rotary = sum(times * step.uncounted for times, step in flow.walk())
    total = f"{units.exact(flow.params)} parameters, {units.exact(flow.matmul_flops)} FLOPs"
    read = (
        f"in execution order, read off a run of the {flow.source} module on "
        f"{DEVICES[flow.device]}. Figures of what repeats (×N) are of one. FLOPs are of matrix "
        "products alone, 2 for each multiply-add."
    )
    notes = [
        ("total", total),
        ("other", _figure(flow.unused, "parameters take no part in this forward")),
        ("also ", _figure(rotary, "FLOPs make tables of angles and are in no figure")),
        ("read ", read),
        *(("note ", note) for note in flow.notes),
    ]
    head: list[Block] = [title(flow.name, flow.model)]
    if flow.workload:
        head.append(Text(_run(flow), unbroken=True))
    return [head, [_letters(terms)], [Lines(lambda _: _drawn(flow))], [_narrow(Notes(notes))]]


def _table(flow: Flow) -> Grid:
    rows: list[tuple[Cell, ...]] = []
    for times, step in flow.walk():
        if step.like is None:
            what, (shapes,) = described(step, WIDEST), shape_lines(step, 10**6)
            rows.append((step.path, what, times, shapes, step.params, step.flops))
    heads = ("module", "step", "times", "shapes", "params", "matmul_flops")
    return Grid(heads=heads, rows=rows, align="<<><>>")


def _figure(n: int, what: str) -> str:
    return f"{units.exact(n)} {what}" if n else ""


def _narrow(block: Notes) -> Lines:
    """Write notes as wide as steps; what \0 joins stays in one piece."""
    return Lines(lambda w: [line.replace("\0", " ") for line in block.lines(min(w, WIDEST))])


def _letters(terms: Sequence[str]) -> Lines:
    return _narrow(Notes([("letters", ", ".join(terms))]))


def _drawn(flow: Flow) -> list[str]:
    width = min(columns(), WIDEST)
    head = f"{'params':>{PARAMS}}  {'FLOPs':>{FLOPS}}"
    lines = [bold(f"{'step':<{width - len(head)}}{head}")]
    return [*lines, *_lines(flow.steps, 0, width, flow.depth)]


def _used(steps: Sequence[Step]) -> set[str]:
    shapes = (shape for s in steps for shape in (*s.input_letters, *s.output_letters))
    terms = " ".join(term for shape in shapes for term in shape if term)
    return {*re.findall(r"\w+", terms)}.union(*(_used(step.inside) for step in steps))


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


def _lines(steps: Sequence[Step], indent: int, width: int, depth: int | None) -> Iterator[str]:
    for step in steps:
        label = name_of(step)
        if step.inside and depth != 1 and step.like is None:
            kind = step.module if step.module != step.name.rpartition(".")[2] else ""
            kind = f"  {kind}" * bool(kind) + ", each" * (step.times > 1)
            text = " " * indent + bold(label) + dim(kind)
            yield _figured(text, indent + len(label) + len(kind), step, width)
            yield from _lines(step.inside, indent + 2, width, depth and depth - 1)
        else:
            yield from _simple(step, indent, width)


def name_of(step: Step) -> str:
    return step.name + (f" ×{step.times}" if step.times > 1 else "")


def _simple(step: Step, indent: int, width: int) -> Iterator[str]:
    """Yield the lines of a step: what it is, and its shapes unless it repeats another."""
    label, figures = name_of(step), _figures(step)
    room = width - (len(figures) + 2 if figures else 0)
    start = indent + len(label) + (2 if label else 0)
    what = described(step, room - start)
    if label and start + len(what) > room:
        yield _figured(" " * indent + bold(label), indent + len(label), step, width)
        yield " " * (indent + 2) + what
    else:
        text = " " * indent + bold(label) + "  " * bool(label) + what
        length, price = start + len(what), step.flops_letters
        if price and step.flops and room - length >= len(price) + 2:
            text += " " * (room - length - len(price)) + dim(price)
            length = room
        yield _figured(text, length, step, width)
    if step.like is None:
        yield from (" " * (indent + 4) + dim(s) for s in shape_lines(step, width - indent - 4))


def described(step: Step, room: int) -> str:
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


def shape_lines(step: Step, width: int) -> list[str]:
    """Write shapes in letters and in numbers; once where inputs and outputs are of one shape."""
    ends = [_shown(step.inputs, step.input_letters), _shown(step.outputs, step.output_letters)]
    if not step.inputs or len({*ends[0], *ends[1]}) == 1:
        ends = ends[1:]
    letters, numbers = ([_counted(end, which) for end in ends] for which in (0, 1))
    parts = [letters] if letters == numbers else [letters, numbers]
    texts = [" → ".join(part) for part in parts]
    if len(" = ".join(texts)) <= width:
        return [" = ".join(texts)]
    lines: list[str] = []
    for mark, part, text in zip(("", "= "), parts, texts, strict=False):
        if len(mark + text) <= width:
            lines.append(mark + text)
            continue
        for start, end in zip((mark, "  → "), part, strict=False):
            first, *shapes = end.split("; ")
            lines.append(start + first)
            for shape in shapes:
                if len(lines[-1]) + 2 + len(shape) <= width:
                    lines[-1] += f"; {shape}"
                else:
                    lines[-1:] = [f"{lines[-1]};", " " * len(start) + shape]
    return lines


def _shown(
    shapes: Sequence[tuple[int, ...]], letters: Sequence[Sequence[str | None]]
) -> list[Shown]:
    named = letters or [(None,) * len(shape) for shape in shapes]
    both = (
        ([t or str(n) for n, t in zip(shape, terms, strict=True)], map(str, shape))
        for shape, terms in zip(shapes, named, strict=True)
    )
    return [(f"[{', '.join(terms)}]", f"[{', '.join(sizes)}]") for terms, sizes in both]


def _counted(shapes: list[Shown], which: int) -> str:
    """Write shapes in letters (0) or in numbers (1), those that come again with ×."""
    times = {shape: shapes.count(shape) for shape in shapes}
    return "; ".join(shape[which] + (f" ×{n}" if n > 1 else "") for shape, n in times.items())


# ---- by formulas


def _forward_grid(table: ForwardTable) -> Grid:
    costs = ("flops", "matmul_flops", "saved", "saved_bytes")
    heads = ("part", "times", "operation", "equation", "weight", "result", *costs)
    rows: list[tuple[Cell, ...]] = [
        (part.name, part.times, *vars(step).values()) for part in table.parts for step in part.steps
    ]
    return Grid(heads=heads, rows=rows, align="<><<<<<><>")


def _forward_report(name: str, table: ForwardTable) -> Report:
    run = table.workload
    work = f"{run.batch_size} × {units.exact(run.seq_len)} tokens, {run.dtype}"
    read = (
        "by the formulas, without running a module: FLOPs are of matrix products alone, 2 for each "
        "multiply-add; saved is what the backward needs of a step that trains everything, counted "
        f"where it is first needed, with {table.attention} attention."
    )
    letters = [f"{letter}\0=\0{number}" for letter, number in table.numbers.items()]
    notes = Notes([("total", f"{units.exact(table.matmul_flops)} FLOPs"), ("read ", read)])
    parts = [Lines(partial(_part, part), most=WIDEST) for part in table.parts]
    head = [Text(name, bold, unbroken=True), Text(work, unbroken=True)]
    return [head, [_letters(letters)], *([part] for part in parts), [_narrow(notes)]]


def _part(part: ForwardPart, width: int) -> Iterator[str]:
    times = f"  ×{part.times}, each" if part.times > 1 else ""
    *first, last = wrapped(part.name, width - len(times))
    yield from map(bold, first)
    yield bold(last) + times
    for step in part.steps:
        weight = f"W {step.weight}" if step.weight else ""
        text = "  ".join(filter(None, (f"  {step.name}", step.equation, weight)))
        figure = f"{units.flops(step.flops_value):>{FLOPS}}" if step.flops_value else ""
        price = f"{step.flops}  {figure}" if figure else ""
        if len(text) + 2 + len(price) <= width:
            yield text + (f"{price:>{width - len(text)}}" if price else "")
        else:  # its gaps are kept where a line is not too long
            room = width - 2
            texts = [text[2:]] if len(text) <= width else wrapped(text, room)
            yield from (f"  {line}" for line in texts)
            prices = [price] if len(price) <= room else wrapped(price, room)
            yield from (f"{line:>{width}}" for line in prices)
        saved = f"; saves {step.saved} = {units.gib(step.saved_value)}" if step.saved else ""
        result, *more = wrapped(f"→ {step.result}{saved}", width - 8)
        yield "      " + dim(result)
        yield from ("        " + dim(line) for line in more)
