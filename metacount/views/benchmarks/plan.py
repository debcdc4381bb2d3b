"""What a benchmark would run, and about how long: shapes, FLOPs, bytes, seconds."""

from __future__ import annotations

from metacount import units
from metacount.views.layout import WIDEST_TEXT, bold, columns, paragraph, table, wrapped

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from metacount.bench.session import CasePlan, Rates
    from metacount.files import Json

HEADS = ("variant", "FLOPs", "moved", "one call", "measuring", "")
NOTE = (
    "One call is estimated at 70 % of the roof, measuring with all that is done with a variant: "
    "checked, compiled, timed in every launch and state. Nothing was run."
)


def plan_text(plans: Sequence[CasePlan], rates: Mapping[str, Rates]) -> str:
    """Write the rates that a plan is estimated by, a table for each case, and the sum."""
    lines: list[str] = []
    for dtype, rate in rates.items():
        text = (
            f"{rate.flops_per_s / 1e12:.4g} TFLOP/s, {rate.bytes_per_s / 1e9:,.0f} GB/s "
            f"({rate.source})"
        )
        lines += paragraph(f"estimated by, {dtype}", text, columns())
    for plan in plans:
        lines += ["", *_case(plan)]
    total = sum(plan.seconds for plan in plans)
    many = sum(len(plan.variants) for plan in plans)
    lines += ["", f"{len(plans)} cases, {many} variants: about {_time(total)}"]
    return "\n".join([*lines, *wrapped(NOTE, min(columns(), WIDEST_TEXT))]) + "\n"


def _case(plan: CasePlan) -> list[str]:
    case = plan.case
    work = ", ".join(f"{name} {value}" for name, value in case.workload.items())
    inputs = ", ".join(f"[{', '.join(map(str, shape))}]" for shape in plan.shapes)
    sizes = ", ".join(f"{name} {size}" for name, size in case.sizes.items())
    body = [
        (
            v.name if v.direction == "forward" else f"{v.name}, {v.direction}",
            units.flops(v.work.needed_flops),
            units.gib(v.work.moved_bytes),
            "-" if v.missing else _time(v.call_s),
            "-" if v.missing else _time(v.measuring_s),
            v.missing or "",
        )
        for v in plan.variants
    ]
    width = min(columns(), WIDEST_TEXT)
    return [
        *map(bold, wrapped(f"{case.topic} {case.model}, {work}, {case.dtype}", width)),
        *wrapped(sizes, width),
        *paragraph("inputs", inputs, width),
        *paragraph("memory", f"about {units.gib(case.needs_bytes)}, one variant at a time", width),
        *table(HEADS, body, "<>>>><"),
    ]


def _time(seconds: float) -> str:
    if seconds >= 120:
        return f"{seconds / 60:.0f} min"
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


def plan_data(plans: Sequence[CasePlan], rates: Mapping[str, Rates]) -> list[Json]:
    """Convert the plan of each case to plain data."""
    return [
        {
            "topic": plan.case.topic,
            "model": plan.case.model,
            "sizes": plan.case.sizes,
            "workload": plan.case.workload,
            "dtype": plan.case.dtype,
            "needs_bytes": plan.case.needs_bytes,
            "inputs": [list(shape) for shape in plan.shapes],
            "estimated_by": rates[plan.case.dtype].source,
            "seconds": plan.seconds,
            "variants": [
                {
                    "name": v.name,
                    "direction": v.direction,
                    "matmul_flops": v.work.matmul_flops,
                    "needed_flops": v.work.needed_flops,
                    "moved_bytes": v.work.moved_bytes,
                    "call_s": v.call_s,
                    "measuring_s": v.measuring_s,
                    "missing": v.missing,
                }
                for v in plan.variants
            ],
        }
        for plan in plans
    ]
