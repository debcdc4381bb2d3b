"""The same 15 models through metacount and through the tools people use today, side by side.

python benchmarks/peers.py [--models NAME ...] [--tools NAME ...] [--venv DIR] [--saved] [--json]

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
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peer_results import FIGURES, TOOLS, TRUTH, Result, collected, off_by, text_of

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
REQUIREMENTS = HERE / "peers-requirements.txt"
RESULTS = HERE / "results" / "peers.json"
MODELS = HERE / "peer_models"
WORKER = HERE / "peer_tools.py"

MOST_WEIGHTS = 2**32  # bytes of real weights; above it a tool gets the meta device alone
WEIGHT_BYTES = 2  # bf16
TIME_LIMIT = 300  # seconds of one tool and one model
LONGEST_ERROR = 160


def models() -> dict[str, dict[str, Any]]:
    """The published configs, by their names in the catalog."""
    files = sorted(MODELS.glob("*.json"), key=lambda file: file.name)
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}


def environment(folder: Path) -> Path:
    """The interpreter of the virtual environment in `folder`, which is made where it is missing."""
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
    ready = folder / "ready"
    install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    if not ready.exists() or ready.read_text(encoding="utf-8") != wanted:
        say(f"making {folder} (some minutes)")
        venv.create(folder, clear=True, with_pip=True)
        lines = REQUIREMENTS.read_text(encoding="utf-8").splitlines()
        torch = next(line for line in lines if line.startswith("torch=="))
        # torch first and alone, so that nothing later can pull another build of it
        subprocess.run([*install, torch], check=True)
        subprocess.run([*install, "-r", str(REQUIREMENTS)], check=True)
        ready.write_text(wanted, encoding="utf-8")
    subprocess.run([*install, "--no-deps", "--force-reinstall", str(ROOT)], check=True)
    return python


def say(text: str) -> None:
    """Talk, on stderr."""
    print(text, file=sys.stderr, flush=True)


def versions(python: Path) -> dict[str, str]:
    """The installed version of every package that the table names."""
    names = sorted({package for package, _ in TOOLS.values()} | {"transformers"})
    program = (
        "import json, sys\nfrom importlib.metadata import version\n"
        "print(json.dumps({name: version(name) for name in sys.argv[1:]}))"
    )
    done = subprocess.run([str(python), "-c", program, *names], capture_output=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def run_tool(python: Path, tool: str, model: str, config: dict[str, Any], device: str) -> Result:
    """One tool on one model, in its own process."""
    quiet = {
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "CUDA_VISIBLE_DEVICES": "",
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, f"{model}.json")
        file.write_text(json.dumps({"name": model, **config}), encoding="utf-8")
        out = Path(folder, "out")
        with out.open("wb") as stdout:
            start = time.perf_counter()
            process = subprocess.Popen(
                [str(python), str(WORKER), tool, str(file), device],
                stdout=stdout,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **quiet},
                cwd=folder,
                start_new_session=True,
            )
            limit = threading.Timer(TIME_LIMIT, os.killpg, (process.pid, signal.SIGKILL))
            limit.start()
            _, status, usage = os.wait4(process.pid, 0)
            limit.cancel()
            seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        text = out.read_text(encoding="utf-8").strip()
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB elsewhere
    found: dict[str, Any] = {"error": f"ended with exit code {process.returncode}"}
    if seconds >= TIME_LIMIT:
        found = {"error": f"took longer than {TIME_LIMIT} s"}
    elif text:
        found = json.loads(text.splitlines()[-1])
    error = found.pop("error", None)
    return Result(
        tool=tool,
        model=model,
        device=device,
        seconds=round(seconds, 3),
        peak_bytes=usage.ru_maxrss * unit,
        figures=found,
        error=None if error is None else _without_paths(error, folder, python),
    )


def _without_paths(text: str, folder: str, python: Path) -> str:
    for path in (folder, str(python.parent.parent), str(ROOT)):
        text = text.replace(path, "...")
    return text if len(text) <= LONGEST_ERROR else text[: LONGEST_ERROR - 3] + "..."


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
    parser.add_argument("--tools", nargs="+", choices=list(TOOLS), metavar="NAME")
    parser.add_argument("--venv", type=Path, default=ROOT / "build" / "peers", metavar="DIR")
    parser.add_argument("--saved", action="store_true", help="run nothing, show the saved results")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    if args.saved:
        data = json.loads(RESULTS.read_text(encoding="utf-8"))
    else:
        python = environment(args.venv)
        version = versions(python)
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
