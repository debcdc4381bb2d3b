"""The tables of one benchmarked case: its times, what they mean beside the roof, and remarks."""

from __future__ import annotations

from metacount import units
from metacount.bench.rows import BACKWARD, DIRECTIONS, FORWARD, OK
from metacount.views.layout import WIDEST_TEXT, bold, columns, paragraph, table, width_of, wrapped

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from metacount.bench.rows import Row

DASH = "-"
TIME_HEADS = ("variant", "state", "median", "p20 - p80", "memory", "ratio", "95 %", "")
TIME_DROPS = ("p20 - p80", "95 %")  # where the line has no room for them, in this order
ROOF_HEADS = (
    "variant",
    "state",
    "TFLOP/s",
    "ceiling",
    "moved",
    "copy",
    "roof",
    "FLOP/B",
    "bound",
    "by ops",
)
ROOF_DROPS = ("by ops", "copy", "moved")
POWER_HEADS = (
    "variant",
    "state",
    "clock",
    "lowest",
    "power",
    "per call",
    "degrees",
    "held back by",
)
TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))

LAUNCHES = {
    "eager": "each call launched from Python",
    "graph": "each call replayed as a CUDA graph",
}


def case_lines(rows: Sequence[Row]) -> list[str]:
    """Write the case, two tables or three, then what concerns single rows and those not timed."""
    first = rows[0]
    sizes = ", ".join(f"{name} {size}" for name, size in first.sizes.items())
    work = ", ".join(f"{name} {value}" for name, value in first.workload.items())
    title = f"{first.topic} {first.model}, {work}, {first.dtype}"
    width = min(columns(), WIDEST_TEXT)
    lines = [*map(bold, wrapped(title, width)), *wrapped(sizes, width)]
    timed = sorted((row for row in rows if row.status == OK), key=_order)
    if timed:
        launches, directions = {row.launch for row in timed}, {row.direction for row in timed}
        hows = [_how(row, launches, directions) for row in timed]
        times = [_times(row, how) for row, how in zip(timed, hows, strict=True)]
        lines += ["", *_fitting(TIME_HEADS, times, "<<>>>>><", TIME_DROPS)]
        roofs = [_beside_roof(row, how) for row, how in zip(timed, hows, strict=True)]
        lines += ["", *_fitting(ROOF_HEADS, roofs, "<<>>>>>><>", ROOF_DROPS)]
        watched = [_watched(row, how) for row, how in zip(timed, hows, strict=True) if row.power_w]
        if watched:
            lines += ["", *_fitting(POWER_HEADS, watched, "<<>>>>><", ())]
        lines += _remarks(timed, launches, directions)
    for row in rows:
        if row.status != OK:
            name = row.variant if row.direction == FORWARD else f"{row.variant}, {row.direction}"
            lines += paragraph(name, f"{row.status}: {row.reason}", columns())
    return lines


def _order(row: Row) -> tuple[int, bool, bool]:
    return DIRECTIONS.index(row.direction), row.state != "hot", row.launch != "graph"


def _how(row: Row, launches: set[str], directions: set[str]) -> str:
    """Say the state of a row, and the launch and direction where there are several."""
    said = [row.state]
    if len(launches) > 1:
        said.append(row.launch)
    if len(directions) > 1:
        said.append(SHORT[row.direction])
    return " ".join(said)


SHORT = {"forward": "fwd", "backward": "bwd", "forward+backward": "fwd+bwd"}


def _remarks(rows: Sequence[Row], launches: set[str], directions: set[str]) -> list[str]:
    """Write what concerns single rows, said once each."""
    lines: list[str] = []
    if len(launches) == 1:
        lines += [LAUNCHES[rows[0].launch]]
    if BACKWARD in directions:
        lines += ["bwd: forward and backward (fwd+bwd) less the forward of the same round"]
    elif directions != {FORWARD}:
        lines += [", ".join(sorted(directions))]
    for name, kernels in {row.variant: kernels_of(row) for row in rows}.items():
        if kernels:
            lines += paragraph(name, f"ran {', '.join(kernels)}", columns())
    notes = {(row.variant, row.note): None for row in rows if row.note and row.direction == FORWARD}
    for name, note in notes:
        lines += paragraph(name, str(note), columns())
    counted = {row.variant: row.counted_on for row in rows if row.counted_on}
    for name, on in counted.items():
        lines += paragraph(name, f"FLOPs counted on {on} of the same shapes", columns())
    for row in rows:
        if row.equal_time_d_ff is not None and row.equal_time_low and row.equal_time_high:
            text = (
                f"GELU's time at a width of {row.equal_time_d_ff:,.0f} "
                f"({row.equal_time_low:,.0f} - {row.equal_time_high:,.0f}), "
                f"{row.equal_time_d_ff / row.sizes['d_model']:.2f}·d; equal parameters at "
                f"{row.sizes['swiglu_d_ff']:,}"
            )
            lines += paragraph(f"swiglu, {row.state}, {row.launch}", text, columns())
    return lines


def kernels_of(row: Row) -> list[str]:
    """Name torch's attention kernels that ran, by the operators that were counted."""
    start = "aten._scaled_dot_product_"
    return [name.removeprefix(start) for name in row.operators or () if name.startswith(start)]


def _times(row: Row, how: str) -> tuple[str, ...]:
    assert row.median_s is not None and row.p20_s is not None and row.p80_s is not None
    scale, unit = _unit(row.median_s)
    ratio = DASH if row.ratio is None else f"{row.ratio:.2f}"
    interval = ""
    if row.ratio_low is not None and row.ratio_high is not None and row.variant != row.baseline:
        interval = f"{row.ratio_low:.3f} - {row.ratio_high:.3f}"
    return (
        row.variant,
        how,
        f"{figure(row.median_s / scale)} {unit}",
        f"{figure(row.p20_s / scale)} - {figure(row.p80_s / scale)}",
        DASH if row.peak_bytes is None else units.gib(row.peak_bytes),
        ratio,
        interval,
        "~" if row.within_noise and row.variant != row.baseline else "",
    )


def _beside_roof(row: Row, how: str) -> tuple[str, ...]:
    assert row.tflops_per_s is not None
    assert row.moved_bytes is not None and row.intensity is not None
    products = row.needed_flops != 0
    return (
        row.variant,
        how,
        figure(row.tflops_per_s) if products else DASH,
        _share(row.ceiling_share) if products else DASH,
        units.gib(row.moved_bytes),
        _share(row.copy_share),
        _share(row.roof_share),
        figure(row.intensity) if products else "0",
        row.bound or DASH,
        DASH if row.operator_bytes is None else units.gib(row.operator_bytes),
    )


def _watched(row: Row, how: str) -> tuple[str, ...]:
    joules = row.joules_per_call or 0.0
    return (
        row.variant,
        how,
        f"{row.clock_mhz} MHz",
        f"{row.clock_min_mhz} MHz",
        f"{row.power_w:.0f} W",
        f"{figure(joules)} J" if joules >= 1 else f"{figure(1e3 * joules)} mJ",
        f"{row.temperature_c}",
        row.throttled or DASH,
    )


def _share(share: float | None) -> str:
    return DASH if share is None else f"{share * 100:.0f} %"


def _fitting(
    heads: Sequence[str], body: Sequence[Sequence[str]], align: str, drops: Sequence[str]
) -> list[str]:
    """Write all columns where they fit; those of `drops` are left out one after the other."""
    kept = list(range(len(heads)))
    for name in (None, *drops):
        kept = [i for i in kept if heads[i] != name]
        rows = [[row[i] for i in kept] for row in body]
        shown = [heads[i] for i in kept]
        if width_of(shown, rows) <= columns():
            break
    return table(shown, rows, "".join(align[i] for i in kept))


def _unit(seconds: float) -> tuple[float, str]:
    return next((found for found in TIME_UNITS if seconds >= found[0]), TIME_UNITS[-1])


def figure(x: float) -> str:
    """Format a number with three significant digits, a whole one from 100, without an exponent.

    >>> [figure(x) for x in (0.01234, 1.2345, 12.345, 123.45, 12345.6)]
    ['0.0123', '1.23', '12.3', '123', '12,346']
    """
    if x >= 100:
        return f"{x:,.0f}"
    if x >= 1:
        return f"{x:.2f}" if x < 9.995 else f"{x:.1f}"
    return f"{x:.3g}" if x >= 1e-4 else f"{x:.6f}"
