"""Remote code with LLaMA's names of keys: Baichuan, InternLM2, XVERSE, MiniCPM, DeepSeekMoE."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.huggingface.config.families.family import Family
from metacount.huggingface.config.families.llama import LLAMA, block
from metacount.huggingface.config.families.routing import (
    dense_first,
    routed,
    sigmoid_or_softmax,
    with_experts,
)
from metacount.huggingface.config.parts import biases, rope

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable

    from metacount.files import Json
    from metacount.huggingface.config.keys import Keys

TRAINED_WITH = "max_position_embeddings"  # a key of Baichuan's 7B alone, beside both's own name
LENGTH = "model_max_length"


def baichuan(keys: Keys) -> Json:
    """Read a config of Baichuan or Baichuan 2 (arXiv:2309.10305):
    RoPE in the 7B's code, ALiBi in the 13B's.
    """
    fields = block(keys)
    keys.fixed("num_key_value_heads", fields["n_heads"])
    rotates, given = keys.given(TRAINED_WITH) is not None, keys.given(LENGTH) is not None
    if rotates:
        return {**fields, **rope(keys, fields["head_dim"])}
    if not given:
        rule = f"or {LENGTH} must be there: the first is of the code with RoPE (7B), the second "
        raise SpecError(
            TRAINED_WITH,
            rule + "alone of the code with ALiBi (13B)",
            None,
            f"give {TRAINED_WITH} or {LENGTH}",
        )
    keys.notes.append(f"ALiBi: it has {LENGTH} and no {TRAINED_WITH}, as the 13B's code")
    return {**fields, "position": "alibi"}


def internlm2(keys: Keys) -> Json:
    """Read a config of InternLM2 (arXiv:2403.17297): queries, keys and values in one matrix."""
    fields = block(keys)
    bias = keys.flag("bias")
    return {**fields, **biases(bias, bias), **rope(keys, fields["head_dim"])}


def xverse(keys: Keys) -> Json:
    """Read a config of XVERSE: LLaMA's block."""
    fields = block(keys)
    return {**fields, **rope(keys, fields["head_dim"])}


def minicpm(keys: Keys) -> Json:
    """Read a config of MiniCPM (arXiv:2404.06395): LLaMA's block with the multipliers of μP."""
    fields = block(keys)
    bias, depth = keys.flag("attention_bias"), keys.number("scale_depth")
    return {
        **fields,
        **biases(bias, bias),
        "embedding_scale": keys.number("scale_emb"),
        "residual_scale": depth / fields["n_layers"] ** 0.5,
        "logit_scale": keys.number("dim_model_base") / fields["d_model"],
        **rope(keys, fields["head_dim"]),
    }


def deepseek(keys: Keys) -> Json:
    """Read a config of DeepSeekMoE (arXiv:2401.06066):
    fine experts and shared ones behind ordinary attention.
    """
    fields = block(keys)
    bias = keys.flag("attention_bias")
    fields |= {**biases(bias, bias), **rope(keys, fields["head_dim"])}
    keys.only("scoring_func", "softmax")
    if keys.raw("n_routed_experts") is None:
        for name in ("n_shared_experts", "num_experts_per_tok"):
            keys.fixed(name)
        return fields
    shared = keys.optional_size("n_shared_experts", lowest=0)
    experts = {
        **routed(keys, "n_routed_experts", sigmoid_or_softmax(keys, "softmax")),
        "d_ff_expert": keys.size("moe_intermediate_size"),
        "n_shared_experts": shared or 0,
    }
    return with_experts(fields, dense_first(keys, fields["n_layers"]), experts)


def _remote(
    name: str, fields: Callable[[Keys], Json], defaults: Json, *, ignored: str = "", also: str = ""
) -> Family:
    """Build a family whose class is called `<name>ForCausalLM`, in one or two spellings."""
    heads = {f"{one}ForCausalLM": "head" for one in (name, *also.split())}
    return Family(
        fields=fields,
        classes={**heads, f"{name}Model": "body"},
        defaults=defaults,
        aliases={},
        ignored=("_from_model_config", "use_flash_attn", *ignored.split()),
    )


# Their own code's defaults are not at hand: a size that is not written down is an error.
SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
)
HEADS: Json = {
    **{k: v for k, v in LLAMA.items() if k not in ("head_dim", "num_key_value_heads")},
    **dict.fromkeys(SIZES),
}
GROUPED = {**HEADS, "num_key_value_heads": None}

FAMILIES = {
    "baichuan": _remote("Baichuan", baichuan, HEADS, also="BaiChuan", ignored="z_loss_weight"),
    "internlm2": _remote(
        "InternLM2",
        internlm2,
        {
            **GROUPED,
            "bias": True,
        },
        ignored="fp16 bf16",
    ),
    "xverse": _remote("Xverse", xverse, GROUPED, ignored="max_tokenizer_truncation"),
    "minicpm": _remote(
        "MiniCPM",
        minicpm,
        {
            **GROUPED,
            "tie_word_embeddings": True,
            "attention_bias": False,
            "scale_emb": None,
            "dim_model_base": None,
            "scale_depth": None,
        },
    ),
    "deepseek": _remote(
        "Deepseek",
        deepseek,
        {
            **GROUPED,
            "attention_bias": False,
            "n_routed_experts": None,
            "n_shared_experts": None,
            "num_experts_per_tok": None,
            "moe_intermediate_size": None,
            "first_k_dense_replace": 0,
            "scoring_func": "softmax",
            "norm_topk_prob": False,
        },
    ),
}
