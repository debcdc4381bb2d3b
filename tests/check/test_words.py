"""A difference in words: mistakes that people made, found again, exactly."""

from __future__ import annotations

from fractions import Fraction

import pytest
import sympy
from helpers.release import daily

import metacount
from metacount import Workload, find_model
from metacount.check.names import LETTERS, numbers_of
from metacount.check.readings import Literals

GQA = "2*d*h_d*(h + h_kv)"
LLAMA = f"2*V*d + d + N*({GQA} + 3*d*m + 2*d)"
MIXTRAL = f"2*V*d + d + N*({GQA} + d*E + 3*k*d*m_e + 2*d)"
FORWARD = f"2*B*S*(V*d + N*({GQA} + 3*d*m)) + 4*B*N*S**2*h*h_d"

# somebody's formulas of Qwen3 models, as they were published
QWEN3_ACTIVE = (
    "n_layers*(2*d_model + n_experts*d_model + 3*top_k*d_model*d_ff_expert"
    " + 2*n_kv_heads*head_dim*d_model + d_model*n_heads*head_dim + 2*head_dim)"
    " + d_model*(2*vocab_size+1)"
)
QWEN3_TOTAL = (
    "n_layers*(2*d_model + n_experts*d_model + 3*n_experts*d_model*d_ff_expert"
    " + n_heads*head_dim*d_model + 2*n_kv_heads*head_dim*d_model + d_model*n_heads*head_dim"
    " + 2*d_model) + d_model*(2*vocab_size+1)"
)
QWEN3_DENSE = (
    "n_layers*(2*d_model + 3*d_model*d_ff + 2*n_heads*head_dim*d_model"
    " + 2*n_kv_heads*head_dim*d_model + 2*head_dim) + d_model*(2*vocab_size+1)"
)


def told(text: str, model: str, quantity: str = "params") -> dict[str, Fraction]:
    """Words and value of every term; checks that the terms are the whole difference."""
    result = metacount.check(text, model, quantity=quantity)
    assert result.verdict == "wrong"
    assert sum(term.value for term in result.terms) == result.difference_value
    total = sympy.Add(*(term.expr for term in result.terms))
    letters = result.difference.free_symbols
    if not {str(letter) for letter in letters} & {"N_w"}:
        assert sympy.expand(total - result.difference) == 0
    assert all(term.known for term in result.terms), result.terms
    return {term.words: term.value for term in result.terms}


def test_the_router_for_active_experts_only() -> None:
    text = MIXTRAL.replace("d*E", "d*k")
    # short by N·d·(E - k) = 32·4096·(8 - 2)
    assert told(text, "mixtral-8x7b", "active_params") == {
        "the router is counted for the active experts only": -786_432
    }


def test_qk_norm_as_d_model() -> None:
    # long by 2·N·(d - h_d) = 2·94·(4096 - 128)
    words = "QK-norm counted as d_model, or QK-norm left out and norms of the blocks counted twice"
    assert told(QWEN3_TOTAL, "qwen3-235b-a22b") == {words: 745_984}


def test_a_projection_left_out() -> None:
    # short by N·d·h·h_d = 94·4096·64·128
    assert told(QWEN3_ACTIVE, "qwen3-235b-a22b", "active_params") == {
        "one of q_proj and o_proj left out": -3_154_116_608
    }


def test_somebody_was_right() -> None:
    assert metacount.check(QWEN3_DENSE, "qwen3-32b").verdict == "equal"


def test_multiply_adds() -> None:
    text = f"({FORWARD})/2"
    # half of 29,261,612,187,648
    assert told(text, "llama-7b", "matmul_flops") == {
        "a factor of 2: multiply-adds, not FLOPs": -14_630_806_093_824
    }


def test_a_tied_embedding_counted_twice() -> None:
    biases = "N*(h + 2*h_kv)*h_d"
    # long by V·d = 151936·896
    assert told(f"{LLAMA} + {biases}", "qwen2-0.5b") == {
        "embedding counted twice; the output head shares it": 136_134_656
    }


@daily(4)
@pytest.mark.parametrize(
    ("text", "model", "quantity", "words", "value"),
    [
        # 3·N·d·m_e·(E - k) = 3·32·4096·14336·6
        (MIXTRAL.replace("3*k", "3*E"), "mixtral-8x7b", "active_params",
         "all experts are counted, not the active ones only", 33_822_867_456),
        (MIXTRAL, "mixtral-8x7b", "params",
         "the experts are counted for the active ones only", -33_822_867_456),
        # V·d = 128256·4096
        (LLAMA.replace("2*V*d", "V*d"), "llama3-8b", "params",
         "one of embedding and output head left out", -525_336_576),
        # N·d·m = 32·4096·14336
        (LLAMA.replace("3*d*m", "2*d*m"), "llama3-8b", "params",
         "one of FFN gate_proj, up_proj and down_proj left out", -1_879_048_192),
        # 2·N·d·h_d·(h - h_kv) = 2·32·4096·128·24
        (LLAMA.replace("h_kv", "h"), "llama3-8b", "params",
         "n_heads in place of n_kv_heads (multi-head, not grouped-query attention)", 805_306_368),
        # 2·N·d + d = 2·32·4096 + 4096
        (f"2*V*d + N*({GQA} + 3*d*m)", "llama3-8b", "params", "all norms left out", -266_240),
        # N·(h + 2·h_kv)·h_d = 28·(28 + 8)·128
        (LLAMA, "qwen2-7b", "params", "all biases left out", -129_024),
        # the attention products 4·B·N·S²·h·h_d = 4·32·2048²·4096
        (FORWARD.rpartition(" + ")[0], "llama-7b", "matmul_flops",
         "attention scores and sums of values left out", -2_199_023_255_552),
        # 2·S² → S·(S + 1): 4·32·4096·(2048·2049/2 - 2048²)
        (FORWARD.replace("S**2", "(S*(S + 1)/2)"), "llama-7b", "matmul_flops",
         "attention is counted over the causal pairs only", -1_098_974_756_864),
        # the same from the other side
        (FORWARD, "llama-7b", "causal_matmul_flops",
         "attention is counted over all pairs, masked ones too", 1_098_974_756_864),
        # 60 layers × 2048 positions × 64 × 2 bytes
        ("N*S*B*c*d_c", "deepseek-v2", "kv_cache_bytes", "rotated keys left out", -15_728_640),
        # 2·N·S·h_d·(h - h_kv)·c = 2·32·2048·128·24·2
        ("2*N*S*B*c*h*h_d", "llama3-8b", "kv_cache_bytes",
         "n_heads in place of n_kv_heads (multi-head, not grouped-query attention)", 805_306_368),
        # half of 2·32·2048·8·128·2 = 268,435,456
        ("N*S*B*c*h_kv*h_d", "llama3-8b", "kv_cache_bytes",
         "one of keys and values left out", -134_217_728),
        ("2*N*S*B*h_kv*h_d", "llama3-8b", "kv_cache_bytes", "values, not bytes", -134_217_728),
        # 52 of 62 layers keep 1023 positions of 2048: 2·2·52·16·128·(2048 - 1023)
        ("2*c*B*h_kv*h_d*N*S", "gemma3-27b-text", "kv_cache_bytes",
         "the window is ignored", 436_633_600),
        # three times 29,261,612,187,648, less once
        (f"3*({FORWARD})", "llama-7b", "matmul_flops",
         "a factor of 3: a forward and a backward, not the forward alone", 58_523_224_375_296),
    ],
)  # fmt: skip
def test_one_mistake(text: str, model: str, quantity: str, words: str, value: int) -> None:
    assert told(text, model, quantity) == {words: value}


def test_parts_of_one_size_are_named_together() -> None:
    # t5-small: 6 encoder blocks with two norms of 512 and two FFN matrices of 512·2048
    exact = metacount.check("1", "t5-small").ours
    n_e, d, m = sympy.symbols("N_e d m", integer=True, positive=True)
    assert told(str(exact - n_e * d), "t5-small") == {
        "encoder: one of the 2 norms of the blocks left out": -3072
    }
    assert told(str(exact - n_e * d * m), "t5-small") == {
        "encoder: one of FFN up_proj and down_proj left out": -6_291_456
    }


def test_two_mistakes_that_nobody_can_tell_apart_are_both_said() -> None:
    # N·d = 32·4096
    assert told(f"{LLAMA} + N*d", "llama-7b") == {
        "a bias on o counted; the model has none, or one of the 2 norms of the blocks counted "
        "twice": 131_072
    }


def test_one_expert_or_one_layer_too_many() -> None:
    # 3·(N - N_0)·d·m_e = 3·58·7168·2048
    exact = metacount.check("1", "deepseek-v3").ours
    n, n_0, d, m_e = sympy.symbols("N N_0 d m_e", integer=True, positive=True)
    assert told(str(exact + 3 * (n - n_0) * d * m_e), "deepseek-v3") == {
        "one expert too many in each MoE layer": 2_554_331_136
    }
    # a block of LLaMA-7B without its norms: 4·4096² + 3·4096·11008, with them 8192 more
    assert told(LLAMA.replace("N*(", "(N + 1)*("), "llama-7b") == {
        "one layer too many": 202_383_360
    }


def test_two_flops_for_every_parameter_and_token() -> None:
    text = f"2*B*S*({LLAMA})"
    assert told(text, "llama-7b", "matmul_flops") == {
        "attention scores and sums of values left out": -2_199_023_255_552,
        # 2·2048·32000·4096
        "embedding counted as a matrix product; it is looked up": 536_870_912_000,
        # 2·2048·(2·32 + 1)·4096
        "norms counted as if they were matrix products": 1_090_519_040,
    }


def test_twelve_d_squared() -> None:
    words = told("12*n_layers*d_model**2", "gpt2")
    relation = "n_heads·head_dim = d_model, n_kv_heads = n_heads, d_ff = 4·d_model"
    assert words == {
        "embedding left out": -38_597_376,  # 50257·768
        "position table left out": -786_432,  # 1024·768
        "all biases left out": -82_944,  # 12·(4 + 1 + 4)·768
        "all norms left out": -38_400,  # (12·2 + 1)·2·768
        f"nothing at these sizes, as {relation}": 0,
    }


def test_three_mistakes_at_once() -> None:
    text = MIXTRAL.replace("d*E", "d*k").replace("2*V*d", "V*d").replace(" + 2*d)", " + d)")
    assert told(text, "mixtral-8x7b", "active_params") == {
        "the router is counted for the active experts only": -786_432,
        "one of embedding and output head left out": -131_072_000,  # 32000·4096
        "one of the 2 norms of the blocks left out": -131_072,  # 32·4096
    }


def test_what_no_part_accounts_for_is_said() -> None:
    result = metacount.check(f"{LLAMA} + 7*N*m**2", "llama-7b")
    (term,) = result.terms
    assert not term.known
    assert term.words == "not accounted for: no part of the model explains this"
    assert term.value == result.difference_value == 7 * 32 * 11008**2


def test_what_a_number_of_the_text_may_stand_for() -> None:
    numbers = numbers_of(find_model("deepseek-v3").spec, Workload(seq_len=1024))
    literals = Literals("58*d", lambda names: dict.fromkeys(names, LETTERS["d_model"]), numbers)
    assert list(literals.values.values()) == [58]
    # 61 layers, the first 3 of them dense
    assert literals.meant(61) == [LETTERS["n_layers"]]
    assert literals.meant(58) == [LETTERS["n_layers"] - LETTERS["n_dense_layers"]]
    # 61 + 3, the width of a rotated key
    assert literals.meant(64) == [LETTERS["qk_rope_head_dim"]]
    assert literals.meant(59) == []


def test_a_layer_too_few_of_all_but_the_feed_forward() -> None:
    text = (
        "2*V*d + d + (N - 1)*(d*r_q + (d_n + d_r)*h*r_q + d*(d_c + d_r) + d_c*(d_n + d_v)*h"
        " + d*d_v*h + r_q + d_c + 2*d) + 3*N_0*d*m + (N - N_0)*(E*d + 3*(E + E_s)*d*m_e)"
    )
    # 7168·1536 + 192·128·1536 + 7168·576 + 512·256·128 + 7168·128·128 + 1536 + 512 + 2·7168
    assert told(text, "deepseek-v3") == {
        "all of the layers but the feed-forward: one layer too few": -187_121_664
    }


def test_a_rotated_key_for_each_head() -> None:
    # long by N·S·d_r·(h - 1) values of 2 bytes = 61·2048·64·127·2
    assert told("B*S*N*c*(d_c + h*d_r)", "deepseek-v3", "kv_cache_bytes") == {
        "qk_rope_head_dim·n_heads in place of qk_rope_head_dim": 2_030_829_568
    }
