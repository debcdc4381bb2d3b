"""Sends Ctrl-C at random moments of the long commands: each must end with 130 and one line.

    python benchmarks/interrupts.py --times 500

One that had written its result is ended by the signal itself, without a line: 130 to a shell.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter

COMMANDS = (
    "verify gpt2 --seq 8",
    "verify gpt2 --all-sizes",
    "train textbook-block",
    "shard textbook-block --mesh dp=2 --train",
    "flow type:gpt2",
    "formula type:llama --from-code",
    "lesson ffn",
    "claims --topic attention",
    "survey llama gpt2 --kind causal-LM",
    "bench norm --model qwen3-0.6b --tokens 1 --device cpu --no-compile",
)
PATIENCE = 45  # seconds until one is lost: it is held for at most 30
RIGHT = "130 and one line"
TOO_LATE = "had ended before"


def interrupted(command: str, seconds: float) -> str:
    """Run a command, interrupt it after so many seconds, and say how it ended."""
    process = subprocess.Popen(
        [sys.executable, "-m", "metacount", *command.split()],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        process.communicate(timeout=seconds)
        return TOO_LATE
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGINT)
    try:
        said = process.communicate(timeout=PATIENCE)[1].splitlines()
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return f"lost: {process.communicate()[1][-300:]}"
    last = said[-1] if said else ""
    traceback = any(line.startswith("Traceback") for line in said)
    by_us = process.returncode == 130 and last.startswith("metacount: interrupted")
    at_the_end = process.returncode == -signal.SIGINT
    right = (by_us or at_the_end) and not traceback
    return RIGHT if right else f"{process.returncode}: {' | '.join(said)[-300:]}"


def main(arguments: list[str] | None = None) -> int:
    """Interrupt commands drawn at random; return 1 if one of them did not end as it must."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--within", type=float, default=12.0, help="seconds of a command")
    args = parser.parse_args(arguments)
    draw, ends = random.Random(args.seed), Counter[str]()
    while ends.total() - ends[TOO_LATE] < args.times:
        command, seconds = draw.choice(COMMANDS), draw.uniform(1.0, args.within)
        end = interrupted(command, seconds)
        ends[end] += 1
        if end not in (RIGHT, TOO_LATE):
            print(f"{command} after {seconds:.2f} s: {end}", flush=True)
    print(f"seed {args.seed}: {ends[RIGHT]} of {args.times} interrupts ended with {RIGHT}")
    return 0 if ends[RIGHT] == args.times else 1


if __name__ == "__main__":
    sys.exit(main())
