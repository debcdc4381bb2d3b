"""Encoders and their masked-LM heads (BERT), and encoder-decoders (T5, BART)."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.huggingface.config.keys import Keys
from metacount.huggingface.config.parts import (
    BIAS,
    D_FF,
    FFN_BIAS,
    FULL_OR_SLIDING,
    OFFSET,
    TORCH_EPS,
    UNGATED,
    always,
    biases,
    fixed,
    heads,
    layer_norm,
    letters_where,
    moe_layout,
    placed,
    rms_norm,
    row,
    trunk,
    windows,
)
from metacount.huggingface.config.rope import rope_by_layer_type

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json
    from metacount.huggingface.config.parts import Family


def bert(keys: Keys, _: Json) -> Json:
    """Read three tables, a norm, the original block, no final norm."""
    keys.fixed("position_embedding_type", "absolute")
    causal = keys.flag("is_decoder")
    if causal and keys.end != "head":
        keys.unmapped("is_decoder", True, "a class without a head stays an encoder here")
    if keys.end == "head":
        keys.only("tie_word_embeddings", True, why="untied, the class holds a second bias")
    d_model, n_heads = keys.size("hidden_size"), keys.size("num_attention_heads")
    return {
        "kind": "decoder" if causal else "encoder",
        "d_model": d_model,
        "n_layers": keys.layers("num_hidden_layers"),
        **keys.sizes(
            "vocab_size n_token_types=type_vocab_size n_positions=max_position_embeddings"
        ),
        **heads(d_model, n_heads),
        **HEAD,
        "tie_embeddings": True,
        **FULL_BIAS,
        **D_FF(keys, {}),
        **UNGATED(keys, {}),
        **layer_norm("layer_norm_eps", norm_placement="post", final_norm=False)(keys, {}),
        "position": "learned",
    }


HEAD = {"embedding_norm": True, "head_bias": True, "head_transform": True,
        "head_transform_bias": True}  # fmt: skip
FULL_BIAS = {**biases(True, True), "ffn_bias": True}


def gelu_head(keys: Keys, fields: Json) -> Json:
    """Check that the blocks have GELU where there is a head,
    whose own activation is always GELU.
    """
    if keys.end == "head" and (fields["activation"], fields.get("swish_beta")) != ("gelu", None):
        keys.unmapped("hidden_act", keys.raw("hidden_act"), "the head has gelu: choose gelu")
    return {}


def after_padding(keys: Keys, _: Json) -> Json:
    """Start positions after the padding token's number."""
    return {"position_offset": keys.size("pad_token_id", lowest=0) + 1}


def electra(keys: Keys, _: Json) -> Json:
    """Read BERT whose tables are narrower than the model; its head has one bias, tied or not."""
    tied = keys.flag("tie_word_embeddings")
    keys.data["tie_word_embeddings"] = True
    fields = bert(keys, {})
    gelu_head(keys, fields)
    width = keys.size("embedding_size")
    narrow = {"d_embedding": None if width == fields["d_model"] else width}
    return {**fields, "tie_embeddings": tied, **narrow}


def modernbert(keys: Keys, _: Json) -> Json:
    """Read RoPE, gated FFN, two windowed layers of three."""
    fields, every = trunk(keys), keys.layers("global_attn_every_n_layers")
    letters = letters_where(keys, fields, lambda i: i % every != 0)
    activation = keys.activation("hidden_activation", gated=True)
    for_head = keys.activation("classifier_activation", gated=True)
    if keys.end == "head" and for_head != activation:
        why = "the head needs the activation of the blocks"
        keys.unmapped("classifier_activation", keys.raw("classifier_activation"), why)
    turned = rope_by_layer_type(
        keys,
        letters,
        old_global="global_rope_theta",
        old_local="local_rope_theta",
        scaled=FULL_OR_SLIDING,
    )
    keys.fixed("position_embedding_type", "absolute", "sans_pos", "rope")
    return {
        **fields,
        "kind": "encoder",
        **heads(fields["d_model"], keys.size("num_attention_heads")),
        **HEAD,
        **keys.flags("head_bias=decoder_bias head_transform_bias=classifier_bias"),
        **BIAS(keys, {}),
        # a token sees local_attention // 2 to either side, as the spec's encoder window does
        **windows(letters, keys.size("local_attention")),
        **D_FF(keys, {}),
        **activation,
        **FFN_BIAS(keys, {}),
        **layer_norm("norm_eps", norm_bias=keys.flag("norm_bias"), first_norm=False)(keys, {}),
        **turned,
    }


# ---- encoder-decoders ----


def t5_base(keys: Keys, _: Json) -> Json:
    """Read T5's sizes, norms and relative positions; its scores are not scaled."""
    n_heads, n_encoder = keys.size("num_heads"), keys.layers("num_layers")
    n_decoder = keys.raw("num_decoder_layers")
    n_decoder = n_encoder if n_decoder is None else keys.layers("num_decoder_layers")
    # transformers makes the number of decoder layers and the sparse steps from num_layers before
    # it takes in other names
    keys.own_name("num_layers")
    stacks: Json = {
        "kind": "encoder-decoder", "n_layers": n_decoder, "n_encoder_layers": n_encoder
    }  # fmt: skip
    if keys.end == "encoder":
        stacks = {"kind": "encoder", "n_layers": n_encoder}
        keys.fixed("is_decoder", False)
    return {
        **stacks,
        "tie_embeddings": True,
        "n_heads": n_heads,
        "n_kv_heads": n_heads,
        "attention_scale": 1.0,
        **keys.sizes("d_model vocab_size head_dim=d_kv d_ff"),
        **rms_norm("layer_norm_epsilon")(keys, {}),
        "position": "t5",
        "n_buckets": keys.size("relative_attention_num_buckets"),
        "max_distance": keys.size("relative_attention_max_distance"),
    }


def t5_head(keys: Keys, fields: Json) -> Json:
    """Read the scale of logits: transformers ties the head even where the config says otherwise."""
    tied = keys.flag("tie_word_embeddings")
    if not tied and keys.end == "head":
        own = "T5 v1.1 checkpoints hold a head of their own"
        keys.notes.append(f"tie_word_embeddings false: transformers ties all the same; {own}")
    if keys.given("scale_decoder_outputs") is not None:
        tied = keys.flag("scale_decoder_outputs")
    return {"logit_scale": fields["d_model"] ** -0.5 if tied else 1.0}


def t5_activation(keys: Keys, _: Json) -> Json:
    """Read `feed_forward_proj`: an activation, or `gated-` and an activation."""
    value = keys.raw("feed_forward_proj")
    if not isinstance(value, str):
        raise SpecError("feed_forward_proj", "must be text", value, "for example relu")
    gated = value.startswith("gated-")
    # gated-gelu means the tanh form, for old configs' sake
    name = "gelu_new" if value == "gated-gelu" else value.removeprefix("gated-")
    # where they are written down, transformers obeys these two
    keys.agrees("is_gated_act", gated)
    keys.agrees("dense_act_fn", name)
    inner = Keys({"feed_forward_proj": name}, {}, {}, keys.end)
    return inner.activation("feed_forward_proj", gated=gated)


def only_tied(keys: Keys, _: Json) -> Json:
    """Refuse untied embeddings: these classes would have one for each stack, and one more."""
    keys.only("tie_word_embeddings", True, why="untied, each stack has a table of its own")
    return {}


def switch(keys: Keys, fields: Json) -> Json:
    """Read which layers of Switch Transformer have experts."""
    n_encoder = fields["n_encoder_layers" if "n_encoder_layers" in fields else "n_layers"]
    stacks = [_sparse(keys, "encoder", n_encoder)]
    if fields["kind"] == "encoder":
        keys.given("decoder_sparse_step")
    else:
        stacks.append(_sparse(keys, "decoder", fields["n_layers"]))
    added = {"n_experts": keys.size("num_experts"), "router_bias": keys.flag("router_bias")}
    layout = moe_layout(keys, "num_sparse_encoder_layers", stacks, every=2)
    added = placed(fields, layout, {**added, "top_k": 1, "d_ff_expert": fields["d_ff"]})
    if added:
        keys.differs("tokens over expert_capacity are not dropped")
    more = keys.activation("dense_act_fn", gated=False)
    return {**added, **more, "logit_scale": fields["d_model"] ** -0.5}


def _sparse(keys: Keys, stack: str, n_layers: int) -> list[bool]:
    """Return which layers have experts: the second, and then every n-th."""
    name = f"num_sparse_{stack}_layers"
    count = keys.layers(name, lowest=0)
    if count == 0:
        # the step is then the number of layers, which leaves the second layer with experts
        step = n_layers
    elif count > n_layers:
        raise SpecError(name, f"must be at most the {n_layers} layers", count, "lower it")
    else:
        step = n_layers // count
    keys.agrees(f"{stack}_sparse_step", step)  # written down, it goes before the number of layers
    return [step == 1 or i % step == 1 for i in range(n_layers)]


def bart(keys: Keys, _: Json) -> Json:
    """Read norms after branches and embeddings, biases."""
    d_model, n_heads = keys.size("d_model"), keys.size("encoder_attention_heads")
    keys.only("decoder_attention_heads", n_heads, why="both stacks need the same number of heads")
    only_tied(keys, {})
    d_ff = keys.size("encoder_ffn_dim")
    keys.only("decoder_ffn_dim", d_ff, why="both stacks need the same width")
    return {
        "kind": "encoder-decoder",
        "d_model": d_model,
        "n_layers": keys.layers("decoder_layers"),
        "n_encoder_layers": keys.layers("encoder_layers"),
        "vocab_size": keys.size("vocab_size"),
        "tie_embeddings": True,
        "embedding_norm": True,
        "embedding_scale": d_model**0.5 if keys.flag("scale_embedding") else 1.0,
        **heads(d_model, n_heads, "encoder_attention_heads"),
        **FULL_BIAS,
        "d_ff": d_ff,
        **keys.activation("activation_function", gated=False),
        **layer_norm(TORCH_EPS, norm_placement="post", final_norm=False)(keys, {}),
        "position": "learned",
        "n_positions": keys.size("max_position_embeddings") + OFFSET,
        "position_offset": OFFSET,
    }


# ---- rows ----

BERT_READS = "max_position_embeddings is_decoder"
ROBERTA = (bert, gelu_head, after_padding)  # arXiv:1907.11692
ROBERTA_READS = f"{BERT_READS} pad_token_id"
T5_IGNORED = "is_decoder n_positions output_past"
BART_OLD = {
    "add_bias_logits": False,
    "normalize_embedding": True,
    "static_position_embeddings": False,
}
BART_IGNORED = "is_decoder classif_dropout extra_pos_embeddings force_bos_token_to_be_generated"
BART = (fixed(**BART_OLD, normalize_before=False, add_final_layer_norm=False), bart)


def roberta(stem: str) -> Family:
    """Make the row of a type whose classes are RoBERTa's under another name."""
    return row(*ROBERTA, ends={f"{stem}Model": "pooled"}, reads=ROBERTA_READS)


def causal_half(stem: str) -> dict[str, str | None]:
    """Name the class of BART's kind that keeps cross-attention that it never runs."""
    return {f"{stem}ForCausalLM": None}


ROWS = {
    # arXiv:1910.10683
    "t5": row(
        t5_base,
        t5_head,
        t5_activation,
        ends={"T5WithLMHeadModel": "head", "T5EncoderModel": "encoder"},
        aliases={"head_dim": "d_kv"},
        ignored=T5_IGNORED,
        tie_word_embeddings=True,
    ),
    # arXiv:2101.03961
    "switch_transformers": row(
        t5_base,
        fixed(is_gated_act=False, router_type="tokens_masked", num_selected_experts=1),
        only_tied,
        switch,
        ends={"SwitchTransformersEncoderModel": "encoder"},
        ignored="expert_capacity router_dtype router_ignore_padding_tokens add_router_probs "
        "is_decoder n_positions feed_forward_proj batch_prioritized_routing",
    ),
    # arXiv:2010.11934: T5 v1.1; transformers never scales its logits
    "mt5": row(
        t5_base,
        t5_head,
        t5_activation,
        always(logit_scale=1.0),
        ends={"MT5EncoderModel": "encoder"},
        aliases={"head_dim": "d_kv"},
        ignored=T5_IGNORED,
    ),
    # arXiv:1910.13461
    "bart": row(
        *BART,
        ends=causal_half("Bart"),
        ignored=BART_IGNORED,
        reads="max_position_embeddings",
    ),
    # arXiv:2001.08210: norms before each branch, one after each stack
    "mbart": row(
        fixed(**BART_OLD, normalize_before=True, add_final_layer_norm=True),
        bart,
        always(norm_placement="pre", final_norm=True),
        ends=causal_half("MBart"),
        ignored=BART_IGNORED,
        reads="max_position_embeddings",
    ),
    "plbart": row(
        *BART,
        ends=causal_half("PLBart"),
        aliases={"initializer_range": "init_std"},
        ignored=BART_IGNORED,
        reads="max_position_embeddings",
    ),
    "bert": row(bert, ends={"BertModel": "pooled"}, reads=BERT_READS),  # arXiv:1810.04805
    "roberta": roberta("Roberta"),
    "camembert": roberta("Camembert"),
    "xlm-roberta": roberta("XLMRoberta"),
    # arXiv:2003.10555: no pooler
    "electra": row(
        electra,
        ignored="summary_type summary_use_proj summary_activation summary_last_dropout",
        reads=BERT_READS,
    ),
    # arXiv:2412.13663
    "modernbert": row(
        modernbert,
        ignored="classifier_pooling deterministic_flash_attn sparse_prediction "
        "sparse_pred_ignore_index reference_compile repad_logits_with_grad",
        global_attn_every_n_layers=3,
        global_rope_theta=160000.0,
        local_rope_theta=10000.0,
    ),
}
