"""What a mesh holds and sends: formula and engine agree, and a wrong formula does not."""

from __future__ import annotations

import os
import random
import sys
from functools import cache
from typing import Any

import pytest
import torch
import torch.distributed as dist
from helpers.allocations import Alive
from helpers.release import chosen, daily, one_day_in
from helpers.sharding_specs import ALL, ENCODERS, HYBRIDS, SPECS, as_told, job

import metacount
from metacount.errors import InputError, SpecError
from metacount.formulas import feed_forward, ranks
from metacount.sharding import by_formula
from metacount.sharding.adding import STEP_COPIES
from metacount.sharding.by_engine import measured_kinds
from metacount.sharding.by_formula import counted_kinds
from metacount.sharding.mesh import parse_mesh
from metacount.sharding.plan import Plan, default_plan
from metacount.sharding.result import Kind
from metacount.spec import Workload
from metacount.spec.stack import WITH_STATE
from metacount.training.optimizers import made

torch.set_num_threads(1)

# ranks of cp exchange keys and values; torch cuts a sequence into 2·cp pieces
RING = {"dtype": "bf16", "attention": "flash", "seq_len": 48}
# a model, its mesh, the stage of ZeRO (-1: it serves), what else is asked
Case = tuple[str, str, int, dict[str, Any]]
SHORT: dict[str, dict[str, Any]] = {
    "ring": RING,
    "full": {"checkpointing": "full"},
    "flash": {"attention": "flash"},
    "bf16": {"dtype": "bf16"},
    "mixed": {"dtype": "bf16", "master": True},
    "master": {"master": True},
    "loss": {"loss_parallel": True},
    "sequence": {"sequence_parallel": True, "seq_len": 12},
    "gpipe": {"schedule": "gpipe"},
}
# A model, its mesh, the stage of ZeRO, and what else is asked; `;` or a line's end between two.
OFTEN = """
llama dp=3,tp=2,pp=2 3 micro_batches=2  # 11 and 53 are cut unevenly
llama dp=2,cp=2 -1; qwen3 dp=3,tp=2 2 optimizer=sgd-momentum bf16; gpt2 dp=3,tp=4 0
gpt2 dp=7 3 optimizer=adagrad; mixtral dp=2,tp=2,ep=4 3 mixed; deepseek dp=4,tp=2,ep=4,pp=2 3
deepseek dp=4,ep=2,tp=2 -1; llama dp=2,tp=2 3 bf16 flash full
weighted_input dp=2,tp=2,ep=2 3 bf16 flash; deepseek dp=4,tp=2,ep=4,pp=3 3 micro_batches=4 gpipe
llama dp=2,cp=3,tp=2 2 ring
deepseek cp=2,tp=2 3 ring  # values are filled up to the width of keys
mixtral dp=2,cp=2,tp=2,ep=4 3 ring full master; qwen3 cp=4,pp=2 1 ring micro_batches=2
# encoders, which serve without decoding; 7, 29 and 53 are cut unevenly
electra dp=3,tp=2 3; bert dp=2,tp=2 2 mixed; modernbert dp=2,pp=2 1 micro_batches=2
# tokens between the matrices are spread over the ranks of tp
qwen3 dp=3,tp=2,pp=2 2 sequence bf16 flash micro_batches=2; sandwich dp=2,tp=2 0 sequence mixed
llama dp=2,cp=2,tp=2 3 sequence ring; biased tp=2,pp=3 1 sequence
parallel dp=2,tp=2 3 sequence full
# and each rank keeps its part of the logits: 53 of a vocabulary are cut unevenly
qwen3 tp=2 3 sequence loss; gpt2 tp=4,pp=2 1 loss micro_batches=2
mixtral dp=2,tp=2,ep=4 3 loss mixed
# models whose layers differ
jamba dp=4,ep=4 2 bf16 full; mamba2 dp=3,pp=2 3 micro_batches=2 gpipe
qwen3-next dp=4,ep=2 3 mixed
lfm2 dp=2,pp=3,ep=2 1 micro_batches=2; griffin dp=3 3
# of tp a mixer that keeps a state is whole on every rank
falcon-h1 dp=2,tp=2 3 full; nemotron dp=2,tp=2,ep=2 2 bf16; kimi-linear tp=2,ep=2 -1
lfm2 dp=2,tp=2,ep=4 3 bf16
# experts beside the feed-forward of every second layer; the next one adds what they give
longcat dp=2,pp=2,ep=2 3 micro_batches=2; longcat dp=2,tp=2 3 full
# an indexer has no gradient: its parameters are gathered, and nothing of them is summed
minimax-m3 dp=2,pp=2,ep=2 3 micro_batches=2; deepseek-v3.2 dp=2,tp=2 2
# blocks that layers share, with the table that the head is tied to
zamba2 dp=3 3 mixed; nemotron dp=4,ep=4,pp=2 3; jamba dp=2,pp=2,ep=2 -1; kimi-linear pp=2 -1
zamba2 dp=2 -1
"""
# one in so many of these always, and all that come now
EACH = 6
ALWAYS = """
# what a ring gives lies head by head, whether queries were rotated or not
gpt2 cp=2 3 ring; weighted_input cp=2 3 ring full
# five experts on each rank, spread over four copies: two each, one, and none
ten_experts dp=8,ep=2 3; latent dp=2,tp=2 3 full
# the first block is another kind of block, whatever a norm has
gpt2_without_its_first_norm dp=2 3; llama_without_its_first_norm dp=2,pp=2 3
"""


def cases_of(text: str) -> list[Case]:
    rows = (row for line in text.splitlines() for row in line.partition("#")[0].split(";"))
    found = []
    for name, mesh, zero, *words in (row.split() for row in rows if row.strip()):
        asked: dict[str, Any] = {}
        for word in words:
            key, is_one, value = word.partition("=")
            asked |= {key: int(value) if value.isdecimal() else value} if is_one else SHORT[key]
        found.append((name.replace("_", " "), mesh, int(zero), asked))
    return found


CASES = [*cases_of(OFTEN), *cases_of(ALWAYS)]
FIRST = len(cases_of(OFTEN))
MODELS = ALL | {
    "biased": SPECS["llama"].replace(
        norm="layernorm", norm_bias=True, q_bias=True, o_bias=True, ffn_bias=True
    ),
    "parallel": SPECS["llama"].replace(norm_placement="parallel", norm_unit_offset=True),
    "ten experts": SPECS["mixtral"].replace(n_experts=10),
    "latent": SPECS["mixtral"].replace(moe_latent_rank=16),
    "gpt2 without its first norm": SPECS["gpt2"].replace(first_norm=False),
    "llama without its first norm": SPECS["llama"].replace(first_norm=False, norm_affine=False),
}


def asked_of(case: Case) -> Any:
    name, mesh, zero, changes = case
    return job(mesh, zero, **({"decodes": False} if name in ENCODERS else {}), **changes)


@cache
def measured_of(number: int) -> list[Kind]:
    """What the engine finds of a case, once."""
    spec = MODELS[CASES[number][0]]
    return measured_kinds(spec, asked_of(CASES[number]), default_plan(spec))


def told(case: Case) -> list[dict[str, Any]]:
    """What the formula says of a case."""
    spec = MODELS[case[0]]
    return as_told(counted_kinds(spec, asked_of(case), default_plan(spec)))


@daily(6)
@pytest.mark.parametrize(
    "number",
    chosen(range(len(CASES)), lambda number: number % EACH == 0 or number >= FIRST),
    ids=[f"{name} {mesh} {zero}" for name, mesh, zero, _ in CASES],
)
def test_formula_and_engine_agree_to_the_last_element(number: int) -> None:
    found = measured_of(number)
    assert as_told(found) == told(CASES[number])
    assert sum(kind.count for kind in found) == parse_mesh(CASES[number][1]).world
    assert not dist.is_initialized()


SERVING = [i for i, c in enumerate(CASES) if c[0] in HYBRIDS and c[2] < 0 and "tp" not in c[1]]


@daily(3)
@pytest.mark.parametrize("number", SERVING)
def test_stages_that_serve_keep_the_states_and_the_cache_of_the_whole_model(number: int) -> None:
    spec, asked, found = ALL[CASES[number][0]], asked_of(CASES[number]), measured_of(number)
    run = Workload(batch_size=asked.batch_size, seq_len=asked.seq_len, dtype=asked.dtype)
    whole = metacount.count(spec, run)
    for quantity in ("state_bytes", "kv_cache_bytes"):
        of_ranks = sum(kind.count * getattr(kind, quantity) for kind in found)
        assert of_ranks == getattr(whole, quantity), quantity
    assert (whole.state_bytes > 0) == bool(set(spec.mixer_pattern) & set(WITH_STATE))
    for kind in found:
        assert kind.total_bytes == kind.param_bytes + kind.kv_cache_bytes + kind.state_bytes


def test_a_real_step_of_each_optimizer_holds_as_many_copies() -> None:
    sizes = (7, 13, 11 * 5)
    for name, copies in STEP_COPIES.items():
        held = [torch.nn.Parameter(torch.ones(size)) for size in sizes]
        for p in held:
            p.grad = torch.ones_like(p)
        (optimizer,) = made(metacount.Setup(optimizer=name, foreach=True), held, [])
        optimizer.step()
        with Alive() as alive:
            optimizer.step()
        assert alive.most == 4 * copies * sum(sizes), name


def test_stages_keep_as_many_micro_batches_as_their_schedule_says() -> None:
    one_f_one_b, gpipe = (job("pp=3", micro_batches=4, schedule=name) for name in ("1f1b", "gpipe"))
    assert [one_f_one_b.kept_at(stage) for stage in range(3)] == [3, 2, 1]
    assert [gpipe.kept_at(stage) for stage in range(3)] == [4, 4, 4]
    assert job("pp=3", micro_batches=2).kept_at(0) == 2
    assert job("pp=3", -1).kept_at(0) == 0
    first, middle, last = counted_kinds(SPECS["llama"], one_f_one_b, default_plan(SPECS["llama"]))
    assert [kind.micro_batches_kept for kind in (first, middle, last)] == [3, 2, 1]
    ids = 3 * 9 * 8  # the first stage keeps the token ids as well, 8 bytes each
    assert first.activation_bytes is not None and middle.activation_bytes is not None
    assert (first.activation_bytes - ids) * 2 == middle.activation_bytes * 3


# --- what no formula counts


def test_what_no_formula_counts_is_said_and_measured() -> None:
    body = ENCODERS["modernbert"].replace(has_head=False)
    for spec, more, rule in (
        (SPECS["llama"], {"attention": "sdpa"}, "attention has no formula: got 'sdpa'"),
        (body, {}, "without logits there is no loss"),
    ):
        how: dict[str, Any] = {"train": True, "seq_len": 16, "dtype": "fp32", **more}
        found = [metacount.shard(spec, "dp=2", formula=formula, **how) for formula in (True, False)]
        counted, measured = (each.largest for each in found)
        assert [any(rule in note for note in each.missing) for each in found] == [True, False]
        assert counted.activation_bytes is None and measured.activation_bytes
        assert measured.gradients == counted.gradients == counted.params


@one_day_in(6)
@pytest.mark.parametrize(("name", "changes"), [("gate", {}), ("llama", RING)])
def test_selective_checkpointing_sends_what_full_does(name: str, changes: dict[str, Any]) -> None:
    """What is recomputed is sent again, but for kept attention; what is kept no formula counts."""
    spec, mesh = SPECS[name], "cp=2,tp=2" if changes else "dp=2,tp=2"
    asked, plan = job(mesh, checkpointing="selective", **changes), default_plan(spec)
    measured, counted = measured_kinds(spec, asked, plan), counted_kinds(spec, asked, plan)
    for ours, theirs in zip(as_told(counted), as_told(measured), strict=True):
        assert ours["collectives"] == theirs["collectives"]
        assert ours["activation_bytes"] is None and theirs["activation_bytes"] > 0


T5 = {"position": "t5", "n_buckets": 4, "max_distance": 8}


@pytest.mark.parametrize("formula", [False, True])
@pytest.mark.parametrize(
    ("name", "changes", "mesh", "said"),
    [
        ("llama", {"d_ff": 4, "n_heads": 6, "n_kv_heads": 3}, "tp=3", "cuts d_ff = 4 into pieces"),
        ("llama", {"d_ff": 9, "n_heads": 8, "n_kv_heads": 4}, "tp=4", "d_ff = 9 into pieces of 3"),
        ("mixtral", {"n_shared_experts": 1, "d_ff_shared": 1}, "tp=2", "the shared experts' width"),
        ("mixtral", {}, "tp=2,ep=2", "the tokens of a micro-batch = 1 into pieces of 1"),
        ("llama", T5, "dp=2", "read one table"),
    ],
)
def test_what_leaves_a_rank_without_something_is_refused(
    name: str, changes: dict[str, Any], mesh: str, said: str, formula: bool
) -> None:
    spec = SPECS[name].replace(**changes)
    with pytest.raises((InputError, SpecError), match=said):
        metacount.shard(spec, mesh, train=True, seq_len=1, formula=formula)


# --- wrong formulas


DEEPSEEK = ("deepseek", "dp=4,tp=2,ep=4,pp=2")
# whose rule, its name, another rule, and model and mesh of a case that shows it
PLANTED: dict[str, tuple[Any, str, Any, tuple[str, str]]] = {
    "a piece is rounded down": (ranks, "chunk", lambda n, degree, index: n // degree, DEEPSEEK),
    "rows stay": (feed_forward, "experts_elsewhere", feed_forward.experts, DEEPSEEK),
    "shared blocks are nowhere": (
        *(by_formula, "counted_weights", lambda spec, pieces: []),
        ("zamba2", "dp=3"),
    ),
}


@daily(6)
@pytest.mark.parametrize("mistake", PLANTED)
def test_a_wrong_formula_is_caught(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, wrong, shown = PLANTED[mistake]
    number = next(i for i, case in enumerate(CASES) if case[:2] == shown)
    found = as_told(measured_of(number))
    assert found == told(CASES[number])
    monkeypatch.setattr(owner, name, wrong)
    by_formula.units_of.cache_clear()  # of a forward without the mistake
    assert found != told(CASES[number])
    by_formula.units_of.cache_clear()


# --- what is sent


@one_day_in(6)
def test_what_context_parallel_ranks_exchange_is_what_the_ring_moves() -> None:
    # llama3-8b, 4 ranks of 512 tokens: 512·(8 heads of 128 as keys, and as values)
    mine, how = 512 * 2 * 8 * 128, {"train": True, "seq_len": 2048}
    for formula in (True, False):
        found = metacount.shard("llama3-8b", "cp=4", attention="flash", formula=formula, **how)
        seen = {
            (c.phase, c.kind): (c.n_bytes, c.times, c.sent)
            for c in found.largest.collectives
            if c.group == "cp"
        }
        assert seen == {
            ("forward", "all-gather"): (4 * 2 * mine, 32, 3 * 2 * mine),
            ("backward", "all-gather"): (4 * 2 * mine, 32, 3 * 2 * mine),
            # gradients in float32, once round
            ("backward", "permute"): (4 * mine, 4 * 32, 4 * mine),
        }
        assert not any("not run" in note for note in found.missing)
    eager = metacount.shard("llama3-8b", "cp=4", formula=True, **how)
    assert any("choose --attention flash" in note for note in eager.missing)
    assert "cp" not in eager.largest.sent()


# --- the engine


@one_day_in(6)
def test_a_person_s_own_plan_is_what_is_measured() -> None:
    spec, asked = SPECS["llama"], job("tp=2", -1)
    ways = {"": "shared_input", ".gate_proj": "colwise", ".up_proj": "colwise"}
    ways[".down_proj"] = "rowwise"
    styles = {f"decoder.layers.*.mlp{name}": way for name, way in ways.items()}
    first, last = measured_kinds(spec, asked, Plan(styles=styles, source="mine"))
    # per layer 3 matrices of 11 rows, of which the ranks have 6 and 5; the rest is whole
    assert metacount.count(spec).params - first.params == 3 * 3 * 5 * 16
    assert metacount.count(spec).params - last.params == 3 * 3 * 6 * 16
    sent = [(c.kind, c.times) for c in first.collectives if c.phase == "prompt"]
    assert sent == [("all-reduce", 3)]


@one_day_in(6)
def test_nothing_is_left_behind() -> None:
    """torch puts the rank before each line of a traceback for as long as there is a group."""
    spec, hook, drawn = SPECS["llama"], sys.excepthook, random.getstate()
    one, other = job("dp=3,tp=2"), job("dp=2,tp=2,pp=3", -1)
    before = as_told(measured_kinds(spec, one, default_plan(spec)))
    measured_kinds(spec, other, default_plan(spec))
    assert as_told(measured_kinds(spec, one, default_plan(spec))) == before
    wrong = Plan(styles={"lm_head": "sideways"}, source="mine")
    with pytest.raises(metacount.InputError, match="'sideways'"):
        measured_kinds(spec, job("tp=2"), wrong)
    assert not dist.is_initialized()
    assert "RANK" not in os.environ
    assert sys.excepthook is hook
    assert random.getstate() == drawn
