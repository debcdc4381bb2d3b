"""What the tools said of the ten settings of training beside what was measured, as tables."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from statistics import median
from typing import Any

from peer_results import off_by, short_version, table
from peer_training_reasons import difference

TRUTH = "metacount"
FIGURES = {"states": "model states", "activations": "kept activations", "peak": "peak of a step"}
SHORT = {"states": "states", "activations": "kept", "peak": "peak"}
WIDTH = 100


@dataclass(frozen=True, kw_only=True)
class Said:
    """One figure of one tool beside the measured one."""

    tool: str
    setting: str
    value: int
    truth: int

    @property
    def far(self) -> float:
        """How far from measured, as a share."""
        return abs(self.value - self.truth) / self.truth

    @property
    def text(self) -> str:
        """The difference in percent."""
        return off_by(self.value, self.truth)


def truths(data: dict[str, Any]) -> dict[str, dict[str, int]]:
    """What was measured of each setting."""
    return {run["setting"]: run["figures"] for run in data["runs"] if run["tool"] == TRUTH}


def said_of(data: dict[str, Any], name: str) -> dict[tuple[str, str], Said]:
    """What each tool said of one figure, where it was measured."""
    measured = truths(data)
    return {
        (run["tool"], run["setting"]): Said(
            tool=run["tool"],
            setting=run["setting"],
            value=run["figures"][name],
            truth=measured[run["setting"]][name],
        )
        for run in data["runs"]
        if name in run["figures"] and name in measured[run["setting"]]
    }


def tools_of(data: dict[str, Any]) -> list[str]:
    """The tools that were asked, metacount apart."""
    return [tool for tool in dict.fromkeys(run["tool"] for run in data["runs"]) if tool != TRUTH]


def summary_lines(data: dict[str, Any]) -> list[str]:
    """Of how many settings a tool says what, and how far it is off: docs/other-tools.md has it."""
    heads = ["tool", "says", *(word for name in FIGURES for word in (SHORT[name], "worst"))]
    rows = []
    for tool in tools_of(data):
        runs = [run for run in data["runs"] if run["tool"] == tool]
        given = sum(bool(run["figures"]) for run in runs)
        row = [named(data, tool), f"{given} of {len(runs)}"]
        for name in FIGURES:
            found = [each for (by, _), each in said_of(data, name).items() if by == tool]
            exact = sum(each.value == each.truth for each in found)
            row.append(f"{exact} of {len(found)}" if found else "-")
            row.append(max(found, key=lambda each: each.far).text if found else "-")
        rows.append(row)
    return table(heads, rows)


def cost_lines(data: dict[str, Any]) -> list[str]:
    """What a setting takes each tool, where it says something."""
    rows = []
    for tool in [TRUTH, *tools_of(data)]:
        runs = [run for run in data["runs"] if run["tool"] == tool and run["figures"]]
        if runs:
            seconds = median(run["cpu_seconds"] for run in runs)
            mib = median(run["peak_bytes"] for run in runs) / 2**20
            rows.append((named(data, tool), f"{seconds:.2f}", f"{mib:.0f}"))
    return table(("median of a setting", "CPU s", "MiB"), rows)


def named(data: dict[str, Any], tool: str) -> str:
    """A tool with its version, where it has one."""
    version = data["versions"].get("torch" if tool == "torch tracker" else tool)
    return f"{tool} {short_version(version)}" if version else tool


def settings_lines(data: dict[str, Any]) -> list[str]:
    """The ten settings, one a line."""
    rows = []
    for each in data["settings"]:
        degrees = [f"{name}={each[name]}" for name in ("dp", "tp", "pp", "ep") if each[name] > 1]
        rows.append(
            (
                f"{each['name']:>2} {each['model']}",
                f"{','.join(degrees)}, ZeRO {each['zero']}" if degrees else "one device",
                "bf16, fp32 kept" if each["master"] else each["dtype"],
                each["attention"],
                each["checkpointing"],
                str(each["seq"]),
            )
        )
    heads = ("setting", "ranks", "types", "attention", "checkpointing", "tokens")
    return [*table(heads, rows), "fp32 kept: weights, gradients and what the optimizer keeps"]


def figure_lines(data: dict[str, Any], name: str) -> list[str]:
    """One figure: a line a setting, a column a tool that gives it."""
    said, measured = said_of(data, name), truths(data)
    tools = [tool for tool in tools_of(data) if any(by == tool for by, _ in said)]
    rows = [
        (
            f"{each['name']:>2} {each['model']}",
            f"{measured[each['name']][name]:,}",
            *(_cell(said.get((tool, each["name"]))) for tool in tools),
        )
        for each in data["settings"]
        if name in measured[each["name"]]
    ]
    return table((FIGURES[name], "measured bytes", *tools), rows)


def _cell(said: Said | None) -> str:
    return "-" if said is None else said.text


def reason_lines(data: dict[str, Any]) -> list[str]:
    """Where each difference comes from, in bytes."""
    settings = {each["name"]: each for each in data["settings"]}
    figures = {(run["tool"], run["setting"]): run["figures"] for run in data["runs"]}
    lines = []
    for name, title in FIGURES.items():
        for (tool, number), said in said_of(data, name).items():
            if tool == TRUTH or said.value == said.truth:
                continue
            parts = difference(
                tool, name, settings[number], figures[TRUTH, number], figures[tool, number]
            )
            lines.append(f"{title}, {number} {settings[number]['model']}, {tool}: {said.text}")
            lines += [f"{n_bytes:>+24,} {text}" for n_bytes, text in parts]
    return lines


def silent_lines(data: dict[str, Any]) -> list[str]:
    """Why a tool says nothing of a setting."""
    found: dict[tuple[str, str], list[str]] = {}
    for run in data["runs"]:
        why = run["cannot"] or run["error"]
        if why:
            found.setdefault((run["tool"], why), []).append(run["setting"])
    return [_wrapped(f"{tool}, {', '.join(of)}: {why}") for (tool, why), of in found.items()]


def _wrapped(text: str) -> str:
    lines = textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_long_words=False)
    return "\n".join(lines)


def text_of(data: dict[str, Any]) -> str:
    """The settings, the summary, a table for each figure, where differences come from, reasons."""
    parts = [settings_lines(data), summary_lines(data)]
    parts += [figure_lines(data, name) for name in FIGURES]
    parts += [reason_lines(data), silent_lines(data), cost_lines(data)]
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"
