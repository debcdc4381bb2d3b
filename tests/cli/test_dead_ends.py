"""What has no formula of ours says what can be asked instead, and that works."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import ROOT
from helpers.command_line import refused, run
from helpers.release import daily

from metacount.cli import main

MODULE = """
from torch import nn

net = nn.Linear(3, 5)
"""
# What is refused, beside the files below; each names commands, and these work.
REFUSED = [
    "zzzzzz",
    "audit --model gpt2",
    "audit zzzzzz",
    "bench attention --model deepseek-v3 --device cpu --list",
    "bench mla --model gpt2 --device cpu --list",
    "bench moe --model gpt2 --device cpu --list",
    "check zzzzzz*2 gpt2",
    "claims zzzzzz",
    "code zzzzzz",
    "count",
    "count DIR",
    "count DIR/none.py",
    "count gpt2 --columns zzzzzz",
    "count gpt2 --like zzzzzz",
    "count gpt2 --seq 1,2",
    "count gpt2 --set zzzzzz=2",
    "count type:bitnet --conventions",
    "count type:zzzzzz",
    "count zzzzzz",
    "flow DIR/mine.py",
    "formula gpt2 --from-code --quantity activation_bytes:zzzzzz",
    "formula type:bitnet",
    "formula type:bitnet --quantity matmul_flops --latex",
    "lesson --markdown",
    "plot",
    "survey zzzzzz",
    "train gpt2 --formula --freeze zzzzzz",
    "tree DIR/mine.py",
    "verify",
]
# What a command that is named alone is asked with: a model, or its help where it takes long.
ASKED = {"train": "gpt2 --formula", "tree": "gpt2", "formula": "gpt2", "count": "gpt2"}
ASKED |= dict.fromkeys(("audit", "bench", "claims", "plot", "survey"), "--help")


@daily(4)
@pytest.mark.parametrize("arguments", REFUSED)
def test_what_is_named_works(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: str
) -> None:
    (tmp_path / "mine.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "none.py").write_text("import torch", encoding="utf-8")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    error = refused(capsys, *shlex.split(arguments.replace("DIR", str(tmp_path))))
    commands = re.findall(r"`metacount ([^`]*)`", error)
    assert commands
    for command in commands:
        words = shlex.split(command.replace("FILE.py:NAME", f"{tmp_path / 'mine.py'}:net"))
        if words[1:] in ([], ["--json"]):
            words += ASKED.get(words[0], "").split()
        if words[0] == "bench" and "--help" not in words:
            words += ["--device", "cpu", "--list"]
        assert main(words) == 0, words
        out, err = capsys.readouterr()
        assert out
        assert err == ""


def _texts(tree: ast.AST) -> Iterator[str]:
    """Every text of a file, with a model in place of what is put in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (
                part.value if isinstance(part, ast.Constant) else "gpt2" for part in node.values
            )
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_a_command_that_a_text_names_is_one_with_these_options_and_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}', encoding="utf-8")
    meant = {
        "FILE.py:NAME": f"{tmp_path / 'mine.py'}:net",
        "FILE": str(tmp_path / "config.json"),
        "NAME": "nanogpt",
        "MODEL": "gpt2",
    }
    files = (ROOT / "metacount").rglob("*.py")
    texts = [text for file in files for text in _texts(ast.parse(file.read_text("utf-8")))]
    named = {each for text in texts for each in re.findall(r"`metacount ([^`]+)`", text)}
    assert len(named) > 30
    ran = 0
    for command in named:
        name, *words = command.split()
        help_text = run(capsys, name, *([] if name.startswith("-") else ["--help"]))
        options = [word for word in words if word.startswith("--")]
        assert all(re.search(rf"{option}\b", help_text) for option in options), command
        # a word that is neither the whole of an example nor in capitals is one of its choices
        assert all(word in meant or word in help_text or "gpt2" in command for word in words), (
            command
        )
        # what is more than the name of a command or of an option is run as it stands
        if {"gpt2", *meant} & {*words} and "--folder" not in words:
            ran += 1
            assert run(capsys, name, *(meant.get(word, word) for word in words)), command
    assert ran > 5
