"""Streams that are closed or full, and a folder that is gone: the result stays what it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from metacount.bench import rows
from metacount.errors import InputError

FULL = "/dev/full"
pytestmark = pytest.mark.skipif(not os.path.exists(FULL), reason="needs a device that is full")


def run(command: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command of a shell in which `metacount` is ours."""
    return subprocess.run(
        ["sh", "-c", command.replace("metacount", f"{sys.executable} -m metacount")],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("stderr", ["2>&-", f"2>{FULL}"])
def test_messages_go_nowhere_else(stderr: str) -> None:
    done = run(f"metacount count nosuch {stderr}")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")
    done = run(f"metacount claims --topic ffn --json {stderr}")
    assert done.returncode == 0
    assert all(row["verdict"] for row in json.loads(done.stdout))


def test_a_result_that_cannot_be_written() -> None:
    done = run(f"metacount count gpt2 >{FULL}")
    message = "metacount: error: cannot write the result: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, message)
    assert run(f"metacount count gpt2 >{FULL} 2>{FULL}").returncode == 2
    assert run("metacount count gpt2 >&- 2>&-").returncode == 0


def test_a_working_folder_that_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    for command in ("count gpt2", "count x.json", "verify gpt2 --seq 3"):
        folder.mkdir()
        done = run(f"rmdir {folder}; metacount {command}", cwd=folder)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("metacount: error: the working folder cannot be read: ")
        assert done.stderr.count("\n") == 1


def test_rows_are_saved_all_or_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--save: /dev/full cannot be written: No space left"):
        rows.append(FULL, [{"a": 1}])
    file = tmp_path / "rows.jsonl"
    rows.append(str(file), [{"a": 1}])
    code = (
        "import resource, signal, sys\nfrom metacount.bench import rows\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20))\n"
        "rows.append(sys.argv[1], [{'a': 2}])\nrows.append(sys.argv[1], [{'a': 3}])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, file], capture_output=True, check=False)
    assert b"cannot be written" in done.stderr
    assert file.read_text() == '{"a": 1}\n{"a": 2}\n'


def test_rows_that_cannot_be_saved_are_printed() -> None:
    options = "--model qwen3-0.6b --tokens 1 --device cpu --no-compile --no-ceiling --state hot"
    done = run(f"metacount bench norm {options} --seconds 0.01 --rounds 2 --json --save {FULL}")
    assert done.returncode == 2
    assert "error: --save: /dev/full cannot be written" in done.stderr
    assert json.loads(done.stdout)
