"""`metacount completion`: what may follow a line, and what shells make of it."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.command_line import refused, run
from helpers.release import daily

from metacount.cli import COMMANDS
from metacount.cli.completion import SCRIPTS

# What is typed, and what must be (and must not be) among the answers.
TYPED = [
    ("co", {"count", "completion"}, {"tree", "--json"}),
    ("--v", {"--version"}, {"--json"}),
    ("count mixtral", {"mixtral-8x7b"}, {"mistral-7b", "--json"}),
    ("count llama-7b gpt2-m", {"gpt2-medium"}, {"gpt2-xl"}),
    ("diff llama-7b --", {"--set", "--json", "--csv"}, {"--quantity", "llama-7b"}),
    ("count --dtype b", {"bf16"}, {"fp32", "bert-base"}),
    ("count --dtype bf16 gpt2-l", {"gpt2-large"}, {"bf16"}),
    ("formula gpt2 --quantity kv", {"kv_cache_bytes"}, {"params", "gpt2"}),
    ("formula --by o", {"operator"}, {"role"}),
    ("claims --verdict w", {"wrong"}, {"right"}),
    ("claims mixtral-t", {"mixtral-total"}, {"block-512-total"}),
    ("bench ffn --dtype fp16 b", {"bf16"}, {"bench"}),
    ("bench ffn --dtype ", {"bf16", "fp16"}, {"ffn"}),
    ("completion f", {"fish"}, {"bash"}),
    ("count gpt2 --set n_kv", {"n_kv_heads="}, {"n_heads=", "n_kv_heads= "}),
    ("count gpt2 --set norm_pl", {"norm_placement=post", "norm_placement=pre"}, set()),
    ("tree gpt2 --columns shape,by", {"shape,bytes"}, {"bytes"}),
    ("nosuch x", set(), {"count"}),
]


@pytest.mark.parametrize(("line", "there", "not_there"), TYPED)
def test_what_may_follow_a_line(
    capsys: pytest.CaptureFixture[str], line: str, there: set[str], not_there: set[str]
) -> None:
    for shell in SCRIPTS:
        main_line = ("completion", shell, "--line", f"metacount {line}")
        lines = run(capsys, *main_line).splitlines()
        answers = {each.partition("\t")[0] for each in lines}
        if shell == "bash":  # which has only what stands after the last =
            answers = {line.split()[-1].rpartition("=")[0] + each.rstrip() for each in answers}
        assert there <= answers
        assert not not_there & answers


@daily(8)
@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command_is_completed(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    lines = [line for line in run(capsys, name, "--help").splitlines() if line.startswith("  -")]
    heads = [re.split(r" {2,}", line.strip())[0] for line in lines]
    options = {option for head in heads for option in re.findall(r"--[a-z][a-z-]*", head)}
    assert "--help" in options
    completed = run(capsys, "completion", "zsh", "--line", f"metacount {name} --")
    assert set(completed.splitlines()) == options


def test_files_where_files_belong(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my model.json").write_text("{}")
    (tmp_path / "my_folder").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for line in ("count my", "count gpt2 my", "plot gpt2 -o my", "count --folder my"):
        found = run(capsys, "completion", "bash", "--line", f"metacount {line}").splitlines()
        assert found == ["my\\ model.json ", "my_folder/"]
    found = run(capsys, "completion", "zsh", "--line", "metacount count ~/my_")
    assert found == "~/my_folder/\n"
    assert run(capsys, "completion", "zsh", "--line", "metacount count --dtype my") == ""


def typed_into(shell: list[str], setup: str, line: str, expected: str) -> str:
    """What a terminal shows after a line and the tab key."""
    terminal, inside = pty.openpty()
    process = subprocess.Popen(
        shell,
        stdin=inside,
        stdout=inside,
        stderr=inside,
        start_new_session=True,
        env={**os.environ, "TERM": "dumb", "PS1": "> ", "HOME": "/nonexistent"},
    )
    shown = b""
    try:
        for text, wanted in ((f"{setup}\necho re''ady\n", "ready"), (f"{line}\t", expected)):
            os.write(terminal, text.encode())
            end = time.monotonic() + 30
            start = len(shown)
            while wanted.encode() not in shown[start:] and time.monotonic() < end:
                if select.select([terminal], [], [], 0.2)[0]:
                    shown += os.read(terminal, 65536)
        return shown[start:].decode(errors="replace")
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
        os.close(inside)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("metacount tree mixtral-8", "mixtral-8x7b"),
        ("metacount count gpt2 --set norm_placement=sandw", "norm_placement=sandwich"),
    ],
)
@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_tab_key_completes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, shell: str, line: str, expected: str
) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed here")
    script = tmp_path / f"completion.{shell}"
    script.write_text(run(capsys, "completion", shell), encoding="utf-8")
    (tmp_path / "metacount").write_text(f'#!/bin/sh\nexec {sys.executable} -m metacount "$@"\n')
    (tmp_path / "metacount").chmod(0o755)
    starts = {
        "bash": "",
        "zsh": "unsetopt zle_bracketed_paste; autoload -U compinit; compinit -D; ",
        "fish": "",
    }
    options = {"bash": ["--norc", "--noprofile", "-i"], "zsh": ["-f", "-i"], "fish": ["-N", "-i"]}
    path = f"PATH={tmp_path}:$PATH; " if shell != "fish" else f"set -x PATH {tmp_path} $PATH; "
    setup = f"{path}{starts[shell]}source {script}"
    assert expected in typed_into([program, *options[shell]], setup, line, expected)


def test_an_unknown_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "invalid choice: 'tcsh'" in refused(capsys, "completion", "tcsh")
    assert "SHELL" in refused(capsys, "completion")
