"""One word means one thing in every command that has it."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.command_line import refused, run, run_json


def test_several_lengths_are_written_in_one_way(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bars = run_json(capsys, "plot", "gpt2", "--quantity", "matmul_flops", "--seq", "1k,16")
    assert [bar["workload"]["seq_len"] for bar in bars] == [1024, 16]
    cases = run_json(
        capsys, "bench", "attention", "--seq", "1k,16", "8", "--device", "cpu", "--list"
    )
    assert {case["workload"]["seq_len"] for case in cases} == {1024, 16, 8}
    with_commas = run(capsys, "audit", "slime-forward", "--model", "gpt2", "--seq", "1k,16")
    assert with_commas == run(
        capsys, "audit", "slime-forward", "--model", "gpt2", "--seq", "1024", "16"
    )
    error = refused(capsys, "count", "gpt2", "--seq", "1k,16")
    assert "one length here; `metacount plot`, `metacount audit` and `metacount bench`" in error


def test_the_file_of_an_answer_is_output(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page, picture = str(tmp_path / "page.html"), str(tmp_path / "mesh.svg")
    assert page in run(capsys, "plot", "gpt2", "--output", page)
    assert "<html" in Path(page).read_text("utf-8")
    run(capsys, "shard", "gpt2", "--mesh", "dp=2", "--formula", "--output", picture)
    assert "<svg" in Path(picture).read_text("utf-8")


def test_a_batch_of_all_ranks_is_a_global_batch(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("shard", "gpt2", "--mesh", "dp=2", "--formula")
    found = run_json(capsys, *asked, "--global-batch", "4")
    assert found == run_json(capsys, *asked, "--batch", "4")
    assert found["workload"]["batch_size"] == 4
