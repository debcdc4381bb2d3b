"""LFM2 and its mixture: gated short convolutions, and attention in a few layers."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.huggingface.config.families.family import decoder
from metacount.huggingface.config.families.llama import LLAMA
from metacount.huggingface.config.families.routing import (
    routed,
    sigmoid_or_softmax,
    with_experts,
)
from metacount.huggingface.config.keys import Keys
from metacount.huggingface.config.parts import moe_layout, rope, shortest_period, sizes

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json

LETTERS = {"full_attention": "A", "conv": "R"}


def base(keys: Keys) -> Json:
    """Read sizes, QK-norm, RMSNorm and RoPE; the activation is a gated SiLU, which no key names."""
    fields = sizes(keys)
    d_model, n_heads = fields["d_model"], fields["n_heads"]
    # of LFM2's first configs; transformers does not read them
    for name, value in (
        ("block_dim", d_model),
        ("conv_dim", d_model),
        ("conv_dim_out", d_model),
        ("num_heads", n_heads),
        ("block_use_swiglu", True),
        ("use_pos_enc", True),
    ):
        keys.fixed(name, value)
    return {
        **fields,
        "qk_norm": "head",
        "activation": "silu",
        "gated": True,
        "norm": "rmsnorm",
        "norm_eps": keys.number("norm_eps"),
        **rope(keys, fields["head_dim"]),
    }


def mixers(keys: Keys, n_layers: int, types: object) -> Json:
    """Read the pattern of attention and convolutions, and the convolution where there is one."""
    if not isinstance(types, list) or len(types) != n_layers:
        raise SpecError(
            "layer_types",
            f"must be a list of {n_layers} words",
            types,
            "give conv or full_attention for each layer",
        )
    for item in types:
        if item not in LETTERS:
            keys.unmapped("layer_types", item, "choose conv or full_attention")
    letters = shortest_period("".join(LETTERS[item] for item in types))
    width, bias = keys.size("conv_L_cache"), keys.flag("conv_bias")
    if "A" not in letters:
        keys.unmapped("layer_types", "conv", "transformers needs one layer of attention")
    if "R" not in letters:
        return {}
    return {
        "recurrent": "short_conv",
        "conv_kernel": width,
        "short_conv_bias": bias,
        "mixer_pattern": letters,
    }


def lfm2(keys: Keys) -> Json:
    """Read a config of LFM2 (arXiv:2511.23404): the FFN's width may be two thirds of its key."""
    fields = base(keys)
    n_layers, types = fields["n_layers"], keys.given("layer_types")
    full = keys.raw("full_attn_idxs")
    full = list(range(n_layers)) if full is None else full
    if not isinstance(full, list) or any(type(i) is not int for i in full):
        raise SpecError("full_attn_idxs", "must be a list of whole numbers", full, "remove it")
    if types is None:
        types = ["full_attention" if i in full else "conv" for i in range(n_layers)]
    return {**fields, "d_ff": adjusted(keys), **mixers(keys, n_layers, types)}


def adjusted(keys: Keys) -> int:
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


def lfm2_moe(keys: Keys) -> Json:
    """Read a config of LFM2-8B-A1B: the first layers dense, then experts chosen with a bias."""
    fields = {**base(keys), "d_ff": keys.size("intermediate_size")}
    n_layers, first = fields["n_layers"], keys.layers("num_dense_layers", lowest=0)
    fields |= mixers(keys, n_layers, keys.given("layer_types"))
    layout = moe_layout(
        keys, "num_dense_layers", [[i >= first for i in range(n_layers)]], first=first
    )
    experts = {
        **routed(keys, "num_experts", sigmoid_or_softmax(keys, "sigmoid")),
        "d_ff_expert": keys.size("moe_intermediate_size"),
        "selection_bias": keys.flag("use_expert_bias"),
        "routed_scale": keys.number("routed_scaling_factor"),
    }
    if layout is not None and experts["router"] == "sigmoid_renorm":
        keys.differs("LFM2 adds 1e-6 to the sum that its routed weights are divided by")
    return with_experts(fields, layout, experts)


OLD = (
    "block_mlp_init_scale block_out_init_scale block_norm_eps block_use_xavier_init "
    "conv_use_xavier_init"
)
LFM2: Json = {
    **{k: v for k, v in LLAMA.items() if k not in ("head_dim", "hidden_act", "rms_norm_eps")},
    "vocab_size": 65536,
    "num_key_value_heads": 8,
    "norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "rope_theta": 1000000.0,
    "conv_bias": False,
    "conv_L_cache": 3,
}

FAMILIES = {
    "lfm2": decoder(
        "Lfm2",
        lfm2,
        {
            **LFM2,
            "hidden_size": 2560,
            "intermediate_size": 12288,
            "full_attn_idxs": None,
            "block_multiple_of": 256,
            "block_ffn_dim_multiplier": 1.0,
            "block_auto_adjust_ff_dim": True,
        },
        aliases={"tie_embedding": "tie_word_embeddings", "block_ff_dim": "intermediate_size"},
        ignored=OLD,
    ),
    "lfm2_moe": decoder(
        "Lfm2Moe",
        lfm2_moe,
        {
            **LFM2,
            "hidden_size": 2048,
            "intermediate_size": 7168,
            "moe_intermediate_size": 1792,
            "num_dense_layers": 2,
            "num_experts_per_tok": 4,
            "num_experts": 32,
            "use_expert_bias": True,
            "routed_scaling_factor": 1.0,
            "norm_topk_prob": True,
        },
        aliases={"tie_embedding": "tie_word_embeddings"},
        ignored=OLD,
    ),
}
