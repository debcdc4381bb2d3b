"""Encoders and their masked-LM heads: BERT, RoBERTa, ELECTRA, ModernBERT."""

from __future__ import annotations

from metacount.huggingface.config.families.family import Family
from metacount.huggingface.config.families.llama import FULL_OR_SLIDING
from metacount.huggingface.config.keys import Keys
from metacount.huggingface.config.parts import (
    biases,
    divided,
    layer_types,
    rope_by_layer_type,
    windows,
)

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json


def bert(keys: Keys) -> Json:
    """Read a config of BERT (arXiv:1810.04805):
    three tables, a norm, the original block, no final norm.
    """
    d_model, n_heads = keys.size("hidden_size"), keys.size("num_attention_heads")
    keys.fixed("position_embedding_type", "absolute")
    causal = keys.flag("is_decoder")
    if causal and keys.end != "head":
        keys.unmapped("is_decoder", True, "a class without a head stays an encoder here")
    if keys.end == "head":
        keys.only("tie_word_embeddings", True, why="untied, the class holds a second bias")
    return {
        "kind": "decoder" if causal else "encoder",
        "d_model": d_model,
        "n_layers": keys.layers("num_hidden_layers"),
        "vocab_size": keys.size("vocab_size"),
        "n_token_types": keys.size("type_vocab_size"),
        "embedding_norm": True,
        "tie_embeddings": True,
        "head_bias": True,
        "head_transform": True,
        "head_transform_bias": True,
        "n_heads": n_heads,
        "n_kv_heads": n_heads,
        "head_dim": divided("num_attention_heads", d_model, n_heads),
        **biases(True, True),
        "d_ff": keys.size("intermediate_size"),
        **keys.activation("hidden_act", gated=False),
        "ffn_bias": True,
        "norm": "layernorm",
        "norm_bias": True,
        "norm_eps": keys.number("layer_norm_eps"),
        "norm_placement": "post",
        "final_norm": False,
        "position": "learned",
        "n_positions": keys.size("max_position_embeddings"),
    }


def _gelu_head(keys: Keys, fields: Json) -> None:
    """Check that the blocks have GELU where there is a head,
    whose own activation is always GELU.
    """
    if keys.end == "head" and (fields["activation"], fields.get("swish_beta")) != ("gelu", None):
        keys.unmapped("hidden_act", keys.raw("hidden_act"), "the head has gelu: choose gelu")


def roberta(keys: Keys) -> Json:
    """Read a config of RoBERTa (arXiv:1907.11692):
    BERT whose positions start after the padding token's number.
    """
    fields = bert(keys)
    _gelu_head(keys, fields)
    return {**fields, "position_offset": keys.size("pad_token_id", lowest=0) + 1}


def electra(keys: Keys) -> Json:
    """Read a config of ELECTRA (arXiv:2003.10555): tables narrower than the model; no pooler."""
    tied = keys.flag("tie_word_embeddings")
    keys.data["tie_word_embeddings"] = True  # its head has one bias, tied or not
    fields = bert(keys)
    _gelu_head(keys, fields)
    width = keys.size("embedding_size")
    return {
        **fields,
        "tie_embeddings": tied,
        "d_embedding": None if width == fields["d_model"] else width,
    }


def modernbert(keys: Keys) -> Json:
    """Read a config of ModernBERT (arXiv:2412.13663):
    RoPE, gated FFN, two windowed layers of three.
    """
    d_model, n_heads = keys.size("hidden_size"), keys.size("num_attention_heads")
    n_layers, attention_bias = keys.layers("num_hidden_layers"), keys.flag("attention_bias")
    every = keys.layers("global_attn_every_n_layers")
    default = [FULL_OR_SLIDING[i % every != 0] for i in range(n_layers)]
    letters = layer_types(keys, n_layers, default, FULL_OR_SLIDING)
    activation = keys.activation("hidden_activation", gated=True)
    for_head = keys.activation("classifier_activation", gated=True)
    if keys.end == "head" and for_head != activation:
        keys.unmapped(
            "classifier_activation",
            keys.raw("classifier_activation"),
            "the head needs the activation of the blocks",
        )
    turned = rope_by_layer_type(
        keys,
        "L" in letters,
        old_global="global_rope_theta",
        old_local="local_rope_theta",
        scaled=FULL_OR_SLIDING,
    )
    keys.fixed("position_embedding_type", "absolute", "sans_pos", "rope")
    return {
        "kind": "encoder",
        "d_model": d_model,
        "n_layers": n_layers,
        "vocab_size": keys.size("vocab_size"),
        "embedding_norm": True,
        "tie_embeddings": keys.flag("tie_word_embeddings"),
        "head_bias": keys.flag("decoder_bias"),
        "head_transform": True,
        "head_transform_bias": keys.flag("classifier_bias"),
        "n_heads": n_heads,
        "n_kv_heads": n_heads,
        "head_dim": divided("num_attention_heads", d_model, n_heads),
        **biases(attention_bias, attention_bias),
        # a token sees local_attention // 2 to either side, as the spec's encoder window does
        **windows(letters, keys.size("local_attention")),
        "d_ff": keys.size("intermediate_size"),
        **activation,
        "ffn_bias": keys.flag("mlp_bias"),
        "norm": "layernorm",
        "norm_bias": keys.flag("norm_bias"),
        "norm_eps": keys.number("norm_eps"),
        "first_norm": False,
        **turned,
    }


BERT: Json = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "is_decoder": False,
    "tie_word_embeddings": True,
}

FAMILIES = {
    "bert": Family(
        fields=bert,
        classes={"BertLMHeadModel": "head", "BertForMaskedLM": "head", "BertModel": "pooled"},
        defaults=BERT,
        aliases={},
    ),
    "roberta": Family(
        fields=roberta,
        classes={
            "RobertaForCausalLM": "head",
            "RobertaForMaskedLM": "head",
            "RobertaModel": "pooled",
        },
        defaults={**BERT, "vocab_size": 50265, "pad_token_id": 1},
        aliases={},
    ),
    **{
        name: Family(
            fields=roberta,
            classes={
                f"{stem}ForCausalLM": "head",
                f"{stem}ForMaskedLM": "head",
                f"{stem}Model": "pooled",
            },
            defaults={**BERT, "pad_token_id": 1},
            aliases={},
        )
        for name, stem in (("camembert", "Camembert"), ("xlm-roberta", "XLMRoberta"))
    },
    "electra": Family(
        fields=electra,
        classes={
            "ElectraForCausalLM": "head",
            "ElectraForMaskedLM": "head",
            "ElectraModel": "body",
        },
        defaults={
            **BERT,
            "embedding_size": 128,
            "hidden_size": 256,
            "num_attention_heads": 4,
            "intermediate_size": 1024,
        },
        aliases={},
        ignored=("summary_type", "summary_use_proj", "summary_activation", "summary_last_dropout"),
    ),
    "modernbert": Family(
        fields=modernbert,
        classes={"ModernBertForMaskedLM": "head", "ModernBertModel": "body"},
        defaults={
            "vocab_size": 50368,
            "hidden_size": 768,
            "intermediate_size": 1152,
            "num_hidden_layers": 22,
            "num_attention_heads": 12,
            "hidden_activation": "gelu",
            "norm_eps": 1e-5,
            "norm_bias": False,
            "attention_bias": False,
            "global_attn_every_n_layers": 3,
            "local_attention": 128,
            "mlp_bias": False,
            "decoder_bias": True,
            "classifier_bias": False,
            "classifier_activation": "gelu",
            "tie_word_embeddings": True,
            "global_rope_theta": 160000.0,
            "local_rope_theta": 10000.0,
        },
        aliases={},
        ignored=(
            "classifier_pooling",
            "deterministic_flash_attn",
            "sparse_prediction",
            "sparse_pred_ignore_index",
            "reference_compile",
            "repad_logits_with_grad",
        ),
        kind="masked-LM",
    ),
}
