"""`metacount survey`: every architecture of the installed transformers."""

from __future__ import annotations

from metacount import units
from metacount.cli.answer import Answer
from metacount.cli.progress import gathered
from metacount.cli.report import Amount, Grid, Notes, Text, bold, columns
from metacount.errors import InputError, nearest, shown

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from metacount.cli.report import Cell, Report
    from metacount.many.survey import SurveyRow

# What each column shows, shortened in this way.
COLUMNS = {
    "params": ("params", units.exact),
    "active": ("active_params", units.exact),
    "prefill": ("matmul_flops", units.flops),
    "decode": ("decode_matmul_flops", units.flops),
    "kv cache": ("kv_cache_bytes", units.gib),
    "state": ("state_bytes", units.gib),
}
DROPS = ("class", "state", "decode", "kv cache", "active", "prefill")


def run(args: argparse.Namespace) -> Answer:
    from metacount.many.survey import survey, survey_types

    known = [(kind, name) for kind, name in survey_types() if args.kind in (None, kind)]
    jobs = [job for job in known if not args.types or job[1] in args.types]
    for name in args.types:
        if name not in {name for _, name in known}:
            close = nearest(name, {name for _, name in known}, "see `metacount survey --help`")
            raise InputError(f"{shown(name)} is no model type that is surveyed; {close}")
    measured = survey(jobs, flops=not args.params_only)
    rows, code, stopped = gathered(measured, len(jobs), "measured", "types")
    rows.sort(key=lambda row: jobs.index((row.kind, row.model_type)))
    return Answer(
        report=lambda: report_of(rows, stopped),
        data=lambda: [row.to_dict() for row in rows],
        table=lambda: _table(rows),
        code=code,
    )


def _table(rows: Sequence[SurveyRow]) -> Grid:
    names = [name for name, _ in COLUMNS.values()]
    cells = [
        (r.model_type, r.kind, r.class_name, *(getattr(r, name) for name in names), r.shortfall)
        for r in rows
    ]
    heads = ("type", "kind", "class", *names, "shortfall")
    return Grid(heads=heads, rows=cells, align="<<<" + ">" * len(names) + "<")


def report_of(rows: Sequence[SurveyRow], interrupted: str = "") -> Report:
    """Report one line per type, then every note on what falls short, then the sums.

    `interrupted` says how far it came, where it did not come to the end.
    """
    from metacount.many.survey import SURVEYED as run

    if not rows:
        return []
    heads = ("type", "kind", "class", *COLUMNS, "")
    cells: list[tuple[Cell, ...]] = [
        (
            row.model_type,
            row.kind,
            row.class_name or None,
            *(Amount(getattr(row, name), how, always=True) for name, how in COLUMNS.values()),
            "falls short" if row.shortfall else "",
        )
        for row in rows
    ]
    grid = Grid(heads=heads, rows=cells, align="<<<" + ">" * len(COLUMNS) + "<", drops=DROPS)
    dropped = ", ".join(grid.dropped(columns()))
    short = [row for row in rows if row.shortfall]
    note = (
        f"prefill of {run.batch_size} × {run.seq_len} tokens, decode of one more, cache and "
        f"recurrent state after them, in {run.dtype}; FLOPs are matrix products, 2 per "
        "multiply-add; each class is built from its default config, on the meta device"
    )
    fall = Text(f"{len(short)} of {len(rows)} fall short", bold) if short else Text("")
    return [
        [grid],
        [Notes([("columns", f"with more width, or --json: {dropped}" if dropped else "")])],
        [fall, Notes((f"{row.model_type} ({row.kind})", row.shortfall) for row in short)],
        [_sums(rows)],
        [Notes([("figures", note)])],
        [Text(interrupted, bold)],
    ]


def _sums(rows: Sequence[SurveyRow]) -> Grid:
    counts: list[tuple[Cell, ...]] = []
    for kind in dict.fromkeys(row.kind for row in rows):
        mine = [row for row in rows if row.kind == kind]
        active = sum(row.active_params is not None for row in mine)
        complete = sum(not row.shortfall for row in mine)
        counts.append((kind, len(mine), sum(row.builds for row in mine), active, complete))
    heads = ("kind", "types", "build", "params and active", "nothing missing")
    return Grid(heads=heads, rows=counts, align="<>>>>")
