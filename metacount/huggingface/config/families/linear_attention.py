"""Hybrids of attention and linear attention: Qwen3-Next, Qwen3.5, OLMo Hybrid, MiniMax."""

from __future__ import annotations

from metacount.huggingface.config.families.family import decoder
from metacount.huggingface.config.families.llama import LLAMA, all_windows, block
from metacount.huggingface.config.families.routing import (
    all_experts,
    prediction,
    qwen_experts,
    routed,
)
from metacount.huggingface.config.keys import Keys
from metacount.huggingface.config.parts import (
    biases,
    layer_types,
    rope,
    shortest_period,
    sizes,
)

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json

FULL_OR_LINEAR = ("full_attention", "linear_attention")
CHUNK = 64  # of the delta rule; transformers' functions have it as a default, no config says it
LIGHTNING_EPS = 1e-6  # of the norm inside lightning attention, whatever rms_norm_eps says


def mixed(keys: Keys, fields: Json, linear: list[bool]) -> str:
    """Write one letter a layer, A attention and R recurrent,
    by `layer_types` or else by `linear`.
    """
    default = [FULL_OR_LINEAR[on] for on in linear]
    letters = layer_types(keys, fields["n_layers"], default, FULL_OR_LINEAR)
    return letters.translate({ord("G"): "A", ord("L"): "R"})


def hybrid(fields: Json, letters: str, attention: Json, recurrent: Json) -> Json:
    """Return `fields` with what the layers of each kind need;
    a kind without a layer has no fields.
    """
    own = {"n_heads", "n_kv_heads", "head_dim"}
    if "A" not in letters:
        kept = {name: value for name, value in fields.items() if name not in own}
        return {**kept, **recurrent, "attention": "none", "mixer_pattern": "R", "position": "none"}
    if "R" not in letters:
        return {**fields, **attention}
    pattern = {"mixer_pattern": shortest_period(letters)}
    return {**fields, **attention, **recurrent, **pattern}


def interval(keys: Keys, n_layers: int) -> list[bool]:
    """Apply Qwen's rule: every `full_attention_interval`-th layer attends, others are linear."""
    every = keys.layers("full_attention_interval")
    return [(i + 1) % every != 0 for i in range(n_layers)]


def plain_silu(keys: Keys) -> None:
    """Say where the one activation of a config is another in linear attention than it is here."""
    if keys.raw("hidden_act") not in ("silu", "swish"):
        keys.differs("linear attention has hidden_act before its heads, here silu")


def gated_delta(keys: Keys) -> Json:
    """Read the sizes of gated DeltaNet under Qwen's names."""
    plain_silu(keys)
    return {
        "recurrent": "gated_delta",
        "n_linear_k_heads": keys.size("linear_num_key_heads"),
        "n_linear_v_heads": keys.size("linear_num_value_heads"),
        "linear_k_head_dim": keys.size("linear_key_head_dim"),
        "linear_v_head_dim": keys.size("linear_value_head_dim"),
        "conv_kernel": keys.size("linear_conv_kernel_dim"),
        "linear_chunk_size": CHUNK,
    }


def qwen(keys: Keys, fields: Json) -> Json:
    """Read Qwen's hybrid: gated attention with norms of queries and keys, zero-centred norms."""
    bias = keys.flag("attention_bias")
    found = keys.data.get("rope_parameters")
    if isinstance(found, dict):
        # positions in three axes, which are one where there is only text
        axes = {"mrope_section", "mrope_interleaved"}
        keys.data["rope_parameters"] = {k: v for k, v in found.items() if k not in axes}
    attention = {
        **biases(bias, bias),
        "output_gate": True,
        "qk_norm": "head",
        **rope(keys, fields["head_dim"]),
    }
    letters = mixed(keys, fields, interval(keys, fields["n_layers"]))
    keys.fixed("mtp_use_dedicated_embeddings", False)  # its modules share the embedding
    predicting = prediction(keys, "mtp_num_hidden_layers")
    fields = {**fields, **predicting, "norm_unit_offset": True}
    return hybrid(fields, letters, attention, gated_delta(keys))


def shared_expert(keys: Keys) -> Json:
    """Read Qwen's one shared expert behind a gate."""
    shared = keys.size("shared_expert_intermediate_size")
    return {"n_shared_experts": 1, "d_ff_shared": shared, "shared_expert_gate": True}


def qwen3_next(keys: Keys) -> Json:
    """Read a config of Qwen3-Next: three layers of gated DeltaNet,
    then one of gated attention; experts.
    """
    fields = qwen_experts(keys, qwen(keys, block(keys)), "num_experts")
    shared = shared_expert(keys)
    return {**fields, **shared} if "n_experts" in fields else fields


def qwen3_5(keys: Keys) -> Json:
    """Read a config of Qwen3.5's text model: Qwen3-Next's layers, dense."""
    return qwen(keys, block(keys))


def qwen3_5_moe(keys: Keys) -> Json:
    """Read a config of Qwen3.5's text model with experts in every layer."""
    fields = {
        **sizes(keys),
        "d_ff": keys.size("moe_intermediate_size"),
        **keys.activation("hidden_act", gated=True),
        "norm": "rmsnorm",
        "norm_eps": keys.number("rms_norm_eps"),
    }
    fields = qwen(keys, fields)
    experts = {**routed(keys, "num_experts", "softmax_renorm"), **shared_expert(keys)}
    return all_experts(fields, experts)


def olmo_hybrid(keys: Keys) -> Json:
    """Read a config of OLMo Hybrid: gated DeltaNet in three layers of four, OLMo 2's attention."""
    fields, bias = block(keys), keys.flag("attention_bias")
    n_heads, n_layers = fields["n_heads"], fields["n_layers"]
    for name in ("linear_num_key_heads", "linear_num_value_heads"):
        if keys.raw(name) is None:
            keys.data[name] = n_heads
    if keys.raw("linear_key_head_dim") is None:
        keys.data["linear_key_head_dim"] = int(
            0.75 * fields["d_model"] / keys.size("linear_num_key_heads")
        )
    if keys.raw("linear_value_head_dim") is None:
        keys.data["linear_value_head_dim"] = 2 * keys.size("linear_key_head_dim")
    linear = [i % 4 != 3 for i in range(n_layers)]
    linear[-1] = linear[-1] and not all(linear)
    letters = mixed(keys, fields, linear)
    for kind in "AR":
        if kind not in letters:
            keys.unmapped("layer_types", letters, "transformers wants layers of both kinds")
    attention = {**biases(bias, bias), "qk_norm": "full", **rope_or_none(keys, fields["head_dim"])}
    recurrent = {
        **gated_delta(keys),
        "linear_negative_eigenvalues": keys.flag("linear_allow_neg_eigval"),
        "linear_norm_eps": None if fields["norm_eps"] == 1e-5 else 1e-5,
    }
    return hybrid({**fields, "norm_placement": "hybrid"}, letters, attention, recurrent)


def rope_or_none(keys: Keys, head_dim: int) -> Json:
    """Read RoPE, or no positions where its base is null."""
    found = keys.given("rope_parameters")
    if isinstance(found, dict) and "rope_theta" in found and found["rope_theta"] is None:
        keys.raw("rope_theta")
        return {"position": "none"}
    return rope(keys, head_dim)


def minimax(keys: Keys) -> Json:
    """Read a config of MiniMax-Text-01 (arXiv:2501.08313):
    lightning attention, and full attention between.
    """
    fields = block(keys)
    letters = mixed(keys, fields, [i % 2 == 1 for i in range(fields["n_layers"])])
    plain_silu(keys)
    attention = {**all_windows(keys), **rope(keys, fields["head_dim"])}
    recurrent = {
        "recurrent": "lightning",
        "n_linear_heads": fields["n_heads"],
        "linear_head_dim": fields["head_dim"],
        "linear_chunk_size": keys.size("block_size"),
        "linear_norm_eps": None if fields["norm_eps"] == LIGHTNING_EPS else LIGHTNING_EPS,
    }
    experts = routed(keys, "num_local_experts", "softmax_renorm")
    fields |= {"norm_placement": "stream", **factors(keys, letters)}
    return all_experts(hybrid(fields, letters, attention, recurrent), experts)


def factors(keys: Keys, letters: str) -> Json:
    """Read the weights of the residual and of what is added to it: one of each for all layers."""
    kinds = {"A": "full_attn", "R": "linear_attn"}
    names = ["mlp", *(kinds[kind] for kind in sorted(set(letters)))]
    found = {}
    for field, end in (("residual_weight", "alpha_factor"), ("residual_scale", "beta_factor")):
        values = {f"{name}_{end}": keys.number(f"{name}_{end}") for name in names}
        if len(set(values.values())) > 1:
            keys.unmapped(f"mlp_{end}", values, "all factors of the kind must be equal")
        found[field] = values[f"mlp_{end}"]
    return found


QWEN: Json = {
    **LLAMA,
    "num_hidden_layers": 48,
    "head_dim": 256,
    "attention_bias": False,
    "partial_rotary_factor": 0.25,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
QWEN_EXPERTS: Json = {
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}

FAMILIES = {
    "qwen3_next": decoder("Qwen3Next", qwen3_next, {
        **QWEN, **QWEN_EXPERTS, "vocab_size": 151936, "intermediate_size": 5632,
        "decoder_sparse_step": 1, "num_experts_per_tok": 10, "num_experts": 512,
        "norm_topk_prob": True, "mlp_only_layers": None,
    }),
    "qwen3_5_text": decoder("Qwen3_5", qwen3_5, {
        **QWEN, "vocab_size": 248320, "intermediate_size": 12288, "num_hidden_layers": 32,
        "num_attention_heads": 16, "num_key_value_heads": 4,
    }, body="Qwen3_5TextModel"),
    "qwen3_5_moe_text": decoder("Qwen3_5Moe", qwen3_5_moe, {
        **{k: v for k, v in QWEN.items() if k != "intermediate_size"}, **QWEN_EXPERTS,
        "vocab_size": 248320, "num_hidden_layers": 40,
        "num_experts_per_tok": 8, "num_experts": 256,
    }, body="Qwen3_5MoeTextModel"),
    "olmo_hybrid": decoder("OlmoHybrid", olmo_hybrid, {
        **{k: v for k, v in LLAMA.items() if k != "head_dim"}, "vocab_size": 100352,
        "hidden_size": 3840, "num_attention_heads": 30, "attention_bias": False,
        "linear_num_key_heads": None, "linear_num_value_heads": None,
        "linear_key_head_dim": None, "linear_value_head_dim": None, "linear_conv_kernel_dim": 4,
        "linear_allow_neg_eigval": True,
    }, ignored="linear_a_log_min linear_a_log_max linear_dt_min linear_dt_max "
               "linear_dt_init_floor"),
    "minimax": decoder("MiniMax", minimax, {
        **LLAMA, "intermediate_size": 14336, "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
        "rope_theta": 1000000.0, "sliding_window": None, "num_experts_per_tok": 2,
        "num_local_experts": 8, "block_size": 256,
        **{f"{kind}_{end}_factor": 1 for kind in ("full_attn", "linear_attn", "mlp")
           for end in ("alpha", "beta")},
    }, aliases={"num_experts": "num_local_experts"}),
}  # fmt: skip
