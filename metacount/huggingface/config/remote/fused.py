"""Remote code with names of keys of its own: Qwen, ChatGLM 2 to GLM-4, Phi before it was ported."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.huggingface.config.families.family import Family
from metacount.huggingface.config.families.gpt import layer_norm, named, plain_ffn
from metacount.huggingface.config.parts import biases, rope
from metacount.huggingface.config.remote.like_llama import SIZES

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json
    from metacount.huggingface.config.keys import Keys


def qwen(keys: Keys) -> Json:
    """Read a config of Qwen (arXiv:2309.16609):
    `intermediate_size` is that of gate and up together.
    """
    fields = named(keys, "hidden_size", "num_hidden_layers", "num_attention_heads")
    both, bias = keys.size("intermediate_size"), not keys.flag("no_bias")
    if both % 2:
        raise SpecError(
            "intermediate_size",
            "must be even: gate and up have half of it each",
            both,
            f"choose {both + 1}",
        )
    keys.only("scale_attn_weights", True)
    keys.fixed("n_inner")
    keys.fixed("apply_residual_connection_post_layernorm", False)
    keys.only("kv_channels", fields["head_dim"], why="heads share the width")
    return {
        **fields,
        **biases(True, bias),
        "d_ff": both // 2,
        "activation": "silu",
        "gated": True,
        "ffn_bias": bias,
        "norm": "rmsnorm",
        "norm_eps": keys.number("layer_norm_epsilon"),
        **rope(keys, fields["head_dim"], theta="rotary_emb_base", partial="rotary_pct"),
    }


def chatglm(keys: Keys) -> Json:
    """Read a config of ChatGLM2, ChatGLM3 or GLM-4 (arXiv:2406.12793):
    RoPE in pairs on half of each head.
    """
    fields = named(keys, "hidden_size", "num_layers", "num_attention_heads")
    bias = keys.flag("add_bias_linear")
    qkv_bias, groups = keys.flag("add_qkv_bias") or bias, keys.size("multi_query_group_num")
    many = keys.flag("multi_query_attention")
    head_dim, last = keys.size("kv_channels"), keys.flag("post_layer_norm")
    keys.only("apply_residual_connection_post_layernorm", False)
    ratio = keys.number("rope_ratio")
    if keys.flag("rmsnorm"):
        norm: Json = {"norm": "rmsnorm", "norm_eps": keys.number("layernorm_epsilon")}
    else:
        norm = layer_norm(keys, "layernorm_epsilon")
    keys.fixed("original_rope", True)
    return {
        **fields,
        "head_dim": head_dim,
        "n_kv_heads": groups if many else fields["n_heads"],
        **biases(qkv_bias, bias),
        "d_ff": keys.size("ffn_hidden_size"),
        "activation": "silu",
        "gated": True,
        "ffn_bias": bias,
        **norm,
        "final_norm": last,
        "position": "rope",
        "rope_style": "interleaved",
        "rope_theta": 10000.0 * ratio,
        "rotary_dim": head_dim // 2,
    }


def phi_msft(keys: Keys) -> Json:
    """Read a config of Phi-1 to Phi-2 as first published:
    both branches behind one norm, biases everywhere.
    """
    fields = named(keys, "n_embd", "n_layer", "n_head")
    groups, rotary_dim = keys.optional_size("n_head_kv"), keys.size("rotary_dim")
    return {
        **fields,
        "n_kv_heads": fields["n_heads"] if groups is None else groups,
        "head_bias": True,
        **biases(True, True),
        **plain_ffn(keys, "n_inner", "activation_function", fields["d_model"]),
        **layer_norm(keys, "layer_norm_epsilon"),
        "norm_placement": "parallel",
        "position": "rope",
        "rotary_dim": None if rotary_dim == fields["head_dim"] else rotary_dim,
    }


FAMILIES = {
    "qwen": Family(
        fields=qwen,
        classes={"QWenLMHeadModel": "head", "QWenModel": "body"},
        defaults={
            **dict.fromkeys(SIZES), "kv_channels": None,
            "layer_norm_epsilon": 1e-6, "no_bias": True, "scale_attn_weights": True,
            "rotary_emb_base": 10000, "rotary_pct": 1.0, "tie_word_embeddings": False,
        },
        aliases={"n_embd": "hidden_size", "n_layer": "num_hidden_layers",
                 "n_head": "num_attention_heads", "ffn_hidden_size": "intermediate_size",
                 "padded_vocab_size": "vocab_size"},
        ignored=("n_positions", "attn_dropout_prob", "emb_dropout_prob", "bf16", "fp16",
                 "fp32", "onnx_safe", "seq_length", "softmax_in_fp32", "use_dynamic_ntk",
                 "use_flash_attn",
                 "use_logn_attn", "use_cache_quantization", "use_cache_kernel"),
    ),
    "chatglm": Family(
        fields=chatglm,
        # `ChatGLMModel` is what the published configs name; the head is part of it
        classes={"ChatGLMForConditionalGeneration": "head", "ChatGLMModel": "head",
                 "ChatGLMForSequenceClassification": None},
        defaults={
            "vocab_size": None, "num_layers": None, "hidden_size": None, "ffn_hidden_size": None,
            "kv_channels": None, "num_attention_heads": None, "layernorm_epsilon": 1e-5,
            "rmsnorm": True, "apply_residual_connection_post_layernorm": False,
            "post_layer_norm": True, "add_bias_linear": False, "add_qkv_bias": False,
            "multi_query_attention": False, "multi_query_group_num": 1, "rope_ratio": 1,
            "tie_word_embeddings": False,
        },
        aliases={"padded_vocab_size": "vocab_size", "num_hidden_layers": "num_layers"},
        ignored=("seq_length", "attention_softmax_in_fp32", "fp32_residual_connection",
                 "apply_query_key_layer_scaling", "bias_dropout_fusion", "quantization_bit",
                 "pre_seq_len", "prefix_projection", "interleaved_qkv"),
    ),
    "phi-msft": Family(
        fields=phi_msft,
        classes={"PhiForCausalLM": "head", "PhiModel": "body"},
        defaults={
            "vocab_size": None, "n_positions": None, "n_embd": None, "n_layer": None,
            "n_inner": None, "n_head": None, "n_head_kv": None, "rotary_dim": None,
            "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
            "tie_word_embeddings": False,
        },
        aliases={},
        ignored=("n_positions", "flash_attn", "flash_rotary", "fused_dense", "img_processor"),
    ),
}  # fmt: skip
