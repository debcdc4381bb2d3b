"""Encoders on a mesh: formula and engine agree, and nothing is decoded token by token."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.command_line import refused, run, run_json
from helpers.release import daily, one_in
from helpers.sharding_specs import ENCODERS
from helpers.sharding_told import as_told, job

import metacount
from metacount import Workload
from metacount.formulas import ends, kept_sharding
from metacount.sharding.by_engine import measured_kinds
from metacount.sharding.formula.kinds import counted_kinds
from metacount.sharding.plan import default_plan
from metacount.sharding.result import Kind

CASES: list[tuple[str, str, int, dict[str, Any]]] = [
    ("electra", "dp=3,tp=2", 3, {}),  # 7, 29 and 53 are cut unevenly
    ("bert", "dp=2,tp=2", 2, {"dtype": "bf16", "master": True}),
    ("bert", "dp=2,tp=2,pp=2", -1, {}),
    ("modernbert", "dp=2,pp=2", 1, {"micro_batches": 2}),
    ("bert", "dp=5,pp=3", 3, {"checkpointing": "full"}),
    ("electra", "tp=4", 0, {"dtype": "bf16", "attention": "flash"}),
    ("modernbert", "dp=2,tp=2", -1, {}),
    ("electra", "dp=2,pp=2", 1, {"micro_batches": 2, "optimizer": "sgd-momentum"}),
    ("modernbert", "dp=2,tp=2", 3, {"checkpointing": "full"}),
]
MEASURED: dict[int, list[Kind]] = {}


def told(number: int, *, formula: bool) -> list[dict[str, Any]]:
    name, mesh, zero, changes = CASES[number]
    asked, spec = job(mesh, zero, decodes=False, **changes), ENCODERS[name]
    if formula:
        return as_told(counted_kinds(spec, asked, default_plan(spec)))
    if number not in MEASURED:
        MEASURED[number] = measured_kinds(spec, asked, default_plan(spec))
    return as_told(MEASURED[number])


@daily(3)
@pytest.mark.parametrize("number", one_in(3, range(len(CASES))))
def test_formula_and_engine_agree_to_the_last_element(number: int) -> None:
    found = told(number, formula=False)
    assert found == told(number, formula=True)
    assert sum(kind["count"] for kind in found) == job(CASES[number][1]).mesh.world


def test_an_encoder_reads_once_and_keeps_nothing_between_tokens() -> None:
    for formula in (True, False):
        found = metacount.shard(ENCODERS["bert"], "dp=2,tp=2", seq_len=8, formula=formula)
        (kind, _) = found.kinds
        assert (kind.kv_cache_bytes, kind.state_bytes) == (0, 0)
        # the sum of the look-ups, and of both branches of each of three blocks: 8·16 values
        sums = [c for c in kind.collectives if c.kind == "all-reduce"]
        assert {(c.phase, c.n_bytes, c.times) for c in sums} == {("forward", 2 * 8 * 16, 7)}


@daily(2)
@pytest.mark.parametrize("name", one_in(2, ENCODERS))
def test_on_one_rank_the_backward_keeps_what_it_does_without_a_mesh(name: str) -> None:
    """Part by part on a fake world, or as one model on meta: the same storages."""
    spec = ENCODERS[name]
    whole = metacount.train(spec, Workload(batch_size=1, seq_len=9, dtype="bf16"), reference=True)
    for kinds in (measured_kinds, counted_kinds):
        (kind,) = kinds(spec, job("dp=1", dtype="bf16"), default_plan(spec))
        assert kind.activation_bytes == whole.activation_bytes > 0
        assert kind.optimizer_bytes == whole.optimizer_bytes
        assert kind.gradient_bytes == whole.gradient_bytes


PLANTED = {
    "the head has no transform": (ends, "embedding_norm_weights", lambda spec, name="": ()),
    "every rank keeps whole blocks": (kept_sharding, "kept_spec", lambda spec, rank: spec),
    "the head keeps nothing": (kept_sharding, "head_terms", lambda spec, run: []),
}


@pytest.mark.parametrize("mistake", PLANTED)
def test_a_wrong_formula_is_caught(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = told(0, formula=False)
    assert found == told(0, formula=True)
    home, name, wrong = PLANTED[mistake]
    monkeypatch.setattr(home, name, wrong)
    assert found != told(0, formula=True)


def test_the_command_takes_a_catalog_model_and_a_config(
    capsys: pytest.CaptureFixture[str], eighty_columns: None
) -> None:
    asked = ("shard", "bert-base", "--mesh", "dp=2,tp=2", "--formula")
    text, found = run(capsys, *asked), run_json(capsys, *asked)
    assert "serving, batch 2, seq 512" in text
    assert "KV cache" not in text
    assert found["kinds"][0]["params"] < metacount.count("bert-base").params
    trained = run_json(capsys, "shard", "type:bert", "--mesh", "dp=2", "--train", "--formula")
    assert trained["kinds"][0]["activation_bytes"] > 0
    (fitting,) = run_json(capsys, "fit", "type:bert", "--gpu", "l4")["answers"]
    assert (fitting["world"], fitting["largest_batch_size"]) == (1, None)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("bert-base --mesh dp=2 --train", "pooler has no plan for training on a mesh: no loss"),
        ("type:bert --mesh cp=2", "cp has no plan for an encoder: torch's ring takes causal att"),
        ("t5-small --mesh dp=2", "every layer of the decoder reads what the encoder gave: got 'e"),
        ("type:bert --mesh tp=5", "tp must divide n_heads: 12 % 5 = 2"),
        pytest.param(
            "type:bert --mesh tp=2 --train --plan transformers",
            "has no `tp_plan`; change --mesh",
            marks=pytest.mark.release,
        ),
    ],
)
def test_what_has_no_plan_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: str, line: str
) -> None:
    assert line in refused(capsys, "shard", *arguments.split())


def test_a_body_without_a_head_is_counted_but_for_what_its_backward_keeps() -> None:
    body = ENCODERS["modernbert"].replace(has_head=False)
    found = metacount.shard(body, "dp=2", train=True, seq_len=8, formula=True)
    assert found.largest.activation_bytes is None
    assert any("without logits there is no loss" in note for note in found.missing)
    measured = metacount.shard(body, "dp=2", train=True, seq_len=8)
    assert measured.largest.gradients == found.largest.gradients == found.largest.params
