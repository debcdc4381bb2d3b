"""Counting is quick: it imports nothing slow. The two sides' wall is in `test_wall.py`."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from helpers.release import daily

import metacount

PACKAGE = Path(metacount.__file__).parent

# Libraries that take longer to import than a count takes.
HEAVY = ("torch", "transformers", "accelerate", "numpy", "sympy", "rich")
# Nor the parts of the standard library that cost as much as Python's own start.
SLOW = (*HEAVY, "ast", "dataclasses", "inspect", "difflib", "hashlib", "typing")


def loaded_by(program: str) -> set[str]:
    """Top-level names of all modules that a fresh interpreter holds after `program`."""
    # only what the program adds: the environment's own .pth files may load anything
    probe = (
        "import sys\nbefore = set(sys.modules)\n"
        f"{program}\n"
        "import json\n"
        "print(json.dumps(sorted({n.partition('.')[0] for n in set(sys.modules) - before})),"
        " file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True
    )
    return set(json.loads(result.stderr.splitlines()[-1]))


def command(*arguments: str) -> str:
    return f"from metacount.cli import main\nassert main({list(arguments)!r}) == 0"


# every type of config that has a spec by default
CONFIGS = """
from metacount.huggingface.config.to_spec import mapped_types, spec_from_config
for name in mapped_types():
    try: spec_from_config({"model_type": name})
    except ValueError: pass
"""


@daily(5)
@pytest.mark.parametrize(
    "program",
    [
        "import metacount",
        "import metacount.spec",
        "import metacount.formulas.model",
        "import metacount.catalog",
        "import metacount.spec.legend",
        "import metacount.units",
        "import metacount; metacount.find_model('llama-7b')",
        CONFIGS,
        command("count", "deepseek-v3", "--json"),
        command("count", "deepseek-v3"),
        command("count", "t5-11b", "gemma3-27b-text"),
        command("train", "llama-7b", "--formula"),
        command("train", "deepseek-v3", "--formula", "--json"),
        command(*["shard", "llama-7b", "--mesh", "dp=64,tp=8,pp=8", "--train", "--formula"]),
        command("fit", "llama-7b"),
        command("models"),
        command("models", "--fields"),
        command("--version"),
    ],
)
def test_counting_imports_nothing_slow(program: str) -> None:
    # a later Python's own argparse may load more than today's
    unavoidable = loaded_by("import argparse, json; argparse.ArgumentParser().format_help()")
    assert unavoidable & set(HEAVY) == set()
    assert loaded_by(program) & set(SLOW) <= unavoidable


# Commands that load more, but no module of a model.
WITHOUT_TORCH = (
    "audit slime --model qwen3-4b",
    "check '2*V*d + d + N*(2*d*h_d*(h + h_kv) + 3*d*m + 2*d)' llama-7b",
    "claims attention-4d2 qwen3-235b-active qwen3-dense-formula shares-70-25-5",
    "code mla",
    *(f"lesson {topic} --json" for topic in ("block", "embedding", "qwen3", "compute", "paper")),
)


@daily(3)
@pytest.mark.parametrize("line", WITHOUT_TORCH)
def test_where_no_module_runs_no_torch_is_loaded(line: str) -> None:
    loaded = loaded_by(command(*shlex.split(line)))
    assert loaded & {"torch", "transformers", "matplotlib"} == set()


def test_the_probe_sees_what_is_imported() -> None:
    assert {"difflib", "metacount"} <= loaded_by("import difflib, metacount")


def test_public_names() -> None:
    assert sorted(set(metacount.__all__)) == sorted(metacount.__all__)
    for name in metacount.__all__:
        assert getattr(metacount, name) is not None
    assert dir(metacount) == sorted(metacount.__all__)
    # a public name that is also a folder's is not hidden when something in the folder is imported
    folders = {file.stem for file in PACKAGE.iterdir()} & set(metacount.__all__)
    assert folders == {"audit", "check", "diff", "flow", "summary", "verify"}
    for module in (
        "audit.judge",
        "check.verdict",
        "diff.compared",
        "flow.run",
        "summary.summary",
        "verify.compare",
    ):
        import_module(f"metacount.{module}")
    assert all(callable(getattr(metacount, name)) for name in folders)
    with pytest.raises(AttributeError, match="no attribute 'cuont'"):
        metacount.cuont  # noqa: B018
