"""Backward, parts, widths of equal time, attention's core: each with the same checks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers.bench_layers import DECODE, DENSE, LATENT, PREFILL, SPARSE, altered, spec
from helpers.one_thread import no_gradients, short_bursts  # noqa: F401  # fixtures for every test here
from torch import Tensor, nn

from metacount.bench import attention, ffn, grid, mla, moe, reference, run
from metacount.bench.case import Case, Variant
from metacount.bench.ffn import ForwardBackward
from metacount.bench.grid import Asked
from metacount.bench.observe import TOLERANCE, error_of, observe
from metacount.bench.rows import Ceiling, Row
from metacount.bench.run import Measured, Plan, crossing, rows_of_case, run_case
from metacount.bench.work import Positions, attention_core_work, ffn_training_work, product_work
from metacount.errors import InputError
from metacount.modules.position import apply_rope

CPU = torch.device("cpu")
ROOF = Ceiling(dtype="fp32", flops_per_s=1e11, shape=(2, 3, 5), bytes_per_s=1e10)
PLAN = Plan(device=CPU, rounds=3, seconds=0.0, compile=False, warm_up_seconds=0.0, states=("hot",))
EVERYTHING = ffn.Extras(parts=True, equal_time=True, directions=("backward",))


def case_of(extras: ffn.Extras, dtype: str = "fp32") -> Case:
    return ffn.case("tiny", spec(DENSE), 11, dtype, extras)


def variants(extras: ffn.Extras, dtype: str = "fp32") -> list[Variant]:
    return case_of(extras, dtype).build(CPU, 2).variants


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_gradients_and_parts_are_the_reference(dtype: str) -> None:
    built = case_of(EVERYTHING, dtype).build(CPU, 2)
    kinds = {(v.direction, v.part) for v in built.variants}
    assert kinds == {("forward", False), ("forward+backward", False), ("forward", True)}
    for variant in built.variants:
        for inputs in variant.inputs or built.inputs:
            rows = list(range(11))
            error = error_of(
                variant.module, inputs, rows, variant.reference(inputs, rows), variant.pick
            )
            assert 0 < error < TOLERANCE[dtype], variant.key


def test_gradients_are_the_reference_to_the_last_digits() -> None:
    for variant in variants(ffn.Extras(directions=("forward+backward",)), "fp64"):
        inputs = (variant.inputs or [])[0]
        expected = variant.reference(inputs, [0, 7])
        assert error_of(variant.module, inputs, [0, 7], expected, variant.pick) < 1e-13


def test_slopes_by_hand() -> None:
    one = torch.ones(1, dtype=torch.float64)
    # Φ(1) + φ(1) = 0.8413447 + 0.2419707; s·(1 + (1 - s)) with s = 0.7310586
    assert float(reference.gelu_slope(one)) == pytest.approx(1.0833154705876864)
    assert float(reference.silu_slope(one)) == pytest.approx(0.9276705118714867)
    h = 1e-6
    for f, slope in (
        (reference.gelu, reference.gelu_slope),
        (reference.silu, reference.silu_slope),
    ):
        x = torch.tensor([-2.0, -0.3, 0.0, 1.7], dtype=torch.float64)
        numeric = (f(x + h) - f(x - h)) / (2 * h)
        torch.testing.assert_close(slope(x), numeric, rtol=1e-8, atol=1e-9)


class ForgetsTheGate(nn.Module):
    """Gradients of which the gate's is left at another's."""

    def __init__(self, both: ForwardBackward) -> None:
        super().__init__()
        self.both = both

    def forward(self, x: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
        y, dx, _d_gate, d_up, d_down = self.both(x, grad)
        return y, dx, d_up, d_up, d_down


def test_a_wrong_gradient_of_a_weight_is_caught() -> None:
    case = case_of(ffn.Extras(directions=("forward+backward",)))
    wrong = altered(case, lambda variant: {"module": ForgetsTheGate(variant.module)})
    rows = run_case(wrong, PLAN, ROOF, 4096)
    found = {row.variant: row.status for row in rows}
    assert found["swiglu"] == "wrong result" and found["gelu"] == found["swiglu-joined"] == "ok"


def test_flops_of_forward_and_backward_are_what_the_operators_cost() -> None:
    for variant in variants(ffn.Extras(directions=("backward",), parts=True)):
        inputs = (variant.inputs or [(torch.randn(11, 13),)])[0]
        seen = observe(variant, inputs)
        assert seen.matmul_flops == variant.work.matmul_flops, variant.key


def test_work_of_forward_and_backward_by_hand() -> None:
    work = ffn_training_work(3, 13, 52, gated=False, value_bytes=2)
    # three times 2 · 3 · 13 · 52 · 2; weights read and their gradients written, 2704 bytes each
    assert (work.matmul_flops, work.weight_bytes) == (3 * 8112, 2 * 2704)
    # input and output gradient read, output and input gradient written: 3 · 13 values of 2 bytes
    assert (work.input_bytes, work.output_bytes) == (156, 156)


def test_the_backward_alone_is_both_less_the_forward() -> None:
    rows = run_case(case_of(ffn.Extras(directions=("backward",))), PLAN, ROOF, 4096)
    by_direction: dict[str, Row] = {r.direction: r for r in rows if r.variant == "swiglu"}
    forward, both = by_direction["forward"], by_direction["forward+backward"]
    assert forward.matmul_flops is not None and both.matmul_flops == 3 * forward.matmul_flops
    alone = by_direction["backward"]
    assert alone.matmul_flops == 2 * forward.matmul_flops
    assert both.peak_bytes is not None and forward.peak_bytes is not None
    assert both.peak_bytes > forward.peak_bytes
    if alone.status == "ok":
        assert alone.note == "forward and backward less the forward of the same round"


def made(variant: Variant, direction: str, seconds: list[float], known: Any = None) -> Measured:
    return Measured(
        variant=replace(variant, direction=direction),
        direction=direction,
        launch="graph",
        work=variant.work,
        rounds={"hot": [[s] for s in seconds]},
        known=known or {},
        windows=[],
    )


def blank(**values: Any) -> Row:
    return Row(topic="ffn", model="m", sizes={}, workload={}, dtype="fp32", **values)


KNOWN = {"relative_error": 0.0, "input_sets": 3, "calls_per_sample": 3}


def test_a_backward_is_taken_round_by_round() -> None:
    gelu = variants(ffn.PLAIN)[0]
    case = case_of(ffn.PLAIN)
    # both drift together: 2, 4, 6 at every round for the backward, whatever the forward took
    some = [
        made(gelu, "forward", [1.0, 3.0, 2.0]),
        made(gelu, "forward+backward", [3.0, 5.0, 4.0], KNOWN),
    ]
    rows = list(rows_of_case(some, case, None, blank, ("hot",), None, None))
    (alone,) = [row for row in rows if row.direction == "backward"]
    assert (alone.median_s, alone.p20_s, alone.p80_s, alone.rounds) == (2.0, 2.0, 2.0, 3)
    some[1] = made(gelu, "forward+backward", [3.0, 3.0, 4.0], KNOWN)
    rows = list(rows_of_case(some, case, None, blank, ("hot",), None, None))
    (alone,) = [row for row in rows if row.direction == "backward"]
    assert alone.status == "not available" and alone.median_s is None


def test_parts_by_hand() -> None:
    work = product_work(3, 13, 70, value_bytes=4)
    assert (work.matmul_flops, work.moved_bytes) == (5460, 4 * (910 + 39 + 210))
    names = [v.name for v in variants(ffn.Extras(parts=True)) if v.part]
    assert names[:6] == [
        "gelu:up",
        "gelu:activation",
        "gelu:down",
        "swiglu:gate_up",
        "swiglu:activation",
        "swiglu:down",
    ]
    found = {v.name: v.work for v in variants(ffn.Extras(parts=True))}
    # the products of the parts are those of the whole
    parts = found["swiglu:gate_up"].matmul_flops + found["swiglu:down"].matmul_flops
    assert parts == found["swiglu"].matmul_flops == 6 * 11 * 13 * 35
    # 2 · 35 values in, 35 out, for each of 11 tokens
    assert found["swiglu:activation"].moved_bytes == 4 * 11 * 105
    assert set(ffn.GATED_PARTS) == {":gate_up", ":activation", ":down"}


def test_parts_have_no_ratio() -> None:
    rows = run_case(case_of(ffn.Extras(parts=True)), PLAN, ROOF, 4096)
    timed = [row for row in rows if row.status == "ok"]
    assert all((row.ratio is None) == (":" in row.variant) for row in timed)


def test_where_a_line_reaches_a_level() -> None:
    points = [(100, 1.0), (200, 2.0), (300, 4.0)]
    assert [crossing(points, x) for x in (1.0, 1.5, 3.0, 4.0)] == [100, 150, 250, 300]
    assert crossing(points, 0.9) is None and crossing(points, 4.1) is None


def test_the_width_of_equal_time() -> None:
    built = {v.name: v for v in variants(ffn.Extras(equal_time=True))}
    gelu, swiglu = built["gelu"], built["swiglu"]
    other = replace(swiglu, name="swiglu@70", d_ff=70)
    # time is a second for each unit of width, GELU takes 42 to 47 as the device drifts
    drift = [1.0, 1.02, 1.04, 1.06, 1.08, 1.1]
    some = [
        made(gelu, "forward", [42 * x for x in drift]),
        made(swiglu, "forward", [35 * x for x in drift]),
        made(other, "forward", [70 * x for x in drift]),
    ]
    rows = list(rows_of_case(some, case_of(ffn.PLAIN), None, blank, ("hot",), None, None))
    found = {row.variant: row.equal_time_d_ff for row in rows}
    assert found["swiglu"] == pytest.approx(42.0) and found["gelu"] is None
    (row,) = (row for row in rows if row.variant == "swiglu")
    assert row.equal_time_low == pytest.approx(42.0) == row.equal_time_high
    # without widths on both sides there is none
    del some[2]
    rows = list(rows_of_case(some, case_of(ffn.PLAIN), None, blank, ("hot",), None, None))
    assert all(row.equal_time_d_ff is None for row in rows)
    assert run.EQUAL_TIME_MARK in other.name


@pytest.mark.parametrize("at", [PREFILL, DECODE], ids=["prefill", "decode"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_core_of_attention_is_the_reference(at: Positions, dtype: str) -> None:
    case = attention.case("tiny", spec(DENSE), at, dtype, core=True)
    built = case.build(CPU, 2)
    rows = list(range(case.rows))
    assert case.rows == at.n_tokens * 6
    for variant in built.variants:
        expected = variant.reference(built.inputs[1], rows)
        assert 0 < error_of(variant.module, built.inputs[1], rows, expected) < TOLERANCE[dtype]
        seen = observe(variant, built.inputs[0])
        assert seen.matmul_flops == variant.work.matmul_flops, variant.name
        if variant.shows_mask:
            assert seen.masked_flops == variant.work.needed_flops


def test_work_of_the_core_by_hand() -> None:
    work = attention_core_work(PREFILL, 6, 2, 4, value_bytes=2)
    # a pair costs 4 · 6 · 4: 50 pairs, 30 of them kept; 10 tokens of 24 values in and out
    assert (work.matmul_flops, work.needed_flops) == (4800, 2880)
    assert (work.input_bytes, work.output_bytes, work.cache_bytes) == (480, 480, 320)
    assert work.weight_bytes == 0


def test_angles_at_a_long_context_are_those_of_float32() -> None:
    """The model's angles are float32; at position 131,071 that shows, and is no fault."""
    torch.manual_seed(0)
    x, at = torch.randn(1, 1, 1, 16), torch.tensor([131_071])
    turned = apply_rope(x, at, rotary_dim=16, theta=1e4, style="interleaved")[0, 0].double()
    rounded = reference.rotate(x[0, 0].double(), [131_071], 1e4, torch.float32)
    exact = reference.rotate(x[0, 0].double(), [131_071], 1e4)
    assert (turned - rounded).abs().max() < 1e-6
    assert (turned - exact).abs().max() > 1e-4


def test_mla_at_a_long_context_is_right_in_float32() -> None:
    """A sum over 131,072 keys costs some digits of float32; how many depends on the processor."""
    sizes = {
        **LATENT,
        "d_model": 64,
        "n_heads": 2,
        "q_lora_rank": 24,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 16,
        "v_head_dim": 16,
    }
    torch.manual_seed(0)
    at = Positions(batch_size=1, seq_len=1, kv_len=131072)
    built = mla.case("tiny", spec(sizes), at, "fp32").build(CPU, 1)
    (inputs,), variant = built.inputs, built.variants[-1]
    expected = variant.reference(inputs, [0])
    assert error_of(variant.module, inputs, [0], expected) < 2 * TOLERANCE["fp32"]


@pytest.mark.parametrize(("n_tokens", "routing"), [(64, "skewed"), (64, "balanced"), (3, "skewed")])
def test_memory_of_padded_experts_is_not_underestimated(n_tokens: int, routing: str) -> None:
    sizes = spec({**SPARSE, "n_experts": 32, "top_k": 4})
    case = moe.case("tiny", sizes, n_tokens, routing, "fp32")
    built = case.build(CPU, 1)
    (batched,) = (v for v in built.variants if v.name == "batched")
    seen = observe(batched, built.inputs[0])
    assert seen.held_bytes + seen.working_bytes <= case.needs_bytes


def test_sizes_beside_the_catalog() -> None:
    found = grid.cases("ffn", "cpu", Asked(d_models=(48,), d_ffs=(100, 130), tokens=(3,)))
    assert [case.model for case in found] == ["d48-ff100", "d48-ff130"]
    assert [case.sizes["swiglu_own_d_ff"] for case in found] == [100, 130]
    assert found[0].sizes["swiglu_d_ff"] == 129  # 8 · 48 / 3 = 128, up to a multiple of 3
    beside = grid.cases("ffn", "cpu", Asked(models=("qwen3-0.6b",), d_ffs=(2000,), tokens=(1,)))
    assert beside[0].sizes["swiglu_own_d_ff"] == 2000 and beside[0].model == "qwen3-0.6b-ff2000"
    (rule,) = grid.cases("ffn", "cpu", Asked(d_models=(48,), tokens=(3,)))
    assert "swiglu_own_d_ff" not in rule.sizes
    with pytest.raises(InputError, match="--d-ff needs --d-model"):
        grid.cases("ffn", "cpu", Asked(d_ffs=(3,)))
