"""Small models of every kind that has a plan, jobs on a mesh, and what is said of their ranks.

Sizes are distinct primes where the rules allow.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from helpers.miniatures import miniature
from metacount.catalog import entry
from metacount.sharding.mesh import parse_mesh
from metacount.sharding.result import Job, Kind
from metacount.spec import ModelSpec

COMMON = {
    "kind": "decoder",
    "d_model": 16,
    "n_layers": 3,
    "vocab_size": 53,
    "activation": "silu",
    "gated": True,
    "norm": "rmsnorm",
    "position": "rope",
}
HEADS = {"n_heads": 4, "n_kv_heads": 2, "head_dim": 6}
LATENT = {
    "attention": "mla",
    "n_heads": 4,
    "q_lora_rank": 7,
    "kv_lora_rank": 5,
    "qk_nope_head_dim": 3,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
}
BIASES = dict.fromkeys(("q_bias", "k_bias", "v_bias", "o_bias", "ffn_bias", "norm_bias"), True)
PLAIN = {"gated": False, "activation": "gelu", "norm": "layernorm", "position": "learned"}
EXPERTS = {"n_experts": 8, "top_k": 3, "d_ff_expert": 6, "router": "softmax_renorm"}

SPECS = {
    "llama": ModelSpec(**COMMON, **HEADS, d_ff=11),
    "qwen3": ModelSpec(**COMMON, **HEADS, d_ff=13, qk_norm="head", tie_embeddings=True),
    "gpt2": ModelSpec(
        **{**COMMON, **PLAIN},
        **{**HEADS, "n_kv_heads": 4},
        **BIASES,
        d_ff=29,
        n_positions=23,
        tie_embeddings=True,
    ),
    "mixtral": ModelSpec(**COMMON, **HEADS, **EXPERTS),
    "deepseek": ModelSpec(
        **COMMON,
        **LATENT,
        **{**EXPERTS, "router": "sigmoid_renorm"},
        d_ff=19,
        n_dense_layers=1,
        n_shared_experts=1,
    ),
    "sandwich": ModelSpec(**COMMON, **HEADS, d_ff=11, norm_placement="sandwich"),
    "gate": ModelSpec(
        **COMMON, **HEADS, **EXPERTS, n_shared_experts=1, d_ff_shared=9, shared_expert_gate=True
    ),
    "weighted input": ModelSpec(
        **COMMON,
        **HEADS,
        **{**EXPERTS, "router": "sigmoid", "top_k": 1},
        nope_every=2,
        router_scales_input=True,
    ),
    "sinks": ModelSpec(
        **COMMON, **HEADS, d_ff=7, attention_sinks=True, window=5, window_pattern="LG"
    ),
}

# a masked language model's encoder; ELECTRA's tables are narrower than its blocks
BERT = ModelSpec(
    **{**COMMON, **PLAIN, "kind": "encoder"},
    **{**HEADS, "n_kv_heads": 4},
    **BIASES,
    tie_embeddings=True,
    head_bias=True,
    n_token_types=2,
    embedding_norm=True,
    head_transform=True,
    head_transform_bias=True,
    d_ff=29,
    norm_placement="post",
    final_norm=False,
    n_positions=23,
)
ENCODERS = {
    "bert": BERT,
    "electra": BERT.replace(d_embedding=7),
    "modernbert": ModelSpec(
        **{**COMMON, "kind": "encoder"}, **HEADS, d_ff=11, window=4, window_pattern="LG"
    ),
}

# models whose layers differ: of each mixer with a state one, five layers of a pattern's
HYBRIDS = {
    "jamba": miniature(entry("jamba-1.5-mini").spec()).replace(
        n_experts=8, mixer_pattern="RAR", n_layers=4
    ),
    "mamba2": miniature(entry("mamba2-130m").spec()),
    "qwen3-next": miniature(entry("qwen3-next-80b-a3b").spec()).replace(n_experts=8),
    "lfm2": miniature(entry("lfm2-8b-a1b").spec()).replace(n_experts=8, n_dense_layers=1),
    "falcon-h1": miniature(entry("falcon-h1-0.5b").spec()),
    "minimax": miniature(entry("minimax-text-01").spec()).replace(mixer_pattern="RRA"),
    "griffin": miniature(entry("recurrentgemma-2b").spec()),
    "longcat": miniature(entry("longcat-flash").spec()).replace(n_experts=8, n_zero_experts=4),
    "minimax-m3": miniature(entry("minimax-m3-text").spec()).replace(n_experts=8),
    "deepseek-v3.2": miniature(entry("deepseek-v3.2").spec()).replace(n_mtp_layers=None),
    "zamba2": miniature(entry("zamba2-1.2b").spec()).replace(n_layers=5, n_shared_blocks=2),
    "kimi-linear": miniature(entry("kimi-linear-48b-a3b").spec()).replace(n_experts=8),
    "nemotron": miniature(entry("nemotron-3-nano-30b-a3b").spec()).replace(
        n_experts=8, mixer_pattern="RNANR", ffn_pattern="NENEN"
    ),
}

# of which some tensors have enough values on a rank to be kept in 8 bits
ALL = (
    SPECS
    | ENCODERS
    | HYBRIDS
    | {"wide": SPECS["llama"].replace(d_model=64, vocab_size=257, d_ff=160)}
)


def job(mesh: str, zero: int = 3, **changes: Any) -> Job:
    """A step on a mesh, of odd sizes; `serve` instead of training with zero -1."""
    made = parse_mesh(mesh)
    micro = changes.pop("micro_batches", 1)
    given = {"dtype": "fp32", "optimizer": "adamw", "seq_len": 9 * made.cp, **changes}
    return Job(
        mesh=made,
        train=zero >= 0,
        zero=max(zero, 0),
        micro_batches=micro,
        batch_size=made.dp * micro,
        **given,
    )


def as_told(kinds: list[Kind]) -> list[dict[str, Any]]:
    """All that is said of each kind but its peak, which a run knows more often."""
    found = []
    for kind in kinds:
        data = {name: n for name, n in kind.to_dict().items() if not name.startswith("peak_")}
        data["collectives"] = Counter(tuple(sorted(c.items())) for c in data["collectives"])
        data["sent_bytes"] = Counter(data["sent_bytes"])
        found.append(data)
    return found
