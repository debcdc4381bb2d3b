"""Decoders with LLaMA's sizes and other norms: where they stand, what they are, parallel blocks."""

from __future__ import annotations

from metacount.huggingface.config.families.family import decoder
from metacount.huggingface.config.families.llama import (
    FULL_OR_SLIDING,
    LLAMA,
    WINDOW,
    all_windows,
    block,
)
from metacount.huggingface.config.keys import Keys
from metacount.huggingface.config.parts import biases, layer_types, nope_every, rope, sizes, windows

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json

OLMO_EPS = 1e-5  # fixed in OLMo's LayerNorm


def gated(keys: Keys) -> Json:
    """Read the sizes and a gated FFN; the norm is the family's own."""
    return {
        **sizes(keys),
        "d_ff": keys.size("intermediate_size"),
        **keys.activation("hidden_act", gated=True),
    }


def olmo(keys: Keys) -> Json:
    """Read a config of OLMo (arXiv:2402.00838): LayerNorm without weight and bias."""
    fields = gated(keys)
    bias = keys.flag("attention_bias")
    keys.only("clip_qkv", None)
    return {
        **fields,
        **biases(bias, bias),
        "norm": "layernorm",
        "norm_affine": False,
        "norm_eps": OLMO_EPS,
        **rope(keys, fields["head_dim"]),
    }


def olmo2(keys: Keys) -> Json:
    """Read a config of OLMo 2 (arXiv:2501.00656):
    norms at the end of each branch, QK-norm over all heads.
    """
    fields = block(keys)
    bias = keys.flag("attention_bias")
    return {
        **fields,
        **biases(bias, bias),
        "norm_placement": "post_branch",
        "qk_norm": "full",
        **rope(keys, fields["head_dim"]),
    }


def cohere(keys: Keys) -> Json:
    """Read a config of Command R: attention and FFN side
    by side behind one LayerNorm without bias.
    """
    fields = gated(keys)
    bias = keys.flag("attention_bias")
    keys.fixed("use_qk_norm", False)  # theirs has a weight for every head
    scale = keys.optional_number("logit_scale")
    return {
        **fields,
        **biases(bias, bias),
        "norm": "layernorm",
        "norm_eps": keys.number("layer_norm_eps"),
        "norm_placement": "parallel",
        "logit_scale": 1.0 if scale is None else scale,
        **rope(keys, fields["head_dim"], style="interleaved"),
    }


def cohere2(keys: Keys) -> Json:
    """Read a config of Command R7B: three layers with a window and RoPE,
    then one that sees all without RoPE.
    """
    fields = cohere(keys)
    keys.fixed("head_dim", fields["head_dim"])
    for name, value in (
        ("use_gated_activation", True),
        ("use_parallel_block", True),
        ("position_embedding_type", "rope_gptj"),
        ("rotary_pct", 1.0),
        ("use_embedding_sharing", fields["tie_embeddings"]),
    ):
        keys.fixed(name, value)
    every, n_layers = keys.layers("sliding_window_pattern"), fields["n_layers"]
    default = [FULL_OR_SLIDING[(i + 1) % every != 0] for i in range(n_layers)]
    letters = layer_types(keys, n_layers, default, FULL_OR_SLIDING)
    return {
        **fields,
        **windows(letters, keys.size("sliding_window")),
        **nope_every(keys, "layer_types", [letter == "L" for letter in letters]),
    }


def glm(keys: Keys) -> Json:
    """Read a config of GLM-4: interleaved RoPE on half of each head;
    biases on queries, keys and values.
    """
    fields = block(keys)
    return {
        **fields,
        **biases(keys.flag("attention_bias"), False),
        **rope(keys, fields["head_dim"], style="interleaved"),
    }


def glm4(keys: Keys) -> Json:
    """Read a config of GLM-4-0414: GLM-4 with a norm before and after each branch."""
    return {**glm(keys), "norm_placement": "sandwich"}


def starcoder2(keys: Keys) -> Json:
    """Read a config of StarCoder2 (arXiv:2402.19173):
    LayerNorm, two matrices, one switch for all biases.
    """
    fields = sizes(keys)
    bias = keys.flag("use_bias")
    return {
        **fields,
        "d_ff": keys.size("intermediate_size"),
        **keys.activation("hidden_act", gated=False),
        **biases(bias, bias),
        "ffn_bias": bias,
        "norm": "layernorm",
        "norm_bias": True,
        "norm_eps": keys.number("norm_epsilon"),
        **all_windows(keys),
        **rope(keys, fields["head_dim"]),
    }


def stablelm(keys: Keys) -> Json:
    """Read a config of StableLM: LayerNorm, gated FFN, RoPE on a quarter of each head."""
    fields = gated(keys)
    keys.only("qk_layernorm", False, why="theirs has a norm of its own for every head")
    parallel = keys.flag("use_parallel_residual")
    return {
        **fields,
        **biases(keys.flag("use_qkv_bias"), False),
        "norm": "layernorm",
        "norm_bias": True,
        "norm_eps": keys.number("layer_norm_eps"),
        "norm_placement": "parallel" if parallel else "pre",
        **rope(keys, fields["head_dim"], rounds_up=False),
    }


def _but(defaults: Json, *names: str) -> Json:
    return {name: value for name, value in defaults.items() if name not in names}


COHERE = {
    **_but(LLAMA, "rms_norm_eps"),
    "vocab_size": 256000,
    "hidden_size": 8192,
    "intermediate_size": 22528,
    "num_hidden_layers": 40,
    "num_attention_heads": 64,
    "attention_bias": False,
    "layer_norm_eps": 1e-5,
    "logit_scale": 0.0625,
    "tie_word_embeddings": True,
}
OLMO = {**LLAMA, "vocab_size": 50304, "attention_bias": False}
GLM = {
    **LLAMA,
    "vocab_size": 151552,
    "intermediate_size": 13696,
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "rms_norm_eps": 0.00000015625,
    "attention_bias": True,
    "partial_rotary_factor": 0.5,
}

FAMILIES = {
    "olmo": decoder(
        "Olmo", olmo, {**_but(OLMO, "rms_norm_eps"), "clip_qkv": None}, ignored="rms_norm_eps"
    ),
    "olmo2": decoder("Olmo2", olmo2, {**OLMO, "rms_norm_eps": 1e-5}),
    "cohere": decoder("Cohere", cohere, {**COHERE, "rope_theta": 500000.0}),
    "cohere2": decoder(
        "Cohere2",
        cohere2,
        {
            **_but(COHERE, "head_dim"),
            "sliding_window": 4096,
            "sliding_window_pattern": 4,
        },
        ignored="_sliding_window_pattern cache_implementation layer_switch "
        "order_of_interleaved_layers use_parallel_embedding",
    ),
    "glm": decoder("Glm", glm, GLM),
    "glm4": decoder("Glm4", glm4, GLM),
    "starcoder2": decoder(
        "Starcoder2",
        starcoder2,
        {
            **_but(LLAMA, "rms_norm_eps"),
            **WINDOW,
            "vocab_size": 49152,
            "hidden_size": 3072,
            "intermediate_size": 12288,
            "num_hidden_layers": 30,
            "num_attention_heads": 24,
            "num_key_value_heads": 2,
            "hidden_act": "gelu_pytorch_tanh",
            "norm_epsilon": 1e-5,
            "use_bias": True,
            "tie_word_embeddings": True,
        },
    ),
    "stablelm": decoder(
        "StableLm",
        stablelm,
        {
            **_but(LLAMA, "rms_norm_eps", "head_dim"),
            "vocab_size": 50304,
            "hidden_size": 2560,
            "intermediate_size": 6912,
            "num_key_value_heads": 32,
            "layer_norm_eps": 1e-5,
            "use_qkv_bias": False,
            "qk_layernorm": False,
            "use_parallel_residual": False,
            "partial_rotary_factor": 0.25,
        },
    ),
}
