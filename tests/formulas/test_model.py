"""Whole models: by hand, in symbols and arrays, and what must not be asked."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import sympy
from helpers.release import daily

from metacount.errors import SpecError
from metacount.formulas import block, model, stack
from metacount.spec import ModelSpec

# d=13, N=3, V=101, h=6, h_kv=2, head_dim=5, d_ff=17
TINY = ModelSpec(
    kind="decoder",
    d_model=13,
    n_layers=3,
    vocab_size=101,
    n_heads=6,
    n_kv_heads=2,
    head_dim=5,
    d_ff=17,
    activation="silu",
    gated=True,
    norm="rmsnorm",
    position="none",
)
# layers 0 and 1 dense, then every second (3 and 5) MoE; windows of 4 on layers 0, 1, 3, 4, 6
WINDOWED_MOE = TINY.replace(
    n_layers=7,
    n_experts=11,
    top_k=3,
    d_ff_expert=5,
    n_dense_layers=2,
    moe_every=2,
    n_shared_experts=2,
    selection_bias=True,
    window=4,
    window_pattern="LLG",
)
MLA = TINY.replace(
    attention="mla",
    n_kv_heads=None,
    head_dim=None,
    position="rope",
    q_lora_rank=11,
    kv_lora_rank=7,
    qk_nope_head_dim=5,
    qk_rope_head_dim=2,
    v_head_dim=3,
)
SEQ2SEQ = TINY.replace(
    kind="encoder-decoder", n_encoder_layers=2, position="t5", n_buckets=8, max_distance=19
)
XL = TINY.replace(position="transformer_xl", tie_embeddings=True)
ENCODER = TINY.replace(kind="encoder", pooler=True, window=4)
PREFIX = TINY.replace(kind="prefix-decoder")


def roles(**counts: int) -> dict[str, int]:
    return {**dict.fromkeys(model.ROLES, 0), **counts}


def test_roles_are_nine_in_order() -> None:
    assert model.ROLES == (
        "embedding",
        "position",
        "attention",
        "recurrent",
        "ffn",
        "moe",
        "norm",
        "head",
        "other",
    )


def test_params_by_hand() -> None:
    # token table 101·13; per block q 13·30 + k 13·10 + v 13·10 + o 30·13 = 1040,
    # ffn 3·13·17 = 663, norms 2·13 = 26; final norm 13; head 101·13
    expected = roles(embedding=1313, attention=3120, ffn=1989, norm=91, head=1313)
    assert model.params_by_role(TINY) == expected
    assert model.params(TINY) == 7826


def test_flops_by_hand() -> None:
    # 2 sequences of 4 tokens: 8 tokens × 1040 + 2·16 pairs × 6 heads × (5 + 5) = 10240,
    # ffn 8 × 663 = 5304 multiply-adds, three times; head 8 × 1313 = 10504
    expected = roles(attention=61440, ffn=31824, head=21008)
    assert model.matmul_flops_by_role(TINY, batch_size=2, seq_len=4) == expected
    # causal: 2·10 pairs × 60 = 1200, 9520 multiply-adds per block
    expected = roles(attention=57120, ffn=31824, head=21008)
    assert model.causal_matmul_flops_by_role(TINY, batch_size=2, seq_len=4) == expected
    # 2 tokens × 1040 + 2·7 pairs × 60 = 2920; ffn 2 × 663; head 2 × 1313
    expected = roles(attention=17520, ffn=7956, head=5252)
    assert model.decode_matmul_flops_by_role(TINY, batch_size=2, kv_len=7) == expected


def test_windowed_moe_by_hand() -> None:
    # layers 3 and 5 are MoE: router 13·11 = 143, experts 11·(3·13·5) = 2145, shared 3·13·10 = 390
    by_role = model.params_by_role(WINDOWED_MOE)
    assert (by_role["ffn"], by_role["moe"]) == (5 * 663, 2 * 2678)
    # 143 + 3·195 + 390
    assert model.active_params_by_role(WINDOWED_MOE)["moe"] == 2 * 1118
    assert model.buffers(WINDOWED_MOE) == {"selection_bias": 22}
    # 5 layers of 4 positions, 2 of 9, each 1040 + positions × 60
    by_role = model.decode_matmul_flops_by_role(WINDOWED_MOE, batch_size=1, kv_len=9)
    assert by_role["attention"] == 2 * (7 * 1040 + (5 * 4 + 2 * 9) * 60)
    # 5 layers keep 3 positions, 2 keep 9, of 2·2·5 values in 2 bytes, 3 sequences
    cache = model.kv_cache_bytes(WINDOWED_MOE, batch_size=3, seq_len=9, bytes_per_value=2)
    assert cache == 3 * 33 * 20 * 2


def test_seq2seq_by_hand() -> None:
    # self-attention 3 + 2 blocks, cross-attention 3; norms 3·3 + 2·2, and a final one each
    by_role = model.params_by_role(SEQ2SEQ)
    assert by_role["attention"] == 8 * 1040
    assert by_role["ffn"] == 5 * 663
    assert by_role["norm"] == 15 * 13
    # a table of 8 buckets × 6 heads in each stack
    assert by_role["position"] == 96
    # the cache of 5 written and 7 read positions, 3 layers × 20 values
    size = {"batch_size": 1, "bytes_per_value": 1}
    assert model.kv_cache_bytes(SEQ2SEQ, **size, seq_len=5, source_len=7) == 60 * (5 + 7)
    assert model.kv_cache_bytes(SEQ2SEQ, **size, seq_len=5) == 60 * (5 + 5)
    assert model.cross_kv_cache_bytes(SEQ2SEQ, **size, source_len=7) == 420
    assert model.kv_cache_bytes_per_token(SEQ2SEQ, bytes_per_value=1) == 60


def test_seq2seq_moe_by_hand() -> None:
    spec = SEQ2SEQ.replace(n_experts=11, top_k=3, d_ff_expert=5, moe_every=2)
    by_role = model.params_by_role(spec)
    # layer 1 of either stack is MoE
    assert by_role["moe"] == 2 * 2288
    assert by_role["ffn"] == 3 * 663
    assert by_role["attention"] == 8 * 1040
    assert by_role["norm"] == 15 * 13
    assert model.buffers(spec.replace(selection_bias=True)) == {"selection_bias": 22}


def test_a_block_without_d_ff_has_no_dense_feed_forward() -> None:
    spec = TINY.replace(d_ff=None, n_experts=11, top_k=3, d_ff_expert=5)
    assert block.block_params(spec, moe=False)["ffn"] == 0
    assert block.feed_forward_flops(spec, n_tokens=3, moe=False) == {"ffn": 0}


def test_chunks_and_windows_keep_their_pairs() -> None:
    # 6 tokens × 1040 multiply-adds and per pair 60, in three layers of one kind
    for window_kind, pairs in (("sliding", 1 + 2 + 3 + 4 + 4 + 4), ("chunked", 10 + 3)):
        spec = TINY.replace(window=4, window_kind=window_kind)
        flops = model.causal_matmul_flops_by_role(spec, batch_size=1, seq_len=6)
        assert flops["attention"] == 6 * (6240 + pairs * 60)


def test_transformer_xl_projects_its_positions_once_per_forward() -> None:
    # (13 + 2)·30 = 450 per block
    assert model.params_by_role(XL)["position"] == 1350
    # 5 positions × 13·30 = 1950, and 2·25 pairs × 30 = 1500 multiply-adds, three blocks
    flops = model.matmul_flops_by_role(XL, batch_size=2, seq_len=5)
    assert flops["position"] == 6 * 3450
    # 5 positions projected again, 2·5 pairs × 30 = 300
    flops = model.decode_matmul_flops_by_role(XL, batch_size=2, kv_len=5)
    assert flops["position"] == 6 * 2250


def test_narrow_tables_by_hand() -> None:
    # e=5: table 101·5, types 2·5, projection 5·13 + 13; positions 19·5; transform 13·5 + 5,
    # head 101·5 and its bias 101; norms: embedding 5, transform 5, 3·2 blocks less the first, final
    spec = ENCODER.replace(
        d_embedding=5,
        n_token_types=2,
        position="learned",
        n_positions=19,
        embedding_norm=True,
        head_transform=True,
        head_transform_bias=True,
        head_bias=True,
        first_norm=False,
    )
    by_role = model.params_by_role(spec)
    assert by_role["embedding"] == 505 + 10 + 78
    assert by_role["position"] == 95
    assert by_role["head"] == 505 + 101 + 70
    assert by_role["norm"] == 5 + 5 + 5 * 13 + 13
    assert model.active_params(spec) - model.active_params_no_embed(spec) == 505
    # 3 tokens × 65 to project, × 65 to transform, × 505 for the logits
    flops = model.matmul_flops_by_role(spec, batch_size=1, seq_len=3)
    assert (flops["embedding"], flops["head"]) == (390, 390 + 3030)


def test_pooler_reads_one_token() -> None:
    assert model.params_by_role(ENCODER)["other"] == 13 * 13 + 13
    # 3 sequences × 169 multiply-adds
    assert model.matmul_flops_by_role(ENCODER, batch_size=3, seq_len=5)["other"] == 1014


def test_mla_prefill_is_expanded_and_decode_absorbed() -> None:
    # q_a 13·11 + q_b 11·42 + kv_a 13·9 + kv_b 7·48 + o 18·13 = 1292
    assert model.params_by_role(MLA)["attention"] == 3 * 1292
    # 2 tokens × 1292, 2·2 pairs × 6 heads × (5 + 2 + 3)
    flops = model.matmul_flops_by_role(MLA, batch_size=1, seq_len=2)
    assert flops["attention"] == 6 * (2584 + 240)
    # 1292, 4 pairs × 6 heads × (7 + 2 + 7)
    flops = model.decode_matmul_flops_by_role(MLA, batch_size=1, kv_len=4)
    assert flops["attention"] == 6 * (1292 + 384)
    assert model.kv_cache_bytes_per_token(MLA, bytes_per_value=1) == 27


def test_biases_of_mla() -> None:
    # q_a 11, kv_a 7 + 2, o 13
    attention = model.params_by_role(MLA.replace(mla_bias=True))["attention"]
    assert attention == 3 * (1292 + 33)


def test_expanding_a_cache_multiplies_every_cached_token() -> None:
    # 2 sequences of 1 token and 5 positions: kv_b 7·48 = 336 over 10 cached tokens, the other
    # 956 over 2 tokens, 10 pairs × 60 = 600
    step: dict[str, Any] = {"batch_size": 2, "n_queries": 1, "n_keys": 5, "n_pairs": 5}
    flops = block.self_attention_flops(MLA, **step, absorbed=False)
    assert flops == {"position": 0, "attention": 2 * (3360 + 1912 + 600)}
    # absorbed: kv_b over the 2 new tokens too, 10 pairs × 6 heads × (7 + 2 + 7)
    flops = block.self_attention_flops(MLA, **step, absorbed=True)
    assert flops == {"position": 0, "attention": 2 * (2 * 1292 + 960)}


def test_one_block_of_each_kind_by_hand() -> None:
    step: dict[str, Any] = {"batch_size": 2, "n_queries": 5, "n_keys": 5, "n_pairs": 25}
    flops = block.self_attention_flops(XL, **step, absorbed=False)
    # 5 positions × 13·30, 50 pairs × 30; 10 tokens × (390 + 130 + 130 + 390), 50 pairs × 60
    assert flops == {"position": 2 * (1950 + 1500), "attention": 2 * (10400 + 3000)}
    reads: dict[str, Any] = {"batch_size": 2, "n_queries": 3, "source_len": 7}
    # of 6 tokens q and o, 390 each; of 14 k and v, 130 each; 42 pairs × 60
    flops = block.cross_attention_flops(SEQ2SEQ, **reads, cached=False)
    assert flops == {"attention": 2 * (6 * 780 + 14 * 260 + 42 * 60)}
    flops = block.cross_attention_flops(SEQ2SEQ, **reads, cached=True)
    assert flops == {"attention": 2 * (6 * 780 + 42 * 60)}
    # 3·13·17; a router of 11 rows, and 3 experts of 3·13·5
    assert block.feed_forward_flops(TINY, n_tokens=3, moe=False) == {"ffn": 2 * 3 * 663}
    mixture = TINY.replace(d_ff=None, n_experts=11, top_k=3, d_ff_expert=5)
    flops = block.feed_forward_flops(mixture, n_tokens=3, moe=True)
    assert flops == {"moe": 2 * 3 * (143 + 585)}


def test_an_encoder_does_not_decode() -> None:
    message = r"^kind has no decode step: got 'encoder'; choose a decoder$"
    with pytest.raises(SpecError, match=message):
        model.decode_matmul_flops(ENCODER, batch_size=1, kv_len=5)
    assert model.kv_cache_bytes(ENCODER, batch_size=1, seq_len=5, bytes_per_value=2) == 0
    assert model.kv_cache_bytes_per_token(ENCODER, bytes_per_value=2) == 0


def test_a_prefix_needs_a_prefix_decoder_and_fits_its_tokens() -> None:
    size = {"batch_size": 1, "seq_len": 5}
    with pytest.raises(SpecError, match="prefix_len"):
        model.causal_matmul_flops(TINY, **size, prefix_len=2)
    message = r"^prefix_len must be at most seq_len: got 6; choose 0 to 5$"
    with pytest.raises(SpecError, match=message):
        model.causal_matmul_flops(PREFIX, **size, prefix_len=6)
    # a prefix of all tokens sees everything
    everything = model.causal_matmul_flops(PREFIX, **size, prefix_len=5)
    assert everything == model.matmul_flops(PREFIX, **size)
    n_tokens, prefix = sympy.symbols("S P")
    closed = model.causal_matmul_flops(PREFIX, batch_size=1, seq_len=5, prefix_len=prefix)
    assert closed.subs(prefix, 5) == everything
    closed = model.causal_matmul_flops(PREFIX, batch_size=1, seq_len=n_tokens, prefix_len=5)
    assert closed.subs(n_tokens, 5) == everything


@pytest.mark.parametrize("spec", [TINY, WINDOWED_MOE, MLA, SEQ2SEQ, PREFIX])
def test_flops_and_cache_are_linear_in_the_batch(spec: ModelSpec) -> None:
    for count in (model.matmul_flops, model.causal_matmul_flops):
        assert count(spec, batch_size=6, seq_len=5) == 6 * count(spec, batch_size=1, seq_len=5)
    one = model.decode_matmul_flops(spec, batch_size=1, kv_len=5)
    assert model.decode_matmul_flops(spec, batch_size=6, kv_len=5) == 6 * one
    one = model.kv_cache_bytes(spec, batch_size=1, seq_len=5, bytes_per_value=2)
    assert model.kv_cache_bytes(spec, batch_size=6, seq_len=5, bytes_per_value=2) == 6 * one


@pytest.mark.parametrize("spec", [TINY, MLA, XL, PREFIX])
def test_twice_the_layers_are_twice_the_blocks(spec: ModelSpec) -> None:
    n = spec.n_layers
    three, six, nine = (model.params(spec.replace(n_layers=k * n)) for k in (1, 2, 3))
    assert nine - six == six - three > 0
    parts = block.block_params(spec, moe=False)
    assert six - three == n * sum(parts.values())


COUNTS: list[Callable[..., Any]] = [
    lambda spec, s: model.params(spec),
    lambda spec, s: model.active_params(spec),
    lambda spec, s: model.active_params_no_embed(spec),
    lambda spec, s: model.buffers(spec)["selection_bias"],
    lambda spec, s: model.matmul_flops(spec, batch_size=2, seq_len=s),
    lambda spec, s: model.causal_matmul_flops(spec, batch_size=2, seq_len=s),
    lambda spec, s: model.decode_matmul_flops(spec, batch_size=2, kv_len=s),
    lambda spec, s: model.kv_cache_bytes(spec, batch_size=2, seq_len=s, bytes_per_value=2),
    lambda spec, s: model.kv_cache_bytes_per_token(spec, bytes_per_value=2),
]
BIASES = {f"{name}_bias": True for name in ("q", "k", "v", "o", "ffn", "head")}
SIZES: list[tuple[ModelSpec, dict[str, tuple[int, ...]]]] = [
    (TINY, {"d_model": (13, 5, 7), "d_ff": (17, 3, 2), "n_layers": (3, 1, 8)}),
    (
        TINY.replace(**BIASES, attention_sinks=True, n_token_types=2),
        {
            "d_model": (13, 5, 7),
            "n_heads": (6, 2, 4),
            "vocab_size": (101, 3, 9),
            "n_token_types": (2, 3, 5),
        },
    ),
    (WINDOWED_MOE, {"window": (4, 2, 11), "n_layers": (7, 8, 9), "n_dense_layers": (2, 0, 3)}),
    (
        WINDOWED_MOE.replace(
            window_kind="chunked", router_bias=True, expert_bias=True, shared_expert_gate=True
        ),
        {
            "window": (4, 2, 11),
            "n_experts": (11, 5, 3),
            "top_k": (3, 1, 2),
            "n_shared_experts": (2, 1, 4),
            "d_ff_expert": (5, 7, 2),
        },
    ),
    (TINY.replace(d_ff=None, n_experts=11, top_k=3, d_ff_expert=5), {"n_layers": (3, 1, 8)}),
    (MLA.replace(mla_bias=True), {"q_lora_rank": (11, 2, 3), "kv_lora_rank": (7, 5, 3)}),
    (SEQ2SEQ, {"n_encoder_layers": (2, 5, 1), "n_layers": (3, 1, 8), "n_buckets": (8, 12, 16)}),
    (XL.replace(norm="layernorm", norm_bias=True), {"d_model": (13, 5, 7), "head_dim": (5, 2, 3)}),
    (
        PREFIX.replace(head_transform=True, head_transform_bias=True),
        {"vocab_size": (101, 3, 9), "d_model": (13, 5, 7)},
    ),
    (PREFIX, {"n_kv_heads": (2, 1, 3), "head_dim": (5, 2, 3)}),
]
SEQ_LENS = (9, 3, 4)


@daily(3)
@pytest.mark.parametrize(("spec", "sizes"), SIZES)
def test_arrays_and_symbols_give_what_ints_give(
    spec: ModelSpec, sizes: dict[str, tuple[int, ...]]
) -> None:
    arrays = {name: np.array(values) for name, values in sizes.items()}
    symbols = {name: sympy.Symbol(name) for name in sizes}
    s = sympy.Symbol("S")
    for count in COUNTS:
        ints = [
            count(spec.replace(**{name: values[i] for name, values in sizes.items()}), SEQ_LENS[i])
            for i in range(3)
        ]
        assert all(type(n) is int for n in ints)
        swept = count(spec.substituted(**arrays), np.array(SEQ_LENS))
        assert np.broadcast_to(swept, 3).tolist() == ints
        closed = sympy.sympify(count(spec.substituted(**symbols), s))
        for i in range(3):
            values = {symbols[name]: values[i] for name, values in sizes.items()}
            assert closed.subs({**values, s: SEQ_LENS[i]}) == ints[i]


def test_closed_forms_read_well() -> None:
    d, n, v, s = sympy.symbols("d N V S")
    spec = TINY.substituted(d_model=d, n_layers=n, vocab_size=v)
    # 80·d attention, 51·d ffn, 2·d norms
    assert sympy.expand(model.params(spec)) == 133 * d * n + 2 * d * v + d
    moe = TINY.replace(d_ff=None, n_experts=11, top_k=3, d_ff_expert=5).substituted(n_layers=n)
    # (143 + 11·195)·N
    assert model.params_by_role(moe)["moe"] == 2288 * n
    assert model.params_by_role(moe)["ffn"] == 0
    # 2·(1040·S + 60·S·(S + 1)/2)·3 + 2·663·3·S + 2·1313·S
    closed = model.causal_matmul_flops(TINY, batch_size=1, seq_len=s)
    assert sympy.expand(closed) == 180 * s**2 + 13024 * s


def test_stacks_of_each_kind() -> None:
    assert stack.stacks(TINY) == [(3, False)]
    assert stack.stacks(SEQ2SEQ) == [(2, False), (3, True)]
    assert stack.attention_layers(WINDOWED_MOE) == (5, 2)
    assert stack.attention_layers(TINY) == (0, 3)


def test_a_byte_may_be_a_fraction_of_a_value() -> None:
    assert model.param_bytes(TINY, bytes_per_value=Fraction(1, 2)) == 3913


def test_active_parameters_of_a_layer_with_shared_experts_of_their_own_width() -> None:
    spec = ModelSpec(
        kind="decoder",
        d_model=13,
        n_layers=1,
        vocab_size=None,
        n_heads=6,
        n_kv_heads=2,
        head_dim=10,
        activation="silu",
        gated=True,
        ffn_bias=True,
        n_experts=7,
        top_k=3,
        d_ff_expert=29,
        n_shared_experts=2,
        d_ff_shared=31,
        shared_expert_gate=True,
        norm="rmsnorm",
        position="rope",
    )
    # router 7·13, three experts 3·13·29, a shared FFN of width 62 with biases, its gate
    active = 7 * 13 + 3 * (3 * 13 * 29) + 3 * 13 * 62 + 62 + 62 + 13 + 13
    assert model.active_params_by_role(spec)["moe"] == active == 6052
