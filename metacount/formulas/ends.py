"""The two ends of a model: the tables before the blocks, the head after them, summed by role.

>>> from metacount.spec import ModelSpec
>>> electra = ModelSpec(
...     kind="encoder", d_model=256, n_layers=12, vocab_size=30522, tie_embeddings=True,
...     head_bias=True, n_token_types=2, d_embedding=128, embedding_norm=True,
...     head_transform=True, head_transform_bias=True, n_heads=4, n_kv_heads=4, head_dim=64,
...     d_ff=1024, activation="gelu", gated=False, norm="layernorm", norm_bias=True,
...     norm_placement="post", final_norm=False, position="learned", n_positions=512)
>>> end_params(electra)  # ELECTRA-small generator
{'embedding': 3940096, 'position': 0, 'head': 63418, 'norm': 256, 'other': 0}
>>> end_flops(electra, n_tokens=128)
{'embedding': 8388608, 'head': 1008533504}
"""

from __future__ import annotations

from metacount.formulas import norm
from metacount.formulas.dim import Dim, when
from metacount.spec import ModelSpec


def table_width(spec: ModelSpec) -> Dim:
    """Width of the token, token-type and learned position tables: d unless d_embedding differs.

    Source: Clark et al. 2020, arXiv:2003.10555, table 6 (embedding size).
    """
    return spec.d_model if spec.d_embedding is None else spec.d_embedding


def token_table_params(spec: ModelSpec) -> Dim:
    """Parameters of the token table, [V, e] with e = `table_width`; 0 for a body alone.

    Source: Vaswani et al. 2017, arXiv:1706.03762, sec. 3.4.
    """
    return 0 if spec.vocab_size is None else spec.vocab_size * table_width(spec)


def embedding_norm_params(spec: ModelSpec) -> Dim:
    """Parameters of one norm over the embeddings, before they are projected to d.

    Source: `norm.norm_params`.
    """
    return norm.norm_params(table_width(spec), bias=spec.norm_bias, affine=spec.norm_affine)


def end_params(spec: ModelSpec) -> dict[str, Dim]:
    """Parameters before and after the blocks by role, without what belongs to each stack.

    embedding: tokens [V, e], token types [n_token_types, e]   (+ e·d + d to project e -> d)
    position:  query table [n_query_positions, d]
    head:      [V, e] unless tied   (+ V with head_bias)   (+ d·e, + e with bias, to transform)
    norm:      of width e after the transform
    other:     pooler d·d + d

    Returns: parameters, exact.
    Source: Devlin et al. 2018, arXiv:1810.04805, and its code (`get_masked_lm_output`: transform,
    `pooled_output`); Clark et al. 2020, arXiv:2003.10555, and its code (`embeddings_project`);
    Zeng et al. 2021, arXiv:2104.12369, the query layer (query table).
    """
    d, e = spec.d_model, table_width(spec)
    own_head = spec.has_head and not spec.tie_embeddings
    return {
        "embedding": token_table_params(spec)
        + spec.n_token_types * e
        + when(spec.d_embedding is not None, e * d + d),
        "position": spec.n_query_positions * d,
        "head": when(own_head, token_table_params(spec))
        + when(spec.head_bias, spec.vocab_size)
        + when(spec.head_transform, d * e)
        + when(spec.head_transform_bias, e),
        "norm": when(spec.head_transform, embedding_norm_params(spec)),
        "other": when(spec.pooler, d * d + d),
    }


def end_flops(spec: ModelSpec, *, n_tokens: Dim) -> dict[str, Dim]:
    """FLOPs of the embedding's projection and of the head over n tokens, without the pooler.

    2 FLOPs per multiply-add: n·e·d to project, n·d·e to transform, n·e·V for the logits

    Returns: FLOPs of the forward, exact; a tied head multiplies like any other.
    Source: as `end_params`.
    Not counted: the look-up, the transform's activation and norm, biases.
    """
    square = 2 * n_tokens * spec.d_model * table_width(spec)
    logits = when(spec.has_head, 2 * n_tokens * token_table_params(spec))
    return {
        "embedding": when(spec.d_embedding is not None, square),
        "head": logits + when(spec.head_transform, square),
    }


def pooler_flops(spec: ModelSpec, *, batch_size: Dim) -> dict[str, Dim]:
    """FLOPs of the pooler, a dense layer d -> d over the first token of each sequence: 2·B·d·d.

    Returns: FLOPs of the forward, exact; 0 without a pooler.
    Source: Devlin et al. 2018, arXiv:1810.04805, and its code (`pooled_output`).
    Not counted: tanh and bias.
    """
    return {"other": when(spec.pooler, 2 * batch_size * spec.d_model * spec.d_model)}
