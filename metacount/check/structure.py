"""The structure of a model in words: what stays while its sizes vary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metacount.spec.stack import BESIDE, SHARING, WITH_ATTENTION, WITH_EXPERTS, WITH_FFN

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
MIXERS = {
    "gated_delta": "gated DeltaNet",
    "kimi_delta": "Kimi delta attention",
    "lightning": "lightning attention",
    "mamba": "Mamba",
    "mamba2": "Mamba-2",
    "mlstm": "mLSTM",
    "short_conv": "short convolutions",
    "rg_lru": "RG-LRU blocks",
}
LONGEST_PATTERN = 16


def structure(spec: ModelSpec) -> str:
    """Describe what of `spec` matters to a count and is no size.

    >>> from metacount.catalog import entry
    >>> structure(entry("qwen3-32b").spec())
    'decoder with multi-head or grouped attention, QK-norm, gated FFN, RMSNorm, untied head'
    """
    parts = [_recurrent(spec)]
    if set(WITH_ATTENTION) & set(spec.mixer_pattern):
        parts += [_attention(spec), _biases(spec), QK_NORMS.get(spec.qk_norm, "")]
        parts.append("sinks" if spec.attention_sinks else "")
    parts += [_ffn(spec), NORMS[spec.norm], POSITIONS.get(spec.position, ""), _head(spec)]
    parts += _around(spec)
    if spec.window is not None:
        parts.append(f"{spec.window_kind} window (layers {spec.window_pattern})")
    return f"{spec.kind} with {', '.join(part for part in parts if part)}"


def _around(spec: ModelSpec) -> list[str]:
    """Name what the spec has of what Gemma 3n has in and around its blocks."""
    found = {
        "AltUp": spec.n_altup_inputs,
        "LAuReL": spec.laurel_rank,
        "an embedding of each layer": spec.d_per_layer,
        "last layers that borrow keys and values": spec.n_kv_shared_layers,
        f"two widths of the FFN{_of_layers('W', spec.d_ff_pattern)}": spec.d_ff_second,
    }
    return [words for words, given in found.items() if given]


def _recurrent(spec: ModelSpec) -> str:
    if spec.recurrent == "none":
        return ""
    name, letters = MIXERS[spec.recurrent], spec.mixer_pattern
    if set(letters) == {"P"}:
        return f"{name} beside attention in every layer"
    if SHARING in letters:
        return f"{name}, behind shared blocks{_of_layers(SHARING, letters)}"
    return name + _of_layers("R", letters)


def _of_layers(letter: str, letters: str) -> str:
    """Say which layers of a pattern have `letter`, where it is not all of them."""
    if set(letters) == {letter}:
        return ""
    shown = letters if len(letters) <= LONGEST_PATTERN else letters[:LONGEST_PATTERN] + "..."
    return f" in the layers {letter} of {shown}"


def _attention(spec: ModelSpec) -> str:
    if spec.attention == "gqa":
        return f"multi-head or grouped attention{_in_blocks(spec)}"  # h_kv is a size
    indexed = "" if spec.index_top_k is None else " that attends to the pairs an indexer selects"
    return ("MLA" if spec.q_lora_rank is not None else "MLA without a query latent") + indexed


def _in_blocks(spec: ModelSpec) -> str:
    if spec.index_block_len is None:
        return ""
    return " that attends to the blocks an indexer selects" + _of_layers("I", spec.index_pattern)


def _biases(spec: ModelSpec) -> str:
    flags = {"q": spec.q_bias, "k": spec.k_bias, "v": spec.v_bias, "o": spec.o_bias}
    named = "".join(name for name, bias in flags.items() if bias)
    return f"biases on {', '.join(named)}" if named else ""


def _ffn(spec: ModelSpec) -> str:
    if not set(WITH_FFN) & set(spec.ffn_pattern) and spec.n_shared_blocks is None:
        return "no FFN"
    kind = "gated" if spec.gated else "plain"
    bias = " with biases" if spec.ffn_bias or spec.expert_bias else ""
    if not spec.is_moe:
        where = _of_layers("F", spec.ffn_pattern) if spec.n_shared_blocks is None else ""
        return f"{kind} FFN{bias}{where}{_adapters(spec)}"
    shared = " and shared experts" if spec.n_shared_experts else ""
    dense = " after dense layers" if spec.n_dense_layers else ""
    every = " in every moe_every-th layer" if spec.moe_every > 1 else ""
    if set(WITH_EXPERTS) & set(spec.ffn_pattern):
        letter = BESIDE if BESIDE in spec.ffn_pattern else "E"
        every = _of_layers(letter, spec.ffn_pattern)
    shared += " and zero experts" if spec.n_zero_experts else ""
    shared += " (with rows that nobody reads)" if spec.zero_expert_rows else ""
    beside = f"{kind} FFN and beside it " if BESIDE in spec.ffn_pattern else ""
    return f"{beside}{kind} experts{shared}{bias}{dense}{every}"


def _adapters(spec: ModelSpec) -> str:
    if spec.adapter_rank is None:
        return ""
    on = "q, k, v and the FFN" if spec.attention_adapters else "the FFN"
    return f", adapters of each use on {on}"


def _head(spec: ModelSpec) -> str:
    if spec.vocab_size is None:
        return "no embedding and no head"
    if not spec.has_head:
        return "no head"
    return "tied head" if spec.tie_embeddings else "untied head"
