"""`metacount completion`: what may follow a line, and what shells make of it."""

from __future__ import annotations

import contextlib
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
from helpers.command_line import Ask
from helpers.release import daily

from metacount.cli import COMMANDS
from metacount.cli.completion import SCRIPTS
from metacount.cli.options import options_of, rules_of
from metacount.cli.tree import COLUMNS

# What is typed; what must be among the answers, and what must not.
TYPED = """
co                           | count completion                       | tree --json
--v                          | --version                              | --json
count llama-7b gpt2-m        | gpt2-medium                            | gpt2-xl
diff llama-7b --             | --set --json --csv                     | --quantity llama-7b
count --dtype b              | bf16                                   | fp32 bert-base
count --dtype bf16 gpt2-l    | gpt2-large                             | bf16
formula gpt2 --quantity kv   | kv_cache_bytes                         | params gpt2
claims --verdict w           | wrong                                  | right
bench ffn --dtype fp16 b     | bf16                                   | bench
count gpt2 --set n_kv        | n_kv_heads=                            | n_heads=
count gpt2 --set norm_pl     | norm_placement=post norm_placement=pre | norm=
tree gpt2 --columns shape,by | shape,bytes                            | bytes
nosuch x                     |                                        | count
"""


@pytest.mark.parametrize("row", TYPED.strip().splitlines())
def test_what_may_follow_a_line(ask: Ask, row: str) -> None:
    line, there, not_there = (part.strip() for part in row.split("|"))
    for shell in SCRIPTS:
        lines = ask(f"completion {shell} --line", f"metacount {line}").splitlines()
        answers = {each.partition("\t")[0] for each in lines}
        if shell == "bash":  # which has only what stands after the last =
            answers = {line.split()[-1].rpartition("=")[0] + each.rstrip() for each in answers}
        assert {*there.split()} <= answers
        assert not {*not_there.split()} & answers


@daily(8)
@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command_is_completed(ask: Ask, name: str) -> None:
    lines = [line for line in ask(f"{name} --help").splitlines() if line.startswith("  -")]
    heads = " ".join(re.split(r" {2,}", line.strip())[0] for line in lines)
    completed = ask("completion zsh --line", f"metacount {name} --").splitlines()
    assert {*completed} == {*re.findall(r"--[a-z][a-z-]*", heads)} > {"--help"}


def test_files_where_files_belong(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my model.json").write_text("{}")
    (tmp_path / "my_folder").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for line in ("count my", "count gpt2 my", "plot gpt2 -o my", "count --folder my"):
        found = ask("completion bash --line", f"metacount {line}").splitlines()
        assert found == ["my\\ model.json ", "my_folder/"]
    assert ask("completion zsh --line", "metacount count ~/my_") == "~/my_folder/\n"
    assert ask("completion zsh --line", "metacount count --dtype my") == ""


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
            end, start = time.monotonic() + 120, len(shown)
            while wanted.encode() not in shown[start:] and time.monotonic() < end:
                if select.select([terminal], [], [], 0.2)[0]:
                    shown += os.read(terminal, 65536)
        return shown[start:].decode(errors="replace")
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
        os.close(inside)


@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_tab_key_completes(ask: Ask, tmp_path: Path, shell: str) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed here")
    script = tmp_path / f"completion.{shell}"
    script.write_text(ask(f"completion {shell}"), encoding="utf-8")
    (tmp_path / "metacount").write_text(f'#!/bin/sh\nexec {sys.executable} -m metacount "$@"\n')
    (tmp_path / "metacount").chmod(0o755)
    start = "unsetopt zle_bracketed_paste; autoload -U compinit; compinit -D; " * (shell == "zsh")
    options = {"bash": "--norc --noprofile -i", "zsh": "-f -i", "fish": "-N -i"}[shell].split()
    path = f"PATH={tmp_path}:$PATH; " if shell != "fish" else f"set -x PATH {tmp_path} $PATH; "
    setup = f"{path}{start}source {script}"
    for line, end in (("tree mixtral-8", "x7b"), ("count gpt2 --set norm_placement=sandw", "ich")):
        expected = line.split()[-1] + end
        assert expected in typed_into([program, *options], setup, f"metacount {line}", expected)


@pytest.mark.parametrize("name", COMMANDS)
def test_what_goes_together_is_said_of_options_that_there_are(name: str) -> None:
    known = {
        word
        for option in options_of(name)
        for word in (option.names if option.is_named else [option.keywords["metavar"]])
    }
    for kind in ("apart", "belongs"):
        for row in rules_of(name, kind):
            assert len(row) == 2 and {*" ".join(row).split()} <= known


def test_words_of_the_table_are_those_of_the_code() -> None:
    words = {o.dest: o.words() for name in ("tree", "completion") for o in options_of(name)}
    assert words["columns"] == (*COLUMNS,)
    assert words["shell"] == (*SCRIPTS,)


# ---- a line on a terminal while a command runs


# the line is there at once: how fast the machine is decides nothing
AT_ONCE = (
    "import sys; from metacount.cli import main, progress; progress.FIRST = 0; "
    "sys.exit(main(sys.argv[1:]))"
)


def on_a_terminal(line: str, term: str = "xterm") -> tuple[bytes, str]:
    """What a command writes to stdout, and to a stderr that is a terminal."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", AT_ONCE, *line.split()]
    env = {**os.environ, "TERM": term, "COLUMNS": "60"}
    out = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, env=env).stdout
    os.close(theirs)
    said = b""
    with contextlib.suppress(OSError):  # all is read
        while some := os.read(ours, 4096):
            said += some
    os.close(ours)
    return out, said.decode()


@pytest.mark.parametrize("line", ["tree gpt2", "claims mixtral-total", "plot gpt2 --html p.html"])
def test_a_line_that_is_gone_at_the_end(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out, said = on_a_terminal(line)
    *lines, last = said.split("\r")
    assert out and lines and last == "\x1b[K"
    assert all(re.fullmatch(r"[\w ]+  \d+ s\x1b\[K", line) for line in lines)
    assert on_a_terminal("tree textbook-block", term="dumb")[1] == ""
