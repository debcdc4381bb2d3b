"""The fields of a model: what `--set` and a model's file may say, and what each means."""

from __future__ import annotations

from metacount import symbols
from metacount.rules import CHOICES
from metacount.spec import ModelSpec
from metacount.views.layout import WIDEST_TEXT, columns, noted_table, wrapped

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from typing import Any

NOTE = (
    "A model's file is a JSON object of these fields, with a name if you like. "
    "How others call each field: --json."
)

# Fields that no formula has a letter for: structure, and numbers that change no count.
MEANINGS = {
    "kind": "the stacks a model has and what its tokens see",
    "tie_embeddings": "the output head is the token table",
    "has_head": "an output head over the vocabulary",
    "head_bias": "a bias on the output head",
    "d_embedding": "width of the tables, with a projection to d_model (ELECTRA)",
    "head_transform": "a dense layer, an activation and a norm before the output head (BERT)",
    "head_transform_bias": "a bias on that dense layer",
    "embedding_norm": "a norm right after the embedding (BLOOM, BERT)",
    "pooler": "a dense layer with tanh over the first token (BERT)",
    "embedding_scale": "factor on the embedding's output",
    "residual_scale": "factor on what each sublayer adds",
    "logit_scale": "factor on the logits",
    "logit_softcap": "bound that a tanh keeps the logits in",
    "attention": "key/value heads, or multi-head latent attention",
    "q_bias": "a bias on the query projection",
    "k_bias": "a bias on the key projection",
    "v_bias": "a bias on the value projection",
    "o_bias": "a bias on the output projection",
    "qk_norm": "RMSNorm of queries and keys: each head, all heads, or without weights (l2)",
    "attention_sinks": "one learned logit per query head in the softmax's denominator",
    "attention_scale": "factor on the scores; none: 1/sqrt of a query head's width",
    "attention_softcap": "bound that a tanh keeps the scores in",
    "window_kind": "the last positions, or the positions of the same chunk",
    "window_pattern": "L windowed, G global, repeated over the layers: LLLLLG",
    "mla_bias": "a bias on MLA's q_a, kv_a and output projections",
    "latent_norm_eps": "norm_eps of the norms over MLA's latents; none: the same",
    "activation": "of the feed-forward",
    "gated": "a third matrix gates the feed-forward (SwiGLU and its kin)",
    "ffn_bias": "a bias on each matrix of the feed-forward",
    "swish_beta": "beta of silu",
    "shared_expert_gate": "a sigmoid gate on the shared experts",
    "router": "how scores become weights",
    "router_bias": "a bias on the router",
    "selection_bias": "a buffer added to the scores for the choice only (DeepSeek-V3)",
    "group_score": "how a group of experts is scored",
    "routed_scale": "factor on the routed experts' output",
    "mixer_jitter": "experts chosen one after another, by SparseMixer (Phi-MoE)",
    "router_scales_input": "the router's weight multiplies an expert's input, not its output",
    "expert_bias": "a bias on each matrix of each expert",
    "norm": "of the residual stream",
    "norm_bias": "a bias on each layernorm",
    "norm_affine": "norms have weights",
    "norm_unit_offset": "norm weights are stored less 1 (Gemma)",
    "norm_placement": "where in a block the norms stand",
    "norm_eps": "added below the root",
    "first_norm": "a norm before the first block's attention (ModernBERT: false)",
    "final_norm": "a norm after the last block",
    "position": "how the model knows positions",
    "position_offset": "rows of a learned table before the first position (OPT: 2)",
    "rope_theta_windowed": "rope_theta of the windowed layers; none: the same",
    "rope_theta": "base of RoPE's wavelengths",
    "rope_style": "which values of a head are rotated as a pair",
    "rope_scaling": "how RoPE's angles change beyond the trained length (YaRN, Llama 3.1, ...)",
    "rope_scaling_windowed": "the same of the layers that have rope_theta_windowed",
    "query_growth": "how queries grow with their position (Llama 4, Ministral 3)",
    "alibi_scale": "factor on ALiBi's bias (Falcon)",
    "sinusoid_style": "sines and cosines in turn, or all sines before all cosines",
}

KINDS = {
    "int": "whole number", "float": "number", "bool": "true or false", "str": "text",
    "RopeScaling": "object", "QueryGrowth": "object",
}  # fmt: skip


def field_rows() -> list[dict[str, Any]]:
    """Every field in order: letter, what it takes, default, meaning, everyone else's names."""
    terms = {term.name: term for term in symbols.MODEL_TERMS}
    rows = []
    for name, annotation in ModelSpec.__annotations__.items():
        kind, _, optional = str(annotation).partition(" | ")
        takes = ", ".join(CHOICES[name]) if name in CHOICES else KINDS[kind]
        term = terms.get(name)
        rows.append(
            {
                "field": name,
                "letter": term and term.letter,
                "takes": f"{takes}, or none" if optional else takes,
                "required": not hasattr(ModelSpec, name),
                "default": getattr(ModelSpec, name, None),
                "meaning": term.meaning if term else MEANINGS[name],
                "elsewhere": list(term.elsewhere) if term else [],
            }
        )
    return rows


def fields_text() -> str:
    """The fields as a table."""
    width = columns()
    rows = []
    for row in field_rows():
        default = row["default"]
        shown = str(default) if isinstance(default, str | float) else str(default).lower()
        rows.append(
            (
                row["field"],
                row["letter"] or "",
                "required" if row["required"] else shown,
                f"{row['takes']}: {row['meaning']}",
            )
        )
    lines = noted_table(("field", "letter", "default", "takes"), rows, "<<<", width)
    return "\n".join([*lines, "", *wrapped(NOTE, min(width, WIDEST_TEXT))]) + "\n"
