"""Dense decoders of LLaMA's kind: another activation, biases, norms after the branches, sinks."""

from __future__ import annotations

from metacount.huggingface.config.families.family import decoder
from metacount.huggingface.config.families.llama import (
    BIASES,
    FULL_OR_SLIDING,
    LLAMA,
    block,
    checked_windows,
    llama,
)
from metacount.huggingface.config.keys import Keys
from metacount.huggingface.config.parts import (
    biases,
    layer_types,
    rope,
    rope_by_layer_type,
    sizes,
)

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json

CWM_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1000000.0,
    "factor": 16.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
}
OLMO3_THETA = 500000.0


def arcee(keys: Keys) -> Json:
    """Read a config of Arcee AFM: LLaMA with two matrices and a squared ReLU."""
    return {**llama(keys), **keys.activation("hidden_act", gated=False)}


def ernie4_5(keys: Keys) -> Json:
    """Read a config of ERNIE 4.5: LLaMA with interleaved RoPE and one switch for all biases."""
    fields = block(keys)
    bias = keys.flag("use_bias")
    return {
        **fields,
        **biases(bias, bias),
        "ffn_bias": bias,
        **rope(keys, fields["head_dim"], style="interleaved"),
    }


def iquestcoder(keys: Keys) -> Json:
    """Read a config of IQuest-Coder in LLaMA's class;
    two keys that its config refuses must be off.
    """
    keys.fixed("clip_qkv", None)
    keys.fixed("use_sliding_window", False)
    return llama(keys)


def jais2(keys: Keys) -> Json:
    """Read a config of Jais 2: LayerNorm with biases, two matrices and a squared ReLU."""
    fields = sizes(keys)
    bias = keys.flag("attention_bias")
    return {
        **fields,
        "d_ff": keys.size("intermediate_size"),
        **keys.activation("hidden_act", gated=False),
        **biases(bias, bias),
        "ffn_bias": keys.flag("mlp_bias"),
        "norm": "layernorm",
        "norm_bias": True,
        "norm_eps": keys.number("layer_norm_eps"),
        **rope(keys, fields["head_dim"]),
    }


def nemotron(keys: Keys) -> Json:
    """Read a config of Nemotron-4 (arXiv:2402.16819):
    LayerNorm whose weights are stored less 1, squared ReLU.
    """
    fields = sizes(keys)
    bias = keys.flag("attention_bias")
    keys.differs("Nemotron's LayerNorm adds 1 to its stored weights")
    return {
        **fields,
        "d_ff": keys.size("intermediate_size"),
        **keys.activation("hidden_act", gated=False),
        **biases(bias, bias),
        "ffn_bias": keys.flag("mlp_bias"),
        "norm": "layernorm",
        "norm_bias": True,
        "norm_eps": keys.number("norm_eps"),
        **rope(keys, fields["head_dim"]),
    }


def nanochat(keys: Keys) -> Json:
    """Read a config of nanochat: norms without weights,
    one of them after the embedding; QK-norm after RoPE.
    """
    fields = block(keys)
    bias = keys.flag("attention_bias")
    keys.differs("nanochat turns queries and keys by the negative angles")
    return {
        **fields,
        **keys.activation("hidden_act", gated=False),
        **biases(bias, bias),
        "qk_norm": "l2",
        "norm_affine": False,
        "embedding_norm": True,
        "logit_softcap": keys.optional_number("final_logit_softcapping"),
        **rope(keys, fields["head_dim"]),
    }


def with_windows(keys: Keys, fields: Json, default: list[str]) -> Json:
    """Return `fields` with a window in the layers that `layer_types`, or else `default`, names."""
    letters = layer_types(keys, fields["n_layers"], default, FULL_OR_SLIDING)
    return {**fields, **checked_windows(keys, letters, keys.optional_size("sliding_window"))}


def cwm(keys: Keys) -> Json:
    """Read a config of Code World Model:
    LLaMA, a window in three layers of four, the first sees everything.
    """
    if not keys.data.get("rope_scaling") and keys.data.get("rope_parameters") is None:
        keys.data["rope_parameters"] = dict(CWM_ROPE)
    fields = block(keys)
    fields |= {"ffn_bias": keys.flag("mlp_bias"), **rope(keys, fields["head_dim"])}
    return with_windows(
        keys, fields, [FULL_OR_SLIDING[i % 4 > 0] for i in range(fields["n_layers"])]
    )


def ministral(keys: Keys) -> Json:
    """Read a config of Ministral 8B:
    Mistral whose `layer_types` says which layers have the window.
    """
    fields = block(keys)
    window = keys.optional_size("sliding_window")
    default = [FULL_OR_SLIDING[window is not None]] * fields["n_layers"]
    return with_windows(keys, {**fields, **rope(keys, fields["head_dim"])}, default)


def olmo3(keys: Keys) -> Json:
    """Read a config of OLMo 3: OLMo 2 with a window, and RoPE that is never scaled,
    in three layers of four.
    """
    fields = block(keys)
    bias = keys.flag("attention_bias")
    fields |= {**biases(bias, bias), "norm_placement": "post_branch", "qk_norm": "full"}
    default = [FULL_OR_SLIDING[(i + 1) % 4 != 0] for i in range(fields["n_layers"])]
    fields = with_windows(keys, fields, default)
    keys.only("rope_theta", OLMO3_THETA, why="transformers gives it to unwindowed layers only")
    return {
        **fields,
        **rope_by_layer_type(
            keys,
            "window" in fields,
            old_global="rope_theta",
            old_local="rope_theta",
            scaled=FULL_OR_SLIDING[:1],
        ),
    }


NO_RMS = {name: value for name, value in LLAMA.items() if name != "rms_norm_eps"}

FAMILIES = {
    "arcee": decoder("Arcee", arcee, {
        **LLAMA, **BIASES, "hidden_size": 2560, "intermediate_size": 18432, "hidden_act": "relu2",
        "rms_norm_eps": 1e-5,
    }),
    "ernie4_5": decoder("Ernie4_5", ernie4_5, {
        **LLAMA, "vocab_size": 103424, "hidden_size": 1024, "intermediate_size": 3072,
        "num_hidden_layers": 18, "num_attention_heads": 16, "num_key_value_heads": 2,
        "head_dim": 128, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "use_bias": False,
        "tie_word_embeddings": True,
    }),
    "iquestcoder": decoder("Llama", iquestcoder, {
        **LLAMA, **BIASES, "vocab_size": 76800, "hidden_size": 5120, "intermediate_size": 27648,
        "num_hidden_layers": 80, "num_attention_heads": 40, "num_key_value_heads": 8,
        "head_dim": 128, "rms_norm_eps": 1e-5,
    }),
    "jais2": decoder("Jais2", jais2, {
        **NO_RMS, "vocab_size": 150272, "hidden_size": 3328, "intermediate_size": 26624,
        "num_attention_heads": 26, "hidden_act": "relu2", "attention_bias": True,
        "mlp_bias": True, "layer_norm_eps": 1e-5,
    }, ignored="rms_norm_eps"),
    "nemotron": decoder("Nemotron", nemotron, {
        **NO_RMS, **BIASES, "vocab_size": 256000, "hidden_size": 6144,
        "intermediate_size": 24576, "num_attention_heads": 48, "hidden_act": "relu2",
        "norm_eps": 1e-5, "partial_rotary_factor": 0.5,
    }),
    "nanochat": decoder("NanoChat", nanochat, {
        **{k: v for k, v in LLAMA.items() if k != "head_dim"}, "vocab_size": 50304,
        "hidden_size": 768, "intermediate_size": 8192, "num_hidden_layers": 12,
        "num_attention_heads": 6, "hidden_act": "relu2", "final_logit_softcapping": 15.0,
        "attention_bias": False,
    }),
    "cwm": decoder("Cwm", cwm, {
        **LLAMA, "vocab_size": 128256, "hidden_size": 6144, "intermediate_size": 21504,
        "num_hidden_layers": 64, "num_attention_heads": 48, "num_key_value_heads": 8,
        "head_dim": 128, "rms_norm_eps": 1e-5, "mlp_bias": False, "sliding_window": 8192,
        "rope_theta": 1000000.0,
    }),
    "ministral": decoder("Ministral", ministral, {
        **LLAMA, "intermediate_size": 14336, "num_key_value_heads": 8, "sliding_window": 4096,
    }),
    "olmo3": decoder("Olmo3", olmo3, {
        **LLAMA, "vocab_size": 50304, "attention_bias": False, "rms_norm_eps": 1e-5,
        "sliding_window": 4096, "rope_theta": OLMO3_THETA,
    }),
}  # fmt: skip
