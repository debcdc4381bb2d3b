"""What has no formula of ours says what can be asked instead, and that works."""

from __future__ import annotations

import re
import shlex

import pytest
from helpers.command_line import refused
from helpers.release import one_day_in

from metacount.cli import main


@pytest.mark.parametrize(
    "arguments",
    [
        ("formula", "type:zamba"),
        ("formula", "type:zamba", "--quantity", "matmul_flops", "--latex"),
        ("check", "12*n_layers*d_model**2", "type:zamba"),
        ("count", "type:zamba", "--conventions"),
    ],
)
def test_a_model_without_a_formula_names_what_works(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    error = refused(capsys, *arguments)
    assert "--from-code" in error
    assert "`metacount count type:zamba`" in error


@one_day_in(3)
def test_what_is_named_works(capsys: pytest.CaptureFixture[str]) -> None:
    error = refused(capsys, "formula", "type:bitnet")
    commands = re.findall(r"`metacount ([^`]*)`", error)
    assert len(commands) == 2
    for command in commands:
        assert main(shlex.split(command)) == 0
        out, err = capsys.readouterr()
        assert out
        assert err == ""


def test_a_model_of_all_sizes_names_what_works(capsys: pytest.CaptureFixture[str]) -> None:
    error = refused(capsys, "verify", "type:zamba", "--all-sizes")
    error = refused(capsys, "count", "type:zamba", "--set", "n_layers=2")
    assert "config.json" in error
