"""Mamba and Mamba-2 alone, and Jamba: Mamba beside attention and experts."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.huggingface.config.families.family import decoder
from metacount.huggingface.config.families.llama import LLAMA, block
from metacount.huggingface.config.families.routing import routed
from metacount.huggingface.config.keys import Keys, is_number
from metacount.huggingface.config.parts import shortest_period

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json


def pure(keys: Keys) -> Json:
    """Read a decoder of recurrent layers alone: no attention, no feed-forward, no positions."""
    keys.only("hidden_act", "silu")
    d_model, n_layers = keys.size("hidden_size"), keys.layers("num_hidden_layers")
    # beside transformers' keys, the first checkpoints keep those of the authors' code
    old = {"d_model": d_model, "n_layer": n_layers, "rms_norm": True, "ssm_cfg": {}}
    for name, value in old.items():
        keys.fixed(name, value)
    return {
        "kind": "decoder",
        "d_model": d_model,
        "n_layers": n_layers,
        "vocab_size": keys.size("vocab_size"),
        "tie_embeddings": keys.flag("tie_word_embeddings"),
        "attention": "none",
        "mixer_pattern": "R",
        "ffn_pattern": "N",
        "norm": "rmsnorm",
        "norm_eps": keys.number("layer_norm_epsilon"),
        "position": "none",
    }


# Fields of a part, which go with it where no layer has it.
OF_ATTENTION = (
    "n_heads",
    "n_kv_heads",
    "head_dim",
    "q_bias",
    "k_bias",
    "v_bias",
    "o_bias",
    "attention_scale",
    "attention_out_scale",
    "rope_style",
    "rope_theta",
    "rope_scaling",
    "rotary_dim",
)
OF_MIXER = ("recurrent", "conv_kernel", "d_ssm", "dt_rank")
OF_FFN = ("d_ff", "activation", "gated", "ffn_bias", "swish_beta")


def without_idle(fields: Json) -> Json:
    """Return `fields` with experts in layers of letter E; a dense width stays for letter F."""
    mixers, ffns = set(fields["mixer_pattern"]), set(fields.get("ffn_pattern", "F"))
    idle: set[str] = set()
    bare: Json = {}
    if not mixers & set("AP"):
        idle |= set(OF_ATTENTION)
        bare = {"attention": "none", "position": "none"}
    if not mixers & set("RP"):
        idle |= {*OF_MIXER, *(name for name in fields if "ssm" in name)}
    if ffns == {"N"}:
        idle |= set(OF_FFN)
    return {**{name: value for name, value in fields.items() if name not in idle}, **bare}


def expanded(keys: Keys, name: str, d_model: int) -> int:
    """Compute the channels of a mixer, as a multiple of the model's width."""
    times, written = keys.number(name), keys.raw(name)
    # a whole number as it is written may remember its name
    return written * d_model if isinstance(written, int) else int(times * d_model)


def step_rank(keys: Keys, name: str, d_model: int) -> int:
    """Read the rank of the step's projection; "auto" is ⌈d_model/16⌉."""
    return -(-d_model // 16) if keys.raw(name) == "auto" else keys.size(name)


def mamba(keys: Keys) -> Json:
    """Read a config of Mamba (arXiv:2312.00752)."""
    fields, bias = pure(keys), keys.flag("use_bias")
    d_inner = expanded(keys, "expand", fields["d_model"])
    for name in ("intermediate_size", "d_inner"):
        keys.fixed(name, d_inner)
    return {
        **fields,
        "recurrent": "mamba",
        "d_ssm": d_inner,
        "ssm_state_dim": keys.size("state_size"),
        "dt_rank": step_rank(keys, "time_step_rank", fields["d_model"]),
        "conv_kernel": keys.size("conv_kernel"),
        "ssm_conv_bias": keys.flag("use_conv_bias"),
        "ssm_in_bias": bias,
        "ssm_out_bias": bias,
    }


def falcon_mamba(keys: Keys) -> Json:
    """Read a config of Falcon-Mamba (arXiv:2410.05355): norms without weights for step, B, C."""
    inner = {"ssm_inner_norms": "plain", "ssm_norm_eps": keys.number("mixer_rms_eps")}
    return {**mamba(keys), **inner}


# How the keys of a Mamba-2 mixer are called: heads, width, groups, state, kernel, chunk, bias.
OWN = (
    "num_heads",
    "head_dim",
    "n_groups",
    "state_size",
    "conv_kernel",
    "chunk_size",
    "use_conv_bias",
)


def heads(keys: Keys, d_inner: int, names: tuple[str, ...]) -> Json:
    """Read a Mamba-2 mixer whose heads fill `d_inner`; `names` are those of its keys."""
    n_heads, head_dim, groups, state, kernel, chunk, conv_bias = names
    count, width = keys.size(n_heads), keys.raw(head_dim)
    width = d_inner // count if width == "auto" else keys.size(head_dim)
    if count * width != d_inner:
        raise SpecError(
            n_heads,
            f"times {head_dim} must be the {d_inner} channels: {count}·{width} = {count * width}",
            count,
            "change one of the two",
        )
    return {
        "recurrent": "mamba2",
        "n_ssm_heads": count,
        "ssm_head_dim": width,
        "n_ssm_groups": keys.size(groups),
        "ssm_state_dim": keys.size(state),
        "conv_kernel": keys.size(kernel),
        "ssm_chunk_size": keys.size(chunk),
        "ssm_conv_bias": keys.flag(conv_bias),
    }


def step_limits(keys: Keys) -> Json:
    """Read `time_step_limit`, a pair; 0 and infinity are no limits."""
    pair = keys.raw("time_step_limit")
    if pair is None:
        return {}
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise SpecError("time_step_limit", "must be a pair of numbers", pair, "remove it")
    # JSON has no infinity; transformers writes it as an object
    low, high = (float("inf") if value == {"__float__": "Infinity"} else value for value in pair)
    if not is_number(low) or not is_number(high) or not 0 <= low <= high:
        raise SpecError(
            "time_step_limit", "must be two numbers, the smaller first", pair, "remove it"
        )
    return {
        **({"ssm_dt_min": float(low)} if low > 0 else {}),
        **({"ssm_dt_max": float(high)} if high < 1e12 else {}),
    }


def mamba2(keys: Keys) -> Json:
    """Read a config of Mamba-2 (arXiv:2405.21060)."""
    fields, bias = pure(keys), keys.flag("use_bias")
    d_inner = expanded(keys, "expand", fields["d_model"])
    keys.fixed("norm_before_gate", True, False)  # of the authors' code alone
    return {
        **fields,
        **heads(keys, d_inner, OWN),
        **step_limits(keys),
        "ssm_in_bias": bias,
        "ssm_out_bias": bias,
    }


def jamba(keys: Keys) -> Json:
    """Read a config of Jamba (arXiv:2403.19887): attention in one layer of eight, no RoPE."""
    keys.only("hidden_act", "silu")  # one key for the feed-forward and for the mixer
    fields, bias = block(keys), keys.flag("mamba_proj_bias")
    n_layers, d_model = fields["n_layers"], fields["d_model"]
    attends = every(keys, "attn_layer", n_layers)
    fields |= {
        "mixer_pattern": shortest_period("".join("RA"[on] for on in attends)),
        "recurrent": "mamba",
        "d_ssm": expanded(keys, "mamba_expand", d_model),
        "ssm_state_dim": keys.size("mamba_d_state"),
        "dt_rank": step_rank(keys, "mamba_dt_rank", d_model),
        "conv_kernel": keys.size("mamba_d_conv"),
        "ssm_conv_bias": keys.flag("mamba_conv_bias"),
        "ssm_in_bias": bias,
        "ssm_out_bias": bias,
        "ssm_inner_norms": "affine",
        "position": "none",
    }
    some = keys.size("num_experts") > 1
    feeds = "".join("FE"[on and some] for on in every(keys, "expert_layer", n_layers))
    experts = {**routed(keys, "num_experts", "softmax"), "d_ff_expert": fields["d_ff"]}
    return without_idle(with_letters(fields, feeds, experts))


def with_letters(fields: Json, letters: str, experts: Json) -> Json:
    """Return `fields` with experts in layers of letter E; a dense width stays for letter F."""
    if "E" not in letters:
        return {**fields, "ffn_pattern": shortest_period(letters)}
    kept = {k: v for k, v in fields.items() if k != "d_ff" or "F" in letters}
    return {**kept, "ffn_pattern": shortest_period(letters), **experts}


def every(keys: Keys, name: str, n_layers: int) -> list[bool]:
    """Find the layers that `<name>_period` and `<name>_offset` mean."""
    period, offset = keys.layers(f"{name}_period"), keys.layers(f"{name}_offset", lowest=0)
    if offset >= period:
        raise SpecError(
            f"{name}_offset",
            f"must be below {name}_period = {period}",
            offset,
            f"choose 0 to {period - 1}",
        )
    return [i % period == offset for i in range(n_layers)]


STEPS = (
    "time_step_min time_step_max time_step_floor rescale_prenorm_residual residual_in_fp32 "
    "use_mamba_kernels use_mambapy use_associative_scan"
)
MAMBA: Json = {
    "vocab_size": 50280,
    "hidden_size": 768,
    "state_size": 16,
    "num_hidden_layers": 32,
    "layer_norm_epsilon": 1e-5,
    "expand": 2,
    "conv_kernel": 4,
    "use_bias": False,
    "use_conv_bias": True,
    "hidden_act": "silu",
    "time_step_rank": "auto",
    "tie_word_embeddings": True,
}
OLD = (
    "fused_add_norm pad_vocab_size_multiple time_step_scale time_step_init_scheme "
    "use_falcon_mambapy"
)

FAMILIES = {
    "mamba": decoder("Mamba", mamba, MAMBA, ignored=f"{STEPS} {OLD}"),
    "falcon_mamba": decoder(
        "FalconMamba", falcon_mamba, {**MAMBA, "mixer_rms_eps": 1e-6}, ignored=f"{STEPS} {OLD}"
    ),
    "mamba2": decoder(
        "Mamba2",
        mamba2,
        {
            **{k: v for k, v in MAMBA.items() if k != "time_step_rank"},
            "vocab_size": 32768,
            "hidden_size": 4096,
            "state_size": 128,
            "num_hidden_layers": 64,
            "num_heads": 128,
            "head_dim": 64,
            "n_groups": 8,
            "chunk_size": 256,
            "time_step_limit": (0.0, float("inf")),
            "tie_word_embeddings": False,
        },
        ignored=f"{STEPS} {OLD} time_step_rank",
    ),
    "jamba": decoder(
        "Jamba",
        jamba,
        {
            **{k: v for k, v in LLAMA.items() if k != "rope_theta"},
            "vocab_size": 65536,
            "intermediate_size": 14336,
            "num_key_value_heads": 8,
            "num_experts_per_tok": 2,
            "num_experts": 16,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "attn_layer_period": 8,
            "attn_layer_offset": 4,
            "mamba_d_state": 16,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
            "mamba_dt_rank": "auto",
            "mamba_conv_bias": True,
            "mamba_proj_bias": False,
        },
        aliases={"num_local_experts": "num_experts"},
        ignored=f"{STEPS} num_logits_to_keep sliding_window",
    ),
}
