"""LongCat-Flash: two layers of MLA and a feed-forward in one of theirs, and experts beside them."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.huggingface.config.families.family import decoder
from metacount.huggingface.config.families.latent import DEEPSEEK, latent
from metacount.huggingface.config.families.routing import routed
from metacount.huggingface.config.keys import Keys
from metacount.units import exact

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json


def longcat_flash(keys: Keys) -> Json:
    """Read a config of LongCat-Flash (arXiv:2509.01322):
    zero experts, and a shortcut around the second attention.

    transformers' class stores the first matrix of every zero expert, which no token reads: the spec
    of a config has these rows, that of the catalog has not.
    """
    fields = latent(keys, "interleaved", layers="num_layers", width="ffn_hidden_size")
    fields |= {"n_layers": _n_layers(keys), "q_lora_rank": keys.size("q_lora_rank")}
    rope_dim = fields["qk_rope_head_dim"]
    keys.fixed("qk_head_dim", fields["qk_nope_head_dim"] + rope_dim)
    if (turned := keys.size("head_dim")) != rope_dim:
        keys.differs(
            f"transformers rotates head_dim = {turned}, not qk_rope_head_dim = {rope_dim} values"
        )
    for name, value in (
        ("attention_method", "MLA"),
        ("mla_scale_q_lora", True),
        ("mla_scale_kv_lora", True),
        ("norm_topk_prob", False),
        ("router_bias", False),  # the class stores one and adds none
    ):
        keys.fixed(name, value)
    if keys.given("num_nextn_predict_layers"):
        keys.notes.append("num_nextn_predict_layers: prediction layers are not in the class")
    return {
        **fields,
        "v_head_dim": keys.size("v_head_dim"),
        "scaled_latents": True,
        "ffn_pattern": "BF",
        **_experts(keys, fields),
    }


def _n_layers(keys: Keys) -> int:
    """Read the number of layers: twice `num_layers`, or num_hidden_layers,
    which transformers halves.
    """
    said, n_layers = keys.given("num_hidden_layers"), 2 * keys.layers("num_layers")
    if said is None and "num_hidden_layers" not in keys.data:
        return n_layers
    if "num_layers" not in keys.data:
        n_layers = keys.layers("num_hidden_layers")
        if n_layers % 2:
            raise SpecError(
                "num_hidden_layers",
                "must be even: it is twice num_layers",
                n_layers,
                "give num_layers",
            )
        return n_layers
    if type(said) is not int or said != n_layers:
        raise SpecError(
            "num_hidden_layers",
            f"must be twice num_layers: 2 · {n_layers // 2} = {n_layers}",
            said,
            "remove one of them",
        )
    return n_layers


def _experts(keys: Keys, fields: Json) -> Json:
    """Read the experts that compute, and zero experts;
    the class stores rows for both in one tensor.
    """
    kind = keys.given("zero_expert_type")
    if kind not in (None, "identity"):
        raise SpecError(
            "zero_expert_type",
            "must be identity: a zero expert gives back what it gets",
            kind,
            "remove it, or choose identity",
        )
    experts = {
        **routed(keys, "n_routed_experts", "softmax", chosen="moe_topk"),
        "d_ff_expert": keys.size("expert_ffn_hidden_size"),
        "selection_bias": True,
        "routed_scale": keys.number("routed_scaling_factor"),
    }
    if experts["top_k"] > experts["n_experts"]:
        keys.unmapped("moe_topk", experts["top_k"], "choose at most n_routed_experts")
    if experts["top_k"] == 1:
        keys.differs("transformers' code fails where each token has one expert")
    n_zero = keys.optional_size("zero_expert_num", lowest=0)
    if not n_zero:
        return experts
    unread = fields["n_layers"] // 2 * n_zero * 2 * experts["d_ff_expert"] * fields["d_model"]
    keys.notes.append(
        f"zero_expert_num: transformers' class stores {exact(unread)} parameters that no token "
        "reads, rows for zero experts in gate_up_proj; without them: --set zero_expert_rows=false"
    )
    return {**experts, "n_zero_experts": n_zero, "zero_expert_rows": True}


FAMILIES = {
    "longcat_flash": decoder(
        "LongcatFlash",
        longcat_flash,
        {
            **DEEPSEEK,
            "vocab_size": 131072,
            "hidden_size": 6144,
            "num_layers": 28,
            "num_attention_heads": 64,
            "ffn_hidden_size": 12288,
            "head_dim": 64,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000000.0,
            "expert_ffn_hidden_size": 2048,
            "n_routed_experts": 512,
            "zero_expert_num": 256,
            "moe_topk": 12,
            "routed_scaling_factor": 6.0,
        },
        aliases={
            "intermediate_size": "ffn_hidden_size",
            "moe_intermediate_size": "expert_ffn_hidden_size",
            "num_experts_per_tok": "moe_topk",
            "num_local_experts": "n_routed_experts",
        },
        ignored="ep_size topk_method nextn_use_scmoe router_dtype params_dtype",
    ),
}
