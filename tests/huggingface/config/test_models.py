"""Single models: what their published configs come out to, and what is said of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.published import CONFIGS
from helpers.release import daily
from helpers.small_configs import GEMMA4, SHARING, SMALL

import metacount
from metacount.catalog import entry
from metacount.formulas import model
from metacount.huggingface.config.to_spec import spec_from_config
from metacount.resolve import find_model
from metacount.spec import FIELDS, Workload

# ---- keys that no row reads ----


@pytest.mark.parametrize(
    ("name", "passed"),
    [
        (
            "Qwen3-Coder-480B-A35B-Instruct",
            "qkv_bias=false, shared_expert_intermediate_size=0, use_qk_norm=true",
        ),
        (
            "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
            "norm_eps=1e-05, partial_rotary_factor=1.0, rope_theta=10000",
        ),
    ],
)
def test_keys_that_change_nothing_are_named_in_one_line(name: str, passed: str) -> None:
    mapped = spec_from_config(CONFIGS[name])
    lines = [note for note in mapped.notes if "passed over" in note]
    assert lines == [f"passed over, for they change nothing: {passed}"]
    assert {part.split("=")[0] for part in passed.split(", ")} <= set(mapped.ignored)


def test_a_type_that_nobody_knows_is_that_of_the_class_it_names(tmp_path: Path) -> None:
    mapped = spec_from_config(CONFIGS["Kimi-K2-Instruct"])
    assert (mapped.model_type, mapped.is_remote) == ("deepseek_v3", False)
    said = "model_type kimi_k2 is not known to transformers: counted as deepseek_v3, whose "
    assert mapped.notes[0] == f"{said}DeepseekV3ForCausalLM architectures names"
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIGS["Kimi-K2-Instruct"]))
    source = find_model(str(file)).source
    assert source is not None
    assert source.config["model_type"] == "deepseek_v3"  # which transformers can build


# ---- LongCat-Flash ----

# 28 layers of 256 zero experts: gate and up of 2048 × 6144, which nobody reads
UNREAD = 28 * 256 * 2 * 2048 * 6144


def test_longcat_is_the_model_of_the_catalog_and_rows_that_nobody_reads() -> None:
    longcat = entry("longcat-flash")
    ours, theirs = longcat.spec(), spec_from_config(CONFIGS["LongCat-Flash-Chat"])
    different = {name for name in FIELDS if getattr(ours, name) != getattr(theirs.spec, name)}
    assert different == {"zero_expert_rows"}
    assert model.params(theirs.spec) - model.params(ours) == UNREAD == 180_388_626_432
    assert model.active_params(theirs.spec) == model.active_params(ours)
    said = " ".join(theirs.notes)
    assert "transformers' class stores 180,388,626,432 parameters that no token reads" in said
    assert "prediction layers are not in the class" in said
    assert theirs.differs == theirs.refused == ()
    assert longcat.notes is not None and f"{UNREAD:,} parameters" in longcat.notes


# ---- MiniMax-M3 ----

M3 = "minimax_m3_vl_text"
# What the class has by default, and the checkpoint's first layers, which have neither index nor
# experts, and half of a head that RoPE rotates.
PUBLISHED: dict[str, Any] = {
    "model_type": M3,
    "layer_types": ["full_attention"] * 3 + ["minimax_m3_sparse"] * 57,
    "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 57,
    "rope_parameters": {"rope_theta": 5000000, "partial_rotary_factor": 0.5},
}
# values of the published checkpoint, and of its vision tower and projector as the class builds them
CHECKPOINT, VISION = 427_040_140_160, 631_185_920 + 234_381_312


def test_minimax_m3_comes_out_to_the_last_value_of_the_checkpoint() -> None:
    spec = entry("minimax-m3-text").spec()
    assert spec_from_config(PUBLISHED).spec == spec
    biases = model.buffers(spec)["selection_bias"]
    assert biases == 57 * 128
    assert model.params(spec) + biases + VISION == CHECKPOINT


def test_a_config_of_the_text_part_alone_is_that_of_the_type() -> None:
    flat = {**PUBLISHED, "model_type": "minimax_m3", "architectures": ["MiniMaxM3ForCausalLM"]}
    mapped = spec_from_config(flat)
    assert (mapped.model_type, mapped.spec) == (M3, spec_from_config(PUBLISHED).spec)
    counted_as = f"model_type minimax_m3 is not known to transformers: counted as {M3}, which "
    assert mapped.notes[0] == f"{counted_as}has the same keys"
    small = {**SMALL[M3], **{key: flat[key] for key in ("model_type", "architectures")}}
    names = [witness.name for witness in metacount.verify(small, Workload(seq_len=9)).witnesses]
    assert names == ["formula", "reference", "transformers"]


def test_the_tower_that_is_left_out_has_as_many_parameters() -> None:
    import torch
    from transformers.models.minimax_m3_vl import modeling_minimax_m3_vl as theirs
    from transformers.models.minimax_m3_vl.configuration_minimax_m3_vl import MiniMaxM3VLConfig

    with torch.device("meta"):
        config = MiniMaxM3VLConfig()
        tower = theirs.MiniMaxM3VLVisionModel(config.vision_config)
        projector = theirs.MiniMaxM3VLMultiModalProjector(config)
    assert sum(p.numel() for each in (tower, projector) for p in each.parameters()) == VISION


BOTH = {"model_type": "gemma4_text", **SMALL["gemma4_text"], **GEMMA4}
SHARED = {"model_type": "glm_moe_dsa", **SMALL["glm_moe_dsa"], **SHARING}
LATENT = {"model_type": "nemotron_h", **SMALL["nemotron_h"], "moe_latent_size": 16}


@daily(6)
@pytest.mark.parametrize("seq_len", [2, 3, 8, 9, 10, 20])
@pytest.mark.parametrize(
    "config",
    [{"model_type": M3, **SMALL[M3]}, LATENT, BOTH, SHARED],
    ids=["m3", "latent", "gemma 4", "glm 5.2"],
)
def test_three_witnesses_agree_below_at_and_beyond_the_blocks(
    config: dict[str, Any], seq_len: int
) -> None:
    """M3 reads 3 blocks of 3: FLOPs of prefill and decode, and the cache."""
    found = metacount.verify(config, Workload(seq_len=seq_len))
    names = [witness.name for witness in found.witnesses]
    assert names == ["formula", "reference", "transformers"]
    assert found.agree


# ---- Gemma 4 26B-A4B: sizes of its config; its card has 25.2B, of which 3.8B are active ----

A4B: dict[str, Any] = {
    "model_type": "gemma4_text",
    "attention_k_eq_v": True,
    "enable_moe_block": True,
    "global_head_dim": 512,
    "head_dim": 256,
    "hidden_size": 2816,
    "hidden_size_per_layer_input": 0,
    "intermediate_size": 2112,
    "moe_intermediate_size": 704,
    "num_attention_heads": 16,
    "num_experts": 128,
    "num_global_key_value_heads": 2,
    "num_hidden_layers": 30,
    "num_key_value_heads": 8,
    "num_kv_shared_layers": 0,
    "top_k_experts": 8,
    "vocab_size": 262144,
}


def test_gemma_4_26b_by_hand() -> None:
    d, expert = 2816, 3 * 2816 * 704
    # q and o, k and v, two norms; where everything is seen heads are wider, and v is k
    near = 2 * d * 16 * 256 + 2 * d * 8 * 256 + 2 * 256
    full = 2 * d * 16 * 512 + d * 2 * 512 + 2 * 512
    # a feed-forward, a router with a number a value and one an expert, experts, seven norms
    layer = 3 * d * 2112 + 128 * d + d + 128 + 128 * expert + 7 * d
    total = 262144 * d + 25 * near + 5 * full + 30 * layer + d
    counted = metacount.count(A4B)
    assert counted.params == total == 25_233_141_760
    assert counted.active_params == total - 30 * (128 - 8) * expert
    assert counted.kv_cache_bytes_per_token == 2 * 2 * (25 * 8 * 256 + 5 * 2 * 512)


# ---- Nemotron 3 Ultra, published as 550B-A55B: sizes of its config ----

ULTRA: dict[str, Any] = {
    "model_type": "nemotron_h",
    "hidden_size": 8192,
    "vocab_size": 131072,
    "hybrid_override_pattern": "MEMEMEM*E" * 12,
    "mamba_head_dim": 64,
    "mamba_num_heads": 256,
    "n_routed_experts": 512,
    "num_experts_per_tok": 22,
    "moe_intermediate_size": 5120,
    "moe_latent_size": 2048,
    "moe_shared_expert_intermediate_size": 10240,
    "num_attention_heads": 64,
    "num_key_value_heads": 2,
    "head_dim": 128,
}


def test_nemotron_3_ultra_by_hand() -> None:
    d, latent, experts = 8192, 2048, 512
    # router, two projections of the latent, experts of two matrices in it, a shared one of d
    moe = experts * d + 2 * d * latent + experts * 2 * latent * 5120 + 2 * d * 10240 + d
    # 256 heads of 64, 8 groups with a state of 128, a convolution of 4 with bias, D, A and steps
    inner, conv = 256 * 64, 256 * 64 + 2 * 8 * 128
    mamba = d * (inner + conv + 256) + 5 * conv + 3 * 256 + inner + inner * d + d
    attention = 2 * d * 64 * 128 + 2 * d * 2 * 128 + d
    total = 2 * 131072 * d + 48 * (moe + mamba) + 12 * attention + d
    counted = metacount.count(ULTRA)
    assert counted.params == total == 549_308_968_960
    assert counted.active_params == total - 48 * (experts - 22) * 2 * latent * 5120
