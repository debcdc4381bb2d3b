"""Published config.json files, written by hand, against the catalog and published totals."""

from __future__ import annotations

from typing import Any

import pytest

from metacount import catalog
from metacount.formulas import model as formulas
from metacount.huggingface.config.to_spec import spec_from_config
from metacount.textbook.proven import structure
from metacount.verify.recording import of_type

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 11008,
    "max_position_embeddings": 2048,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "transformers_version": "4.28.0",
    "use_cache": True,
    "vocab_size": 32000,
}
LLAMA3_8B = {
    **LLAMA,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "vocab_size": 128256,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
}
MISTRAL_7B = {
    "architectures": ["MistralForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "model_type": "mistral",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 32000,
}
MIXTRAL = {
    **MISTRAL_7B,
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
    "output_router_logits": False,
    "rope_theta": 1e6,
    "router_aux_loss_coef": 0.02,
    "sliding_window": None,
}
QWEN2_7B = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_position_embeddings": 131072,
    "max_window_layers": 28,
    "model_type": "qwen2",
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "sliding_window": 131072,
    "tie_word_embeddings": False,
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 152064,
}
QWEN3_235B = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "max_position_embeddings": 40960,
    "max_window_layers": 94,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 1536,
    "norm_topk_prob": True,
    "num_attention_heads": 64,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 94,
    "num_key_value_heads": 4,
    "output_router_logits": False,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
DEEPSEEK_V3 = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "attention_bias": False,
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
    "aux_loss_alpha": 0.001,
    "ep_size": 1,
    "first_k_dense_replace": 3,
    "hidden_act": "silu",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "model_type": "deepseek_v3",
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "pretraining_tp": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "quantization_config": {"fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]},
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "scoring_func": "sigmoid",
    "seq_aux": True,
    "tie_word_embeddings": False,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "v_head_dim": 128,
    "vocab_size": 129280,
}
DEEPSEEK_V2 = {
    **{
        k: v
        for k, v in DEEPSEEK_V3.items()
        if k not in ("quantization_config", "num_nextn_predict_layers")
    },
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "first_k_dense_replace": 1,
    "hidden_size": 5120,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "n_routed_experts": 160,
    "n_shared_experts": 2,
    "norm_topk_prob": False,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 60,
    "routed_scaling_factor": 16.0,
    "scoring_func": "softmax",
    "topk_group": 3,
    "topk_method": "group_limited_greedy",
    "vocab_size": 102400,
    "rope_scaling": {**DEEPSEEK_V3["rope_scaling"], "mscale": 0.707, "mscale_all_dim": 0.707},
}
GPT_OSS_20B = {
    "architectures": ["GptOssForCausalLM"],
    "attention_bias": True,
    "eos_token_id": 200002,
    "experts_per_token": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2880,
    "initial_context_length": 4096,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131072,
    "model_type": "gpt_oss",
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "quantization_config": {"quant_method": "mxfp4"},
    "rms_norm_eps": 1e-5,
    "rope_theta": 150000,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "rope_type": "yarn",
        "original_max_position_embeddings": 4096,
        "truncate": False,
    },
    "tie_word_embeddings": False,
    "vocab_size": 201088,
}
GEMMA3_1B = {
    "architectures": ["Gemma3ForCausalLM"],
    "attention_bias": False,
    "attn_logit_softcapping": None,
    "cache_implementation": "hybrid",
    "final_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "max_position_embeddings": 32768,
    "model_type": "gemma3_text",
    "num_attention_heads": 4,
    "num_hidden_layers": 26,
    "num_key_value_heads": 1,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-6,
    "rope_local_base_freq": 10000,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "vocab_size": 262144,
}
GEMMA2_2B = {
    "architectures": ["Gemma2ForCausalLM"],
    "attn_logit_softcapping": 50.0,
    "head_dim": 256,
    "final_logit_softcapping": 30.0,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "model_type": "gemma2",
    "num_attention_heads": 8,
    "num_hidden_layers": 26,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "vocab_size": 256000,
}
GLM_45 = {
    "architectures": ["Glm4MoeForCausalLM"],
    "attention_bias": True,
    "head_dim": 128,
    "first_k_dense_replace": 3,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "intermediate_size": 12288,
    "max_position_embeddings": 131072,
    "model_type": "glm4_moe",
    "moe_intermediate_size": 1536,
    "n_group": 1,
    "n_routed_experts": 160,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 96,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 92,
    "num_key_value_heads": 8,
    "num_nextn_predict_layers": 1,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-5,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "routed_scaling_factor": 2.5,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "use_qk_norm": True,
    "vocab_size": 151552,
}
BERT_BASE = {
    "architectures": ["BertModel"],
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "gradient_checkpointing": False,
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "model_type": "bert",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "type_vocab_size": 2,
    "use_cache": True,
    "vocab_size": 30522,
}
T5_11B = {
    "architectures": ["T5WithLMHeadModel"],
    "d_ff": 65536,
    "d_kv": 128,
    "d_model": 1024,
    "decoder_start_token_id": 0,
    "dropout_rate": 0.1,
    "initializer_factor": 1.0,
    "is_encoder_decoder": True,
    "layer_norm_epsilon": 1e-6,
    "model_type": "t5",
    "n_positions": 512,
    "num_heads": 128,
    "num_layers": 24,
    "output_past": True,
    "relative_attention_num_buckets": 32,
    "task_specific_params": {},
    "vocab_size": 32128,
}
OPT_175B = {
    "_remove_final_layer_norm": False,
    "activation_function": "relu",
    "dropout": 0.1,
    "architectures": ["OPTForCausalLM"],
    "do_layer_norm_before": True,
    "ffn_dim": 49152,
    "hidden_size": 12288,
    "init_std": 0.02,
    "layerdrop": 0.0,
    "max_position_embeddings": 2048,
    "model_type": "opt",
    "num_attention_heads": 96,
    "num_hidden_layers": 96,
    "prefix": "</s>",
    "vocab_size": 50272,
    "word_embed_proj_dim": 12288,
}
BLOOM = {
    "apply_residual_connection_post_layernorm": False,
    "attention_dropout": 0.0,
    "architectures": ["BloomForCausalLM"],
    "attention_softmax_in_fp32": True,
    "bias_dropout_fusion": True,
    "hidden_dropout": 0.0,
    "layer_norm_epsilon": 1e-5,
    "masked_softmax_fusion": True,
    "model_type": "bloom",
    "n_embed": 14336,
    "n_layer": 70,
    "num_attention_heads": 112,
    "pretraining_tp": 4,
    "slow_but_exact": False,
    "unk_token_id": 0,
    "vocab_size": 250880,
}
GPT2 = {
    "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1,
    "bos_token_id": 50256,
    "embd_pdrop": 0.1,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-5,
    "model_type": "gpt2",
    "n_ctx": 1024,
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "resid_pdrop": 0.1,
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "vocab_size": 50257,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
}
FALCON_180B = {
    "alibi": False,
    "apply_residual_connection_post_layernorm": False,
    "architectures": ["FalconForCausalLM"],
    "attention_dropout": 0.0,
    "bias": False,
    "hidden_size": 14848,
    "layer_norm_epsilon": 1e-5,
    "model_type": "falcon",
    "multi_query": True,
    "new_decoder_architecture": True,
    "num_attention_heads": 232,
    "num_hidden_layers": 80,
    "num_kv_heads": 8,
    "parallel_attn": True,
    "vocab_size": 65024,
}
PYTHIA_12B = {
    "architectures": ["GPTNeoXForCausalLM"],
    "hidden_act": "gelu",
    "hidden_size": 5120,
    "intermediate_size": 20480,
    "layer_norm_eps": 1e-5,
    "model_type": "gpt_neox",
    "num_attention_heads": 40,
    "num_hidden_layers": 36,
    "rotary_emb_base": 10000,
    "rotary_pct": 0.25,
    "use_parallel_residual": True,
    "vocab_size": 50688,
}
SMOLLM3_3B = {
    "architectures": ["SmolLM3ForCausalLM"],
    "attention_bias": False,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "layer_types": ["full_attention"] * 36,
    "max_window_layers": 28,
    "mlp_bias": False,
    "model_type": "smollm3",
    "no_rope_layer_interval": 4,
    "no_rope_layers": [1, 1, 1, 0] * 9,
    "num_attention_heads": 16,
    "num_hidden_layers": 36,
    "num_key_value_heads": 4,
    "pretraining_tp": 2,
    "rope_theta": 5000000.0,
    "sliding_window": None,
    "use_sliding_window": False,
    "vocab_size": 128256,
}
SWITCH_BASE_8 = {
    "add_router_probs": False,
    "architectures": ["SwitchTransformersForConditionalGeneration"],
    "d_ff": 3072,
    "d_kv": 64,
    "d_model": 768,
    "decoder_sparse_step": 2,
    "encoder_sparse_step": 2,
    "expert_capacity": 64,
    "feed_forward_proj": "relu",
    "is_gated_act": False,
    "model_type": "switch_transformers",
    "num_decoder_layers": 12,
    "num_experts": 8,
    "num_heads": 12,
    "num_layers": 12,
    "num_sparse_decoder_layers": 6,
    "num_sparse_encoder_layers": 6,
    "router_type": "tokens_masked",
    "vocab_size": 32128,
}
LLAMA4_SCOUT = {
    "attention_chunk_size": 8192,
    "attn_scale": 0.1,
    "attn_temperature_tuning": True,
    "floor_scale": 8192,
    "for_llm_compressor": False,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "interleave_moe_layer_step": 1,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "model_type": "llama4_text",
    "no_rope_layers": [],
    "num_attention_heads": 40,
    "num_experts_per_tok": 1,
    "num_hidden_layers": 48,
    "num_key_value_heads": 8,
    "num_local_experts": 16,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "use_qk_norm": True,
    "vocab_size": 202048,
}
OLMO2_7B = {
    "architectures": ["Olmo2ForCausalLM"],
    "attention_bias": False,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "model_type": "olmo2",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "rms_norm_eps": 1e-6,
    "rope_theta": 500000,
    "tie_word_embeddings": False,
    "vocab_size": 100352,
}

# catalog id, config, total: as published (an exact count of the checkpoint), or where only a
# rounded one was published the count of these very sizes, which is the catalog's too
PUBLISHED: list[tuple[str, dict[str, Any], int]] = [
    ("llama-7b", LLAMA, 6_738_415_616),
    ("llama3-8b", LLAMA3_8B, 8_030_261_248),
    ("mistral-7b", MISTRAL_7B, 7_241_732_096),
    ("mixtral-8x7b", MIXTRAL, 46_702_792_704),
    ("qwen2-7b", QWEN2_7B, 7_615_616_512),
    ("qwen3-235b-a22b", QWEN3_235B, 235_093_634_560),
    ("deepseek-v3", DEEPSEEK_V3, 671_026_404_352),
    ("deepseek-v2", DEEPSEEK_V2, 235_741_434_880),
    ("gpt-oss-20b", GPT_OSS_20B, 20_914_757_184),
    ("gemma3-1b", GEMMA3_1B, 999_885_952),
    ("gemma2-2b", GEMMA2_2B, 2_614_341_888),
    ("glm-4.5", GLM_45, 352_797_814_784),
    ("bert-base", BERT_BASE, 109_482_240),
    ("t5-11b", T5_11B, 11_307_321_344),
    ("opt-175b", OPT_175B, 174_604_468_224),
    ("bloom-176b", BLOOM, 176_247_271_424),
    ("gpt2", GPT2, 124_439_808),
    ("falcon-180b", FALCON_180B, 178_557_088_768),
    ("pythia-12b", PYTHIA_12B, 11_846_072_320),
    ("smollm3-3b", SMOLLM3_3B, 3_075_098_624),
    ("switch-base-8", SWITCH_BASE_8, 619_339_008),
    ("llama4-scout-text", LLAMA4_SCOUT, 107_769_861_120),
    ("olmo2-7b", OLMO2_7B, 7_298_617_344),
]


@pytest.mark.parametrize(("name", "config", "total"), PUBLISHED, ids=[p[0] for p in PUBLISHED])
def test_a_published_config_is_the_model_of_the_catalog(
    name: str, config: dict[str, Any], total: int
) -> None:
    mine, spec = spec_from_config(config).spec, catalog.entry(name).spec()
    assert formulas.params(mine) == total
    assert formulas.params_by_role(mine) == formulas.params_by_role(spec)
    assert formulas.active_params(mine) == formulas.active_params(spec)
    sizes = {"batch_size": 3, "seq_len": 10_007, "source_len": 997 if mine.has_encoder else None}
    assert formulas.causal_matmul_flops(mine, **sizes) == formulas.causal_matmul_flops(
        spec, **sizes
    )
    if mine.kind != "encoder":
        cache = {**sizes, "bytes_per_value": 2}
        assert formulas.kv_cache_bytes(mine, **cache) == formulas.kv_cache_bytes(spec, **cache)


# What no count shows: the catalog may know less of it, never something else.
QUIET = (
    "norm_eps",
    "rope_theta",
    "rope_theta_windowed",
    "rotary_dim",
    "router",
    "position_offset",
    "rope_style",
    "group_score",
    "rope_scaling",
    "query_growth",
    "attention_scale",
)


@pytest.mark.parametrize(("name", "config", "total"), PUBLISHED, ids=[p[0] for p in PUBLISHED])
def test_structure_is_that_of_the_catalog(name: str, config: dict[str, Any], total: int) -> None:
    mine, spec = spec_from_config(config).spec.to_dict(), catalog.entry(name).spec().to_dict()
    assert {k: v for k, v in mine.items() if k not in QUIET} == {
        k: v for k, v in spec.items() if k not in QUIET
    }


@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-v2", "gpt-oss-20b"])
def test_scaled_rope_is_that_of_the_catalog(name: str) -> None:
    mapped = spec_from_config(next(config for id, config, _ in PUBLISHED if id == name))
    mine, spec = mapped.spec, catalog.entry(name).spec()
    assert mapped.differs == ()
    assert mine.rope_scaling == spec.rope_scaling is not None
    # DeepSeek-V2's paper has 0.0707 where the config has 0.1 · 0.707
    assert (mine.attention_scale or 0) == pytest.approx(spec.attention_scale or 0, rel=1e-12)


def test_what_was_not_obeyed_is_said() -> None:
    notes = "\n".join(spec_from_config(DEEPSEEK_V3).notes)
    assert "DeepseekV3ForCausalLM (named by architectures)" in notes
    assert "quantization_config is ignored" in notes
    assert "1 prediction layers are in the checkpoint" in notes
    assert "mscale" not in notes


def test_ignored_keys_are_listed() -> None:
    ignored = spec_from_config(GPT2).ignored
    assert {"n_ctx", "attn_pdrop", "task_specific_params", "summary_type"} <= set(ignored)
    assert not {"n_embd", "n_layer", "vocab_size"} & set(ignored)


# What the entry says otherwise than its type's class does; no count depends on the first.
OTHERWISE = {
    "mixtral-8x7b": {"router"},  # the paper chooses, then takes the softmax
    "longcat-flash": {"zero_expert_rows"},  # rows that no token reads
    "minimax-text-01": {"rotary_dim"},  # the class rotates whole heads
    "opt-175b": {"position_offset"},
    "galactica-120b": {"norm_bias", "position_offset"},
    "switch-xxl": {"activation", "gated"},
}


def test_a_catalog_model_is_of_the_structure_of_its_type() -> None:
    """A config of the type, with the entry's switches and the type's own sizes."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    types = set()
    for model in catalog.entries():
        if model.model_type is None:
            assert model.type_config == {}
            continue
        types.add(model.model_type)
        if model.sizes is None:
            assert (model.config or {})["model_type"] == model.model_type
            continue
        config = {**of_type(model.model_type), **model.type_config}
        ours, theirs = model.spec(), spec_from_config(config).spec
        other = {
            name
            for name in ours.to_dict()
            if structure(theirs.substituted(**{name: getattr(ours, name)})) != structure(theirs)
        }
        assert other == OTHERWISE.get(model.id, set()), model.id
        assert (structure(ours) == structure(theirs)) is (not other)
    assert types <= CONFIG_MAPPING_NAMES.keys()
