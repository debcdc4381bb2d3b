"""Encoders, and models whose layers differ, on a mesh: what is shown of them, and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.command_line import refused, run, run_json
from helpers.release import one_day_in
from helpers.sharding_specs import HYBRIDS

import metacount
from metacount.catalog import entry
from metacount.spec import Workload


def test_the_command_takes_an_encoder_and_a_config(
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


def test_a_state_is_shown_beside_the_cache(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("shard", "jamba-1.5-mini", "--mesh", "dp=2,ep=2", "--seq", "64", "--formula")
    text, (kind,) = run(capsys, *asked), run_json(capsys, *asked)["kinds"]
    whole = metacount.count("jamba-1.5-mini", Workload(batch_size=1, seq_len=64, dtype="bf16"))
    for quantity in ("state_bytes", "kv_cache_bytes"):
        assert kind[quantity] == getattr(whole, quantity)
    assert text.index("KV cache") < text.index("recurrent state")
    plain = run(capsys, "shard", "llama-7b", "--mesh", "dp=2", "--formula")
    assert "recurrent state" not in plain


def test_a_stage_does_not_end_before_what_its_experts_give_is_added(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """28 pairs on eight stages: four of the first, three of the others; a plan says otherwise."""
    asked = ("shard", "longcat-flash", "--mesh", "pp=8")
    found = run_json(capsys, *asked, "--formula")["kinds"]
    assert [kind["layers"] for kind in found for _ in kind["stages"]] == [8, 8, 8, 8, 6, 6, 6, 6]
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"pp": [7, 7, 7, 7, 7, 7, 7, 7]}))
    said = refused(capsys, *asked, "--plan", str(file))
    assert "ends a stage with layer 6, whose experts' output the next one adds" in said


@one_day_in(6)
def test_whose_kernels_mixers_are_is_said_where_they_ran() -> None:
    how: dict[str, Any] = {"train": True, "seq_len": 8}
    for formula in (True, False):
        ours = metacount.shard(HYBRIDS["griffin"], "dp=2", formula=formula, **how)
        assert any("a fused kernel may keep other" in note for note in ours.missing)
    plain = metacount.shard("gpt2", "dp=2", formula=True, **how)
    assert not any("fused kernel" in note for note in plain.missing)


def test_fit_finds_a_mesh_of_a_hybrid() -> None:
    (found,), _ = metacount.fit("jamba-1.5-mini", "h100-80gb")
    assert found.mesh is not None and found.largest is not None
    assert found.mesh.tp == 1 and entry("jamba-1.5-mini").spec().recurrent == "mamba"
    assert found.largest.state_bytes > 0


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("zamba2-1.2b --mesh tp=2", "tp has no plan for n_shared_blocks=1, blocks that layers sh"),
        ("jamba-1.5-mini --mesh cp=2 --train", "recurrent=mamba, a mixer that keeps a state; ch"),
        ("recurrentgemma-2b --mesh tp=2", "tp must divide n_kv_heads: 1 % 2 = 1; choose 1"),
        ("zamba2-1.2b --mesh pp=2", "pp has no plan for n_shared_blocks=1, blocks that layers sh"),
        ("minimax-m3-text --mesh tp=2", "--mesh tp has no plan for index_block_len=128"),
        ("minimax-m3-text --mesh cp=2", "--mesh cp has no plan for index_block_len=128"),
        ("longcat-flash --mesh pp=29", "the 28 layers or groups of them that stay together: got"),
        ("type:longcat_flash --mesh dp=2,ep=2", "ep has no plan for zero_expert_rows, matrices"),
        ("lfm2-1.2b --mesh dp=2,ep=2", "ep needs a model with experts"),
        ("bert-base --mesh dp=2 --train", "pooler has no plan for training on a mesh: no loss"),
        ("type:bert --mesh cp=2", "cp has no plan for an encoder: torch's ring takes causal att"),
        ("t5-small --mesh dp=2", "every layer of the decoder reads what the encoder gave: got 'e"),
        ("type:bert --mesh tp=5", "tp must divide n_heads: 12 % 5 = 2"),
    ],
)
def test_what_has_no_plan_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: str, line: str
) -> None:
    asked = ("shard", *arguments.split())
    for way in ((), ("--formula",)):
        assert line in refused(capsys, *asked, *way)
