"""A user's type checker sees the types of the Python API, as an installed wheel shows them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
from helpers import ROOT
from helpers.release import one_day_in

import metacount

PACKAGE = Path(metacount.__file__).parent

PROGRAM = """\
import metacount
reveal_type(metacount.count("llama-7b"))
reveal_type(metacount.count("llama-7b").params)
reveal_type(metacount.verify("llama-7b").agree)
reveal_type(metacount.check("d", "llama-7b").verdict)
reveal_type(metacount.entry("llama-7b").spec())
metacount.count("llama-7b", seq=3)
"""
REVEALED = [
    "metacount.textbook.count.Count",
    "int",
    "bool",
    "str",
    "metacount.spec.model.ModelSpec",
]


def test_the_mark_is_in_the_package_and_the_package_in_the_wheel() -> None:
    assert (PACKAGE / "py.typed").read_bytes() == b""
    data = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())
    # hatchling takes every file of these folders that git does not ignore
    assert data["tool"]["hatch"]["build"]["targets"]["wheel"] == {"packages": ["metacount"]}


@pytest.mark.skipif(find_spec("hatchling") is None, reason="hatchling is not installed here")
def test_the_wheel_holds_the_mark(tmp_path: Path) -> None:
    from zipfile import ZipFile

    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=PACKAGE.parent,
        check=True,
        capture_output=True,
        timeout=300,
    )
    (wheel,) = tmp_path.glob("*.whl")
    assert "metacount/py.typed" in ZipFile(wheel).namelist()


@one_day_in(3)
@pytest.mark.skipif(find_spec("mypy") is None, reason="mypy is not installed here")
def test_a_user_s_mypy_sees_the_types(tmp_path: Path) -> None:
    # as installed: found on the path, not among mypy's own sources, where no mark is asked for
    site = tmp_path / "site"
    site.mkdir()
    (site / "metacount").symlink_to(PACKAGE)
    (tmp_path / "user.py").write_text(PROGRAM)
    program = (
        "import sys\nfrom mypy import modulefinder\n"
        f"modulefinder.get_search_dirs = lambda e: ([], [{str(site)!r}])\n"
        "from mypy import build\nbuild.get_search_dirs = modulefinder.get_search_dirs\n"
        "from mypy.main import main\n"
        "main(args=['--strict', '--config-file=', '--cache-dir', sys.argv[1], 'user.py'])"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "cache")]
    env = {k: v for k, v in os.environ.items() if k not in ("MYPYPATH", "PYTHONPATH")}
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=600, env=env
    )
    lines = done.stdout.splitlines()
    found = [
        line.partition('Revealed type is "')[2].rstrip('"') for line in lines if "Revealed" in line
    ]
    assert [name.removeprefix("builtins.") for name in found] == REVEALED, done.stdout + done.stderr
    assert 'Unexpected keyword argument "seq"' in done.stdout
    assert "py.typed" not in done.stdout


# ---- `pip install --no-deps`: what needs a library names it


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
