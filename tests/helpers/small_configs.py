"""A small config of every mapped type, and random ones near it.

Every size is another number, as far as divisibility and kernels allow.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import strategies as st

from metacount.huggingface.config.record import family_of
from metacount.huggingface.module.model import config_class

CLASSES = {
    "bart": "BartForConditionalGeneration",
    "mbart": "MBartForConditionalGeneration",
    "plbart": "PLBartForConditionalGeneration",
}

# What a bare model type lacks to be a model that has a spec.
NEEDED: dict[str, dict[str, Any]] = {
    # else the causal half
    **{key: {"architectures": [name]} for key, name in CLASSES.items()},
    "deepseek_v2": {"num_experts_per_tok": 6},  # null by default
    # null by default
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"], "num_hidden_layers": 4},
    "dots1": {"num_experts_per_tok": 6, "n_routed_experts": 128, "n_shared_experts": 2},  # likewise
    # null by default, and transformers makes no module of it
    **{key: {"head_dim": 128} for key in ("ministral", "hunyuan_v1_dense", "hunyuan_v1_moe")},
    "nemotron": {"num_key_value_heads": 8},
    # by default every fourth layer from the second on has experts, which a spec cannot say
    "switch_transformers": {"num_sparse_encoder_layers": 6, "num_sparse_decoder_layers": 6},
}

SIZES = {
    "num_hidden_layers": 4, "hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 2,
    "intermediate_size": 72, "vocab_size": 101, "pad_token_id": 0,
}  # fmt: skip
# a llama of few sizes; keys and values have as many heads as queries
SMALL_LLAMA = {"model_type": "llama", "hidden_size": 26, "num_hidden_layers": 3, "vocab_size": 101}
SMALL_LLAMA |= {"num_attention_heads": 1, "intermediate_size": 17}
NO_KV = {k: v for k, v in SIZES.items() if k != "num_key_value_heads"}
POSITIONS = {**NO_KV, "max_position_embeddings": 64}
WIDE = {**SIZES, "head_dim": 10}  # heads wider than the model, together
GPT = {"n_layer": 4, "n_embd": 48, "n_head": 4, "vocab_size": 101, "n_positions": 64}
LOCAL = {"num_local_experts": 6, "num_experts_per_tok": 2}
# grouped products run on widths that are multiples of 8 only
QWEN = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
DEEPSEEK = {
    "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
    "n_shared_experts": 2, "first_k_dense_replace": 1,
}  # fmt: skip
BUT_FIRST = {k: v for k, v in DEEPSEEK.items() if k != "first_k_dense_replace"}
MLA = {
    **SIZES, "num_key_value_heads": 6, "q_lora_rank": 22, "kv_lora_rank": 14,
    "qk_nope_head_dim": 10, "qk_rope_head_dim": 6, "v_head_dim": 9,
}  # fmt: skip
DELTA = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 5,
    "linear_value_head_dim": 7, "linear_conv_kernel_dim": 3,
}  # fmt: skip
T5 = {
    "d_model": 48, "d_kv": 7, "d_ff": 68, "num_layers": 4, "num_decoder_layers": 2, "num_heads": 6,
    "vocab_size": 101,
}  # fmt: skip

STATE = {
    **{k: SIZES[k] for k in ("hidden_size", "vocab_size", "pad_token_id")},
    "num_hidden_layers": 3,
    "conv_kernel": 3,
}
HEADS = {
    "mamba_n_heads": 6, "mamba_d_head": "auto", "mamba_n_groups": 2, "mamba_d_state": 7,
    "mamba_chunk_size": 5, "mamba_d_conv": 3,
}  # fmt: skip

BART = {
    "d_model": 48, "encoder_layers": 3, "decoder_layers": 2, "encoder_ffn_dim": 68,
    "encoder_attention_heads": 6, "decoder_attention_heads": 6, "decoder_ffn_dim": 68,
    "vocab_size": 101, "max_position_embeddings": 64,
}  # fmt: skip

HYBRID = ["conv", "full_attention", "conv", "full_attention"]

SMALL: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("llama", "ministral3", "internlm3", "granite", "olmo", "olmo2", "cohere",
                     "stablelm", "phi"), SIZES),
    **dict.fromkeys(("gemma", "glm", "glm4", "seed_oss", "qwen3"), WIDE),
    **dict.fromkeys(("gpt_neox", "persimmon"), NO_KV),
    **{key: {**SIZES, "sliding_window": 9} for key in ("mistral", "phi3", "starcoder2", "cohere2")},
    **{key: {**WIDE, "sliding_window": 9} for key in ("gemma2", "gemma3_text")},
    "cohere2_moe": {**WIDE, "sliding_window": 9, "num_experts": 6, "num_experts_per_tok": 2,
                    "num_shared_experts": 2, "sliding_window_pattern": 2,
                    "shared_expert_combination_strategy": "sum"},
    "gemma3n_text": {**WIDE, "sliding_window": 9, "num_hidden_layers": 7, "num_kv_shared_layers": 3,
                     "layer_types": [*["sliding_attention"] * 2, "full_attention",
                                     *["sliding_attention"] * 2, "full_attention",
                                     "sliding_attention"],
                     "intermediate_size": [72, 72, 72, 40, 40, 40, 40],
                     "activation_sparsity_pattern": [0.9, 0.9, 0.0, 0.0, 0.0, 0.0, 0.0],
                     "altup_num_inputs": 3, "altup_active_idx": 1, "laurel_rank": 11,
                     "hidden_size_per_layer_input": 13, "vocab_size_per_layer_input": 113},
    "gemma4_text": {**WIDE, "sliding_window": 9, "num_hidden_layers": 7, "num_kv_shared_layers": 3,
                    "layer_types": [*["sliding_attention"] * 2, "full_attention",
                                    *["sliding_attention"] * 3, "full_attention"],
                    "head_dim": 8, "global_head_dim": 16, "num_global_key_value_heads": 1,
                    "attention_k_eq_v": True, "use_double_wide_mlp": True,
                    "hidden_size_per_layer_input": 13, "vocab_size_per_layer_input": 113},
    **{key: {**GPT, "rotary_dim": 6} for key in ("gptj", "codegen")},
    **dict.fromkeys(("biogpt", "bert", "roberta"), POSITIONS),
    **{key: {**SIZES, **LOCAL} for key in ("mixtral", "phimoe", "granitemoe")},
    "gpt2": GPT,
    "qwen2": {**SIZES, "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 3},
    "smollm3": {**SIZES, "use_sliding_window": True, "sliding_window": 9},
    "helium": {**SIZES, "num_key_value_heads": 3, "head_dim": 8},
    "gpt_neo": {"num_layers": 4, "hidden_size": 48, "num_heads": 4, "vocab_size": 101,
                "attention_types": [[["global", "local"], 2]], "max_position_embeddings": 64,
                "window_size": 9},
    "opt": {**{k: v for k, v in POSITIONS.items() if k != "intermediate_size"}, "ffn_dim": 68,
            "word_embed_proj_dim": 48},
    "bloom": {"hidden_size": 48, "n_layer": 4, "n_head": 6, "vocab_size": 101},
    "falcon": {"hidden_size": 48, "num_hidden_layers": 4, "num_attention_heads": 6,
               "vocab_size": 101},
    "mpt": {"d_model": 48, "n_layers": 4, "n_heads": 6, "vocab_size": 101},
    "xglm": {"d_model": 48, "num_layers": 4, "attention_heads": 6, "ffn_dim": 68,
             "vocab_size": 101},
    "qwen2_moe": {**SIZES, **QWEN, "shared_expert_intermediate_size": 40},
    "qwen3_moe": {**WIDE, **QWEN, "mlp_only_layers": [0]},
    "olmoe": {**SIZES, "num_experts": 6, "num_experts_per_tok": 2},
    "gpt_oss": {**SIZES, **LOCAL, "head_dim": 16, "sliding_window": 9},
    "minimax_m2": {**WIDE, **LOCAL, "rotary_dim": 4},
    "mimo_v2_flash": {**WIDE, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": 4,
                      "topk_group": 2, "moe_intermediate_size": 24, "num_key_value_heads": 1,
                      "num_hidden_layers": 7, "v_head_dim": 6, "sliding_window": 9,
                      "head_dim": 12},
    "laguna": {**WIDE, **QWEN, "sliding_window": 9, "shared_expert_intermediate_size": 40,
               "num_attention_heads": 6, "num_hidden_layers": 5, "head_dim": 12,
               "num_attention_heads_per_layer": [6, 8, 8, 6, 8],
               "layer_types": ["full_attention", *["sliding_attention"] * 2, "full_attention",
                               "sliding_attention"]},
    "glm4_moe": {**SIZES, **DEEPSEEK, "head_dim": 12, "use_qk_norm": True},
    "llama4_text": {**WIDE, "num_local_experts": 6, "intermediate_size_mlp": 71,
                    "interleave_moe_layer_step": 2, "attention_chunk_size": 9},
    "qwen3_next": {**WIDE, **DELTA, **QWEN, "shared_expert_intermediate_size": 40},
    "qwen3_5_text": {**WIDE, **DELTA},
    "qwen3_5_moe_text": {
        **{k: v for k, v in WIDE.items() if k != "intermediate_size"}, **DELTA, **QWEN,
        "shared_expert_intermediate_size": 40,
    },
    "olmo_hybrid": {**SIZES, **DELTA},
    "minimax": {**WIDE, **LOCAL, "block_size": 16},
    "kimi_linear": {
        **MLA, "num_hidden_layers": 5, "num_experts": 8,
        "num_experts_per_token": 2, "moe_intermediate_size": 24, "num_shared_experts": 2,
        "linear_num_heads": 3, "linear_head_dim": 5, "linear_conv_kernel_dim": 3,
    },
    "deepseek_v2": {**MLA, **DEEPSEEK},
    "deepseek_v3": {**MLA, **DEEPSEEK, "n_group": 4, "topk_group": 2},
    **{key: {**MLA, **DEEPSEEK, "n_group": 4, "topk_group": 2, "index_topk": 5,
             "index_n_heads": 9, "index_head_dim": 8} for key in ("deepseek_v32", "glm_moe_dsa")},
    "deepseek_v4": {
        **{k: v for k, v in WIDE.items() if k != "intermediate_size"}, "num_key_value_heads": 1,
        "num_hidden_layers": 5, "head_dim": 12, "partial_rotary_factor": 0.5, "q_lora_rank": 22,
        "o_groups": 3, "o_lora_rank": 7, "sliding_window": 5, "hc_mult": 3, "hc_sinkhorn_iters": 4,
        "index_topk": 2, "index_n_heads": 5, "index_head_dim": 8, "n_routed_experts": 8,
        "num_experts_per_tok": 3, "moe_intermediate_size": 24, "swiglu_limit": 0.5,
        "compress_rates": {"compressed_sparse_attention": 3, "heavily_compressed_attention": 4},
        "layer_types": ["sliding_attention", *["compressed_sparse_attention",
                        "heavily_compressed_attention"] * 2],
        "mlp_layer_types": [*["hash_moe"] * 2, *["moe"] * 3]},
    # as many heads of an index as divide those of queries, not those of keys
    "minimax_m3_vl_text": {**WIDE, **LOCAL, "num_hidden_layers": 4, "num_local_experts": 7,
                           "num_experts_per_tok": 3, "intermediate_size": 24,
                           "dense_intermediate_size": 72, "shared_intermediate_size": 40,
                           "head_dim": 12, "index_n_heads": 3, "index_head_dim": 14,
                           "index_block_size": 3,
                           "index_topk_blocks": 3, "index_local_blocks": 2,
                           "mlp_layer_types": ["dense", *["sparse"] * 3],
                           "layer_types": ["full_attention", *["minimax_m3_sparse"] * 3]},
    "minicpm3": {**MLA, "dim_model_base": 24},
    "longcat_flash": {**{k: v for k, v in MLA.items()
                         if k not in ("num_hidden_layers", "intermediate_size")},
                      "num_layers": 2, "ffn_hidden_size": 72, "head_dim": 6, "n_routed_experts": 8,
                      "zero_expert_num": 5, "moe_topk": 3, "expert_ffn_hidden_size": 24},
    "t5": T5,
    "switch_transformers": {**T5, "num_experts": 6, "num_sparse_encoder_layers": 2,
                            "num_sparse_decoder_layers": 1},
    **{key: {**STATE, "state_size": 5, "time_step_rank": 4} for key in ("mamba", "falcon_mamba")},
    "mamba2": {**STATE, "state_size": 7, "num_heads": 6, "head_dim": 16, "n_groups": 2,
               "chunk_size": 5},
    "jamba": {**SIZES, "attn_layer_period": 3, "attn_layer_offset": 1, "num_experts": 6,
              "num_experts_per_tok": 2, "mamba_d_state": 5, "mamba_dt_rank": 4, "mamba_d_conv": 3},
    "bamba": {**SIZES, **HEADS, "attn_layer_indices": [1]},
    "granitemoehybrid": {**SIZES, **HEADS, **LOCAL, "shared_intermediate_size": 40,
                         "layer_types": ["mamba", "attention", "mamba", "mamba"]},
    "falcon_h1": {**SIZES, **HEADS, "mamba_d_ssm": 96, "mamba_rms_norm": True,
                  "ssm_multipliers": [0.5, 0.6, 0.7, 0.8, 0.9], "mlp_multipliers": [0.8, 0.7]},
    "nemotron_h": {**{k: v for k, v in WIDE.items() if k != "num_hidden_layers"},
                   "hybrid_override_pattern": "ME*-ME", "mamba_num_heads": 6, "mamba_head_dim": 16,
                   "n_groups": 2, "ssm_state_size": 7, "chunk_size": 5, "conv_kernel": 3,
                   "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
                   "moe_shared_expert_intermediate_size": 40},
    "zamba2": {**{k: v for k, v in SIZES.items() if k != "num_hidden_layers"},
               "num_key_value_heads": 6, "num_hidden_layers": 5,
               "layers_block_type": ["mamba", "hybrid", "hybrid", "mamba", "hybrid"],
               "n_mamba_heads": 6, "mamba_ngroups": 2, "mamba_d_state": 7, "mamba_d_conv": 3,
               "chunk_size": 5, "adapter_rank": 9, "num_mem_blocks": 2},
    "electra": {**POSITIONS, "embedding_size": 20},
    **dict.fromkeys(("apertus", "arcee", "ernie4_5", "iquestcoder", "jais2", "hyperclovax",
                     "nanochat"), SIZES),
    "hunyuan_v1_dense": WIDE,
    "nemotron": {**SIZES, "head_dim": 12},
    **{key: {**SIZES, "sliding_window": 9} for key in ("cwm", "olmo3", "exaone4",
                                                       "granite_swa")},
    "ministral": {**WIDE, "sliding_window": 9},
    "vaultgemma": {**WIDE, "sliding_window": 9},
    "dots1": {**SIZES, **DEEPSEEK, "sliding_window": 9, "max_window_layers": 2},
    "solar_open": {**WIDE, **BUT_FIRST, "n_group": 4, "topk_group": 2},
    "exaone_moe": {**SIZES, **QWEN, "sliding_window": 9},
    "hy_v3": {**WIDE, **QWEN},
    "flex_olmo": {**SIZES, "num_experts": 6, "num_experts_per_tok": 2},
    "granitemoeshared": {**SIZES, **LOCAL, "shared_intermediate_size": 40},
    "granitemoe_swa": {**SIZES, **LOCAL, "sliding_window": 9},
    "hunyuan_v1_moe": {**WIDE, "num_experts": 6, "moe_topk": 2},
    "ernie4_5_moe": {**SIZES, "moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 24},
    "afmoe": {**WIDE, **QWEN, "num_shared_experts": 2, "num_dense_layers": 1, "sliding_window": 7},
    "glm4_moe_lite": {**MLA, **BUT_FIRST},
    "youtu": MLA,
    "lfm2": {**SIZES, "layer_types": HYBRID, "conv_L_cache": 4, "block_multiple_of": 8},
    "lfm2_moe": {**SIZES, "layer_types": HYBRID, "num_experts": 6, "num_experts_per_tok": 2,
                 "moe_intermediate_size": 24, "num_dense_layers": 1},
    "xlstm": {"hidden_size": 192, "num_hidden_layers": 4, "num_heads": 8, "vocab_size": 101,
              "qk_dim_factor": 1 / 3, "v_dim_factor": 2 / 3, "chunk_size": 5,
              "ffn_round_up_to_multiple_of": 8, "max_inference_chunksize": 1000},
    "recurrent_gemma": {**SIZES, "hidden_size": 72, "attention_window_size": 9,
                        "conv1d_width": 4},
    "mellum": {**WIDE, **QWEN, "sliding_window": 9,
               "layer_types": [*["sliding_attention"] * 3, "full_attention"]},
    "kolibri1": {**{k: v for k, v in WIDE.items() if k != "intermediate_size"}, **QWEN,
                 "sliding_window": 9, "shared_expert_intermediate_size": 40},
    "gpt_bigcode": GPT,
    **dict.fromkeys(("camembert", "xlm-roberta"), POSITIONS),
    "mt5": T5,
    **{key: {**BART, "architectures": [name]} for key, name in CLASSES.items()},
    "modernbert": {**NO_KV, "local_attention": 9, "bos_token_id": 1, "eos_token_id": 2,
                   "sep_token_id": 2, "cls_token_id": 1},
}  # fmt: skip

# Changes of a small config: a mixture beside a feed-forward, layers that share an indexer's choice.
GEMMA4 = {"use_double_wide_mlp": False, "enable_moe_block": True, "num_experts": 7,
          "top_k_experts": 3, "moe_intermediate_size": 24}  # fmt: skip
SHARING = {"num_hidden_layers": 5, "index_topk_freq": 2, "index_topk": 3}

FLAGS = (
    "tie_word_embeddings attention_bias mlp_bias qkv_bias attention_out_bias use_bias bias "
    "enable_bias use_qkv_bias lm_head_bias decoder_bias classifier_bias norm_bias "
    "use_parallel_residual use_qk_norm qk_layernorm use_sliding_window norm_topk_prob "
    "multi_query new_decoder_architecture parallel_attn alibi do_layer_norm_before "
    "layer_norm_elementwise_affine scale_embedding router_bias use_conv_bias mamba_conv_bias "
    "mamba_proj_bias projectors_bias mamba_rms_norm mamba_norm_before_gate "
    "use_shared_attention_adapter use_mem_rope add_bias_linear"
)

# Drawn for every type that has the key: values that go with SMALL's other sizes.
DRAWN: dict[str, list[Any]] = {
    **{key: [True, False] for key in FLAGS.split()},
    "num_hidden_layers": [1, 2, 3, 5], "n_layer": [1, 2, 3], "n_layers": [1, 3],
    "num_key_value_heads": [1, 2, 3, 6, None], "head_dim": [8, 14, None],
    "intermediate_size": [40, 64], "vocab_size": [97, 128], "sliding_window": [3, 9, 40],
    "max_window_layers": [0, 1, 2], "sliding_window_pattern": [1, 2, 4],
    "no_rope_layer_interval": [2, 3], "partial_rotary_factor": [0.5, 1.0],
    "num_experts_per_tok": [1, 3], "first_k_dense_replace": [0, 1, 2], "n_shared_experts": [1, 3],
    "moe_topk": [1, 4], "zero_expert_num": [0, 2, 9], "decoder_sparse_step": [1, 2],
    "interleave_moe_layer_step": [1, 2], "attention_chunk_size": [3, 9], "q_lora_rank": [None, 24],
    "num_kv_heads": [2, 3], "n_inner": [None, 56], "word_embed_proj_dim": [48],
    "embedding_size": [20, 48], "type_vocab_size": [1, 3], "local_attention": [4, 9],
    "global_attn_every_n_layers": [2, 3], "feed_forward_proj": ["relu", "gated-gelu", "gated-silu"],
    "num_decoder_layers": [1, 3, None], "encoder_layers": [1, 2], "decoder_layers": [1, 3],
    "max_position_embeddings": [48, 80], "state_size": [2, 5], "mamba_d_state": [2, 5],
    "ssm_state_size": [2, 5], "conv_kernel": [1, 4], "mamba_d_conv": [1, 4], "chunk_size": [2, 64],
    "mamba_chunk_size": [2, 64], "time_step_rank": [3, "auto"], "mamba_dt_rank": [3, "auto"],
    "attn_layer_period": [2, 4], "expert_layer_period": [2, 3],
    "attn_layer_indices": [[0], [1, 2], [3]], "position_embedding_type": ["rope", None],
    "mamba_n_groups": [1, 3, 6], "mamba_ngroups": [1, 3, 6], "num_mem_blocks": [1, 3, 4],
    "adapter_rank": [1, 4], "index_block_size": [2, 5, 40], "index_topk_blocks": [2, 5],
    "index_local_blocks": [1, 2], "num_kv_shared_layers": [0, 1, 4], "altup_num_inputs": [1, 2, 5],
    "altup_active_idx": [0], "laurel_rank": [1, 17], "hidden_size_per_layer_input": [1, 19],
    # a token beyond the table reads the row of padding, which has no gradient there
    "vocab_size_per_layer_input": [128, 140],
}  # fmt: skip

# Where a value of DRAWN is none that transformers, or a spec, can have.
NARROWER: dict[str, dict[str, list[Any]]] = {
    "helium": {"head_dim": [8]},
    "gemma4_text": {"num_hidden_layers": [], "head_dim": [8, 14],
                    "num_kv_shared_layers": [0, 1, 4], "vocab_size": [128]},
    # its layers are named one by one
    "gemma3n_text": {"num_hidden_layers": [], "altup_num_inputs": [2, 5],
                     "intermediate_size": [40, [72, 40, 72, 72, 72, 40, 72]]},
    "internlm3": {"attention_bias": [False], "mlp_bias": [False]},
    "phi": {"head_dim": [8, 12]},
    **{key: {"head_dim": [8, 14]} for key in ("ministral", "hunyuan_v1_dense", "hunyuan_v1_moe")},
    "nemotron": {"head_dim": [8, 12], "num_key_value_heads": [1, 2, 3, 6]},
    **{key: {"tie_word_embeddings": [True]}
       for key in ("bert", "roberta", "camembert", "xlm-roberta", "bart", "mbart", "plbart", "t5",
                   "mt5")},
    **{key: {"num_key_value_heads": [6]}
       for key in ("deepseek_v2", "deepseek_v3", "minicpm3", "glm4_moe_lite", "youtu")},
    "deepseek_v2": {"num_key_value_heads": [6], "norm_topk_prob": [False]},
    **{key: {"num_key_value_heads": [6], "mlp_bias": [False]}
       for key in ("deepseek_v32", "glm_moe_dsa")},
    # with one expert transformers' code fails
    "longcat_flash": {"num_key_value_heads": [6], "head_dim": [6], "q_lora_rank": [24],
                      "moe_topk": [2, 4]},
    "minimax_m3_vl_text": {"head_dim": [8, 14], "num_hidden_layers": []},
    "mimo_v2_flash": {"head_dim": [12], "num_key_value_heads": [1, 3], "vocab_size": [128]},
    "laguna": {"head_dim": [8, 16], "num_hidden_layers": [], "num_key_value_heads": [1, 2]},
    "cohere": {"use_qk_norm": [False]},
    "stablelm": {"qk_layernorm": [False], "partial_rotary_factor": [0.25, 1.0]},
    "phimoe": {"num_experts_per_tok": [2]},
    "qwen3_moe": {"mlp_only_layers": [[], [0]], "decoder_sparse_step": [1]},
    "switch_transformers": {"num_decoder_layers": [2], "tie_word_embeddings": [True]},
    "cohere2": {"head_dim": []},
    # SMALL lists their layers
    **{key: {"num_hidden_layers": []} for key in ("mellum", "lfm2", "lfm2_moe")},
    # both kinds of layer must be among them
    "recurrent_gemma": {"num_hidden_layers": [3, 5]},
    "falcon": {"parallel_attn": [True]},
    # a spec has no partly rotated head whose rotated width is odd
    "glm4_moe": {"head_dim": [8, 12]},
    # with linear layers alone transformers' cache does not know its length
    **{key: {"num_hidden_layers": [4, 5], "head_dim": [8, 16, 24], "partial_rotary_factor": []}
       for key in ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")},
    # transformers' class never ties it: a tied one is refused
    "kimi_linear": {"num_hidden_layers": [5, 6], "num_key_value_heads": [],
                    "first_k_dense_replace": [], "n_shared_experts": [],
                    "tie_word_embeddings": [False]},
    "olmo_hybrid": {"num_hidden_layers": [2, 3, 5], "partial_rotary_factor": []},
    "minimax": {"head_dim": [8, 14], "sliding_window": [None]},
    # their layers are named one by one, and heads and groups must go together
    "granitemoehybrid": {"num_hidden_layers": []},
    "bamba": {"num_hidden_layers": [], "head_dim": [], "partial_rotary_factor": []},
    "nemotron_h": {"num_hidden_layers": []},
    "mamba2": {"head_dim": []},
    "jamba": {"num_hidden_layers": []},
    # adapters of attention take heads that fill the width; what it shares is tied with the head
    "zamba2": {"num_hidden_layers": [], "num_key_value_heads": [6, None], "head_dim": [],
               "tie_word_embeddings": [True]},
    "minimax_m2": {"head_dim": [8, 12], "partial_rotary_factor": [], "max_position_embeddings": []},
}  # fmt: skip


def small_config(model_type: str) -> dict[str, Any]:
    return {"model_type": model_type, **NEEDED.get(model_type, {}), **SMALL[model_type]}


@st.composite
def small_configs(draw: st.DrawFn, model_type: str) -> dict[str, Any]:
    family = family_of(model_type)
    assert family is not None
    declared = {field.name for field in dataclasses.fields(config_class(model_type))}
    choices = {**DRAWN, **NARROWER.get(model_type, {})}
    config = {"model_type": model_type, **SMALL[model_type]}
    for key in sorted(set(choices) & set(family.defaults)):
        if choices[key] and draw(st.booleans()):
            # null is a value only where transformers' default is null
            null = family.defaults[key] is None and key in declared
            config[key] = draw(st.sampled_from([c for c in choices[key] if null or c is not None]))
    return valid(config)


def valid(config: dict[str, Any]) -> dict[str, Any]:
    """The config with sizes that depend on each other made to agree."""
    if config["model_type"] == "falcon" and not (
        config.get("new_decoder_architecture") or config.get("multi_query", True)
    ):
        config.pop("num_kv_heads", None)
    if config["model_type"] == "opt":
        config["max_position_embeddings"] = 64
    if config.get("mlp_only_layers") == [0] and config["num_hidden_layers"] == 1:
        config["mlp_only_layers"] = []
    return config


TEXT = {**WIDE, "num_hidden_layers": 2}
VISION = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40,
    "image_size": 28, "patch_size": 14,
}  # fmt: skip
# Configs of types that have no spec, or of a class that is not their type's first; by a name.
OTHERS: dict[str, dict[str, Any]] = {
    "BertModel": {"model_type": "bert", "architectures": ["BertModel"], **POSITIONS},
    "gemma3": {"model_type": "gemma3", "text_config": {**TEXT, "sliding_window": 9},
               "vision_config": VISION, "mm_tokens_per_image": 4},
    "gemma4": {"model_type": "gemma4",
               "text_config": {**TEXT, "vocab_size_per_layer_input": 113,
                               "hidden_size_per_layer_input": 13, "enable_moe_block": True,
                               "num_experts": 7, "top_k_experts": 3, "moe_intermediate_size": 24},
               "vision_config": {**{k: v for k, v in VISION.items() if k != "image_size"},
                                 "global_head_dim": 8, "head_dim": 8}},
    "llava": {"model_type": "llava", "text_config": {"model_type": "llama", **TEXT},
              "vision_config": {"model_type": "clip_vision_model", **VISION}},
    "mllama": {"model_type": "mllama",
               "text_config": {**SIZES, "num_hidden_layers": 3, "cross_attention_layers": [1]},
               "vision_config": {"hidden_size": 24, "num_hidden_layers": 2, "num_global_layers": 1,
                                 "attention_heads": 3, "intermediate_size": 40, "image_size": 28,
                                 "patch_size": 14, "vision_output_dim": 48,
                                 "intermediate_layers_indices": [0],
                                 "supported_aspect_ratios": [[1, 1]], "max_num_tiles": 1}},
    "qwen3_vl": {"model_type": "qwen3_vl",
                 "text_config": {**TEXT, "rope_parameters": {
                     "rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 2, 1]}},
                 "vision_config": {"depth": 2, "hidden_size": 24, "intermediate_size": 40,
                                   "num_heads": 3, "out_hidden_size": 48, "patch_size": 4,
                                   "deepstack_visual_indexes": [0],
                                   "num_position_embeddings": 16}},
}  # fmt: skip
