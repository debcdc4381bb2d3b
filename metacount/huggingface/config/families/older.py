"""GPT-2, its descendants and the open decoders of 2021 to 2023 beside them."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.huggingface.config.keys import Keys
from metacount.huggingface.config.parts import (
    BIAS,
    OFFSET,
    TORCH_EPS,
    always,
    bias,
    biases,
    fixed,
    flag,
    heads,
    layer_norm,
    only,
    part,
    root_scale,
    rope,
    row,
    sizes,
    trunk,
    windows,
)
from metacount.huggingface.config.rope import rotation
from metacount.spec.field import MAX_LAYERS

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json
    from metacount.huggingface.config.parts import Part

CODEGEN_PARTS = 4  # the fused projection is laid out for four accelerators


@part
def named(keys: Keys, _: Json, width: str, layers: str, name: str) -> Json:
    """Read the sizes under other names; as many key/value heads as query heads."""
    fields = trunk(keys, layers, width)
    return {**fields, **heads(fields["d_model"], keys.size(name), name)}


@part
def plain_ffn(keys: Keys, fields: Json, width: str, activation: str) -> Json:
    """Read an FFN of two matrices with biases;
    where its width is null it is four times the model's.
    """
    d_ff = keys.optional_size(width)
    return {
        "d_ff": 4 * fields["d_model"] if d_ff is None else d_ff,
        **keys.activation(activation, gated=False),
        "ffn_bias": True,
    }


@part
def learned(keys: Keys, _: Json, key: str, *, offset: int = 0) -> Json:
    """Read a table of positions, `offset` rows of which stand before the first position."""
    more = {"position_offset": offset} if offset else {}
    return {"position": "learned", "n_positions": keys.size(key) + offset, **more}


@part
def rotated(keys: Keys, fields: Json, style: str) -> Json:
    """Read RoPE on the first `rotary_dim` values of a head."""
    width = keys.size("rotary_dim")
    full_width = width == fields["head_dim"]
    return {"position": "rope", "rotary_dim": None if full_width else width, "rope_style": style}


def bigcode_heads(keys: Keys, fields: Json) -> Json:
    """Read one key/value head, or as many as queries."""
    single = keys.flag("multi_query")
    n_kv_heads = 1 if single else fields["n_heads"]
    keys.agrees("num_key_value_heads", n_kv_heads)
    if not single:
        keys.differs("without multi_query weights are GPT-2's by name, and laid out otherwise")
    return {"n_kv_heads": n_kv_heads}


def gpt_neo_windows(keys: Keys, fields: Json) -> Json:
    """Read `attention_types`, [[kinds, repetitions], ...], as windows in some layers."""
    n_layers, types = fields["n_layers"], keys.raw("attention_types")
    wrong = SpecError(
        "attention_types",
        f'must be a list like [[["global", "local"], 6]] for {n_layers} layers',
        types,
        "give one kind for each layer",
    )
    letters = ""
    for pair in types if isinstance(types, list) else [None]:
        if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], list):
            raise wrong
        kinds, times = pair
        if isinstance(times, bool) or not isinstance(times, int) or not 0 <= times <= MAX_LAYERS:
            raise wrong
        if any(kind not in ("global", "local") for kind in kinds):
            raise wrong
        if len(letters) + len(kinds) * times > n_layers:
            raise wrong
        letters += "".join("GL"[kind == "local"] for kind in kinds) * times
    if len(letters) != n_layers:
        raise wrong
    keys.agrees("attention_layers", ["local" if letter == "L" else "global" for letter in letters])
    return windows(letters, keys.size("window_size"))


def both_names(keys: Keys, _: Json) -> Json:
    """Check older configs of GPT-NeoX, which have both names; transformers reads the second."""
    keys.fixed("partial_rotary_factor", keys.raw("rotary_pct"))
    keys.fixed("rope_theta", keys.raw("rotary_emb_base"))
    return {}


def four_parts(keys: Keys, fields: Json) -> Json:
    """Check that CodeGen's heads fall into four parts."""
    if (n_heads := fields["n_heads"]) % CODEGEN_PARTS:
        rule, remedy = f"must be a multiple of {CODEGEN_PARTS}", f"choose {CODEGEN_PARTS} or more"
        raise SpecError("n_head", rule, n_heads, remedy)
    return {}


def opt_block(keys: Keys, fields: Json) -> Json:
    """Read OPT's block: its LayerNorm before or after, with or without weights."""
    bias, affine = keys.flag("enable_bias"), keys.flag("layer_norm_elementwise_affine")
    pre, removed = keys.flag("do_layer_norm_before"), keys.flag("_remove_final_layer_norm")
    why = "projections between embedding and model have no place in a decoder's spec"
    keys.only("word_embed_proj_dim", None, fields["d_model"], why=why)
    return {
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
    }


@part
def four_times(keys: Keys, fields: Json, key: str = "") -> Json:
    """Set a feed-forward of four times the width; `key`, where it is written down, must agree."""
    if key:
        keys.fixed(key, 4 * fields["d_model"])
    return {"d_ff": 4 * fields["d_model"]}


def falcon_block(keys: Keys, fields: Json) -> Json:
    """Read the layouts of Falcon 7B (one key/value head) and of 40B and 180B."""
    new, multi_query = keys.flag("new_decoder_architecture"), keys.flag("multi_query")
    heads, kv_heads = fields["n_heads"], keys.optional_size("num_kv_heads")
    kv_heads = heads if kv_heads is None else kv_heads
    if not new and not multi_query and kv_heads != heads:
        keys.unmapped("num_kv_heads", kv_heads, "set new_decoder_architecture or multi_query")
    keys.fixed("apply_residual_connection_post_layernorm", False)
    d_ff, bias = keys.optional_size("ffn_hidden_size"), keys.flag("bias")
    return {
        "n_kv_heads": kv_heads if new else 1 if multi_query else heads,
        **biases(bias, bias),
        "d_ff": 4 * fields["d_model"] if d_ff is None else d_ff,
        **keys.activation("activation", gated=False),
        "ffn_bias": bias,
    }


def falcon_placement(keys: Keys, _: Json) -> Json:
    """Read whether both branches stand side by side, and behind how many norms."""
    new = keys.flag("new_decoder_architecture")
    parallel, norms = keys.flag("parallel_attn"), keys.optional_size("num_ln_in_parallel_attn")
    norms = 2 if norms is None and new else norms
    if not parallel:
        if new:
            keys.unmapped("parallel_attn", False, "the new architecture is parallel")
        return {"norm_placement": "pre"}
    if norms == 2 and new:
        return {"norm_placement": "parallel_two"}
    if norms not in (None, 1):
        keys.unmapped("num_ln_in_parallel_attn", norms, "choose 1, or 2 in the new architecture")
    return {"norm_placement": "parallel"}


def falcon_position(keys: Keys, fields: Json) -> Json:
    """Read RoPE, or ALiBi, whose bias is added before the scores are divided."""
    turned, head_dim = rotation(keys, fields["head_dim"]), fields["head_dim"]
    return {"position": "alibi", "alibi_scale": head_dim**-0.5} if keys.flag("alibi") else turned


def mpt_attention(keys: Keys, _: Json) -> Json:
    """Read the scale of scores from `attn_config`,
    an object whose other keys are fixed or ignored.
    """
    inner = keys.given("attn_config")
    inner = {} if inner is None else inner
    if not isinstance(inner, dict):
        raise SpecError("attn_config", "must be an object", inner, "remove it")
    attention = Keys(inner, {"softmax_scale": None}, {}, "body")
    fixed(
        attn_type="multihead_attention", alibi=True, alibi_bias_max=8, prefix_lm=False, qk_ln=False
    )(attention, {})
    attention.fixed("clip_qkv")
    scale = attention.optional_number("softmax_scale")
    attention.finish(("attn_impl", "attn_uses_sequence_id"), kind="decoder")
    return {"attention_scale": scale}


def fairseq(width: str, activation: str) -> tuple[Part, ...]:
    """Read the pre-norm block of fairseq: biases everywhere, and sqrt(d) on the embedding where it
    is scaled.
    """
    ffn = plain_ffn(width, activation)
    return root_scale("scale_embedding"), bias(True), ffn, layer_norm(TORCH_EPS)


# ---- rows ----

SUMMARY = (
    "summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout"
)
LENGTH = {"max_position_embeddings": "n_positions"}
GPT = named("n_embd", "n_layer", "n_head")
SCALED = flag("attention_scale", "scale_attn_weights", off=1.0, on=None)
GPT2 = (
    bias(True),
    SCALED,
    plain_ffn("n_inner", "activation_function"),
    layer_norm("layer_norm_epsilon"),
    learned("n_positions"),
)
# arXiv:2203.13474: both branches behind one norm; biases in the feed-forward and the head only
GPTJ = (
    GPT,
    rotated("interleaved"),
    always(head_bias=True),
    plain_ffn("n_inner", "activation_function"),
    layer_norm("layer_norm_epsilon", norm_placement="parallel"),
)
PHI = (
    sizes,
    always(head_bias=True),
    bias(True),
    flag("qk_norm", "qk_layernorm", off="none", on="layernorm"),
    plain_ffn("intermediate_size", "hidden_act"),
    layer_norm("layer_norm_eps", norm_placement="parallel"),
    rope(rounds_up=False),
)

ROWS = {
    # Radford et al. 2019
    "gpt2": row(
        GPT,
        only(scale_attn_by_inverse_layer_idx=False),
        *GPT2,
        ignored=f"n_ctx reorder_and_upcast_attn n_special predict_special_tokens {SUMMARY}",
    ),
    # arXiv:2305.06161
    "gpt_bigcode": row(
        GPT,
        bigcode_heads,
        *GPT2,
        ignored="attention_softmax_in_fp32 scale_attention_softmax_in_fp32 inference_runner "
        f"validate_runner_input pre_allocate_kv_cache max_batch_size {SUMMARY}",
    ),
    # unscaled scores, every second layer with a window
    "gpt_neo": row(
        named("hidden_size", "num_layers", "num_heads"),
        bias(False, o=True),
        always(attention_scale=1.0),
        gpt_neo_windows,
        plain_ffn("intermediate_size", "activation_function"),
        layer_norm("layer_norm_epsilon"),
        learned("max_position_embeddings"),
        ignored=SUMMARY,
        reads="max_position_embeddings",
        attention_types=[[["global", "local"], 12]],
    ),
    # arXiv:2204.06745: both branches at once, each behind a norm of its own
    "gpt_neox": row(
        sizes,
        BIAS,
        flag("norm_placement", "use_parallel_residual", off="pre", on="parallel_two"),
        both_names,
        plain_ffn("intermediate_size", "hidden_act"),
        layer_norm("layer_norm_eps"),
        rope(theta="rotary_emb_base", partial="rotary_pct"),
        ignored="is_decoder",
        rotary_emb_base=10000.0,
        rotary_pct=0.25,
    ),
    "gptj": row(*GPTJ, aliases=LENGTH, ignored=f"n_positions {SUMMARY}"),
    "codegen": row(*GPTJ, four_parts, aliases=LENGTH, ignored=f"n_positions n_ctx {SUMMARY}"),
    "phi": row(*PHI, head_dim=None, partial_rotary_factor=0.5),
    # squared ReLU and LayerNorm over each query and key head
    "persimmon": row(
        *PHI, always(head_bias=False, norm_placement="pre"), partial_rotary_factor=0.5
    ),
    # arXiv:2205.01068
    "opt": row(
        named("hidden_size", "num_hidden_layers", "num_attention_heads"),
        opt_block,
        learned("max_position_embeddings", offset=OFFSET),
        reads="max_position_embeddings",
    ),
    # arXiv:2211.05100
    "bloom": row(
        named("hidden_size", "n_layer", "n_head"),
        only(apply_residual_connection_post_layernorm=False),
        bias(True),
        four_times("n_inner"),
        fixed(offset_alibi=100),
        always(activation="gelu_tanh", gated=False, ffn_bias=True),
        layer_norm("layer_norm_epsilon", embedding_norm=True, position="alibi"),
        aliases={"n_embed": "hidden_size"},
        ignored="slow_but_exact attention_softmax_in_fp32 bias_dropout_fusion skip_bias_add "
        "masked_softmax_fusion skip_bias_add_qkv seq_length",
    ),
    # arXiv:2311.16867
    "falcon": row(
        named("hidden_size", "num_hidden_layers", "num_attention_heads"),
        falcon_block,
        layer_norm("layer_norm_epsilon"),
        falcon_placement,
        falcon_position,
        aliases={"n_embed": "hidden_size"},
    ),
    # as transformers has it: ALiBi always, no bias anywhere
    "mpt": row(
        named("d_model", "n_layers", "n_heads"),
        only(
            expansion_ratio=4,
            no_bias=True,
            logit_scale=None,
            norm_type="low_precision_layernorm",
            embedding_fraction=1.0,
        ),
        mpt_attention,
        four_times(),
        always(activation="gelu", gated=False, position="alibi"),
        layer_norm("layer_norm_epsilon", norm_bias=False),
        ignored="max_seq_len learned_pos_emb verbose init_config tokenizer_name fc_type",
    ),
    # arXiv:2112.10668: sinusoids, laid out in halves and starting at 2
    "xglm": row(
        named("d_model", "num_layers", "attention_heads"),
        *fairseq("ffn_dim", "activation_function"),
        always(position="sinusoidal", sinusoid_style="halves", position_offset=OFFSET),
    ),
    # arXiv:2210.10341
    "biogpt": row(
        sizes,
        *fairseq("intermediate_size", "hidden_act"),
        learned("max_position_embeddings", offset=OFFSET),
        ignored="layer_norm_eps",
        reads="max_position_embeddings",
    ),
}
