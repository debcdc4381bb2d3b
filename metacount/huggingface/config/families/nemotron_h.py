"""Nemotron-H: each layer is one of Mamba-2, attention, feed-forward and experts."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.huggingface.config.families.family import decoder
from metacount.huggingface.config.families.routing import grouped, routed, sigmoid_or_softmax
from metacount.huggingface.config.families.state_space import STEPS, heads, without_idle
from metacount.huggingface.config.keys import Keys
from metacount.huggingface.config.parts import shortest_period, sizes

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json

# The names of a Mamba-2 mixer's keys, in the order of `heads`.
NEMOTRON_NAMES = (
    "mamba_num_heads",
    "mamba_head_dim",
    "n_groups",
    "ssm_state_size",
    "conv_kernel",
    "chunk_size",
    "use_conv_bias",
)


def nemotron_h(keys: Keys) -> Json:
    """Read a config of Nemotron-H (arXiv:2504.03624):
    each layer is one of mixer, attention, feed-forward.
    """
    letters = nemotron_letters(keys)
    keys.data["num_hidden_layers"] = len(letters)  # transformers goes by the list as well
    keys.only("mamba_hidden_act", "silu")
    n_heads, width = keys.size("mamba_num_heads"), keys.size("mamba_head_dim")
    bias = keys.flag("use_bias")
    if keys.flag("tie_word_embeddings"):
        keys.notes.append("tie_word_embeddings: transformers' class stores both tables")
    fields = {
        **sizes(keys),
        "tie_embeddings": False,
        "d_ff": keys.size("intermediate_size"),
        **keys.activation("mlp_hidden_act", gated=False),
        "ffn_bias": keys.flag("mlp_bias"),
        "norm": "rmsnorm",
        "norm_eps": keys.number("layer_norm_epsilon"),
        **heads(keys, n_heads * width, NEMOTRON_NAMES),
        "ssm_in_bias": bias,
        "ssm_out_bias": bias,
        "ssm_dt_min": keys.number("time_step_min"),
        "mixer_pattern": shortest_period("".join("RANN"["M*-E".index(x)] for x in letters)),
        "ffn_pattern": shortest_period("".join("NNFE"["M*-E".index(x)] for x in letters)),
        "position": "none",
    }
    if "-" not in letters:
        del fields["d_ff"]
    if "E" not in letters:
        return without_idle(fields)
    keys.only("moe_latent_size", None)
    experts = {
        **routed(keys, "n_routed_experts", sigmoid_or_softmax(keys, "sigmoid")),
        "d_ff_expert": keys.size("moe_intermediate_size"),
        "n_shared_experts": 1,
        "d_ff_shared": keys.size("moe_shared_expert_intermediate_size"),
        "selection_bias": True,
        "routed_scale": keys.number("routed_scaling_factor"),
        **grouped(keys, "top2_sum"),
    }
    return without_idle({**fields, **experts})


NEMOTRON = {
    "linear_attention": "M",
    "mamba": "M",
    "full_attention": "*",
    "attention": "*",
    "mlp": "-",
    "moe": "E",
}


def nemotron_letters(keys: Keys) -> str:
    """Write M, *, - or E for each layer, from the list or from the older text."""
    names, text = keys.given("layers_block_type"), keys.given("hybrid_override_pattern")
    if names is None and isinstance(text, str) and text and set(text) <= set("M*-E"):
        return text
    if names is None and text is not None:
        keys.unmapped("hybrid_override_pattern", text, "give letters of M, *, - and E")
    names = ["linear_attention", "moe", "full_attention", "mlp"] if names is None else names
    if not isinstance(names, list) or not names:
        raise SpecError("layers_block_type", "must be a list of names", names, "remove it")
    for name in names:
        if name not in NEMOTRON:
            keys.unmapped("layers_block_type", name, f"choose one of {', '.join(NEMOTRON)}")
    return "".join(NEMOTRON[name] for name in names)


FAMILIES = {
    "nemotron_h": decoder(
        "NemotronH",
        nemotron_h,
        {
            "vocab_size": 131072,
            "hidden_size": 4096,
            "tie_word_embeddings": False,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 21504,
            "mlp_hidden_act": "relu2",
            "mlp_bias": False,
            "ssm_state_size": 128,
            "mamba_num_heads": 128,
            "mamba_head_dim": 64,
            "mamba_hidden_act": "silu",
            "n_groups": 8,
            "conv_kernel": 4,
            "time_step_min": 0.001,
            "use_conv_bias": True,
            "chunk_size": 128,
            "n_routed_experts": 8,
            "moe_intermediate_size": 7688,
            "moe_shared_expert_intermediate_size": 7688,
            "moe_latent_size": None,
            "num_experts_per_tok": 2,
            "routed_scaling_factor": 1.0,
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": True,
            "use_bias": False,
            "layer_norm_epsilon": 1e-5,
        },
        aliases={
            "layer_types": "layers_block_type",
            "num_local_experts": "n_routed_experts",
            "mamba_n_groups": "n_groups",
            "mamba_d_conv": "conv_kernel",
            "mamba_dt_min": "time_step_min",
            "mamba_conv_bias": "use_conv_bias",
            "mamba_chunk_size": "chunk_size",
        },
        ignored=f"{STEPS} num_logits_to_keep expand mamba_proj_bias mamba_ssm_cache_dtype "
        "n_shared_experts moe_shared_expert_overlap num_nextn_predict_layers "
        "mtp_layers_block_type time_step_limit attention_bias sliding_window",
    ),
}
