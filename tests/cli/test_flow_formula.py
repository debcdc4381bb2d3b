"""`flow --formula`: the forward in letters, against `count` and `train --formula`."""

from __future__ import annotations

import pytest
from helpers.command_line import refused, run, run_json

from metacount.catalog import NotExpressible, entry, ids
from metacount.spec import Workload
from metacount.textbook.count import count
from metacount.textbook.forward import forward_table
from metacount.textbook.training import count_step
from metacount.training.setup import Setup


def expressible() -> list[str]:
    found = []
    for name in ids():
        try:
            entry(name).spec()
        except NotExpressible:
            continue
        found.append(name)
    return found


@pytest.mark.parametrize("name", expressible()[::6])
def test_its_flops_are_those_of_count(name: str) -> None:
    spec = entry(name).spec()
    work = Workload(batch_size=2, seq_len=48, source_len=32 if spec.has_encoder else None)
    assert forward_table(spec, work).matmul_flops == count(spec, work).matmul_flops


@pytest.mark.parametrize("attention", ["eager", "flash", "sdpa"])
def test_what_a_block_saves_is_what_train_says(attention: str) -> None:
    spec, work = entry("mixtral-8x7b").spec(), Workload(seq_len=64)
    table = forward_table(spec, work, attention=attention)
    saved = sum(step.saved_value for step in table.parts[1].steps)
    counted = count_step(spec, work, Setup(attention=attention)).activation_bytes_of_block
    assert counted == {"experts": saved}


def test_as_text_and_as_data(capsys: pytest.CaptureFixture[str]) -> None:
    given = ("flow", "gpt2", "--formula", "--seq", "64")
    text = run(capsys, *given)
    assert "self_attn.q_proj  x·Wᵀ  W [h·h_d, d]" in text
    assert "layers 0-11  ×12, each" in text
    data = run_json(capsys, *given)
    assert data["matmul_flops"] == count(entry("gpt2").spec(), Workload(seq_len=64)).matmul_flops


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("name", ["xlstm-7b", "qwen3-next-80b-a3b", "deepseek-v3"])
def test_it_fits_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = run(capsys, "flow", name, "--formula").splitlines()
    assert [line for line in lines if len(line) > width] == []


@pytest.mark.parametrize("more", [["--decode"], ["--reference"], ["--depth", "2"]])
def test_what_it_does_not_take(capsys: pytest.CaptureFixture[str], more: list[str]) -> None:
    assert "--formula does not go with" in refused(capsys, "flow", "gpt2", "--formula", *more)
