"""Gemma 1 to 3: unit-offset RMSNorm, scaled embedding, gated GELU; then caps, windows, QK-norm."""

from __future__ import annotations

from metacount.huggingface.config.families.family import Family, decoder
from metacount.huggingface.config.families.llama import FULL_OR_SLIDING
from metacount.huggingface.config.keys import Keys
from metacount.huggingface.config.parts import (
    biases,
    layer_types,
    rope,
    rope_by_layer_type,
    sizes,
    windows,
)

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json


def base(keys: Keys, activation: str) -> Json:
    """Read what Gemma 1, 2 and 3 share."""
    fields = sizes(keys)
    bias = keys.flag("attention_bias")
    if "use_bidirectional_attention" in keys.defaults:
        keys.only("use_bidirectional_attention", None, False)
    return {
        **fields,
        "embedding_scale": fields["d_model"] ** 0.5,
        "d_ff": keys.size("intermediate_size"),
        **keys.activation(activation, gated=True),
        **biases(bias, bias),
        "norm": "rmsnorm",
        "norm_unit_offset": True,
        "norm_eps": keys.number("rms_norm_eps"),
    }


def gemma(keys: Keys) -> Json:
    """Read a config of Gemma (arXiv:2403.08295).
    Its first configs say gelu where the tanh form is meant.
    """
    fields = base(keys, "hidden_act")
    keys.fixed("hidden_activation", "gelu_pytorch_tanh")
    if fields["activation"] == "gelu":
        fields["activation"] = "gelu_tanh"
    return {**fields, **rope(keys, fields["head_dim"])}


def capped(keys: Keys, default: list[str]) -> Json:
    """Read what Gemma 2 and 3 share:
    four norms, a scale of their own for scores, caps, windows in some layers.
    """
    fields = base(keys, "hidden_activation")
    letters = layer_types(keys, fields["n_layers"], default, FULL_OR_SLIDING)
    window = keys.optional_size("sliding_window")
    keys.fixed("sliding_window_size", window)
    if "L" in letters and window is None:
        keys.unmapped("sliding_window", None, "give its size")
    return {
        **fields,
        "norm_placement": "sandwich",
        "attention_scale": keys.number("query_pre_attn_scalar") ** -0.5,
        "attention_softcap": keys.optional_number("attn_logit_softcapping"),
        "logit_softcap": keys.optional_number("final_logit_softcapping"),
        **windows(letters, window),
    }


def _every(keys: Keys, every: int) -> list[str]:
    n_layers = keys.layers("num_hidden_layers")
    return [FULL_OR_SLIDING[(i + 1) % every != 0] for i in range(n_layers)]


def gemma2(keys: Keys) -> Json:
    """Read a config of Gemma 2 (arXiv:2408.00118): every second layer sees all."""
    fields = capped(keys, _every(keys, 2))
    return {**fields, **rope(keys, fields["head_dim"])}


def vaultgemma(keys: Keys) -> Json:
    """Read a config of VaultGemma: Gemma 2 without the norms after each branch."""
    return {**gemma2(keys), "norm_placement": "pre"}


def gemma3(keys: Keys) -> Json:
    """Read a config of Gemma 3's text model (arXiv:2503.19786):
    QK-norm, and a RoPE of its own in windowed layers.
    """
    fields = capped(keys, _every(keys, keys.layers("sliding_window_pattern")))
    turned = rope_by_layer_type(
        keys,
        "window" in fields,
        old_global="rope_theta",
        old_local="rope_local_base_freq",
        scaled=FULL_OR_SLIDING[:1],
    )
    if fields["attention_softcap"] is not None:
        keys.notes.append("attn_logit_softcapping: transformers' Gemma 3 does not use it")
    return {**fields, "attention_softcap": None, "qk_norm": "head", **turned}


GEMMA: Json = {
    "vocab_size": 256000,
    "hidden_size": 3072,
    "intermediate_size": 24576,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "use_bidirectional_attention": None,
    "rope_theta": 10000.0,
}
GEMMA2: Json = {
    "vocab_size": 256000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "use_bidirectional_attention": None,
    "rope_theta": 10000.0,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}

FAMILIES: dict[str, Family] = {
    "gemma": decoder("Gemma", gemma, GEMMA),
    "gemma2": decoder("Gemma2", gemma2, GEMMA2, ignored="hidden_act cache_implementation"),
    "vaultgemma": decoder(
        "VaultGemma",
        vaultgemma,
        {k: v for k, v in GEMMA2.items() if k != "use_bidirectional_attention"},
        ignored="hidden_act cache_implementation",
    ),
    "gemma3_text": decoder(
        "Gemma3",
        gemma3,
        {
            **GEMMA2,
            "vocab_size": 262208,
            "use_bidirectional_attention": False,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "rope_theta": 1000000.0,
            "rope_local_base_freq": 10000.0,
            "sliding_window_pattern": 6,
        },
        ignored="hidden_act cache_implementation _sliding_window_pattern",
        body="Gemma3TextModel",
    ),
}
