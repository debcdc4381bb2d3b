"""The two ends of a model: the tables before its blocks, the head after them."""

from __future__ import annotations

from metacount.spec.field import MAX_VOCAB, flag, number, part, size, where


@part
class Embedding:
    """The tables that tokens are looked up in."""

    vocab_size: int = size(
        "vocab_size",
        "V",
        "embedding rows as stored, padding included",
        "rows",
        "padded_vocab_size vocabulary_size n_vocab",
        most=MAX_VOCAB,
        asked=True,
    )
    n_token_types: int = size(
        "n_token_types",
        "V_t",
        "rows of the token-type (segment) table",
        "rows",
        "type_vocab_size",
        default=0,
        least=0,
        most=MAX_VOCAB,
    )
    width: int | None = size(
        "d_embedding",
        "d_e",
        "width of the tables, where it is not d_model",
        "values",
        "embedding_size embedding_dim",
        default=None,
    )
    norm: bool = flag(
        "embedding_norm", "a norm right after the embedding (BLOOM, BERT)", default=False
    )
    scale: float = number("embedding_scale", "factor on the embedding's output", default=1.0)


@part
class HeadTransform:
    """What stands between the last block and the head."""

    bias: bool = flag("head_transform_bias", "a bias on that dense layer", default=False)


@part
class Head:
    """From the last block's output to logits."""

    tied: bool = flag("tie_embeddings", "the output head is the token table", default=False)
    bias: bool = flag("head_bias", "a bias on the output head", default=False)
    transform: HeadTransform | None = where(
        "head_transform",
        HeadTransform,
        "without head_transform",
        flag(
            "head_transform",
            "a dense layer, an activation and a norm before the output head (BERT)",
            default=False,
        ),
        default=None,
    )
    scale: float = number("logit_scale", "factor on the logits", default=1.0)
    softcap: float | None = number(
        "logit_softcap", "bound that a tanh keeps the logits in", default=None
    )
