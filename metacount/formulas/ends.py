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
from metacount.spec.embedding import Embedding
from metacount.spec.position import Learned


def table_width(spec: ModelSpec) -> Dim:
    """Width of the token, token-type and learned position tables: d unless d_embedding differs.

    Source: Clark et al. 2020, arXiv:2003.10555, table 6 (embedding size).
    """
    tables = spec.embedding
    return spec.d_model if tables is None or tables.width is None else tables.width


def token_table_params(spec: ModelSpec) -> Dim:
    """Parameters of the token table, [V, e] with e = `table_width`; 0 for a body alone.

    Source: Vaswani et al. 2017, arXiv:1706.03762, sec. 3.4.
    """
    return 0 if spec.embedding is None else spec.embedding.vocab_size * table_width(spec)


def embedding_norm_params(spec: ModelSpec) -> Dim:
    """Parameters of one norm over the embeddings, before they are projected to d.

    Source: `norm.norm_params`.
    """
    norms = spec.last_stack.norms
    return norm.norm_params(table_width(spec), bias=norms.bias, affine=norms.affine)


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
    tables, head, positions = spec.embedding, spec.head, spec.positions
    queries = positions.n_query_positions if isinstance(positions, Learned) else 0
    found = {
        "embedding": token_table_params(spec),
        "position": queries * d,
        "head": 0,
        "norm": 0,
        "other": when(spec.pooler, d * d + d),
    }
    if tables is not None:
        found["embedding"] += tables.n_token_types * e + when(_projects(tables), e * d + d)
    if head is not None and tables is not None:
        found["head"] = when(not head.tied, token_table_params(spec))
        found["head"] += when(head.bias, tables.vocab_size)
        if head.transform is not None:
            found["head"] += d * e + when(head.transform.bias, e)
            found["norm"] = embedding_norm_params(spec)
    return found


def _projects(tables: Embedding) -> bool:
    return tables.width is not None


def end_flops(spec: ModelSpec, *, n_tokens: Dim) -> dict[str, Dim]:
    """FLOPs of the embedding's projection and of the head over n tokens, without the pooler.

    2 FLOPs per multiply-add: n·e·d to project, n·d·e to transform, n·e·V for the logits

    Returns: FLOPs of the forward, exact; a tied head multiplies like any other.
    Source: as `end_params`.
    Not counted: the look-up, the transform's activation and norm, biases.
    """
    square = 2 * n_tokens * spec.d_model * table_width(spec)
    tables, head = spec.embedding, spec.head
    logits = when(head is not None, 2 * n_tokens * token_table_params(spec))
    return {
        "embedding": when(tables is not None and _projects(tables), square),
        "head": logits + when(head is not None and head.transform is not None, square),
    }


def pooler_flops(spec: ModelSpec, *, batch_size: Dim) -> dict[str, Dim]:
    """FLOPs of the pooler, a dense layer d -> d over the first token of each sequence: 2·B·d·d.

    Returns: FLOPs of the forward, exact; 0 without a pooler.
    Source: Devlin et al. 2018, arXiv:1810.04805, and its code (`pooled_output`).
    Not counted: tanh and bias.
    """
    return {"other": when(spec.pooler, 2 * batch_size * spec.d_model * spec.d_model)}
