"""Llama 4's text model: chunked attention, and experts in some layers."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.huggingface.config.families.family import decoder
from metacount.huggingface.config.families.llama import LLAMA, rope_layers
from metacount.huggingface.config.families.routing import routed, with_experts
from metacount.huggingface.config.keys import Keys
from metacount.huggingface.config.parts import (
    biases,
    layer_types,
    moe_layout,
    nope_every,
    rope,
    sizes,
    windows,
)
from metacount.spec.position import QueryGrowth

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json


def llama4_text(keys: Keys) -> Json:
    """Read a config of Llama 4's text model:
    chunked attention, one shared expert, sigmoid routing.
    """
    fields = {**sizes(keys), "norm": "rmsnorm", "norm_eps": keys.number("rms_norm_eps")}
    n_layers, bias = fields["n_layers"], keys.flag("attention_bias")
    rotates = rope_layers(keys, n_layers, empty_is_default=True)
    allowed = ("full_attention", "chunked_attention")
    letters = layer_types(keys, n_layers, [allowed[on] for on in rotates], allowed)
    chunk = (
        keys.size("attention_chunk_size") if "L" in letters else keys.raw("attention_chunk_size")
    )
    if keys.raw("attn_temperature_tuning") and keys.raw("attn_scale"):
        growth = {"weight": keys.number("attn_scale"), "step": keys.number("floor_scale")}
        fields["query_growth"] = QueryGrowth(**growth, shift=1, nope_only=True)
    fields |= {
        **biases(bias, bias),
        "d_ff": keys.size("intermediate_size_mlp"),
        **keys.activation("hidden_act", gated=True),
        "qk_norm": "l2" if keys.flag("use_qk_norm") else "none",
        **windows(letters, chunk, kind="chunked"),
        **rope(keys, fields["head_dim"], style="interleaved"),
        **nope_every(keys, "no_rope_layers", rotates),
    }
    step = keys.layers("interleave_moe_layer_step")
    named = keys.given("moe_layers")
    named = list(range(step - 1, n_layers, step)) if named is None else named
    if not isinstance(named, list) or any(type(i) is not int for i in named):
        raise SpecError("moe_layers", "must be a list of whole numbers", named, "remove it")
    chosen = frozenset(named)
    layout = moe_layout(keys, "moe_layers", [[i in chosen for i in range(n_layers)]], every=step)
    experts = {
        **routed(keys, "num_local_experts", "sigmoid"),
        "d_ff_expert": keys.size("intermediate_size"),
        "n_shared_experts": 1,
        "router_scales_input": True,
    }
    return with_experts(fields, layout, experts)


FAMILIES = {
    "llama4_text": decoder(
        "Llama4",
        llama4_text,
        {
            **LLAMA,
            "vocab_size": 202048,
            "hidden_size": 5120,
            "intermediate_size": 8192,
            "intermediate_size_mlp": 16384,
            "num_hidden_layers": 48,
            "num_attention_heads": 40,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "attention_bias": False,
            "use_qk_norm": True,
            "num_experts_per_tok": 1,
            "num_local_experts": 16,
            "interleave_moe_layer_step": 1,
            "no_rope_layer_interval": 4,
            "attention_chunk_size": 8192,
            "attn_temperature_tuning": True,
            "attn_scale": 0.1,
            "floor_scale": 8192,
        },
        body="Llama4TextModel",
        ignored="attn_scale floor_scale cache_implementation for_llm_compressor",
    ),
}
