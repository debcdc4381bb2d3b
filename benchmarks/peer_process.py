"""Runs one tool of the comparison in a process of its own, in an environment of its own."""

from __future__ import annotations

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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
REQUIREMENTS = HERE / "peers-requirements.txt"

LONGEST_ERROR = 160


def environment(folder: Path, more: Sequence[Path] = ()) -> Path:
    """The interpreter of the virtual environment in `folder`, which is made where it is missing.

    `more` are files of requirements to install as well.
    """
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
    for file in more:
        subprocess.run([*install, "-r", str(file)], check=True)
    subprocess.run([*install, "--no-deps", "--force-reinstall", str(ROOT)], check=True)
    return python


def say(text: str) -> None:
    """Talk, on stderr."""
    print(text, file=sys.stderr, flush=True)


def versions(python: Path, names: Iterable[str]) -> dict[str, str]:
    """The installed versions of packages."""
    program = (
        "import json, sys\nfrom importlib.metadata import version\n"
        "print(json.dumps({name: version(name) for name in sys.argv[1:]}))"
    )
    done = subprocess.run(
        [str(python), "-c", program, *sorted(names)], capture_output=True, check=True
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What a process printed last, and what it took."""

    found: dict[str, Any]
    seconds: float
    cpu_seconds: float
    peak_bytes: int


def run_worker(
    python: Path, worker: Path, tool: str, given: dict[str, Any], more: str, limit_s: int
) -> Ended:
    """Run one tool on what it is given, in its own process."""
    quiet = {
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "CUDA_VISIBLE_DEVICES": "",
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, f"{given['name']}.json")
        file.write_text(json.dumps(given), encoding="utf-8")
        out = Path(folder, "out")
        with out.open("wb") as stdout:
            start = time.perf_counter()
            process = subprocess.Popen(
                [str(python), str(worker), tool, str(file), more],
                stdout=stdout,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **quiet},
                cwd=folder,
                start_new_session=True,
            )
            limit = threading.Timer(limit_s, os.killpg, (process.pid, signal.SIGKILL))
            limit.start()
            _, status, usage = os.wait4(process.pid, 0)
            limit.cancel()
            seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        text = out.read_text(encoding="utf-8").strip()
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB elsewhere
    found: dict[str, Any] = {"error": f"ended with exit code {process.returncode}"}
    if seconds >= limit_s:
        found = {"error": f"took longer than {limit_s} s"}
    elif text:
        found = json.loads(text.splitlines()[-1])
    if "error" in found:
        hidden = [folder, str(python.parent.parent), str(ROOT), more]
        found["error"] = without_paths(found["error"], [path for path in hidden if "/" in path])
    return Ended(
        found=found,
        seconds=round(seconds, 3),
        cpu_seconds=round(usage.ru_utime + usage.ru_stime, 3),
        peak_bytes=usage.ru_maxrss * unit,
    )


def without_paths(text: str, hidden: Sequence[str]) -> str:
    """A message without the folders of this machine, and not too long."""
    for path in hidden:
        text = text.replace(path, "...")
    return text if len(text) <= LONGEST_ERROR else text[: LONGEST_ERROR - 3] + "..."
