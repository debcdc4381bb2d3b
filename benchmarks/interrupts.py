"""Sends Ctrl-C at random moments of the long commands: each must end with 130 and one line, leave
no process of its group, no file that is half written, and on stdout no half of an answer.

    python benchmarks/interrupts.py --times 500
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from helpers.processes import left_of_group

COMMANDS = (
    "verify gpt2 --seq 8 --json",
    "verify gpt2 --all-sizes",
    "train textbook-block",
    "shard textbook-block --mesh dp=2 --train --json",
    "flow type:gpt2",
    "formula type:llama --from-code --json",
    "lesson ffn",
    "claims --topic attention --json",
    "survey llama gpt2 --kind causal-LM --json",
    "plot type:gpt2 type:llama -o picture.svg",
    "plot gpt2 --html page.html",
    "check mine.py:slow gpt2 --json",
    "bench norm --model qwen3-0.6b --tokens 1 --device cpu --no-compile --save rows.jsonl",
)
SLOW = "import time\ndef slow(d_model):\n    time.sleep(0.02)\n    return d_model\n"
ENDS = {"svg": "</svg>", "html": "</html>"}  # of files that were written to the end
PATIENCE = 45  # seconds until one is lost: it is held for at most 30
INTERRUPTED = "metacount: interrupted"
EXITING = 0x4  # PF_EXITING of <linux/sched.h>
RIGHT = "130 and one line"
TOO_LATE = "had ended before"


def interrupted(command: str, seconds: float, folder: Path) -> str:
    """Run a command, interrupt it after so many seconds, and say how it ended."""
    (folder / "mine.py").write_text(SLOW)
    with open(folder / "stdout", "w") as stdout:
        process = subprocess.Popen(
            [sys.executable, "-m", "metacount", *command.split()],
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
    try:
        process.communicate(timeout=seconds)
        return TOO_LATE
    except subprocess.TimeoutExpired:
        if has_ended(process.pid):
            process.communicate()
            return TOO_LATE
        os.killpg(process.pid, signal.SIGINT)
    try:
        said = process.communicate(timeout=PATIENCE)[1].splitlines()
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return f"lost: {process.communicate()[1][-300:]}"
    wrong = half_written(folder, as_json="--json" in command)
    if left := left_of_group(process.pid):
        os.killpg(process.pid, signal.SIGKILL)
        wrong.append(f"{len(left)} processes were left")
    lines = [line for line in said if line.startswith(INTERRUPTED)]
    if process.returncode != 130 or len(lines) != 1:
        wrong.append(f"ended with {process.returncode}: {' | '.join(said)[-300:]}")
    wrong += [line for line in said if line.startswith("Traceback")]
    return "; ".join(wrong) or RIGHT


def has_ended(pid: int) -> bool:
    """Tell whether the system is taking a process away: nothing of its own runs any more."""
    flags = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[6]
    return bool(int(flags) & EXITING)


def half_written(folder: Path, *, as_json: bool) -> list[str]:
    """Name the files that were not written to their end, stdout among them."""
    wrong = []
    for file in folder.iterdir():
        text = file.read_text()
        end = ENDS.get(file.suffix[1:], "")
        try:
            if file.suffix == ".jsonl":
                [json.loads(line) for line in text.splitlines()]
            elif file.name == "stdout" and as_json and text:
                json.loads(text)
        except ValueError:
            end = "JSON"
        if not text.rstrip().endswith(end):
            wrong.append(f"{file.name} ends with {text[-50:]!r}")
        file.unlink()
    return wrong


def main(arguments: list[str] | None = None) -> int:
    """Interrupt commands drawn at random; return 1 if one of them did not end as it must."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--within", type=float, default=12.0, help="seconds of a command")
    args = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in the background
    draw, ends = random.Random(args.seed), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        while ends.total() - ends[TOO_LATE] < args.times:
            command, seconds = draw.choice(COMMANDS), draw.uniform(0.5, args.within)
            end = interrupted(command, seconds, Path(folder))
            ends[end] += 1
            if end not in (RIGHT, TOO_LATE):
                print(f"{command} after {seconds:.2f} s: {end}", flush=True)
    print(f"seed {args.seed}: {ends[RIGHT]} of {args.times} interrupts ended with {RIGHT}")
    return 0 if ends[RIGHT] == args.times else 1


if __name__ == "__main__":
    sys.exit(main())
