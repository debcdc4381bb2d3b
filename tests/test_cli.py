"""The command line as such: what it refuses, how its text looks, how the process ends."""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest
from helpers.command_line import assert_readable, refused, run
from helpers.release import daily

from metacount.cli import COMMANDS, main
from metacount.formulas import model as formulas

pytestmark = pytest.mark.usefixtures("eighty_columns")


def script(*arguments: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "metacount", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        **settings,
    )


# A request and what its refusal says; words that no shell would pass on are below.
REFUSED = """
count lama-7b                            llama-7b
count zzzzzz                             see `metacount models`
count some/where/else                    no such file
count type:lama                          llama
formula type:zamba                       has no spec, so there is no formula
count type:zamba --set n_layers=2        --set
formula llama4-maverick                  the vision tower
count gpt2 --set n_layers                --set needs FIELD=VALUE
count gpt2 --set n_lairs=2               did you mean n_layers
count gpt2 --set =2                      --set
count gpt2 --set n_layers=               --set n_layers
count gpt2 --set n_layers=two            --set n_layers
count gpt2 --set n_layers=1e3            --set n_layers
count gpt2 --set n_layers=none           --set n_layers
count gpt2 --set d_ff=x                  --set d_ff
count gpt2 --set n_layers=0              n_layers
count gpt2 --set n_layers=999999999      n_layers
count gpt2 --set gated=yes               --set gated
count gpt2 --set norm_eps=nan            norm_eps
count gpt2 --set norm=batchnorm          norm
count gpt2 --set n_layers=2 --set n_layers=3    is given twice
count llama-7b --set n_kv_heads=5        n_kv_heads must divide n_heads
count gpt2 --batch 0                     batch_size
count gpt2 --seq -5                      seq_len
count gpt2 --seq 8T                      '8T'
count gpt2 --seq 1099511627777           seq_len
count gpt2 --dtype int3                  dtype is unknown
count gpt2 --prefix 3                    prefix_len belongs to a prefix-decoder
count gpt2 --source-len 3                source_len
count glm-130b --prefix 9999             prefix_len
verify gpt2 --prefix 3                   prefix_len belongs to a prefix-decoder
count                                    --folder
count gpt2 --what                        unrecognized arguments: --what
count gpt2 --bat 3                       unrecognized arguments
formula gpt2 llama-7b                    unrecognized arguments
formula gpt2 --quantity parms            params
formula gpt2 --latex --python            not allowed with
cuont gpt2                               unknown command 'cuont'; did you mean count?
params gpt2                              did you mean count?
fsdp                                     did you mean shard?
"""
ODD = [
    (["count", ""], ""),
    (["count", "a\nb\x1b[2J"], r"a\nb\x1b[2J"),
    (["count", "\udcff"], r"\udcff"),
    (["count", "gpt2", "--set", "n_layers=" + "9" * 5000], ""),
    (["count", "gpt2", "--seq", "9" * 5000], ""),
    (["count", "gpt2", "--what\n\x1b[2J" + "x" * 9999], "unrecognized arguments"),
]
ROWS = [re.split(" {2,}", row) for row in REFUSED.strip().splitlines()]


@pytest.mark.parametrize(("arguments", "message"), [*((a.split(), m) for a, m in ROWS), *ODD])
def test_a_wrong_request_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    error = refused(capsys, *arguments)
    assert message in error and len(error) < 700


def test_a_bug_is_not_called_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> int:
        raise ValueError("ours, not theirs")

    monkeypatch.setattr(formulas, "forward_run", broken)
    with pytest.raises(ValueError, match="ours, not theirs"):
        main(["count", "gpt2"])


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "--help")
    assert all(name in text for name in COMMANDS)
    assert_readable(text.splitlines(), 80)
    for name in COMMANDS:
        lines = run(capsys, name, "--help").splitlines()
        assert lines[0].startswith(f"usage: metacount {name}")
        assert_readable(lines, 80)
    assert re.fullmatch(r"metacount \d+\.\d+\.\d+\n", run(capsys, "--version"))


def test_garbage_is_left_alone_in_a_process_of_ours_alone() -> None:
    threshold, frozen = gc.get_threshold(), gc.get_freeze_count()
    assert main(["count", "gpt2", "--json"]) == 0
    # some of what is frozen may end, and then is no longer counted
    assert gc.get_threshold() == threshold and gc.get_freeze_count() <= frozen
    code = (
        "import gc, sys\nfrom metacount.cli import main\n"
        "sys.argv = ['metacount', 'count', 'gpt2']\n"
        "main()\nprint(gc.get_threshold()[0] > 700, gc.get_freeze_count() > 0, gc.isenabled())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("\nTrue True True\n")


def test_a_reader_that_has_seen_enough_ends_it_quietly() -> None:
    # argparse itself may have swallowed the error: then it was still quiet
    for arguments, codes in (
        (["models", "--json"], {141}),
        (["count", *["llama-7b"] * 99], {141}),
        (["--help"], {0, 141}),
    ):
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run(
            [sys.executable, "-m", "metacount", *arguments],
            stdout=write,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
        os.close(write)
        assert done.stderr == b""
        assert done.returncode in codes


@daily(3)
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_terminal_without_unicode_is_no_crash(encoding: str) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0", "LC_ALL": "C"}
    for line in ("formula llama-7b", "count llama-7b", "formula llama-7b --json"):
        done = script(*line.split(), env=environment, encoding=encoding)
        assert (done.returncode, done.stderr) == (0, "")
        if "--json" in line:  # wherever it is written
            assert done.stdout.isascii() or encoding == "utf-8"
            assert "·" in json.loads(done.stdout)["parts"]["ffn"]["letters"]
        else:
            assert "6,738,415,616" in done.stdout


def test_an_odd_width_is_no_crash(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for odd in ("0", "-5", "1", "x", "", "9" * 30, "²"):
        monkeypatch.setenv("COLUMNS", odd)
        assert "6,738,415,616" in run(capsys, "count", "llama-7b")
        assert "6,738,415,616" in run(capsys, "formula", "llama-7b")
