"""Recurrent layers, alone or beside attention: state spaces, linear attention, convolutions."""

from __future__ import annotations

import math

from metacount.errors import SpecError
from metacount.huggingface.config.keys import Keys, is_number
from metacount.huggingface.config.parts import (
    BIAS,
    BLOCK,
    CHOICE_BIAS,
    D_FF,
    EXPERT_WIDTH,
    FFN_BIAS,
    GATED,
    RMS,
    ROPE,
    ROUTED_SCALE,
    after,
    all_windows,
    always,
    biases,
    differs,
    divided,
    experts,
    fixed,
    flag,
    grouped,
    groups,
    indices,
    latents,
    layer_types,
    letters_of,
    named_layers,
    nullable_size,
    number,
    only,
    part,
    prediction,
    qwen_experts,
    qwen_shared,
    rms_norm,
    routed,
    row,
    same_as,
    scales,
    shared_experts,
    shortest_period,
    size,
    sizes,
    sparse_layers,
    trunk,
)
from metacount.huggingface.config.rope import AXES, rotation

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json

FULL_OR_LINEAR = ("full_attention", "linear_attention")
CHUNK = 64  # of the delta rule; transformers' functions have it as a default, no config says it
LIGHTNING_EPS = 1e-6  # of the norm inside lightning attention, whatever rms_norm_eps says


# ---- LFM2: gated short convolutions, and attention in a few layers ----

LFM2 = (
    sizes,
    # of LFM2's first configs; transformers does not read them
    same_as(block_dim="d_model", conv_dim="d_model", conv_dim_out="d_model", num_heads="n_heads"),
    fixed(block_use_swiglu=True, use_pos_enc=True),
    ROPE,
    always(qk_norm="head", activation="silu", gated=True),
    rms_norm("norm_eps"),
)


def lfm2_mixers(keys: Keys, fields: Json) -> Json:
    """Read the pattern of attention and convolutions, and the convolution where there is one.

    LFM2's first configs list the layers of attention in `full_attn_idxs`.
    """
    n_layers, types = fields["n_layers"], keys.given("layer_types")
    added: Json = {}
    if "full_attn_idxs" in keys.defaults:
        full = keys.raw("full_attn_idxs")
        full = range(n_layers) if full is None else indices("full_attn_idxs", full)
        if types is None:
            types = ["full_attention" if i in full else "conv" for i in range(n_layers)]
        added = {"d_ff": lfm2_width(keys)}
    letters = letters_of(keys, "layer_types", types, {"full_attention": "A", "conv": "R"}, n_layers)
    width, conv_bias = keys.size("conv_L_cache"), keys.flag("conv_bias")
    if "A" not in letters:
        keys.unmapped("layer_types", "conv", "transformers needs one layer of attention")
    if "R" not in letters:
        return added
    added |= {"recurrent": "short_conv", "conv_kernel": width, "short_conv_bias": conv_bias}
    return {**added, "mixer_pattern": shortest_period(letters)}


def lfm2_width(keys: Keys) -> int:
    """Compute the FFN's width as transformers does, from the key's.

    Where it is adjusted, two thirds; where there is a factor as well, times it and rounded up.
    """
    width, multiple = keys.size("intermediate_size"), keys.size("block_multiple_of")
    factor = keys.optional_number("block_ffn_dim_multiplier")
    if not keys.flag("block_auto_adjust_ff_dim"):
        return width
    width = 2 * width // 3
    if factor is None:
        return width
    width = width if factor == 1 else int(factor * width)
    return multiple * ((width + multiple - 1) // multiple)


# ---- RecurrentGemma ----


def in_bfloat16(value: float) -> float:
    """Round a positive number to 8 significant bits, ties to even,
    as transformers stores the embedding's scale.

    >>> in_bfloat16(2560**0.5)
    50.5
    """
    fraction, exponent = math.frexp(value)
    return math.ldexp(round(fraction * 256), exponent - 8)


def recurrent_gemma(keys: Keys, _: Json) -> Json:
    """Read Griffin's recurrent blocks, and windowed attention in every third layer;
    half of `intermediate_size` is a branch's width.
    """
    fields = trunk(keys)
    d_model, n_heads = fields["d_model"], keys.size("num_attention_heads")
    n_layers, width = fields["n_layers"], nullable_size(keys, "lru_width")
    head_dim = divided("num_attention_heads", d_model, n_heads)
    n_kv_heads, kinds = nullable_size(keys, "num_key_value_heads"), keys.raw("block_types")
    if not isinstance(kinds, list | tuple) or not kinds:
        raise SpecError("block_types", "must be a list of words", kinds, "remove it")
    for kind in kinds:
        if kind not in ("recurrent", "attention"):
            keys.unmapped("block_types", kind, "choose recurrent or attention")
    # transformers repeats the list a hundred times at most
    letters = ("".join("RA"[kind == "attention"] for kind in kinds) * 100)[:n_layers]
    if len(letters) < n_layers or set(letters) != {"A", "R"}:
        keys.unmapped("block_types", list(kinds), "both kinds must be among the layers")
    if keys.given("head_dim") is not None:
        keys.agrees("head_dim", head_dim)
    fields |= {
        "embedding_scale": in_bfloat16(d_model**0.5),
        "logit_softcap": keys.number("logits_soft_cap"),
        "n_heads": n_heads,
        "n_kv_heads": n_heads if n_kv_heads is None else n_kv_heads,
        "head_dim": head_dim,
        **biases(keys.flag("attention_bias"), True),
        "window": keys.size("attention_window_size"),
        "d_ff": keys.size("intermediate_size", lowest=2) // 2,
        **keys.activation("hidden_activation", gated=True),
        "ffn_bias": True,
        **rms_norm(norm_unit_offset=True)(keys, {}),
        "mixer_pattern": shortest_period(letters),
        "recurrent": "rg_lru",
        "conv_kernel": keys.size("conv1d_width"),
        "lru_width": d_model if width is None else width,
        "n_lru_blocks": n_heads,
        **rotation(keys, head_dim),
    }
    if fields["lru_width"] != d_model:
        keys.unmapped("lru_width", width, "transformers runs hidden_size only")
    if "swish_beta" in fields:  # a branch beside a recurrence has none
        keys.unmapped("hidden_activation", keys.raw("hidden_activation"), "choose silu or gelu")
    return {**fields, "lru_activation": fields["activation"]}


# ---- linear attention beside attention ----


def mixed(keys: Keys, fields: Json, linear: list[bool]) -> str:
    """Write one letter a layer, A attention and R recurrent,
    by `layer_types` or else by `linear`.
    """
    default = [FULL_OR_LINEAR[on] for on in linear]
    letters = layer_types(keys, fields["n_layers"], default, FULL_OR_LINEAR)
    return letters.translate({ord("G"): "A", ord("L"): "R"})


def hybrid(fields: Json, letters: str, attention: Json, recurrent: Json) -> Json:
    """Return what the layers of each kind need; a kind without a layer has no fields."""
    if "A" not in letters:
        for name in ("n_heads", "n_kv_heads", "head_dim"):
            fields.pop(name, None)
        return {**recurrent, "attention": "none", "mixer_pattern": "R", "position": "none"}
    if "R" not in letters:
        return attention
    return {**attention, **recurrent, "mixer_pattern": shortest_period(letters)}


def note_silu(keys: Keys) -> None:
    """Say where the one activation of a config is another in linear attention than it is here."""
    if keys.raw("hidden_act") not in ("silu", "swish"):
        keys.differs("linear attention has hidden_act before its heads, here silu")


def gated_delta(keys: Keys) -> Json:
    """Read the sizes of gated DeltaNet under Qwen's names."""
    note_silu(keys)
    return {"recurrent": "gated_delta", **keys.sizes(DELTA), "linear_chunk_size": CHUNK}


DELTA = (
    "n_linear_k_heads=linear_num_key_heads n_linear_v_heads=linear_num_value_heads "
    "linear_k_head_dim=linear_key_head_dim linear_v_head_dim=linear_value_head_dim "
    "conv_kernel=linear_conv_kernel_dim"
)


def qwen_hybrid(keys: Keys, fields: Json) -> Json:
    """Read Qwen's hybrid: in every `full_attention_interval`-th layer gated attention with norms of
    queries and keys, in the others gated DeltaNet; zero-centred norms.
    """
    parameters = keys.data.get("rope_parameters")
    if isinstance(parameters, dict):
        keys.data["rope_parameters"] = {k: v for k, v in parameters.items() if k not in AXES}
    attention = {
        **BIAS(keys, fields),
        "output_gate": True,
        "qk_norm": "head",
        **rotation(keys, fields["head_dim"]),
    }
    every = keys.layers("full_attention_interval")
    letters = mixed(keys, fields, [(i + 1) % every != 0 for i in range(fields["n_layers"])])
    keys.fixed("mtp_use_dedicated_embeddings", False)  # its modules share the embedding
    predicting = prediction("mtp_num_hidden_layers")(keys, fields)
    parameters = hybrid(fields, letters, attention, gated_delta(keys))
    return {"norm_unit_offset": True, **predicting, **parameters}


def olmo_hybrid(keys: Keys, fields: Json) -> Json:
    """Read gated DeltaNet in three layers of four, beside OLMo 2's attention."""
    n_heads, n_layers = fields["n_heads"], fields["n_layers"]
    for name in ("linear_num_key_heads", "linear_num_value_heads"):
        if keys.raw(name) is None:
            keys.data[name] = n_heads
    if keys.raw("linear_key_head_dim") is None:
        width = 0.75 * fields["d_model"] / keys.size("linear_num_key_heads")
        keys.data["linear_key_head_dim"] = int(width)
    if keys.raw("linear_value_head_dim") is None:
        keys.data["linear_value_head_dim"] = 2 * keys.size("linear_key_head_dim")
    linear = [i % 4 != 3 for i in range(n_layers)]
    linear[-1] = linear[-1] and not all(linear)
    letters = mixed(keys, fields, linear)
    for kind in "AR":
        if kind not in letters:
            keys.unmapped("layer_types", letters, "transformers wants layers of both kinds")
    turned = rotation_or_none(keys, fields["head_dim"])
    attention = {**BIAS(keys, fields), "qk_norm": "full", **turned}
    recurrent = {
        **gated_delta(keys),
        "linear_negative_eigenvalues": keys.flag("linear_allow_neg_eigval"),
        "linear_norm_eps": None if fields["norm_eps"] == 1e-5 else 1e-5,
    }
    return {"norm_placement": "hybrid", **hybrid(fields, letters, attention, recurrent)}


def rotation_or_none(keys: Keys, head_dim: int) -> Json:
    """Read RoPE, or no positions where its base is null."""
    parameters = keys.given("rope_parameters")
    if (
        isinstance(parameters, dict)
        and "rope_theta" in parameters
        and parameters["rope_theta"] is None
    ):
        keys.raw("rope_theta")
        return {"position": "none"}
    return rotation(keys, head_dim)


def minimax(keys: Keys, fields: Json) -> Json:
    """Read lightning attention, and full attention between, with weights of the residual."""
    letters = mixed(keys, fields, [i % 2 == 1 for i in range(fields["n_layers"])])
    note_silu(keys)
    attention = {**all_windows(keys, fields), **rotation(keys, fields["head_dim"])}
    recurrent = {
        "recurrent": "lightning",
        "n_linear_heads": fields["n_heads"],
        "linear_head_dim": fields["head_dim"],
        "linear_chunk_size": keys.size("block_size"),
        "linear_norm_eps": None if fields["norm_eps"] == LIGHTNING_EPS else LIGHTNING_EPS,
    }
    added = {
        "norm_placement": "stream",
        **routed(keys, "num_local_experts", "softmax_renorm"),
        **residual_weights(keys, letters),
        "d_ff_expert": fields.pop("d_ff"),
    }
    return {**added, **hybrid(fields, letters, attention, recurrent)}


def residual_weights(keys: Keys, letters: str) -> Json:
    """Read the weights of the residual and of what is added to it: one of each for all layers."""
    kinds = {"A": "full_attn", "R": "linear_attn"}
    names = ["mlp", *(kinds[kind] for kind in sorted(set(letters)))]
    weights = {}
    for field, end in (("residual_weight", "alpha_factor"), ("residual_scale", "beta_factor")):
        values = {f"{name}_{end}": keys.number(f"{name}_{end}") for name in names}
        if len(set(values.values())) > 1:
            keys.unmapped(f"mlp_{end}", values, "all factors of the kind must be equal")
        weights[field] = values[f"mlp_{end}"]
    return weights


# ---- Kimi Linear ----

KIMI_SIZES = {
    "head_dim": "linear_head_dim",
    "num_heads": "linear_num_heads",
    "short_conv_kernel_size": "linear_conv_kernel_dim",
}


def kimi_layers(keys: Keys) -> list[bool] | None:
    """Read Kimi's `linear_attn_config`: its sizes go before the keys beside it;
    its layers count from 1. Returns which are linear, where it says so.
    """
    inside = keys.given("linear_attn_config")
    if inside is None:
        return None
    if not isinstance(inside, dict):
        raise SpecError("linear_attn_config", "must be an object", inside, "remove it")
    lists = ("full_attn_layers", "kda_layers")
    for name, value in inside.items():
        if name in KIMI_SIZES:
            keys.data[KIMI_SIZES[name]] = value
        elif name not in lists:
            keys.unmapped("linear_attn_config", {name: value}, "remove it")
    if not all(isinstance(inside.get(name), list) for name in lists):
        return None
    named = {name: inside[name] for name in lists}
    n_layers = keys.layers("num_hidden_layers")
    if sorted([*named["full_attn_layers"], *named["kda_layers"]]) != list(range(1, n_layers + 1)):
        why = f"they must name each layer from 1 to {n_layers} once"
        keys.unmapped("linear_attn_config", named, why)
    return [i + 1 in named["kda_layers"] for i in range(n_layers)]


def kimi_linear(keys: Keys, fields: Json) -> Json:
    """Read Kimi delta attention beside MLA whose shared key is not rotated."""
    linear, attention = kimi_layers(keys), latents(keys)
    if keys.given("head_dim") is not None:
        keys.size("head_dim")  # transformers takes another
    keys.fixed("mla_use_nope", True)
    keys.only("tie_word_embeddings", False, why="transformers never ties it")
    attention["v_head_dim"] = keys.size("v_head_dim")
    fields |= {**trunk(keys), "position": "none", **D_FF(keys, {})}
    fields |= {**GATED(keys, {}), **RMS(keys, {})}
    note_silu(keys)
    if linear is None:
        linear = [not (i and i % 4 == 0) for i in range(fields["n_layers"])]
    letters = mixed(keys, fields, linear)
    names = "n_linear_heads=linear_num_heads linear_head_dim conv_kernel=linear_conv_kernel_dim"
    recurrent = {"recurrent": "kimi_delta", **keys.sizes(names), "linear_chunk_size": CHUNK}
    return hybrid(fields, letters, attention, recurrent)


# ---- state spaces ----


def pure(keys: Keys, _: Json) -> Json:
    """Read a decoder of recurrent layers alone: no attention, no feed-forward, no positions."""
    keys.only("hidden_act", "silu")
    fields = trunk(keys)
    rank = keys.given("time_step_rank")
    if isinstance(rank, str) and rank != "auto" and not rank.isdigit():
        keys.refused.append(f"time_step_rank must be a whole number or auto: got {rank!r}")
    # beside transformers' keys, the first checkpoints keep those of the authors' code
    same_as(d_model="d_model", n_layer="n_layers")(keys, fields)
    fixed(rms_norm=True, ssm_cfg={})(keys, fields)
    absent = {"attention": "none", "mixer_pattern": "R", "ffn_pattern": "N", "position": "none"}
    return {**fields, **absent, **rms_norm("layer_norm_epsilon")(keys, {})}


# Fields of a part, which go with it where no layer has it.
OF_ATTENTION = (
    "n_heads n_kv_heads head_dim q_bias k_bias v_bias o_bias attention_scale attention_out_scale "
    "rope_style rope_theta rope_scaling rotary_dim"
)
OF_MIXER = "recurrent conv_kernel d_ssm dt_rank"
OF_FFN = "d_ff activation gated ffn_bias swish_beta"


def without_idle(keys: Keys, fields: Json) -> Json:
    """Take away the fields of what no layer has."""
    mixers, ffns = set(fields["mixer_pattern"]), set(fields.get("ffn_pattern", "F"))
    idle: set[str] = set()
    bare: Json = {}
    if not mixers & set("AP"):
        idle |= set(OF_ATTENTION.split())
        bare = {"attention": "none", "position": "none"}
    if not mixers & set("RP"):
        idle |= {*OF_MIXER.split(), *(name for name in fields if "ssm" in name)}
    if ffns == {"N"}:
        idle |= set(OF_FFN.split())
    for name in idle & fields.keys():
        del fields[name]
    return bare


def expanded(keys: Keys, name: str, d_model: int) -> int:
    """Compute the channels of a mixer, as a multiple of the model's width."""
    times, written = keys.number(name), keys.raw(name)
    # a whole number as it is written may remember its name
    return written * d_model if isinstance(written, int) else int(times * d_model)


def mixer_biases(keys: Keys, name: str) -> Json:
    """Read whether the first and the last projection of a mixer have a bias."""
    bias = keys.flag(name)
    return {"ssm_in_bias": bias, "ssm_out_bias": bias}


# How the keys of a mixer are called: expansion, state, rank of the step, kernel and two biases of
# Mamba; heads, width, groups, state, kernel, chunk and bias of Mamba-2.
MAMBA = "expand state_size time_step_rank conv_kernel use_conv_bias use_bias"
JAMBA = "mamba_expand mamba_d_state mamba_dt_rank mamba_d_conv mamba_conv_bias mamba_proj_bias"
MAMBA2 = "num_heads head_dim n_groups state_size conv_kernel chunk_size use_conv_bias"
IBM = (
    "mamba_n_heads mamba_d_head mamba_n_groups mamba_d_state mamba_d_conv mamba_chunk_size "
    "mamba_conv_bias"
)
NEMOTRON = (
    "mamba_num_heads mamba_head_dim n_groups ssm_state_size conv_kernel chunk_size use_conv_bias"
)


@part
def selective(keys: Keys, fields: Json, names: str) -> Json:
    """Read a Mamba mixer (arXiv:2312.00752); `names` are those of its keys. A rank of "auto" is
    ⌈d_model/16⌉.
    """
    expand, state, rank, kernel, conv_bias, bias = names.split()
    d_model = fields["d_model"]
    return {
        "recurrent": "mamba",
        "d_ssm": expanded(keys, expand, d_model),
        "ssm_state_dim": keys.size(state),
        "dt_rank": -(-d_model // 16) if keys.raw(rank) == "auto" else keys.size(rank),
        "conv_kernel": keys.size(kernel),
        "ssm_conv_bias": keys.flag(conv_bias),
        **mixer_biases(keys, bias),
    }


def ssm_heads(keys: Keys, d_inner: int, names: str) -> Json:
    """Read a Mamba-2 mixer (arXiv:2405.21060) whose heads fill `d_inner`; `names` are those of its
    keys.
    """
    n_heads, head_dim, groups, state, kernel, chunk, conv_bias = names.split()
    count, width = keys.size(n_heads), keys.raw(head_dim)
    width = d_inner // count if width == "auto" else keys.size(head_dim)
    if count * width != d_inner:
        rule = f"times {head_dim} must be the {d_inner} channels: {count}·{width} = {count * width}"
        raise SpecError(n_heads, rule, count, "change one of the two")
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
    name, pair = "time_step_limit", keys.raw("time_step_limit")
    if pair is None:
        return {}
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise SpecError(name, "must be a pair of numbers", pair, "remove it")
    # JSON has no infinity; transformers writes it as an object
    low, high = (float("inf") if value == {"__float__": "Infinity"} else value for value in pair)
    if not is_number(low) or not is_number(high) or not 0 <= low <= high:
        raise SpecError(name, "must be two numbers, the smaller first", pair, "remove it")
    lowest = {"ssm_dt_min": float(low)} if low > 0 else {}
    return {**lowest, **({"ssm_dt_max": float(high)} if high < 1e12 else {})}


@part
def mamba2(
    keys: Keys,
    fields: Json,
    names: str,
    *,
    expand: str = "mamba_expand",
    bias: str = "mamba_proj_bias",
    size: str = "",
) -> Json:
    """Read a Mamba-2 mixer: its channels by `size`, or as a multiple of the model's width."""
    d_inner = keys.optional_size(size) if size else None
    if d_inner is None:
        d_inner = expanded(keys, expand, fields["d_model"])
    added = {**ssm_heads(keys, d_inner, names), **step_limits(keys)}
    return {**added, **mixer_biases(keys, bias)}


def jamba_mixers(keys: Keys, fields: Json) -> Json:
    """Read Mamba, and attention in one layer of eight, without positions."""
    attends = periodic(keys, "attn_layer", fields["n_layers"])
    return {
        "mixer_pattern": shortest_period("".join("RA"[on] for on in attends)),
        **selective(JAMBA)(keys, fields),
        "ssm_inner_norms": "affine",
        "position": "none",
    }


def bamba_letters(keys: Keys, fields: Json) -> Json:
    """Read which few layers have attention."""
    chosen = indices("attn_layer_indices", keys.raw("attn_layer_indices") or [])
    letters = "".join("RA"[i in chosen] for i in range(fields["n_layers"]))
    return {"mixer_pattern": shortest_period(letters)}


def jamba_experts(keys: Keys, fields: Json) -> Json:
    """Read experts in layers of letter E; a dense width stays for letter F."""
    some = keys.size("num_experts") > 1
    layers = periodic(keys, "expert_layer", fields["n_layers"])
    letters = "".join("FE"[on and some] for on in layers)
    added = {**routed(keys, "num_experts", "softmax"), "d_ff_expert": fields["d_ff"]}
    pattern = {"ffn_pattern": shortest_period(letters)}
    if "E" not in letters:
        return pattern
    if "F" not in letters:
        del fields["d_ff"]
    return {**pattern, **added}


def periodic(keys: Keys, name: str, n_layers: int) -> list[bool]:
    """Find the layers that `<name>_period` and `<name>_offset` mean."""
    period, offset = keys.layers(f"{name}_period"), keys.layers(f"{name}_offset", lowest=0)
    if offset >= period:
        rule = f"must be below {name}_period = {period}"
        raise SpecError(f"{name}_offset", rule, offset, f"choose 0 to {period - 1}")
    return [i % period == offset for i in range(n_layers)]


def granite_mixers(keys: Keys, fields: Json) -> Json:
    """Read Mamba-2 beside attention, which may be rotated; all layers are recurrent where there is
    no list.
    """
    names, n_layers = named_layers(keys), fields["n_layers"]
    names = ["linear_attention"] * n_layers if names is None else names
    mixers = {"linear_attention": "R", "full_attention": "A"}
    letters = letters_of(keys, "layer_types", names, mixers, n_layers)
    mixer = mamba2(IBM)(keys, fields)
    added = {**scales(keys, fields), **BIAS(keys, fields), **mixer}
    position = rotation(keys, fields["head_dim"])
    if keys.raw("position_embedding_type") != "rope":
        keys.only("position_embedding_type", None, "nope")
        position = {"position": "none"}
    return {**added, "mixer_pattern": shortest_period(letters), **position}


def granite_experts(keys: Keys, fields: Json) -> Json:
    """Read experts beside a shared feed-forward, which is all there is where they are none."""
    shared = keys.size("shared_intermediate_size")
    if keys.size("num_local_experts", lowest=0) == 0:
        keys.given("num_experts_per_tok")
        return {"d_ff": shared}
    return {
        "n_dense_layers": 0,
        "moe_every": 1,
        **routed(keys, "num_local_experts", "topk_softmax"),
        "d_ff_expert": fields.pop("d_ff"),
        "n_shared_experts": 1,
        "d_ff_shared": shared,
    }


def falcon_h1(keys: Keys, fields: Json) -> Json:
    """Read attention and Mamba-2 side by side in every layer."""
    bias, mixer = keys.flag("attention_bias"), mamba2(IBM, size="mamba_d_ssm")(keys, fields)
    gated = "before_gate" if keys.flag("mamba_norm_before_gate") else "gated"
    return {
        **biases(bias, bias),
        **mixer,
        "ssm_out_bias": keys.flag("projectors_bias"),
        "ssm_norm": gated if keys.flag("mamba_rms_norm") else "none",
        "ffn_bias": keys.flag("mlp_bias"),
        "mixer_pattern": "P",
        **multipliers(keys, fields["head_dim"], bias),
        **rotation(keys, fields["head_dim"]),
    }


FACTORS = (
    "embedding_multiplier lm_head_multiplier key_multiplier attention_in_multiplier "
    "attention_out_multiplier ssm_in_multiplier ssm_out_multiplier"
)


def multipliers(keys: Keys, head_dim: int, bias: bool) -> Json:
    """Read Falcon-H1's fourteen multipliers.

    What scales the input of attention scales its scores twice and its values once; what scales the
    input of the mixer scales all that its projection gives.
    """
    factor = keys.numbers(FACTORS)
    gate, down = several_numbers(keys, "mlp_multipliers", 2)
    parts = several_numbers(keys, "ssm_multipliers", 5)
    ssm = [value * factor["ssm_in_multiplier"] for value in parts]
    scale_in = factor["attention_in_multiplier"]
    if bias and scale_in != 1.0:
        keys.differs("attention_in_multiplier does not reach the biases of q, k and v")
    scores = factor["key_multiplier"] * scale_in * scale_in
    names = ("gate", "x", "b", "c", "step")
    ssm_scales = dict(zip(names, ssm, strict=True)) | {"out": factor["ssm_out_multiplier"]}
    return {
        "embedding_scale": factor["embedding_multiplier"],
        "logit_scale": factor["lm_head_multiplier"],
        "attention_scale": None if scores == 1.0 else head_dim**-0.5 * scores,
        "attention_out_scale": scale_in * factor["attention_out_multiplier"],
        "gate_scale": gate,
        "ffn_scale": down,
        **({} if set(ssm_scales.values()) == {1.0} else {"ssm_scales": ssm_scales}),
    }


def several_numbers(keys: Keys, name: str, count: int) -> list[float]:
    """Read a list of `count` positive numbers; 1 each where there is no list."""
    given = keys.raw(name)
    if given is None:
        return [1.0] * count
    for value in keys.listed(name, given, count, "numbers"):
        if not is_number(value) or not 0 < value < 1e12:
            raise SpecError(name, "must hold positive numbers", value, "choose one below 1e12")
    return [float(value) for value in given]


# ---- Nemotron-H: each layer is one of Mamba-2, attention, feed-forward and experts ----

NEMOTRON_LAYERS = {
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
    if names is None and "hybrid_override_pattern" in keys.data:
        keys.refused.append("hybrid_override_pattern must be text: got null")
    names = ["linear_attention", "moe", "full_attention", "mlp"] if names is None else names
    if not isinstance(names, list) or not names:
        raise SpecError("layers_block_type", "must be a list of names", names, "remove it")
    return letters_of(keys, "layers_block_type", names, NEMOTRON_LAYERS, len(names))


def nemotron_h(keys: Keys, _: Json) -> Json:
    """Read layers that are one of mixer, attention, feed-forward and experts."""
    letters = nemotron_letters(keys)
    keys.data["num_hidden_layers"] = len(letters)  # transformers goes by the list as well
    keys.only("mamba_hidden_act", "silu")
    predicted = keys.given("mtp_hybrid_override_pattern")
    if isinstance(predicted, str) and not set(predicted) <= set("M*-E"):
        rule = "mtp_hybrid_override_pattern must be letters of M, *, - and E"
        keys.refused.append(f"{rule}: got {predicted!r}")
    n_heads, width = keys.size("mamba_num_heads"), keys.size("mamba_head_dim")
    if keys.flag("tie_word_embeddings"):
        keys.notes.append("tie_word_embeddings: transformers' class stores both tables")
    fields = {
        **sizes(keys, {}),
        "tie_embeddings": False,
        **D_FF(keys, {}),
        **keys.activation("mlp_hidden_act", gated=False),
        "ffn_bias": keys.flag("mlp_bias"),
        **rms_norm("layer_norm_epsilon")(keys, {}),
        **ssm_heads(keys, n_heads * width, NEMOTRON),
        **mixer_biases(keys, "use_bias"),
        "ssm_dt_min": keys.number("time_step_min"),
        "mixer_pattern": shortest_period(letters.translate(str.maketrans("M*-E", "RANN"))),
        "ffn_pattern": shortest_period(letters.translate(str.maketrans("M*-E", "NNFE"))),
        "position": "none",
    }
    if "-" not in letters:
        del fields["d_ff"]
    if "E" not in letters:
        return fields
    fields["moe_latent_rank"] = keys.optional_size("moe_latent_size")
    return {**fields, **NEMOTRON_EXPERTS(keys, {})}


NEMOTRON_EXPERTS = experts(
    "n_routed_experts",
    "sigmoid",
    EXPERT_WIDTH,
    always(n_shared_experts=1),
    size("d_ff_shared=moe_shared_expert_intermediate_size"),
    CHOICE_BIAS,
    ROUTED_SCALE,
    grouped,
    renorm=True,
)


# ---- Zamba2: Mamba-2 layers, and blocks of attention and feed-forward that many share ----

# What a layer is called, today and in older configs -> the letter of its mixer.
ZAMBA_LAYERS = {"linear_attention": "R", "mamba": "R", "hybrid": "S"}
# The layers of Zamba2-2.7B, which transformers takes where there is no list.
BY_DEFAULT = "R" + "RRRRRS" * 7 + "RRRRS" + "RRRS" + "RR"
UNLIMITED: tuple[object, ...] = ([0.0, float("inf")], [0.0, {"__float__": "Infinity"}])


def zamba2(keys: Keys, _: Json) -> Json:
    """Read Mamba-2, and shared blocks that read the hidden state beside the embedding."""
    fields, letters = trunk(keys), zamba_letters(keys)
    d_model = fields["d_model"]
    fixed(time_step_limit=UNLIMITED)(keys, {})  # of the class's first version
    fields |= {
        **zamba_attention(keys, d_model),
        **zamba_ffn(keys, d_model),
        "ffn_bias": keys.flag("add_bias_linear"),
        **RMS(keys, {}),
        **zamba_mixer(keys, expanded(keys, "mamba_expand", d_model)),
        **mixer_biases(keys, "add_bias_linear"),
        "ssm_norm_eps": 1e-5,
        "ssm_dt_min": keys.number("time_step_min"),
        "mixer_pattern": shortest_period(letters),
        "ffn_pattern": "N",
    }
    stored, uses = keys.layers("num_mem_blocks"), letters.count("S")
    if not uses:
        bare = without_idle(keys, fields)
        return {**fields, **bare}
    if uses > stored and not fields["tie_embeddings"]:
        # its class ties what it shares only where the head is tied: each use stores a block then
        why = "transformers stores a shared block once only with a tied head: remove it"
        keys.unmapped("tie_word_embeddings", False, why)
    return {
        **fields,
        "n_shared_blocks": min(stored, uses),  # the others are never made
        "adapter_rank": keys.size("adapter_rank"),
        "attention_adapters": keys.flag("use_shared_attention_adapter"),
    }


def zamba_mixer(keys: Keys, d_inner: int) -> Json:
    """Read a Mamba-2 mixer whose heads share `d_inner` channels; its convolution has a bias."""
    n_heads = keys.size("n_mamba_heads")
    if d_inner % n_heads:
        rule = f"must divide the {d_inner} channels"
        raise SpecError("n_mamba_heads", rule, n_heads, "change one of the two")
    keys.agrees("mamba_headdim", d_inner // n_heads)
    return {
        "recurrent": "mamba2",
        "n_ssm_heads": n_heads,
        "ssm_head_dim": d_inner // n_heads,
        "n_ssm_groups": keys.size("mamba_ngroups"),
        "ssm_state_dim": keys.size("mamba_d_state", lowest=2),
        "conv_kernel": keys.size("mamba_d_conv"),
        "ssm_chunk_size": keys.size("chunk_size", lowest=2),
    }


def zamba_letters(keys: Keys) -> str:
    """Write R for a layer of Mamba-2, S for one that uses a shared block."""
    keys.own_name("layers_block_type")
    names, n_layers = keys.raw("layers_block_type"), keys.layers("num_hidden_layers")
    letters = BY_DEFAULT
    if names is not None:
        letters = letters_of(keys, "layers_block_type", names, ZAMBA_LAYERS, n_layers)
    elif n_layers != len(BY_DEFAULT):
        why = f"without layers_block_type there are {len(BY_DEFAULT)} layers"
        keys.unmapped("num_hidden_layers", n_layers, why)
    keys.agrees("hybrid_layer_ids", [i for i, letter in enumerate(letters) if letter == "S"])
    return letters


def zamba_attention(keys: Keys, d_model: int) -> Json:
    """Read attention over both inputs: its query heads are together as wide as these, less any
    remainder. It is rotated where `use_mem_rope` says so.
    """
    n_heads = keys.size("num_attention_heads")
    given, head_dim = keys.optional_size("num_key_value_heads"), 2 * d_model // n_heads
    if not head_dim:
        remedy = f"choose 1 to {2 * d_model}"
        raise SpecError("num_attention_heads", "must leave a width", n_heads, remedy)
    n_kv_heads = n_heads if given is None else given
    keys.agrees("attention_hidden_size", 2 * d_model)
    keys.agrees("attention_head_dim", head_dim)
    keys.agrees("kv_channels", d_model // n_heads)
    keys.agrees("num_query_groups", n_heads)
    if keys.flag("use_shared_attention_adapter"):
        for name, n in (("num_attention_heads", n_heads), ("num_key_value_heads", n_kv_heads)):
            if n * head_dim != 2 * d_model:
                why = f"adapters of attention give {2 * d_model} values, its heads others"
                keys.unmapped(name, n, why)
    rotated = rotation(keys, head_dim)
    if keys.flag("use_long_context"):
        keys.differs("use_long_context rescales RoPE in some versions of transformers")
    return {
        "n_heads": n_heads,
        "n_kv_heads": n_kv_heads,
        "head_dim": head_dim,
        "attention_scale": (head_dim / 2) ** -0.5,
        **(rotated if keys.flag("use_mem_rope") else {"position": "none"}),
    }


def zamba_ffn(keys: Keys, d_model: int) -> Json:
    """Read the gated feed-forward of a shared block, always with an adapter."""
    d_ff = keys.optional_size("intermediate_size", lowest=0) or 4 * d_model
    keys.fixed("ffn_hidden_size", d_ff)
    keys.fixed("use_shared_mlp_adapter", True)
    return {"d_ff": d_ff, **GATED(keys, {})}


# ---- xLSTM ----

MULTIPLE = 64  # transformers' cache rounds both widths of a layer up to it; its layers do not


def xlstm(keys: Keys, _: Json) -> Json:
    """Read blocks of an mLSTM and a gated feed-forward: no attention, no positions."""
    keys.only("tie_word_embeddings", False, why="transformers never ties it")
    fields = trunk(keys)
    d_model = fields["d_model"]
    n_heads, chunk = keys.size("num_heads"), keys.size("chunk_size", lowest=2)
    same_as(embedding_dim="d_model", num_blocks="n_layers")(keys, fields)
    keys.only("use_bias", False)  # an RMSNorm would have one, too
    keys.only("weight_mode", "single", why="transformers fails to initialise fused matrices")
    keys.only("mode", "inference", why="transformers runs any length in inference mode alone")
    # of checkpoints older than transformers' class
    fixed(add_qk_norm=False, add_post_norm=False, add_post_blocks_norm=True)(keys, fields)
    if not keys.flag("add_out_norm"):
        keys.notes.append("add_out_norm: transformers' class has that norm in any case")
    if (longest := keys.size("max_inference_chunksize")) % chunk:
        why = f"choose a multiple of chunk_size = {chunk}"
        keys.unmapped("max_inference_chunksize", longest, why)
    keys_width = mlstm_width(keys, "qk_dim_factor", d_model, n_heads)
    values_width = mlstm_width(keys, "v_dim_factor", d_model, n_heads)
    keys.fixed("head_dim", values_width)
    exact = d_model * keys.number("ffn_proj_factor")
    return {
        **fields,
        "logit_softcap": keys.number("output_logit_soft_cap"),
        "attention": "none",
        "recurrent": "mlstm",
        "mixer_pattern": "R",
        "n_linear_heads": n_heads,
        "linear_k_head_dim": keys_width,
        "linear_v_head_dim": values_width,
        "linear_chunk_size": chunk,
        "mlstm_gate_softcap": keys.number("gate_soft_cap"),
        "mlstm_divisor_eps": keys.number("eps"),
        "d_ff": rounded_up(exact, keys.size("ffn_round_up_to_multiple_of")),
        "activation": "silu",
        "gated": True,
        **rms_norm("norm_eps")(keys, {}),
        "position": "none",
    }


def rounded_up(width: float, multiple: int) -> int:
    """Round a width up to a multiple, as transformers does.

    >>> rounded_up(4096 * 2.667, 64)
    10944
    """
    return int((width + multiple - 1) // multiple * multiple)


def mlstm_width(keys: Keys, name: str, d_model: int, n_heads: int) -> int:
    """Compute the width of one head, of all of them as a multiple of the model's width."""
    exact = d_model * keys.number(name)
    if int(exact) < 1 or int(exact) != rounded_up(exact, MULTIPLE):
        rule = f"times hidden_size must be a multiple of {MULTIPLE}: {exact:g}"
        remedy = "transformers' cache is rounded up to one, its layers are not"
        raise SpecError(name, rule, keys.raw(name), remedy)
    return divided("num_heads", int(exact), n_heads)


# ---- rows ----

# of the mixer's kernels and of its initialisation
STEPS = (
    "time_step_min time_step_max time_step_floor rescale_prenorm_residual residual_in_fp32 "
    "use_mamba_kernels use_mambapy use_associative_scan"
)
OLD_MAMBA = (
    f"{STEPS} fused_add_norm pad_vocab_size_multiple time_step_scale time_step_init_scheme "
    "use_falcon_mambapy"
)
OLD_LFM2 = (
    "block_mlp_init_scale block_out_init_scale block_norm_eps block_use_xavier_init "
    "conv_use_xavier_init"
)
SELECTIVE = (selective(MAMBA), same_as(intermediate_size="d_ssm", d_inner="d_ssm"))
SILU = only(hidden_act="silu")  # one key for the feed-forward and for the mixer
QWEN_DEFAULTS: Json = {"partial_rotary_factor": 0.25, "full_attention_interval": 4}

ROWS = {
    # arXiv:2511.23404: the FFN's width may be two thirds of its key
    "lfm2": row(
        *LFM2,
        lfm2_mixers,
        aliases={"tie_embedding": "tie_word_embeddings", "block_ff_dim": "intermediate_size"},
        ignored=OLD_LFM2,
    ),
    "lfm2_moe": row(
        *LFM2,
        D_FF,
        lfm2_mixers,
        experts(
            "num_experts",
            "sigmoid",
            EXPERT_WIDTH,
            flag("selection_bias", "use_expert_bias"),
            ROUTED_SCALE,
            renorm=True,
            layout=after("num_dense_layers"),
        ),
        differs(
            "LFM2 adds 1e-6 to the sum that its routed weights are divided by",
            "router",
            "sigmoid_renorm",
        ),
        aliases={"tie_embedding": "tie_word_embeddings"},
        ignored=OLD_LFM2,
    ),
    # arXiv:2404.07839
    "recurrent_gemma": row(
        recurrent_gemma,
        ignored="w_init_variance_scale final_w_init_variance_scale layers_block_type "
        "attention_chunk_size",
        partial_rotary_factor=0.5,
    ),
    "qwen3_next": row(
        *BLOCK, qwen_hybrid, qwen_experts("num_experts", qwen_shared), **QWEN_DEFAULTS
    ),
    "qwen3_5_text": row(*BLOCK, qwen_hybrid, ignored="output_gate_type", **QWEN_DEFAULTS),
    "qwen3_5_moe_text": row(
        sizes,
        GATED,
        RMS,
        qwen_hybrid,
        experts("num_experts", "softmax_renorm", EXPERT_WIDTH, qwen_shared),
        ignored="output_gate_type",
        **QWEN_DEFAULTS,
    ),
    "olmo_hybrid": row(
        *BLOCK,
        olmo_hybrid,
        ignored="linear_a_log_min linear_a_log_max linear_dt_min linear_dt_max "
        "linear_dt_init_floor",
    ),
    "minimax": row(*BLOCK, minimax),  # arXiv:2501.08313
    # arXiv:2510.26692
    "kimi_linear": row(
        kimi_linear,
        experts(
            "num_experts",
            "sigmoid",
            EXPERT_WIDTH,
            shared_experts("num_shared_experts", lowest=1),
            CHOICE_BIAS,
            ROUTED_SCALE,
            groups("num_expert_group"),
            renorm="moe_renormalize",
            layout=sparse_layers("first_k_dense_replace"),
            chosen="num_experts_per_token",
        ),
        aliases={"max_position_embeddings": "model_max_length"},
        ignored="model_max_length qk_head_dim rope_theta rope_scaling rope_parameters",
        first_k_dense_replace=1,
    ),
    "mamba": row(pure, *SELECTIVE, ignored=OLD_MAMBA),
    # arXiv:2410.05355: norms without weights for step, B, C
    "falcon_mamba": row(
        number("ssm_norm_eps=mixer_rms_eps"),
        always(ssm_inner_norms="plain"),
        pure,
        *SELECTIVE,
        ignored=OLD_MAMBA,
    ),
    "mamba2": row(
        pure,
        fixed(norm_before_gate=(True, False)),  # of the authors' code alone
        mamba2(MAMBA2, expand="expand", bias="use_bias"),
        ignored=f"{OLD_MAMBA} time_step_rank",
    ),
    # arXiv:2403.19887
    "jamba": row(
        SILU,
        *BLOCK,
        jamba_mixers,
        jamba_experts,
        without_idle,
        ignored=f"{STEPS} num_logits_to_keep sliding_window",
        head_dim=None,
    ),
    "bamba": row(
        SILU,
        fixed(partial_rotary_factor=0.5),  # transformers sets it, whatever is written
        *BLOCK,
        BIAS,
        mamba2(IBM),
        FFN_BIAS,
        bamba_letters,
        ROPE,
        without_idle,
        ignored=f"{STEPS} num_logits_to_keep z_loss_coefficient",
        head_dim=None,
        partial_rotary_factor=0.5,
    ),
    # Granite 4
    "granitemoehybrid": row(
        SILU,
        *BLOCK,
        granite_mixers,
        granite_experts,
        without_idle,
        aliases={"layers_block_type": "layer_types"},
        ignored=STEPS,
        head_dim=None,
    ),
    # arXiv:2507.22448
    "falcon_h1": row(SILU, *BLOCK, falcon_h1, ignored=f"{STEPS} num_logits_to_keep", head_dim=None),
    # arXiv:2504.03624
    "nemotron_h": row(
        nemotron_h,
        without_idle,
        aliases={
            "mamba_n_groups": "n_groups",
            "mamba_d_conv": "conv_kernel",
            "mamba_dt_min": "time_step_min",
            "mamba_conv_bias": "use_conv_bias",
            "mamba_chunk_size": "chunk_size",
        },
        ignored=f"{STEPS} num_logits_to_keep expand mamba_proj_bias mamba_ssm_cache_dtype "
        "n_shared_experts moe_shared_expert_overlap num_nextn_predict_layers "
        "mtp_layers_block_type mtp_hybrid_override_pattern time_step_limit time_step_rank "
        "attention_bias sliding_window",
        reads="time_step_min",
    ),
    # arXiv:2411.15242
    "zamba2": row(
        zamba2,
        aliases={"head_dim": "attention_head_dim"},
        ignored=f"{STEPS} num_logits_to_keep use_conv_bias use_mem_eff_path",
        reads="time_step_min",
    ),
    # arXiv:2503.13427; ignored: which kernel computes, in which type; whether states are returned,
    # which inference does
    "xlstm": row(
        xlstm,
        ignored="chunkwise_kernel sequence_kernel step_kernel autocast_kernel_dtype "
        "inference_state_dtype norm_reduction_force_float32 return_last_states "
        "forward_backend_name step_backend_name add_forward_backend_padding add_embedding_dropout "
        "force_bos_token_insert igate_bias_init_range mlstm_round_up_to_multiple_of cell_norm_eps",
    ),
}
