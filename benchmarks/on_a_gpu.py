"""What a CUDA device is for, in order: tests, a calibration of the stopwatch, then the figures.

    python benchmarks/on_a_gpu.py --list          the steps, with an estimate of their time
    python benchmarks/on_a_gpu.py                 all of them, each in at most eight minutes
    python benchmarks/on_a_gpu.py --step NAME...  some of them
    python benchmarks/on_a_gpu.py --within 780    what fits into so many seconds, the first first

Every step is a command of its own and appends what it found to a file below `benchmarks/results`.
A step that fails or that no time was left for is said at the end, and the exit code is 1; the
others are run all the same.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
LIMIT = 480  # seconds of a step
BUDGET = 420  # of what watches its time: what is left is for starting and for the last case
STARTING = LIMIT - BUDGET
# of a tree that is not installed
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
TOKENS = tuple(str(2**n) for n in (0, 2, 4, *range(6, 15)))  # 1 to 16,384
MODELS = ("llama-7b", "qwen3-0.6b")
QUICK = ("--launch", "graph", "--seconds", "0.15")  # a turn is short: medians settle in few rounds


@dataclass(frozen=True, kw_only=True)
class Step:
    """A name, and the words after `python`."""

    name: str
    words: tuple[str, ...]

    def within(self, seconds: float) -> tuple[str, ...]:
        """Return its words, with less of a budget where less than that is left."""
        most = str(int(seconds) - STARTING)
        return tuple(
            most if word == str(BUDGET) and seconds < LIMIT else word for word in self.words
        )

    @property
    def is_bench(self) -> bool:
        """Whether it is `metacount bench`, which can say beforehand how long it takes."""
        return self.words[:3] == ("-m", "metacount", "bench")


def bench(name: str, topic: str, *options: str) -> Step:
    """A benchmark that is kept within its time and saved."""
    file = RESULTS / f"gpu-{topic}.jsonl"
    return Step(
        name=name,
        words=(
            "-m",
            "metacount",
            "bench",
            topic,
            "--device",
            "cuda",
            *QUICK,
            *options,
            "--budget",
            str(BUDGET),
            "--save",
            str(file),
        ),
    )


def steps() -> list[Step]:
    """All of them, in order: what must be right before what is slow."""
    real = "tests/training/test_reality.py::test_cuda_allocates_what_was_measured_and_its_rounding"
    tests = ("tests/bench/test_cuda.py", "tests/modules/test_on_cuda.py", real)
    ffn, plain = ("--model", *MODELS), "--no-compile"
    one, few = ("--model", MODELS[0]), ("--tokens", "1", "128", "8192")
    return [
        Step(name="tests", words=("-m", "pytest", "-q", "-ra", *tests)),
        Step(name="calibrate", words=("benchmarks/gpu_calibration.py",)),
        bench("ffn-bf16", "ffn", *ffn, "--tokens", *TOKENS, plain, "--dtype", "bf16"),
        bench("ffn-again", "ffn", *one, "--tokens", *TOKENS, plain, "--dtype", "bf16"),
        bench("ffn-compiled", "ffn", *one, *few, "--dtype", "bf16"),
        bench("ffn-backward", "ffn", *one, "--tokens", "128", "8192", "--dtype", "bf16", plain,
              "--direction", "forward", "backward", "forward+backward"),
        bench("ffn-others", "ffn", *ffn, "--tokens", "1", "128", "2048", "16384", plain,
              "--dtype", "fp16", "tf32", "fp32", "--state", "hot"),
        bench("attention", "attention", "--model", "llama3-8b", "--dtype", "bf16", plain),
        bench("mla", "mla", "--model", "deepseek-v3"),
        bench("moe", "moe", "--model", "mixtral-8x7b", "--tokens", "1", "128", "4096"),
        bench("norm", "norm", "--model", "llama-7b", "--tokens", "128", "8192"),
        bench("attention-core", "attention", "--part", "core", "--model", "llama3-8b"),
        Step(name="modules", words=("benchmarks/gpu_modules.py", "--seconds", str(BUDGET))),
        Step(name="peaks", words=("benchmarks/gpu_peaks.py", "--seconds", str(BUDGET))),
        Step(name="figures", words=("benchmarks/gpu_figures.py",)),
    ]  # fmt: skip


def estimate(step: Step) -> float | None:
    """Seconds that a benchmark will take by its own estimate; None for other steps."""
    if not step.is_bench:
        return None
    words = [word for word in step.words if word != "--save" and not word.endswith(".jsonl")]
    done = subprocess.run(
        [sys.executable, *words, "--dry-run", "--json"],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(sum(case["seconds"] for case in json.loads(done.stdout)))


def run(chosen: Sequence[Step], within: float) -> list[str]:
    """The names of those that failed; each one's output goes where this one's does."""
    failed, end = [], time.perf_counter() + within
    for step in chosen:
        began = time.perf_counter()
        limit = min(LIMIT, end - began)
        if limit < 2 * STARTING:
            failed.append(f"{step.name} (no time)")
            continue
        words = step.within(limit)
        print(f"== {step.name}: python {' '.join(words)}", flush=True)
        try:
            code: int | str = subprocess.run(
                [sys.executable, *words], cwd=ROOT, env=ENVIRONMENT, timeout=limit, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            code = f"stopped after {limit:.0f} s"
        print(f"== {step.name}: {code}, {time.perf_counter() - began:.0f} s", flush=True)
        if code != 0:
            failed.append(step.name)
    return failed


def main() -> int:
    """Choose, list or run."""
    parser = argparse.ArgumentParser(description="Run what needs a CUDA device, in order.")
    names = [step.name for step in steps()]
    parser.add_argument("--step", nargs="+", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--within", type=float, default=float("inf"), metavar="SECONDS")
    parser.add_argument("--list", action="store_true", help="print the steps and run nothing")
    args = parser.parse_args()
    chosen = [step for step in steps() if args.step is None or step.name in args.step]
    if args.list:
        for step in chosen:
            seconds = estimate(step)
            about = "" if seconds is None else f"  about {min(seconds, BUDGET):.0f} s"
            if seconds is not None and seconds > BUDGET:
                about += f" (of {seconds:.0f}: the last cases will not fit)"
            print(f"{step.name}{about}")
        return 0
    failed = run(chosen, args.within)
    print(f"failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
