"""LLaMA and the decoders that keep its block: RMSNorm, gated FFN, RoPE on whole or part heads."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.huggingface.config.families.family import decoder
from metacount.huggingface.config.keys import Keys
from metacount.huggingface.config.parts import (
    biases,
    layer_types,
    nope_every,
    rope,
    rope_object,
    sizes,
    windows,
)
from metacount.spec.position import QueryGrowth, record_from

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json

FULL_OR_SLIDING = ("full_attention", "sliding_attention")

LLAMA: Json = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "head_dim": None,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_theta": 10000.0,
}
MINISTRAL_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 1000000.0,
    "factor": 16.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 16384,
    "llama_4_scaling_beta": 0.1,
}
BIASES = {"attention_bias": False, "mlp_bias": False}
WINDOW: Json = {"sliding_window": None}
SOME_WINDOWS = {"sliding_window": 4096, "use_sliding_window": False, "max_window_layers": 28}


def block(keys: Keys) -> Json:
    """Read sizes, gated FFN and RMSNorm under LLaMA's names."""
    return {
        **sizes(keys),
        "d_ff": keys.size("intermediate_size"),
        **keys.activation("hidden_act", gated=True),
        "norm": "rmsnorm",
        "norm_eps": keys.number("rms_norm_eps"),
    }


def all_windows(keys: Keys) -> Json:
    """Read `sliding_window`, where it is not null, as the window of every layer."""
    window = keys.optional_size("sliding_window")
    return {} if window is None else windows("L", window)


def upper_windows(keys: Keys, n_layers: int) -> Json:
    """Apply Qwen's rule: a window from layer `max_window_layers` on,
    or where `layer_types` has one.
    """
    first = keys.size("max_window_layers", lowest=0)
    window = keys.optional_size("sliding_window", lowest=0)
    window = window if keys.flag("use_sliding_window") else None
    default = [FULL_OR_SLIDING[window is not None and i >= first] for i in range(n_layers)]
    letters = layer_types(keys, n_layers, default, FULL_OR_SLIDING)
    return checked_windows(keys, letters, window)


def checked_windows(keys: Keys, letters: str, window: int | None) -> Json:
    """Build the window's fields; `layer_types` that ask for a window need one."""
    if "L" in letters and window is None:
        keys.unmapped("layer_types", "sliding_attention", "set sliding_window and use it")
    return windows(letters, window)


def llama(keys: Keys) -> Json:
    """Read a config of LLaMA (arXiv:2302.13971);
    in transformers the bias of attention is on all four matrices.
    """
    fields = block(keys)
    bias = keys.flag("attention_bias")
    return {
        **fields,
        **biases(bias, bias),
        "ffn_bias": keys.flag("mlp_bias"),
        **rope(keys, fields["head_dim"]),
    }


def internlm3(keys: Keys) -> Json:
    """Read a config of InternLM3 in LLaMA's class,
    which goes with one switch for all biases only.
    """
    fields = llama(keys)
    keys.only("mlp_bias", fields["q_bias"], why="qkv_bias and bias must be equal")
    return fields


def mistral(keys: Keys) -> Json:
    """Read a config of Mistral (arXiv:2310.06825): no biases, a window in every layer."""
    fields = block(keys)
    return {**fields, **all_windows(keys), **rope(keys, fields["head_dim"])}


def ministral3(keys: Keys) -> Json:
    """Read a config of Ministral 3: Mistral whose queries grow
    with the logarithm of far positions.
    """
    if not keys.data.get("rope_scaling") and keys.data.get("rope_parameters") is None:
        keys.data["rope_parameters"] = dict(MINISTRAL_ROPE)
    found, fields = rope_object(keys), mistral(keys)
    beta, step = (
        found.get(k) for k in ("llama_4_scaling_beta", "original_max_position_embeddings")
    )
    if beta and step:
        try:
            fields["query_growth"] = record_from(
                "query_growth", QueryGrowth, {"weight": beta, "step": step}
            )
        except SpecError as error:
            keys.differs(f"the growth of queries is not in the spec, for {error}")
    return fields


def qwen2(keys: Keys) -> Json:
    """Read a config of Qwen2 (arXiv:2407.10671): biases on queries, keys and values."""
    fields = block(keys)
    return {
        **fields,
        **biases(True, False),
        **upper_windows(keys, fields["n_layers"]),
        **rope(keys, fields["head_dim"]),
    }


def qwen3(keys: Keys) -> Json:
    """Read a config of Qwen3 (arXiv:2505.09388): an RMSNorm over each head instead of biases."""
    fields = block(keys)
    bias = keys.flag("attention_bias")
    return {
        **fields,
        **biases(bias, bias),
        "qk_norm": "head",
        **upper_windows(keys, fields["n_layers"]),
        **rope(keys, fields["head_dim"]),
    }


def granite_scales(keys: Keys) -> Json:
    """Read Granite's four multipliers; its logits are divided, ours multiplied."""
    return {
        "attention_scale": keys.number("attention_multiplier"),
        "embedding_scale": keys.number("embedding_multiplier"),
        "residual_scale": keys.number("residual_multiplier"),
        "logit_scale": 1 / keys.number("logits_scaling"),
    }


def granite(keys: Keys) -> Json:
    """Read a config of Granite 3: LLaMA with multipliers."""
    return {**llama(keys), **granite_scales(keys)}


def rope_layers(keys: Keys, n_layers: int, *, empty_is_default: bool) -> list[bool]:
    """Read `no_rope_layers`, one number a layer, where 1 means that the layer does rotate."""
    given = keys.given("no_rope_layers")
    every = keys.layers("no_rope_layer_interval")
    if given is None or (given == [] and empty_is_default):
        return [(i + 1) % every != 0 for i in range(n_layers)]
    if not isinstance(given, list) or len(given) != n_layers:
        raise SpecError(
            "no_rope_layers", f"must be a list of {n_layers} numbers", given, "remove it"
        )
    for item in given:
        if item not in (0, 1):
            raise SpecError("no_rope_layers", "must hold 0 and 1 only", item, "remove it")
    return [bool(item) for item in given]


def smollm3(keys: Keys) -> Json:
    """Read a config of SmolLM3: every fourth layer without RoPE; those layers may have a window."""
    fields = llama(keys)
    n_layers = fields["n_layers"]
    rotates = rope_layers(keys, n_layers, empty_is_default=False)
    window = keys.optional_size("sliding_window")
    window = window if keys.flag("use_sliding_window") else None
    keys.given("max_window_layers")
    default = [FULL_OR_SLIDING[window is not None and not on] for on in rotates]
    letters = layer_types(keys, n_layers, default, FULL_OR_SLIDING)
    return {
        **fields,
        **nope_every(keys, "no_rope_layers", rotates),
        **checked_windows(keys, letters, window),
    }


def seed_oss(keys: Keys) -> Json:
    """Read a config of Seed-OSS: one bias for queries, keys, values, another for the output."""
    fields = block(keys)
    return {
        **fields,
        **biases(keys.flag("attention_bias"), keys.flag("attention_out_bias")),
        "ffn_bias": keys.flag("mlp_bias"),
        **rope(keys, fields["head_dim"]),
    }


def helium(keys: Keys) -> Json:
    """Read a config of Helium 1: interleaved RoPE;
    its output projection is square and never has a bias.
    """
    fields = block(keys)
    if fields["n_heads"] * fields["head_dim"] != fields["d_model"]:
        keys.unmapped("head_dim", fields["head_dim"], "heads must fill hidden_size exactly")
    return {
        **fields,
        **biases(keys.flag("attention_bias"), False),
        "ffn_bias": keys.flag("mlp_bias"),
        **rope(keys, fields["head_dim"], style="interleaved"),
    }


QWEN2 = {"vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32}

FAMILIES = {
    "llama": decoder("Llama", llama, {**LLAMA, **BIASES}),
    "mistral": decoder("Mistral", mistral, {
        **LLAMA, "intermediate_size": 14336, "num_key_value_heads": 8, "sliding_window": 4096,
    }),
    "ministral3": decoder("Ministral3", ministral3, {
        **LLAMA, **WINDOW, "vocab_size": 131072, "intermediate_size": 14336,
        "num_hidden_layers": 34, "num_key_value_heads": 8, "head_dim": 128,
        "rms_norm_eps": 1e-5,
    }),
    "qwen2": decoder("Qwen2", qwen2, {**LLAMA, **QWEN2, **SOME_WINDOWS}),
    "qwen3": decoder("Qwen3", qwen3, {
        **LLAMA, **QWEN2, **SOME_WINDOWS, "head_dim": 128, "attention_bias": False,
    }),
    "phi3": decoder("Phi3", mistral, {
        **LLAMA, **WINDOW, "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192,
        "rms_norm_eps": 1e-5, "partial_rotary_factor": 1.0,
        "original_max_position_embeddings": 4096,
    }, ignored="original_max_position_embeddings"),
    "granite": decoder("Granite", granite, {
        **LLAMA, **BIASES, "attention_multiplier": 1.0, "embedding_multiplier": 1.0,
        "residual_multiplier": 1.0, "logits_scaling": 1.0,
    }),
    "smollm3": decoder("SmolLM3", smollm3, {
        **LLAMA, **BIASES, **WINDOW, "vocab_size": 128256, "hidden_size": 2048,
        "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 4,
        "tie_word_embeddings": True, "rope_theta": 2000000.0, "no_rope_layer_interval": 4,
        "use_sliding_window": False,
    }),
    "seed_oss": decoder("SeedOss", seed_oss, {
        **LLAMA, "vocab_size": 155136, "intermediate_size": 27648, "num_hidden_layers": 64,
        "num_attention_heads": 80, "num_key_value_heads": 8, "head_dim": 128,
        "attention_bias": True, "attention_out_bias": False, "mlp_bias": False,
    }),
    "internlm3": decoder("Llama", internlm3, {
        **LLAMA, **BIASES, "vocab_size": 128512, "intermediate_size": 10240,
        "num_hidden_layers": 48, "num_key_value_heads": 2, "head_dim": 128,
        "rms_norm_eps": 1e-5,
    }, aliases={"qkv_bias": "attention_bias", "bias": "mlp_bias"}),
    "helium": decoder("Helium", helium, {
        **LLAMA, **BIASES, "vocab_size": 48000, "hidden_size": 2560, "intermediate_size": 7040,
        "num_hidden_layers": 24, "num_attention_heads": 20, "num_key_value_heads": 20,
        "head_dim": 128, "rms_norm_eps": 1e-8, "rope_theta": 100000.0,
    }),
}  # fmt: skip
