"""Claims in letters: the exact formula against sizes of tensors, at small distinct primes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
from helpers.changed_claims import verdict_on, with_options

from metacount.teaching.claims import judge_claim
from metacount.teaching.texts import CONDITIONAL, RIGHT, WRONG, evaluated

# two sets of sizes, no two of which are equal
LETTERS = "d m m_e h h_kv h_d E k N V d_c d_r"
PRIMES = [
    dict(zip(LETTERS.split(), sizes, strict=True))
    for sizes in (
        (13, 17, 19, 6, 2, 5, 7, 3, 11, 101, 23, 29),
        (31, 37, 41, 15, 3, 7, 43, 4, 2, 47, 53, 59),
    )
]


def numel(*shapes: tuple[int, ...]) -> int:
    """Values in tensors of these shapes."""
    total = 0
    for shape in shapes:
        n = 1
        for size in shape:
            n *= size
        total += n
    return total


def attention(s: dict[str, int]) -> int:
    q, kv = s["h"] * s["h_d"], s["h_kv"] * s["h_d"]
    return numel((q, s["d"]), (kv, s["d"]), (kv, s["d"]), (s["d"], q))


def qwen3_ends(s: dict[str, int]) -> int:
    return numel((s["V"], s["d"]), (s["V"], s["d"]), (s["d"],))


def qwen3_norms(s: dict[str, int]) -> int:
    return numel((s["d"],), (s["d"],), (s["h_d"],), (s["h_d"],))


def swiglu(s: dict[str, int], width: str) -> int:
    return numel((s[width], s["d"]), (s[width], s["d"]), (s["d"], s[width]))


TRUTH: dict[str, Callable[[dict[str, int]], int]] = {
    "attention-4d2": attention,
    "ffn-gelu-8d2": lambda s: numel((s["m"], s["d"]), (s["d"], s["m"])),
    "ffn-swiglu-3dm": lambda s: swiglu(s, "m"),
    "block-gelu-12d2": lambda s: attention(s) + numel((s["m"], s["d"]), (s["d"], s["m"])),
    "block-swiglu-16d2": lambda s: attention(s) + swiglu(s, "m"),
    "relu-ffn-bias": lambda s: numel((s["m"], s["d"]), (s["m"],), (s["d"], s["m"]), (s["d"],)),
    "qwen2-attention": lambda s: (
        attention(s) + numel((s["h"] * s["h_d"],), (s["h_kv"] * s["h_d"],), (s["h_kv"] * s["h_d"],))
    ),
    # the latent and the rotated key, in each layer
    "mla-cache-dc": lambda s: s["N"] * numel((s["d_c"],), (s["d_r"],)),
    "moe-params": lambda s: s["E"] * swiglu(s, "m_e") + numel((s["E"], s["d"])),
    # a product [1, a] @ [a, b] takes 2·a·b FLOPs: each weight that is met counts twice
    "moe-flops-k3dm": lambda s: 2 * (s["k"] * swiglu(s, "m_e") + numel((s["E"], s["d"]))),
    "moe-flops-independent-of-E": lambda s: 2 * (swiglu(s, "m_e") + numel((s["E"], s["d"]))),
    "qwen3-dense-others": lambda s: numel(*[(s["d"],)] * (2 * s["N"] + 1)),
    "qwen3-moe-active-formula": lambda s: (
        qwen3_ends(s)
        + s["N"] * (attention(s) + qwen3_norms(s) + s["k"] * swiglu(s, "m_e") + s["E"] * s["d"])
    ),
    "qwen3-moe-total-formula": lambda s: (
        qwen3_ends(s)
        + s["N"] * (attention(s) + qwen3_norms(s) + s["E"] * (swiglu(s, "m_e") + s["d"]))
    ),
    "qwen3-dense-formula": lambda s: (
        qwen3_ends(s) + s["N"] * (attention(s) + qwen3_norms(s) + swiglu(s, "m"))
    ),
}


@pytest.mark.parametrize(("id", "sizes"), [*product(TRUTH, PRIMES)])
def test_the_exact_formula_counts_tensors(id: str, sizes: dict[str, int]) -> None:
    formula = verdict_on(id).correct.replace("·", "*").replace("²", "**2")
    assert evaluated(formula, sizes) == TRUTH[id](sizes)


@pytest.mark.parametrize(
    ("id", "formula", "verdict"),
    [
        # an output gate is as wide as the queries (Qwen3-Next): one matrix more
        ("attention-4d2", "2*d_model*head_dim*(n_heads + n_kv_heads)", CONDITIONAL),
        ("ffn-gelu-8d2", "2*d_model*d_ff", RIGHT),
        ("ffn-gelu-8d2", "2*d_model*d_ff + d_model", WRONG),
        ("ffn-swiglu-3dm", "2*d_model*d_ff", WRONG),
        ("ffn-swiglu-3dm", "8*d_model**2", CONDITIONAL),
        ("relu-ffn-bias", "2*d_model*d_ff", WRONG),
        ("qwen2-attention", "4*d_model**2", CONDITIONAL),
        # an indexer keeps keys of its own (DeepSeek-V3.2)
        ("mla-cache-dc", "n_layers*(kv_lora_rank + qk_rope_head_dim)", CONDITIONAL),
        ("moe-params", "n_experts*3*d_model*d_ff_expert", WRONG),
        ("moe-flops-k3dm", "6*top_k*d_model*d_ff_expert + 2*d_model*n_experts", CONDITIONAL),
        ("qwen3-dense-others", "n_layers*2*d_model + d_model", RIGHT),
    ],
)
def test_another_formula_gets_another_verdict(id: str, formula: str, verdict: str) -> None:
    assert judge_claim(with_options(id, formula=formula)).verdict == verdict


def test_a_formula_is_read_strictly() -> None:
    with pytest.raises(ValueError, match="sizes"):
        evaluated("__import__('os')", {})
    with pytest.raises(ValueError, match="sizes"):
        evaluated("2.5*d_model", {"d_model": 2})
