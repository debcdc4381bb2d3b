"""Every rule of a valid model: each one triggers, says what to do, and nothing else escapes."""

from __future__ import annotations

import ast
import json
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import one_line
from helpers.small_specs import COMPRESSED, DENSE, MLA, MOE, refusal
from hypothesis import given
from hypothesis import strategies as st

import metacount.spec
from metacount.errors import SpecError
from metacount.spec import FIELDS, ModelSpec, Workload
from metacount.spec.attention import Attention, Window
from metacount.spec.field import Field, altered
from metacount.spec.model import ROOT, fields_of
from metacount.spec.position import QueryGrowth, Rope, RopeScaling
from metacount.spec.stack import Encoder, Norms, Stack

ENCODER = DENSE | {"kind": "encoder", "norm": "layernorm", "position": "learned", "n_positions": 19}
BOTH = DENSE | {"kind": "encoder-decoder", "n_encoder_layers": 2, "position": "t5", "n_buckets": 8}
BOTH |= {"max_distance": 23}
BASES = {"dense": DENSE, "moe": MOE, "mla": MLA, "encoder": ENCODER, "both": BOTH}

NEAR = DENSE | {"window": 5}
BLOCKS = {"index_block_len": 4, "index_top_blocks": 3, "index_local_blocks": 1, "n_index_heads": 2}
BLOCKS |= {"index_head_dim": 10}
INDEX = {"index_top_k": 2, "n_index_heads": 3, "index_head_dim": 8}
GRIFFIN = {"recurrent": "rg_lru", "mixer_pattern": "RA", "conv_kernel": 4, "lru_width": 6}
GRIFFIN |= {"n_lru_blocks": 3}
GROUPS = {"n_groups": 4, "top_groups": 2}
WIDE = 2**24


def altered_stacks(**changes: Any) -> ModelSpec:
    """An encoder-decoder whose decoder alone has other heads."""
    spec = ModelSpec.from_dict(BOTH)
    assert spec.encoder is not None and spec.decoder is not None
    decoder = altered(spec.decoder, attention=altered(spec.decoder.attention, **changes))
    return ModelSpec(
        kind=spec.kind,
        d_model=spec.d_model,
        embedding=spec.embedding,
        head=spec.head,
        positions=spec.positions,
        encoder=spec.encoder,
        decoder=decoder,
    )


DELTA = DENSE | {"recurrent": "gated_delta", "mixer_pattern": "RA", "conv_kernel": 4}
DELTA |= {"linear_chunk_size": 5, "n_linear_k_heads": 3, "n_linear_v_heads": 6}
DELTA |= {"linear_k_head_dim": 7, "linear_v_head_dim": 5}
STATE_SPACE = DENSE | {"recurrent": "mamba2", "mixer_pattern": "RA", "conv_kernel": 4}
STATE_SPACE |= {"n_ssm_heads": 6, "ssm_head_dim": 4, "n_ssm_groups": 2, "ssm_chunk_size": 5}
STATE_SPACE |= {"ssm_state_dim": 3}
OF_STATE_SPACE = sorted(STATE_SPACE.keys() - DENSE.keys() - {"recurrent", "mixer_pattern"})
SHARED = STATE_SPACE | {"mixer_pattern": "RS", "ffn_pattern": "N", "n_shared_blocks": 1}
SHARED |= {"adapter_rank": 2}
COPIES = DENSE | {"n_layers": 3, "window": 3, "window_pattern": "GL", "n_kv_shared_layers": 1}
COPIES |= {"n_altup_inputs": 2, "laurel_rank": 3, "d_per_layer": 4, "vocab_size_per_layer": 7}
MLSTM = {
    name: DELTA[name] for name in DELTA if name != "conv_kernel" and "_linear_" not in name
} | {"recurrent": "mlstm"}
MLSTM |= {"n_linear_heads": 3}
FFN_ALONE = {
    **{name: value for name, value in DENSE.items() if name not in ("n_heads", "n_kv_heads",
        "head_dim")},
    "attention": "none",
    "mixer_pattern": "N",
    "position": "none",
}  # fmt: skip

# base, what is changed, and the message's beginning and remedy
YARN = {"kind": "yarn", "factor": 4.0, "n_trained": 32, "beta_fast": 8.0, "truncate": False}
YARN |= {"attention_factor": 1.5}
LONG = {"kind": "longrope", "n_trained": 32, "short_factors": [1.0, 1.5, 2.0, 2.5, 3.0]}
LONG |= {"long_factors": [2.0, 3.0, 4.0, 5.0, 6.0]}
LLAMA3 = {"kind": "llama3", "factor": 8.0, "n_trained": 32, "low_freq_factor": 1.0}
LLAMA3 |= {"high_freq_factor": 4.0}
GROWTH: dict[str, Any] = {"weight": 0.1, "step": 16.0, "shift": 1, "nope_only": True}


def scaling(**values: Any) -> dict[str, Any]:
    return {"rope_scaling": values}


RULES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (DENSE, {"hidden_size": 13}, "hidden_size is not a field of a model: got 13; see"),
    (DENSE, {"": 13}, "'' is not a field of a model: got 13; see"),
    (DENSE, {"d_modle": 13}, "d_modle is not a field of a model: got 13; did you mean d_model"),
    (DENSE, {"d_model": "13"}, "d_model must be a whole number: got '13'; choose 1 to 16777216"),
    (DENSE, {"d_model": 13.0}, "d_model must be a whole number: got 13.0; "),
    (DENSE, {"d_model": None}, "d_model must be a whole number: got None; "),
    (DENSE, {"d_model": 0}, "d_model must be at least 1: got 0; choose 1 to 16777216"),
    (DENSE, {"n_token_types": -1}, "n_token_types must be at least 0: got -1; choose 0 to "),
    (DENSE, {"n_layers": 100_001}, "n_layers must be at most 100000: got 100001; choose 1 to "),
    (DENSE, {"kind": "decodre"}, "kind is unknown: got 'decodre'; choose one of decoder, encoder"),
    (DENSE, {"norm": []}, "norm is unknown: got []; choose one of layernorm, rmsnorm"),
    (DENSE, {"norm_eps": 0}, "norm_eps must be a positive number: got 0; choose one below 1e12"),
    (DENSE, {"norm_eps": float("nan")}, "norm_eps must be a positive number: got nan; "),
    (DENSE, {"window": 5, "window_pattern": "LX"}, "window_pattern must be letters L (windowed)"),
    (DENSE, {"gated": 1}, "gated must be true or false: got 1; choose true or false"),
    # the two ends
    (BOTH, {"n_encoder_layers": 0}, "n_encoder_layers is needed by an encoder-decoder: got 0; "),
    (DENSE, {"n_encoder_layers": 2}, "n_encoder_layers has no meaning in a model of kind decoder"),
    (DENSE, {"vocab_size": None, "tie_embeddings": True},
     "tie_embeddings has no meaning without vocab_size: got True; leave tie_embeddings out"),
    (DENSE, {"has_head": False, "head_bias": True}, "head_bias has no meaning without a head: got"),
    (DENSE, {"pooler": True}, "pooler belongs to an encoder: got True; leave pooler out"),
    # attention
    (DENSE, {"head_dim": None}, "head_dim is needed by attention gqa: got None; set head_dim"),
    (DENSE, {"kv_lora_rank": 5}, "kv_lora_rank has no meaning with attention gqa: got 5; leave kv"),
    (DENSE, {"n_kv_heads": 7}, "n_kv_heads must be at most n_heads = 6: got 7; choose 1 to 6"),
    (DENSE, {"n_kv_heads": 4}, "n_kv_heads must divide n_heads: 6 % 4 = 2: got 4; choose 1, 2, 3,"),
    (DENSE, {"n_heads": 5040, "n_kv_heads": 11},
     "n_kv_heads must divide n_heads: 5040 % 11 = 2: got 11; choose 1, 2, 3, 4, 5, 6, 7, 8, 9, 10,"
     " 12, 14, ..."),
    (MLA, {"kv_lora_rank": None}, "kv_lora_rank is needed by attention mla: got None; set kv_lora"),
    (MLA, {"head_dim": 10}, "head_dim has no meaning with attention mla: got 10; leave head_dim"),
    (MLA, {"position": "alibi"}, "attention mla needs a decoder with position rope or none: "),
    (MLA, {"kind": "encoder"}, "attention mla needs a decoder with position rope or none: "),
    (MLA, {"position": "none", "index_top_k": 3, "n_index_heads": 2, "index_head_dim": 4},
     "index_top_k belongs to an indexer, which needs position rope: got 3; choose position rope"),
    (MLA, {"rotary_dim": 2}, "rotary_dim has no meaning with attention mla: got 2; leave rotary_d"),
    (MLA, {"qk_rope_head_dim": 3}, "qk_rope_head_dim must be even: got 3; choose 4"),
    ({**MLA, **INDEX}, {"q_lora_rank": None}, "q_lora_rank is needed by an indexer"),
    ({**MLA, **INDEX}, {"index_head_dim": 3}, "index_head_dim must be at least qk_rope_head_dim"),
    (MLA, {**INDEX, "index_sharing": "SI"},
     "index_sharing must begin with I: no layer before the first has chosen: got 'SI'; put"),
    (MLA, {"index_head_dim": 8}, "index_head_dim has no meaning without index_top_k"),
    # an indexer of blocks
    (DENSE, {**BLOCKS, "index_local_blocks": 4}, "index_local_blocks must be at most index_top_bl"),
    (DENSE, {**BLOCKS, "index_top_blocks": None}, "index_top_blocks is needed by a block indexer"),
    (DENSE, {**BLOCKS, "n_index_heads": 4}, "n_index_heads must divide n_heads: 6 % 4 = 2: got 4"),
    (DENSE, {**BLOCKS, "n_index_heads": 12}, "n_index_heads must be at most n_heads = 6: got 12"),
    (DENSE, {**BLOCKS, "index_head_dim": 2}, "index_head_dim must be at least the 10 values of a"),
    (DENSE, {**BLOCKS, "index_pattern": "GL"}, "index_pattern must be letters I (with a block ind"),
    (DENSE, {**BLOCKS, "index_pattern": "GGGGI"}, "index_pattern leaves no layer to the indexer:"),
    (DENSE, {**BLOCKS, "window": 4}, "window is not defined with a block indexer: got 4; leave w"),
    (DENSE, {**BLOCKS, "nope_every": 2}, "nope_every is not defined with a block indexer: got 2"),
    (DENSE, {**BLOCKS, "n_mtp_layers": 1}, "n_mtp_layers is not defined with a block indexer: "),
    (DENSE, {**BLOCKS, "n_kv_shared_layers": 1}, "n_kv_shared_layers is not defined with a block "),
    (DENSE, {**BLOCKS, "kind": "encoder"}, "kind is not defined with a block indexer: got 'enc"),
    (DENSE, {**BLOCKS, "position": "none"}, "index_block_len belongs to a block indexer, which ne"),
    (DENSE, {"index_pattern": "GI"}, "index_pattern has no meaning without index_block_len: got"),
    ({**DENSE, **GRIFFIN}, {"n_lru_blocks": 4}, "n_lru_blocks must divide lru_width: 6 % 4 = 2"),
    # windows
    (DENSE, {"window_pattern": "LG"}, "window_pattern has no meaning without a window: got 'LG'; "),
    (DENSE, {"window": 1}, "window must be at least 2 (a token and one before it): got 1; choose"),
    (DENSE, {"kind": "prefix-decoder", "window": 5}, "window is not defined for a prefix-decoder"),
    (ENCODER, {"window": 5, "window_kind": "chunked"}, "window_kind chunked needs a decoder: got"),
    (BOTH, {"window": 5}, "window is not defined for an encoder-decoder: got 5; leave window out"),
    # heads of layers with a window alone
    (DENSE, {"n_heads_windowed": 4}, "n_heads_windowed has no meaning without a window: got 4"),
    (NEAR, {"n_heads_windowed": 5}, "n_kv_heads must divide n_heads_windowed: 5 % 2 = 1: got 2; c"),
    (NEAR, {"n_kv_heads_windowed": 4}, "n_kv_heads_windowed must divide n_heads: 6 % 4 = 2: got 4"),
    (NEAR, {"head_dim_windowed": 5}, "head_dim_windowed must be even for RoPE: got 5; choose 6, o"),
    (NEAR, {"head_dim_windowed": 6, "rotary_dim": 8},
     "rotary_dim must be at most head_dim_windowed = 6: got 8; choose 2 to 6"),
    (NEAR, {"rope_theta_windowed": 7.0, "rotary_dim_windowed": 12},
     "rotary_dim_windowed must be at most head_dim = 10: got 12; choose 2 to 10"),
    (NEAR, {"sinks_windowed": True, "attention_sinks": True},
     "sinks_windowed has no meaning beside attention_sinks, which all layers have: got True; le"),
    (NEAR, {"head_dim_windowed": 8, "nope_every": 2},
     "nope_every of a model with head_dim_windowed is left out: got 2; leave nope_every out, or"),
    (NEAR, {"values_of_keys": True, "kind": "encoder"},
     "kind of a model with values_of_keys is decoder: got 'encoder'; choose decoder, or leave val"),
    (NEAR, {"values_of_keys": True, "value_head_dim": 4},
     "value_head_dim has no meaning with values_of_keys, which makes them as wide as keys: got 4"),
    (DENSE, {"output_gate": True, "head_gate": "sigmoid"},
     "head_gate is not defined beside output_gate: got 'sigmoid'; choose none"),
    (MOE, {"scaled_router": True},
     "scaled_router belongs to experts beside a feed-forward: got True; write B for them in ffn_p"),
    (MOE, {"selection_bias_param": True},
     "selection_bias_param has no meaning without selection_bias: got True; leave it out"),
    # feed-forward and experts
    (DENSE, {"activation": "xielu", "gated": True}, "activation xielu is no gated form"),
    (MOE, {"activation": "xielu", "gated": False}, "activation xielu is not defined for experts"),
    (DENSE, {"activation": "clamped_swiglu", "gated": False}, "activation clamped_swiglu is a gat"),
    (DENSE, {"activation": "identity", "gated": False}, "activation identity without a gate is on"),
    (DENSE, {"activation": "gelu", "swish_beta": 2}, "swish_beta belongs to activation silu: got"),
    (DENSE, {"top_k": 2}, "top_k has no meaning without n_experts: got 2; leave top_k out"),
    (DENSE, {"d_ff": None}, "d_ff is needed by a dense feed-forward: got None; set d_ff"),
    (MOE, {"top_k": None}, "top_k is needed with n_experts: got None; set top_k"),
    (MOE, {"top_k": 13}, "top_k must be at most n_experts = 12: got 13; choose 1 to 12"),
    (MOE, {"d_ff_shared": 7}, "d_ff_shared has no meaning without shared experts: got 7; leave d_"),
    (MOE, {"n_groups": 4}, "top_groups is needed by group-limited routing: got None; set top_grou"),
    (MOE, {"group_score": "max"}, "group_score has no meaning without groups of experts: got 'max"),
    (MOE, {"n_groups": 5, "top_groups": 2}, "n_groups must divide n_experts: 12 % 5 = 2: got 5; "),
    (MOE, {"n_groups": 4, "top_groups": 5}, "top_groups must be at most n_groups = 4: got 5; "),
    (MOE, {**GROUPS, "top_k": 7}, "top_k must be at most the 6 experts of the chosen groups: got"),
    (MOE, {"n_groups": 12, "top_groups": 2}, "group_score top2_sum needs groups of two experts or"),
    (MOE, {"n_dense_layers": 3, "d_ff": 17}, "n_dense_layers and moe_every leave no layer to the"),
    (MOE, {"moe_every": 4}, "n_dense_layers and moe_every leave no layer to the experts: got 1; "),
    (MOE, {"n_dense_layers": 0}, "d_ff has no meaning when every layer is MoE: got 17; leave d_ff"),
    (MOE, {"d_ff": None}, "d_ff is needed by the dense layers: got None; set d_ff"),
    # norms
    (DENSE, {"norm_bias": True}, "norm_bias has no meaning with rmsnorm: got True; leave norm_bia"),
    (DENSE, {"norm_affine": False, "norm_unit_offset": True}, "norm_unit_offset has no meaning wi"),
    (BOTH, {"norm_placement": "parallel"}, "norm_placement parallel is not defined with cross-att"),
    # positions
    (DENSE, {"n_positions": 19}, "n_positions has no meaning with position rope: got 19; leave n_"),
    (ENCODER, {"rotary_dim": 4}, "rotary_dim has no meaning with position learned: got 4; leave r"),
    (ENCODER, {"n_positions": None}, "n_positions is needed by a learned position table: got None"),
    (ENCODER, {"n_query_positions": 3}, "n_query_positions belongs to a decoder: got 3; leave n"),
    (BOTH, {"max_distance": None}, "max_distance is needed by T5's relative buckets: got None; se"),
    (BOTH, {"n_buckets": 6}, "n_buckets must be a multiple of 4: got 6; choose 32"),
    (BOTH, {"max_distance": 8}, "max_distance must be larger than n_buckets: got 8; choose 128"),
    (ENCODER, {"position": "transformer_xl", "n_positions": None},
     "position transformer_xl needs a decoder: got 'transformer_xl'; choose t5"),
    (DENSE, {"rotary_dim": 12}, "rotary_dim must be at most head_dim = 10: got 12; choose 2 to 10"),
    (DENSE, {"rotary_dim": 5}, "rotary_dim must be even for RoPE: got 5; choose 6, or an even rot"),
    (DENSE, {"head_dim": 5}, "head_dim must be even for RoPE: got 5; choose 6, or an even rotary_"),
    # what came with the well-known families
    (MOE, {"moe_offset": 1}, "moe_offset must be below moe_every = 1: got 1; choose 0 to 0"),
    (BOTH, {"qk_norm": "l2"}, "qk_norm l2 norms what RoPE rotated: got 'l2'; choose head, or pos"),
    (DENSE, {"position": "transformer_xl", "attention_softcap": 5.0},
     "attention_softcap is not defined with position transformer_xl: got 5.0; leave a"),
    (ENCODER, {"d_embedding": 7}, "d_embedding with a head needs head_transform, which leads bac"),
    (DENSE, {"d_embedding": 7}, "d_embedding belongs to an encoder: got 7; leave d_embedding out"),
    (DENSE, {"head_transform_bias": True}, "head_transform_bias has no meaning without head_tra"),
    (ENCODER, {"position_offset": 19}, "position_offset must be below n_positions = 19: got 19; c"),
    (MOE, {"mixer_jitter": 0.01, "router": "sigmoid"},
     "router has no meaning with mixer_jitter: got 'sigmoid'; leave router out"),
    (DENSE, {"rope_theta_windowed": 5.0}, "rope_theta_windowed has no meaning without a window"),
    (ENCODER, {"norm_unit_offset": True}, "norm_unit_offset belongs to rmsnorm: got True; leave n"),
    (DENSE, {"first_norm": False, "norm_placement": "sandwich"},
     "first_norm can only be left out of placement pre: got False; leave first_norm out"),
    # layers that differ
    (DENSE, {"mixer_pattern": "AX"}, "mixer_pattern must be letters A (attention), R (recurrent),"),
    (DENSE, {"mixer_pattern": "RA"}, "recurrent is needed by mixer_pattern RA: got None; set "),
    (DENSE, {"mixer_pattern": "N"}, "mixer_pattern has no layer for attention: got 'N'; put one"),
    (DENSE, {"ffn_pattern": "FE"}, "n_experts is needed by ffn_pattern FE: got None; set n_exp"),
    (ENCODER, {"ffn_pattern": "FN"}, "ffn_pattern of layers that differ needs a decoder: got "),
    (DENSE, {"ffn_pattern": "FN", "norm_placement": "post"},
     "norm_placement is not defined for layers that differ in their mixers: got 'post'; cho"),
    (DENSE, {"mixer_pattern": "A" * 330 + "N", "ffn_pattern": "F" * 336 + "N"},
     "mixer_pattern and the other patterns repeat together only after 111547 layers: got"),
    (DENSE, {"mixer_pattern": "AN", "ffn_pattern": "FN"},
     "ffn_pattern leaves a layer with neither mixer nor feed-forward: got 'FN'; put F in"),
    (MOE, {"ffn_pattern": "EF", "moe_every": 2, "n_dense_layers": 0},
     "moe_every has no meaning where ffn_pattern names the layers of experts: got 2; leave it"),
    (MOE, {"ffn_pattern": "FN"}, "ffn_pattern with N must name the layers of experts: got 'FN'; "),
    (MOE, {"ffn_pattern": "BFE", "n_dense_layers": 0},
     "ffn_pattern has experts beside a feed-forward and in the place of one: got 'BFE'; choose"),
    (MOE, {"ffn_pattern": "BF", "n_dense_layers": 0}, "ffn_pattern leaves nobody to add what the"),
    (MOE, {"ffn_pattern": "BF", "n_dense_layers": 0, "n_layers": 4, "norm_placement": "sandwich"},
     "norm_placement of experts beside a feed-forward is pre, or sandwich with scaled_router: got"),
    (MOE, {"ffn_pattern": "BF", "n_dense_layers": 0, "n_layers": 4, "d_ff": None},
     "d_ff is needed by the dense layers: got None; set d_ff"),
    (MOE, {"ffn_pattern": "BF", "n_layers": 4}, "moe_every has no meaning where ffn_pattern names"),
    (DENSE, {"ffn_pattern": "BF", "n_layers": 4}, "n_experts is needed by ffn_pattern BF: got Non"),
    # zero experts
    (MOE, {"zero_expert_rows": True}, "zero_expert_rows has no meaning without zero experts: got"),
    (MOE, {**GROUPS, "n_zero_experts": 3}, "n_zero_experts is not defined for experts in groups:"),
    (DENSE, {"activation": "gelu", "gated": False, "gate_scale": 0.5},
     "gate_scale belongs to a gated feed-forward: got 0.5; set gated, or leave gate_scale out"),
    (MOE, {"ffn_scale": 0.5}, "ffn_scale has no meaning for experts: got 0.5; leave it out"),
    (MOE, {"gate_scale": 0.5}, "gate_scale has no meaning for experts: got 0.5; leave it out"),
    (DELTA, {"n_linear_k_heads": 8}, "n_linear_k_heads must be at most n_linear_v_heads = 6: got"),
    (DELTA, {"n_linear_k_heads": 4}, "n_linear_k_heads must divide n_linear_v_heads: 6 % 4 = 2: "),
    (DELTA, {"mixer_pattern": "A"}, "mixer_pattern has no layer for recurrent: got 'A'; put one"),
    (STATE_SPACE, {"n_ssm_groups": 8}, "n_ssm_groups must be at most n_ssm_heads = 6: got 8; "),
    (STATE_SPACE, {"n_ssm_groups": 4}, "n_ssm_groups must divide n_ssm_heads: 6 % 4 = 2: got 4; "),
    (STATE_SPACE, {"ssm_chunk_size": 0}, "ssm_chunk_size must be at least 2: got 0; choose 2 to "),
    (STATE_SPACE, {"ssm_state_dim": 1}, "ssm_state_dim must be at least 2 in Mamba-2: got 1; choo"),
    (STATE_SPACE, {"ssm_dt_min": 2.0, "ssm_dt_max": 1.0},
     "ssm_dt_min must be at most ssm_dt_max = 1.0: got 2.0; choose a smaller one"),
    (STATE_SPACE, {"ssm_scales": {"gate": -1.0}}, "ssm_scales.gate must be a positive number: got"),
    # multi-token prediction
    (DENSE, {"n_mtp_layers": 1, "norm_placement": "post"},
     "norm_placement of a model with n_mtp_layers is pre: got 'post'; choose pre, or leave n_mtp"),
    (DENSE, {"n_mtp_layers": 1, "position": "alibi"}, "position of a model with n_mtp_layers is r"),
    (DENSE, {"n_mtp_layers": 1, "kind": "encoder"}, "kind of a model with n_mtp_layers is decoder"),
    (DENSE, {"n_mtp_layers": 1, "has_head": False}, "n_mtp_layers needs an embedding and a head,"),
    (FFN_ALONE, {"n_mtp_layers": 2}, "n_mtp_layers needs attention: a prediction module has a lay"),
    (SHARED, {"n_mtp_layers": 1}, "n_mtp_layers is not defined for a model with shared blocks: go"),
    (DENSE, {"mtp_dense": True}, "mtp_dense has no meaning without n_mtp_layers: got True; leave"),
    (DENSE, {"n_mtp_layers": 1, "mtp_dense": True}, "mtp_dense has no meaning without n_experts:"),
    (MOE, {"n_mtp_layers": 1, "ffn_pattern": "BF", "n_dense_layers": 0, "n_layers": 4},
     "mtp_dense must be true where experts stand beside a feed-forward (B in ffn_pattern): got"),
    # copies of the stream, keys and values of other layers, feed-forwards that differ
    (COMPRESSED, {"window": None}, "window is needed by attention compressed: got None; set w"),
    (COMPRESSED, {"window_pattern": "LG"}, "window slides in every layer of attention compressed"),
    (COMPRESSED, {"heavy_ratio": None}, "heavy_ratio is needed by H in compression_pattern: got"),
    (COMPRESSED, {"compression_pattern": "LH"}, "sparse_ratio has no meaning without S in compre"),
    (COMPRESSED, {"q_lora_rank": None}, "q_lora_rank is needed by attention compressed: got None"),
    (COMPRESSED, {"index_sharing": "IS"}, "index_sharing is not defined with attention compresse"),
    (COMPRESSED, {"o_groups": 4}, "o_groups must divide n_heads: 6 % 4 = 2: got 4; choose 1, 2,"),
    (COMPRESSED, {"index_head_dim": 4}, "rotary_dim must be at most index_head_dim = 4: got 6; c"),
    (COMPRESSED, {"nope_every": 4}, "nope_every of a model with compression_pattern is left out:"),
    (COMPRESSED, {"n_hash_layers": 6}, "n_hash_layers must be at most the number of MoE layers ="),
    (COMPRESSED, {"moe_every": 2}, "moe_every is not defined with n_hash_layers: got 2; "),
    (COMPRESSED, {"router": "softmax"}, "router has no scores for a table's choice: got 'softmax'"),
    (COMPRESSED, {"vocab_size": None, "has_head": False}, "n_hash_layers needs an embedding: each"),
    (COMPRESSED, {"norm_placement": "sandwich"}, "norm_placement of a model with n_streams is pr"),
    (COMPRESSED, {"activation": "clamped_swiglu"}, "gate_limit belongs to a gated feed-forward w"),
    (COPIES, {"altup_active": 2}, "altup_active must be below n_altup_inputs = 2: copies are numb"),
    (COPIES, {"n_altup_inputs": None, "altup_active": 1},
     "altup_active has no meaning without n_altup_inputs: got 1; leave altup_active out"),
    (COPIES, {"norm_placement": "parallel"}, "norm_placement of a model with n_altup_inputs is s"),
    (COPIES, {"mixer_pattern": "AN"}, "mixer_pattern of a model with n_altup_inputs is A: got 'AN"),
    (COPIES, {"vocab_size_per_layer": None}, "vocab_size_per_layer is needed by d_per_layer: got"),
    (COPIES, {"d_per_layer": None}, "vocab_size_per_layer has no meaning without d_per_layer"),
    (COPIES, {"vocab_size": None, "tie_embeddings": False},
     "d_per_layer needs an embedding: each layer looks up the token: got 4; set vocab_size, or"),
    (COPIES, {"d_per_layer": 2**24, "vocab_size_per_layer": 2**30, "n_layers": 100_000},
     "d_per_layer makes one tensor of more than 2^62 values: got 16777216; lower d_per_layer"),
    (COPIES, {"n_kv_shared_layers": 3}, "n_kv_shared_layers must be below n_layers = 3: one has t"),
    (COPIES, {"n_kv_shared_layers": 2}, "n_kv_shared_layers leaves 1 blocks that see a window and"),
    (COPIES, {"n_mtp_layers": 1}, "n_mtp_layers of a model with n_altup_inputs is left out: got"),
    (DENSE, {"n_kv_shared_layers": 1, "n_layers": 2, "nope_every": 2},
     "nope_every of a model with n_kv_shared_layers is left out: got 2; leave nope_every out, or"),
    (DENSE, {"d_ff_second": 5}, "d_ff_pattern has no layer for d_ff_second: got 'M'; put W in, or"),
    (DENSE, {"d_ff_second": 5, "d_ff_pattern": "MW", "n_mtp_layers": 1},
     "n_mtp_layers of a model with d_ff_second is left out: got 1; leave n_mtp_layers out, or lea"),
    (DENSE, {"d_ff_pattern": "MW"}, "d_ff_second is needed by d_ff_pattern MW: got None; set d"),
    (DENSE, {"sparsity_pattern": "TF"}, "sparsity_pattern has no meaning without activation_spars"),
    (DENSE, {"activation_sparsity": 1.0}, "activation_sparsity must be below 1: got 1.0; choose o"),
    (DENSE, {"activation_sparsity": 0.5, "gated": False, "activation": "relu"},
     "activation_sparsity belongs to a gated feed-forward: got 0.5; set gated, or leave activat"),
    (DENSE, {"activation_sparsity": 0.5, "sparsity_pattern": "F", "gated": True},
     "sparsity_pattern has no layer for activation_sparsity: got 'F'; put T in, or leave activ"),
    # blocks that layers share
    (SHARED, {"n_shared_blocks": None, "adapter_rank": None},
     "n_shared_blocks is needed by mixer_pattern RS: got None; set n_shared_blocks, or another"),
    (DENSE, {"adapter_rank": 2}, "adapter_rank has no meaning without n_shared_blocks: got 2; lea"),
    (SHARED, {"mixer_pattern": "RSA"}, "mixer_pattern of a model with shared blocks has letters R"),
    (SHARED, {"ffn_pattern": "FN"}, "ffn_pattern of a model with shared blocks is N: the feed-for"),
    (SHARED, {"activation": None, "gated": None, "d_ff": None},
     "activation is needed by shared blocks: got None; set activation"),
    (SHARED, {"qk_norm": "head"}, "qk_norm is not defined for a model with shared blocks: got 'h"),
    (SHARED, {"window": 3}, "window is not defined for a model with shared blocks: got 3; leave w"),
    (SHARED, {"position": "alibi"}, "position of a model with shared blocks is rope or none: got"),
    (SHARED, {"n_shared_blocks": 2}, "n_shared_blocks must be at most the 1 layers of letter S t"),
    (SHARED, {"mixer_pattern": "RRRRS"}, "n_shared_blocks must be at most the 0 layers of letter"),
    (SHARED, {"adapter_rank": None, "attention_adapters": True},
     "attention_adapters has no meaning without adapter_rank: got True; set adapter_rank, or le"),
    (SHARED, {"recurrent": "none", **dict.fromkeys(OF_STATE_SPACE)},
     "recurrent is needed by mixer_pattern RS: got None; set recurrent, or another mixer_pattern"),
    (SHARED, {"d_model": WIDE, "n_heads": 2**22, "n_kv_heads": 2, "head_dim": 2**16},
     "n_heads makes one tensor of more than 2^62 values: got 4194304; lower n_heads"),
    ({**STATE_SPACE, "mixer_pattern": "R", "ffn_pattern": "N"},
     {"activation": None, "gated": None, "d_ff": None, "head_transform": True},
     "activation is needed by head_transform: got None; set activation"),
    (FFN_ALONE, {"position": "rope"}, "position belongs to attention, which no layer has: got"),
    ({**DENSE, **GRIFFIN, "position": "t5", "n_buckets": 4, "max_distance": 8},
     {"mixer_pattern": "RRRRRA", "n_layers": 5},
     "position belongs to attention, which no layer has: got 't5'; choose none"),
    # sizes that torch cannot count
    (DENSE, {"d_model": WIDE, "n_heads": WIDE, "head_dim": WIDE},
     "n_heads makes one tensor of more than 2^62 values: got 16777216; lower n_heads"),
    (MOE, {"d_model": WIDE, "d_ff_expert": WIDE, "n_experts": 2**14},
     "n_experts makes one tensor of more than 2^62 values: got 16384; lower n_experts"),
    (MOE, {"d_model": WIDE, "d_ff_shared": WIDE, "n_shared_experts": 2**15},
     "n_shared_experts makes one tensor of more than 2^62 values: got 32768; lower n_shared"),
    (MOE, {"d_model": WIDE, "d_ff_expert": WIDE, "n_experts": 2**13, "n_zero_experts": 5,
           "zero_expert_rows": True},
     "n_zero_experts makes one tensor of more than 2^62 values: got 5; lower n_zero_experts"),
    (MLA, {"kv_lora_rank": WIDE, "n_heads": 2**22, "v_head_dim": 2**17},
     "kv_lora_rank makes one tensor of more than 2^62 values: got 16777216; lower kv_lora_rank"),
    (MLSTM, {"linear_chunk_size": 1}, "linear_chunk_size must be at least 2 in an mLSTM: got 1"),
    (DENSE, {"rope_scaling": 4.0}, "rope_scaling must be an object: got 4.0; leave rope_scaling o"),
    (DENSE, scaling(), "rope_scaling.kind is missing: got None; give kind"),
    (DENSE, scaling(kind="ntk"), "rope_scaling.kind is unknown: got 'ntk'; choose one of linear, "),
    (DENSE, scaling(kind="linear"), "rope_scaling.factor is needed by linear: got None; give fac"),
    (DENSE, scaling(kind="linear", factr=2.0), "rope_scaling.factr is not one of its fields: got"),
    (
        DENSE,
        scaling(kind="linear", factor=2.0, n_trained=7),
        "rope_scaling.n_trained has no meaning with linear: got 7; leave it out",
    ),
    (DENSE, scaling(kind="linear", factor="2"), "rope_scaling.factor must be a positive number: g"),
    (DENSE, scaling(kind="linear", factor=0.5), "rope_scaling.factor must be at least 1: got 0.5"),
    (DENSE, scaling(**{**LLAMA3, "n_trained": 1.5}), "rope_scaling.n_trained must be a whole num"),
    (
        DENSE,
        scaling(**{**LLAMA3, "high_freq_factor": 0.5}),
        "rope_scaling.high_freq_factor must be at least low_freq_factor = 1.0: got 0.5; raise it",
    ),
    (DENSE, scaling(**{**LONG, "long_factors": 3.0}),
     "rope_scaling.long_factors must be a list of numbers: got 3.0; give one for each pair"),
    (DENSE, scaling(**{**YARN, "truncate": 1}), "rope_scaling.truncate must be true or false: got"),
    (
        DENSE,
        scaling(**{**LONG, "long_factors": [1.0]}),
        "rope_scaling needs one factor for each of the 5 pairs: got 1; give as many",
    ),
    (
        {**DENSE, "rotary_dim": 2},
        scaling(kind="dynamic", factor=2.0, n_trained=32),
        "rope_scaling dynamic needs more than 2 rotated values: got 2; leave rope_scaling out",
    ),
    (
        {**DENSE, "window": 3, "window_pattern": "LG", "rope_theta_windowed": 1e4},
        {"rope_scaling_windowed": {**LONG, "long_factors": [2.0]}},
        "rope_scaling_windowed needs one factor for each of the 5 pairs: got 1; give as many",
    ),
    (DENSE, {"rope_scaling_windowed": YARN}, "rope_scaling_windowed has no meaning without rope_t"),
    (DENSE, {"query_growth": {"weight": 0.1}}, "query_growth.step is missing: got None; give step"),
    (DENSE, {"query_growth": {**GROWTH, "weight": 0}}, "query_growth.weight must be a positive nu"),
    (DENSE, {"query_growth": {**GROWTH, "shift": 2}}, "query_growth.shift must be at most 1: got"),
    (DENSE, {"query_growth": {**GROWTH, "nope_only": 1}}, "query_growth.nope_only must be true or"),
    (MLA, {"query_growth": GROWTH}, "query_growth has no meaning with attention mla: got"),
    (
        {**DENSE, "position": "none"},
        {"rope_scaling": YARN},
        "rope_scaling has no meaning with position none: got",
    ),
    (
        DENSE,
        {"query_growth": {**GROWTH, "step": None}},
        "query_growth.step must be a positive number: got None; choose one below 1e12",
    ),
]  # fmt: skip

WORKLOADS: list[tuple[dict[str, Any], str]] = [
    ({"batch_size": 0}, "batch_size must be at least 1: got 0; choose 1 to 1099511627776"),
    ({"seq_len": 2.5}, "seq_len must be a whole number: got 2.5; "),
    ({"seq_len": 2**41}, "seq_len must be at most 1099511627776: got 2199023255552; "),
    ({"prefix_len": -1}, "prefix_len must be at least 0: got -1; "),
    ({"source_len": 0}, "source_len must be at least 1: got 0; "),
    ({"seq_len": 7, "prefix_len": 8}, "prefix_len must be at most seq_len: got 8; choose 0 to 7"),
    ({"dtype": "fp33"}, "dtype is unknown: got 'fp33'; choose one of fp64, fp32, bf16, fp16, fp8"),
    ({"dtype": ["bf16"]}, "dtype is unknown: got ['bf16']; choose one of fp64"),
]


HEADS = {"n_heads": 6, "n_kv_heads": 2, "head_dim": 10}


# a part made by itself, and what it says
PARTS: list[tuple[Callable[..., object], dict[str, Any], str]] = [
    (Attention, {**HEADS, "n_kv_heads": 4}, "n_kv_heads must divide n_heads: 6 % 4 = 2: got 4; "),
    (Attention, {**HEADS, "n_kv_heads": None}, "n_kv_heads must be a whole number: got None; "),
    (Attention, {**HEADS, "window": 7}, "window must be a part (Window): got 7; give one"),
    (Norms, {"kind": "rmsnorm", "bias": True}, "norm_bias has no meaning with rmsnorm: got True"),
    (Rope, {"scaling": 4.0}, "rope_scaling must be an object: got 4.0; leave rope_scaling out"),
    (Window, {"size": 1}, "window must be at least 2 (a token and one before it): got 1; choose"),
    (altered_stacks, {"n_heads": 4}, "n_heads differs between the encoder and the decoder, which"),
]


@pytest.mark.parametrize(("build", "values", "message"), PARTS)
def test_a_rule_of_a_part(
    build: Callable[..., object], values: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match="; ") as caught:
        build(**values)
    assert message in one_line(caught.value)


@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
def test_a_model_is_made_of_its_parts(base: dict[str, Any]) -> None:
    spec = ModelSpec.from_dict(base)
    made = ModelSpec(
        kind=spec.kind,
        d_model=spec.d_model,
        embedding=spec.embedding,
        head=spec.head,
        pooler=spec.pooler,
        positions=spec.positions,
        encoder=spec.encoder,
        decoder=spec.decoder,
    )
    assert made == spec and made.to_dict() == spec.to_dict()
    assert (spec.encoder is None) == (base["kind"] == "decoder")


@pytest.mark.parametrize(("base", "changes", "message"), RULES)
def test_a_rule(base: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    assert str(refusal(base, changes)).startswith(message)


@pytest.mark.parametrize(("changes", "message"), WORKLOADS)
def test_a_rule_of_the_workload(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match="; ") as caught:
        Workload(**changes)
    assert message in one_line(caught.value)


@pytest.mark.parametrize("name", ["kind", "d_model", "vocab_size", "position", "gated"])
def test_a_missing_field(name: str) -> None:
    with pytest.raises(SpecError, match=name):
        ModelSpec.from_dict({k: v for k, v in DENSE.items() if k != name})


FOLDER = Path(metacount.spec.__file__).parent
APART = {"legend.py"}  # tried in test_legend.py


def stack(build: Callable[..., object], values: dict[str, Any]) -> set[tuple[str, int]]:
    """The lines of the package of specs on the stack of a refusal."""
    with pytest.raises(SpecError, match="; ") as caught:
        build(values) if build == ModelSpec.from_dict else build(**values)
    frames = traceback.extract_tb(caught.tb)
    return {
        (Path(f.filename).name, f.lineno or 0) for f in frames if Path(f.filename).parent == FOLDER
    }


def test_no_rule_of_the_package_is_left_untried() -> None:
    """Every `raise` and every call of a rule in spec/ is on some refusal's stack."""
    seen = stack(ModelSpec.from_dict, {})
    for base, changes, _ in RULES:
        seen |= stack(ModelSpec.from_dict, {**base, **changes})
    for changes, _ in WORKLOADS:
        seen |= stack(Workload, changes)
    for build, values, _ in PARTS:
        seen |= stack(build, values)
    helpers = {"at_most", "below", "check_flag", "check_int", "check_number", "check_plain"}
    helpers |= {"divides", "refuse", "_check_beside", "_check_pairs", "_fits_a_tensor"}
    untried = []
    for file in sorted(FOLDER.glob("*.py")):
        tried = {line for name, line in seen if name == file.name}
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Raise(exc=ast.Call(func=ast.Name(id="SpecError"))):
                    pass
                case ast.Call(func=ast.Name(id=name)) if name in helpers:
                    pass
                case _:
                    continue
            lines = set(range(node.lineno, (node.end_lineno or 0) + 1))
            if file.name not in APART and not tried & lines:
                untried.append((file.name, node.lineno, ast.unparse(node)))
    assert not untried, "\n".join(map(str, untried))


def test_each_field_is_declared_once_and_says_what_it_is() -> None:
    """One declaration for each flat name: the same object wherever a part is reached from."""
    declared: dict[str, set[int]] = {}
    for kind in (Stack, Encoder):
        for _, field in fields_of(kind):
            declared.setdefault(field.name, set()).add(id(field))
    for place in ROOT.values():
        if isinstance(place, Field):
            declared.setdefault(place.name, set()).add(id(place))
            continue
        for kind in place.kinds.values():
            for _, field in fields_of(kind):
                declared.setdefault(field.name, set()).add(id(field))
        if place.switch is not None:
            declared.setdefault(place.switch.name, set()).add(id(place.switch))
    assert set(declared) == set(FIELDS)
    assert {name for name, found in declared.items() if len(found) > 1} == set()
    for name, field in FIELDS.items():
        assert field.name == name and field.meaning, name
        assert bool(field.letter) == bool(field.unit) == (field.takes == "whole"), name
        assert bool(field.choices) == (field.takes == "choice"), name


@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
def test_the_bases_are_valid_and_come_back(base: dict[str, Any]) -> None:
    spec = ModelSpec.from_dict(base)
    assert {k: v for k, v in spec.to_dict().items() if k in base} == base
    assert ModelSpec.from_dict(spec.to_dict()) == spec == ModelSpec(**base)
    assert spec.replace(d_model=26).to_dict() == {**spec.to_dict(), "d_model": 26}
    with pytest.raises(SpecError, match="d_model"):
        spec.replace(d_model=0)
    with pytest.raises(AttributeError, match=r"frozen|cannot assign"):
        spec.d_model = 7  # type: ignore[misc]


def test_substituted_puts_anything_in_place_of_a_size() -> None:
    spec = ModelSpec.from_dict(DENSE)
    other = spec.substituted(d_model="d", n_layers=0)
    assert (other.d_model, other.n_layers, other.d_ff, spec.d_model) == ("d", 0, 17, 13)
    assert not other.is_moe_layer(0)


WORDS = ["mla", "t5", "encoder", "encoder-decoder", "prefix-decoder", "LG", "learned", "chunked"]
ODD = [10**5000, -(10**5000), 2**62, [], {}, b"", "\n", "x" * 999, 1j, *WORDS]
JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 40), st.integers(), st.floats(), st.text(max_size=9)
) | st.sampled_from(ODD)


@given(
    st.sampled_from(list(BASES.values())),
    st.dictionaries(st.sampled_from(list(FIELDS)) | st.text(), JUNK, max_size=4),
)
def test_junk_is_refused_in_one_line_or_is_a_model(
    base: dict[str, Any], junk: dict[str, Any]
) -> None:
    try:
        spec = ModelSpec.from_dict({**base, **junk})
    except SpecError as error:
        text = str(error)
        assert text.isprintable() and len(text) < 500
        assert error.field and error.remedy
        fields = set(FIELDS)
        assert error.field in fields or error.rule == "is not a field of a model"
    else:
        assert ModelSpec.from_dict(spec.to_dict()) == spec


@given(st.dictionaries(st.sampled_from(list(Workload.__annotations__)), JUNK))
def test_junk_is_no_workload(junk: dict[str, Any]) -> None:
    try:
        assert Workload(**junk).encoder_len >= 1
    except SpecError as error:
        assert str(error).isprintable() and error.field in Workload.__annotations__


@pytest.mark.parametrize("part", [YARN, LONG, LLAMA3])
@pytest.mark.parametrize("base", [DENSE, MOE])
def test_a_part_comes_back_from_plain_data(base: dict[str, Any], part: dict[str, Any]) -> None:
    spec = ModelSpec.from_dict({**base, "rope_scaling": part, "query_growth": GROWTH})
    plain = json.loads(json.dumps(spec.to_dict()))
    assert plain["rope_scaling"] == part
    again = ModelSpec.from_dict(plain)
    assert again == spec
    assert hash(again) == hash(spec)
    given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in part.items()}
    assert again.rope_scaling == RopeScaling(**given)
    assert spec.replace(n_layers=7).query_growth == QueryGrowth(**GROWTH)
    assert spec.substituted(n_layers="N").rope_scaling == spec.rope_scaling
    assert spec.replace(rope_scaling=None).rope_scaling is None
