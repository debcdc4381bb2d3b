"""RecurrentGemma: Griffin's recurrent blocks, and windowed attention in every third layer."""

from __future__ import annotations

import math

from metacount.errors import SpecError
from metacount.huggingface.config.families.family import decoder
from metacount.huggingface.config.keys import Keys
from metacount.huggingface.config.parts import (
    biases,
    divided,
    nullable_size,
    rope,
    shortest_period,
)

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json


def in_bfloat16(value: float) -> float:
    """Round a positive number to 8 significant bits, ties to even,
    as transformers stores the embedding's scale.

    >>> in_bfloat16(2560**0.5)
    50.5
    """
    fraction, exponent = math.frexp(value)
    return math.ldexp(round(fraction * 256), exponent - 8)


def recurrent_gemma(keys: Keys) -> Json:
    """Read a config of RecurrentGemma (arXiv:2404.07839):
    half of `intermediate_size` is a branch's width.
    """
    d_model, n_heads = keys.size("hidden_size"), keys.size("num_attention_heads")
    n_layers, width = keys.layers("num_hidden_layers"), nullable_size(keys, "lru_width")
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
    fields = {
        "kind": "decoder",
        "d_model": d_model,
        "n_layers": n_layers,
        "vocab_size": keys.size("vocab_size"),
        "tie_embeddings": keys.flag("tie_word_embeddings"),
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
        "norm": "rmsnorm",
        "norm_unit_offset": True,
        "norm_eps": keys.number("rms_norm_eps"),
        "mixer_pattern": shortest_period(letters),
        "recurrent": "rg_lru",
        "conv_kernel": keys.size("conv1d_width"),
        "lru_width": d_model if width is None else width,
        "n_lru_blocks": n_heads,
        **rope(keys, head_dim),
    }
    if fields["lru_width"] != d_model:
        keys.unmapped("lru_width", width, "transformers runs hidden_size only")
    if "swish_beta" in fields:  # a branch beside a recurrence has none
        keys.unmapped("hidden_activation", keys.raw("hidden_activation"), "choose silu or gelu")
    return {**fields, "lru_activation": fields["activation"]}


FAMILIES = {
    "recurrent_gemma": decoder(
        "RecurrentGemma",
        recurrent_gemma,
        {
            "num_hidden_layers": 26,
            "vocab_size": 256000,
            "hidden_size": 2560,
            "intermediate_size": 7680,
            "num_attention_heads": 10,
            "lru_width": None,
            "attention_window_size": 2048,
            "conv1d_width": 4,
            "logits_soft_cap": 30.0,
            "rms_norm_eps": 1e-6,
            "hidden_activation": "gelu_pytorch_tanh",
            "block_types": ("recurrent", "recurrent", "attention"),
            "num_key_value_heads": None,
            "attention_bias": False,
            "tie_word_embeddings": True,
            "partial_rotary_factor": 0.5,
            "rope_theta": 10000.0,
        },
        aliases={"sliding_window": "attention_window_size"},
        ignored="w_init_variance_scale final_w_init_variance_scale layers_block_type "
        "attention_chunk_size",
    ),
}
