"""A run: what is checked before it is timed, and what becomes of variants that fail."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from bench_layers import DENSE, spec, tiny_cases
from one_thread import no_gradients  # noqa: F401  # a fixture for every test here
from torch import Tensor, nn

from metacount.bench import ceiling, prepare, run
from metacount.bench.ceiling import measure_ceiling
from metacount.bench.device import clock_mhz, commit, describe, stated_peaks
from metacount.bench.layers import ffn
from metacount.bench.layers.case import Built, Case, Variant
from metacount.bench.prepare import Plan
from metacount.bench.rows import Ceiling, Row
from metacount.bench.run import run_case

CPU = torch.device("cpu")
ROOF = Ceiling(dtype="fp32", flops_per_s=1e11, shape=(2, 3, 5), bytes_per_s=1e10)
PLAN = Plan(device=CPU, rounds=3, seconds=0.0, compile=False)
CACHE = 4096


def changed(**changes: Any) -> Case:
    """The tiny feed-forward case; its variant `swiglu` is altered."""
    case = ffn.case("tiny", spec(DENSE), 3, "fp32")

    def build(device: torch.device, n_sets: int) -> Built:
        built = case.build(device, n_sets)
        variants = [replace(v, **changes) if v.name == "swiglu" else v for v in built.variants]
        return replace(built, variants=variants)

    return replace(case, build=build)


def statuses(rows: list[Row]) -> dict[str, str]:
    return {row.variant: row.status for row in rows if not row.variant.endswith("-compiled")}


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
        assert row.launch == "eager" and row.input_sets == 3 and row.samples == 6
        assert row.median_s is not None and row.p20_s is not None and row.p80_s is not None
        assert 0 < row.p20_s <= row.median_s <= row.p80_s < 1
        assert row.needed_flops is not None and row.tflops_per_s is not None
        assert row.tflops_per_s * row.median_s * 1e12 == pytest.approx(row.needed_flops)
        assert row.relative_error is not None and 0 < row.relative_error < 1e-5
        assert row.peak_bytes is not None and row.working_bytes is not None
        assert row.peak_bytes > row.working_bytes > 0
    baselines = [row for row in timed if row.variant == case.variants[0]]
    assert [row.ratio for row in baselines] == [1.0, 1.0]


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

    def build(device: torch.device, n_sets: int) -> Built:
        built = case.build(device, n_sets)
        variants = [replace(v, module=Wrong(v.module)) if v.name == "swiglu" else v
                    for v in built.variants]  # fmt: skip
        return replace(built, variants=variants)

    rows = run_case(replace(case, build=build), PLAN, ROOF, CACHE)
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
    values = {name: getattr(work, name) for name in
              ("needed_flops", "weight_bytes", "input_bytes", "output_bytes")}  # fmt: skip
    rows = run_case(changed(work=type(work)(**values, matmul_flops=8191)), PLAN, ROOF, CACHE)
    assert statuses(rows)["swiglu"] == "wrong count"
    (row,) = (row for row in rows if row.variant == "swiglu")
    assert row.reason is not None
    assert "8,191" in row.reason and "8,190" in row.reason
    assert row.median_s is None


def test_a_wrong_count_of_the_mask_is_caught() -> None:
    case = tiny_cases("fp32")[1]
    variant = case.build(CPU, 1).variants[0]
    seen = prepare.observe(variant, case.build(CPU, 1).inputs[0])
    prepare.refuse_miscount(variant, seen)
    assert seen.masked_flops is not None
    wrong = replace(seen, masked_flops=seen.masked_flops + 2)
    with pytest.raises(prepare.Refused, match="pairs that the mask keeps"):
        prepare.refuse_miscount(variant, wrong)


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried"), "does not fit", "out of memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
         "does not fit", "out of memory"),
        (RuntimeError("no kernel for this\nand a trace"), "not available", "no kernel for this"),
    ],
)  # fmt: skip
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
        ("swiglu", "cold", None), ("swiglu-4d", "cold", None)
    ]  # fmt: skip


def test_rows_are_kept_case_by_case() -> None:
    kept: list[int] = []
    cases = tiny_cases("fp32")[:2]
    report = run.run_cases(cases, PLAN, ceilings={"fp32": ROOF},
                           keep=lambda report, rows: kept.append(len(rows)))  # fmt: skip
    assert len(kept) == 2 and sum(kept) == len(report.rows)
    assert report.environment["torch"] == torch.__version__
    assert report.environment["threads"] == torch.get_num_threads()


def test_the_ceiling_is_measured() -> None:
    roof = measure_ceiling(CPU, "fp32", CACHE, shapes=((64, 64, 64), (2, 2, 2)), copy_bytes=2**22,
                           rounds=3)  # fmt: skip
    assert roof.shape == (64, 64, 64)
    assert 1e7 < roof.flops_per_s < 1e15 and 1e7 < roof.bytes_per_s < 1e13


def test_the_ceiling_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    class HalfASecond:
        def hot(self) -> float:
            return 0.5

    monkeypatch.setattr(ceiling, "_watch", lambda _device, _call: HalfASecond())
    roof = measure_ceiling(CPU, "fp32", CACHE, shapes=((2, 3, 5), (3, 5, 7)), copy_bytes=4096)
    # 2 · 3 · 5 · 7 FLOPs and 4096 bytes, read and written, in half a second
    assert (roof.shape, roof.flops_per_s, roof.bytes_per_s) == ((3, 5, 7), 420.0, 16384.0)


def test_the_device_is_described() -> None:
    info = describe(CPU)
    assert info.kind == "cpu" and info.driver is None and info.device
    assert info.cache_bytes >= 2**16 and info.memory_bytes > 2**20
    assert clock_mhz(CPU) is None or 100 < (clock_mhz(CPU) or 0) < 10_000
    assert stated_peaks("NVIDIA H100") is None
    found = commit()
    assert found is None or len(found.removesuffix("+changes")) == 40


def test_memory_of_a_forward_by_hand() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x + 1).mul_(2)[:3] * 5

    work = ffn.case("tiny", spec(DENSE), 3, "fp32").build(CPU, 1).variants[0].work
    x = torch.randn(7)
    variant = Variant(name="two", module=Two(), work=work, reference=lambda inputs, rows: x)
    seen = prepare.observe(variant, (x,))
    # x is 28 bytes; x + 1 makes 28, the slice of it 12 more while 28 are alive
    assert (seen.held_bytes, seen.working_bytes) == (28, 40)
    # add reads and writes 28, mul_ shows 28 twice, the slice is a view, mul reads and writes 12
    assert seen.operator_bytes == 56 + 56 + 24
    assert seen.matmul_flops == 0
