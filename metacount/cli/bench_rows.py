"""Benchmarks as text: what would run, rows as they come and what they mean."""

from __future__ import annotations

from metacount import units
from metacount.bench.rows import BACKWARD, DIRECTIONS, FORWARD, OK, TOO_BUSY, Ceiling, Row
from metacount.cli.report import DASH, WIDEST_TEXT, Block, Grid, Notes, Report, Text, bold, in_text

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from metacount.bench.case import Case
    from metacount.bench.grid import Rates
    from metacount.files import Json


TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))

LAUNCHES = {
    "eager": "each call launched from Python",
    "graph": "each call replayed as a CUDA graph",
}


def case_report(rows: Sequence[Row]) -> Report:
    """Report the case, two tables or three, then what concerns single rows and those not timed."""
    sections = [_title(rows[0].to_dict())]
    timed = sorted((row for row in rows if row.status == OK), key=_order)
    launches, directions = {row.launch for row in timed}, {row.direction for row in timed}
    for columns, drops, shown in (
        (TIMES, ("p20 - p80", "95 %"), timed),
        (ROOF, ("by ops", "copy", "moved"), timed),
        (POWER, (), [row for row in timed if row.power_w]),
    ):
        # without columns that say nothing: of few rounds there are no intervals
        cells = {head: cell for head, cell in columns.items() if any(map(cell, shown))}
        table = [
            (row.variant, _how(row, launches, directions), *(cell(row) for cell in cells.values()))
            for row in shown
        ]
        align = "<<" + "".join("<" if head in ("", "bound") else ">" for head in cells)
        heads = ("variant", "state", *cells)
        if shown:
            sections.append([Grid(heads=heads, rows=table, align=align, drops=drops)])
    sections[-1] += [*_remarks(timed, launches, directions), *_not_timed(rows)]
    return sections


def _not_timed(rows: Sequence[Row]) -> Iterator[Block]:
    names: dict[str, list[str]] = {}  # by reason
    for row in rows:
        if row.status != OK:
            direction = "" if row.direction == FORWARD else row.direction
            state = row.state if row.status == TOO_BUSY else ""
            name = " ".join(filter(None, (row.variant, direction, state)))
            names.setdefault(f"{row.status}: {row.reason}", []).append(name)
    for reason, several in names.items():
        every = len(several) == len(rows) > 1
        if every or len(several) == 1:
            yield Notes([("all" if every else several[0], reason)])
        else:
            yield Text(reason, unbroken=True)
            yield Notes([("", ", ".join(several))])


def _order(row: Row) -> tuple[int, bool, bool]:
    return DIRECTIONS.index(row.direction), row.state != "hot", row.launch != "graph"


def _how(row: Row, launches: set[str], directions: set[str]) -> str:
    words = [row.state]
    if len(launches) > 1:
        words.append(row.launch)
    if len(directions) > 1:
        words.append(SHORT[row.direction])
    return " ".join(words)


SHORT = {"forward": "fwd", "backward": "bwd", "forward+backward": "fwd+bwd"}


def _remarks(rows: Sequence[Row], launches: set[str], directions: set[str]) -> Iterator[Block]:
    if len(launches) == 1:
        yield Text(LAUNCHES[rows[0].launch], unbroken=True)
    if BACKWARD in directions:
        less = "bwd: forward and backward (fwd+bwd) less the forward of the same round"
        yield Text(less, unbroken=True)
    elif rows and directions != {FORWARD}:
        yield Text(", ".join(sorted(directions)), unbroken=True)
    kernels = {row.variant: ", ".join(kernels_of(row)) for row in rows}
    yield Notes((name, f"ran {some}" if some else "") for name, some in kernels.items())
    notes = {(row.variant, row.note or ""): None for row in rows if row.direction == FORWARD}
    yield Notes(notes)
    counted = {row.variant: row.counted_on for row in rows if row.counted_on}
    yield Notes((n, f"FLOPs counted on {on} of the same shapes") for n, on in counted.items())


def kernels_of(row: Row) -> list[str]:
    """Name torch's attention kernels that ran, by the operators that were counted."""
    start = "aten._scaled_dot_product_"
    return [name.removeprefix(start) for name in row.operators or () if name.startswith(start)]


def _share(share: float | None) -> str:
    return DASH if share is None else f"{share * 100:.0f} %"


def _unit(seconds: float) -> tuple[float, str]:
    return next((unit for unit in TIME_UNITS if seconds >= unit[0]), TIME_UNITS[-1])


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


def _times(row: Row, *seconds: float | None) -> str:
    scale, _ = _unit(row.median_s or 0.0)
    return " - ".join(figure((n or 0.0) / scale) for n in seconds)


def _interval(row: Row) -> str:
    if row.ratio_low is None or row.ratio_high is None or row.variant == row.baseline:
        return ""
    return f"{row.ratio_low:.3f} - {row.ratio_high:.3f}"


def _of_products(row: Row, text: str, otherwise: str = DASH) -> str:
    return text if row.needed_flops != 0 else otherwise


def _bytes(n: int | None) -> str:
    return DASH if n is None else units.gib(n)


def _joules(row: Row) -> str:
    joules = row.joules_per_call or 0.0
    return f"{figure(joules)} J" if joules >= 1 else f"{figure(1e3 * joules)} mJ"


# what is said of a timed row, table by table: the head of a column, and its cell
Cells = dict[str, "Callable[[Row], str]"]
TIMES: Cells = {
    "median": lambda row: f"{_times(row, row.median_s)} {_unit(row.median_s or 0.0)[1]}",
    "p20 - p80": lambda row: _times(row, row.p20_s, row.p80_s),
    "memory": lambda row: _bytes(row.peak_bytes),
    "ratio": lambda row: DASH if row.ratio is None else f"{row.ratio:.2f}",
    "95 %": _interval,
    "": lambda row: "~" if row.within_noise and row.variant != row.baseline else "",
}
ROOF: Cells = {
    "TFLOP/s": lambda row: _of_products(row, figure(row.tflops_per_s or 0.0)),
    "ceiling": lambda row: _of_products(row, _share(row.ceiling_share)),
    "moved": lambda row: _bytes(row.moved_bytes),
    "copy": lambda row: _share(row.copy_share),
    "roof": lambda row: _share(row.roof_share),
    "FLOP/B": lambda row: _of_products(row, figure(row.intensity or 0.0), "0"),
    "bound": lambda row: row.bound or DASH,
    "by ops": lambda row: _bytes(row.operator_bytes),
}
POWER: Cells = {
    "clock": lambda row: f"{row.clock_mhz} MHz",
    "lowest": lambda row: f"{row.clock_min_mhz} MHz",
    "power": lambda row: f"{row.power_w:.0f} W",
    "per call": _joules,
    "degrees": lambda row: f"{row.temperature_c}",
}
LEGEND = {
    "median": "of all samples; beside it the times below which 20 and 80 % of them lie; every "
    "variant had one turn in each round, in an order drawn anew",
    "state": "hot: caches as the call before left them, input sets in rotation; cold: other data "
    "read through the caches before every call; the weights are the same in every call, so that "
    "small ones stay in a cache when hot",
    "memory": "weights and inputs that are used, and the most that the call itself held",
    "ratio": "time over that of the baseline (the row of 1.00), the median over rounds in which "
    "both took their turn, with the interval in which it lies with 95 % confidence; ~ where that "
    "holds 1 (for fewer than six rounds, where the rounds' ratios lie on both sides of it)",
    "TFLOP/s": "of the FLOPs that are needed (a causal mask's hidden pairs and padding are not), "
    "and their share of the ceiling, the best matrix product of this run",
    "moved": "bytes that must move: used weights, input, output and KV cache, once each; as a "
    "share of the copy of this run, read and write counted; above 100 % where they lay in a cache",
    "roof": "the longer of computing the needed FLOPs at the ceiling and moving these bytes at the "
    "faster of copy and reading, as a share of the time",
    "FLOP/B": "needed FLOPs per byte that must move; memory is the bound where it is below "
    "ceiling / copy",
    "by ops": "bytes of the tensors that the operators are given and make, each for itself, "
    "nothing fused (where the line has room; in --json operator_bytes)",
}


def written(report: Report) -> str:
    """Write a part of what is printed piece by piece, with an empty line after it."""
    text = in_text(report)
    return f"{text}\n" if text else ""


def where_text(environment: Json) -> str:
    """Write the device, the versions, and a warning where something else is running."""
    warned = environment.get("other_load") or ""
    return written([[_where(environment)], [Notes([("warning", warned)])]])


def case_text(rows: Sequence[Row], new_roofs: dict[str, Ceiling], environment: Json) -> str:
    """Write the roofs that were measured for this case, and its tables."""
    return written([[_roofs(new_roofs, environment)], *(case_report(rows) if rows else [])])


def end_text(rows: Sequence[Row], ceilings: dict[str, Ceiling], printed: str) -> str:
    """Write how far the roofs moved, and what the columns mean that were printed."""
    drifts = [
        (f"ceiling {dtype}", f"{roof.drift * 100:+.1f} % from the beginning to the end")
        for dtype, roof in ceilings.items()
        if roof.drift is not None and not roof.held_up
    ]
    is_timed = any(row.status == OK for row in rows)
    words = f"{printed} ".replace("\n", " ")
    legend = [(name, text) for name, text in LEGEND.items() if is_timed and f" {name} " in words]
    return in_text([[Notes(drifts)], [Notes(legend, pad=7)]])


def _where(environment: Json) -> Text:
    words = [environment["device"]]
    if environment["threads"] is not None:
        words.append(
            "1 thread" if environment["threads"] == 1 else f"{environment['threads']} threads"
        )
    if environment["driver"] is not None:
        words.append(f"driver {environment['driver']}")
    if environment["load_average"] is not None and environment["kind"] == "cpu":
        words.append(f"load average {environment['load_average']} at the start")
    words += [f"torch {environment['torch']}", environment["date"]]
    if environment["commit"] is not None:
        commit, *changed = environment["commit"].split("+")
        words.append(f"commit {commit[:10]}{' and changes' if changed else ''}")
    return Text(", ".join(words), most=WIDEST_TEXT)


def _roofs(ceilings: dict[str, Ceiling], environment: Json) -> Notes:
    notes = []
    peaks = environment["stated_peaks"] or {}
    for dtype, roof in ceilings.items():
        if roof.held_up:
            share = f"{100 * (roof.core_share or 0):.0f} % of a core"
            text = f"not measured: this process had {share}, so that shares would mean nothing"
            notes.append((f"ceiling {dtype}", text))
            continue
        n, k, m = roof.shape
        text = (
            f"{figure(roof.flops_per_s / 1e12)} TFLOP/s ([{n}, {k}] @ [{k}, {m}]), copy "
            f"{figure(roof.bytes_per_s / 1e9)} GB/s, ridge at {figure(roof.ridge)} FLOP/B"
        )
        if roof.read_bytes_per_s is not None:
            text += f", reading {figure(roof.read_bytes_per_s / 1e9)} GB/s"
        if roof.blas_library is not None:
            text += f", by {roof.blas_library}"
        if f"{dtype}_tflops" in peaks:
            text += (
                f"; the vendor states {peaks[f'{dtype}_tflops']} TFLOP/s dense and "
                f"{peaks['memory_tbytes_per_s']} TB/s"
            )
        notes.append((f"ceiling {dtype}", text))
    return Notes(notes)


def cases_report(cases: Sequence[Case]) -> Report:
    """Report what would run: a row for each case, then the variants."""
    rows = [(case.model, _named(case.workload), case.dtype) for case in cases]
    variants = dict.fromkeys(name for case in cases for name in case.variants)
    grid = Grid(heads=("model", "workload", "dtype"), rows=rows, align="<<<")
    return [[grid], [Notes([("variants", ", ".join(variants))])]]


def cases_data(cases: Sequence[Case]) -> list[Json]:
    """Convert the cases that would run to plain data."""
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


PLAN_HEADS = ("variant", "FLOPs", "moved", "one call", "measuring", "")
PLAN_NOTE = (
    "One call is estimated at 70 % of the roof, measuring with all that is done with a variant: "
    "checked, compiled, timed in every launch and state. Nothing was run."
)


def plan_report(plans: Sequence[Json], rates: Mapping[str, Rates]) -> Report:
    """Report the rates that a plan is estimated by, a table for each case, and the sum."""
    by = Notes(
        (
            f"estimated by, {dtype}",
            f"{rate.flops_per_s / 1e12:.4g} TFLOP/s, {rate.bytes_per_s / 1e9:,.0f} GB/s "
            f"({rate.source})",
        )
        for dtype, rate in rates.items()
    )
    total = sum(plan["seconds"] for plan in plans)
    many = sum(len(plan["variants"]) for plan in plans)
    text = f"{len(plans)} cases, {many} variants: about {_time(total)}"
    last = [Text(text, unbroken=True), Text(PLAN_NOTE, most=WIDEST_TEXT)]
    return [[by], *map(_case_plan, plans), last]


def _case_plan(plan: Json) -> list[Block]:
    rows = [
        (
            v["name"] if v["direction"] == FORWARD else f"{v['name']}, {v['direction']}",
            units.flops(v["needed_flops"]),
            units.gib(v["moved_bytes"]),
            DASH if v["missing"] else _time(v["call_s"]),
            DASH if v["missing"] else _time(v["measuring_s"]),
            v["missing"] or "",
        )
        for v in plan["variants"]
    ]
    inputs = ", ".join(map(str, plan["inputs"]))
    memory = f"about {units.gib(plan['needs_bytes'])}, one variant at a time"
    notes = Notes([("inputs", inputs), ("memory", memory)])
    return [*_title(plan), notes, Grid(heads=PLAN_HEADS, rows=rows, align="<>>>><")]


def _title(case: Json) -> list[Block]:
    title = f"{case['topic']} {case['model']}, {_named(case['workload'])}, {case['dtype']}"
    sizes = _named(case["sizes"])
    return [Text(title, bold, most=WIDEST_TEXT), Text(sizes, most=WIDEST_TEXT)]


def _named(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _time(seconds: float) -> str:
    if seconds >= 120:
        return f"{seconds / 60:.0f} min"
    scale, unit = _unit(seconds)
    return f"{seconds / scale:.3g} {unit}"
