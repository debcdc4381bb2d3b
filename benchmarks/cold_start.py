"""How long a command takes from nothing, beside what Python and torch take themselves.

python benchmarks/cold_start.py [--rounds N] [--json]

Commands that count are held against `python -c pass`, those that write formulas against
`python -c "import sympy"`, those that build modules against `python -c "import torch"`, on the
interpreter that runs this file. Runs alternate, so that a busy machine slows all alike;
a figure is the median. Exit code 1 when a command is slower or larger than its mark, or when one
that should not has imported torch.
"""

from __future__ import annotations

import argparse
import compileall
import importlib.util
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import IO

PASS = ("-c", "pass")
SYMPY = ("-c", "import sympy")
TORCH = ("-c", "import torch")

# What no command that only counts may import, and none that only writes a formula.
HEAVY = {
    PASS: ("torch", "transformers", "numpy", "sympy", "rich"),
    SYMPY: ("torch", "transformers", "numpy", "rich"),
    TORCH: (),
}

# LLaMA's parameters, right for all sizes: `check` then ends with exit code 0.
RIGHT = "2*N*d*h_d*(h + h_kv) + 3*N*d*m + 2*N*d + 2*V*d + d"


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A command, what it is held against, and how many times as long (and large) it may be."""

    command: tuple[str, ...]
    against: tuple[str, ...]
    time: float
    memory: float | None = None


MARKS = (
    Mark(command=("--help",), against=PASS, time=3.0),
    Mark(command=("count", "deepseek-v3", "--json"), against=PASS, time=3.0),
    Mark(command=("count", "deepseek-v3"), against=PASS, time=5.0),
    Mark(command=("models",), against=PASS, time=6.0),  # reads a hundred files
    Mark(command=("formula", "deepseek-v3"), against=SYMPY, time=2.0),
    Mark(command=("check", RIGHT, "llama-7b"), against=SYMPY, time=2.0),
    Mark(command=("tree", "deepseek-v3"), against=TORCH, time=1.5, memory=1.5),
    Mark(command=("verify", "deepseek-v3"), against=TORCH, time=1.5, memory=1.5),
)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One process: wall time, and the most memory it ever held."""

    seconds: float
    peak_bytes: int


@dataclass(frozen=True, kw_only=True)
class Row:
    """One command against its mark. Memory has no mark where `memory_mark` is None."""

    command: str
    against: str
    ms: float
    against_ms: float
    ratio: float
    mark: float
    peak_mib: float
    memory_ratio: float
    memory_mark: float | None
    heavy_imports: list[str]

    @property
    def holds(self) -> bool:
        """Whether the command keeps every mark."""
        small = self.memory_mark is None or self.memory_ratio <= self.memory_mark
        return self.ratio <= self.mark and small and not self.heavy_imports


def python(*arguments: str) -> list[str]:
    """A command line of this interpreter."""
    return [sys.executable, *arguments]


def metacount(*arguments: str) -> list[str]:
    """A command line of metacount: the installed script, or the module where there is none."""
    script = Path(sys.executable).parent / "metacount"
    return python(str(script) if script.exists() else "-mmetacount", *arguments)


def measured(command: list[str], output: IO[bytes] | None = None) -> Run:
    """Run `command` once, its output thrown away unless there is a file for it."""
    start = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=output or subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with exit code {process.returncode}")
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB elsewhere
    return Run(seconds=seconds, peak_bytes=usage.ru_maxrss * unit)


def heavy_imports(command: list[str], heavy: tuple[str, ...]) -> list[str]:
    """Which of the heavy libraries `command` imports."""
    traced = [command[0], "-X", "importtime", *command[1:]]
    result = subprocess.run(traced, capture_output=True, text=True, check=True)
    lines = [line for line in result.stderr.splitlines() if line.startswith("import time:")]
    names = {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}
    return [name for name in heavy if name in names]


def compare(marks: list[Mark], rounds: int) -> list[Row]:
    """Alternate the commands and what they are held against, `rounds` times."""
    lines = {mark.command: metacount(*mark.command) for mark in marks}
    lines |= {mark.against: python(*mark.against) for mark in marks}
    for line in lines.values():
        measured(line)  # the first run reads from disk
    runs: dict[tuple[str, ...], list[Run]] = {key: [] for key in lines}
    for _ in range(rounds):
        for key, line in lines.items():
            runs[key].append(measured(line))
    return [_row(mark, runs) for mark in marks]


def _row(mark: Mark, runs: dict[tuple[str, ...], list[Run]]) -> Row:
    seconds, against = (
        median(run.seconds for run in runs[key]) for key in (mark.command, mark.against)
    )
    peak, against_peak = (
        median(run.peak_bytes for run in runs[key]) for key in (mark.command, mark.against)
    )
    return Row(
        command=" ".join(("metacount", *mark.command)),
        against=" ".join(("python", *mark.against)),
        ms=round(seconds * 1000, 1),
        against_ms=round(against * 1000, 1),
        ratio=round(seconds / against, 2),
        mark=mark.time,
        peak_mib=round(peak / 2**20, 1),
        memory_ratio=round(peak / against_peak, 2),
        memory_mark=mark.memory,
        heavy_imports=heavy_imports(metacount(*mark.command), HEAVY[mark.against]),
    )


def compile_package() -> None:
    """Write the byte code that an installed package has; a checkout may have none yet."""
    found = importlib.util.find_spec("metacount")
    for folder in (found.submodule_search_locations or []) if found else []:
        compileall.compile_dir(folder, quiet=2)


def show(rows: list[Row]) -> None:
    """Print the rows as a table."""
    print(
        f"{'command':<36} {'ms':>8} {'bare ms':>8} {'ratio':>6} {'mark':>5} {'MiB':>7} {'ratio':>6}"
    )
    for row in rows:
        times = f"{row.ms:>8} {row.against_ms:>8} {row.ratio:>6} {row.mark:>5}"
        verdict = "" if row.holds else "  OVER"
        shown = row.command if len(row.command) <= 36 else row.command[:33] + "..."
        if row.heavy_imports:
            verdict += f"  imports {', '.join(row.heavy_imports)}"
        print(f"{shown:<36} {times} {row.peak_mib:>7} {row.memory_ratio:>6}{verdict}")


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=21, help="runs of each command (default 21)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    compile_package()
    quick = [mark for mark in MARKS if mark.against == PASS]
    slow = [mark for mark in MARKS if mark.against != PASS]
    rows = compare(quick, args.rounds) + compare(slow, max(3, args.rounds // 4))
    if args.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        show(rows)
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
