"""Decoders with experts that join a known attention with a known way of routing."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.huggingface.config.families.dense import (
    with_windows,
)
from metacount.huggingface.config.families.family import decoder
from metacount.huggingface.config.families.latent import DEEPSEEK, latent
from metacount.huggingface.config.families.llama import FULL_OR_SLIDING, LLAMA, block
from metacount.huggingface.config.families.routing import (
    all_experts,
    dense_first,
    grouped,
    routed,
    sigmoid_or_softmax,
    with_experts,
)
from metacount.huggingface.config.keys import Keys
from metacount.huggingface.config.parts import biases, moe_layout, rope, rope_by_layer_type, sizes

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json

DENSE_OR_SPARSE = ("dense", "sparse")


def sparse_layers(keys: Keys, n_layers: int, first: int) -> Json | None:
    """Read the layers with experts from `mlp_layer_types`, a word a layer;
    by default the first few are dense.
    """
    given = keys.given("mlp_layer_types")
    if given is None:
        given = [DENSE_OR_SPARSE[i >= first] for i in range(n_layers)]
    if not isinstance(given, list) or len(given) != n_layers:
        raise SpecError(
            "mlp_layer_types", f"must be a list of {n_layers} words", given, "remove it"
        )
    for item in given:
        if item not in DENSE_OR_SPARSE:
            keys.unmapped("mlp_layer_types", item, "choose dense or sparse")
    stack = [item == "sparse" for item in given]
    return moe_layout(keys, "mlp_layer_types", [stack], first=first)


def noaux(keys: Keys, count: str, shared: str) -> Json:
    """Read DeepSeek-V3's choice of experts (arXiv:2412.19437) under other names."""
    return {
        **routed(keys, count, sigmoid_or_softmax(keys, "sigmoid")),
        "d_ff_expert": keys.size("moe_intermediate_size"),
        "n_shared_experts": keys.size(shared, lowest=0),
        "selection_bias": True,
        "routed_scale": keys.number("routed_scaling_factor"),
        **grouped(keys, "top2_sum"),
    }


def dots1(keys: Keys) -> Json:
    """Read a config of dots.llm1 (arXiv:2506.05767): Qwen3's attention, DeepSeek-V3's experts."""
    fields = block(keys)
    bias, n_layers = keys.flag("attention_bias"), fields["n_layers"]
    first, window = keys.size("max_window_layers", lowest=0), keys.optional_size("sliding_window")
    default = [FULL_OR_SLIDING[window is not None and i >= first] for i in range(n_layers)]
    fields |= {**biases(bias, bias), "qk_norm": "head", **rope(keys, fields["head_dim"])}
    fields = with_windows(keys, fields, default)
    layout = dense_first(keys, n_layers)
    return with_experts(fields, layout, noaux(keys, "n_routed_experts", "n_shared_experts"))


def solar_open(keys: Keys) -> Json:
    """Read a config of Solar Open: DeepSeek-V3's experts in every layer, ordinary attention."""
    fields = {
        **sizes(keys),
        **keys.activation("hidden_act", gated=True),
        "norm": "rmsnorm",
        "norm_eps": keys.number("rms_norm_eps"),
        **biases(keys.flag("attention_bias"), False),
    }
    keys.fixed("first_k_dense_replace", 0)
    keys.fixed("use_qk_norm", False)
    experts = noaux(keys, "n_routed_experts", "n_shared_experts")
    return {**fields, **rope(keys, fields["head_dim"]), **experts}


def flex_olmo(keys: Keys) -> Json:
    """Read a config of FlexOlmo (arXiv:2507.07024): OLMo 2's block with experts in every layer."""
    fields = block(keys)
    bias = keys.flag("attention_bias")
    fields |= {
        **biases(bias, bias),
        "norm_placement": "post_branch",
        "qk_norm": "full",
        **rope(keys, fields["head_dim"]),
    }
    return all_experts(fields, routed(keys, "num_experts", sigmoid_or_softmax(keys, "softmax")))


def ernie4_5_moe(keys: Keys) -> Json:
    """Read a config of ERNIE 4.5 with experts:
    softmax, a bias for the choice, dense layers first and last.
    """
    fields = block(keys)
    bias, n_layers = keys.flag("use_bias"), fields["n_layers"]
    fields |= {
        **biases(bias, bias),
        "ffn_bias": bias,
        "head_bias": bias,
        **rope(keys, fields["head_dim"], style="interleaved"),
    }
    first, step = keys.size("moe_layer_start_index", lowest=0), keys.layers("moe_layer_interval")
    last = keys.size("moe_layer_end_index", lowest=-1)
    last = n_layers - 1 if last == -1 else last
    stack = [first <= i <= last and (i + 1) % step == 0 for i in range(n_layers)]
    layout = moe_layout(keys, "moe_layer_end_index", [stack], first=first, every=step)
    experts = {
        "n_experts": keys.size("moe_num_experts"),
        "top_k": keys.size("moe_k"),
        "router": "softmax_renorm",
        "router_bias": True,
        "d_ff_expert": keys.size("moe_intermediate_size"),
        "n_shared_experts": keys.size("moe_num_shared_experts", lowest=0),
    }
    if layout is not None:
        # a parameter there, where DeepSeek-V3 has a buffer
        keys.differs("ERNIE adds its router's bias to the probabilities, for the choice only")
    return with_experts(fields, layout, experts)


def glm4_moe_lite(keys: Keys) -> Json:
    """Read a config of GLM-4.7-Flash: DeepSeek-V3 whose dense layers are named one by one."""
    fields = latent(keys, "interleaved" if keys.flag("rope_interleave") else "half")
    fields["v_head_dim"] = keys.size("v_head_dim")
    layout = sparse_layers(keys, fields["n_layers"], 1)
    return with_experts(fields, layout, noaux(keys, "n_routed_experts", "n_shared_experts"))


def youtu(keys: Keys) -> Json:
    """Read a config of Youtu-LLM: MLA with dense layers throughout."""
    fields = latent(keys, "interleaved" if keys.flag("rope_interleave") else "half")
    return {**fields, "v_head_dim": keys.size("v_head_dim")}


def mellum(keys: Keys) -> Json:
    """Read a config of Mellum: Qwen3's attention and experts,
    another RoPE in its windowed layers.
    """
    fields = block(keys)
    bias, n_layers = keys.flag("attention_bias"), fields["n_layers"]
    fields |= {**biases(bias, bias), "qk_norm": "head"}
    fields = with_windows(keys, fields, [FULL_OR_SLIDING[0]] * n_layers)
    fields |= rope_by_layer_type(
        keys,
        "window" in fields,
        old_global="rope_theta",
        old_local="rope_local_base_freq",
        scaled=(),
    )
    for name in ("rope_theta", "rope_local_base_freq"):
        keys.only(name, keys.defaults[name], why="transformers reads it in rope_parameters only")
    keys.given("num_nextn_predict_layers")
    experts = {
        **routed(keys, "num_local_experts", sigmoid_or_softmax(keys, "softmax")),
        "d_ff_expert": keys.size("moe_intermediate_size"),
    }
    return with_experts(fields, sparse_layers(keys, n_layers, 0), experts)


EXPERTS = {"num_local_experts": "n_routed_experts"}
NOAUX: Json = {
    "moe_intermediate_size": 1408,
    "n_shared_experts": 1,
    "n_routed_experts": 128,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 8,
    "routed_scaling_factor": 1.0,
    "norm_topk_prob": True,
}

FAMILIES = {
    "dots1": decoder("Dots1", dots1, {
        **{k: v for k, v in LLAMA.items() if k != "head_dim"}, **NOAUX, "vocab_size": 152064,
        "hidden_size": 4608, "intermediate_size": 10944, "num_hidden_layers": 62,
        "num_key_value_heads": 32, "n_shared_experts": None, "n_routed_experts": None,
        "num_experts_per_tok": None, "first_k_dense_replace": 0, "norm_topk_prob": False,
        "attention_bias": False, "sliding_window": 4096, "max_window_layers": 62,
    }, aliases=EXPERTS),
    "solar_open": decoder("SolarOpen", solar_open, {
        **{k: v for k, v in LLAMA.items() if k != "intermediate_size"}, **NOAUX,
        "vocab_size": 196608, "moe_intermediate_size": 1280, "num_hidden_layers": 48,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128,
        "rms_norm_eps": 1e-5, "attention_bias": False, "rope_theta": 1000000.0,
    }, aliases=EXPERTS, ignored="intermediate_size num_nextn_predict_layers"),
    "flex_olmo": decoder("FlexOlmo", flex_olmo, {
        **{k: v for k, v in LLAMA.items() if k != "head_dim"}, "vocab_size": 100352,
        "attention_bias": False, "rope_theta": 500000.0, "num_experts": 7,
        "num_experts_per_tok": 5, "norm_topk_prob": False,
    }, aliases={"num_local_experts": "num_experts"}),
    "ernie4_5_moe": decoder("Ernie4_5_Moe", ernie4_5_moe, {
        **{k: v for k, v in LLAMA.items() if k != "head_dim"}, "vocab_size": 103424,
        "hidden_size": 2560, "intermediate_size": 12288, "num_hidden_layers": 28,
        "num_attention_heads": 20, "num_key_value_heads": 4, "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0, "tie_word_embeddings": True, "use_bias": False,
        "moe_intermediate_size": 1536, "moe_k": 6, "moe_num_experts": 64,
        "moe_num_shared_experts": 2, "moe_layer_start_index": 1, "moe_layer_end_index": -1,
        "moe_layer_interval": 1,
    }, aliases={"num_experts": "moe_num_experts", "num_experts_per_tok": "moe_k"},
        ignored="moe_norm_min"),
    "glm4_moe_lite": decoder("Glm4MoeLite", glm4_moe_lite, {
        **DEEPSEEK, **NOAUX, "vocab_size": 154880, "hidden_size": 2048,
        "intermediate_size": 10240, "moe_intermediate_size": 1536, "num_hidden_layers": 47,
        "num_attention_heads": 20, "num_key_value_heads": 20, "n_routed_experts": 64,
        "routed_scaling_factor": 1.8, "q_lora_rank": 768, "v_head_dim": 256,
        "qk_nope_head_dim": 192, "num_experts_per_tok": 4, "rms_norm_eps": 1e-5,
        "rope_interleave": True,
    }, aliases={**EXPERTS, "head_dim": "qk_rope_head_dim"}, ignored="qk_head_dim"),
    "youtu": decoder("Youtu", youtu, {
        **DEEPSEEK, "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 6144,
        "num_hidden_layers": 32, "num_attention_heads": 16, "num_key_value_heads": 16,
        "tie_word_embeddings": True, "rope_interleave": True,
    }, ignored="head_dim qk_head_dim embedding_initializer_range"),
    "mellum": decoder("Mellum", mellum, {
        **LLAMA, "vocab_size": 98304, "hidden_size": 2304, "intermediate_size": 7168,
        "num_hidden_layers": 28, "num_key_value_heads": 4, "head_dim": 128,
        "attention_bias": False, "sliding_window": 1024, "moe_intermediate_size": 896,
        "num_experts_per_tok": 8, "num_local_experts": 64, "norm_topk_prob": True,
        "rope_theta": 500000.0, "rope_local_base_freq": 10000.0,
    }, aliases={"num_experts": "num_local_experts",
                "num_mtp_layers": "num_nextn_predict_layers"},
        ignored="mtp_layer_types mtp_mlp_layer_types"),
}  # fmt: skip
