"""The logits of transformers' own models, with the same weights.

Their rotary tables are float32 in a float64 model, hence 1e-5 here; loops elsewhere hold 1e-11.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.module_loops import randomised
from helpers.module_specs import ENCODER_DECODER, MLA, MOE, ROPE, small
from torch import Tensor

from metacount.modules import Model
from metacount.spec import ModelSpec

# d_model must be a multiple of n_heads there, whatever head_dim is
OURS: dict[str, Any] = {**ROPE, "d_model": 12}
THEIRS: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "intermediate_size": 17,
    "rms_norm_eps": 1e-5,
    "attn_implementation": "eager",
    "pad_token_id": 0,
    "eos_token_id": 1,
}

Rename = Callable[[str, Tensor], tuple[str, Tensor]]


def same_names(name: str, value: Tensor) -> tuple[str, Tensor]:
    """Their names are ours but for the outermost and the router's."""
    name = name.removeprefix("model.")
    if not name.startswith(("lm_head", "embed_tokens")):
        name = f"decoder.{name}"
    for router in ("mlp.gate", "mlp.router"):
        for end in ("weight", "bias"):
            name = name.replace(f"{router}.{end}", f"mlp.gate.proj.{end}")
    return name, value


def gpt_oss(name: str, value: Tensor) -> tuple[str, Tensor]:
    """Gate and up alternate in their fused tensors, whose matrices stand the other way round."""
    name, value = same_names(name, value)
    if "gate_up_proj" in name:
        value = torch.cat((value[..., 0::2], value[..., 1::2]), dim=-1)
    if name.endswith(("gate_up_proj", "down_proj")):
        value = value.transpose(1, 2)
    return name.replace("self_attn.sinks", "self_attn.core.sinks"), value


def compared(spec: ModelSpec, theirs: Any, rename: Rename) -> tuple[Model, Any]:
    """Both models, with the same random weights."""
    theirs.set_experts_implementation("eager")  # the fused product knows no float64
    randomised(theirs)
    ours = Model(spec).double().eval()
    found = [rename(name, value) for name, value in theirs.state_dict().items()]
    ours.load_state_dict(dict(found))  # strict: as many tensors, of the same names and shapes
    return ours, theirs


def assert_same_logits(ours: Tensor | None, theirs: Tensor) -> None:
    assert ours is not None
    assert ours.shape == theirs.shape
    assert theirs.abs().max() > 0.1
    assert ((ours - theirs).abs().max() / theirs.abs().max()).item() < 1e-5


def gemma3() -> dict[str, Any]:
    kinds = {"sliding_attention": 1e4, "full_attention": 1e6}
    return {
        "sliding_window": 4,
        "query_pre_attn_scalar": 7,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in kinds.items()
        },
    }


CASES: dict[str, tuple[str, dict[str, Any], ModelSpec, Rename]] = {
    "llama": ("Llama", {}, small(OURS), same_names),
    "qwen3": ("Qwen3", {}, small(OURS, qk_norm="head"), same_names),
    "olmo2": (
        "Olmo2",
        {"head_dim": 2},
        small(OURS, head_dim=2, qk_norm="full", norm_placement="post_branch"),
        same_names,
    ),
    "gemma3": (
        "Gemma3",
        gemma3(),
        small(
            OURS,
            norm_placement="sandwich",
            norm_unit_offset=True,
            qk_norm="head",
            window=4,
            window_pattern="LLG",
            attention_scale=7**-0.5,
            activation="gelu_tanh",
            embedding_scale=12**0.5,
            rope_theta=1e6,
            rope_theta_windowed=1e4,
            tie_embeddings=True,
        ),
        same_names,
    ),
    "gpt-oss": (
        "GptOss",
        {
            "num_local_experts": 7,
            "num_experts_per_tok": 3,
            "intermediate_size": 11,
            "sliding_window": 4,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
        small(
            OURS,
            MOE,
            router="topk_softmax",
            router_bias=True,
            expert_bias=True,
            activation="clamped_swiglu",
            attention_sinks=True,
            window=4,
            window_pattern="LG",
            q_bias=True,
            k_bias=True,
            v_bias=True,
            o_bias=True,
        ),
        gpt_oss,
    ),
    "deepseek-v3": (
        "DeepseekV3",
        {
            "num_key_value_heads": 6,
            "q_lora_rank": 19,
            "kv_lora_rank": 11,
            "head_dim": 4,
            "qk_nope_head_dim": 7,
            "qk_rope_head_dim": 4,
            "v_head_dim": 5,
            "n_group": 5,
            "moe_intermediate_size": 11,
            "n_routed_experts": 10,
            "num_experts_per_tok": 3,
            "topk_group": 2,
            "n_shared_experts": 2,
            "first_k_dense_replace": 1,
            "routed_scaling_factor": 2.5,
            "norm_topk_prob": True,
            "rms_norm_eps": 1e-6,
        },
        small(
            MLA,
            MOE,
            d_model=12,
            n_experts=10,
            n_dense_layers=1,
            n_shared_experts=2,
            n_groups=5,
            top_groups=2,
            router="sigmoid_renorm",
            selection_bias=True,
            routed_scale=2.5,
            norm_eps=1e-6,
        ),
        same_names,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_decoder_logits(name: str) -> None:
    import transformers

    family, options, spec, rename = CASES[name]
    config_name = f"{family}TextConfig" if family == "Gemma3" else f"{family}Config"
    config = getattr(transformers, config_name)(**(THEIRS | options))
    built = getattr(transformers, f"{family}ForCausalLM")(config)
    ours, theirs = compared(spec, built, rename)
    tokens = torch.randint(2, 101, (2, 11))
    with torch.no_grad():
        expected = theirs(tokens).logits
        assert_same_logits(ours(tokens).logits_BSV, expected)
        # and one token after the other, through our cache
        cache = ours.new_cache()
        steps = [ours(part, cache=cache, absorbed=True).logits_BSV for part in tokens.split(1, 1)]
    assert_same_logits(torch.cat([s for s in steps if s is not None], dim=1), expected)


def t5_name(name: str, value: Tensor) -> tuple[str, Tensor]:
    if name == "shared.weight" or name.endswith("embed_tokens.weight"):
        return "embed_tokens.weight", value
    if name == "lm_head.weight":
        return name, value
    stack, rest = name.split(".", 1)
    if rest == "final_layer_norm.weight":
        return f"{stack}.norm.weight", value
    _, index, _, layer, kind, *inner = rest.split(".")
    if "relative_attention_bias" in inner:
        return f"{stack}.relative_bias.relative_attention_bias.weight", value
    subs = ["self_attn", "mlp"] if stack == "encoder" else ["self_attn", "cross_attn", "mlp"]
    sub = subs[int(layer)]
    norms = {
        "self_attn": "input_layernorm",
        "cross_attn": "cross_attention_layernorm",
        "mlp": "post_attention_layernorm",
    }
    letters = {
        "q": "q_proj",
        "k": "k_proj",
        "v": "v_proj",
        "o": "o_proj",
        "wi": "up_proj",
        "wo": "down_proj",
    }
    end = norms[sub] if kind == "layer_norm" else f"{sub}.{letters[inner[0]]}"
    return f"{stack}.layers.{index}.{end}.weight", value


def test_t5_logits() -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=101,
        d_model=13,
        d_kv=5,
        num_heads=6,
        d_ff=17,
        num_layers=2,
        num_decoder_layers=3,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=20,
        layer_norm_epsilon=1e-5,
        feed_forward_proj="relu",
        tie_word_embeddings=True,
        decoder_start_token_id=0,
    )
    spec = small(
        ENCODER_DECODER,
        n_kv_heads=6,
        activation="relu",
        gated=False,
        attention_scale=1.0,
        tie_embeddings=True,
        logit_scale=13**-0.5,
    )
    ours, theirs = compared(spec, T5ForConditionalGeneration(config), t5_name)
    tokens, source = torch.randint(2, 101, (2, 29)), torch.randint(2, 101, (2, 31))
    with torch.no_grad():
        expected = theirs(input_ids=source, decoder_input_ids=tokens).logits
        assert_same_logits(ours(tokens, memory_BTD=ours.encode(source)).logits_BSV, expected)
