"""Published models: sizes written out here, counts as literals with their source."""

from __future__ import annotations

from typing import Any

import pytest

from metacount.formulas import model
from metacount.spec import ModelSpec

SWIGLU: dict[str, Any] = {
    "kind": "decoder",
    "activation": "silu",
    "gated": True,
    "norm": "rmsnorm",
    "position": "rope",
}
QKVO_BIAS = {"q_bias": True, "k_bias": True, "v_bias": True, "o_bias": True}
GPT: dict[str, Any] = {
    "kind": "decoder",
    "activation": "gelu",
    "gated": False,
    "ffn_bias": True,
    "norm": "layernorm",
    "norm_bias": True,
    "tie_embeddings": True,
    **QKVO_BIAS,
}


def mha(n_heads: int, head_dim: int) -> dict[str, int]:
    return {"n_heads": n_heads, "n_kv_heads": n_heads, "head_dim": head_dim}


# arXiv:2302.13971 table 2
LLAMA_7B = ModelSpec(
    **SWIGLU, **mha(32, 128), d_model=4096, n_layers=32, vocab_size=32000, d_ff=11008
)
# arXiv:2505.09388 table 1
QWEN3_32B = ModelSpec(
    **SWIGLU,
    d_model=5120,
    n_layers=64,
    vocab_size=151936,
    n_heads=64,
    n_kv_heads=8,
    head_dim=128,
    d_ff=25600,
    qk_norm="head",
)
# arXiv:2505.09388 table 2
QWEN3_235B = ModelSpec(
    **SWIGLU,
    d_model=4096,
    n_layers=94,
    vocab_size=151936,
    n_heads=64,
    n_kv_heads=4,
    head_dim=128,
    qk_norm="head",
    n_experts=128,
    top_k=8,
    d_ff_expert=1536,
)
# arXiv:2401.04088 table 1
MIXTRAL = ModelSpec(
    **SWIGLU,
    d_model=4096,
    n_layers=32,
    vocab_size=32000,
    n_heads=32,
    n_kv_heads=8,
    head_dim=128,
    n_experts=8,
    top_k=2,
    d_ff_expert=14336,
)
# arXiv:2412.19437 sec. 4.2
DEEPSEEK_V3 = ModelSpec(
    **SWIGLU,
    d_model=7168,
    n_layers=61,
    vocab_size=129280,
    attention="mla",
    n_heads=128,
    q_lora_rank=1536,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
    d_ff=18432,
    n_experts=256,
    top_k=8,
    d_ff_expert=2048,
    n_shared_experts=1,
    n_dense_layers=3,
    selection_bias=True,
)
# arXiv:2508.10925 table 1 and gpt_oss/torch/model.py
GPT_OSS_20B = ModelSpec(
    **{**SWIGLU, "activation": "clamped_swiglu"},
    **QKVO_BIAS,
    d_model=2880,
    n_layers=24,
    vocab_size=201088,
    n_heads=64,
    n_kv_heads=8,
    head_dim=64,
    attention_sinks=True,
    n_experts=32,
    top_k=4,
    d_ff_expert=2880,
    expert_bias=True,
    router_bias=True,
    window=128,
    window_pattern="LG",
)
# arXiv:1810.04805
BERT_BASE = ModelSpec(
    **{**GPT, "kind": "encoder"},
    **mha(12, 64),
    d_model=768,
    n_layers=12,
    vocab_size=30522,
    d_ff=3072,
    norm_placement="post",
    embedding_norm=True,
    final_norm=False,
    position="learned",
    n_positions=512,
    n_token_types=2,
    pooler=True,
)
BERT_BASE_MLM = BERT_BASE.replace(
    pooler=False, head_transform=True, head_transform_bias=True, head_bias=True
)
# arXiv:2003.10555 table 6
ELECTRA_SMALL_MLM = BERT_BASE_MLM.replace(
    d_model=256, d_embedding=128, n_heads=4, n_kv_heads=4, d_ff=1024
)
# arXiv:2412.13663, as transformers' default ModernBertConfig
MODERNBERT_BASE = ModelSpec(
    kind="encoder",
    **mha(12, 64),
    d_model=768,
    n_layers=22,
    vocab_size=50368,
    d_ff=1152,
    activation="gelu",
    gated=True,
    norm="layernorm",
    first_norm=False,
    embedding_norm=True,
    position="rope",
    window=128,
    window_pattern="GLL",
    tie_embeddings=True,
    head_transform=True,
    head_bias=True,
)
# openai/gpt-2 DEVELOPERS.md
GPT2_MEDIUM = ModelSpec(
    **GPT,
    **mha(16, 64),
    d_model=1024,
    n_layers=24,
    vocab_size=50257,
    d_ff=4096,
    position="learned",
    n_positions=1024,
)
# arXiv:2211.05100 table 3
BLOOM = ModelSpec(
    **GPT,
    **mha(112, 128),
    d_model=14336,
    n_layers=70,
    vocab_size=250880,
    d_ff=57344,
    embedding_norm=True,
    position="alibi",
)
# arXiv:1910.10683 sec. 3.7
T5_11B = ModelSpec(
    kind="encoder-decoder",
    **mha(128, 128),
    d_model=1024,
    n_layers=24,
    n_encoder_layers=24,
    vocab_size=32128,
    tie_embeddings=True,
    d_ff=65536,
    activation="relu",
    gated=False,
    norm="rmsnorm",
    position="t5",
    n_buckets=32,
    max_distance=128,
)
# arXiv:2112.11446 table 1 and sec. 2.1
GOPHER = ModelSpec(
    kind="decoder",
    **mha(128, 128),
    d_model=16384,
    n_layers=80,
    vocab_size=32000,
    tie_embeddings=True,
    d_ff=65536,
    activation="gelu",
    gated=False,
    norm="rmsnorm",
    position="transformer_xl",
)
# arXiv:2104.12369 table 2; the 64 layers include the query layer
PANGU = ModelSpec(
    **GPT,
    **mha(128, 128),
    d_model=16384,
    n_layers=64,
    vocab_size=40000,
    d_ff=65536,
    position="learned",
    n_positions=1024,
    n_query_positions=1024,
)


@pytest.mark.parametrize(
    ("spec", "params"),
    [
        (LLAMA_7B, 6_738_415_616),  # keras-hub llama_presets.py
        (QWEN3_32B, 32_762_123_264),  # keras-hub qwen3_presets.py
        (QWEN3_235B, 235_093_634_560),  # keras-hub qwen3_moe_presets.py
        (MIXTRAL, 46_702_792_704),  # keras-hub mixtral_presets.py
        (DEEPSEEK_V3, 671_026_404_352),  # numel of transformers' DeepseekV3ForCausalLM
        (GPT_OSS_20B, 20_914_757_184),  # keras-hub gpt_oss_presets.py
        (BERT_BASE, 109_482_240),  # keras-hub bert_presets.py
        (BERT_BASE_MLM, 109_514_298),  # numel of transformers' BertForMaskedLM
        (ELECTRA_SMALL_MLM, 13_546_682),  # numel of transformers' ElectraForMaskedLM
        (MODERNBERT_BASE, 149_655_232),  # numel of transformers' ModernBertForMaskedLM
        (GPT2_MEDIUM, 354_823_168),  # keras-hub gpt2_presets.py
        (BLOOM, 176_247_271_424),  # model card of bigscience/bloom
        (T5_11B, 11_307_321_344),  # numel of transformers' T5ForConditionalGeneration
        (GOPHER, 279_702_421_504),  # "280B", arXiv:2112.11446; the integer is of this reading
        (PANGU, 206_861_008_896),  # "207.0B", arXiv:2104.12369; the integer is of this reading
    ],
)
def test_params(spec: ModelSpec, params: int) -> None:
    assert model.params(spec) == params


@pytest.mark.parametrize(
    ("spec", "active"),
    [
        (QWEN3_235B, 22_190_763_520),  # "22B", arXiv:2505.09388 table 2
        (MIXTRAL, 12_879_925_248),  # "13B", arXiv:2401.04088 table 1
        (DEEPSEEK_V3, 37_552_282_624),  # "37B", arXiv:2412.19437
    ],
)
def test_active_params(spec: ModelSpec, active: int) -> None:
    assert model.active_params(spec) == active


def test_active_params_without_the_input_embedding() -> None:
    assert model.active_params_no_embed(DEEPSEEK_V3) == 36_625_603_584
    # "3.61B", arXiv:2508.10925 table 1
    assert model.active_params_no_embed(GPT_OSS_20B) == 3_608_307_264


def test_buffers_and_cache_of_deepseek_v3() -> None:
    # 256 experts × 58 MoE layers
    assert model.buffers(DEEPSEEK_V3) == {"selection_bias": 14_848}
    # 576 values × 61 layers
    assert model.kv_cache_bytes_per_token(DEEPSEEK_V3, bytes_per_value=1) == 35_136


@pytest.mark.parametrize(
    ("spec", "flops"),
    [
        (LLAMA_7B, 1_700_001_742_848),
        (MIXTRAL, 3_272_228_208_640),
        (DEEPSEEK_V3, 9_457_769_644_032),
        (GPT2_MEDIUM, 92_094_595_072),
    ],
)
def test_flops_of_128_tokens(spec: ModelSpec, flops: int) -> None:
    # torch's FlopCounterMode over transformers' eager modules, batch 1
    assert model.matmul_flops(spec, batch_size=1, seq_len=128) == flops
