"""Counts of the catalog's models by others' code, and three FLOP figures of LLaMA-7B.

python benchmarks/measured_counts.py [ID…]

Prints what the tables of the tests hold: `numel()` of transformers' class on the meta device, or
plain algebra where transformers has no such class; of a mixture of experts also what one token
uses, with and without the token table. Then the products of LLaMA-7B's forward over 2,048 tokens
by torch's own counter, their half and twice them. Of metacount nothing is imported: the sizes are
read from the files of its catalog.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

CATALOG = Path(__file__).parent.parent / "metacount" / "catalog"
Sizes = dict[str, Any]


def sizes(id: str) -> Sizes:
    """The sizes of one model, as its file has them."""
    found: Sizes = json.loads((CATALOG / f"{id}.json").read_text("utf-8"))["spec"]
    return found


def common(s: Sizes) -> dict[str, Any]:
    """The keys that most config classes share."""
    return {
        "hidden_size": s["d_model"],
        "num_hidden_layers": s["n_layers"],
        "num_attention_heads": s["n_heads"],
        "num_key_value_heads": s.get("n_kv_heads"),
        "head_dim": s.get("head_dim"),
        "intermediate_size": s.get("d_ff"),
        "vocab_size": s["vocab_size"],
        "tie_word_embeddings": s.get("tie_embeddings", False),
        "pad_token_id": 0,
    }


def without(keys: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in keys.items() if name not in names}


def square(s: Sizes) -> dict[str, Any]:
    """The shared keys of a class whose heads are d // h wide."""
    return without(common(s), "head_dim")


def old_gpt(s: Sizes) -> dict[str, Any]:
    """GPT-2's names."""
    return {
        "n_embd": s["d_model"],
        "n_layer": s["n_layers"],
        "n_head": s["n_heads"],
        "vocab_size": s["vocab_size"],
        "n_positions": s["n_positions"],
    }


def t5(s: Sizes) -> dict[str, Any]:
    gate = "gated-gelu" if s["gated"] else "relu"
    return {
        "d_model": s["d_model"],
        "num_layers": s["n_layers"],
        "d_kv": s["head_dim"],
        "num_decoder_layers": s["n_layers"],
        "num_heads": s["n_heads"],
        "d_ff": s.get("d_ff"),
        "vocab_size": s["vocab_size"],
        "feed_forward_proj": gate,
    }


def switch(s: Sizes) -> dict[str, Any]:
    every = s["n_layers"] // s.get("moe_every", 1)
    return {
        **t5(s),
        "d_ff": s["d_ff_expert"],
        "num_experts": s["n_experts"],
        "num_sparse_encoder_layers": every,
        "num_sparse_decoder_layers": every,
    }


LATENT = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def paired(s: Sizes) -> dict[str, Any]:
    """LongCat-Flash: two of our layers are one of its class's."""
    return {
        **{name: s[name] for name in LATENT},
        "hidden_size": s["d_model"],
        "num_layers": s["n_layers"] // 2,
        "num_attention_heads": s["n_heads"],
        "ffn_hidden_size": s["d_ff"],
        "expert_ffn_hidden_size": s["d_ff_expert"],
        "n_routed_experts": s["n_experts"],
        "zero_expert_num": s["n_zero_experts"],
        "moe_topk": s["top_k"],
        "vocab_size": s["vocab_size"],
    }


def latent(s: Sizes) -> dict[str, Any]:
    return {
        **without(common(s), "head_dim"),
        "num_key_value_heads": s["n_heads"],
        **{name: s[name] for name in LATENT},
        "n_routed_experts": s["n_experts"],
        "num_experts_per_tok": s["top_k"],
        "n_shared_experts": s["n_shared_experts"],
        "moe_intermediate_size": s["d_ff_expert"],
        "first_k_dense_replace": s["n_dense_layers"],
    }


def mixture(s: Sizes, experts: str = "num_experts") -> dict[str, Any]:
    """The keys of a mixture; a class of experts alone takes intermediate_size as their width."""
    dense = common(s)["intermediate_size"] or s["d_ff_expert"]
    return {
        **common(s),
        "intermediate_size": dense,
        experts: s["n_experts"],
        "num_experts_per_tok": s["top_k"],
        "moe_intermediate_size": s["d_ff_expert"],
    }


def letters(s: Sizes, name: str) -> str:
    """A pattern of layers, written out."""
    pattern: str = s.get(name, "F" if name == "ffn_pattern" else "A")
    return "".join(pattern[i % len(pattern)] for i in range(s["n_layers"]))


def layers(s: Sizes, **words: str) -> list[str]:
    """A word for each layer, by the letter of its mixer."""
    return [words[letter] for letter in letters(s, "mixer_pattern")]


def mamba(s: Sizes) -> dict[str, Any]:
    return {
        "hidden_size": s["d_model"],
        "intermediate_size": s["d_ssm"],
        "state_size": s["ssm_state_dim"],
        "num_hidden_layers": s["n_layers"],
        "conv_kernel": s["conv_kernel"],
        "time_step_rank": s["dt_rank"],
        "expand": s["d_ssm"] // s["d_model"],
        "vocab_size": s["vocab_size"],
        "tie_word_embeddings": s.get("tie_embeddings", False),
        "pad_token_id": 0,
    }


def mamba2(s: Sizes) -> dict[str, Any]:
    width = s["n_ssm_heads"] * s["ssm_head_dim"]
    return {
        "hidden_size": s["d_model"],
        "num_hidden_layers": s["n_layers"],
        "state_size": s["ssm_state_dim"],
        "conv_kernel": s["conv_kernel"],
        "expand": width // s["d_model"],
        "num_heads": s["n_ssm_heads"],
        "head_dim": s["ssm_head_dim"],
        "n_groups": s.get("n_ssm_groups", 1),
        "vocab_size": s["vocab_size"],
        "pad_token_id": 0,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "tie_word_embeddings": s.get("tie_embeddings", False),
    }


def bamba(s: Sizes) -> dict[str, Any]:
    width = s["n_ssm_heads"] * s["ssm_head_dim"]
    attends = [i for i, letter in enumerate(letters(s, "mixer_pattern")) if letter == "A"]
    return {
        **without(common(s), "head_dim"),
        "attn_layer_indices": attends,
        "mamba_n_heads": s["n_ssm_heads"],
        "mamba_d_head": s["ssm_head_dim"],
        "mamba_n_groups": s.get("n_ssm_groups", 1),
        "mamba_d_state": s["ssm_state_dim"],
        "mamba_d_conv": s["conv_kernel"],
        "mamba_expand": width // s["d_model"],
    }


def jamba(s: Sizes) -> dict[str, Any]:
    mixers, ffns = letters(s, "mixer_pattern"), letters(s, "ffn_pattern")
    return {
        **without(common(s), "head_dim"),
        "intermediate_size": s["d_ff_expert"],
        "num_experts": s["n_experts"],
        "num_experts_per_tok": s["top_k"],
        "attn_layer_offset": mixers.index("A"),
        "attn_layer_period": len(s["mixer_pattern"]),
        "expert_layer_offset": ffns.index("E"),
        "expert_layer_period": len(s["ffn_pattern"]),
        "mamba_d_state": s["ssm_state_dim"],
        "mamba_d_conv": s["conv_kernel"],
        "mamba_expand": s["d_ssm"] // s["d_model"],
        "mamba_dt_rank": s["dt_rank"],
        "use_mamba_kernels": False,
    }


def kimi_linear(s: Sizes) -> dict[str, Any]:
    heads = {
        "num_heads": s["n_linear_heads"],
        "head_dim": s["linear_head_dim"],
        "short_conv_kernel_size": s["conv_kernel"],
    }
    kinds = letters(s, "mixer_pattern")
    linear, full = ([i + 1 for i, kind in enumerate(kinds) if kind == it] for it in "RA")
    return {
        **without(common(s), "head_dim"),
        "num_key_value_heads": s["n_heads"],
        **{
            name: s[name]
            for name in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        },
        "q_lora_rank": s.get("q_lora_rank"),
        "linear_attn_config": {**heads, "kda_layers": linear, "full_attn_layers": full},
        "num_experts": s["n_experts"],
        "num_experts_per_token": s["top_k"],
        "num_shared_experts": s["n_shared_experts"],
        "moe_intermediate_size": s["d_ff_expert"],
        "first_k_dense_replace": s["n_dense_layers"],
    }


def lfm2(s: Sizes) -> dict[str, Any]:
    return {
        **without(common(s), "head_dim"),
        "conv_L_cache": s["conv_kernel"],
        "block_auto_adjust_ff_dim": False,
        "layer_types": layers(s, A="full_attention", R="conv"),
    }


def lfm2_moe(s: Sizes) -> dict[str, Any]:
    return {
        **without(lfm2(s), "block_auto_adjust_ff_dim"),
        "num_experts": s["n_experts"],
        "num_experts_per_tok": s["top_k"],
        "moe_intermediate_size": s["d_ff_expert"],
        "num_dense_layers": s["n_dense_layers"],
    }


def minimax(s: Sizes) -> dict[str, Any]:
    return {
        **mixture(s, "num_local_experts"),
        "intermediate_size": s["d_ff_expert"],
        "layer_types": layers(s, A="full_attention", R="linear_attention"),
    }


def nemotron_h(s: Sizes) -> dict[str, Any]:
    kinds = zip(letters(s, "mixer_pattern"), letters(s, "ffn_pattern"), strict=True)
    names = {"RN": "M", "AN": "*", "NF": "-", "NE": "E"}
    found = {
        **without(common(s), "num_hidden_layers"),
        "hybrid_override_pattern": "".join(names[mixer + ffn] for mixer, ffn in kinds),
        "mamba_num_heads": s["n_ssm_heads"],
        "mamba_head_dim": s["ssm_head_dim"],
        "n_groups": s["n_ssm_groups"],
        "ssm_state_size": s["ssm_state_dim"],
        "conv_kernel": s["conv_kernel"],
    }
    if "n_experts" not in s:
        return found
    shared = s.get("d_ff_shared", s["d_ff_expert"])
    return {
        **found,
        "intermediate_size": s.get("d_ff") or s["d_ff_expert"],
        "n_routed_experts": s["n_experts"],
        "num_experts_per_tok": s["top_k"],
        "moe_intermediate_size": s["d_ff_expert"],
        "n_shared_experts": s["n_shared_experts"],
        "moe_shared_expert_intermediate_size": shared,
    }


def olmo_hybrid(s: Sizes) -> dict[str, Any]:
    return {
        **without(common(s), "head_dim"),
        "layer_types": layers(s, A="full_attention", R="linear_attention"),
        "linear_num_key_heads": s["n_linear_k_heads"],
        "linear_num_value_heads": s["n_linear_v_heads"],
        "linear_key_head_dim": s["linear_k_head_dim"],
        "linear_value_head_dim": s["linear_v_head_dim"],
        "linear_conv_kernel_dim": s["conv_kernel"],
    }


def recurrent_gemma(s: Sizes) -> dict[str, Any]:
    kinds = s["mixer_pattern"]
    words = {"R": "recurrent", "A": "attention"}
    return {
        **common(s),
        "intermediate_size": 2 * s["d_ff"],
        "lru_width": s["lru_width"],
        "block_types": [words[letter] for letter in kinds],
        "conv1d_width": s["conv_kernel"],
    }


def xlstm(s: Sizes) -> dict[str, Any]:
    heads, d_model = s["n_linear_heads"], s["d_model"]
    return {
        "hidden_size": d_model,
        "num_hidden_layers": s["n_layers"],
        "vocab_size": s["vocab_size"],
        "num_heads": heads,
        "qk_dim_factor": heads * s["linear_k_head_dim"] / d_model,
        "v_dim_factor": heads * s["linear_v_head_dim"] / d_model,
        "ffn_proj_factor": s["d_ff"] / d_model,
    }


def zamba2(s: Sizes) -> dict[str, Any]:
    return {
        **without(common(s), "head_dim"),
        "layers_block_type": layers(s, R="linear_attention", S="hybrid"),
        "mamba_d_state": s["ssm_state_dim"],
        "mamba_d_conv": s["conv_kernel"],
        "mamba_expand": s["n_ssm_heads"] * s["ssm_head_dim"] // s["d_model"],
        "mamba_ngroups": s["n_ssm_groups"],
        "n_mamba_heads": s["n_ssm_heads"],
        "num_mem_blocks": s["n_shared_blocks"],
        "adapter_rank": s["adapter_rank"],
        "use_shared_attention_adapter": s.get("attention_adapters", False),
    }


def minimax_m3(s: Sizes) -> dict[str, Any]:
    full, indexed = "full_attention", "minimax_m3_sparse"
    n_dense, n_layers = s["n_dense_layers"], s["n_layers"]
    return {
        **common(s),
        "intermediate_size": s["d_ff_expert"],
        "dense_intermediate_size": s["d_ff"],
        "shared_intermediate_size": s["d_ff_shared"],
        "num_local_experts": s["n_experts"],
        "num_experts_per_tok": s["top_k"],
        "mlp_layer_types": ["dense"] * n_dense + ["sparse"] * (n_layers - n_dense),
        "layer_types": [indexed if x == "I" else full for x in letters(s, "index_pattern")],
        "index_n_heads": s["n_index_heads"],
        "index_head_dim": s["index_head_dim"],
        "index_block_size": s["index_block_len"],
        "index_topk_blocks": s["index_top_blocks"],
    }


# a prefix of the id, the class of transformers, and its config; the first that fits is taken
CLASSES: list[tuple[str, str, Callable[[Sizes], dict[str, Any]]]] = [
    ("bert-base", "BertModel", lambda s: without(common(s), "head_dim", "num_key_value_heads")),
    ("bloom", "BloomForCausalLM", lambda s: {"hidden_size": s["d_model"],
     "n_layer": s["n_layers"], "n_head": s["n_heads"], "vocab_size": s["vocab_size"]}),
    ("deepseek-v2", "DeepseekV2ForCausalLM", latent),
    ("deepseek-v3", "DeepseekV3ForCausalLM", latent),
    ("falcon", "FalconForCausalLM", lambda s: {
        **without(common(s), "num_key_value_heads", "head_dim"), "alibi": False,
        "num_kv_heads": s["n_kv_heads"], "new_decoder_architecture": True,
        "ffn_hidden_size": s["d_ff"]}),
    ("gemma2", "Gemma2ForCausalLM", common), ("gemma3", "Gemma3ForCausalLM", common),
    ("gemma", "GemmaForCausalLM", common),
    ("glm-4.5", "Glm4MoeForCausalLM", lambda s: {**mixture(s, "n_routed_experts"),
     "n_shared_experts": s["n_shared_experts"], "first_k_dense_replace": s["n_dense_layers"],
     "use_qk_norm": True, "attention_bias": True}),
    ("gpt-oss", "GptOssForCausalLM", lambda s: mixture(s, "num_local_experts")),
    ("gpt2", "GPT2LMHeadModel", old_gpt), ("gpt3", "GPT2LMHeadModel", old_gpt),
    ("jurassic1", "GPT2LMHeadModel", old_gpt), ("mt-nlg", "GPT2LMHeadModel", old_gpt),
    ("granite", "GraniteForCausalLM", common),
    ("llama4-scout", "Llama4ForCausalLM", lambda s: {
        **without(common(s), "intermediate_size"), "intermediate_size": s["d_ff_expert"],
        "num_local_experts": s["n_experts"], "num_experts_per_tok": s["top_k"],
        "interleave_moe_layer_step": 1, "use_qk_norm": True}),
    ("longcat-flash", "LongcatFlashForCausalLM", paired),
    ("mistral", "MistralForCausalLM", common),
    ("mixtral", "MixtralForCausalLM", lambda s: mixture(s, "num_local_experts")),
    ("mpt", "MptForCausalLM", lambda s: {"d_model": s["d_model"], "n_layers": s["n_layers"],
     "n_heads": s["n_heads"], "vocab_size": s["vocab_size"], "expansion_ratio": 4}),
    ("olmo2", "Olmo2ForCausalLM", square),
    ("opt", "OPTForCausalLM", lambda s: {"hidden_size": s["d_model"], "ffn_dim": s["d_ff"],
     "num_hidden_layers": s["n_layers"], "num_attention_heads": s["n_heads"],
     "vocab_size": s["vocab_size"], "max_position_embeddings": s["n_positions"] - 2,
     "word_embed_proj_dim": s["d_model"]}),
    ("phi3.5-moe", "PhimoeForCausalLM", lambda s: {
        **mixture(s, "num_local_experts"), "attention_bias": True, "lm_head_bias": True}),
    ("pythia", "GPTNeoXForCausalLM", lambda s: without(common(s), "head_dim",
                                                       "num_key_value_heads")),
    ("qwen3-235b", "Qwen3MoeForCausalLM", mixture), ("qwen3", "Qwen3ForCausalLM", common),
    ("qwen", "Qwen2ForCausalLM", square),
    ("smollm3", "SmolLM3ForCausalLM", square),
    ("switch", "SwitchTransformersForConditionalGeneration", switch),
    ("t5", "T5ForConditionalGeneration", t5),
    ("bamba", "BambaForCausalLM", bamba), ("jamba", "JambaForCausalLM", jamba),
    ("kimi-linear", "KimiLinearForCausalLM", kimi_linear),
    ("lfm2-8b", "Lfm2MoeForCausalLM", lfm2_moe), ("lfm2", "Lfm2ForCausalLM", lfm2),
    ("mamba-2.8b", "MambaForCausalLM", mamba), ("mamba2", "Mamba2ForCausalLM", mamba2),
    ("mamba-codestral", "Mamba2ForCausalLM", mamba2),
    ("minimax-m3", "MiniMaxM3VLForCausalLM", minimax_m3),
    ("minimax", "MiniMaxForCausalLM", minimax),
    ("nemotron", "NemotronHForCausalLM", nemotron_h),
    ("olmo-hybrid", "OlmoHybridForCausalLM", olmo_hybrid),
    ("recurrentgemma", "RecurrentGemmaForCausalLM", recurrent_gemma),
    ("xlstm", "xLSTMForCausalLM", xlstm),
    ("zamba2", "Zamba2ForCausalLM", zamba2),
    # the same tensors as LLaMA's under other names, or in other pieces
    *((id, "LlamaForCausalLM", common) for id in (
        "llama", "yi", "deepseek-67b", "internlm2", "yulan", "smollm2", "baichuan2")),
]  # fmt: skip


def gpt_block(d: int, m: int, norms: int = 2) -> int:
    """Four square matrices and two of the FFN, no biases, norms of one vector each."""
    return 4 * d * d + 2 * d * m + norms * d


def galactica(s: Sizes) -> int:
    d = s["d_model"]
    return (s["vocab_size"] + s["n_positions"] + 1) * d + s["n_layers"] * gpt_block(d, s["d_ff"])


def gopher(s: Sizes) -> int:
    d, n = s["d_model"], s["n_layers"]
    # a projection of relative positions, and two biases of the heads, in every block
    return (s["vocab_size"] + 1) * d + n * (gpt_block(d, s["d_ff"]) + d * d + 2 * d)


def gshard(s: Sizes) -> int:
    """Experts and attention alone, as the paper counts: half of the blocks have experts."""
    d, m, wide = s["d_model"], s["d_ff"], s["n_heads"] * s["head_dim"]
    ffns = s["n_layers"] // 2 * (2 * d * m + s["n_experts"] * (2 * d * m + d))
    return 2 * ffns + 3 * s["n_layers"] * 4 * d * wide


def lamda(s: Sizes) -> int:
    d, wide = s["d_model"], s["n_heads"] * s["head_dim"]
    return (s["vocab_size"] + 1) * d + s["n_layers"] * (4 * d * wide + 3 * d * s["d_ff"] + 2 * d)


def palm(s: Sizes) -> int:
    d, h, width = s["d_model"], s["n_heads"], s["head_dim"]
    block = 2 * d * h * width + 2 * d * width + 3 * d * s["d_ff"] + d
    return (s["vocab_size"] + 1) * d + s["n_layers"] * block


def pangu(s: Sizes) -> int:
    d = s["d_model"]
    tables = (s["vocab_size"] + s["n_positions"] + s["n_query_positions"]) * d
    return tables + s["n_layers"] * (12 * d * d + 13 * d) + 2 * d


def phi3_small(s: Sizes) -> int:
    d, m, kv = s["d_model"], s["d_ff"], s["n_kv_heads"] * s["head_dim"]
    attention = 2 * d * d + 2 * d * kv + 2 * d + 2 * kv
    return (s["vocab_size"] + 2) * d + s["n_layers"] * (attention + 3 * d * m + 2 * m + d + 4 * d)


def glm(s: Sizes) -> int:
    d, m = s["d_model"], s["d_ff"]
    block = 4 * d * d + 4 * d + 3 * d * m + 2 * m + d + 4 * d
    return s["vocab_size"] * d + s["n_layers"] * block + 2 * d


def switch_xxl(s: Sizes) -> int:
    """Switch with gated experts, which transformers' class does not have: every second block."""
    d, m, n, e = s["d_model"], s["d_ff"], s["n_layers"], s["n_experts"]
    attention, ffn = 4 * d * s["n_heads"] * s["head_dim"], 3 * d * m
    ffns = n // 2 * (ffn + e * ffn + e * d)
    stacks = 2 * ffns + n * (attention + 2 * d) + n * (2 * attention + 3 * d)
    return s["vocab_size"] * d + stacks + 2 * (d + s["n_buckets"] * s["n_heads"])


def transformer(s: Sizes) -> int:
    d, m, n = s["d_model"], s["d_ff"], s["n_layers"]
    ffn = 2 * d * m + m + d
    return s["vocab_size"] * d + n * (4 * d * d + ffn + 4 * d) + n * (8 * d * d + ffn + 6 * d)


def deepseek_moe(s: Sizes) -> tuple[int, int, int]:
    d, n, dense = s["d_model"], s["n_layers"], s["n_dense_layers"]
    expert, table = 3 * d * s["d_ff_expert"], s["vocab_size"] * d
    rest = 2 * table + n * (4 * d * d + 2 * d) + d + dense * 3 * d * s["d_ff"]
    total, active = (
        rest + (n - dense) * (d * s["n_experts"] + (used + s["n_shared_experts"]) * expert)
        for used in (s["n_experts"], s["top_k"])
    )
    return total, active, active - table


Count = int | tuple[int, int, int]
ALGEBRA: dict[str, Callable[[Sizes], Count]] = {
    "chinchilla-70b": gopher,
    "gopher-280b": gopher,
    "deepseek-moe-16b": deepseek_moe,
    "galactica-120b": galactica,
    "glm-130b": glm,
    "gshard-600b": gshard,
    "lamda-137b": lamda,
    "palm-540b": palm,
    "pangu-alpha-207b": pangu,
    "phi3-small": phi3_small,
    "switch-xxl": switch_xxl,
    "transformer-base": transformer,
    "transformer-big": transformer,
}


def counted(id: str) -> tuple[Count, str]:
    """The count of one model, and by what."""
    if id in ALGEBRA:
        return ALGEBRA[id](sizes(id)), "algebra"
    _, name, config_of = next(row for row in CLASSES if id.startswith(row[0]))
    kind: Any = getattr(transformers, name)
    with torch.device("meta"):
        model: nn.Module = kind(kind.config_class(**config_of(sizes(id))))
    return numel(model, sizes(id)), name


def numel(model: nn.Module, s: Sizes) -> Count:
    """Distinct values; of a decoder with experts (3-D tensors) also those that one token uses."""
    tensors = list(model.parameters())
    total = sum(tensor.numel() for tensor in tensors)
    if not s.get("n_experts") or s["kind"] != "decoder":
        return total
    e, k = s["n_experts"], s["top_k"]
    experts = [t for name, t in model.named_parameters() if ".experts." in name]
    if s.get("n_zero_experts"):  # one matrix has rows for these, which no token reads
        unused = sum(t.numel() // len(t) * (len(t) - k) for t in experts)
    else:
        stored = sum(t.numel() for t in experts)
        assert stored % e == 0
        unused = stored // e * (e - k)
    active = total - unused
    table = 0 if s.get("tie_embeddings") else s["vocab_size"] * s["d_model"]
    return total, active, active - table


def flop_figures() -> Iterator[tuple[str, int]]:
    """LLaMA-7B, one sequence of 2,048 tokens: torch's own counter over attention written out."""
    config = transformers.LlamaConfig(**common(sizes("llama-7b")), attn_implementation="eager")
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
        mask = torch.zeros(1, 1, 2048, 2048)
        tokens = torch.zeros(1, 2048, dtype=torch.long)
        with FlopCounterMode(display=False) as counter:
            model(input_ids=tokens, attention_mask=mask, use_cache=False)
    flops = counter.get_total_flops()
    yield "a forward", flops
    yield "half of it, in multiply-adds", flops // 2
    yield "twice it, which a training step has more", 2 * flops


def catalog_ids() -> list[str]:
    """Every model of the catalog that something here can count."""
    ids = sorted(path.stem for path in CATALOG.glob("*.json"))
    can = [id for id in ids if id in ALGEBRA or any(id.startswith(row[0]) for row in CLASSES)]
    return [id for id in can if sizes(id) is not None]


def main(ids: list[str]) -> None:
    for id in ids or catalog_ids():
        count, by = counted(id)
        figures = (count,) if isinstance(count, int) else count
        print(f"{id:20} {', '.join(f'{n:,}' for n in figures):50} {by}")
    if not ids:
        for what, flops in flop_figures():
            print(f"{what:42} {flops:,}")


if __name__ == "__main__":
    main(sys.argv[1:])
