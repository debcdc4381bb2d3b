"""Granite with sinks, windows and a shared expert, and HyperCLOVA X, which keeps its scales."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.huggingface.config.families.dense import with_windows
from metacount.huggingface.config.families.experts import granitemoe
from metacount.huggingface.config.families.family import decoder
from metacount.huggingface.config.families.llama import (
    BIASES,
    FULL_OR_SLIDING,
    LLAMA,
    granite,
    llama,
)
from metacount.huggingface.config.keys import Keys, is_number
from metacount.huggingface.config.parts import nope_every

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json


def hyperclovax(keys: Keys) -> Json:
    """Read a config of HyperCLOVA X SEED:
    Granite with norms after the branches; logits are multiplied.
    """
    fields = llama(keys)
    scale = keys.optional_number("attention_multiplier")
    return {
        **fields,
        "attention_scale": fields["head_dim"] ** -0.5 if scale is None else scale,
        "embedding_scale": keys.number("embedding_multiplier"),
        "residual_scale": keys.number("residual_multiplier"),
        "logit_scale": keys.number("logits_scaling"),
        "norm_placement": "sandwich" if keys.flag("use_post_norm") else "pre",
    }


def granite_windows(keys: Keys, fields: Json) -> Json:
    """Read sinks, windows in three layers of four, and a base of RoPE for each layer (0: none)."""
    n_layers = fields["n_layers"]
    default = [FULL_OR_SLIDING[i % 4 > 0] for i in range(n_layers)]
    fields = {**with_windows(keys, fields, default), "attention_sinks": True}
    thetas = keys.given("layer_rope_theta")
    if thetas is None:
        return fields
    if not isinstance(thetas, list) or len(thetas) != n_layers:
        raise SpecError(
            "layer_rope_theta", f"must be a list of {n_layers} numbers", thetas, "remove it"
        )
    if not all(is_number(theta) and 0 <= theta < 1e12 for theta in thetas):
        raise SpecError("layer_rope_theta", "must hold numbers from 0 to 1e12", thetas, "remove it")
    turned = {theta for theta in thetas if theta}
    if len(turned) != 1:
        keys.unmapped("layer_rope_theta", sorted(turned), "one base for all layers that rotate")
    return {
        **fields,
        "rope_theta": float(turned.pop()),
        **nope_every(keys, "layer_rope_theta", [bool(theta) for theta in thetas]),
    }


def granite_swa(keys: Keys) -> Json:
    """Read a config of Granite with attention sinks and windows."""
    return granite_windows(keys, granite(keys))


def granitemoeshared(keys: Keys) -> Json:
    """Read a config of Granite MoE with one shared expert of a width of its own."""
    fields = granitemoe(keys)
    shared = keys.size("shared_intermediate_size", lowest=0)
    return {**fields, "n_shared_experts": 1, "d_ff_shared": shared} if shared else fields


def granitemoe_swa(keys: Keys) -> Json:
    """Read a config of Granite MoE with one shared expert, attention sinks and windows."""
    return granite_windows(keys, granitemoeshared(keys))


GRANITE = {
    **LLAMA,
    **BIASES,
    "attention_multiplier": 1.0,
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "logits_scaling": 1.0,
}
GRANITE_MOE = {
    **{k: v for k, v in GRANITE.items() if k != "mlp_bias"},
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "shared_intermediate_size": 0,
}

FAMILIES = {
    "hyperclovax": decoder(
        "HyperCLOVAX",
        hyperclovax,
        {
            **GRANITE,
            "attention_multiplier": None,
            "use_post_norm": True,
        },
    ),
    "granite_swa": decoder(
        "GraniteSWA",
        granite_swa,
        {
            **GRANITE,
            "vocab_size": 100352,
            "hidden_size": 2560,
            "intermediate_size": 8192,
            "num_hidden_layers": 24,
            "num_attention_heads": 20,
            "num_key_value_heads": 4,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True,
            "sliding_window": 128,
        },
    ),
    "granitemoeshared": decoder("GraniteMoeShared", granitemoeshared, GRANITE_MOE),
    "granitemoe_swa": decoder(
        "GraniteMoeSWA",
        granitemoe_swa,
        {
            **GRANITE_MOE,
            "sliding_window": 128,
        },
    ),
}
