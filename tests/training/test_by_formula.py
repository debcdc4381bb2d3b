"""A step by formulas alone, as `train` sets it up; and beside each measured step."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.command_line import refused, run, run_json
from helpers.miniatures import TINY, miniature
from helpers.release import daily, one_day_in, one_in
from torch import nn

import metacount
from metacount import InputError, Setup, SpecError, Training, Workload, catalog
from metacount.cli.report import in_text
from metacount.cli.train import report_of
from metacount.formulas import trained
from metacount.formulas.step import backward_matmul_flops_by_role
from metacount.formulas.tape import Pass
from metacount.modules.build import build
from metacount.spec import ModelSpec
from metacount.textbook.training import COMPARED, OVER_TIME

SPEC = ModelSpec.from_dict(TINY)
RUN = Workload(batch_size=2, seq_len=7)
SMALL = ("train", "gpt2", "--set", "n_layers=2", "--seq", "32")


def small(name: str) -> ModelSpec:
    return miniature(catalog.entry(name).spec())


@pytest.fixture(scope="module")
def plain() -> Training:
    return metacount.train(SPEC, RUN)


# a setup, and which figures have no formula then
WAYS: list[tuple[dict[str, Any], set[str]]] = [
    ({}, set()),
    ({"attention": "flash", "checkpointing": "full"}, set()),
    ({"attention": "sdpa"}, set()),
    ({"checkpointing": "selective"}, set()),
    ({"checkpointing": "selective", "attention": "flash"}, set()),
    ({"loss": "chunked", "checkpointing": "full"}, {"activation_bytes"}),
    ({"foreach": True, "optimizer": "adafactor"}, set()),
    ({"master_weights": True, "grad_dtype": "fp32", "optimizer": "muon"}, set()),
    ({"lora_rank": 3, "lora_targets": ("all-linear",)}, set()),
    ({"freeze": ("lm_head", "embed_tokens"), "optimizer": "muon"}, set()),
]


@daily(6)
@pytest.mark.parametrize(("choices", "missing"), one_in(5, WAYS))
@pytest.mark.parametrize("name", ["llama-7b", "deepseek-v2", "t5-base"])
def test_formulas_stand_beside_what_was_measured(
    name: str, choices: dict[str, Any], missing: set[str]
) -> None:
    if name == "t5-base" and choices.get("attention") == "flash":
        choices = {**choices, "attention": "eager"}  # the kernel takes no bias
    found = metacount.train(small(name), RUN, Setup(**choices))
    assert [*found.formula] == [*COMPARED]
    assert {figure for figure, n in found.formula.items() if n is None} == missing
    assert {*found.uncovered} == missing
    for figure, counted in found.formula.items():
        if counted is not None:
            assert counted == getattr(found, figure), figure


@daily(3)
@pytest.mark.parametrize("name", ["deepseek-v3.2", "bert-base", "chinchilla-70b"])
def test_adapters_that_the_loss_does_not_see_are_stored(name: str) -> None:
    """An indexer's and a pooler's; Transformer-XL's projection of positions is seen."""
    setup = Setup(lora_rank=3, lora_targets=("all-linear",))
    found = metacount.train(small(name), RUN, setup)
    counted = metacount.count_training(small(name), RUN, setup)
    for figure in ("params", "trainable_params", *COMPARED):
        if getattr(counted, figure) is not None:
            assert getattr(counted, figure) == getattr(found, figure), figure
    assert {*counted.uncovered} & {*COMPARED} == (
        {"activation_bytes"} if name == "bert-base" else set()
    )


def test_vectors_that_are_given_have_no_gradient() -> None:
    """Two products for each of the forward are too many: this is why there is no formula."""
    spec = small("textbook-block")
    found = metacount.train(spec, RUN)
    assert found.formula["backward_matmul_flops"] is None
    assert 2 * found.matmul_flops > found.backward_matmul_flops
    with pytest.raises(SpecError, match="is given instead of tokens"):
        backward_matmul_flops_by_role(spec, Pass(batch_size=2, seq_len=7))
    assert "is given instead of tokens" in found.uncovered["backward_matmul_flops"]


def test_what_differs_is_told(plain: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "formula  equal: param_bytes, gradient_bytes, optimizer_bytes" in in_text(
        report_of(plain)
    )
    assert "None" not in in_text(report_of(plain))
    monkeypatch.setattr(trained, "STEP", 5)
    again = metacount.train(SPEC, RUN)
    # a counter for each of 3 layers' 9 tensors, two tables and the last norm
    wrong = again.optimizer_bytes + 3 * 9 + 3
    assert again.formula["optimizer_bytes"] == wrong
    text = in_text(report_of(again))
    assert f"formula  optimizer_bytes: {wrong:,}, +30" in text
    assert "equal: param_bytes, gradient_bytes, activation_bytes" in text


@one_day_in(6)
def test_another_implementation_is_not_compared(capsys: pytest.CaptureFixture[str]) -> None:
    own = metacount.train(nn.Sequential(nn.Linear(3, 5)), input_size=(2, 3))
    assert (own.formula, own.uncovered) == ({}, {})
    assert "formula" not in str(own)
    line = ("train", "type:gpt2", "--seq", "5")
    theirs = run_json(capsys, *line)
    assert (theirs["source"], theirs["formula"], theirs["uncovered"]) == ("transformers", {}, {})
    ours = run_json(capsys, *line, "--reference")
    assert ours["formula"]["activation_bytes"] == ours["activation_bytes"]
    # a reference module in hand has its spec
    of_module = metacount.train(build(SPEC, dtype="bf16"), RUN)
    assert of_module.formula == metacount.train(SPEC, RUN).formula


@daily(3)
@pytest.mark.parametrize(
    "more",
    [
        "",
        "--attention flash --checkpointing full --optimizer muon",
        "--master-weights --grad-dtype fp32 --loss chunked --foreach",
        "--lora-rank 4",
        "--freeze embed_tokens,decoder.layers.0.mlp",
    ],
)
def test_the_command_counts_what_it_measures(
    capsys: pytest.CaptureFixture[str], eighty_columns: None, more: str
) -> None:
    line = (*SMALL, *more.split())
    measured, counted = run_json(capsys, *line), run_json(capsys, *line, "--formula")
    text = run(capsys, *line, "--formula")
    assert counted["source"] == "formula"
    assert "one training step, by formulas\n" in text
    assert all(len(row) <= 80 and row == row.rstrip() for row in text.splitlines())
    for key in ("model", "name", "workload", "setup", "trainable_params", "params"):
        assert counted[key] == measured[key], key
    for key in (*COMPARED, *(key for key in counted if key.endswith("_by_role"))):
        if counted[key] is None:
            assert key.removesuffix("_by_role") in counted["uncovered"]
            continue
        assert counted[key] == measured[key], key
        if counted[key] and isinstance(counted[key], int):
            assert f"{key} " in text
            assert f" {counted[key]:,} " in text
    # what is not counted is told, and is no zero
    part, uncovered = "lora" in more or "freeze" in more, counted["uncovered"]
    assert {*OVER_TIME} <= uncovered.keys()
    assert not {*OVER_TIME} & counted.keys()
    assert ("activation_bytes" in uncovered) == ("chunked" in more)
    assert ("optimizer_matmul_flops" in uncovered) == ("muon" in more)
    assert ("activation_bytes_of_block" in uncovered) == part
    told = " ".join(text.partition("\nno formula")[2].split())
    assert all(name in told and why in told for name, why in uncovered.items())
    equal = "formula  equal: param_bytes, gradient_bytes, optimizer_bytes, activation_bytes,"
    assert (equal in run(capsys, *line)) == ("chunked" not in more)


def test_blocks_of_each_kind_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "train", "deepseek-v3", "--formula", "--checkpointing", "full")
    each = 2 * 2048 * 7168  # the input of a block, in bf16
    assert f"dense                  3  {each:,}" in text
    assert f"experts               58  {each:,}" in text


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("gpt2 --input 2,3", "--input is for FILE.py:NAME"),
        ("llama4-scout", "has no spec, so there is no formula"),
        ("gpt2 --freeze lm_hed", "freeze names nothing of the model that has parameters"),
        ("gpt2 --freeze lm_head,decoder", "freeze leaves nothing to train"),
        ("gpt2 --dtype fp8", "dtype is not one that a module is trained in: got 'fp8'"),
        ("gpt2 --dtype fp32 --master-weights", "master_weights is for 16-bit parameters"),
        ("gpt2 --grad-dtype fp32", "grad_dtype must be that of the parameters (bf16)"),
        ("gpt2 --lora-rank 2 --lora-targets q_prj", "lora_targets names no linear layer"),
    ],
)
def test_what_has_no_formula_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: str, line: str
) -> None:
    assert line in refused(capsys, "train", *arguments.split(), "--formula")


def test_the_api_refuses_alike() -> None:
    flash, wide = Setup(attention="flash"), Workload(seq_len=5, dtype="fp32")
    counted = metacount.count_training(SPEC, RUN, flash)
    assert counted.activation_bytes == metacount.train(SPEC, RUN, flash).activation_bytes
    with pytest.raises(SpecError, match="master_weights is for 16-bit"):
        metacount.count_training(SPEC, wide, Setup(master_weights=True))
    module = build(SPEC, dtype="bf16")
    assert metacount.count_training(module, RUN) == metacount.count_training(SPEC, RUN)
    module.lm_head = None
    with pytest.raises(InputError, match="it was changed after it was built"):
        metacount.count_training(module, RUN)
    # no such kernel exists: nothing is said of what it would keep
    said = metacount.count_training(SPEC, wide, flash).uncovered
    assert "is of a kernel for 16-bit types" in said["activation_bytes"]
