"""The same 15 models through metacount and through the tools people use today, side by side.

python benchmarks/peers.py [--models NAME ...] [--tools NAME ...] [--venv DIR] [--saved] [--json]
python benchmarks/peers.py --training [--megatron DIR] [--torchtitan DIR] [--saved] [--json] ...

The second form compares ten setups of training instead: see peer_training.py.

Makes a virtual environment of its own with the pinned versions of peers-requirements.txt. Each tool
counts each model in a process of its own, whose time and peak memory are measured. The truth is
what `metacount verify` says when formula, reference module and transformers' module agree.
Every model is transformers' own, built from its published config in bf16, one sequence of 128
tokens: on the meta device, and also with real weights where they fit 4 GiB; of the two the better
result stands for the tool. FLOPs are compared in torch's convention: 2 per multiply-add, matrix
products only, attention in full. A tool that counts multiply-adds is taken twice; one that counts
norms or activations too shows them as excess.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peer_process import HERE, ROOT, environment, run_worker, say, versions
from peer_results import FIGURES, TOOLS, TRUTH, Result, collected, off_by, text_of
from peer_training import add_arguments, training

RESULTS = HERE / "results" / "peers.json"
MODELS = HERE / "peer_models"
WORKER = HERE / "peer_tools.py"

MOST_WEIGHTS = 2**32  # bytes of real weights; above it a tool gets the meta device alone
WEIGHT_BYTES = 2  # bf16
TIME_LIMIT = 300  # seconds of one tool and one model


def models() -> dict[str, dict[str, Any]]:
    """The published configs, by their names in the catalog."""
    files = sorted(MODELS.glob("*.json"), key=lambda file: file.name)
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}


def run_tool(python: Path, tool: str, model: str, config: dict[str, Any], device: str) -> Result:
    """One tool on one model, in its own process."""
    ended = run_worker(python, WORKER, tool, {"name": model, **config}, device, TIME_LIMIT)
    error = ended.found.pop("error", None)
    return Result(
        tool=tool,
        model=model,
        device=device,
        seconds=ended.seconds,
        peak_bytes=ended.peak_bytes,
        figures=ended.found,
        error=error,
    )


def devices(tool: str, weights: int) -> tuple[str, ...]:
    """Where a tool counts a model with so many bytes of weights."""
    if not TOOLS[tool][1]:
        return ("none",)
    return ("meta", "cpu") if weights <= MOST_WEIGHTS else ("meta",)


def compare(
    python: Path, tools: Sequence[str], names: Sequence[str]
) -> tuple[dict[str, dict[str, int]], list[Result]]:
    """The truth of every model, and every run."""
    configs = models()
    truth: dict[str, dict[str, int]] = {}
    runs: list[Result] = []
    for model in names:
        verified = run_tool(python, TRUTH, model, configs[model], "none")
        missing = [name for name in FIGURES if name not in verified.figures]
        if verified.error is not None or missing:
            sys.exit(f"{model}: no truth: {verified.error or ', '.join(missing)}")
        truth[model] = verified.figures
        for tool in tools:
            if tool == TRUTH:
                runs.append(verified)
                continue
            for device in devices(tool, verified.figures["params"] * WEIGHT_BYTES):
                runs.append(run_tool(python, tool, model, configs[model], device))
                last = runs[-1]
                said = last.error or off_by(
                    last.figures.get("flops", last.figures["params"]),
                    truth[model]["flops" if "flops" in last.figures else "params"],
                )
                say(f"{model:<16} {tool:<22} {device:<5} {last.seconds:6.1f} s  {said}")
    return truth, runs


def main() -> int:
    """Make the environment, run, print, save."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", choices=list(models()), metavar="NAME")
    parser.add_argument("--tools", nargs="+", metavar="NAME")
    parser.add_argument("--venv", type=Path, default=ROOT / "build" / "peers", metavar="DIR")
    parser.add_argument("--saved", action="store_true", help="run nothing, show the saved results")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_arguments(parser)
    args = parser.parse_args()
    if args.training:
        return training(parser, args, models())
    if unknown := sorted(set(args.tools or ()) - TOOLS.keys()):
        parser.error(f"--tools {unknown[0]} is unknown; choose from {', '.join(TOOLS)}")
    if args.saved:
        data = json.loads(RESULTS.read_text(encoding="utf-8"))
    else:
        python = environment(args.venv)
        version = versions(python, {package for package, _ in TOOLS.values()} | {"transformers"})
        truth, runs = compare(python, args.tools or list(TOOLS), args.models or list(models()))
        data = collected(truth, runs, version)
    text = json.dumps(data, indent=1) + "\n"
    if not args.saved and args.models is None and args.tools is None:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(text, encoding="utf-8")
    print(text if args.json else text_of(data), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
