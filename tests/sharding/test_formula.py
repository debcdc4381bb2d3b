"""What a mesh holds and sends: formula and engine agree, and a wrong formula does not."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import Any

import pytest
import torch
import torch.distributed as dist
from helpers.allocations import Alive
from helpers.release import daily, one_day_in, one_in
from helpers.sharding_specs import ALL, SPECS
from helpers.sharding_told import as_told, job

import metacount
from metacount.errors import InputError, SpecError
from metacount.formulas import kept_sharding, sharding, traffic
from metacount.formulas.kept_moe import rows_kept
from metacount.sharding.adding import STEP_COPIES
from metacount.sharding.by_engine import Measuring, measured_kinds
from metacount.sharding.engine import ring
from metacount.sharding.engine.optimizer import OPTIMIZERS
from metacount.sharding.engine.world import fake_world
from metacount.sharding.formula import kinds as by_formula
from metacount.sharding.formula.kinds import counted_kinds
from metacount.sharding.plan import Plan, default_plan
from metacount.sharding.reference.run import place
from metacount.sharding.result import Kind

torch.set_num_threads(1)


# ranks of cp exchange keys and values; torch cuts a sequence into 2·cp pieces
RING = {"dtype": "bf16", "attention": "flash", "seq_len": 48}
CASES = [
    ("llama", "dp=3,tp=2,pp=2", 3, {"micro_batches": 2}),  # 11 and 53 are cut unevenly
    ("llama", "dp=2,cp=2", -1, {}),
    ("llama", "tp=2,pp=3", -1, {}),
    ("qwen3", "dp=3,tp=2", 2, {"optimizer": "sgd-momentum", "dtype": "bf16"}),
    ("qwen3", "dp=5,pp=2", 1, {"optimizer": "sgd"}),
    ("gpt2", "dp=3,tp=4", 0, {}),
    ("gpt2", "dp=7", 3, {"optimizer": "adagrad"}),
    ("sinks", "tp=2", -1, {}),
    ("mixtral", "dp=2,tp=2,ep=4", 3, {"dtype": "bf16", "master": True}),
    ("deepseek", "dp=4,tp=2,ep=4,pp=2", 3, {}),
    ("deepseek", "dp=4,ep=2,tp=2", -1, {}),
    ("llama", "dp=2,tp=2", 3, {"checkpointing": "full"}),
    ("llama", "dp=2,tp=2", 3, {"dtype": "bf16", "attention": "flash", "checkpointing": "full"}),
    ("sandwich", "tp=2", 3, {"checkpointing": "full"}),  # the last sum is needed again
    ("gate", "dp=2,tp=2", 3, {"checkpointing": "full"}),
    ("gate", "dp=2,tp=2,ep=4", 3, {"dtype": "bf16"}),
    ("weighted input", "dp=2,tp=2,ep=2", 3, {"dtype": "bf16", "attention": "flash"}),
    ("weighted input", "dp=4,ep=2", 2, {"checkpointing": "full"}),
    ("deepseek", "dp=4,tp=2,ep=4,pp=3", 3, {"micro_batches": 4, "schedule": "gpipe"}),
    ("deepseek", "dp=4,tp=2,ep=4,pp=3", 3, {"micro_batches": 4, "checkpointing": "full"}),
    ("llama", "dp=2,cp=3,tp=2", 2, RING),
    ("deepseek", "cp=2,tp=2", 3, RING),  # values are filled up to the width of keys
    ("mixtral", "dp=2,cp=2,tp=2,ep=4", 3, RING | {"master": True, "checkpointing": "full"}),
    ("qwen3", "cp=4,pp=2", 1, RING | {"micro_batches": 2}),
]


@daily(4)
@pytest.mark.parametrize(("name", "mesh", "zero", "changes"), one_in(7, CASES))
def test_formula_and_engine_agree_to_the_last_element(
    name: str, mesh: str, zero: int, changes: dict[str, Any]
) -> None:
    spec, asked = SPECS[name], job(mesh, zero, **changes)
    plan = default_plan(spec)
    measured = as_told(measured_kinds(spec, asked, plan))
    counted = as_told(counted_kinds(spec, asked, plan))
    assert measured == counted
    assert sum(kind["count"] for kind in measured) == asked.mesh.world
    assert not dist.is_initialized()


@daily(6)
@pytest.mark.parametrize(
    ("name", "mesh", "lacks", "changes"),
    [
        # what a ring gives lies head by head, whether queries were rotated or not
        ("gpt2", "cp=2", {}, RING),
        ("weighted input", "cp=2", {}, RING | {"checkpointing": "full"}),
        # three experts on each rank, spread over two copies: one has two of them, one has one
        ("mixtral", "dp=4,ep=2", {"n_experts": 6}, {}),
        ("mixtral", "dp=8,ep=2", {"n_experts": 10}, {}),
        # the first block is another kind of block, whatever a norm has
        ("gpt2", "dp=2", {"first_norm": False}, {}),
        ("llama", "dp=2,pp=2", {"first_norm": False, "norm_affine": False}, {}),
    ],
)
def test_blocks_that_lack_something_agree(
    name: str, mesh: str, lacks: dict[str, Any], changes: dict[str, Any]
) -> None:
    spec, asked = SPECS[name].replace(**lacks), job(mesh, **changes)
    plan = default_plan(spec)
    assert as_told(measured_kinds(spec, asked, plan)) == as_told(counted_kinds(spec, asked, plan))


@one_day_in(6)
@pytest.mark.parametrize(
    ("name", "mesh"),
    one_in(
        3,
        [("gpt-oss-20b", "dp=4,tp=2,ep=4"), ("gemma2-2b", "dp=3,tp=2"), ("opt-175b", "dp=3,tp=3")],
    ),
)
def test_models_of_the_catalog_agree_too(name: str, mesh: str) -> None:
    for train in (True, False):
        measured, counted = (
            metacount.shard(name, mesh, train=train, seq_len=64, formula=formula)
            for formula in (False, True)
        )
        assert as_told(list(measured.kinds)) == as_told(list(counted.kinds))


@pytest.mark.release
@pytest.mark.parametrize(("name", "mesh"), [("deepseek", "dp=3,tp=2,ep=2")])
def test_all_ranks_of_a_kind_hold_the_same(name: str, mesh: str) -> None:
    spec, asked = SPECS[name], job(mesh)
    measuring = Measuring(spec, asked, default_plan(spec))
    total = 0
    for ranks in measuring._groups():
        held = []
        for rank in ranks:
            with fake_world(asked.mesh, rank, 3) as world:
                held.append(
                    [
                        place(measuring.whole.part(part), measuring.styles, world, asked)
                        for part in measuring.parts
                    ]
                )
        assert all(one == held[0] for one in held)
        copies = [len(part.layers) or 1 for part in measuring.parts]
        total += len(ranks) * sum(
            n * each.shard for n, part in zip(copies, held[0], strict=True) for each in part
        )
    if name == "llama":
        # every value once, but for those that tp leaves whole on both: seven norms
        assert total == metacount.count(spec).params + 7 * spec.d_model


@one_day_in(6)
@pytest.mark.parametrize("name", one_in(9, SPECS))
def test_on_one_rank_the_backward_keeps_what_it_does_without_a_mesh(name: str) -> None:
    """Part by part on a fake world, or as one model on meta: the same storages."""
    for dtype in ("bf16", "fp32", "fp64"):
        spec, run = SPECS[name], metacount.Workload(batch_size=1, seq_len=9, dtype=dtype)
        whole = metacount.train(spec, run, reference=True)
        for kinds in (measured_kinds, counted_kinds):
            (kind,) = kinds(spec, job("dp=1", dtype=dtype), default_plan(spec))
            assert kind.activation_bytes == whole.activation_bytes > 0
            assert (kind.micro_batches_kept, kind.recomputed_bytes) == (1, 0)


def on_one_rank(name: str, measured: bool, setup: metacount.Setup, **run: Any) -> tuple[Kind, int]:
    """The one rank of a mesh, and the peak of the step without buffers."""
    spec = SPECS[name]
    work = metacount.Workload(batch_size=1, **run)
    whole = metacount.train(spec, work, setup, reference=True)
    how = {key: getattr(setup, key) for key in ("optimizer", "attention", "checkpointing")}
    kinds = measured_kinds if measured else counted_kinds
    (kind,) = kinds(spec, job("dp=1", **how, **run), default_plan(spec))
    return kind, whole.peak_bytes - whole.peak_parts["buffers"]


@pytest.mark.parametrize("measured", [False, True])
def test_the_loss_and_the_step_are_at_the_peak_what_they_are_measured_to_be(measured: bool) -> None:
    flash = metacount.Setup(attention="flash", foreach=True)
    kind, peak = on_one_rank("llama", measured, flash, seq_len=1021, dtype="bf16")
    assert kind.loss_bytes == 2 * 4 * 1021 * 53  # the log-softmax of 53 logits, and they
    assert kind.total_bytes + 4 == peak  # the gradient of the loss itself
    assert kind.parts["loss_bytes"]
    kind, peak = on_one_rank("llama", measured, flash, seq_len=2, dtype="bf16")
    assert kind.total_bytes + 2 * 2 * 8 == peak  # tokens and targets, which the backward kept
    assert kind.parts["step_bytes"] == kind.gradient_bytes


def test_a_real_step_of_each_optimizer_holds_as_many_copies() -> None:
    sizes = (7, 13, 11 * 5)
    for name, copies in STEP_COPIES.items():
        held = [torch.nn.Parameter(torch.ones(size)) for size in sizes]
        for p in held:
            p.grad = torch.ones_like(p)
        made = OPTIMIZERS[name](held)
        for group in made.param_groups:
            group["foreach"] = True
        made.step()
        with Alive() as alive:
            made.step()
        assert alive.most == 4 * copies * sum(sizes), name


@pytest.mark.parametrize("name", one_in(9, SPECS))
def test_what_comes_and_goes_is_no_more_than_its_bound(name: str) -> None:
    for dtype in ("fp32", "bf16"):
        for checkpointing in ("none", "full"):
            for length in (29, 257):
                setup = metacount.Setup(checkpointing=checkpointing, foreach=True)
                kind, peak = on_one_rank(name, False, setup, seq_len=length, dtype=dtype)
                assert peak <= kind.most_bytes


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


def test_a_traceback_is_printed_as_before() -> None:
    """torch puts the rank before each of its lines for as long as there is a process group."""
    before = sys.excepthook
    metacount.shard(SPECS["llama"], "dp=2", seq_len=4)
    assert sys.excepthook is before


@pytest.mark.parametrize("formula", [False, True])
@pytest.mark.parametrize(
    ("name", "changes", "mesh", "said"),
    [
        ("llama", {"d_ff": 4, "n_heads": 6, "n_kv_heads": 3}, "tp=3", "cuts d_ff = 4 into pieces"),
        ("llama", {"d_ff": 9, "n_heads": 8, "n_kv_heads": 4}, "tp=4", "d_ff = 9 into pieces of 3"),
        ("mixtral", {"n_shared_experts": 1, "d_ff_shared": 1}, "tp=2", ""),
        ("mixtral", {}, "tp=2,ep=2", ""),
        ("llama", {"position": "t5", "n_buckets": 4, "max_distance": 8}, "dp=2", "read one table"),
    ],
)
def test_what_leaves_a_rank_without_something_is_refused(
    name: str, changes: dict[str, Any], mesh: str, said: str, formula: bool
) -> None:
    spec = SPECS[name].replace(**changes)
    with pytest.raises((InputError, SpecError), match=said or None):
        metacount.shard(spec, mesh, train=True, seq_len=1, formula=formula)


def test_what_no_formula_counts_is_said_and_measured() -> None:
    how: dict[str, Any] = {"train": True, "seq_len": 16, "attention": "sdpa", "dtype": "fp32"}
    counted = metacount.shard(SPECS["llama"], "dp=2", formula=True, **how)
    assert counted.largest.activation_bytes is None
    assert any("attention has no formula: got 'sdpa'" in note for note in counted.missing)
    measured = metacount.shard(SPECS["llama"], "dp=2", **how)
    assert measured.largest.activation_bytes and not any("sdpa" in n for n in measured.missing)


@one_day_in(6)
@pytest.mark.skipif(
    find_spec("torchao") is None,
    reason="torchao is not installed: pip install 'metacount[adam8bit]'",
)
def test_in_8_bits_is_what_a_rank_itself_has_enough_of(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = ALL["wide"]
    asked = job("dp=2,pp=2", 2, dtype="bf16", master=True, optimizer="adam8bit")
    plan = default_plan(spec)
    measured = as_told(measured_kinds(spec, asked, plan))
    assert measured == as_told(counted_kinds(spec, asked, plan))
    monkeypatch.setitem(by_formula.STATES, "adam8bit", by_formula.STATES["adamw"])
    assert measured != as_told(counted_kinds(spec, asked, plan))


def unsent(*args: Any, sent: bool) -> Any:
    """What experts keep of rows that nobody sends."""
    return rows_kept(*args)


@one_day_in(6)
@pytest.mark.parametrize(
    ("name", "mesh", "changes"),
    one_in(
        4,
        [
            ("sandwich", "dp=2,tp=2", {}),
            ("gate", "dp=2,tp=2", {}),
            ("deepseek", "dp=2,tp=2", {}),
            ("llama", "cp=2,tp=2", RING),  # attention is kept: nothing is gathered again for it
        ],
    ),
)
def test_selective_checkpointing_sends_what_full_does(
    name: str, mesh: str, changes: dict[str, Any]
) -> None:
    """What is recomputed is sent again; what is kept no formula counts."""
    spec = SPECS[name]
    asked, plan = job(mesh, checkpointing="selective", **changes), default_plan(spec)
    measured, counted = measured_kinds(spec, asked, plan), counted_kinds(spec, asked, plan)
    for ours, theirs in zip(as_told(counted), as_told(measured), strict=True):
        assert ours["collectives"] == theirs["collectives"]
        assert ours["activation_bytes"] is None and theirs["activation_bytes"] > 0


@pytest.mark.parametrize(
    ("model", "mesh", "way", "said"),
    [
        ("mixtral-8x7b", "dp=4,ep=2", "selective", "selective"),
        ("bloom-176b", "dp=4", "full", "full"),
    ],
)
def test_checkpointing_that_is_refused_is_refused_in_one_line(
    model: str, mesh: str, way: str, said: str
) -> None:
    with pytest.raises(metacount.InputError, match=said):
        metacount.shard(model, mesh, train=True, checkpointing=way, formula=True)


def test_what_leaves_a_machine_is_counted() -> None:
    found = metacount.shard("llama-7b", "dp=4,tp=8", train=True, formula=True).largest
    sent, between = found.sent(), found.sent_between_machines()
    assert between == {"dp": sent["dp"], "tp": 0}  # each tp group is one machine of eight
    wide = metacount.shard("llama-7b", "dp=4,tp=8", train=True, formula=True, per_machine=4)
    assert wide.largest.sent_between_machines() == sent
    experts = metacount.shard("mixtral-8x7b", "dp=16,ep=8", train=True, formula=True, per_machine=2)
    for each in experts.largest.collectives:
        if each.kind == "all-to-all":  # to seven others, of which one is near
            assert each.sent_between_machines * 7 == each.sent * 6


PLANTED = {
    "a piece is rounded down": (sharding, "piece", lambda n, degree, index: n // degree),
    "no padding": (traffic, "gathered_values", sharding.cut_values),
    "o_proj by columns": (sharding, "ROWS", frozenset(["down_proj"])),
    "the latent is cut": (sharding, "COLUMNS", sharding.COLUMNS | {"kv_a_proj_with_mqa"}),
    "experts are counted whole": (sharding, "is_expert", lambda cut, rank: False),
    "every rank keeps whole blocks": (kept_sharding, "kept_spec", lambda spec, rank: spec),
    "rows stay where they are": (kept_sharding, "rows_kept", unsent),
}


@pytest.mark.parametrize("mistake", PLANTED)
def test_a_wrong_formula_is_caught(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, asked = SPECS["deepseek"], job("dp=4,tp=2,ep=4")
    plan = default_plan(spec)
    if "once" not in MEASURED:
        MEASURED["once"] = measured_kinds(spec, asked, plan)
        assert as_told(MEASURED["once"]) == as_told(counted_kinds(spec, asked, plan))
    measured = as_told(MEASURED["once"])
    home, name, wrong = PLANTED[mistake]
    monkeypatch.setattr(home, name, wrong)
    assert measured != as_told(counted_kinds(spec, asked, plan))


MEASURED: dict[str, list[Kind]] = {}


@one_day_in(6)
def test_a_person_s_own_plan_is_what_is_measured() -> None:
    spec, asked = SPECS["llama"], job("tp=2", -1)
    own = Plan(
        styles={
            "decoder.layers.*.mlp": "shared_input",
            "decoder.layers.*.mlp.gate_proj": "colwise",
            "decoder.layers.*.mlp.up_proj": "colwise",
            "decoder.layers.*.mlp.down_proj": "rowwise",
        },
        source="mine",
    )
    first, last = measured_kinds(spec, asked, own)
    # per layer 3 matrices of 11 rows, of which the ranks have 6 and 5; the rest is whole
    assert metacount.count(spec).params - first.params == 3 * 3 * 5 * 16
    assert metacount.count(spec).params - last.params == 3 * 3 * 6 * 16
    assert [(c.kind, c.times) for c in first.collectives if c.phase == "prompt"] == [
        ("all-reduce", 3)
    ]


@pytest.mark.parametrize("words", [ring.NOT_TAKEN, "something else"])
def test_heads_that_an_older_torch_does_not_take_are_one_line(
    monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    def asserts(*_: Any, **__: Any) -> None:
        raise AssertionError(words)

    monkeypatch.setattr(ring, "by_flash", asserts)
    kind = InputError if words == ring.NOT_TAKEN else AssertionError
    with pytest.raises(kind, match="leave cp out, take --formula" if kind is InputError else words):
        measured_kinds(SPECS["llama"], job("cp=2", **RING), default_plan(SPECS["llama"]))


@one_day_in(6)
def test_what_context_parallel_ranks_exchange_is_what_the_ring_moves() -> None:
    # llama3-8b, 4 ranks of 512 tokens: 512·(8 heads of 128 as keys, and as values)
    mine = 512 * 2 * 8 * 128
    for formula in (True, False):
        found = metacount.shard(
            "llama3-8b", "cp=4", train=True, seq_len=2048, attention="flash", formula=formula
        )
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
    eager = metacount.shard("llama3-8b", "cp=4", train=True, seq_len=2048, formula=True)
    assert any("choose --attention flash" in note for note in eager.missing)
    assert "cp" not in eager.largest.sent()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda spec, rank, **how: [],
        lambda spec, rank, **how: RIGHT(spec, rank, **how)[:-1],
        lambda spec, rank, **how: RIGHT(spec, sharding.Rank(cp=rank.cp), **how),
    ],
    ids=["none", "a step fewer", "all heads"],
)
def test_a_wrong_ring_is_caught(wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, asked = SPECS["llama"], job("cp=2,tp=2", **RING)
    plan = default_plan(spec)
    if "ring" not in MEASURED:
        MEASURED["ring"] = measured_kinds(spec, asked, plan)
        assert as_told(MEASURED["ring"]) == as_told(counted_kinds(spec, asked, plan))
    measured = as_told(MEASURED["ring"])
    monkeypatch.setattr(traffic, "ring_moves", wrong)
    assert measured != as_told(counted_kinds(spec, asked, plan))


RIGHT = traffic.ring_moves


@one_day_in(6)
def test_two_calls_do_not_disturb_each_other() -> None:
    spec = SPECS["llama"]
    one, other = job("dp=3,tp=2"), job("dp=2,tp=2,pp=3", -1)
    before = as_told(measured_kinds(spec, one, default_plan(spec)))
    measured_kinds(spec, other, default_plan(spec))
    assert as_told(measured_kinds(spec, one, default_plan(spec))) == before


def test_the_world_is_gone_after_an_error() -> None:
    wrong = Plan(styles={"lm_head": "sideways"}, source="mine")
    with pytest.raises(metacount.InputError, match="'sideways'"):
        measured_kinds(SPECS["llama"], job("tp=2"), wrong)
    assert not dist.is_initialized()
    assert "RANK" not in os.environ


def test_the_formulas_take_symbols_and_arrays() -> None:
    import numpy as np
    import sympy

    rows, degree = sympy.symbols("n p", integer=True, positive=True)
    cut = sharding.Cut(role="ffn", shape=(rows, 4096), axis=0)
    half = sharding.cut_values(cut, sharding.Rank(tp=degree))
    assert half.subs({rows: 11008, degree: 8}) == 11008 * 4096 // 8
    all_ranks = np.arange(7, dtype=np.int64)
    pieces = sharding.piece(53, 7, all_ranks)
    assert [int(n) for n in pieces] == [len(t) for t in torch.arange(53).chunk(7)]
