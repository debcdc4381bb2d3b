"""A run: what is checked before it is timed, what becomes of variants that fail, and its rows."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.bench_layers import (
    DECODE,
    DENSE,
    LATENT,
    PREFILL,
    SPARSE,
    altered,
    attention,
    build,
    error_of,
    ffn,
    mla,
    moe,
    norm,
    result,
    spec,
    tiny_cases,
)
from helpers.one_thread import no_gradients, short_bursts  # noqa: F401  # fixtures for every test here
from helpers.release import daily
from torch import Tensor

from metacount import catalog
from metacount.bench import grid, layers, reference, rows, run
from metacount.bench import rows as files
from metacount.bench.case import Case, Variant
from metacount.bench.layers import Apply, Positions, rule_width, widths
from metacount.bench.rows import (
    BOTH,
    FORWARD,
    Ceiling,
    Row,
    Work,
    compared,
    half_width,
    median_interval,
    rates,
)
from metacount.bench.run import TOLERANCE, error_in, observe, rows_of_case, run_case
from metacount.bench.timing import Entrant, Plan
from metacount.errors import InputError
from metacount.files import check_writable
from metacount.modules.position import apply_rope

CPU = torch.device("cpu")
ROOF = Ceiling(dtype="fp32", flops_per_s=1e11, shape=(2, 3, 5), bytes_per_s=1e10)
PLAN = Plan(device=CPU, rounds=3, seconds=0.0, compile=False, warm_up_seconds=0.0)
HOT = replace(PLAN, states=("hot",))
CACHE = 4096


def case_of(n: int = 3, **how: Any) -> Case:
    return ffn(spec(DENSE), n, "fp32", **how)


def statuses(found: list[Row]) -> dict[str, str]:
    return {row.variant: row.status for row in found if not row.variant.endswith("-compiled")}


def swiglu(change: Any, plan: Plan = PLAN) -> Row:
    """The row of `swiglu`, altered, while the others are what they were."""
    found = run_case(altered(case_of(), change), plan, ROOF, CACHE)
    (row,) = (row for row in found if row.variant == "swiglu")
    others = {name: status for name, status in statuses(found).items() if name != "swiglu"}
    assert set(others.values()) == {"ok"}
    assert row.median_s is None and row.tflops_per_s is None
    return row


@daily(3)
@pytest.mark.parametrize("case", tiny_cases("fp32"), ids=lambda case: case.label)
def test_every_topic_runs(case: Case) -> None:
    found = run_case(case, PLAN, ROOF, CACHE)
    timed = [row for row in found if row.status == "ok"]
    eager = [name for name in case.variants if not name.endswith("-compiled")]
    assert [(row.variant, row.state) for row in timed] == [
        (name, state) for name in eager for state in ("hot", "cold")
    ]
    assert {row.reason for row in found if row.status != "ok"} <= {"--no-compile"}
    for row in timed:
        assert row.launch == "eager" and row.input_sets == 3 and row.rounds == 3
        assert row.samples is not None and 3 <= row.samples <= 24
        assert row.calls_per_sample is not None and row.roof_share is not None
        assert row.median_s is not None and row.p20_s is not None and row.p80_s is not None
        assert 0 < row.p20_s <= row.median_s <= row.p80_s
        assert row.needed_flops is not None and row.tflops_per_s is not None
        assert row.tflops_per_s * row.median_s * 1e12 == pytest.approx(row.needed_flops)
        assert row.relative_error is not None and 0 < row.relative_error < 1e-5
        assert row.peak_bytes is not None and row.working_bytes is not None
        assert row.peak_bytes > row.working_bytes > 0
    for state in ("hot", "cold"):
        (base,) = [r for r in timed if r.state == state and r.variant == r.baseline]
        first = {"attention": ("mha", "mha-sdpa")}.get(case.topic, case.variants[:1])
        assert base.variant in first and (base.ratio, base.within_noise) == (1.0, True)


def test_a_wrong_variant_is_caught() -> None:
    def without_activation(variant: Variant) -> dict[str, Any]:
        block: Any = variant.module
        return {"module": Apply(lambda x: block.down_proj(block.gate_proj(x) * block.up_proj(x)))}

    row = swiglu(lambda v: without_activation(v) | {"stand_in": v.module})
    assert row.status == "wrong result" and run.disagrees([row])
    assert row.relative_error is not None and row.relative_error > 0.1
    assert row.reason is not None and "fp32 explains at most 1e-05" in row.reason


def test_a_wrong_formula_is_caught() -> None:
    work = build(case_of())["swiglu", FORWARD].work
    assert work.matmul_flops == 8190  # 6 · 3 · 13 · 35
    wrong = type(work)(matmul_flops=8191, needed_flops=8190, moved_bytes=work.moved_bytes)
    row = swiglu(lambda _: {"work": wrong})
    assert row.status == "wrong count" and run.disagrees([row])
    assert row.reason is not None and "8,191" in row.reason and "8,190" in row.reason


def test_a_wrong_gradient_of_a_weight_is_caught() -> None:
    def forget(variant: Variant) -> dict[str, Any]:
        def gradients(x: Tensor, grad: Tensor) -> Any:
            y, dx, _d_gate, d_up, d_down = variant.module(x, grad)
            return y, dx, d_up, d_up, d_down

        return {"module": Apply(gradients), "stand_in": variant.module}

    wrong = altered(case_of(directions=(BOTH,)), forget)
    found = statuses(run_case(wrong, HOT, ROOF, CACHE))
    assert found["swiglu"] == "wrong result" and found["gelu"] == found["swiglu-joined"] == "ok"


def failing(error: Exception) -> Any:
    def call(*_: Tensor) -> Any:
        raise error

    return lambda variant: {"module": Apply(call)}


OUT_OF_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried")


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (OUT_OF_MEMORY, "does not fit", "out of memory"),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
            "does not fit",
            "out of memory",
        ),
        (RuntimeError("no kernel for this\nand a trace"), "not available", "no kernel for this"),
    ],
)
def test_a_variant_that_cannot_run_is_a_row(error: Exception, status: str, reason: str) -> None:
    row = swiglu(failing(error))
    assert (row.status, row.reason) == (status, reason)


def row_of(status: str, **changes: Any) -> Row:
    label = {"topic": "ffn", "model": "m", "sizes": {}, "workload": {"tokens": 1, **changes}}
    where = {"dtype": "fp32", "variant": "gelu", "state": "-", "launch": "-", "status": status}
    return Row.from_dict({**label, **where})


@pytest.mark.parametrize(
    ("found", "disagrees"),
    [
        ([], False),
        ([row_of("ok")], False),
        ([row_of("ok"), row_of("wrong result")], True),
        ([row_of("not available")], True),
        ([row_of("too busy")], True),
        ([row_of("ok"), row_of("not available")], False),  # of one case
        ([row_of("ok"), row_of("not available", tokens=2)], True),  # a case of its own
        # memory and budget excuse a case, not a whole run
        ([row_of("ok"), row_of("does not fit", tokens=2), row_of("no time", tokens=3)], False),
        ([row_of("does not fit"), row_of("no time", tokens=3)], True),
    ],
)
def test_a_run_that_measured_nothing_is_no_success(found: list[Row], disagrees: bool) -> None:
    assert run.disagrees(found) == disagrees


def entrant(variant: Variant, direction: str, seconds: list[float], **changes: Any) -> Entrant:
    watch: Any = SimpleNamespace(launch="graph", sets=3, calls_per_sample=3, nodes=None)
    return Entrant(
        variant=replace(variant, direction=direction, **changes),
        watch=watch,
        known={"relative_error": 0.0},
        rounds={"hot": [[s] for s in seconds]},
    )


def rows_from(*entrants: Entrant, roof: Ceiling | None = None) -> list[Row]:
    return list(rows_of_case(entrants, case_of(), HOT, roof, None))


def test_the_backward_alone_is_both_less_the_forward() -> None:
    found = run_case(case_of(11, directions=("backward",)), HOT, ROOF, CACHE)
    rows = {row.direction: row for row in found if row.variant == "swiglu"}
    forward, both, alone = (rows[name] for name in ("forward", "forward+backward", "backward"))
    # 6 · 11 · 13 · 35, and twice as much
    assert (forward.matmul_flops, both.matmul_flops) == (30030, 90090)
    assert alone.matmul_flops == 60060
    # weights are read, their gradients written; input and output gradient, then the input's
    assert alone.moved_bytes == 4 * (2 * 3 * 13 * 35 + 3 * 11 * 13)
    assert both.peak_bytes is not None and forward.peak_bytes is not None
    assert both.peak_bytes > forward.peak_bytes
    if alone.status == "ok":
        assert alone.note == "forward and backward less the forward of the same round"


def test_a_backward_is_taken_round_by_round() -> None:
    built = build(case_of(directions=("backward",)))
    forward = entrant(built["gelu", FORWARD], FORWARD, [1.0, 3.0, 2.0])
    # both drift together: 2 at every round for the backward, whatever the forward took
    (*_, alone) = rows_from(forward, entrant(built["gelu", BOTH], BOTH, [3.0, 5.0, 4.0]))
    assert (alone.direction, alone.median_s, alone.p20_s, alone.p80_s) == ("backward", 2, 2, 2)
    (*_, alone) = sorted(
        rows_from(forward, entrant(built["gelu", BOTH], BOTH, [3.0, 3.0, 4.0])),
        key=lambda row: row.direction == "backward",
    )
    assert alone.status == "not available" and alone.median_s is None


def test_what_a_busy_machine_took_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MOST_SPREAD", 10.0)
    monkeypatch.setattr(rows, "MOST_SHARE", 1.5)
    built = build(case_of())
    # 8112 FLOPs in a second, and in 174 of them in a third of the rounds
    steady = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    gelu = entrant(built["gelu", FORWARD], FORWARD, [1.0, 1.0, 1.0, 1.0, 174.0, 174.0])
    other = entrant(built["swiglu", FORWARD], FORWARD, steady)
    busy, kept = rows_from(gelu, other)
    assert (busy.variant, busy.status) == ("gelu", "too busy") and busy.tflops_per_s is None
    assert busy.reason == "a fifth of the samples took 174 times the median and more"
    # nothing is compared with it
    assert (kept.status, kept.ratio, kept.median_s) == ("ok", None, 1.0)
    slow = replace(ROOF, flops_per_s=8112 / 1.95)
    found = rows_from(entrant(built["gelu", FORWARD], FORWARD, steady), roof=slow)
    assert [row.status for row in found] == ["too busy"]
    assert "195 % of the best product" in (found[0].reason or "")
    # four fifths of a core, and a little less
    monkeypatch.setattr(rows, "LEAST_OF_A_CORE", 0.8)
    for busy_s, status in ((8.0, "ok"), (7.9, "too busy")):
        usual = entrant(built["gelu", FORWARD], FORWARD, [1.0, 1.1, 2.0])
        usual.windows, usual.busy_s = [(0.0, 4.0), (10.0, 16.0)], busy_s
        assert [row.status for row in rows_from(usual, roof=ROOF)] == [status]
    # of a roof that was held up there are no shares
    held = replace(ROOF, core_share=0.5)
    (row,) = rows_from(entrant(built["gelu", FORWARD], FORWARD, steady), roof=held)
    assert row.tflops_per_s is not None and row.roof_share is None


# 12 FLOPs take as long as 3 bytes: the ridge is at 4 FLOPs per byte
LOW_ROOF = Ceiling(dtype="fp32", flops_per_s=12e9, shape=(2, 3, 5), bytes_per_s=3e9)


def test_the_interval_of_a_median_by_hand() -> None:
    # the median of six lies outside of smallest and largest with probability 2/64 = 3.1 %
    assert median_interval([1.0, 6.0, 2.0, 5.0, 3.0, 4.0]) == (1.0, 6.0)
    assert median_interval([1.0] * 5) is None
    # of nine the second smallest and largest: 2 · (1 + 9) / 512 = 3.9 %; of eight the outermost,
    # since 2 · (1 + 8) / 256 = 7.0 %
    assert median_interval([float(x) for x in range(1, 10)]) == (2.0, 8.0)
    assert median_interval([float(x) for x in range(1, 9)]) == (1.0, 8.0)
    assert median_interval([float(x) for x in range(1, 21)]) == (6.0, 15.0)  # 2.07 % below the 6th
    assert half_width([1.0]) == float("inf")
    assert half_width([98.0, 100.0, 100.0, 100.0, 100.0, 102.0]) == pytest.approx(0.02)


def test_rates_by_hand() -> None:
    work = Work(matmul_flops=100, needed_flops=60, moved_bytes=12)
    found = rates(work, 1e-8, LOW_ROOF)
    # 60 FLOPs in 10 ns are 6 GFLOP/s, half of the roof; 12 bytes are 1.2 GB/s, two fifths
    assert found["tflops_per_s"] == pytest.approx(0.006)
    assert found["ceiling_share"] == pytest.approx(0.5)
    assert found["gbytes_per_s"] == pytest.approx(1.2)
    assert found["copy_share"] == pytest.approx(0.4)
    assert found["bound"] == "compute"  # 60 / 12 = 5, above 4
    # 60 FLOPs take 5 ns at the ceiling, 12 bytes 4 ns: half of the time
    assert found["roof_share"] == pytest.approx(0.5)
    assert rates(work, 1e-8, None).keys() == {"tflops_per_s", "gbytes_per_s"}


@pytest.mark.parametrize(
    ("mine", "other", "ratio", "noise"),
    [
        # steadily 1 % slower, while both drift by half: seen, because it is so in every round
        ([1.01, 1.11, 1.212, 1.313, 1.414, 1.515], [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], 1.01, False),
        # slower in five rounds and faster in one
        ([1.2, 1.2, 1.2, 1.2, 1.2, 0.9], [1.0] * 6, 1.2, True),
        # three rounds have no interval; all on one side is all that can be said
        ([1.2, 1.3, 1.1], [1.0] * 3, 1.2, False),
        ([1.2, 1.3, 0.9], [1.0] * 3, 1.2, True),
        ([1.0] * 6, [1.0] * 6, 1.0, True),
        # the median of the ratios 2, 1/2 and 3; the medians themselves are alike
        ([2.0, 1.0, 6.0], [1.0, 2.0, 2.0], 2.0, True),
    ],
)
def test_noise(mine: list[float], other: list[float], ratio: float, noise: bool) -> None:
    found = compared(mine, other)
    assert found["ratio"] == pytest.approx(ratio, rel=2e-3) and found["within_noise"] == noise
    assert (found["ratio_low"] is None) == (len(mine) < 6)


SIZES = {"sizes": {"d_model": 13}, "workload": {"tokens": 3}, "dtype": "fp32"}
ROW = Row.from_dict(result(**SIZES, model="tiny", launch="eager"))
WHERE: dict[str, Any] = {"format": 2, "device": "a device", "torch": "2.0", "threads": 1}


def test_results_round_trip_and_append(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    lines = files.lines_of([ROW, ROW], {"fp32": LOW_ROOF}, WHERE, "2026-01-02T03:04:05+00:00")
    files.append(str(file), lines)
    first = file.read_text(encoding="utf-8")
    files.append(str(file), lines[:1])
    text = file.read_text(encoding="utf-8")
    assert text.startswith(first) and len(text.splitlines()) == 3
    read = files.read(str(file))
    assert [Row.from_dict(line) for line in read] == [ROW] * 3
    assert read[0]["ceiling"] == {
        "dtype": "fp32",
        "flops_per_s": 12e9,
        "shape": [2, 3, 5],
        "bytes_per_s": 3e9,
        "read_bytes_per_s": None,
        "blas_library": None,
        "drift": None,
        "core_share": None,
    }
    assert (read[2]["device"], read[2]["date"]) == ("a device", "2026-01-02T03:04:05+00:00")


def test_the_last_measurement_of_a_point_counts() -> None:
    early, late = (
        files.lines_of([row], {"fp32": LOW_ROOF}, WHERE, "")[0]
        for row in (ROW, Row.from_dict({**ROW.to_dict(), "median_s": 0.5}))
    )
    other = {**early, "state": "cold"}
    assert files.latest_run([early, other, late]) == [late, other]


@pytest.mark.parametrize(
    "change",
    [
        {"median_s": "fast"},
        {"ceiling": {}},
        {"workload": []},
        {"device": 3},
        {"status": None},
        {"ceiling": {"flops_per_s": 0, "bytes_per_s": 1, "shape": [1, 1, 1]}},
        {"workload": {}},
    ],
)
def test_a_line_that_is_no_result(tmp_path: Path, change: dict[str, Any]) -> None:
    file = tmp_path / "r.jsonl"
    good = files.lines_of([ROW], {"fp32": LOW_ROOF}, WHERE, "now")[0]
    file.write_text(f"{json.dumps(good)}\n{json.dumps({**good, **change})}\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"line 2: not a result"):
        files.read(str(file))


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        files.read(str(tmp_path / "none.jsonl"))
    binary = tmp_path / "b.jsonl"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not text"):
        files.read(str(binary))
    with pytest.raises(InputError, match="no folder"):
        check_writable("--save", str(tmp_path / "none" / "r.jsonl"))
    with pytest.raises(InputError, match="is a folder"):
        check_writable("--save", str(tmp_path))


# ---- every variant of every layer: float64's values, and what its formula says


BACKWARD = ("backward",)


def all_cases(dtype: str) -> list[Case]:
    """The tiny cases, the core of attention alone, and all that a feed-forward can be asked."""
    cores = [attention(spec(DENSE), at, dtype, core=True) for at in (PREFILL, DECODE)]
    return [*tiny_cases(dtype), *cores, ffn(spec(DENSE), 11, dtype, directions=BACKWARD)]


NUMBERS = range(len(all_cases("fp32")))


@daily(5)
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("number", NUMBERS)
def test_variants_are_the_reference(number: int, dtype: str) -> None:
    case = all_cases(dtype)[number]
    rows = list(range(case.rows))
    for key, variant in build(case, 2).items():
        for inputs in variant.inputs:
            assert all(t.dtype == torch.float64 for t in variant.reference(inputs, rows))
            assert 0 < error_of(variant, inputs, rows) < TOLERANCE[dtype], key


@pytest.mark.parametrize("number", NUMBERS)
def test_formulas_are_what_the_operators_cost(number: int) -> None:
    for key, variant in build(all_cases("fp32")[number]).items():
        seen = observe(variant)
        assert seen.matmul_flops == variant.work.matmul_flops, key
        if variant.shows_mask:
            assert seen.masked_flops == variant.work.needed_flops, key
        # no layer can do with less than what must move, but for what it is given and leaves alone
        given = sum(t.nbytes for t in variant.inputs[0])
        assert seen.operator_bytes >= variant.work.moved_bytes - given, key


def ffn_case(dtype: str = "bf16", **how: Any) -> Case:
    return ffn(spec(DENSE), 3, dtype, **how)


def at(batch: int, seq: int, kv: int) -> Positions:
    return Positions(batch_size=batch, seq_len=seq, kv_len=kv)


PREFILLED, LATENTS = attention(spec(DENSE), PREFILL, "bf16"), mla(spec(LATENT), DECODE, "bf16")
MIXED = moe(spec(SPARSE), 11, "balanced", "fp32")
# case, variant, direction: bytes that must move, each once, and FLOPs that are needed
WORK: list[tuple[Case, str, str, int, int]] = [
    # 2 · 13 · 52 weights, 3 · 13 values in and out; 2 FLOPs · 3 tokens · 13 · 52 · 2 matrices
    (ffn_case(), "gelu", FORWARD, 2 * (1352 + 78), 8112),
    # two products more for each; weights and their gradients, and as much again of everything else
    (ffn_case(directions=BACKWARD), "gelu", BOTH, 4 * (1352 + 78), 3 * 8112),
    # weights 2 · 13 · 4 · 8; x and y; 10 · 2 · 2 · 4 kept; q and o: 2 · 2 · 10 · 13 · 24 = 12480,
    # k and v: 2 · 2 · 10 · 13 · 8 = 4160; 30 pairs kept at 4 · 6 · 4
    (PREFILLED, "gqa", FORWARD, 2 * (832 + 260 + 160), 12480 + 4160 + 2880),
    # 776 weights, two norms of 11 + 7, x and y, 21 positions of 9; q_a 13·11 + q_b 11·21 = 374,
    # kv_a 13·9 = 117, o 9·13 = 117: 608 for each of 3 tokens; kv_b 7·24 = 168 for 3 absorbed; 21
    # pairs of 3 · (9 + 7)
    (LATENTS, "absorbed-folded", FORWARD, 2 * (776 + 18 + 78 + 189), 2 * (3 * 776 + 21 * 48)),
    # five experts of 2880, router 120, 264 values in and out, 22 choices of 8 bytes; 22 rows of
    # 6 · 24 · 40 and a router of 2 · 11 · 24 · 5, without what `batched` pads
    (MIXED, "batched", FORWARD, 4 * (5 * 2880 + 120 + 528) + 176, 22 * 5760 + 2640),
    (norm(spec(DENSE), 3, "bf16"), "layernorm-torch", FORWARD, 2 * (26 + 78), 0),
]


@pytest.mark.parametrize(("case", "name", "direction", "moved", "needed"), WORK)
def test_work_by_hand(case: Case, name: str, direction: str, moved: int, needed: int) -> None:
    work = build(case)[name, direction].work
    assert (work.needed_flops, work.moved_bytes) == (needed, moved)
    assert work.intensity == needed / moved


def test_the_reference_by_hand() -> None:
    one = torch.ones(1, 1, dtype=torch.float64)
    # Φ(1) = 0.841344746…; 1 / (1 + e^-1) = 0.731058578…
    assert float(reference.gelu(one)) == pytest.approx(0.8413447460685429)
    assert float(reference.silu(one)) == pytest.approx(0.7310585786300049)
    assert float(reference.ffn(one, 2 * one, 3 * one, 5 * one)) == pytest.approx(
        5 * 3 * 2 * 0.8807970779778823
    )
    # Φ(1) + φ(1) = 0.8413447 + 0.2419707; s·(1 + (1 - s)) with s = 0.7310586
    assert float(reference.gelu_slope(one)) == pytest.approx(1.0833154705876864)
    assert float(reference.silu_slope(one)) == pytest.approx(0.9276705118714867)
    # 3 / sqrt((9 + 16) / 2) and 4 / …, weights 2 and 1
    row = torch.tensor([[3.0, 4.0]])
    assert reference.rms_norm(row, torch.tensor([2.0, 1.0]), 0.0).tolist() == [
        pytest.approx([1.6970562748477143, 1.131370849898476])
    ]
    turned = reference.rotate(torch.tensor([[1.0, 0.0]], dtype=torch.float64), [1], 10000.0)
    assert turned.tolist() == [pytest.approx([0.5403023058681398, 0.8414709848078965])]


def test_a_changed_result_is_seen() -> None:
    gelu = build(ffn_case(dtype="fp32"))["gelu", FORWARD]

    def broken(change: Any) -> float:
        variant = replace(gelu, module=Apply(lambda x: change(gelu.module(x))))
        return error_of(variant, gelu.inputs[0], [0, 1, 2])

    assert broken(lambda y: y) < TOLERANCE["fp32"]
    assert broken(lambda y: 1.0001 * y) > TOLERANCE["fp32"]
    assert broken(lambda y: y.flip(0)) > 0.1
    # one value that is not finite, in a row that is compared or not: never an error that passes
    assert not broken(lambda y: y.index_fill(0, torch.tensor([1]), torch.inf)) < 1
    y = torch.ones(3, 2)
    assert error_in(y, [0, 2], (y[[0, 2]].double(),)) == 0.0
    y[1, 0] = torch.inf
    assert not error_in(y, [0, 2], (y[[0, 2]].double(),)) <= 1


MANY = moe(spec({**SPARSE, "n_experts": 32, "top_k": 4}), 64, "skewed", "fp32")


@pytest.mark.parametrize("case", [*tiny_cases("fp32"), MANY], ids=lambda case: case.label)
def test_memory_is_not_underestimated(case: Case) -> None:
    if (case.topic, case.workload.get("phase")) == ("mla", "prefill"):
        return  # counted for latents that are wider than a head's keys and values
    for variant in build(case).values():
        seen = observe(variant)
        assert seen.held_bytes + seen.working_bytes <= case.needs_bytes, variant.name


@pytest.mark.parametrize("n_tokens", [1, 11])
def test_routing(n_tokens: int) -> None:
    balanced = layers.choose(n_tokens, 5, 2, "balanced")
    for chosen in (balanced, layers.choose(n_tokens, 5, 2, "skewed")):
        assert [len(set(row)) for row in chosen.tolist()] == [2] * n_tokens
    counts = balanced.flatten().bincount(minlength=5)
    assert int(counts.max() - counts.min()) <= 1


def test_widths() -> None:
    # 8·4096/3 = 10922.67, up to a multiple of 256; 8·13/3 = 34.67
    assert (rule_width(4096), rule_width(13)) == (11008, 35)
    assert widths(spec(DENSE)) == {"swiglu": 35, "swiglu-4d": 52, "swiglu-own": 17}
    assert widths(spec(SPARSE))["swiglu-expert"] == 40
    # a mixture with dense layers first has both widths: deepseek-v3's 18432 and 2048
    v3 = widths(catalog.entry("deepseek-v3").spec())
    assert v3 == {"swiglu": 19200, "swiglu-4d": 28672, "swiglu-own": 18432, "swiglu-expert": 2048}
    assert list(widths(spec(DENSE, d_ff=52))) == ["swiglu", "swiglu-4d"]
    assert list(widths(spec(DENSE, gated=False))) == ["swiglu", "swiglu-4d"]


@pytest.mark.parametrize(("major", "fast"), [(8, False), (9, True), (10, True), (12, False)])
def test_where_the_grouped_product_has_a_kernel(
    major: int, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it loops on the host: a graph of it would be a capture that fails."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (major, 0))
    cuda = torch.device("cuda", 0)
    assert layers.grouped_on_device(cuda, torch.bfloat16) == fast
    assert not layers.grouped_on_device(cuda, torch.float16)
    assert layers.grouped_on_device(CPU, torch.float32)


def test_angles_at_a_long_context_are_those_of_float32() -> None:
    """The model's angles are float32; at position 131,071 that shows, and is no fault."""
    torch.manual_seed(0)
    x, place = torch.randn(1, 1, 1, 16), torch.tensor([131_071])
    turned = apply_rope(x, place, rotary_dim=16, theta=1e4, style="interleaved")[0, 0].double()
    rounded = reference.rotate(x[0, 0].double(), [131_071], 1e4, torch.float32)
    exact = reference.rotate(x[0, 0].double(), [131_071], 1e4)
    assert (turned - rounded).abs().max() < 1e-6 < 1e-4 < (turned - exact).abs().max()


@pytest.mark.parametrize("topic", grid.TOPICS)
def test_the_default_grid_of_a_device_is_counted_right(topic: str) -> None:
    """Every variant at its real size, on meta: the formula is what the operators cost."""
    cases = grid.cases(topic, "cuda")
    small = [case for case in cases if case.workload.get("batch_size", 1) == 1]
    for case in (small[0], small[-1]):
        for variant in case.build(torch.device("meta"), 1):
            if variant.name == "loop" or variant.missing:
                continue  # reads values back, or is not here
            if variant.name.endswith(("-cudnn", "-flash", "-efficient")):
                continue  # kernels of a device
            seen = observe(variant)
            assert seen.matmul_flops == variant.work.matmul_flops, (case.label, variant.name)


def test_an_estimate_by_hand() -> None:
    rates = grid.Rates(flops_per_s=1e12, bytes_per_s=1e9, flush_s=1e-3, source="")
    case = ffn(spec(DENSE), 3, "fp32")
    work = case.build(torch.device("meta"), 1)[0].work
    # 8112 FLOPs take 8.1 ns; 4 · (2 · 13 · 52 + 2 · 3 · 13) = 5720 bytes 5.72 µs; at 70 %
    assert grid.call_seconds(work, rates) == pytest.approx(5.72e-6 / 0.7)
    plan = Plan(device=CPU, rounds=40, seconds=10.0, states=("hot",), compile=False)
    planned = grid.plan_of(case, plan, rates)
    gelu = planned["variants"][0]
    # ten calls to check, six rounds of a burst of 8 ms and three calls in front
    call_s = gelu["call_s"]
    assert gelu["measuring_s"] == pytest.approx(10 * call_s + 6 * (8e-3 + 3 * call_s))
    assert [v["measuring_s"] for v in planned["variants"] if "compiled" in v["name"]] == [0.0] * 4


HOT = Plan(device=CPU, rounds=3, seconds=0.0, compile=False, warm_up_seconds=0.0, states=("hot",))
LIGER = ffn(spec(DENSE), 3, "fp32", peers=True)

Install = Callable[..., None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Make a package be there, with these functions in its last module."""

    def module(name: str, **functions: Any) -> None:
        for end in (i for i, c in enumerate(f"{name}.") if c == "."):
            monkeypatch.setitem(sys.modules, name[:end], ModuleType(name[:end]))
        vars(sys.modules[name]).update(functions)
        monkeypatch.setattr(layers, "find_spec", lambda name: object())

    return module


def by_name(case: Case, *names: str) -> dict[str, Row]:
    return {row.variant: row for row in run_case(case, replace(HOT, only=names), None, 4096)}


def test_a_missing_peer_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "find_spec", lambda name: None)
    rows = by_name(LIGER, "swiglu-liger", "gelu")
    peer = rows["swiglu-liger"]
    assert (peer.status, peer.reason) == ("not available", "pip install liger-kernel")
    assert rows["gelu"].status == "ok"


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, *, causal: bool) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=True)


def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, softmax_scale: float, causal: bool = False
) -> tuple[Tensor, None]:
    """As FlashAttention-3 has it: [B, S, H, K], and the logarithms beside the result."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return attend(q, k, v, softmax_scale, causal=causal).transpose(1, 2), None


@pytest.mark.parametrize("at", [PREFILL, DECODE], ids=["prefill", "decode"])
def test_flash_attention_3(install: Install, at: Positions) -> None:
    install("flash_attn_interface", flash_attn_func=flash_attn_func)
    case = attention(spec(DENSE), at, "fp32", ("-sdpa", "-fa3"))
    rows = by_name(case, "gqa-fa3", "gqa-sdpa")
    assert rows["gqa-fa3"].status == "ok", rows["gqa-fa3"].reason
    assert rows["gqa-fa3"].matmul_flops == rows["gqa-sdpa"].matmul_flops
    # its kernel shows no operators: the row says on what the FLOPs were counted
    assert rows["gqa-fa3"].counted_on == "scaled_dot_product_attention"
    assert rows["gqa-sdpa"].counted_on is None


def test_a_wrong_peer_is_caught(install: Install) -> None:
    def wrong(q: Tensor, *rest: Any, **more: Any) -> Tensor:
        return flash_attn_func(q, *rest, **{**more, "causal": False})[0]

    install("flash_attn_interface", flash_attn_func=wrong)
    case = attention(spec(DENSE), PREFILL, "fp32", ("-sdpa", "-fa3"))
    assert by_name(case, "gqa-fa3")["gqa-fa3"].status == "wrong result"
