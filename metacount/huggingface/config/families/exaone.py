"""EXAONE 4 and what has its hybrid attention: RoPE in windowed layers only."""

from __future__ import annotations

from metacount.huggingface.config.families.family import decoder
from metacount.huggingface.config.families.llama import (
    FULL_OR_SLIDING,
    LLAMA,
    block,
    checked_windows,
)
from metacount.huggingface.config.families.mixtures import NOAUX, noaux, sparse_layers
from metacount.huggingface.config.families.routing import (
    routed,
    sigmoid_or_softmax,
    with_experts,
)
from metacount.huggingface.config.keys import Keys
from metacount.huggingface.config.parts import layer_types, nope_every, rope, sizes

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json


def exaone4_layers(keys: Keys, fields: Json) -> Json:
    """Read windows in all layers but every n-th,
    and RoPE in windowed layers only, where there are any.
    """
    n_layers, every = fields["n_layers"], keys.raw("sliding_window_pattern")
    if keys.given("layer_types") is None:
        every = keys.layers("sliding_window_pattern")
        default = [FULL_OR_SLIDING[(i + 1) % every != 0] for i in range(n_layers)]
    else:
        default = []
    letters = layer_types(keys, n_layers, default, FULL_OR_SLIDING)
    window = keys.optional_size("sliding_window")
    rotates = [letter == "L" or window is None for letter in letters]
    return {**checked_windows(keys, letters, window), **nope_every(keys, "layer_types", rotates)}


def exaone4(keys: Keys) -> Json:
    """Read a config of EXAONE 4 (arXiv:2507.11407):
    norms at the end of each branch, QK-norm, hybrid attention.
    """
    fields = block(keys)
    return {
        **fields,
        "norm_placement": "post_branch",
        "qk_norm": "head",
        **exaone4_layers(keys, fields),
        **rope(keys, fields["head_dim"]),
    }


def exaone_moe(keys: Keys) -> Json:
    """Read a config of K-EXAONE: EXAONE 4's hybrid attention
    with norms before, DeepSeek-V3's experts.
    """
    fields = block(keys)
    fields |= {
        "qk_norm": "head",
        **exaone4_layers(keys, fields),
        **rope(keys, fields["head_dim"]),
    }
    layout = sparse_layers(keys, fields["n_layers"], keys.size("first_k_dense_replace", lowest=0))
    return with_experts(fields, layout, noaux(keys, "num_experts", "num_shared_experts"))


def kolibri1(keys: Keys) -> Json:
    """Read a config of Kolibri 1: EXAONE 4's hybrid attention,
    norms around each branch, experts everywhere.
    """
    fields = {
        **sizes(keys),
        **keys.activation("hidden_act", gated=True),
        "norm": "rmsnorm",
        "norm_eps": keys.number("rms_norm_eps"),
        "norm_placement": "sandwich",
        "qk_norm": "head",
    }
    n_layers = fields["n_layers"]
    default = [FULL_OR_SLIDING[(i + 1) % 5 != 0] for i in range(n_layers)]
    letters = layer_types(keys, n_layers, default, FULL_OR_SLIDING)
    window = keys.optional_size("sliding_window")
    rotates = [letter == "L" or window is None for letter in letters]
    keys.differs("Kolibri adds its bias for the choice to the logits, not to the probabilities")
    return {
        **fields,
        **checked_windows(keys, letters, window),
        **nope_every(keys, "layer_types", rotates),
        **rope(keys, fields["head_dim"]),
        **routed(keys, "num_local_experts", sigmoid_or_softmax(keys, "sigmoid")),
        "selection_bias": True,
        "d_ff_expert": keys.size("moe_intermediate_size"),
        "n_shared_experts": 1,
        "d_ff_shared": keys.size("shared_expert_intermediate_size"),
    }


EXAONE = {
    **LLAMA,
    "vocab_size": 102400,
    "intermediate_size": 16384,
    "num_key_value_heads": 32,
    "rms_norm_eps": 1e-5,
    "sliding_window": 4096,
    "sliding_window_pattern": 4,
}

FAMILIES = {
    "exaone4": decoder("Exaone4", exaone4, EXAONE),
    "exaone_moe": decoder(
        "ExaoneMoe",
        exaone_moe,
        {
            **EXAONE,
            **{k: v for k, v in NOAUX.items() if k not in ("n_shared_experts", "n_routed_experts")},
            "moe_intermediate_size": 1024,
            "num_experts": 64,
            "num_shared_experts": 1,
            "routed_scaling_factor": 2.5,
            "first_k_dense_replace": 1,
        },
    ),
    "kolibri1": decoder(
        "Kolibri1",
        kolibri1,
        {
            **{k: v for k, v in LLAMA.items() if k != "intermediate_size"},
            "vocab_size": 128000,
            "hidden_size": 2560,
            "num_hidden_layers": 50,
            "num_attention_heads": 48,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "sliding_window": 513,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
            "num_experts_per_tok": 6,
            "num_local_experts": 384,
            "norm_topk_prob": False,
        },
        aliases={"num_experts": "num_local_experts"},
        ignored="intermediate_size",
    ),
}
