"""Benchmark rows as text: for each case its times, then what they mean beside the roof."""

from __future__ import annotations

from metacount.bench.rows import OK
from metacount.views.benchmarks.tables import case_lines, figure
from metacount.views.layout import WIDEST_TEXT, columns, paragraph, table, wrapped

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from metacount.bench.case import Case
    from metacount.bench.rows import Ceiling, Row
    from metacount.files import Json

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


def where_text(environment: Json) -> str:
    """Write the device, the versions, and a warning where something else is running."""
    warned = environment.get("other_load")
    warning = paragraph("warning", warned, columns()) if warned else []
    return _joined([_where(environment), warning])


def case_text(rows: Sequence[Row], new_roofs: dict[str, Ceiling], environment: Json) -> str:
    """Write the roofs that were measured for this case, and its tables."""
    return _joined([_roofs(new_roofs, environment), case_lines(rows) if rows else []])


def end_text(rows: Sequence[Row], ceilings: dict[str, Ceiling]) -> str:
    """Write how far the roofs moved, and what the columns mean."""
    drifts = [
        line
        for dtype, roof in ceilings.items()
        if roof.drift is not None
        for line in paragraph(
            f"ceiling {dtype}",
            f"{roof.drift * 100:+.1f} % from the beginning to the end",
            columns(),
        )
    ]
    legend = [
        line for name, text in LEGEND.items() for line in paragraph(f"{name:<7}", text, columns())
    ]
    return _joined([drifts, legend if any(row.status == OK for row in rows) else []], last=True)


def _joined(parts: Sequence[Sequence[str]], *, last: bool = False) -> str:
    """Join parts with an empty line after each; with `last`, none after the last part."""
    text = "".join("\n".join(part) + "\n\n" for part in parts if part)
    return text.removesuffix("\n") if last else text


def _where(environment: Json) -> list[str]:
    said = [environment["device"]]
    if environment["threads"] is not None:
        said.append(
            "1 thread" if environment["threads"] == 1 else f"{environment['threads']} threads"
        )
    if environment["driver"] is not None:
        said.append(f"driver {environment['driver']}")
    if environment["load_average"] is not None and environment["kind"] == "cpu":
        said.append(f"load average {environment['load_average']} at the start")
    said += [f"torch {environment['torch']}", environment["date"]]
    if environment["commit"] is not None:
        commit, *changed = environment["commit"].split("+")
        said.append(f"commit {commit[:10]}{' and changes' if changed else ''}")
    return wrapped(", ".join(said), min(columns(), WIDEST_TEXT))


def _roofs(ceilings: dict[str, Ceiling], environment: Json) -> list[str]:
    lines = []
    peaks = environment["stated_peaks"] or {}
    for dtype, roof in ceilings.items():
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
        lines += paragraph(f"ceiling {dtype}", text, columns())
    return lines


def cases_text(cases: Sequence[Case]) -> str:
    """Write what would run: a line for each case, then the variants."""
    body = [
        (case.model, ", ".join(f"{k} {v}" for k, v in case.workload.items()), case.dtype)
        for case in cases
    ]
    variants = dict.fromkeys(name for case in cases for name in case.variants)
    lines = table(("model", "workload", "dtype"), body, "<<<")
    return "\n".join([*lines, "", *paragraph("variants", ", ".join(variants), columns())]) + "\n"


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
