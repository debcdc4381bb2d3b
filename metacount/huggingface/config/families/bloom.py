"""Open decoders of 2021 to 2023 beside GPT: OPT, BLOOM, Falcon, MPT, XGLM, BioGPT."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.huggingface.config.families.family import decoder
from metacount.huggingface.config.families.gpt import layer_norm, named, plain_ffn
from metacount.huggingface.config.keys import Keys
from metacount.huggingface.config.parts import biases, rope, sizes

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json

TORCH_EPS = 1e-5  # where a family's LayerNorm takes torch's default
OFFSET = 2  # rows of a position table before the first position (fairseq's padding)


def opt(keys: Keys) -> Json:
    """Read a config of OPT (arXiv:2205.01068)."""
    fields = named(keys, "hidden_size", "num_hidden_layers", "num_attention_heads")
    bias, affine = keys.flag("enable_bias"), keys.flag("layer_norm_elementwise_affine")
    pre, removed = keys.flag("do_layer_norm_before"), keys.flag("_remove_final_layer_norm")
    why = "projections between embedding and model have no place in a decoder's spec"
    keys.only("word_embed_proj_dim", None, fields["d_model"], why=why)
    return {
        **fields,
        **biases(bias, bias),
        "d_ff": keys.size("ffn_dim"),
        **keys.activation("activation_function", gated=False),
        "ffn_bias": bias,
        "norm": "layernorm",
        "norm_affine": affine,
        "norm_bias": affine,
        "norm_eps": TORCH_EPS,
        "norm_placement": "pre" if pre else "post",
        "final_norm": pre and not removed,
        "position": "learned",
        "n_positions": keys.size("max_position_embeddings") + OFFSET,
        "position_offset": OFFSET,
    }


def bloom(keys: Keys) -> Json:
    """Read a config of BLOOM (arXiv:2211.05100):
    ALiBi, a norm after the embedding, FFN of four times the width.
    """
    fields = named(keys, "hidden_size", "n_layer", "n_head")
    keys.only("apply_residual_connection_post_layernorm", False)
    keys.fixed("n_inner", 4 * fields["d_model"])
    keys.fixed("offset_alibi", 100)
    return {
        **fields,
        **biases(True, True),
        "d_ff": 4 * fields["d_model"],
        "activation": "gelu_tanh",
        "gated": False,
        "ffn_bias": True,
        **layer_norm(keys, "layer_norm_epsilon"),
        "embedding_norm": True,
        "position": "alibi",
    }


def falcon(keys: Keys) -> Json:
    """Read a config of Falcon (arXiv:2311.16867):
    the layouts of 7B (one key/value head) and of 40B and 180B.
    """
    fields = named(keys, "hidden_size", "num_hidden_layers", "num_attention_heads")
    new, multi_query = keys.flag("new_decoder_architecture"), keys.flag("multi_query")
    heads, kv_heads = fields["n_heads"], keys.optional_size("num_kv_heads")
    kv_heads = heads if kv_heads is None else kv_heads
    if not new and not multi_query and kv_heads != heads:
        keys.unmapped("num_kv_heads", kv_heads, "set new_decoder_architecture or multi_query")
    keys.fixed("apply_residual_connection_post_layernorm", False)
    d_ff, bias = keys.optional_size("ffn_hidden_size"), keys.flag("bias")
    return {
        **fields,
        "n_kv_heads": kv_heads if new else 1 if multi_query else heads,
        **biases(bias, bias),
        "d_ff": 4 * fields["d_model"] if d_ff is None else d_ff,
        **keys.activation("activation", gated=False),
        "ffn_bias": bias,
        **layer_norm(keys, "layer_norm_epsilon"),
        "norm_placement": _falcon_placement(keys, new),
        **_falcon_position(keys, fields["head_dim"]),
    }


def _falcon_placement(keys: Keys, new: bool) -> str:
    parallel, norms = keys.flag("parallel_attn"), keys.optional_size("num_ln_in_parallel_attn")
    norms = 2 if norms is None and new else norms
    if not parallel:
        if new:
            keys.unmapped("parallel_attn", False, "the new architecture is parallel")
        return "pre"
    if norms == 2 and new:
        return "parallel_two"
    if norms not in (None, 1):
        keys.unmapped("num_ln_in_parallel_attn", norms, "choose 1, or 2 in the new architecture")
    return "parallel"


def _falcon_position(keys: Keys, head_dim: int) -> Json:
    turned = rope(keys, head_dim)
    if not keys.flag("alibi"):
        return turned
    # the bias is added before the scores are divided
    return {"position": "alibi", "alibi_scale": head_dim**-0.5}


def mpt(keys: Keys) -> Json:
    """Read a config of MPT as transformers has it:
    ALiBi always, no bias anywhere, FFN of four times the width.
    """
    fields = named(keys, "d_model", "n_layers", "n_heads")
    keys.only("expansion_ratio", 4)
    keys.only("no_bias", True)
    keys.only("logit_scale", None)
    keys.only("norm_type", "low_precision_layernorm")
    keys.only("embedding_fraction", 1.0)
    return {
        **fields,
        "attention_scale": _mpt_attention(keys),
        "d_ff": 4 * fields["d_model"],
        "activation": "gelu",
        "gated": False,
        "norm": "layernorm",
        "norm_eps": keys.number("layer_norm_epsilon"),
        "position": "alibi",
    }


def _mpt_attention(keys: Keys) -> float | None:
    """Read the scale of scores from `attn_config`,
    an object whose other keys are fixed or ignored.
    """
    inner = keys.given("attn_config")
    inner = {} if inner is None else inner
    if not isinstance(inner, dict):
        raise SpecError("attn_config", "must be an object", inner, "remove it")
    attention = Keys(inner, {"softmax_scale": None}, {}, "body")
    attention.fixed("attn_type", "multihead_attention")
    attention.fixed("alibi", True)
    attention.fixed("alibi_bias_max", 8)
    attention.fixed("clip_qkv")
    attention.fixed("prefix_lm", False)
    attention.fixed("qk_ln", False)
    scale = attention.optional_number("softmax_scale")
    attention.finish(("attn_impl", "attn_uses_sequence_id"), kind="decoder")
    return scale


def fairseq(keys: Keys, d_ff: str, activation: str, d_model: int) -> Json:
    """Read the pre-norm block of fairseq:
    biases everywhere, and sqrt(d) on the embedding where it is scaled.
    """
    return {
        "embedding_scale": d_model**0.5 if keys.flag("scale_embedding") else 1.0,
        **biases(True, True),
        **plain_ffn(keys, d_ff, activation, d_model),
        "norm": "layernorm",
        "norm_bias": True,
        "norm_eps": TORCH_EPS,
    }


def xglm(keys: Keys) -> Json:
    """Read a config of XGLM (arXiv:2112.10668): sinusoids, laid out in halves and starting at 2."""
    fields = named(keys, "d_model", "num_layers", "attention_heads")
    return {
        **fields,
        **fairseq(keys, "ffn_dim", "activation_function", fields["d_model"]),
        "position": "sinusoidal",
        "sinusoid_style": "halves",
        "position_offset": OFFSET,
    }


def biogpt(keys: Keys) -> Json:
    """Read a config of BioGPT (arXiv:2210.10341)."""
    fields = sizes(keys)
    return {
        **fields,
        **fairseq(keys, "intermediate_size", "hidden_act", fields["d_model"]),
        "position": "learned",
        "n_positions": keys.size("max_position_embeddings") + OFFSET,
        "position_offset": OFFSET,
    }


FAMILIES = {
    "opt": decoder("OPT", opt, {
        "vocab_size": 50272, "hidden_size": 768, "num_hidden_layers": 12, "ffn_dim": 3072,
        "max_position_embeddings": 2048, "do_layer_norm_before": True,
        "_remove_final_layer_norm": False, "word_embed_proj_dim": None,
        "num_attention_heads": 12, "activation_function": "relu", "enable_bias": True,
        "layer_norm_elementwise_affine": True, "tie_word_embeddings": True,
    }),
    "bloom": decoder("Bloom", bloom, {
        "vocab_size": 250880, "hidden_size": 64, "n_layer": 2, "n_head": 8,
        "layer_norm_epsilon": 1e-5, "apply_residual_connection_post_layernorm": False,
        "tie_word_embeddings": True,
    }, aliases={"num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
                "n_embed": "hidden_size"},
        ignored="slow_but_exact attention_softmax_in_fp32 bias_dropout_fusion skip_bias_add "
                "masked_softmax_fusion skip_bias_add_qkv seq_length"),
    "falcon": decoder("Falcon", falcon, {
        "vocab_size": 65024, "hidden_size": 4544, "num_hidden_layers": 32,
        "num_attention_heads": 71, "num_kv_heads": None, "num_ln_in_parallel_attn": None,
        "layer_norm_epsilon": 1e-5, "alibi": False, "new_decoder_architecture": False,
        "multi_query": True, "parallel_attn": True, "bias": False, "activation": "gelu",
        "ffn_hidden_size": None, "rope_theta": 10000.0, "tie_word_embeddings": True,
    }, aliases={"n_embed": "hidden_size"}),
    "mpt": decoder("Mpt", mpt, {
        "d_model": 2048, "n_heads": 16, "n_layers": 24, "expansion_ratio": 4,
        "vocab_size": 50368, "layer_norm_epsilon": 1e-5, "no_bias": True, "logit_scale": None,
        "norm_type": "low_precision_layernorm", "embedding_fraction": 1.0,
        "tie_word_embeddings": True,
    }, aliases={"num_attention_heads": "n_heads", "hidden_size": "d_model",
                "num_hidden_layers": "n_layers"},
        ignored="max_seq_len learned_pos_emb verbose init_config tokenizer_name fc_type"),
    "xglm": decoder("XGLM", xglm, {
        "vocab_size": 256008, "d_model": 1024, "ffn_dim": 4096, "num_layers": 24,
        "attention_heads": 16, "activation_function": "gelu", "scale_embedding": True,
        "tie_word_embeddings": True,
    }, aliases={"num_attention_heads": "attention_heads", "hidden_size": "d_model",
                "num_hidden_layers": "num_layers"}),
    "biogpt": decoder("BioGpt", biogpt, {
        "vocab_size": 42384, "hidden_size": 1024, "num_hidden_layers": 24,
        "num_attention_heads": 16, "intermediate_size": 4096, "hidden_act": "gelu",
        "max_position_embeddings": 1024, "scale_embedding": True, "tie_word_embeddings": True,
    }, ignored="layer_norm_eps"),
}  # fmt: skip
