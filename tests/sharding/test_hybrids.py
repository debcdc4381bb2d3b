"""Models whose layers differ, on a mesh: formula and engine agree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.command_line import refused, run, run_json
from helpers.release import ONLY, daily, one_day_in, one_in
from helpers.sharding_specs import HYBRIDS
from helpers.sharding_told import as_told, job

import metacount
from metacount.catalog import entry
from metacount.formulas import kept_sharding, traffic
from metacount.modules.build import build
from metacount.modules.indexer import CHOOSING
from metacount.sharding.by_engine import measured_kinds
from metacount.sharding.formula import units
from metacount.sharding.formula.kinds import counted_kinds
from metacount.sharding.mesh import parse_mesh
from metacount.sharding.plan import default_plan
from metacount.sharding.result import Kind
from metacount.spec import Workload
from metacount.spec.stack import WITH_STATE

torch.set_num_threads(1)

CASES: list[tuple[str, str, int, dict[str, Any]]] = [
    ("jamba", "dp=3", 1, {}),
    ("jamba", "dp=2,pp=2", 3, {"micro_batches": 2}),
    ("jamba", "dp=4,ep=4", 2, {"dtype": "bf16", "checkpointing": "full"}),
    ("jamba", "dp=2,pp=2,ep=2", -1, {}),
    ("mamba2", "dp=3,pp=2", 3, {"micro_batches": 2, "schedule": "gpipe"}),
    ("mamba2", "dp=3", 0, {"optimizer": "sgd-momentum"}),
    ("mamba2", "pp=2", -1, {"dtype": "bf16"}),
    ("qwen3-next", "dp=4,ep=2", 3, {"dtype": "bf16", "master": True}),
    ("qwen3-next", "dp=2,pp=2", 2, {}),
    ("qwen3-next", "dp=2,ep=2", -1, {}),
    ("lfm2", "dp=3", 2, {"dtype": "bf16", "attention": "flash"}),
    ("lfm2", "dp=2,pp=3,ep=2", 1, {"micro_batches": 2}),
    ("lfm2", "dp=2,pp=2", -1, {}),
    ("falcon-h1", "dp=5", 3, {"optimizer": "adagrad"}),
    ("falcon-h1", "dp=2,pp=2", 2, {"checkpointing": "full"}),
    ("falcon-h1", "pp=3", -1, {}),
    ("minimax", "dp=2,pp=2", 3, {}),
    ("griffin", "dp=3", 3, {}),
    # of tp a mixer that keeps a state is whole on every rank
    ("falcon-h1", "dp=2,tp=2", 3, {"checkpointing": "full"}),
    ("nemotron", "dp=2,tp=2,ep=2", 2, {"dtype": "bf16"}),
    ("kimi-linear", "tp=2,ep=2", -1, {}),
    ("mamba2", "tp=2,pp=2", 1, {}),
    ("lfm2", "dp=2,tp=2,ep=4", 3, {"dtype": "bf16"}),
    # experts beside the feed-forward of every second layer; the next one adds what they give
    ("longcat", "dp=2,pp=2,ep=2", 3, {"micro_batches": 2}),
    ("longcat", "dp=4,ep=2,tp=2", 2, {"dtype": "bf16", "checkpointing": "full"}),
    ("longcat", "dp=2,tp=2", 3, {"checkpointing": "full"}),
    ("longcat", "dp=2,ep=2", -1, {}),
    ("longcat", "dp=3", 1, {"dtype": "bf16", "attention": "flash"}),
    # an indexer has no gradient: its parameters are gathered, and nothing of them is summed
    ("minimax-m3", "dp=2,pp=2,ep=2", 3, {"micro_batches": 2}),
    ("minimax-m3", "dp=3", 0, {"dtype": "bf16", "checkpointing": "full"}),
    ("minimax-m3", "dp=2,pp=2", -1, {}),
    ("deepseek-v3.2", "dp=2,tp=2", 2, {}),
    # blocks that layers share, with the table that the head is tied to
    ("zamba2", "dp=3", 3, {"dtype": "bf16", "master": True}),
    ("zamba2", "dp=2", 2, {"micro_batches": 2, "checkpointing": "full"}),
    ("zamba2", "dp=2", 0, {"dtype": "bf16", "attention": "flash"}),
    ("zamba2", "dp=2", -1, {}),
    ("kimi-linear", "dp=2,ep=2", 3, {}),
    ("kimi-linear", "pp=2", -1, {}),
    ("nemotron", "dp=4,ep=4,pp=2", 3, {}),
]
EACH = 7  # one in so many always
MEASURED: dict[int, list[Kind]] = {}


def measured(number: int) -> list[Kind]:
    """What the engine finds of a case, once."""
    name, mesh, zero, changes = CASES[number]
    if number not in MEASURED:
        spec = HYBRIDS[name]
        MEASURED[number] = measured_kinds(spec, job(mesh, zero, **changes), default_plan(spec))
    return MEASURED[number]


def counted(number: int) -> list[Kind]:
    name, mesh, zero, changes = CASES[number]
    return counted_kinds(HYBRIDS[name], job(mesh, zero, **changes), default_plan(HYBRIDS[name]))


@daily(6)
@pytest.mark.parametrize(
    "number", one_in(EACH, range(len(CASES))), ids=[f"{c[0]} {c[1]} {c[2]}" for c in CASES]
)
def test_formula_and_engine_agree_to_the_last_element(number: int) -> None:
    found = measured(number)
    assert as_told(found) == as_told(counted(number))
    assert sum(kind.count for kind in found) == parse_mesh(CASES[number][1]).world


@pytest.mark.parametrize(
    "number",
    # what tp leaves whole, both ranks have
    [
        i if i % EACH == 0 else pytest.param(i, marks=ONLY)  # measured above
        for i, case in enumerate(CASES)
        if case[2] > 0 and "tp" not in case[1]
    ],
)
def test_ranks_that_zero_spreads_over_hold_each_value_once(number: int) -> None:
    """Parameters of all ranks are the model's, and so is what a real optimizer keeps of them."""
    name, mesh, _, changes = CASES[number]
    spec, found, made = HYBRIDS[name], measured(number), parse_mesh(mesh)
    params = metacount.count(spec).params
    if spec.tie_embeddings and "pp" in mesh:  # the first and the last stage have it
        params += spec.vocab_size * spec.d_model
    assert sum(kind.count * kind.params for kind in found) == params
    if changes.get("optimizer", "adamw") == "adamw":
        width = 4 if changes.get("master") else {"bf16": 2}.get(changes.get("dtype", ""), 4)
        # one float32 beside each tensor, which all ranks of its stage have a part of
        model = build(spec, device="meta")
        choosing = [p for m in model.modules() if isinstance(m, CHOOSING) for p in m.parameters()]
        params -= sum(p.numel() for p in choosing)  # of an indexer, whose choice has no gradient
        tensors = len(list(model.parameters())) + (spec.tie_embeddings and "pp" in mesh)
        tensors -= len(choosing)
        steps = 4 * tensors * made.world // made.pp
        assert (
            sum(kind.count * kind.optimizer_bytes for kind in found) == 2 * width * params + steps
        )


@daily(3)
@pytest.mark.parametrize(
    "number", one_in(3, [i for i, case in enumerate(CASES) if case[2] < 0 and "tp" not in case[1]])
)
def test_stages_that_serve_keep_the_states_and_the_cache_of_the_whole_model(number: int) -> None:
    name, mesh, _, changes = CASES[number]
    asked, found = job(mesh, -1, **changes), measured(number)
    run_ = Workload(batch_size=asked.batch_size, seq_len=asked.seq_len, dtype=asked.dtype)
    whole = metacount.count(HYBRIDS[name], run_)
    for quantity in ("state_bytes", "kv_cache_bytes"):
        of_ranks = sum(kind.count * getattr(kind, quantity) for kind in found)
        assert of_ranks == getattr(whole, quantity), quantity
    keeps = set(HYBRIDS[name].mixer_pattern) & set(WITH_STATE)
    assert (whole.state_bytes > 0) == bool(keeps)
    for kind in found:
        served = kind.param_bytes + kind.kv_cache_bytes + kind.state_bytes
        assert kind.total_bytes == served


def test_stages_have_different_kinds_of_layers() -> None:
    """Of five layers RRRAR the first stage has no attention, and no cache."""
    first, last = counted_kinds(
        HYBRIDS["qwen3-next"], job("pp=2", -1), default_plan(HYBRIDS["qwen3-next"])
    )
    assert (first.layers, last.layers) == (3, 2)
    assert first.kv_cache_bytes == 0 < last.kv_cache_bytes
    assert first.state_bytes == 3 * last.state_bytes  # three mixers, and one beside attention


@daily(2)
@pytest.mark.parametrize("name", one_in(7, HYBRIDS))
def test_on_one_rank_the_backward_keeps_what_it_does_without_a_mesh(name: str) -> None:
    """Part by part on a fake world, or as one model on meta: the same storages."""
    spec, plan = HYBRIDS[name], default_plan(HYBRIDS[name])
    whole = metacount.train(spec, Workload(batch_size=1, seq_len=9, dtype="bf16"), reference=True)
    for kinds in (measured_kinds, counted_kinds):
        (kind,) = kinds(spec, job("dp=1", dtype="bf16"), plan)
        assert kind.activation_bytes == whole.activation_bytes > 0
        assert kind.optimizer_bytes == whole.optimizer_bytes


RIGHT = kept_sharding.block_terms
ZAMBA2 = next(i for i, case in enumerate(CASES) if case[0] == "zamba2")
LONGCAT = next(i for i, case in enumerate(CASES) if case[0] == "longcat")


def without_a_mixer(*args: Any, **how: Any) -> Any:
    """What a block keeps, were its mixer attention whatever its letter is."""
    return RIGHT(*args, **{**how, "mixer": "A"})


PLANTED: dict[str, tuple[Any, str, object, int]] = {
    "every mixer is attention": (kept_sharding, "block_terms", without_a_mixer, 1),
    "a layer's state is the stack's": (kept_sharding, "recurrent_layers", lambda spec: 1, 3),
    "no layer has a state": (kept_sharding, "WITH_STATE", "", 3),
    "every layer has a cache": (kept_sharding, "WITH_ATTENTION", "APSRN", 3),
    "no experts are sent to": (traffic, "mixture_moves", lambda *args, **how: [], 2),
    "experts beside a feed-forward are sent nothing": (traffic, "WITH_EXPERTS", "E", LONGCAT),
    "their rows stay where they are": (kept_sharding, "WITH_EXPERTS", "E", LONGCAT),
    "shared blocks are nowhere": (units, "shared_weights", lambda spec, n_layers: (), ZAMBA2),
    "a block without its mixer": (
        units,
        "block_weights",
        lambda spec, mixer, ffn, **how: RIGHT_WEIGHTS(spec, mixer="N", ffn=ffn),
        1,
    ),
    "all layers have experts": (
        units,
        "block_weights",
        lambda spec, mixer, ffn, **how: RIGHT_WEIGHTS(spec, mixer=mixer, ffn="E"),
        2,
    ),
}
RIGHT_WEIGHTS = units.block_weights


@daily(6)
@pytest.mark.parametrize("mistake", one_in(2, PLANTED))
def test_a_wrong_formula_is_caught(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    home, name, wrong, number = PLANTED[mistake]
    found = as_told(measured(number))
    assert found == as_told(counted(number))
    monkeypatch.setattr(home, name, wrong)
    assert found != as_told(counted(number))


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


def test_a_state_is_shown_beside_the_cache(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("shard", "jamba-1.5-mini", "--mesh", "dp=2,ep=2", "--seq", "64", "--formula")
    text, (kind,) = run(capsys, *asked), run_json(capsys, *asked)["kinds"]
    of_one = metacount.count("jamba-1.5-mini", Workload(batch_size=1, seq_len=64, dtype="bf16"))
    assert (kind["state_bytes"], kind["kv_cache_bytes"]) == (
        of_one.state_bytes,
        of_one.kv_cache_bytes,
    )
    assert text.index("KV cache") < text.index("recurrent state")
    plain = run(capsys, "shard", "llama-7b", "--mesh", "dp=2", "--formula")
    assert "recurrent state" not in plain


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
    ],
)
@pytest.mark.parametrize("way", [[], ["--formula"]])
def test_what_has_no_plan_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: str, line: str, way: list[str]
) -> None:
    assert line in refused(capsys, "shard", *arguments.split(), *way)


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
    spec = entry("jamba-1.5-mini").spec()
    assert found.mesh.tp == 1 and spec.recurrent == "mamba"
    assert found.largest.state_bytes > 0
