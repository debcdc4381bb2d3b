"""`metacount completion`: what bash, zsh and fish really complete with the scripts."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from helpers.command_line import refused, run
from helpers.release import daily

from metacount import catalog
from metacount.cli import COMMANDS
from metacount.cli.completion import SHELLS

# What is typed, and what must be (and must not be) among the answers.
TYPED = [
    ("metacount co", {"count", "completion"}, {"tree", "--json"}),
    ("metacount --v", {"--version"}, {"--json"}),
    ("metacount count mixtral", {"mixtral-8x7b"}, {"mistral-7b", "--json"}),
    ("metacount count llama-7b gpt2-m", {"gpt2-medium"}, {"gpt2-xl"}),
    ("metacount diff llama-7b --", {"--set", "--json", "--csv"}, {"--quantity", "llama-7b"}),
    ("metacount count --dtype b", {"bf16"}, {"fp32", "bert-base"}),
    ("metacount count --dtype bf16 gpt2-l", {"gpt2-large"}, {"bf16"}),
    ("metacount formula gpt2 --quantity kv", {"kv_cache_bytes"}, {"params", "gpt2"}),
    ("metacount formula --by o", {"operator"}, {"role"}),
    ("metacount claims --verdict w", {"wrong"}, {"right"}),
    ("metacount claims mixtral-t", {"mixtral-total"}, {"block-512-total"}),
    ("metacount bench ffn --dtype fp16 b", {"bf16"}, {"bench"}),
    ("metacount completion f", {"fish"}, {"bash"}),
]
SETTINGS = [
    ("metacount count gpt2 --set n_kv", {"n_kv_heads="}, {"n_heads="}),
    ("metacount count gpt2 --set norm_pl", {"norm_placement=post", "norm_placement=pre"}, set()),
]


def available(shell: str) -> str:
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"{shell} is not installed here")
    return found


@pytest.fixture
def script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    paths = {}
    for shell in SHELLS:
        file = tmp_path / f"completion.{shell}"
        file.write_text(run(capsys, "completion", shell), encoding="utf-8")
        paths[shell] = str(file)
    return paths


def answers_of_bash(bash: str, script: str, line: str) -> set[str]:
    """What the function that bash calls gives for a line, the last word as bash splits it."""
    program = """
source "$1"
COMP_LINE=$2 COMP_POINT=${#2} COMP_WORDS=(metacount)
_metacount
printf '%s\\n' "${COMPREPLY[@]}"
"""
    done = subprocess.run(
        [bash, "--norc", "-c", program, "bash", script, line],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stderr == ""
    return set(done.stdout.splitlines()) - {""}


@daily(6)
@pytest.mark.parametrize(("line", "there", "not_there"), [*TYPED, *SETTINGS])
def test_bash_completes(
    script: dict[str, str], line: str, there: set[str], not_there: set[str]
) -> None:
    found = answers_of_bash(available("bash"), script["bash"], line)
    assert there <= found
    assert not not_there & found


def test_bash_completes_after_a_sign_that_splits_words(script: dict[str, str]) -> None:
    bash = available("bash")
    # readline puts the answer behind the last =, so the answer is the rest alone
    line = "metacount count gpt2 --set norm_placement=sand"
    assert answers_of_bash(bash, script["bash"], line) == {"sandwich"}
    columns = answers_of_bash(bash, script["bash"], "metacount tree gpt2 --columns shape,by")
    assert columns == {"shape,bytes"}


def test_bash_completes_files_where_files_belong(
    script: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_model.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    bash = available("bash")
    for line in (
        "metacount count my_",
        "metacount plot gpt2 -o my_",
        "metacount count --folder my_",
    ):
        assert answers_of_bash(bash, script["bash"], line) == {"my_model.json"}
    assert answers_of_bash(bash, script["bash"], "metacount count --dtype my_") == set()


def test_bash_quotes_a_space(script: dict[str, str]) -> None:
    found = answers_of_bash(available("bash"), script["bash"], "metacount models --family DeepSeek")
    assert "DeepSeek\\ V3" in found


@daily(6)
@pytest.mark.parametrize(("line", "there", "not_there"), [*TYPED, *SETTINGS])
def test_fish_completes(
    script: dict[str, str], line: str, there: set[str], not_there: set[str]
) -> None:
    fish = available("fish")
    done = subprocess.run(
        [fish, "--no-config", "-c", f"source {script['fish']}; complete -C '{line}'"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    found = {answer.partition("\t")[0] for answer in done.stdout.splitlines()}
    if "fp16" not in line:  # fish knows options with one value alone
        assert there <= found
    assert not not_there & found


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
            end = time.monotonic() + 20
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


@daily(4)
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("metacount tree mixtral-8", "mixtral-8x7b"),
        ("metacount tree gpt2 --col", "--columns"),
        ("metacount count gpt2 --set norm_placement=sandw", "norm_placement=sandwich"),
        ("metacount formula gpt2 --quantity kv_", "kv_cache_bytes"),
    ],
)
@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_tab_key_completes(
    script: dict[str, str], shell: str, line: str, expected: str
) -> None:
    found = available(shell)
    setups = {
        "bash": "",
        "zsh": "unsetopt zle_bracketed_paste; autoload -U compinit; compinit -D; ",
    }
    options = {"bash": ["--norc", "--noprofile", "-i"], "zsh": ["-f", "-i"]}
    shown = typed_into(
        [found, *options[shell]], f"{setups[shell]}source {script[shell]}", line, expected
    )
    assert expected in shown


@daily(8)
@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command_is_completed(
    capsys: pytest.CaptureFixture[str], script: dict[str, str], name: str
) -> None:
    lines = [line for line in run(capsys, name, "--help").splitlines() if line.startswith("  -")]
    heads = [re.split(r" {2,}", line.strip())[0] for line in lines]
    options = {option for head in heads for option in re.findall(r"--[a-z][a-z-]*", head)}
    assert "--help" in options
    assert answers_of_bash(available("bash"), script["bash"], f"metacount {name} --") == options


def test_every_model_is_in_every_script(script: dict[str, str]) -> None:
    for shell in SHELLS:
        text = Path(script[shell]).read_text(encoding="utf-8")
        assert all(id in text for id in catalog.ids())


def test_an_unknown_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "invalid choice: 'tcsh'" in refused(capsys, "completion", "tcsh")
    assert "SHELL" in refused(capsys, "completion")
