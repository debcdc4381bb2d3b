"""Miniatures: the structure of a real model at sizes that are small, distinct and mostly prime.

At round sizes errors cancel (d_ff = 4·d, n_heads·head_dim = d_model); here they cannot.
"""

from __future__ import annotations

from typing import Any

from metacount.figures import PREDICTED, Witness
from metacount.spec import ModelSpec, Workload
from metacount.spec.stack import BESIDE

WORKLOAD = Workload(batch_size=2, seq_len=11, dtype="fp32")

TINY: dict[str, Any] = {
    "kind": "decoder",
    "d_model": 13,
    "n_layers": 3,
    "vocab_size": 101,
    "n_heads": 6,
    "n_kv_heads": 2,
    "head_dim": 4,
    "d_ff": 17,
    "activation": "silu",
    "gated": True,
    "norm": "rmsnorm",
    "position": "rope",
}
# 2 tables 101*13; per block attention 2*13*4*(6+2), ffn 3*13*17, norms 2*13; a last norm 13
TINY_PARAMS = 2 * 1313 + 3 * (832 + 663 + 26) + 13


def miniature(spec: ModelSpec) -> ModelSpec:
    """`spec` with its structure kept and every size replaced."""
    sizes: dict[str, Any] = {"d_model": 13, "n_layers": 5}
    if spec.attention != "none":
        sizes["n_heads"] = 6
    if spec.vocab_size is not None:
        sizes["vocab_size"] = 101
    if spec.has_encoder:
        sizes["n_encoder_layers"] = 3
    if spec.attention == "gqa":
        full, single = spec.n_kv_heads == spec.n_heads, spec.n_kv_heads == 1
        sizes["n_kv_heads"] = 6 if full else 1 if single else 2
        sizes["head_dim"] = 10 if spec.position == "rope" else 5
        if spec.rotary_dim is not None:
            sizes["rotary_dim"] = 4
    elif spec.attention == "mla":
        sizes |= {"kv_lora_rank": 19, "qk_nope_head_dim": 7, "qk_rope_head_dim": 4}
        sizes |= {"v_head_dim": 3, "q_lora_rank": None if spec.q_lora_rank is None else 23}
    if spec.window is not None:
        sizes["window"] = 4
    if spec.n_kv_shared_layers:  # the first layer that sees everything is the fifth
        sizes |= {"n_layers": 7, "n_kv_shared_layers": 2, "n_altup_inputs": 3, "laurel_rank": 3}
        sizes |= {"d_per_layer": 7, "vocab_size_per_layer": 97}
    if spec.index_top_k is not None:
        sizes |= {"index_top_k": 3, "n_index_heads": 5, "index_head_dim": 8}
    if spec.index_block_len is not None:
        sizes |= {"n_layers": 5, "index_pattern": "GGI", "index_block_len": 3}
        sizes |= {"index_top_blocks": 2, "n_index_heads": 2, "index_head_dim": 8}
    if spec.n_shared_blocks is not None:
        # three uses of the pattern's, of two blocks where there are several
        sizes |= {"n_layers": 20, "n_shared_blocks": min(spec.n_shared_blocks, 2)}
    sizes |= _recurrent(spec)
    if spec.n_shared_blocks is not None:  # more uses than blocks
        sizes |= {"mixer_pattern": "RSSRS", "adapter_rank": spec.adapter_rank and 3}
    if spec.d_ff is not None:
        sizes["d_ff"] = 17
    if spec.is_moe:
        sizes |= {"n_experts": 7, "top_k": 3, "d_ff_expert": 29}
        sizes["n_dense_layers"] = min(spec.n_dense_layers, 2)
        if spec.n_groups is not None:
            sizes |= {"n_experts": 14, "n_groups": 7, "top_groups": 3}
        if spec.n_zero_experts:
            sizes["n_zero_experts"] = 5
        if BESIDE in spec.ffn_pattern:
            sizes["n_layers"] = 4  # the last one adds what experts of the one before it gave
        if spec.n_shared_experts:
            sizes |= {"n_shared_experts": 2, "d_ff_shared": 31}
    for name, size in (
        ("n_positions", 37),
        ("n_query_positions", 41),
        ("n_token_types", 3),
        ("n_buckets", 8),
        ("max_distance", 20),
    ):
        if getattr(spec, name):
            sizes[name] = size
    return spec.replace(**sizes)


# figures that are said by role as well
ROLES_OF = {
    "params": "by_role",
    "active_params": "active_by_role",
    "matmul_flops": "matmul_flops_by_role",
    "causal_matmul_flops": "causal_matmul_flops_by_role",
    "decode_matmul_flops": "decode_matmul_flops_by_role",
    "mtp_params": "mtp_by_role",
    "mtp_matmul_flops": "mtp_matmul_flops_by_role",
}


def assert_full(witness: Witness, silent: set[str], *, predicts: bool = False) -> None:
    """It has an opinion on all but `silent`, and each figure is the sum of its roles.

    Of prediction modules where the model `predicts` with some, and nowhere else.
    """
    none = {name for name, figure in witness.figures.items() if figure is None}
    assert none == silent | (set() if predicts else {*PREDICTED})
    for name, roles in ROLES_OF.items():
        parts, figure = witness.parts[roles], witness.figures[name]
        assert (parts is None) == (figure is None) == (name in none), (witness.name, name)
        if parts is not None:
            assert sum(parts.values()) == figure and len([n for n in parts.values() if n]) > 1


def _recurrent(spec: ModelSpec) -> dict[str, Any]:
    """Sizes of a mixer with a state; chunks are shorter than the workload."""
    sizes: dict[str, Any] = {
        "none": {},
        "mamba": {"d_ssm": 11, "ssm_state_dim": 5, "dt_rank": 3, "conv_kernel": 4},
        "mamba2": {
            "n_ssm_heads": 6,
            "ssm_head_dim": 5,
            "ssm_state_dim": 7,
            "ssm_chunk_size": 4,
            "n_ssm_groups": 1 if spec.n_ssm_groups == 1 else 3,
            "conv_kernel": 3,
        },
        "gated_delta": {
            "n_linear_k_heads": 3,
            "n_linear_v_heads": 6,
            "linear_k_head_dim": 7,
            "linear_v_head_dim": 5,
            "linear_chunk_size": 4,
            "conv_kernel": 3,
        },
        "kimi_delta": {
            "n_linear_heads": 3,
            "linear_head_dim": 7,
            "linear_chunk_size": 4,
            "conv_kernel": 3,
        },
        "mlstm": {
            "n_linear_heads": 3,
            "linear_k_head_dim": 5,
            "linear_v_head_dim": 7,
            "linear_chunk_size": 4,
        },
        "lightning": {"n_linear_heads": 3, "linear_head_dim": 7, "linear_chunk_size": 4},
        "short_conv": {"conv_kernel": 4},
        "rg_lru": {"lru_width": 15, "n_lru_blocks": 5, "conv_kernel": 3},
    }[spec.recurrent]
    return sizes
