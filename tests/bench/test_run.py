"""A run: what is checked before it is timed, and what becomes of variants that fail."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers.bench_layers import DENSE, altered, spec, tiny_cases
from helpers.one_thread import no_gradients, short_bursts  # noqa: F401  # fixtures for every test here
from helpers.release import daily
from torch import Tensor, nn

from metacount.bench import ffn, run
from metacount.bench.case import Built, Case, Variant
from metacount.bench.ceiling import Roofs
from metacount.bench.rows import Ceiling, Row
from metacount.bench.run import Plan, run_case

CPU = torch.device("cpu")
ROOF = Ceiling(dtype="fp32", flops_per_s=1e11, shape=(2, 3, 5), bytes_per_s=1e10)
PLAN = Plan(device=CPU, rounds=3, seconds=0.0, compile=False, warm_up_seconds=0.0)
CACHE = 4096


def changed(**changes: Any) -> Case:
    """The tiny feed-forward case; its variant `swiglu` is altered."""
    return altered(ffn.case("tiny", spec(DENSE), 3, "fp32"), lambda _: changes)


def statuses(rows: list[Row]) -> dict[str, str]:
    return {row.variant: row.status for row in rows if not row.variant.endswith("-compiled")}


@daily(3)
@pytest.mark.parametrize("case", tiny_cases("fp32"), ids=lambda case: case.label)
def test_every_topic_runs(case: Case) -> None:
    rows = run_case(case, PLAN, ROOF, CACHE)
    timed = [row for row in rows if row.status == "ok"]
    eager = [name for name in case.variants if not name.endswith("-compiled")]
    assert [(row.variant, row.state) for row in timed] == [
        (name, state) for name in eager for state in ("hot", "cold")
    ]
    assert {row.reason for row in rows if row.status != "ok"} <= {"--no-compile"}
    for row in timed:
        assert row.launch == "eager" and row.input_sets == 3 and row.rounds == 3
        assert row.samples is not None and 3 <= row.samples <= 24
        assert row.calls_per_sample is not None and row.roof_share is not None
        assert row.median_s is not None and row.p20_s is not None and row.p80_s is not None
        assert 0 < row.p20_s <= row.median_s <= row.p80_s < 1
        assert row.needed_flops is not None and row.tflops_per_s is not None
        assert row.tflops_per_s * row.median_s * 1e12 == pytest.approx(row.needed_flops)
        assert row.relative_error is not None and 0 < row.relative_error < 1e-5
        assert row.peak_bytes is not None and row.working_bytes is not None
        assert row.peak_bytes > row.working_bytes > 0
    for state in ("hot", "cold"):
        (base,) = [r for r in timed if r.state == state and r.variant == r.baseline]
        assert base.variant in (case.baselines or case.variants[:1])
        assert (base.ratio, base.within_noise) == (1.0, True)


class Wrong(nn.Module):
    """SwiGLU with one activation too few, at the same cost."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.block.gate_proj(x), self.block.up_proj(x)  # type: ignore[operator]
        y: Tensor = self.block.down_proj(gate * up)  # type: ignore[operator]
        return y


def test_a_wrong_variant_is_caught() -> None:
    case = ffn.case("tiny", spec(DENSE), 3, "fp32")
    wrong = altered(case, lambda variant: {"module": Wrong(variant.module)})
    rows = run_case(wrong, PLAN, ROOF, CACHE)
    assert statuses(rows)["swiglu"] == "wrong result"
    assert set(statuses(rows).values()) == {"wrong result", "ok"}
    (row,) = (row for row in rows if row.variant == "swiglu")
    assert row.relative_error is not None and row.relative_error > 0.1
    assert row.median_s is None and row.tflops_per_s is None
    assert row.reason is not None and "fp32 explains at most 1e-05" in row.reason
    report = run.Report(environment={}, ceilings={}, rows=rows)
    assert report.failed == [row]


def test_a_wrong_formula_is_caught() -> None:
    work = ffn.case("tiny", spec(DENSE), 3, "fp32").build(CPU, 1).variants[2].work
    # 6 · 3 · 13 · 35 = 8190
    assert work.matmul_flops == 8190
    values = {
        name: getattr(work, name)
        for name in ("needed_flops", "weight_bytes", "input_bytes", "output_bytes")
    }
    rows = run_case(changed(work=type(work)(**values, matmul_flops=8191)), PLAN, ROOF, CACHE)
    assert statuses(rows)["swiglu"] == "wrong count"
    (row,) = (row for row in rows if row.variant == "swiglu")
    assert row.reason is not None
    assert "8,191" in row.reason and "8,190" in row.reason
    assert row.median_s is None


def test_a_wrong_count_of_the_mask_is_caught() -> None:
    case = tiny_cases("fp32")[1]
    variant = case.build(CPU, 1).variants[0]
    seen = run.observe(variant, case.build(CPU, 1).inputs[0])
    run.refuse_miscount(variant, seen)
    assert seen.masked_flops is not None
    wrong = replace(seen, masked_flops=seen.masked_flops + 2)
    with pytest.raises(run.Refused):
        run.refuse_miscount(variant, wrong)


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried"), "does not fit", "out of memory"),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
            "does not fit",
            "out of memory",
        ),
        (RuntimeError("no kernel for this\nand a trace"), "not available", "no kernel for this"),
    ],
)
def test_a_variant_that_cannot_run_is_a_row(error: Exception, status: str, reason: str) -> None:
    class Fails(nn.Module):
        def forward(self, _x: Tensor) -> Tensor:
            raise error

    rows = run_case(changed(module=Fails()), PLAN, ROOF, CACHE)
    assert statuses(rows)["swiglu"] == status
    (row,) = (row for row in rows if row.variant == "swiglu")
    assert row.reason == reason
    assert statuses(rows)["gelu"] == "ok"


def test_what_is_too_large_is_not_tried() -> None:
    def build(device: torch.device, n_sets: int) -> Built:
        raise AssertionError("must not be built")

    case = replace(tiny_cases("fp32")[0], build=build, needs_bytes=2**60)
    rows = run_case(case, PLAN, ROOF, CACHE)
    assert {row.status for row in rows} == {"does not fit"}
    assert rows[0].reason is not None and "needs about 1073741824.0 GiB" in rows[0].reason


def test_a_compiler_that_fails_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_compiler(module: nn.Module, **_: Any) -> Any:
        def call(*_: Tensor) -> Tensor:
            raise TypeError("no working C++ compiler\nlong trace")

        return call

    monkeypatch.setattr(torch, "compile", no_compiler)
    rows = run_case(tiny_cases("fp32")[0], replace(PLAN, compile=True), ROOF, CACHE)
    found = {row.variant: (row.status, row.reason) for row in rows}
    assert found["gelu-compiled"] == ("not available", "no working C++ compiler")
    assert found["swiglu"][0] == "ok"


def test_what_a_compiler_advises_about_float32_is_not_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A warning is an error in these tests: this one would make a row of the variant."""

    def advises(module: nn.Module, **_: Any) -> Any:
        first = [True]

        def call(*inputs: Tensor) -> Any:
            if first.pop() if first else False:
                warnings.warn("TensorFloat32 tensor cores available but not enabled", stacklevel=1)
            return module(*inputs)

        return call

    monkeypatch.setattr(torch, "compile", advises)
    rows = run_case(tiny_cases("fp32")[0], replace(PLAN, compile=True), ROOF, CACHE)
    assert {row.status for row in rows} == {"ok"}


def test_a_mistake_of_ours_is_not_hidden() -> None:
    class Fails(nn.Module):
        def forward(self, _x: Tensor) -> Tensor:
            raise KeyError("ours")

    with pytest.raises(KeyError, match="ours"):
        run_case(changed(module=Fails()), PLAN, ROOF, CACHE)


def test_only_some_variants() -> None:
    plan = replace(PLAN, only=("swiglu", "swiglu-4d"), states=("cold",))
    rows = run_case(tiny_cases("fp32")[0], plan, ROOF, CACHE)
    assert [(row.variant, row.state, row.ratio) for row in rows] == [
        ("swiglu", "cold", None),
        ("swiglu-4d", "cold", None),
    ]


def given_roof() -> Roofs:
    return Roofs(CPU, CACHE, known={"fp32": ROOF})


def test_rows_are_there_case_by_case() -> None:
    report = run.Report(environment={}, ceilings={})
    seen = []
    for rows in run.run_cases(tiny_cases("fp32")[:2], PLAN, report=report, roofs=given_roof()):
        seen.append((len(rows), len(report.rows)))
    assert len(seen) == 2 and seen[1][1] == seen[0][0] + seen[1][0]
    assert report.ceilings == {"fp32": ROOF} and not report.failed and not report.unmeasured


def test_an_error_while_timing_is_a_row() -> None:
    class FailsLater(nn.Module):
        def __init__(self, block: nn.Module) -> None:
            super().__init__()
            self.block, self.left = block, 16

        def forward(self, x: Tensor) -> Tensor:
            self.left -= 1
            if self.left < 0:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to")
            y: Tensor = self.block(x)
            return y

    case = ffn.case("tiny", spec(DENSE), 3, "fp32")
    later = altered(case, lambda variant: {"module": FailsLater(variant.module)})
    rows = run_case(later, PLAN, ROOF, CACHE)
    assert statuses(rows)["swiglu"] == "does not fit" and statuses(rows)["gelu"] == "ok"
    (row,) = (row for row in rows if row.variant == "swiglu")
    assert row.reason == "while it was timed: out of memory"
    assert row.relative_error is not None and row.median_s is None


def row_of(status: str, **changes: Any) -> Row:
    return Row(
        topic="ffn",
        model="m",
        sizes={},
        workload={"tokens": 1, **changes},
        dtype="fp32",
        variant="gelu",
        state="-",
        launch="-",
        status=status,
    )


@pytest.mark.parametrize(
    ("rows", "unmeasured"),
    [
        ([], False),
        ([row_of("ok")], False),
        ([row_of("not available")], True),
        ([row_of("ok"), row_of("not available")], False),  # of one case
        ([row_of("ok"), row_of("not available", tokens=2)], True),  # a case of its own
        # memory and budget excuse a case, not a whole run
        ([row_of("ok"), row_of("does not fit", tokens=2), row_of("no time", tokens=3)], False),
        ([row_of("does not fit"), row_of("no time", tokens=3)], True),
    ],
)
def test_a_run_that_measured_nothing_is_no_success(rows: list[Row], unmeasured: bool) -> None:
    assert run.Report(environment={}, ceilings={}, rows=rows).unmeasured == unmeasured


def test_what_does_not_fit_into_the_budget_is_not_tried() -> None:
    now = [0.0]
    report = run.Report(environment={}, ceilings={})
    cases = [tiny_cases("fp32")[0], tiny_cases("fp32")[-1]]
    for _ in run.run_cases(
        cases,
        PLAN,
        report=report,
        roofs=given_roof(),
        budget=10.0,
        seconds=[8.0, 3.0],
        clock=lambda: now[0],
    ):
        now[0] += 8.0
    assert {row.status for row in report.rows if row.topic == "norm"} == {"no time"}
    assert report.rows[-1].reason == "about 3 s; of --budget 10 s 2 are left"
    assert statuses(report.rows)["gelu"] == "ok"


def test_memory_of_a_forward_by_hand() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x + 1).mul_(2)[:3] * 5

    work = ffn.case("tiny", spec(DENSE), 3, "fp32").build(CPU, 1).variants[0].work
    x = torch.randn(7)
    variant = Variant(name="two", module=Two(), work=work, reference=lambda inputs, rows: x)
    seen = run.observe(variant, (x,))
    # x is 28 bytes; x + 1 makes 28, the slice of it 12 more while 28 are alive
    assert (seen.held_bytes, seen.working_bytes) == (28, 40)
    # add reads and writes 28, mul_ shows 28 twice, the slice is a view, mul reads and writes 12
    assert seen.operator_bytes == 56 + 56 + 24
    assert seen.matmul_flops == 0
