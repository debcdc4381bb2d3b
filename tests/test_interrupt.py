"""Ctrl-C, sent to the whole process group as a terminal does: what was finished is printed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from helpers import ROOT
from helpers.processes import left_of_group, still_running
from helpers.release import ONLY, one_day_in, one_in

from metacount.cli.answer import write_pieces

TIMEOUT = 120
AGAIN = 15


def started(*words: str, cwd: Path | None = None, stdout: Any = subprocess.PIPE) -> Any:
    """A process of Python that leads a group of its own."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "80"}
    how: dict[str, Any] = {"text": True, "start_new_session": True, "cwd": cwd, "env": env}
    return subprocess.Popen([sys.executable, *words], stdout=stdout, stderr=subprocess.PIPE, **how)


def stopped(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What it wrote after Ctrl-C; nobody of its group is left."""
    os.killpg(process.pid, signal.SIGINT)
    try:
        out, err = process.communicate(timeout=AGAIN)
    except subprocess.TimeoutExpired:
        # Python drops one that comes within a destructor or a callback: people press once more
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130, err
    assert left_of_group(process.pid) == []
    return out, err


pytestmark = pytest.mark.skipif(
    not os.path.isdir("/proc/self"), reason="needs /proc to see whether processes are left"
)


def wait_for(condition, what: str) -> None:  # type: ignore[no-untyped-def]
    until = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.05)


# A command that does something else than to read its arguments, or something besides.
LATE = """
import atexit, signal, sys, time
from metacount import cli
read = cli.parsed_arguments
class Freed:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)
def parsed(arguments):
    {body}
    time.sleep(600)
cli.parsed_arguments = parsed
sys.exit(cli.main())
"""


def late(folder: Path, body: str) -> tuple[int, str, str]:
    """The exit code and what is written where an interrupt comes in the code `body`."""
    (folder / "late.py").write_text(LATE.replace("{body}", body))
    process = started("-m", "late", "models", "--json", cwd=folder)
    out, err = process.communicate(timeout=TIMEOUT)
    return process.returncode, out, err


@pytest.mark.parametrize("body", ["exec('raise KeyboardInterrupt')", "Freed()"])
def test_an_interrupt_in_text_or_a_destructor_ends_like_any(tmp_path: Path, body: str) -> None:
    """Python would end by the signal, or print it with a traceback and go on."""
    assert late(tmp_path, body) == (130, "", "metacount: interrupted\n")


def test_an_interrupt_after_the_answer_is_one_too(tmp_path: Path) -> None:
    body = "atexit.register(lambda: signal.raise_signal(signal.SIGINT)); return read(arguments)"
    code, out, err = late(tmp_path, body)
    assert (code, err) == (130, "metacount: interrupted\n")
    assert json.loads(out)


# Code of others that an exception must not leave in the middle: it is held until that has ended.
MODE = """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            import half
            return func(*args, **(kwargs or {}))
    with Mode():
        torch.ones(2)"""
HALF = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(0.2)\n"


@pytest.mark.parametrize("body", ["import half", MODE.strip()], ids=["an import", "an operator"])
def test_an_interrupt_is_held_where_it_would_do_harm(tmp_path: Path, body: str) -> None:
    (tmp_path / "half.py").write_text(f"{HALF}open('whole', 'w').close()\n")
    assert late(tmp_path, body) == (130, "", "metacount: interrupted\n")
    assert (tmp_path / "whole").exists()


@ONLY
def test_interrupts_at_random_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    assert import_module("interrupts").main(["--times", "20"]) == 0


# A function of which one call never ends, which of them, what is asked, and what is said then. The
# processes of a survey load the file again: its types are measured by what is set here.
SLOW = """
import sys, time
from importlib import import_module
reached, module, name, nth, *arguments = sys.argv[1:]
home, n = import_module(module), 0
real = getattr(home, name)
def slow(*args, **how):
    global n
    n += 1
    if n == int(nth):
        open(reached, "w").close()
        time.sleep(600)
    return real(*args, **how)
setattr(home, name, slow)
home.MAX_PROCESSES = 1
if __name__ == "__main__":
    from metacount.cli import main
    sys.exit(main(arguments))
"""
VERIFY = "verify.compare verify_model 2 verify gpt2 bert-base llama-7b --seq 8"
BENCH = "bench.run run_case 3 bench norm --model qwen3-0.6b --tokens 1 2 3 4 --device cpu --json"
BENCH += " --no-compile --no-ceiling --state hot --seconds 0.01 --rounds 2"
SURVEY = "cli.survey measure_type 3 survey llama gpt2 mamba opt --kind causal-LM --params-only"


@one_day_in(4)
@pytest.mark.parametrize(
    ("line", "said"),
    [
        (VERIFY, "1 of 3 models"),
        pytest.param(f"{VERIFY} --json", "1 of 3 models", marks=ONLY),
        ("teaching.claims judge_claim 3 claims --topic ffn --json", "2 of "),
        pytest.param(BENCH, "2 of 4 cases", marks=ONLY),
        (f"{SURVEY} --json", "2 of 4 types"),
        pytest.param(SURVEY, "2 of 4 types", marks=ONLY),
    ],
)
def test_what_was_finished_is_printed(tmp_path: Path, line: str, said: str) -> None:
    script, reached = tmp_path / "slow.py", tmp_path / "reached"
    script.write_text(SLOW)
    process = started(str(script), str(reached), *f"metacount.{line}".split())
    wait_for(reached.exists, "the call that never ends was never reached")
    out, err = stopped(process)
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith(f"metacount: interrupted after {said}")
    if "--json" in line:
        assert len({json.dumps(each["workload"]) for each in json.loads(out)}) > ("bench" in line)
        assert len(json.loads(out)) == int(said[0]) or "bench" in line
    else:
        assert out.endswith(f"\ninterrupted after {said}\n")
        assert "1 of 1 models agree" in out or "124,439,808" in out


@pytest.mark.parametrize(
    ("flags", "jobs"), one_in(4, [(("--json",), "2"), ((), "1"), (("--json",), "1"), ((), "2")])
)
def test_a_folder_keeps_what_was_counted(tmp_path: Path, flags: tuple[str, ...], jobs: str) -> None:
    folder, written = tmp_path / "configs", tmp_path / "written"
    folder.mkdir()
    n = 30_000 if not flags else 10_000
    (folder / "0.json").write_text('{"model_type": "llama"}')
    for i in range(1, n):
        (folder / f"{i:05}.json").symlink_to("0.json")
    with open(written, "w") as file:
        process = started(
            "-m", "metacount", "count", "--folder", str(folder), "--jobs", jobs, *flags, stdout=file
        )
    if flags:
        wait_for(lambda: written.stat().st_size > 0, "nothing was ever written")
    else:
        time.sleep(4)
    _, err = stopped(process)
    out = written.read_text()
    said = re.fullmatch(rf"metacount: interrupted after (\d+) of {n} files\n", err)
    assert said, err
    done = int(said[1])
    assert 0 <= done < n
    if flags:
        assert len([json.loads(line) for line in out.splitlines()]) == done
    else:
        assert f"counted  {done:,} of {done:,} files" in out
        assert f"stopped  by an interrupt, with {n - done:,} files to go" in out
        assert len([line for line in out.splitlines() if "6,738,415,616" in line]) == done


def test_a_file_that_is_judged_is_ended_with_the_command(tmp_path: Path) -> None:
    reached, file = tmp_path / "reached", tmp_path / "mine.py"
    note = f"open({str(reached)!r}, 'w').write(str(os.getpid()))"
    file.write_text(f"import os, time\ndef params(d_model):\n    {note}\n    time.sleep(600)\n")
    process = started("-m", "metacount", "check", f"{file}:params", "gpt2", "--timeout", "600")
    wait_for(lambda: reached.exists() and reached.read_text(), "the function was never called")
    assert stopped(process) == ("", "metacount: interrupted\n")
    assert still_running([int(reached.read_text())]) == []


@pytest.mark.parametrize(
    ("seconds", "line"),
    [
        (4.0, "verify type:deepseek_v3 --all-sizes"),
        *one_in(3, [(n, "survey --params-only --json") for n in (1.2, 0.4, 3.0)]),
        pytest.param(3.0, "verify --all --json", marks=ONLY),
        pytest.param(
            4.0, "formula type:deepseek_v3 --from-code --quantity matmul_flops", marks=ONLY
        ),
    ],
)
def test_other_long_commands_end_quietly(seconds: float, line: str) -> None:
    process = started("-m", "metacount", *line.split())
    time.sleep(seconds)  # while Python, torch, or processes start, or in the middle of it
    out, err = stopped(process)
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("metacount: interrupted")
    assert not out or isinstance(json.loads(out), list)


def test_an_interrupt_while_a_piece_is_written_comes_after_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was counted and what was written stay alike, at whatever moment it comes."""
    counted = []

    def pieces() -> Generator[str, None, None]:
        try:
            for n in range(3):
                counted.append(n)
                yield f"{n}\n"
        except KeyboardInterrupt:
            yield "interrupted\n"

    class Pressed:
        def __init__(self, real: Any) -> None:
            self.real = real

        def write(self, piece: str) -> None:
            self.real.write(piece[:1])
            if piece.startswith("1"):
                signal.raise_signal(signal.SIGINT)
            self.real.write(piece[1:])

    monkeypatch.setattr(sys, "stdout", Pressed(sys.stdout))
    before = signal.getsignal(signal.SIGINT)
    write_pieces(pieces())
    assert capsys.readouterr().out == "0\n1\ninterrupted\n"
    assert counted == [0, 1]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_interrupt_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Never:
        def write(self, piece: str) -> None:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(sys, "stdout", Never())
    with pytest.raises(KeyboardInterrupt):
        write_pieces(piece for piece in ("0\n",))
