"""Encoder-decoders: T5, Switch, BART."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.huggingface.config.families.bloom import OFFSET, TORCH_EPS
from metacount.huggingface.config.families.family import Family
from metacount.huggingface.config.keys import Keys
from metacount.huggingface.config.parts import biases, divided, moe_layout

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json


def t5_base(keys: Keys) -> Json:
    """Read T5's sizes, norms and relative positions; its scores are not scaled."""
    n_heads, n_encoder = keys.size("num_heads"), keys.layers("num_layers")
    n_decoder = keys.raw("num_decoder_layers")
    n_decoder = n_encoder if n_decoder is None else keys.layers("num_decoder_layers")
    # transformers makes the number of decoder layers and the sparse steps from num_layers before
    # it takes in other names
    keys.own_name("num_layers")
    stacks: Json = {
        "kind": "encoder-decoder",
        "n_layers": n_decoder,
        "n_encoder_layers": n_encoder,
    }
    if keys.end == "encoder":
        stacks = {"kind": "encoder", "n_layers": n_encoder}
        keys.fixed("is_decoder", False)
    return {
        **stacks,
        "d_model": keys.size("d_model"),
        "vocab_size": keys.size("vocab_size"),
        "n_heads": n_heads,
        "n_kv_heads": n_heads,
        "head_dim": keys.size("d_kv"),
        "attention_scale": 1.0,
        "d_ff": keys.size("d_ff"),
        "norm": "rmsnorm",
        "norm_eps": keys.number("layer_norm_epsilon"),
        "position": "t5",
        "n_buckets": keys.size("relative_attention_num_buckets"),
        "max_distance": keys.size("relative_attention_max_distance"),
    }


def t5(keys: Keys) -> Json:
    """Read a config of T5 (arXiv:1910.10683).
    transformers ties the head even where the config says otherwise.
    """
    fields = t5_base(keys)
    tied = keys.flag("tie_word_embeddings")
    if not tied and keys.end == "head":
        keys.notes.append(
            "tie_word_embeddings false: transformers ties all the same; T5 v1.1 "
            "checkpoints hold a head of their own"
        )
    scaled = keys.given("scale_decoder_outputs")
    if scaled is not None:
        tied = keys.flag("scale_decoder_outputs")
    return {
        **fields,
        **_t5_activation(keys),
        "tie_embeddings": True,
        "logit_scale": fields["d_model"] ** -0.5 if tied else 1.0,
    }


def mt5(keys: Keys) -> Json:
    """Read a config of mT5 (arXiv:2010.11934): T5 v1.1;
    transformers ties its head and never scales its logits.
    """
    return {**t5(keys), "logit_scale": 1.0}


def _t5_activation(keys: Keys) -> Json:
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


def switch(keys: Keys) -> Json:
    """Read a config of Switch Transformer (arXiv:2101.03961)."""
    fields = t5_base(keys)
    keys.fixed("is_gated_act", False)
    keys.fixed("router_type", "tokens_masked")
    keys.fixed("num_selected_experts", 1)
    only_tied(keys)
    n_encoder = fields["n_encoder_layers" if "n_encoder_layers" in fields else "n_layers"]
    stacks = [_sparse(keys, "encoder", n_encoder)]
    if fields["kind"] == "encoder":
        keys.given("decoder_sparse_step")
    else:
        stacks.append(_sparse(keys, "decoder", fields["n_layers"]))
    n_experts, bias = keys.size("num_experts"), keys.flag("router_bias")
    layout = moe_layout(keys, "num_sparse_encoder_layers", stacks, every=2)
    if layout == {"n_dense_layers": 0, "moe_every": 1}:
        fields["d_ff_expert"] = fields.pop("d_ff")
    elif layout is not None:
        fields["d_ff_expert"] = fields["d_ff"]
    if layout is not None:
        keys.differs("tokens over expert_capacity are not dropped")
        fields |= {**layout, "n_experts": n_experts, "top_k": 1, "router_bias": bias}
    return {
        **fields,
        **keys.activation("dense_act_fn", gated=False),
        "tie_embeddings": True,
        "logit_scale": fields["d_model"] ** -0.5,
    }


def only_tied(keys: Keys) -> None:
    """Refuse untied embeddings: these classes would have one for each stack, and one more."""
    keys.only("tie_word_embeddings", True, why="untied, each stack has a table of its own")


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


def bart(keys: Keys, before: bool = False) -> Json:
    """Read a config of BART (arXiv:1910.13461): norms after branches and embeddings, biases."""
    d_model, n_heads = keys.size("d_model"), keys.size("encoder_attention_heads")
    keys.only("decoder_attention_heads", n_heads, why="both stacks need the same number of heads")
    only_tied(keys)
    d_ff = keys.size("encoder_ffn_dim")
    keys.only("decoder_ffn_dim", d_ff, why="both stacks need the same width")
    for name, value in (
        ("normalize_before", before),
        ("normalize_embedding", True),
        ("add_final_layer_norm", before),
        ("add_bias_logits", False),
        ("static_position_embeddings", False),
    ):
        keys.fixed(name, value)
    return {
        "kind": "encoder-decoder",
        "d_model": d_model,
        "n_layers": keys.layers("decoder_layers"),
        "n_encoder_layers": keys.layers("encoder_layers"),
        "vocab_size": keys.size("vocab_size"),
        "tie_embeddings": True,
        "embedding_norm": True,
        "embedding_scale": d_model**0.5 if keys.flag("scale_embedding") else 1.0,
        "n_heads": n_heads,
        "n_kv_heads": n_heads,
        "head_dim": divided("encoder_attention_heads", d_model, n_heads),
        **biases(True, True),
        "d_ff": d_ff,
        **keys.activation("activation_function", gated=False),
        "ffn_bias": True,
        "norm": "layernorm",
        "norm_bias": True,
        "norm_eps": TORCH_EPS,
        "norm_placement": "post",
        "final_norm": False,
        "position": "learned",
        "n_positions": keys.size("max_position_embeddings") + OFFSET,
        "position_offset": OFFSET,
    }


def mbart(keys: Keys) -> Json:
    """Read a config of mBART (arXiv:2001.08210): norms before each branch, one after each stack."""
    return {**bart(keys, before=True), "norm_placement": "pre", "final_norm": True}


T5_NAMES = {
    "hidden_size": "d_model",
    "num_attention_heads": "num_heads",
    "num_hidden_layers": "num_layers",
}
T5: Json = {
    "vocab_size": 32128,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 2048,
    "num_layers": 6,
    "num_decoder_layers": None,
    "num_heads": 8,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "layer_norm_epsilon": 1e-6,
    "tie_word_embeddings": True,
}

BART: Json = {
    "vocab_size": 50265,
    "max_position_embeddings": 1024,
    "encoder_layers": 12,
    "encoder_ffn_dim": 4096,
    "encoder_attention_heads": 16,
    "decoder_layers": 12,
    "decoder_ffn_dim": 4096,
    "decoder_attention_heads": 16,
    "activation_function": "gelu",
    "d_model": 1024,
    "scale_embedding": False,
    "tie_word_embeddings": True,
}
BART_NAMES = {
    "num_attention_heads": "encoder_attention_heads",
    "hidden_size": "d_model",
    "num_hidden_layers": "encoder_layers",
}
BART_OLD = (
    "is_decoder",
    "classif_dropout",
    "extra_pos_embeddings",
    "force_bos_token_to_be_generated",
)

FAMILIES = {
    "t5": Family(
        fields=t5,
        classes={"T5ForConditionalGeneration": "head", "T5WithLMHeadModel": "head",
                 "T5Model": "body", "T5EncoderModel": "encoder"},
        defaults={**T5, "feed_forward_proj": "relu"},
        aliases={**T5_NAMES, "head_dim": "d_kv"},
        ignored=("is_decoder", "n_positions", "output_past"),
        kind="seq2seq",
    ),
    "switch_transformers": Family(
        fields=switch,
        classes={"SwitchTransformersForConditionalGeneration": "head",
                 "SwitchTransformersModel": "body", "SwitchTransformersEncoderModel": "encoder"},
        defaults={**T5, "d_model": 768, "num_layers": 12, "num_heads": 12,
                  "num_decoder_layers": 12,
                  "num_sparse_encoder_layers": 3, "num_sparse_decoder_layers": 3,
                  "num_experts": 8, "router_bias": False, "dense_act_fn": "relu"},
        aliases=T5_NAMES,
        ignored=("expert_capacity", "router_dtype",
                 "router_ignore_padding_tokens", "add_router_probs", "is_decoder", "n_positions",
                 "feed_forward_proj", "batch_prioritized_routing"),
        kind="seq2seq",
    ),
    "mt5": Family(
        fields=mt5,
        classes={"MT5ForConditionalGeneration": "head", "MT5Model": "body",
                 "MT5EncoderModel": "encoder"},
        defaults={**T5, "vocab_size": 250112, "d_ff": 1024, "num_layers": 8, "num_heads": 6,
                  "feed_forward_proj": "gated-gelu"},
        aliases={**T5_NAMES, "head_dim": "d_kv"},
        ignored=("is_decoder", "n_positions", "output_past"),
        kind="seq2seq",
    ),
    "bart": Family(
        fields=bart,
        # the causal class keeps cross-attention that it never runs
        classes={"BartForCausalLM": None, "BartForConditionalGeneration": "head",
                 "BartModel": "body"},
        defaults=BART,
        aliases=BART_NAMES,
        ignored=BART_OLD,
    ),
    "mbart": Family(
        fields=mbart,
        classes={"MBartForCausalLM": None, "MBartForConditionalGeneration": "head",
                 "MBartModel": "body"},
        defaults=BART,
        aliases=BART_NAMES,
        ignored=BART_OLD,
    ),
    "plbart": Family(
        fields=bart,
        classes={"PLBartForCausalLM": None, "PLBartForConditionalGeneration": "head",
                 "PLBartModel": "body"},
        defaults={**BART, "vocab_size": 50005, "encoder_layers": 6, "encoder_ffn_dim": 3072,
                  "encoder_attention_heads": 12, "decoder_layers": 6, "decoder_ffn_dim": 3072,
                  "decoder_attention_heads": 12, "d_model": 768, "scale_embedding": True},
        aliases={**BART_NAMES, "initializer_range": "init_std"},
        ignored=BART_OLD,
    ),
}  # fmt: skip
