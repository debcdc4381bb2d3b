"""Whole models: by hand, in symbols and arrays, and what must not be asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sympy
from helpers.miniatures import TINY as ROTATED
from helpers.release import daily
from helpers.small_specs import MLA as SMALL_MLA

from metacount.catalog import entry
from metacount.errors import SpecError
from metacount.formulas import model, pieces, sublayers
from metacount.formulas.sublayers import attention_by_selection
from metacount.spec import ModelSpec

PARAMS, ACTIVE = model.params_by_role, model.active_params_by_role
FORWARD, CAUSAL = model.matmul_flops_by_role, model.causal_matmul_flops_by_role
STEP = model.decode_matmul_flops_by_role
CACHE, PER_TOKEN = model.kv_cache_bytes, model.kv_cache_bytes_per_token

# d=13, N=3, V=101, h=6, h_kv=2, head_dim=5, d_ff=17
TINY = ModelSpec.from_dict({**ROTATED, "head_dim": 5, "position": "none"})
EXPERTS: dict[str, Any] = {"n_experts": 11, "top_k": 3, "d_ff_expert": 5}
ROUTED = TINY.replace(**EXPERTS, d_ff=None)
# layers 0 and 1 dense, then every second (3 and 5) MoE; windows of 4 on layers 0, 1, 3, 4, 6
WINDOWED_MOE = TINY.replace(
    **EXPERTS,
    n_layers=7,
    n_dense_layers=2,
    moe_every=2,
    n_shared_experts=2,
    selection_bias=True,
    window=4,
    window_pattern="LLG",
)
LATENT = {"q_lora_rank": 11, "kv_lora_rank": 7, "qk_nope_head_dim": 5, "qk_rope_head_dim": 2}
MLA = TINY.replace(
    **LATENT, v_head_dim=3, attention="mla", n_kv_heads=None, head_dim=None, position="rope"
)
SEQ2SEQ = TINY.replace(
    kind="encoder-decoder", n_encoder_layers=2, position="t5", n_buckets=8, max_distance=19
)
SEQ2SEQ_MOE = SEQ2SEQ.replace(**EXPERTS, moe_every=2, selection_bias=True)
XL = TINY.replace(position="transformer_xl", tie_embeddings=True)
ENCODER = TINY.replace(kind="encoder", pooler=True, window=4)
PREFIX = TINY.replace(kind="prefix-decoder")
NARROW_TABLES = ENCODER.replace(
    **dict.fromkeys(("embedding_norm", "head_transform", "head_transform_bias", "head_bias"), True),
    **{"d_embedding": 5, "n_token_types": 2, "position": "learned", "n_positions": 19},
    first_norm=False,
)
# a feed-forward in each layer, experts beside it in two of six
BESIDE = ModelSpec.from_dict(
    {**SMALL_MLA, "n_experts": 7, "top_k": 3, "d_ff_expert": 17, "n_zero_experts": 5}
    | {"n_layers": 6, "ffn_pattern": "BFF"}
)
BERT, GEMMA_3N = entry("bert-base").spec(), entry("gemma-3n-e2b-text").spec()


def run(batch_size: int, seq_len: int, **more: int) -> dict[str, int]:
    return {"batch_size": batch_size, "seq_len": seq_len, **more}


def step(batch_size: int, kv_len: int) -> dict[str, int]:
    return {"batch_size": batch_size, "kv_len": kv_len}


def roles(**counts: int) -> dict[str, int]:
    return {**dict.fromkeys(model.ROLES, 0), **counts}


# spec, a count, its sizes, and what it gives: of roles those named here
BY_HAND: list[tuple[ModelSpec, Callable[..., Any], dict[str, Any], Any]] = [
    # token table 101·13; per block q 13·30 + k 13·10 + v 13·10 + o 30·13 = 1040,
    # ffn 3·13·17 = 663, norms 2·13 = 26; final norm 13; head 101·13
    (TINY, PARAMS, {}, roles(embedding=1313, attention=3120, ffn=1989, norm=91, head=1313)),
    (TINY, model.params, {}, 7826),
    # 2 sequences of 4 tokens: 8 tokens × 1040 + 2·16 pairs × 6 heads × (5 + 5) = 10240,
    # ffn 8 × 663 = 5304 multiply-adds, three times; head 8 × 1313 = 10504
    (TINY, FORWARD, run(2, 4), roles(attention=61440, ffn=31824, head=21008)),
    # causal: 2·10 pairs × 60 = 1200, 9520 multiply-adds per block
    (TINY, CAUSAL, run(2, 4), roles(attention=57120, ffn=31824, head=21008)),
    # 2 tokens × 1040 + 2·7 pairs × 60 = 2920; ffn 2 × 663; head 2 × 1313
    (TINY, STEP, step(2, 7), roles(attention=17520, ffn=7956, head=5252)),
    # 6 tokens × 1040 and per pair 60, in three layers: 1 + 2 + 3 + 4 + 4 + 4 pairs; 10 + 3
    (TINY.replace(window=4), CAUSAL, run(1, 6), {"attention": 6 * (6240 + 18 * 60)}),
    (
        TINY.replace(window=4, window_kind="chunked"),
        CAUSAL,
        run(1, 6),
        {"attention": 6 * (6240 + 13 * 60)},
    ),
    (TINY, pieces.attention_layers, {}, (0, 3)),
    (WINDOWED_MOE, pieces.attention_layers, {}, (5, 2)),
    (WINDOWED_MOE, model.buffers, {}, {"selection_bias": 22}),
    # 5 layers of 4 positions, 2 of 9, each 1040 + positions × 60
    (WINDOWED_MOE, STEP, step(1, 9), {"attention": 2 * (7 * 1040 + (5 * 4 + 2 * 9) * 60)}),
    # 5 layers keep 3 positions, 2 keep 9, of 2·2·5 values in 2 bytes, 3 sequences
    (WINDOWED_MOE, CACHE, run(3, 9, bytes_per_value=2), 3 * 33 * 20 * 2),
    # the cache of 5 written and 7 read positions, 3 layers × 20 values
    (SEQ2SEQ, CACHE, run(1, 5, source_len=7, bytes_per_value=1), 60 * (5 + 7)),
    (
        SEQ2SEQ,
        model.kv_cache_bytes_by_part,
        run(1, 5, source_len=7, bytes_per_value=1),
        {"self-attention": 300, "cross-attention": 420},
    ),
    (SEQ2SEQ, PER_TOKEN, {"bytes_per_value": 1}, 60),
    # encoder: 14 tokens × 1040, 2·49 pairs × 60, two blocks; decoder: 6 tokens × 1040, 2·9 pairs ×
    # 60; across: of 6 tokens q and o, 780, of 14 k and v, 260, 2·21 pairs × 60, three blocks
    (
        SEQ2SEQ,
        FORWARD,
        run(2, 3, source_len=7),
        {
            "attention": 2 * 2 * (14 * 1040 + 98 * 60)
            + 2 * 3 * (6 * 1040 + 18 * 60 + 6 * 780 + 14 * 260 + 42 * 60)
        },
    ),
    (SEQ2SEQ_MOE, model.buffers, {}, {"selection_bias": 22}),
    # 5 positions projected again, 2·5 pairs × 30 = 300
    (XL, STEP, step(2, 5), {"position": 6 * 2250}),
    (NARROW_TABLES, lambda spec: tables_left_out(spec), {}, 505),
    (ENCODER, FORWARD, run(3, 5), {"other": 1014}),
    (ENCODER, CACHE, run(1, 5, bytes_per_value=2), 0),
    (ENCODER, PER_TOKEN, {"bytes_per_value": 2}, 0),
    # absorbed: 1292, 4 pairs × 6 heads × (7 + 2 + 7)
    (MLA, STEP, step(1, 4), {"attention": 6 * (1292 + 384)}),
    (MLA, PER_TOKEN, {"bytes_per_value": 1}, 27),
    (BESIDE, PER_TOKEN, {"bytes_per_value": 1}, 6 * (5 + 4)),
    # tokens and token types; each layer's own embeddings; none
    (BERT, model.looked_up_params, {}, 30522 * 768 + 2 * 768),
    (GEMMA_3N, model.looked_up_params, {}, 262400 * 2048 + 262144 * 30 * 256),
    (entry("textbook-block").spec(), model.looked_up_params, {}, 0),
]


def tables_left_out(spec: ModelSpec) -> int:
    """What a token looks up, and multiplies nothing with."""
    left_out: int = model.active_params(spec) - model.active_params_no_embed(spec)
    return left_out


@pytest.mark.parametrize(("spec", "count", "sizes", "expected"), BY_HAND)
def test_a_model_by_hand(
    spec: ModelSpec, count: Callable[..., Any], sizes: dict[str, Any], expected: Any
) -> None:
    found = count(spec, **sizes)
    if isinstance(expected, dict):
        assert {role: found[role] for role in expected} == expected
    else:
        assert found == expected


# --- sublayers of a model -----------------------------------------------------------------------

OF_ONE: dict[str, Any] = {"batch_size": 2, "n_queries": 1, "n_keys": 5, "n_pairs": 5}
OF_FIVE: dict[str, Any] = {"batch_size": 2, "n_queries": 5, "n_keys": 5, "n_pairs": 25}
ENDS = {"run": {"tokens": 5, "sequences": 3}}
SELF = sublayers.self_attention_flops
OF_ENDS = sublayers.end_flops


def mixture(spec: ModelSpec, n_tokens: int) -> dict[str, Any]:
    return {"moe": sublayers.mixture_flops(spec, n_tokens)}


# spec, a count, its sizes, and the multiply-adds of each role that has some
SUBLAYERS: list[tuple[ModelSpec, Callable[..., Any], dict[str, Any], dict[str, int]]] = [
    # 2 sequences of 1 token and 5 positions: kv_b 7·48 = 336 over 10 cached tokens, the other
    # 956 over 2 tokens, 10 pairs × 60
    (MLA, SELF, {**OF_ONE, "absorbed": False}, {"attention": 3360 + 1912 + 600}),
    # absorbed: kv_b over the 2 new tokens too, 10 pairs × 6 heads × (7 + 2 + 7)
    (MLA, SELF, {**OF_ONE, "absorbed": True}, {"attention": 2 * 1292 + 960}),
    # 5 positions × 13·30, 50 pairs × 30; 10 tokens × 1040, 50 pairs × 60
    (
        XL,
        SELF,
        {**OF_FIVE, "absorbed": False},
        {"position": 1950 + 1500, "attention": 10400 + 3000},
    ),
    # a router of 11 rows, and 3 experts of 3·13·5
    (ROUTED, mixture, {"n_tokens": 3}, {"moe": 3 * (143 + 585)}),
    # a pooler; copies of the stream, three made and three come back, and the projected table
    (BERT.replace(pooler=True), OF_ENDS, ENDS, {"other": 3 * 768 * 768}),
    (
        GEMMA_3N,
        OF_ENDS,
        ENDS,
        {"head": 5 * 262400 * 2048, "other": 5 * (6 * 2048 * 2048 + 2048 * 30 * 256)},
    ),
    (entry("textbook-block").spec(), OF_ENDS, ENDS, {}),
]


@pytest.mark.parametrize(("spec", "count", "sizes", "expected"), SUBLAYERS)
def test_a_sublayer_by_hand(
    spec: ModelSpec, count: Callable[..., Any], sizes: dict[str, Any], expected: dict[str, int]
) -> None:
    found = {role: flops for role, flops in count(spec, **sizes).items() if flops}
    assert found == {role: 2 * multiply_adds for role, multiply_adds in expected.items()}


# --- an index, and what it leaves -----------------------------------------------------------------

NO_INDEX: dict[str, Any] = {"index_pattern": "I", "n_index_heads": None, "index_head_dim": None}
NO_INDEX |= dict.fromkeys(f"index_{name}" for name in ("top_k", "block_len", "top_blocks"))
NO_INDEX["index_local_blocks"] = None
DEEPSEEK = entry("deepseek-v3.2").spec().replace(n_layers=4)
MINIMAX = entry("minimax-m3-text").spec().replace(n_layers=4)  # three without, one with
# 4 layers × 2 FLOPs × 128 heads × a pair's width, expanded and absorbed; 2 × 64 heads × (128 + 128)
EXPANDED, ABSORBED, BLOCKS = 8 * 128 * 320, 8 * 128 * (512 + 64 + 512), 2 * 64 * 256
PAIRS = 5000 * 5001 // 2
# up to 2048 tokens all are chosen, then 2048 for each
CHOSEN = 2048 * 2049 // 2 + 2048 * 2048
# 16 blocks of 128: of token t the t % 128 + 1 of its block and 15 whole ones, or all
READ = sum(min(t, 15 * 128 + t % 128) + 1 for t in range(5000))


@pytest.mark.parametrize(
    ("spec", "sizes", "dense", "selected"),
    [
        (DEEPSEEK, run(2, 4096), EXPANDED * 2 * (4096 * 4097 // 2), EXPANDED * 2 * CHOSEN),
        (DEEPSEEK, step(3, 5000), ABSORBED * 3 * 5000, ABSORBED * 3 * 2048),
        (MINIMAX, run(2, 5000), BLOCKS * 2 * 4 * PAIRS, BLOCKS * 2 * (3 * PAIRS + READ)),
        # 4999 = 39·128 + 7: the last token is the eighth of its block
        (MINIMAX, step(2, 5000), BLOCKS * 2 * 4 * 5000, BLOCKS * 2 * (3 * 5000 + 15 * 128 + 8)),
    ],
)
def test_attention_by_selection(
    spec: ModelSpec, sizes: dict[str, int], dense: int, selected: int
) -> None:
    """The index is what the model multiplies more than without one."""
    decode, plain = "kv_len" in sizes, spec.replace(**NO_INDEX)
    with_index, without = (
        sum((STEP if decode else CAUSAL)(one, **sizes).values()) for one in (spec, plain)
    )
    batch_size, seq_len = sizes.values()
    assert attention_by_selection(spec, **run(batch_size, seq_len), decode=decode) == {
        "dense_attention_flops": dense,
        "selected_attention_flops": selected,
        "index_flops": with_index - without,
    }
    assert attention_by_selection(plain, **run(batch_size, seq_len)) == {}


# --- what must hold, and what must not be asked ---------------------------------------------------


def test_what_must_not_be_asked() -> None:
    for spec, count, sizes, field, value in (
        (ENCODER, STEP, step(1, 5), "kind", "encoder"),
        (TINY, CAUSAL, run(1, 5, prefix_len=2), "prefix_len", 2),
        (PREFIX, CAUSAL, run(1, 5, prefix_len=6), "prefix_len", 6),
    ):
        with pytest.raises(SpecError) as refused:
            count(spec, **sizes)
        assert (refused.value.field, refused.value.value) == (field, value)


COUNTS: list[Callable[..., Any]] = [
    lambda spec, s: model.params(spec),
    lambda spec, s: model.active_params(spec),
    lambda spec, s: model.active_params_no_embed(spec),
    lambda spec, s: model.buffers(spec)["selection_bias"],
    lambda spec, s: model.matmul_flops(spec, batch_size=2, seq_len=s),
    lambda spec, s: model.causal_matmul_flops(spec, batch_size=2, seq_len=s),
    lambda spec, s: model.decode_matmul_flops(spec, batch_size=2, kv_len=s),
    lambda spec, s: CACHE(spec, batch_size=2, seq_len=s, bytes_per_value=2),
    lambda spec, s: PER_TOKEN(spec, bytes_per_value=2),
]
BIASES = {f"{name}_bias": True for name in ("q", "k", "v", "o", "ffn", "head")}
TRANSFORM = {"head_transform": True, "head_transform_bias": True}
# a spec, and three values of some sizes; a window, a prefix and a stack may be longer than the rest
SIZES: list[tuple[ModelSpec, dict[str, tuple[int, ...]]]] = [
    (
        TINY.replace(**BIASES, attention_sinks=True, n_token_types=2),
        {"d_model": (13, 5, 7), "n_heads": (6, 2, 4), "vocab_size": (101, 3, 9)}
        | {"n_token_types": (2, 3, 5)},
    ),
    (WINDOWED_MOE, {"window": (4, 2, 11), "n_layers": (7, 8, 9), "n_dense_layers": (2, 0, 3)}),
    (ROUTED, {"n_layers": (3, 1, 8)}),
    (MLA.replace(mla_bias=True), {"q_lora_rank": (11, 2, 3), "kv_lora_rank": (7, 5, 3)}),
    (SEQ2SEQ, {"n_encoder_layers": (2, 5, 1), "n_layers": (3, 1, 8), "n_buckets": (8, 12, 16)}),
    (XL.replace(norm="layernorm", norm_bias=True), {"d_model": (13, 5, 7), "head_dim": (5, 2, 3)}),
    (PREFIX.replace(**TRANSFORM), {"vocab_size": (101, 3, 9), "d_model": (13, 5, 7)}),
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
