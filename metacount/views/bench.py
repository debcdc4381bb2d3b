"""Benchmark rows as text: for each case its times, then what they mean beside the roof."""

from __future__ import annotations

from itertools import groupby

from metacount import units
from metacount.bench.rows import OK
from metacount.views.layout import WIDEST_TEXT, bold, columns, paragraph, table, width_of, wrapped

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from metacount.bench.layers.case import Case
    from metacount.bench.rows import Ceiling, Row

DASH = "-"
TIME_HEADS = ("variant", "state", "median", "p20 - p80", "memory", "ratio", "")
ROOF_HEADS = (
    "variant",
    "state",
    "TFLOP/s",
    "ceiling",
    "moved",
    "copy",
    "FLOP/B",
    "bound",
    "by ops",
)
TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))

LAUNCHES = {
    "eager": "each call launched from Python",
    "graph": "each call replayed as a CUDA graph",
}

LEGEND = {
    "median": "of all samples of two passes, other variants in between; beside it the times below "
    "which 20 and 80 % of them lie",
    "state": "hot: caches as the call before left them, input sets in rotation; cold: flushed "
    "before every call",
    "memory": "weights and inputs that are used, and the most that the forward itself held",
    "ratio": "time over that of the first variant; ~ is within noise: timing the same variant "
    "twice differs by as much, or the ranges p20 - p80 overlap",
    "TFLOP/s": "of the FLOPs that are needed (a causal mask's hidden pairs and padding are not), "
    "and their share of the ceiling, the best matrix product of this run",
    "moved": "bytes that must move: used weights, input, output and KV cache, once each; as a "
    "share of the copy of this run, read and write counted; above 100 % where they lay in a cache",
    "FLOP/B": "needed FLOPs per byte that must move; memory is the bound where it is below "
    "ceiling / copy",
    "by ops": "bytes of the tensors that the operators are given and make, each for itself, "
    "nothing fused (where the line has room; in --json operator_bytes)",
}


def bench_text(
    rows: Sequence[Row], ceilings: dict[str, Ceiling], environment: dict[str, Any]
) -> str:
    """Where it was measured, the roofs, two tables for each case, and what the columns mean."""
    parts = [_where(environment), _roofs(ceilings, environment)]
    for _, group in groupby(rows, key=_case_of):
        parts.append(_case(list(group)))
    if any(row.status == OK for row in rows):
        parts.append([line for name, text in LEGEND.items()
                      for line in paragraph(f"{name:<7}", text, columns())])  # fmt: skip
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _case_of(row: Row) -> tuple[Any, ...]:
    return row.topic, row.model, tuple(row.workload.items()), row.dtype, tuple(row.sizes.items())


def _where(environment: dict[str, Any]) -> list[str]:
    said = [environment["device"]]
    if environment["threads"] is not None:
        said.append(
            "1 thread" if environment["threads"] == 1 else f"{environment['threads']} threads"
        )
    if environment["driver"] is not None:
        said.append(f"driver {environment['driver']}")
    if environment["load_average"] is not None:
        said.append(f"load average {environment['load_average']} at the start")
    said += [f"torch {environment['torch']}", environment["date"]]
    if environment["commit"] is not None:
        commit, *changed = environment["commit"].split("+")
        said.append(f"commit {commit[:10]}{' and changes' if changed else ''}")
    return wrapped(", ".join(said), min(columns(), WIDEST_TEXT))


def _roofs(ceilings: dict[str, Ceiling], environment: dict[str, Any]) -> list[str]:
    lines = []
    peaks = environment["stated_peaks"] or {}
    for dtype, roof in ceilings.items():
        n, k, m = roof.shape
        text = (
            f"{_figure(roof.flops_per_s / 1e12)} TFLOP/s ([{n}, {k}] @ [{k}, {m}]), copy "
            f"{_figure(roof.bytes_per_s / 1e9)} GB/s, ridge at {_figure(roof.ridge)} FLOP/B"
        )
        if f"{dtype}_tflops" in peaks:
            text += (
                f"; the vendor states {peaks[f'{dtype}_tflops']} TFLOP/s dense and "
                f"{peaks['memory_tbytes_per_s']} TB/s"
            )
        lines += paragraph(f"ceiling {dtype}", text, columns())
    return lines


def _case(rows: Sequence[Row]) -> list[str]:
    first = rows[0]
    sizes = ", ".join(f"{name} {size}" for name, size in first.sizes.items())
    work = ", ".join(f"{name} {value}" for name, value in first.workload.items())
    title = f"{first.topic} {first.model}, {work}, {first.dtype}"
    width = min(columns(), WIDEST_TEXT)
    lines = [*map(bold, wrapped(title, width)), *wrapped(sizes, width)]
    timed = sorted((row for row in rows if row.status == OK), key=lambda row: row.state != "hot")
    if timed:
        launches = {row.launch for row in timed}
        lines += ["", *table(TIME_HEADS, [_times(row, mixed=len(launches) > 1) for row in timed],
                             "<<>>>><")]  # fmt: skip
        lines += ["", *_roof_table([_beside_roof(row) for row in timed])]
        if len(launches) == 1:
            lines += [LAUNCHES[timed[0].launch]]
    for row in rows:
        if row.status != OK:
            lines += paragraph(row.variant, f"{row.status}: {row.reason}", columns())
    return lines


def _times(row: Row, *, mixed: bool) -> tuple[str, ...]:
    assert row.median_s is not None and row.p20_s is not None and row.p80_s is not None
    scale, unit = _unit(row.median_s)
    ratio = DASH if row.ratio is None else f"{row.ratio:.2f}"
    mark = "~" if row.within_noise and row.variant != row.baseline else ""
    note = " ".join(part for part in (mark, row.launch if mixed else "") if part)
    return (
        row.variant,
        row.state,
        f"{_figure(row.median_s / scale)} {unit}",
        f"{_figure(row.p20_s / scale)} - {_figure(row.p80_s / scale)}",
        DASH if row.peak_bytes is None else units.gib(row.peak_bytes),
        ratio,
        note,
    )


def _beside_roof(row: Row) -> tuple[str, ...]:
    assert row.tflops_per_s is not None and row.ceiling_share is not None
    assert row.copy_share is not None and row.moved_bytes is not None and row.intensity is not None
    products = row.needed_flops != 0
    return (
        row.variant,
        row.state,
        _figure(row.tflops_per_s) if products else DASH,
        f"{row.ceiling_share * 100:.0f} %" if products else DASH,
        units.gib(row.moved_bytes),
        f"{row.copy_share * 100:.0f} %",
        _figure(row.intensity) if products else "0",
        row.bound or DASH,
        DASH if row.operator_bytes is None else units.gib(row.operator_bytes),
    )


def _roof_table(body: Sequence[Sequence[str]]) -> list[str]:
    """All columns where they fit; the last one is left out first."""
    align = "<<>>>>><>"
    fits = width_of(ROOF_HEADS, body) <= columns()
    shown = len(ROOF_HEADS) if fits else len(ROOF_HEADS) - 1
    return table(ROOF_HEADS[:shown], [row[:shown] for row in body], align[:shown])


def _unit(seconds: float) -> tuple[float, str]:
    return next((found for found in TIME_UNITS if seconds >= found[0]), TIME_UNITS[-1])


def _figure(x: float) -> str:
    """Three significant digits, without an exponent.

    >>> [_figure(x) for x in (0.01234, 1.2345, 12.345, 123.45, 12345.6)]
    ['0.0123', '1.23', '12.3', '123', '12,346']
    """
    if x >= 100:
        return f"{x:,.0f}"
    if x >= 1:
        return f"{x:.2f}" if x < 9.995 else f"{x:.1f}"
    return f"{x:.3g}" if x >= 1e-4 else f"{x:.6f}"


def cases_text(cases: Sequence[Case]) -> str:
    """What would run: a line for each case, then the variants."""
    body = [
        (case.model, ", ".join(f"{k} {v}" for k, v in case.workload.items()), case.dtype)
        for case in cases
    ]
    variants = dict.fromkeys(name for case in cases for name in case.variants)
    lines = table(("model", "workload", "dtype"), body, "<<<")
    return "\n".join([*lines, "", *paragraph("variants", ", ".join(variants), columns())]) + "\n"


def cases_data(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """The same as plain data."""
    return [
        {
            "topic": case.topic,
            "model": case.model,
            "sizes": case.sizes,
            "workload": case.workload,
            "dtype": case.dtype,
            "variants": list(case.variants),
        }
        for case in cases
    ]
