"""`pip install --no-deps`: what needs no library answers, what needs one names it in one line."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT

SYMPY = ("sympy", "mpmath")


def run_without(
    arguments: str, folder: Path, libraries: tuple[str, ...]
) -> subprocess.CompletedProcess[str]:
    """Run a command where of all libraries only `libraries` can be imported."""
    for name in libraries:
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.origin is not None
        (folder / name).symlink_to(Path(spec.origin).parent)
    return subprocess.run(
        [sys.executable, "-S", "-m", "metacount", *arguments.split()],
        env={"PYTHONPATH": f"{ROOT}:{folder}", "PATH": "", "HOME": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("arguments", "libraries", "answer"),
    [
        ("models", (), "llama-7b"),
        ("count llama-7b", (), "6,738,415,616"),
        ("count type:qwen3 deepseek-v3", (), "671,026,404,352"),
        ("train gpt2 --formula", (), "peak_bytes"),
        ("fit gpt2 --gpu h100", (), "h100"),
        ("formula llama-7b", SYMPY, "6,738,415,616"),
        ("check 12*n_layers*d_model**2 gpt2", SYMPY, "wrong"),
        ("flow gpt2 --formula", SYMPY, "letters  d = 768"),
        ("diff gpt2 llama-7b", SYMPY, "n_layers"),
    ],
)
def test_what_needs_no_torch_answers(
    arguments: str, libraries: tuple[str, ...], answer: str, tmp_path: Path
) -> None:
    done = run_without(arguments, tmp_path, libraries)
    assert answer in done.stdout and done.stderr == ""
    assert done.returncode == (1 if arguments.startswith("check") else 0)


@pytest.mark.parametrize(
    ("arguments", "library"),
    [
        ("formula llama-7b", "sympy"),
        ("tree gpt2", "torch"),
        ("train gpt2", "torch"),
        ("verify gpt2 --json", "torch"),
        ("tree own.py:net", "torch"),
        ("plot gpt2 -o picture.svg", "matplotlib"),
        ("count org/name", "huggingface_hub"),
    ],
)
def test_a_library_that_is_needed_is_named(arguments: str, library: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("import torch\nnet = torch.nn.Linear(3, 4)\n")
    done = run_without(arguments, tmp_path, ())
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and f"pip install {library}" in done.stderr
