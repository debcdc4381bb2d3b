"""Every block of the README runs and prints what the README shows.

A line `...` stands for any lines. Blocks of kind `console` start with `$ metacount ...`; blocks of
kind `python` run as they are; `sh` blocks name targets of the Makefile, which must exist.
"""

from __future__ import annotations

import re
import shlex

import pytest
from helpers import ROOT
from helpers.release import daily

from metacount import cli

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def of_kind(kind: str) -> list[str]:
    """The README's blocks of one kind."""
    return [text for name, text in BLOCKS if name == kind]


def matches(printed: str, shown: str) -> bool:
    """Whether `printed` is `shown`, where a line of three dots is any number of lines."""
    parts = [re.escape(part) for part in re.split(r"^\.\.\.\n", shown, flags=re.MULTILINE)]
    return re.fullmatch(r"(?:.*\n)*?".join(parts), printed) is not None


@daily(3)
@pytest.mark.parametrize("block", of_kind("console"))
def test_commands_print_what_the_readme_shows(
    block: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, flags=re.MULTILINE):
        program, *arguments = shlex.split(command)
        assert program == "metacount"
        cli.main(arguments)
        printed = capsys.readouterr()
        assert matches(printed.out + printed.err, shown), printed.out + printed.err


@pytest.mark.parametrize("block", of_kind("python"))
def test_python_runs_and_gives_what_the_readme_shows(block: str) -> None:
    import doctest

    test = doctest.DocTestParser().get_doctest(block, {}, "README", "README.md", 0)
    assert test.examples
    assert doctest.DocTestRunner().run(test).failed == 0


def test_make_targets_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = [
        t for block in of_kind("sh") for t in re.findall(r"^make (\w+)", block, re.MULTILINE)
    ]
    assert {"demo", "test"} <= set(targets)
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_comparison_can_fail() -> None:
    assert matches("a\nb\nc\n", "a\n...\nc\n")
    assert not matches("a\nb\nc\n", "a\n...\nd\n")
    assert not matches("a\nb\n", "a\n")
