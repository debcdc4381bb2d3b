"""Small GGUF files of every architecture that is read, written by the library's own writer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES

D, M, LAYERS, HEADS, KV, VOCAB, EXPERTS, EXPERT = 96, 160, 3, 6, 2, 101, 5, 64

# What each architecture's file has beside the common keys and tensors.
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"biased": True},
    "qwen3": {"head_dim": 32, "qk_norm": True},
    "qwen3moe": {"head_dim": 32, "qk_norm": True, "experts": True, "expert_width": True},
    "phi3": {"fused": True},
    "gemma": {"head_dim": 32, "tied": True},
    "gemma2": {"head_dim": 32, "tied": True, "post_norms": True, "window": 16, "softcaps": True},
    "gemma3": {"head_dim": 32, "tied": True, "post_norms": True, "window": 16, "qk_norm": True},
}

Tensor = tuple[str, tuple[int, ...]]


def tensors_of(it: dict[str, Any]) -> list[Tensor]:
    """Name and shape of each tensor, in PyTorch's order, as llama.cpp's converter writes them."""
    width = it.get("head_dim", D // HEADS)
    q, kv = HEADS * width, KV * width
    found: list[Tensor] = [("token_embd.weight", (VOCAB, D)), ("output_norm.weight", (D,))]
    if not it.get("tied"):
        found.append(("output.weight", (VOCAB, D)))
    for n in range(LAYERS):
        block: list[Tensor] = [("attn_norm", (D,)), ("ffn_norm", (D,)), ("attn_output", (D, q))]
        if it.get("fused"):
            block += [("attn_qkv", (q + 2 * kv, D)), ("ffn_up", (2 * M, D)), ("ffn_down", (D, M))]
        else:
            block += [("attn_q", (q, D)), ("attn_k", (kv, D)), ("attn_v", (kv, D))]
        if it.get("experts"):
            m = EXPERT if it.get("expert_width") else M
            block += [("ffn_gate_inp", (EXPERTS, D)), ("ffn_gate_exps", (EXPERTS, m, D))]
            block += [("ffn_up_exps", (EXPERTS, m, D)), ("ffn_down_exps", (EXPERTS, D, m))]
        elif not it.get("fused"):
            block += [("ffn_gate", (M, D)), ("ffn_up", (M, D)), ("ffn_down", (D, M))]
        if it.get("qk_norm"):
            block += [("attn_q_norm", (width,)), ("attn_k_norm", (width,))]
        if it.get("post_norms"):
            block += [("post_attention_norm", (D,)), ("post_ffw_norm", (D,))]
        found += [(f"blk.{n}.{name}.weight", shape) for name, shape in block]
        if it.get("biased"):
            found += [(f"blk.{n}.attn_{x}.bias", (q if x == "q" else kv,)) for x in "qkv"]
    return found


def keys_of(writer: GGUFWriter, it: dict[str, Any]) -> None:
    """The keys that go with them."""
    writer.add_name("small")
    writer.add_context_length(128)
    writer.add_embedding_length(D)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(M)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV)
    writer.add_layer_norm_rms_eps(1e-5)
    if "head_dim" in it:
        writer.add_key_length(it["head_dim"])
        writer.add_value_length(it["head_dim"])
    if it.get("experts"):
        writer.add_expert_count(EXPERTS)
        writer.add_expert_used_count(2)
    if it.get("expert_width"):
        writer.add_expert_feed_forward_length(EXPERT)
    if "window" in it:
        writer.add_sliding_window(it["window"])
    if it.get("softcaps"):
        writer.add_attn_logit_softcapping(50.0)
        writer.add_final_logit_softcapping(30.0)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"piece {n}" for n in range(VOCAB)])
    writer.add_token_scores([0.0] * VOCAB)


def written(
    path: Path,
    name: str,
    changes: dict[str, Any] | None = None,
    *,
    tensors: list[Tensor] | None = None,
    more: dict[str, Any] | None = None,
    kind: GGMLQuantizationType = GGMLQuantizationType.F16,
) -> str:
    """Write one file; matrices are of `kind`, `more` are further keys of whole numbers or texts."""
    it = {**ARCHITECTURES[name], **(changes or {})}
    writer = GGUFWriter(path, name)
    keys_of(writer, it)
    for key, value in (more or {}).items():
        (writer.add_string if isinstance(value, str) else writer.add_uint32)(key, value)
    for tensor, shape in tensors_of(it) if tensors is None else tensors:
        # norms and biases are never packed
        packed = kind if len(shape) > 1 else GGMLQuantizationType.F32
        block, size = GGML_QUANT_SIZES[packed]
        bytes_shape = (*shape[:-1], shape[-1] // block * size)
        writer.add_tensor(tensor, np.zeros(bytes_shape, dtype=np.uint8), raw_dtype=packed)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


def large(path: Path, sizes: dict[str, int], *, context: int, vocab: int) -> str:
    """A file of LLaMA's layout at a real model's sizes: a header, then a hole for the values."""
    d, m, kv = sizes["d"], sizes["m"], sizes["kv"]
    writer = GGUFWriter(path, "llama")
    writer.add_vocab_size(vocab)
    writer.add_context_length(context)
    writer.add_embedding_length(d)
    writer.add_block_count(sizes["layers"])
    writer.add_feed_forward_length(m)
    writer.add_head_count(sizes["heads"])
    writer.add_head_count_kv(sizes["heads"] * kv // d)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(d // sizes["heads"])
    shapes: list[Tensor] = [
        ("token_embd.weight", (vocab, d)),
        ("output.weight", (vocab, d)),
        ("output_norm.weight", (d,)),
    ]
    for n in range(sizes["layers"]):
        block = {
            "attn_norm": (d,),
            "ffn_norm": (d,),
            "attn_q": (d, d),
            "attn_k": (kv, d),
            "attn_v": (kv, d),
            "attn_output": (d, d),
            "ffn_gate": (m, d),
            "ffn_up": (m, d),
            "ffn_down": (d, m),
        }
        shapes += [(f"blk.{n}.{name}.weight", shape) for name, shape in block.items()]
    n_bytes = 0
    for name, shape in shapes:
        kind = GGMLQuantizationType.Q4_0 if len(shape) > 1 else GGMLQuantizationType.F32
        block, size = GGML_QUANT_SIZES[kind]
        taken = int(np.prod(shape)) // block * size
        packed = (*shape[:-1], shape[-1] // block * size)
        writer.add_tensor_info(name, packed, np.dtype(np.uint8), taken, raw_dtype=kind)
        n_bytes += -(-taken // 32) * 32
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    start = -(-path.stat().st_size // 32) * 32
    os.truncate(path, start + n_bytes)
    return str(path)
