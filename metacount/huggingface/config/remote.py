"""Model types whose code lies beside their weights: their configs are read by keys, never run.

transformers has no class for them, so it is no witness. Their own code's defaults are not at hand:
a size that is not written down is an error.
"""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.huggingface.config.families.older import named, plain_ffn, rotated
from metacount.huggingface.config.keys import QUICK_GELU_BETA, Keys
from metacount.huggingface.config.parts import (
    BIAS,
    BLOCK,
    D_FF,
    EXPERT_WIDTH,
    ROPE,
    ROUTED_SCALE,
    activation,
    always,
    bias,
    biases,
    dense_first,
    experts,
    fixed,
    flag,
    grouped,
    layer_norm,
    prediction,
    rms_norm,
    rope,
    row,
    shared_experts,
    sizes,
    windows_from,
)
from metacount.huggingface.config.rope import rotation

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from typing import Any

    from metacount.files import Json
    from metacount.huggingface.config.parts import Family, Part

TRAINED_WITH = "max_position_embeddings"  # a key of Baichuan's 7B alone, beside both's own name
LENGTH = "model_max_length"


def remote(
    classes: dict[str, str | None] | str,
    needed: str,
    *parts: Part,
    aliases: dict[str, str] | None = None,
    ignored: str = "",
    **defaults: Any,
) -> Family:
    """Make the family of a type; `classes` may be one or two stems of `<stem>ForCausalLM`.
    `needed`: keys that have no default, and some whose default is null.
    """
    if isinstance(classes, str):
        stems = classes.split()
        ends: dict[str, str | None] = {f"{stem}ForCausalLM": "head" for stem in stems}
        classes = {**ends, f"{stems[0]}Model": "body"}
        ignored = f"_from_model_config use_flash_attn {ignored}"
    defaults = {"tie_word_embeddings": False, **dict.fromkeys(needed.split()), **defaults}
    return row(*parts, ends=classes, aliases=aliases, ignored=ignored, **defaults)


def baichuan_positions(keys: Keys, fields: Json) -> Json:
    """Read RoPE, as in the 7B's code, or ALiBi, as in the 13B's."""
    keys.fixed("num_key_value_heads", fields["n_heads"])
    rotates, given = keys.given(TRAINED_WITH) is not None, keys.given(LENGTH) is not None
    if rotates:
        return rotation(keys, fields["head_dim"])
    if not given:
        rule = f"or {LENGTH} must be there: the first is of the code with RoPE (7B), the second "
        rule += "alone of the code with ALiBi (13B)"
        raise SpecError(TRAINED_WITH, rule, None, f"give {TRAINED_WITH} or {LENGTH}")
    keys.notes.append(f"ALiBi: it has {LENGTH} and no {TRAINED_WITH}, as the 13B's code")
    return {"position": "alibi"}


def minicpm_scales(keys: Keys, fields: Json) -> Json:
    """Read the multipliers of μP."""
    depth = keys.number("scale_depth")
    return {
        "embedding_scale": keys.number("scale_emb"),
        "residual_scale": depth / fields["n_layers"] ** 0.5,
        "logit_scale": keys.number("dim_model_base") / fields["d_model"],
    }


def deepseek_experts(keys: Keys, fields: Json) -> Json:
    """Read fine experts and shared ones, where there are any."""
    keys.only("scoring_func", "softmax")
    if keys.raw("n_routed_experts") is None:
        for name in ("n_shared_experts", "num_experts_per_tok"):
            keys.fixed(name)
        return {}
    n_shared = keys.optional_size("n_shared_experts", lowest=0) or 0
    more = (EXPERT_WIDTH, always(n_shared_experts=n_shared))
    read = experts("n_routed_experts", "softmax", *more, renorm=True, layout=dense_first)
    return read(keys, fields)


def bailing_experts(keys: Keys, fields: Json) -> Json:
    """Read Ling's experts: by softmax, or by sigmoid with groups and a bias for the choice."""
    scoring = str(keys.only("score_function", "softmax", "sigmoid"))
    shared = (EXPERT_WIDTH, shared_experts("num_shared_experts"))
    keys.fixed("moe_shared_expert_intermediate_size", keys.raw("moe_intermediate_size"))
    more = (ROUTED_SCALE, grouped, flag("selection_bias", "moe_router_enable_expert_bias"))
    layers = experts("num_experts", scoring, *shared, *more, renorm=True, layout=dense_first)
    return layers(keys, fields)


def phi3_small(keys: Keys, fields: Json) -> Json:
    """Read Phi-3-small's sizes, multipliers of μP and gate; biases are everywhere."""
    added = sizes(keys, fields)
    keys.only("hidden_act", "gegelu")
    every = keys.optional_size("dense_attention_every_n_layers")
    if every != 1:
        sparse = "the block-sparse layers are counted as ones that see all"
        bound = "causal FLOPs are an upper bound"
        keys.notes.append(f"dense_attention_every_n_layers: {sparse}: {bound}")
    keys.differs("gegelu adds 1 to the value beside its gate and cuts both off at gegelu_limit")
    return {
        **added,
        **biases(True, True),
        **SILU,
        "d_ff": keys.size("ff_intermediate_size"),
        "swish_beta": QUICK_GELU_BETA,
        "ffn_bias": True,
        "embedding_scale": keys.number("mup_embedding_multiplier"),
        "attention_scale": keys.number("mup_attn_multiplier") / added["head_dim"],
        "logit_scale": 1 / keys.number("mup_width_multiplier"),
    }


def qwen_block(keys: Keys, fields: Json) -> Json:
    """Read Qwen's block: `intermediate_size` is that of gate and up together."""
    both, bias = keys.size("intermediate_size"), not keys.flag("no_bias")
    if both % 2:
        rule = "must be even: gate and up have half of it each"
        raise SpecError("intermediate_size", rule, both, f"choose {both + 1}")
    keys.only("scale_attn_weights", True)
    keys.fixed("n_inner")
    keys.fixed("apply_residual_connection_post_layernorm", False)
    keys.only("kv_channels", fields["head_dim"], why="heads share the width")
    return {**biases(True, bias), **SILU, "d_ff": both // 2, "ffn_bias": bias}


def chatglm_block(keys: Keys, fields: Json) -> Json:
    """Read the block of ChatGLM2, ChatGLM3 or GLM-4: RoPE in pairs on half of each head."""
    bias = keys.flag("add_bias_linear")
    qkv_bias, groups = keys.flag("add_qkv_bias") or bias, keys.size("multi_query_group_num")
    many = keys.flag("multi_query_attention")
    head_dim, last = keys.size("kv_channels"), keys.flag("post_layer_norm")
    keys.only("apply_residual_connection_post_layernorm", False)
    ratio = keys.number("rope_ratio")
    norm = rms_norm if keys.flag("rmsnorm") else layer_norm
    return {
        "head_dim": head_dim,
        "n_kv_heads": groups if many else fields["n_heads"],
        **biases(qkv_bias, bias),
        **norm("layernorm_epsilon")(keys, fields),
        **SILU,
        "d_ff": keys.size("ffn_hidden_size"),
        "ffn_bias": bias,
        "final_norm": last,
        "position": "rope",
        "rope_style": "interleaved",
        "rope_theta": 10000.0 * ratio,
        "rotary_dim": head_dim // 2,
    }


def exaone_heads(keys: Keys, fields: Json) -> Json:
    """Read key/value heads and a width of heads, as many and as wide as queries where null."""
    n_kv_heads, head_dim = keys.optional_size("num_key_value_heads"), keys.optional_size("head_dim")
    width = head_dim or fields["head_dim"]
    return {"n_kv_heads": n_kv_heads or fields["n_heads"], "head_dim": width}


def phi_groups(keys: Keys, fields: Json) -> Json:
    """Read key/value heads, as many as queries where it is null."""
    groups = keys.optional_size("n_head_kv")
    return {"n_kv_heads": fields["n_heads"] if groups is None else groups}


SILU = {"activation": "silu", "gated": True}
SIZES = "vocab_size hidden_size intermediate_size num_attention_heads"
LAYERS = f"{SIZES} num_hidden_layers"
GROUPED = f"{LAYERS} num_key_value_heads"
LLAMA: Json = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0}

REMOTE = {
    # arXiv:2309.10305
    "baichuan": remote(
        "Baichuan BaiChuan", LAYERS, *BLOCK, baichuan_positions, ignored="z_loss_weight", **LLAMA
    ),
    # arXiv:2403.17297
    "internlm2": remote(
        "InternLM2", GROUPED, *BLOCK, bias("bias"), ROPE, ignored="fp16 bf16", **LLAMA, bias=True
    ),
    "xverse": remote("Xverse", GROUPED, *BLOCK, ROPE, ignored="max_tokenizer_truncation", **LLAMA),
    # arXiv:2404.06395
    "minicpm": remote(
        "MiniCPM",
        f"{GROUPED} scale_emb dim_model_base scale_depth",
        *BLOCK,
        BIAS,
        minicpm_scales,
        ROPE,
        **LLAMA,
        tie_word_embeddings=True,
        attention_bias=False,
    ),
    # arXiv:2401.06066
    "deepseek": remote(
        "Deepseek",
        f"{GROUPED} n_routed_experts n_shared_experts num_experts_per_tok moe_intermediate_size",
        *BLOCK,
        BIAS,
        ROPE,
        deepseek_experts,
        **LLAMA,
        attention_bias=False,
        first_k_dense_replace=0,
        scoring_func="softmax",
        norm_topk_prob=False,
    ),
    # EXAONE 3, arXiv:2408.03541
    "exaone": remote(
        "Exaone",
        f"{SIZES} num_layers num_key_value_heads head_dim",
        named("hidden_size", "num_layers", "num_attention_heads"),
        exaone_heads,
        D_FF,
        activation(gated=True, key="activation_function"),
        rms_norm("layer_norm_epsilon"),
        ROPE,
        aliases={"num_hidden_layers": "num_layers"},
        activation_function="silu",
        layer_norm_epsilon=1e-5,
        rope_theta=10000.0,
    ),
    # arXiv:2505.07608: Qwen2's block, and a prediction module in the checkpoint
    "mimo": remote(
        "MiMo",
        f"{GROUPED} head_dim sliding_window",
        *BLOCK,
        bias("attention_bias", o=False),
        windows_from(),
        ROPE,
        prediction(),
        **LLAMA,
        attention_bias=True,
        use_sliding_window=False,
        max_window_layers=28,
        num_nextn_predict_layers=0,
    ),
    # Ling, arXiv:2503.05139; Ling 2.0 and Ring with norms of heads and DeepSeek-V3's experts
    "bailing_moe": remote(
        "BailingMoe BailingMoeV2",
        f"{GROUPED} head_dim num_experts num_experts_per_tok moe_intermediate_size",
        fixed(use_sliding_window=False, norm_head=False, use_rmsnorm=True),
        *BLOCK,
        bias("use_qkv_bias", o="use_bias", ffn="use_bias"),
        flag("qk_norm", "use_qk_norm", off="none", on="head"),
        ROPE,
        bailing_experts,
        ignored="sliding_window max_window_layers router_dtype",
        **LLAMA,
        partial_rotary_factor=1.0,
        use_bias=False,
        use_qkv_bias=False,
        use_qk_norm=False,
        num_shared_experts=0,
        first_k_dense_replace=0,
        norm_topk_prob=True,
        score_function="softmax",
        moe_router_enable_expert_bias=False,
        routed_scaling_factor=1.0,
        n_group=1,
        topk_group=1,
    ),
    # Phi-3-small, arXiv:2404.14219
    "phi3small": remote(
        "Phi3Small",
        f"{GROUPED} ff_intermediate_size dense_attention_every_n_layers",
        phi3_small,
        layer_norm("layer_norm_epsilon"),
        rope(theta="rope_embedding_base"),
        ignored="blocksparse_block_size blocksparse_homo_head_pattern attention_bias "
        "blocksparse_num_local_blocks blocksparse_triton_kernel_block_size gegelu_limit "
        "blocksparse_vert_stride ff_dim_multiplier gegelu_pad_to_256 mup_use_scaling "
        "pad_sequence_to_multiple_of_64 reorder_and_upcast_attn rope_position_scale "
        "attention_dropout_prob embedding_dropout_prob ffn_dropout_prob",
        tie_word_embeddings=True,
        hidden_act="gegelu",
        mup_attn_multiplier=1.0,
        mup_embedding_multiplier=10.0,
        mup_width_multiplier=8.0,
        layer_norm_epsilon=1e-5,
        rope_embedding_base=1000000,
    ),
    # arXiv:2309.16609
    "qwen": remote(
        {"QWenLMHeadModel": "head", "QWenModel": "body"},
        f"{LAYERS} kv_channels",
        named("hidden_size", "num_hidden_layers", "num_attention_heads"),
        qwen_block,
        rms_norm("layer_norm_epsilon"),
        rope(theta="rotary_emb_base", partial="rotary_pct"),
        aliases={
            "n_embd": "hidden_size",
            "n_layer": "num_hidden_layers",
            "n_head": "num_attention_heads",
            "ffn_hidden_size": "intermediate_size",
            "padded_vocab_size": "vocab_size",
        },
        ignored="n_positions attn_dropout_prob emb_dropout_prob bf16 fp16 fp32 onnx_safe "
        "seq_length softmax_in_fp32 use_dynamic_ntk use_flash_attn use_logn_attn "
        "use_cache_quantization use_cache_kernel",
        layer_norm_epsilon=1e-6,
        no_bias=True,
        scale_attn_weights=True,
        rotary_emb_base=10000,
        rotary_pct=1.0,
    ),
    # arXiv:2406.12793. `ChatGLMModel` is what the published configs name; the head is part of it
    "chatglm": remote(
        {
            "ChatGLMForConditionalGeneration": "head",
            "ChatGLMModel": "head",
            "ChatGLMForSequenceClassification": None,
        },
        "vocab_size num_layers hidden_size ffn_hidden_size kv_channels num_attention_heads",
        named("hidden_size", "num_layers", "num_attention_heads"),
        chatglm_block,
        fixed(original_rope=True),
        aliases={"padded_vocab_size": "vocab_size", "num_hidden_layers": "num_layers"},
        ignored="seq_length attention_softmax_in_fp32 fp32_residual_connection "
        "apply_query_key_layer_scaling bias_dropout_fusion quantization_bit pre_seq_len "
        "prefix_projection interleaved_qkv",
        layernorm_epsilon=1e-5,
        rmsnorm=True,
        apply_residual_connection_post_layernorm=False,
        post_layer_norm=True,
        add_bias_linear=False,
        add_qkv_bias=False,
        multi_query_attention=False,
        multi_query_group_num=1,
        rope_ratio=1,
    ),
    # Phi-1 to Phi-2 as first published: both branches behind one norm, biases everywhere
    "phi-msft": remote(
        {"PhiForCausalLM": "head", "PhiModel": "body"},
        "vocab_size n_positions n_embd n_layer n_inner n_head n_head_kv rotary_dim",
        named("n_embd", "n_layer", "n_head"),
        phi_groups,
        rotated("half"),
        always(head_bias=True),
        bias(True),
        plain_ffn("n_inner", "activation_function"),
        layer_norm("layer_norm_epsilon", norm_placement="parallel"),
        ignored="n_positions flash_attn flash_rotary fused_dense img_processor",
        activation_function="gelu_new",
        layer_norm_epsilon=1e-5,
    ),
}
