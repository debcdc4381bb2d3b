"""Every variant of every layer is the float64 reference, and costs what its formula says."""

from __future__ import annotations

import pytest
import torch
from helpers.bench_layers import DENSE, SPARSE, spec, tiny_cases
from helpers.one_thread import no_gradients  # noqa: F401  # a fixture for every test here
from helpers.release import daily
from torch import Tensor

from metacount import catalog
from metacount.bench import attention, ffn, moe, reference
from metacount.bench.case import Case, Variant, rows_to_check
from metacount.bench.ffn import rule_width, widths
from metacount.bench.observe import TOLERANCE, error_of, observe

CPU = torch.device("cpu")


def ids(case: Case) -> str:
    return f"{case.topic}-{'-'.join(map(str, case.workload.values()))}"


@daily(5)
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("number", range(len(tiny_cases("fp32"))), ids=lambda n: str(n))
def test_variants_are_the_reference(number: int, dtype: str) -> None:
    case = tiny_cases(dtype)[number]
    built = case.build(CPU, 2)
    assert tuple(variant.name for variant in built.variants) == case.variants
    rows = list(range(case.rows))
    for variant in built.variants:
        for inputs in built.inputs:
            expected = variant.reference(inputs, rows)
            assert all(block.dtype == torch.float64 for block in expected)
            error = error_of(variant.module, inputs, rows, expected)
            assert 0 < error < TOLERANCE[dtype], variant.name


@pytest.mark.parametrize("case", tiny_cases("fp64"), ids=ids)
def test_variants_are_the_reference_to_the_last_digits(case: Case) -> None:
    built = case.build(CPU, 1)
    rows = list(range(case.rows))
    for variant in built.variants:
        if variant.name == "grouped":
            continue  # torch has no grouped product in float64
        error = error_of(
            variant.module, built.inputs[0], rows, variant.reference(built.inputs[0], rows)
        )
        # the router's weights are float32 by definition
        assert error < (1e-7 if case.topic == "moe" else 1e-13), variant.name


@pytest.mark.parametrize("case", tiny_cases("fp32"), ids=ids)
def test_formulas_are_what_the_operators_cost(case: Case) -> None:
    built = case.build(CPU, 1)
    for variant in built.variants:
        seen = observe(variant, built.inputs[0])
        assert seen.matmul_flops == variant.work.matmul_flops, variant.name
        if variant.shows_mask:
            assert seen.masked_flops == variant.work.needed_flops, variant.name
        # no layer can do with less than what must move
        assert seen.operator_bytes >= variant.work.moved_bytes - variant.work.input_bytes


def test_the_reference_by_hand() -> None:
    one = torch.ones(1, 1, dtype=torch.float64)
    # Φ(1) = 0.841344746…; 1 / (1 + e^-1) = 0.731058578…
    assert float(reference.gelu(one)) == pytest.approx(0.8413447460685429)
    assert float(reference.silu(one)) == pytest.approx(0.7310585786300049)
    assert float(reference.swiglu(one, 2 * one, 3 * one, 5 * one)) == pytest.approx(
        5 * 3 * 2 * 0.8807970779778823
    )
    # 3 / sqrt((9 + 16) / 2) and 4 / …, weights 2 and 1
    row = torch.tensor([[3.0, 4.0]])
    assert reference.rms_norm(row, torch.tensor([2.0, 1.0]), 0.0).tolist() == [
        pytest.approx([1.6970562748477143, 1.131370849898476])
    ]
    # half a turn of (1, 0) is (-1, 0)
    turned = reference.rotate(torch.tensor([[1.0, 0.0]], dtype=torch.float64), [1], 10000.0)
    assert turned.tolist() == [pytest.approx([0.5403023058681398, 0.8414709848078965])]


def test_a_query_sees_its_past_and_itself() -> None:
    k = torch.tensor([[0.0], [0.0], [50.0]], dtype=torch.float64)
    v = torch.tensor([[2.0], [4.0], [100.0]], dtype=torch.float64)
    q = torch.ones(1, 1, dtype=torch.float64)
    assert float(reference.attend(q, k, v, [0], 1.0)) == 2.0
    assert float(reference.attend(q, k, v, [1], 1.0)) == 3.0
    assert float(reference.attend(q, k, v, [2], 1.0)) == pytest.approx(100.0)


def broken(variant: Variant, change: object) -> float:
    """The error of a variant whose output was changed."""
    built = ffn.case("tiny", spec(DENSE), 3, "fp32").build(CPU, 1)
    one = next(v for v in built.variants if v.name == variant.name)
    expected = one.reference(built.inputs[0], [0, 1, 2])

    def call(x: Tensor) -> Tensor:
        y: Tensor = change(one.module(x))  # type: ignore[operator]
        return y

    return error_of(call, built.inputs[0], [0, 1, 2], expected)


def test_a_changed_result_is_seen() -> None:
    variant = ffn.case("tiny", spec(DENSE), 3, "fp32").build(CPU, 1).variants[0]
    assert broken(variant, lambda y: y) < TOLERANCE["fp32"]
    assert broken(variant, lambda y: 1.0001 * y) > TOLERANCE["fp32"]
    assert broken(variant, lambda y: y.flip(0)) > 0.1
    # one value that is not finite, in a row or not: never an error that passes
    assert not broken(variant, lambda y: y.index_fill(0, torch.tensor([1]), torch.inf)) < 1


def test_a_value_that_is_not_finite_is_seen_in_a_row_that_is_not_compared() -> None:
    y = torch.ones(3, 2)
    assert error_of(lambda: y, (), [0, 2], (y[[0, 2]].double(),)) == 0.0
    y[1, 0] = torch.inf
    assert not error_of(lambda: y, (), [0, 2], (y[[0, 2]].double(),)) <= 1


def test_rows_to_check() -> None:
    assert rows_to_check(1, 8) == [0]
    assert rows_to_check(11, 3) == [0, 5, 10]
    assert len(rows_to_check(16384, 128)) == len(set(rows_to_check(16384, 128))) == 128


@pytest.mark.parametrize("n_tokens", [1, 11])
def test_routing(n_tokens: int) -> None:
    balanced = moe.choose(n_tokens, 5, 2, "balanced")
    skewed = moe.choose(n_tokens, 5, 2, "skewed")
    for chosen in (balanced, skewed):
        assert chosen.shape == (n_tokens, 2)
        assert all(len(set(row)) == 2 for row in chosen.tolist())
    counts = balanced.flatten().bincount(minlength=5)
    assert int(counts.max() - counts.min()) <= 1


def test_skewed_routing_is_skewed() -> None:
    counts = moe.choose(4000, 8, 2, "skewed").flatten().bincount(minlength=8).sort().values
    # Zipf's first of 8 has a share of 1/2.72 of the first draws, the last one of 1/21.7
    assert int(counts[-1]) > 3 * int(counts[0])
    assert int(counts.sum()) == 8000


def test_padding_is_counted_and_not_needed() -> None:
    built = moe.case("tiny", spec(SPARSE), 11, "skewed", "fp32").build(CPU, 1)
    works = {variant.name: variant.work for variant in built.variants}
    assert works["batched"].matmul_flops > works["grouped"].matmul_flops
    assert works["batched"].needed_flops == works["grouped"].needed_flops


def test_widths() -> None:
    # 8·4096/3 = 10922.67, up to a multiple of 256; 8·13/3 = 34.67
    assert rule_width(4096) == 11008
    assert rule_width(13) == 35
    assert widths(spec(DENSE)) == {"swiglu": 35, "swiglu-4d": 52, "swiglu-own": 17}
    assert widths(spec(SPARSE))["swiglu-expert"] == 40
    # a mixture with dense layers first has both widths: deepseek-v3's 18432 and 2048
    v3 = widths(catalog.entry("deepseek-v3").spec())
    assert v3 == {"swiglu": 19200, "swiglu-4d": 28672, "swiglu-own": 18432, "swiglu-expert": 2048}
    assert list(widths(spec(DENSE, d_ff=52))) == ["swiglu", "swiglu-4d"]
    assert list(widths(spec(DENSE, gated=False))) == ["swiglu", "swiglu-4d"]


def test_key_heads() -> None:
    assert attention.kv_heads(spec(DENSE)) == {"mha": 6, "gqa": 2, "mqa": 1}
    assert attention.kv_heads(spec(DENSE, n_heads=8, n_kv_heads=8)) == {
        "mha": 8,
        "gqa": 2,
        "mqa": 1,
    }
    assert attention.kv_heads(spec(DENSE, n_heads=3, n_kv_heads=1)) == {"mha": 3, "mqa": 1}


def test_variants_share_their_weights() -> None:
    built = ffn.case("tiny", spec(DENSE), 3, "fp32").build(CPU, 1)
    by_name = {variant.name: variant.module for variant in built.variants}
    one = {p.untyped_storage().data_ptr() for p in by_name["swiglu"].parameters()}
    other = {p.untyped_storage().data_ptr() for p in by_name["swiglu-joined"].parameters()}
    assert one == other


@pytest.mark.parametrize(("major", "fast"), [(8, False), (9, True), (10, True), (12, False)])
def test_where_the_grouped_product_has_a_kernel(
    major: int, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OtherSizes it loops on the host: a graph of it would be a capture that fails."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (major, 0))
    cuda = torch.device("cuda", 0)
    assert moe.grouped_on_device(cuda, torch.bfloat16) == fast
    assert not moe.grouped_on_device(cuda, torch.float16)
    assert moe.grouped_on_device(CPU, torch.float32)
