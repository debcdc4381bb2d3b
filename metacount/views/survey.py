"""The survey as a table with its shortfalls, as data, and its progress on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from metacount import units
from metacount.many.survey import SURVEYED, SurveyRow
from metacount.views.layout import bold, columns, paragraph, table, width_of

if TYPE_CHECKING:
    from metacount.files import Json

DASH = "-"
HEADS = (
    "type",
    "kind",
    "class",
    "params",
    "active",
    "prefill",
    "decode",
    "kv cache",
    "state",
    "backward",
    "kept",
    "",
)

ALIGN = "<<<>>>>>>>><"
LEFT_OUT = tuple(map(HEADS.index, ("class", "state", "decode", "kv cache", "active", "prefill")))
TRAINED = tuple(map(HEADS.index, ("backward", "kept")))


def survey_text(rows: Sequence[SurveyRow], interrupted: str = "") -> str:
    """Write one line per type, then every note on what falls short, then the sums.

    `interrupted` says how far it came, where it did not come to the end.
    """
    if not rows:
        return ""
    body = [_cells(row) for row in rows]
    trained = any(row.backward_matmul_flops is not None for row in rows)
    asked = [i for i in range(len(HEADS)) if trained or i not in TRAINED]
    kept = _fitting(body, asked)
    shown = [[row[i] for i in kept] for row in body]
    parts = [table([HEADS[i] for i in kept], shown, "".join(ALIGN[i] for i in kept))]
    left = [HEADS[i] for i in asked if i not in kept]
    if left:
        said = f"with more width, or --json: {', '.join(left)}"
        parts.append(paragraph("columns", said, columns()))
    short = [row for row in rows if row.shortfall]
    if short:
        lines = [bold(f"{len(short)} of {len(rows)} fall short")]
        for row in short:
            lines += paragraph(f"{row.model_type} ({row.kind})", row.shortfall, columns())
        parts.append(lines)
    parts.append(_sums(rows))
    run = SURVEYED
    note = (
        f"prefill of {run.batch_size} × {run.seq_len} tokens, decode of one more, cache and "
        f"recurrent state after them, in {run.dtype}; FLOPs are matrix products, 2 per "
        "multiply-add; each class is built from its default config, on the meta device"
    )
    if trained:
        note += "; backward and what it keeps of a training step, with attention written out"
    parts.append(paragraph("figures", note, columns()))
    if interrupted:
        parts.append([bold(interrupted)])
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _fitting(body: Sequence[Sequence[str]], asked: list[int]) -> list[int]:
    """Choose the columns that fit the width; what is left out first can be done without best."""
    kept = list(asked)
    for gone in LEFT_OUT:
        heads, rows = [HEADS[i] for i in kept], [[row[i] for i in kept] for row in body]
        if width_of(heads, rows) <= columns():
            break
        kept.remove(gone)
    return kept


def _cells(row: SurveyRow) -> tuple[str, ...]:
    return (
        row.model_type,
        row.kind,
        row.class_name or DASH,
        _or_dash(row.params, units.exact),
        _or_dash(row.active_params, units.exact),
        _or_dash(row.matmul_flops, units.flops),
        _or_dash(row.decode_matmul_flops, units.flops),
        _or_dash(row.kv_cache_bytes, units.gib),
        _or_dash(row.state_bytes, units.gib),
        _or_dash(row.backward_matmul_flops, units.flops),
        _or_dash(row.activation_bytes, units.gib),
        "falls short" if row.shortfall else "",
    )


def _or_dash(value: int | None, shown: Callable[[int], str]) -> str:
    return DASH if value is None else shown(value)


def _sums(rows: Sequence[SurveyRow]) -> list[str]:
    """Write per kind how many types there are, and how many of them give what."""
    lines = []
    for kind in dict.fromkeys(row.kind for row in rows):
        mine = [row for row in rows if row.kind == kind]
        counts = (
            len(mine),
            sum(row.builds for row in mine),
            sum(row.active_params is not None for row in mine),
            sum(not row.shortfall for row in mine),
        )
        lines.append((kind, *map(str, counts)))
    heads = ("kind", "types", "build", "params and active", "nothing missing")
    return table(heads, lines, "<>>>>")


def survey_data(rows: Sequence[SurveyRow]) -> list[Json]:
    """Convert the rows to plain data."""
    return [row.to_dict() for row in rows]


@contextmanager
def progress_bar() -> Iterator[Callable[[int, int, SurveyRow], None]]:
    """Show a bar on stderr until the block ends; give what it yields to `survey` as `progress`."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    shown = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    console = Console(stderr=True)
    with Progress(*shown, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=None)

        def update(done: int, total: int, row: SurveyRow) -> None:
            bar.update(task, completed=done, total=total, description=row.model_type)

        yield update
