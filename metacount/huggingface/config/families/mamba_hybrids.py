"""Mamba-2 beside attention: Bamba, Granite 4, Falcon-H1."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.huggingface.config.families.family import decoder
from metacount.huggingface.config.families.llama import LLAMA, block, granite_scales
from metacount.huggingface.config.families.routing import (
    routed,
    with_experts,
)
from metacount.huggingface.config.families.state_space import (
    STEPS,
    expanded,
    heads,
    step_limits,
    without_idle,
)
from metacount.huggingface.config.keys import Keys, is_number
from metacount.huggingface.config.parts import biases, named_layers, rope, shortest_period

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json

# What a layer is called -> the letter of its mixer.
MIXERS = {"linear_attention": "R", "full_attention": "A"}
# The names of a Mamba-2 mixer's keys, in the order of `heads`.
IBM_NAMES = (
    "mamba_n_heads",
    "mamba_d_head",
    "mamba_n_groups",
    "mamba_d_state",
    "mamba_d_conv",
    "mamba_chunk_size",
    "mamba_conv_bias",
)


def ibm_heads(keys: Keys, d_inner: int) -> Json:
    """Read a Mamba-2 mixer under the names that Bamba, Granite and Falcon-H1 share."""
    return {
        **heads(keys, d_inner, IBM_NAMES),
        **step_limits(keys),
        "ssm_in_bias": keys.flag("mamba_proj_bias"),
    }


def bamba(keys: Keys) -> Json:
    """Read a config of Bamba: Mamba-2 with a few layers of attention, RoPE on half a head."""
    keys.only("hidden_act", "silu")
    keys.fixed("partial_rotary_factor", 0.5)  # transformers sets it, whatever is written
    fields, bias = block(keys), keys.flag("attention_bias")
    chosen = keys.raw("attn_layer_indices") or []
    if not isinstance(chosen, list) or any(type(i) is not int for i in chosen):
        raise SpecError(
            "attn_layer_indices", "must be a list of whole numbers", chosen, "remove it"
        )
    letters = "".join("RA"[i in chosen] for i in range(fields["n_layers"]))
    mixer = ibm_heads(keys, expanded(keys, "mamba_expand", fields["d_model"]))
    fields |= {
        **biases(bias, bias),
        **mixer,
        "ssm_out_bias": mixer["ssm_in_bias"],
        "ffn_bias": keys.flag("mlp_bias"),
        "mixer_pattern": shortest_period(letters),
        **rope(keys, fields["head_dim"]),
    }
    return without_idle(fields)


def granite_hybrid(keys: Keys) -> Json:
    """Read a config of Granite 4: Mamba-2 beside attention without RoPE,
    experts beside a shared feed-forward.
    """
    keys.only("hidden_act", "silu")
    fields, bias = block(keys), keys.flag("attention_bias")
    letters = mixer_letters(keys, fields["n_layers"])
    mixer = ibm_heads(keys, expanded(keys, "mamba_expand", fields["d_model"]))
    fields |= {
        **granite_scales(keys),
        **biases(bias, bias),
        **mixer,
        "ssm_out_bias": mixer["ssm_in_bias"],
        "mixer_pattern": shortest_period(letters),
        **positions(keys, fields["head_dim"]),
    }
    shared, expert = keys.size("shared_intermediate_size"), fields["d_ff"]
    if keys.size("num_local_experts", lowest=0) == 0:
        keys.given("num_experts_per_tok")
        return without_idle({**fields, "d_ff": shared})
    experts = {
        **routed(keys, "num_local_experts", "topk_softmax"),
        "d_ff_expert": expert,
        "n_shared_experts": 1,
        "d_ff_shared": shared,
    }
    return without_idle(with_experts(fields, {"n_dense_layers": 0, "moe_every": 1}, experts))


def positions(keys: Keys, head_dim: int) -> Json:
    """Read RoPE where `position_embedding_type` asks for it, else no positions."""
    rotated = rope(keys, head_dim)
    if keys.raw("position_embedding_type") == "rope":
        return rotated
    keys.only("position_embedding_type", None, "nope")
    return {"position": "none"}


def mixer_letters(keys: Keys, n_layers: int) -> str:
    """Write one letter a layer by `layer_types`; each layer is recurrent where there is no list."""
    names = named_layers(keys)
    names = ["linear_attention"] * n_layers if names is None else names
    if not isinstance(names, list) or len(names) != n_layers:
        raise SpecError(
            "layer_types", f"must be a list of {n_layers} names", names, "give one name a layer"
        )
    for name in names:
        if name not in MIXERS:
            keys.unmapped("layer_types", name, f"choose one of {', '.join(MIXERS)}")
    return "".join(MIXERS[name] for name in names)


def falcon_h1(keys: Keys) -> Json:
    """Read a config of Falcon-H1 (arXiv:2507.22448):
    attention and Mamba-2 side by side in every layer.
    """
    keys.only("hidden_act", "silu")
    fields, bias = block(keys), keys.flag("attention_bias")
    d_inner = keys.optional_size("mamba_d_ssm")
    if d_inner is None:
        d_inner = expanded(keys, "mamba_expand", fields["d_model"])
    before = keys.flag("mamba_norm_before_gate")
    return {
        **fields,
        **biases(bias, bias),
        **ibm_heads(keys, d_inner),
        "ssm_out_bias": keys.flag("projectors_bias"),
        "ssm_norm": ("before_gate" if before else "gated")
        if keys.flag("mamba_rms_norm")
        else "none",
        "ffn_bias": keys.flag("mlp_bias"),
        "mixer_pattern": "P",
        **multipliers(keys, fields["head_dim"], bias),
        **rope(keys, fields["head_dim"]),
    }


def multipliers(keys: Keys, head_dim: int, bias: bool) -> Json:
    """Read Falcon-H1's fourteen multipliers.

    What scales the input of attention scales its scores twice and its values once; what scales the
    input of the mixer scales all that its projection gives.
    """
    factor = {
        name: keys.number(name)
        for name in (
            "embedding_multiplier",
            "lm_head_multiplier",
            "key_multiplier",
            "attention_in_multiplier",
            "attention_out_multiplier",
            "ssm_in_multiplier",
            "ssm_out_multiplier",
        )
    }
    gate, down = numbers(keys, "mlp_multipliers", 2)
    ssm = [value * factor["ssm_in_multiplier"] for value in numbers(keys, "ssm_multipliers", 5)]
    scale_in = factor["attention_in_multiplier"]
    if bias and scale_in != 1.0:
        keys.differs("attention_in_multiplier does not reach the biases of q, k and v")
    scores = factor["key_multiplier"] * scale_in * scale_in
    names = ("gate", "x", "b", "c", "step")
    scales = dict(zip(names, ssm, strict=True)) | {"out": factor["ssm_out_multiplier"]}
    return {
        "embedding_scale": factor["embedding_multiplier"],
        "logit_scale": factor["lm_head_multiplier"],
        "attention_scale": None if scores == 1.0 else head_dim**-0.5 * scores,
        "attention_out_scale": scale_in * factor["attention_out_multiplier"],
        "gate_scale": gate,
        "ffn_scale": down,
        **({} if set(scales.values()) == {1.0} else {"ssm_scales": scales}),
    }


def numbers(keys: Keys, name: str, count: int) -> list[float]:
    """Read a list of `count` positive numbers; 1 each where there is no list."""
    given = keys.raw(name)
    if given is None:
        return [1.0] * count
    if not isinstance(given, list) or len(given) != count:
        raise SpecError(name, f"must be a list of {count} numbers", given, "remove it")
    for value in given:
        if not is_number(value) or not 0 < value < 1e12:
            raise SpecError(name, "must hold positive numbers", value, "choose one below 1e12")
    return [float(value) for value in given]


IBM: Json = {
    **LLAMA,
    "attention_bias": False,
    "mamba_n_heads": 128,
    "mamba_d_head": "auto",
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 256,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
    "time_step_limit": (0.0, float("inf")),
}

FAMILIES = {
    "bamba": decoder("Bamba", bamba, {
        **IBM, "vocab_size": 128000, "intermediate_size": 14336, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5, "mlp_bias": False, "attn_layer_indices": None,
        "partial_rotary_factor": 0.5,
    }, ignored=f"{STEPS} num_logits_to_keep z_loss_coefficient"),
    "granitemoehybrid": decoder("GraniteMoeHybrid", granite_hybrid, {
        **IBM, "embedding_multiplier": 1.0, "logits_scaling": 1.0, "residual_multiplier": 1.0,
        "attention_multiplier": 1.0, "num_local_experts": 8, "num_experts_per_tok": 2,
        "shared_intermediate_size": 1024, "position_embedding_type": None, "layer_types": None,
    }, aliases={"layers_block_type": "layer_types"}, ignored=STEPS),
    "falcon_h1": decoder("FalconH1", falcon_h1, {
        **IBM, "vocab_size": 128000, "intermediate_size": 14336, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5, "mlp_bias": False, "mamba_d_ssm": 1024,
        "mamba_norm_before_gate": True, "mamba_rms_norm": False, "projectors_bias": False,
        "lm_head_multiplier": 1.0, "embedding_multiplier": 1.0, "mlp_multipliers": None,
        "key_multiplier": 1.0, "attention_out_multiplier": 1.0, "attention_in_multiplier": 1.0,
        "ssm_multipliers": None, "ssm_in_multiplier": 1.0, "ssm_out_multiplier": 1.0,
    }, ignored=f"{STEPS} num_logits_to_keep"),
}  # fmt: skip
