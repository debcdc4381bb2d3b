"""The structure of a model in words: what stays while its sizes vary."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from metacount.spec import ModelSpec

NORMS = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}
QK_NORMS = {
    "head": "QK-norm",
    "full": "QK-norm over all heads",
    "layernorm": "QK-LayerNorm",
}
POSITIONS = {
    "learned": "a learned position table",
    "t5": "T5's relative positions",
    "transformer_xl": "Transformer-XL's relative positions",
}


def structure(spec: ModelSpec) -> str:
    """What of `spec` matters to a count and is no size.

    >>> from metacount.catalog import entry
    >>> structure(entry("qwen3-32b").spec())
    'decoder with multi-head or grouped attention, QK-norm, gated FFN, RMSNorm, untied head'
    """
    parts = [_attention(spec), _biases(spec), QK_NORMS.get(spec.qk_norm, "")]
    parts += ["sinks" if spec.attention_sinks else "", _ffn(spec), NORMS[spec.norm]]
    parts += [POSITIONS.get(spec.position, ""), _head(spec)]
    if spec.window is not None:
        parts.append(f"{spec.window_kind} window (layers {spec.window_pattern})")
    return f"{spec.kind} with {', '.join(part for part in parts if part)}"


def _attention(spec: ModelSpec) -> str:
    if spec.attention == "gqa":
        return "multi-head or grouped attention"  # how many key/value heads is a size
    return "MLA" if spec.q_lora_rank is not None else "MLA without a query latent"


def _biases(spec: ModelSpec) -> str:
    flags = {"q": spec.q_bias, "k": spec.k_bias, "v": spec.v_bias, "o": spec.o_bias}
    named = "".join(name for name, bias in flags.items() if bias)
    return f"biases on {', '.join(named)}" if named else ""


def _ffn(spec: ModelSpec) -> str:
    kind = "gated" if spec.gated else "plain"
    bias = " with biases" if spec.ffn_bias or spec.expert_bias else ""
    if not spec.is_moe:
        return f"{kind} FFN{bias}"
    shared = " and shared experts" if spec.n_shared_experts else ""
    dense = " after dense layers" if spec.n_dense_layers else ""
    every = " in every moe_every-th layer" if spec.moe_every > 1 else ""
    return f"{kind} experts{shared}{bias}{dense}{every}"


def _head(spec: ModelSpec) -> str:
    if spec.vocab_size is None:
        return "no embedding and no head"
    if not spec.has_head:
        return "no head"
    return "tied head" if spec.tie_embeddings else "untied head"
