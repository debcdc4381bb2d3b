"""What the tools of peers.py said of the models, held against the truth, as tables."""

from __future__ import annotations

import math
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

TRUTH = "metacount verify"
# Tool: the package whose version is shown, and whether it runs transformers' module.
TOOLS = {
    "metacount count": ("metacount", False),
    TRUTH: ("metacount", False),
    "torch FlopCounterMode": ("torch", True),
    "calflops": ("calflops", True),
    "fvcore": ("fvcore", True),
    "deepspeed": ("deepspeed", True),
    "ptflops": ("ptflops", True),
    "thop": ("thop", True),
    "torchinfo": ("torchinfo", True),
    "accelerate": ("accelerate", False),
    "llm-flops": ("llm-flops", False),
}
FIGURES = ("params", "active_params", "flops", "kv_cache_bytes")


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one tool said of one model, and what it took. `figures` is empty where it failed."""

    tool: str
    model: str
    device: str
    seconds: float
    peak_bytes: int
    figures: dict[str, int] = field(default_factory=dict)
    error: str | None = None


def off_by(value: int, truth: int) -> str:
    """`exact`, or the difference in percent of the truth.

    >>> off_by(100, 100), off_by(101, 100), off_by(999_999, 1_000_000), off_by(3, 0)
    ('exact', '+1.0 %', '-0.00010 %', 'not 0')
    """
    if value == truth:
        return "exact"
    if truth == 0:
        return "not 0"
    percent = (value - truth) * 100 / truth
    # two significant digits at least, and tenths up to a hundred
    decimals = 0 if abs(percent) >= 100 else max(1, 1 - math.floor(math.log10(abs(percent))))
    return f"{percent:+,.{decimals}f} %"


def better(results: Sequence[Result], truth: dict[str, int]) -> Result:
    """Of one tool's results of one model, the one whose FLOPs, then params, are nearest."""

    def distance(result: Result) -> tuple[bool, int, int]:
        far = [abs(result.figures.get(name, 0) - truth[name]) for name in ("flops", "params")]
        return (result.error is not None, far[0], far[1])

    return min(results, key=distance)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One tool over all models. Of a figure that a tool does not give, None."""

    tool: str
    version: str
    n_models: int
    failed: int
    exact: dict[str, int | None]
    worst_flops: str
    median_seconds: float
    median_peak_mib: float


def summary(
    tool: str, version: str, results: Sequence[Result], truth: dict[str, dict[str, int]]
) -> Summary:
    """How many figures of a tool are exact, and what it took."""
    done = [result for result in results if result.error is None]
    exact: dict[str, int | None] = {}
    for name in FIGURES:
        given = [r for r in done if name in r.figures]
        exact[name] = sum(r.figures[name] == truth[r.model][name] for r in given) if given else None
    far = [
        (abs(r.figures["flops"] - t) / t, off_by(r.figures["flops"], t))
        for r in done
        if "flops" in r.figures and (t := truth[r.model]["flops"])
    ]
    return Summary(
        tool=tool,
        version=version,
        n_models=len(results),
        failed=len(results) - len(done),
        exact=exact,
        worst_flops=max(far)[1] if far else "-",
        median_seconds=round(median(r.seconds for r in results), 2),
        median_peak_mib=round(median(r.peak_bytes for r in results) / 2**20, 1),
    )


def summary_lines(summaries: Sequence[Summary]) -> list[str]:
    """One line a tool: docs/other-tools.md has this table."""
    heads = ("tool", "params", "active", "FLOPs", "worst FLOPs", "KV cache", "fails", "s", "MiB")
    rows = [
        (
            f"{s.tool} {short_version(s.version)}",
            *(_of(s.exact[name], s.n_models) for name in ("params", "active_params", "flops")),
            s.worst_flops,
            _of(s.exact["kv_cache_bytes"], s.n_models),
            str(s.failed),
            f"{s.median_seconds:.2f}",
            f"{s.median_peak_mib:.0f}",
        )
        for s in summaries
    ]
    return table(heads, rows)


def short_version(version: str) -> str:
    """Without what names a build.

    >>> short_version("2.13.0+cpu"), short_version("0.1.5.post20221221")
    ('2.13.0', '0.1.5')
    """
    return re.split(r"[+-]|\.post", version)[0]


def _of(exact: int | None, n_models: int) -> str:
    return "-" if exact is None else f"{exact} of {n_models}"


def matrix_lines(
    name: str,
    kept: dict[tuple[str, str], Result],
    truth: dict[str, dict[str, int]],
    tools: Sequence[str],
) -> list[str]:
    """One figure: a line a model, a column a tool."""
    rows = []
    for model, right in truth.items():
        cells = [_cell(kept[tool, model], name, right[name]) for tool in tools]
        rows.append((model, f"{right[name]:,}", *cells))
    return table((name, "metacount", *(tool.split()[0] for tool in tools)), rows)


def _cell(result: Result, name: str, truth: int) -> str:
    if result.error is not None:
        return "fails"
    return off_by(result.figures[name], truth) if name in result.figures else "-"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest cell, the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
    sides = "<" + ">" * (len(heads) - 1)
    return [
        "  ".join(f"{c:{s}{w}}" for c, s, w in zip(row, sides, widths, strict=True))
        for row in (heads, *rows)
    ]


def collected(
    truth: dict[str, dict[str, int]], runs: Sequence[Result], version: dict[str, str]
) -> dict[str, Any]:
    """Everything as plain data, with the summary of each tool."""
    kept = standing(truth, runs)
    summaries = [
        summary(tool, version[TOOLS[tool][0]], [kept[tool, model] for model in truth], truth)
        for tool in dict.fromkeys(run.tool for run in runs)
    ]
    return {
        "workload": {"batch_size": 1, "seq_len": 128, "dtype": "bf16"},
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "versions": version,
        "summary": [asdict(s) for s in summaries],
        "truth": truth,
        "runs": [asdict(run) for run in runs],
    }


def standing(
    truth: dict[str, dict[str, int]], runs: Sequence[Result]
) -> dict[tuple[str, str], Result]:
    """For each tool and model, the result that stands."""
    found: dict[tuple[str, str], list[Result]] = {}
    for run in runs:
        found.setdefault((run.tool, run.model), []).append(run)
    return {key: better(results, truth[key[1]]) for key, results in found.items()}


def text_of(data: dict[str, Any]) -> str:
    """The summary, a table for each figure, and what the tools said where they failed."""
    truth = data["truth"]
    kept = standing(truth, [Result(**run) for run in data["runs"]])
    parts = ["\n".join(summary_lines([Summary(**s) for s in data["summary"]]))]
    others = [s["tool"] for s in data["summary"] if not s["tool"].startswith("metacount")]
    for name in FIGURES:
        giving = [t for t in others if any(name in kept[t, m].figures for m in truth)]
        if giving:
            parts.append("\n".join(matrix_lines(name, kept, truth, giving)))
    failed: dict[tuple[str, str], list[str]] = {}
    for result in kept.values():
        if result.error is not None:
            failed.setdefault((result.tool, result.error), []).append(result.model)
    parts += [f"{tool}, {', '.join(of)}: {error}" for (tool, error), of in failed.items()]
    return "\n\n".join(parts) + "\n"
