"""Every variant of every layer is the float64 reference, and costs what its formula says."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
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
    attention,
    build,
    error_of,
    ffn,
    mla,
    moe,
    norm,
    spec,
    tiny_cases,
)
from helpers.one_thread import (
    no_gradients,  # noqa: F401  # a fixture for every test here
    short_bursts,  # noqa: F401  # fixtures for every test here
)
from helpers.release import daily
from torch import Tensor

from metacount import catalog
from metacount.bench import grid, layers, reference
from metacount.bench.case import Case
from metacount.bench.layers import Apply, Positions, rule_width, widths
from metacount.bench.rows import BOTH, FORWARD, Row
from metacount.bench.run import TOLERANCE, error_in, observe, run_case
from metacount.bench.timing import Plan
from metacount.modules.position import apply_rope

CPU = torch.device("cpu")
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


PLAN = Plan(device=CPU, rounds=3, seconds=0.0, compile=False, warm_up_seconds=0.0, states=("hot",))
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
    return {row.variant: row for row in run_case(case, replace(PLAN, only=names), None, 4096)}


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
