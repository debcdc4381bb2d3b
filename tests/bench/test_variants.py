"""Every variant of every layer is the float64 reference, and costs what its formula says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
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
from helpers.one_thread import no_gradients  # noqa: F401  # a fixture for every test here
from helpers.release import daily

from metacount import catalog
from metacount.bench import grid, layers, reference
from metacount.bench.case import Case, Variant, rows_to_check
from metacount.bench.layers import Apply, Positions, rule_width, widths
from metacount.bench.rows import BOTH, FORWARD
from metacount.bench.run import TOLERANCE, error_in, observe
from metacount.errors import InputError
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
def test_variants_are_the_reference_to_the_last_digits(number: int) -> None:
    case = all_cases("fp64")[number]
    # the router's weights are float32 by definition
    bound = 1e-7 if case.topic == "moe" else 1e-13
    for key, variant in build(case).items():
        if variant.name != "grouped":  # torch has no grouped product in float64
            rows = rows_to_check(case.rows, 7)
            assert error_of(variant, variant.inputs[0], rows) < bound, key


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


# case, variant, direction: FLOPs of all pairs, FLOPs that are needed, bytes that must move
WORK = [
    # 2 FLOPs · 3 tokens · 13 · 52 · 2 matrices; 2 · 13 · 52 weights, 3 · 13 values in and out
    (ffn_case(), "gelu", FORWARD, 8112, 8112, 2 * (1352 + 78)),
    # 2 · 3 · 13 · 17 · 3 matrices; 3 · 13 · 17 weights
    (ffn_case(dtype="fp32"), "swiglu-own", FORWARD, 3978, 3978, 4 * (663 + 78)),
    # two products more for each; weights and their gradients, and as much again of everything else
    (ffn_case(directions=BACKWARD), "gelu", BOTH, 3 * 8112, 3 * 8112, 4 * (1352 + 78)),
    # q and o: 2 · 2 · 10 · 13 · 24 = 12480, k and v: 2 · 2 · 10 · 13 · 8 = 4160; a pair costs
    # 4 · 6 · 4 = 96: 50 of them, 30 kept; weights 2 · 13 · 4 · 8; x and y; 10 · 2 · 2 · 4 kept
    (
        attention(spec(DENSE), PREFILL, "bf16"),
        "gqa",
        FORWARD,
        12480 + 4160 + 4800,
        12480 + 4160 + 2880,
        2 * (832 + 260 + 160),
    ),
    # q and o 3744, k and v 2 · 2 · 3 · 13 · 4 = 624, 21 pairs; 3 · 7 positions of 2 · 4 values
    (
        attention(spec(DENSE), DECODE, "bf16"),
        "mqa-sdpa",
        FORWARD,
        3744 + 624 + 2016,
        3744 + 624 + 2016,
        2 * (2 * 13 * 4 * 7 + 78 + 168),
    ),
    # 10 tokens of 24 values in and out, and the cache
    (
        attention(spec(DENSE), PREFILL, "bf16", core=True),
        "gqa",
        FORWARD,
        4800,
        2880,
        2 * (480 + 160),
    ),
    # q_a 13·11 + q_b 11·21 = 374, kv_a 13·9 = 117, o 9·13 = 117: 608 for each of 3 tokens; kv_b
    # 7·24 = 168 for 21 cached tokens expanded, for 3 absorbed; a pair 3 · (7 + 3) = 30 expanded,
    # 3 · (9 + 7) = 48 absorbed; 776 weights, two norms of 11 + 7, x and y, 21 positions of 9
    (
        mla(spec(LATENT), DECODE, "bf16"),
        "expanded",
        FORWARD,
        2 * (3 * 608 + 21 * 168 + 21 * 30),
        2 * (3 * 608 + 21 * 168 + 21 * 30),
        2 * (776 + 18 + 78 + 189),
    ),
    (
        mla(spec(LATENT), DECODE, "bf16"),
        "absorbed-folded",
        FORWARD,
        2 * (3 * 608 + 3 * 168 + 21 * 48),
        2 * (3 * 608 + 3 * 168 + 21 * 48),
        2 * (776 + 18 + 78 + 189),
    ),
    # 22 rows of 6 · 24 · 40 and a router of 2 · 11 · 24 · 5; five experts, since none of 22 choices
    # in turn is left out; 264 values in and out, 22 choices of 8 bytes
    (
        moe(spec(SPARSE), 11, "balanced", "fp32"),
        "grouped",
        FORWARD,
        22 * 5760 + 2640,
        22 * 5760 + 2640,
        4 * (5 * 2880 + 120 + 528) + 176,
    ),
    # each expert padded to five rows: three more than are needed
    (
        moe(spec(SPARSE), 11, "balanced", "fp32"),
        "batched",
        FORWARD,
        25 * 5760 + 2640,
        22 * 5760 + 2640,
        4 * (5 * 2880 + 120 + 528) + 176,
    ),
    (norm(spec(DENSE), 3, "bf16"), "rmsnorm", FORWARD, 0, 0, 2 * (13 + 78)),
    (
        norm(spec(DENSE), 3, "bf16"),
        "layernorm-torch",
        FORWARD,
        0,
        0,
        2 * (26 + 78),
    ),
]


@pytest.mark.parametrize(
    ("case", "name", "direction", "flops", "needed", "moved"), WORK, ids=lambda x: str(x)[:12]
)
def test_work_by_hand(
    case: Case, name: str, direction: str, flops: int, needed: int, moved: int
) -> None:
    work = build(case)[name, direction].work
    assert (work.matmul_flops, work.needed_flops, work.moved_bytes) == (flops, needed, moved)
    assert work.intensity == needed / moved


def test_an_expert_without_tokens_is_not_read() -> None:
    work = build(moe(spec(SPARSE), 1, "skewed", "fp32"))["loop", FORWARD].work
    # two experts of 2880 weights, the router's 120, 24 values in and out, two choices of 8 bytes
    assert work.moved_bytes == 4 * (2 * 2880 + 120 + 48) + 16


def test_positions_by_hand() -> None:
    # two sequences of 1 + 2 + 3 + 4 + 5 pairs, of 25 in all
    assert (PREFILL.n_tokens, PREFILL.all_pairs, PREFILL.kept_pairs) == (10, 50, 30)
    assert (DECODE.n_tokens, DECODE.all_pairs, DECODE.kept_pairs) == (3, 21, 21)
    # a chunk of 3 after a past of 4: 5 + 6 + 7
    assert at(1, 3, 7).kept_pairs == 18


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


def test_a_query_sees_its_past_and_itself() -> None:
    k = torch.tensor([[0.0], [0.0], [50.0]], dtype=torch.float64)
    v = torch.tensor([[2.0], [4.0], [100.0]], dtype=torch.float64)
    q = torch.ones(1, 1, dtype=torch.float64)
    seen = [float(reference.attend(q, k, v, [place], 1.0)) for place in (0, 1, 2)]
    assert seen == [2.0, 3.0, pytest.approx(100.0)]


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


def test_memory_of_a_forward_by_hand() -> None:
    x = torch.randn(7)
    two = Apply(lambda x: (x + 1).mul_(2)[:3] * 5)
    work = build(ffn_case())["gelu", FORWARD].work
    seen = observe(
        Variant(name="two", module=two, work=work, reference=lambda *_: x, inputs=[(x,)])
    )
    # x is 28 bytes; x + 1 makes 28, the slice of it 12 more while 28 are alive
    assert (seen.held_bytes, seen.working_bytes) == (28, 40)
    # add reads and writes 28, mul_ shows 28 twice, the slice is a view, mul reads and writes 12
    assert (seen.operator_bytes, seen.matmul_flops) == (56 + 56 + 24, 0)


@pytest.mark.parametrize(("n_tokens", "routing"), [(64, "skewed"), (64, "balanced"), (3, "skewed")])
def test_memory_of_padded_experts_is_not_underestimated(n_tokens: int, routing: str) -> None:
    sizes = spec({**SPARSE, "n_experts": 32, "top_k": 4})
    case = moe(sizes, n_tokens, routing, "fp32")
    seen = observe(build(case)["batched", FORWARD])
    assert seen.held_bytes + seen.working_bytes <= case.needs_bytes


@pytest.mark.parametrize("n_tokens", [1, 11])
def test_routing(n_tokens: int) -> None:
    balanced = layers.choose(n_tokens, 5, 2, "balanced")
    for chosen in (balanced, layers.choose(n_tokens, 5, 2, "skewed")):
        assert [len(set(row)) for row in chosen.tolist()] == [2] * n_tokens
    counts = balanced.flatten().bincount(minlength=5)
    assert int(counts.max() - counts.min()) <= 1


def test_skewed_routing_is_skewed() -> None:
    counts = layers.choose(4000, 8, 2, "skewed").flatten().bincount(minlength=8).sort().values
    # Zipf's first of 8 has a share of 1/2.72 of the first draws, the last one of 1/21.7
    assert int(counts[-1]) > 3 * int(counts[0]) and int(counts.sum()) == 8000


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


def test_sizes_beside_the_catalog() -> None:
    cases = grid.cases("ffn", "cpu", {"d_model": (48,), "d_ff": (100, 130), "tokens": (3,)})
    assert [case.model for case in cases] == ["d48-ff100", "d48-ff130"]
    assert [case.sizes["swiglu_own_d_ff"] for case in cases] == [100, 130]
    assert cases[0].sizes["swiglu_d_ff"] == 129  # 8 · 48 / 3 = 128, up to a multiple of 3
    beside = grid.cases("ffn", "cpu", {"model": ("qwen3-0.6b",), "d_ff": (2000,), "tokens": (1,)})
    assert beside[0].sizes["swiglu_own_d_ff"] == 2000 and beside[0].model == "qwen3-0.6b-ff2000"
    (rule,) = grid.cases("ffn", "cpu", {"d_model": (48,), "tokens": (3,)})
    assert "swiglu_own_d_ff" not in rule.sizes
    with pytest.raises(InputError, match="--d-ff needs --d-model"):
        grid.cases("ffn", "cpu", {"d_ff": (3,)})


def test_key_heads() -> None:
    assert layers.kv_heads(spec(DENSE)) == {"mha": 6, "gqa": 2, "mqa": 1}
    eight = {"mha": 8, "gqa": 2, "mqa": 1}
    assert layers.kv_heads(spec(DENSE, n_heads=8, n_kv_heads=8)) == eight
    assert layers.kv_heads(spec(DENSE, n_heads=3, n_kv_heads=1)) == {"mha": 3, "mqa": 1}


def test_variants_share_their_weights() -> None:
    built = build(ffn_case())
    places = [
        {p.untyped_storage().data_ptr() for p in built[name, FORWARD].module.parameters()}
        for name in ("swiglu", "swiglu-joined")
    ]
    assert places[0] == places[1]


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


def test_mla_at_a_long_context_is_right_in_float32() -> None:
    """A sum over 131,072 keys costs some digits of float32; how many depends on the processor."""
    heads = dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), 16)
    sizes = {**LATENT, **heads, "d_model": 64, "n_heads": 2, "q_lora_rank": 24, "kv_lora_rank": 32}
    torch.manual_seed(0)
    variant = build(mla(spec(sizes), at(1, 1, 131072), "fp32"))["absorbed-folded", FORWARD]
    assert error_of(variant, variant.inputs[0], [0]) < 2 * TOLERANCE["fp32"]
