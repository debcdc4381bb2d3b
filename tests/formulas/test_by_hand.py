"""Sublayers counted by hand: every literal with its arithmetic above it.

Sizes are distinct and mostly prime: d=13, m=17, h=6, h_kv=2, h_d=5, E=7, k=3.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import pytest
import sympy

from metacount.formulas import sublayers as sub
from metacount.formulas.feed_forward import gated_d_ff
from metacount.formulas.masks import (
    attended_positions,
    causal_pairs,
    selected_block_pairs,
    selected_block_positions,
)
from metacount.formulas.mixers import mixer_counts, run_mixer
from metacount.formulas.mixers.convolution import convolved_positions
from metacount.formulas.tape import TOKENS, Run, Tape, flops_of
from metacount.spec.field import altered
from metacount.spec.mixers import GatedDelta, Lightning

# --- formulas of sizes ------------------------------------------------------------------------


def case(
    expected: object, formula: Callable[..., object], *sizes: object, **options: object
) -> Any:
    said = [*map(str, sizes), *(f"{name}={value}" for name, value in options.items())]
    name = f"{formula.__name__}({', '.join(said)})"
    return pytest.param(partial(formula, *sizes, **options), expected, id=name)


GQA = (13, 6, 2, 5)
ATTENTION = [
    # q 13·30 + k 13·10 + v 13·10 + o 30·13; biases 30, 10, 10, 13; a sink for each of 6 heads
    case(1040, sub.attention_params, *GQA),
    case(1040 + 30, sub.attention_params, *GQA, q_bias=True),
    case(1040 + 10, sub.attention_params, *GQA, k_bias=True),
    case(1040 + 10, sub.attention_params, *GQA, v_bias=True),
    case(1040 + 13, sub.attention_params, *GQA, o_bias=True),
    case(1040 + 6, sub.attention_params, *GQA, sinks=True),
    # a gate as wide as the queries: 13·30 more
    case(1040 + 390, sub.attention_params, *GQA, output_gate=True),
    # 3 tokens × 1040 multiply-adds
    case(2 * 3120, sub.attention_projection_flops, 3, *GQA),
    # q and o: 3 tokens × 780; k and v: 7 tokens × 260, or nothing where they are cached
    case(2 * (2340 + 1820), sub.attention_projection_flops, 3, *GQA, n_kv_tokens=7),
    case(2 * 2340, sub.attention_projection_flops, 3, *GQA, n_kv_tokens=0),
    # 7 pairs × 6 heads × (5 for the score + 5 for the sum)
    case(2 * 420, sub.attention_pair_flops, 7, 6, 5),
    # a key and a value of 2 heads × 5
    case(20, sub.kv_cache_values, 2, 5),
]
NORMS = [
    # weight 13, bias 13
    case(13, sub.norm_params, 13),
    case(26, sub.norm_params, 13, bias=True),
    case(0, sub.norm_params, 13, affine=False),
    # q [5] + k [5]; q [6·5] + k [2·5]; weight and bias of each
    case(10, sub.qk_norm_params, "head", 6, 2, 5),
    case(40, sub.qk_norm_params, "full", 6, 2, 5),
    case(20, sub.qk_norm_params, "layernorm", 6, 2, 5),
    case(0, sub.qk_norm_params, "l2", 6, 2, 5),
    # key-value latent 7, query latent 11
    case(7, sub.latent_norm_params, None, 7),
    case(18, sub.latent_norm_params, 11, 7),
    # one norm a sublayer, before and after it, or one for both
    *(
        case(2 + cross, sub.norms_per_block, placement, cross=cross)
        for placement in ("pre", "post", "deep", "post_branch")
        for cross in (False, True)
    ),
    case(4, sub.norms_per_block, "sandwich"),
    case(2, sub.norms_per_block, "parallel_two"),
]
POSITIONS = [
    case(1313, sub.learned_table_params, 101, 13),
    case(96, sub.t5_bias_params, 32, 3),
    # projection 13·(3·5), vectors u and v 2·(3·5)
    case(195 + 30, sub.transformer_xl_params, 13, 3, 5),
]

# d=13, h=3, r_q=11, d_c=7, d_n=5, d_r=2, d_v=17
LATENT: dict[str, Any] = {"q_lora_rank": 11, "kv_lora_rank": 7}
LATENT |= {"qk_nope_head_dim": 5, "qk_rope_head_dim": 2, "v_head_dim": 17}
DIRECT = {**LATENT, "q_lora_rank": None}
# q_a 13·11 = 143, q_b 11·3·(5+2) = 231, kv_a 13·(7+2) = 117, kv_b 7·3·(5+17) = 462,
# o 3·17·13 = 663: 1616; q without compression 13·3·(5+2) = 273: 1515
MLA = [
    case(1616, sub.mla_params, 13, 3, **LATENT),
    case(1515, sub.mla_params, 13, 3, **DIRECT),
    # q_a 11, kv_a 7 + 2, o 13
    case(1616 + 33, sub.mla_params, 13, 3, **LATENT, bias=True),
    # 4 tokens × 1616, 10 pairs × 3 heads × (5 + 2 + 17)
    case(2 * (6464 + 720), sub.mla_matmul_flops, 4, 10, 13, 3, **LATENT, absorbed=False),
    case(2 * (6060 + 720), sub.mla_matmul_flops, 4, 10, 13, 3, **DIRECT, absorbed=False),
    # kv_b over 19 cached tokens: 4 × (1616 - 462) + 19 × 462 + 720
    case(2 * 14114, sub.mla_matmul_flops, 4, 10, 13, 3, **LATENT, absorbed=False, n_kv_tokens=19),
    # 4 × 1616, 10 pairs × 3 heads × (7 + 2 + 7); what is cached is not expanded
    case(2 * (6464 + 480), sub.mla_matmul_flops, 4, 10, 13, 3, **LATENT, absorbed=True),
    case(2 * (6060 + 480), sub.mla_matmul_flops, 4, 10, 13, 3, **DIRECT, absorbed=True),
    case(9, sub.mla_kv_cache_values, 7, 2),
]

FEED_FORWARD = [
    # up 17·13 + down 13·17; biases 17 + 13
    case(442, sub.plain_params, 13, 17),
    case(442 + 30, sub.plain_params, 13, 17, bias=True),
    # gate, up, down: 3·13·17; biases 17 + 17 + 13
    case(663, sub.glu_params, 13, 17),
    case(663 + 47, sub.glu_params, 13, 17, bias=True),
    # 3 tokens × 442, × 663
    case(2 * 1326, sub.plain_matmul_flops, 3, 13, 17),
    case(2 * 1989, sub.glu_matmul_flops, 3, 13, 17),
    # Llama 3 8B: ffn_dim_multiplier 1.3, multiple_of 1024; LLaMA 13B: multiple_of 256
    case(14336, gated_d_ff, 4096, multiplier=Fraction("1.3"), multiple_of=1024),
    # 2·4·13 / 3 = 34.67 -> 34; multiples of 1: 34; of 5: 35; of 17: already one
    case(35, gated_d_ff, 13, multiple_of=5),
    # cut before the multiplier: 34·3/2 = 51, not 34.67·3/2 = 52; and after it: 34·7/5 = 47.6
    case(51, gated_d_ff, 13, multiplier=Fraction(3, 2), multiple_of=1),
    case(47, gated_d_ff, 13, multiplier=Fraction(7, 5), multiple_of=1),
]

PLAIN: dict[str, Any] = {"gated": False}
GATED: dict[str, Any] = {"gated": True}
SHARED: dict[str, Any] = {"gated": False, "n_shared_experts": 2}
NARROW: dict[str, Any] = {**SHARED, "d_ff_shared": 5}
ZERO: dict[str, Any] = {"gated": True, "n_zero_experts": 5}
ROWS: dict[str, Any] = {"gated": False, "n_zero_experts": 5, "zero_expert_rows": True}
# a plain expert 2·13·17 = 442, a gated one 3·13·17 = 663, router 7·13 = 91
MIXTURE = [
    case(91, sub.router_params, 13, 7),
    case(91 + 7, sub.router_params, 13, 7, bias=True),
    case(91 + 7 * 663, sub.moe_params, 13, 17, 7, **GATED),
    case(3185 + 7, sub.moe_params, 13, 17, 7, **PLAIN, router_bias=True),
    case(3185 + 7 * (17 + 13), sub.moe_params, 13, 17, 7, **PLAIN, expert_bias=True),
    # shared experts of the experts' width: 2·13·(2·17); of width 5, 2·13·10; a gate 13 -> 1
    case(3185 + 884, sub.moe_params, 13, 17, 7, **SHARED),
    case(3185 + 260, sub.moe_params, 13, 17, 7, **NARROW),
    case(3445 + 10 + 13, sub.moe_params, 13, 17, 7, **NARROW, shared_bias=True),
    case(3445 + 13, sub.moe_params, 13, 17, 7, **NARROW, shared_gate=True),
    # 5 rows of the router more; with rows of experts a gate and an up each, 2·13·17, or an up
    case(4732 + 65, sub.moe_params, 13, 17, 7, **ZERO),
    case(4732 + 65 + 12, sub.moe_params, 13, 17, 7, **ZERO, router_bias=True),
    case(4732 + 65 + 2210, sub.moe_params, 13, 17, 7, **ZERO, zero_expert_rows=True),
    case(3185 + 65 + 1105, sub.moe_params, 13, 17, 7, **ROWS),
    # their biases too: 5·17
    case(3395 + 65 + 1105 + 85, sub.moe_params, 13, 17, 7, **ROWS, expert_bias=True),
    # of one token: three experts
    case(91 + 3 * 442, sub.moe_active_params, 13, 17, 7, 3, **PLAIN),
    case(91 + 3 * 663, sub.moe_active_params, 13, 17, 7, 3, **GATED),
    case(1417 + 3 * (17 + 13), sub.moe_active_params, 13, 17, 7, 3, **PLAIN, expert_bias=True),
    case(2080 + 65, sub.moe_active_params, 13, 17, 7, 3, **ZERO),
    # 2 tokens
    case(2 * 2 * 2080, sub.moe_matmul_flops, 2, 13, 17, 7, 3, **GATED),
    case(2 * 2 * (1677 + 13), sub.moe_matmul_flops, 2, 13, 17, 7, 3, **NARROW, shared_gate=True),
    case(2 * 2 * (2080 + 65), sub.moe_matmul_flops, 2, 13, 17, 7, 3, **ZERO),
]

CONVOLVED = [
    # 7 + 4 - 1; a short one is filled up to 4; continued, 4 positions are kept
    case(10, convolved_positions, 1, 7, 4),
    case(14, convolved_positions, 2, 2, 4),
    case(6, convolved_positions, 3, 1, 4, decode=True),
    case(4, convolved_positions, 1, 3, 4, decode=True),
]


@pytest.mark.parametrize(
    ("counted", "expected"),
    [*ATTENTION, *NORMS, *POSITIONS, *MLA, *FEED_FORWARD, *MIXTURE, *CONVOLVED],
)
def test_a_formula_by_hand(counted: Callable[[], object], expected: int) -> None:
    assert counted() == expected


def test_a_gated_width_is_exact() -> None:
    with pytest.raises(TypeError, match="multiplier"):
        gated_d_ff(8192, multiplier=1.3, multiple_of=4096)  # type: ignore[arg-type]


# --- mixers with a state ----------------------------------------------------------------------


def recorded(part: Any, d_model: Any, batch_size: int, seq_len: Any, decode: bool = False) -> Tape:
    counts = {TOKENS: batch_size * seq_len}
    counts |= mixer_counts(part, batch_size, seq_len, decode=decode)
    sizes = {"batch_size": batch_size, "n_queries": seq_len, "n_keys": seq_len}
    tape = Tape(Run(counts=counts, **sizes, decode=decode))
    run_mixer(tape, part, tape.tensor(d_model, TOKENS, grad=True))
    return tape


def between(tape: Tape) -> Any:
    """FLOPs of the products of activations."""
    return flops_of(tape.products, tape.run.counts)


# q, k, v (10 + 10 + 42)·13 = 806, gate 42·13 = 546, rate and decay 2·6·13 = 156, out 546: 2054;
# convolution 62·3 = 186; dt_bias and A_log 12; norm 7
DELTA = GatedDelta(
    n_k_heads=2, n_v_heads=6, k_head_dim=5, v_head_dim=7, conv_kernel=3, chunk_size=11
)
# 5·13·15 = 975 and a norm of 15
LIGHTNING = Lightning(n_heads=3, head_dim=5, chunk_size=11)


# --- what an indexer leaves -------------------------------------------------------------------


def read(t: int, size: int, top: int) -> int:
    """Positions that token t, from 0, reads: those of its block up to it, and whole ones before."""
    blocks = [range(at, min(at + size, t + 1)) for at in range(0, t + 1, size)]
    return sum(len(block) for block in [*blocks[:-1][: top - 1], blocks[-1]])


@pytest.mark.parametrize("size", [1, 3, 4])
@pytest.mark.parametrize("top", [1, 2, 5])
def test_selected_pairs_are_counted_one_by_one(size: int, top: int) -> None:
    """Below a block, a whole one, k blocks, one more position, and beyond."""
    for seq_len in {1, size, size + 1, size * top, size * top + 1, 5 * size * top + 2}:
        each = [read(t, size, top) for t in range(seq_len)]
        assert selected_block_pairs(seq_len, size, top) == sum(each)
        assert selected_block_positions(seq_len, size, top) == each[-1]
        if size == 1:  # blocks of one position are positions
            assert causal_pairs(seq_len, top) == sum(each)
            assert attended_positions(seq_len, top) == each[-1]


@pytest.mark.parametrize("n", [1, 10, 11, 12, 23])
def test_chunks_in_letters_give_what_numbers_give(n: int) -> None:
    seq_len, chunk = sympy.symbols("S c_l", integer=True, positive=True)
    at = {seq_len: n, chunk: 11}
    for part in (DELTA, LIGHTNING):
        form = between(recorded(altered(part, chunk_size=chunk), 13, 1, seq_len))
        assert form.subs(at) == between(recorded(part, 13, 1, n))
