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

from metacount.formulas import around, norm
from metacount.formulas.dim import Dim
from metacount.formulas.terms import (
    SEQUENCES,
    TOKENS,
    Product,
    Weight,
    by_role,
    matrix,
    params_of,
)
from metacount.spec import ModelSpec
from metacount.spec.attention import NoAttention
from metacount.spec.position import Learned, RelativeBuckets

ROLES = ("embedding", "position", "head", "norm", "other")


def table_width(spec: ModelSpec) -> Dim:
    """Return the width of token, token-type, learned position tables: d unless d_embedding differs.

    Source: Clark et al. 2020, arXiv:2003.10555, table 6 (embedding size).
    """
    tables = spec.embedding
    return spec.d_model if tables is None or tables.width is None else tables.width


def token_table_params(spec: ModelSpec) -> Dim:
    """Count the parameters of the token table, [V, e] with e = `table_width`; 0 for a body alone.

    Source: Vaswani et al. 2017, arXiv:1706.03762, sec. 3.4.
    """
    return 0 if spec.embedding is None else spec.embedding.vocab_size * table_width(spec)


def embedding_norm_weights(spec: ModelSpec, name: str = "embed_norm") -> tuple[Weight, ...]:
    """List the tensors of one norm over the embeddings, before they are projected to d.

    Source: `norm.norm_weights`.
    """
    norms = spec.last_stack.norms
    return norm.norm_weights(name, table_width(spec), bias=norms.bias, affine=norms.affine)


def embedding_norm_params(spec: ModelSpec) -> Dim:
    """Count the parameters of one norm over the embeddings, before they are projected to d.

    Source: `norm.norm_params`.
    """
    return params_of(embedding_norm_weights(spec))


def stack_end_weights(spec: ModelSpec) -> tuple[Weight, ...]:
    """List a stack's tensors before and after its blocks: final norm, embedding norm, positions.

    Learned positions [n_positions, e] or T5's biases [n_buckets, h], one table for each stack. What
    makes copies of the stream, and each layer's own embeddings.

    Source: `norm.norm_weights`; `position.learned_table_params`, `position.t5_bias_params`;
    `altup.copy_weights`, `altup.layer_table_weights`.
    """
    norms, positions = spec.last_stack.norms, spec.positions
    found: list[Weight] = []
    if norms.final:
        found += norm.norm_weights("norm", spec.d_model, bias=norms.bias, affine=norms.affine)
    if spec.embedding is not None and spec.embedding.norm:
        found += embedding_norm_weights(spec)
    if isinstance(positions, Learned):
        shape = (positions.n_positions, table_width(spec))
        found.append(Weight(role="position", name="embed_positions.weight", shape=shape))
    if isinstance(positions, RelativeBuckets):
        mixer = spec.last_stack.attention
        assert not isinstance(mixer, NoAttention)  # the spec requires it
        shape = (positions.n_buckets, mixer.n_heads)
        name = "relative_bias.relative_attention_bias.weight"
        found.append(Weight(role="position", name=name, shape=shape))
    return (*found, *around.end_weights(spec))


def end_weights(spec: ModelSpec) -> tuple[Weight, ...]:
    """List the tensors before and after the blocks, without what belongs to each stack.

    embedding: tokens [V, e], token types [n_token_types, e]   (+ [d, e] and [d] to project e -> d)
    position:  query table [n_query_positions, d]
    head:      [V, e] unless tied   (+ [V] with head_bias)   (+ [e, d], + [e], to transform)
    norm:      of width e after the transform
    other:     pooler [d, d] and [d]

    Source: as `end_params`.
    """
    d, e = spec.d_model, table_width(spec)
    tables, head, positions = spec.embedding, spec.head, spec.positions
    found: list[Weight] = []
    if tables is not None:
        table = (tables.vocab_size, e)
        found.append(Weight(role="embedding", name="embed_tokens.weight", shape=table))
        types = (tables.n_token_types, e)
        found.append(Weight(role="embedding", name="embed_types.weight", shape=types))
        if tables.width is not None:
            found += matrix("embed_proj", "embedding", (d, e), TOKENS, bias=True)
    if isinstance(positions, Learned):
        queries = (positions.n_query_positions, d)
        found.append(Weight(role="position", name="embed_queries.weight", shape=queries))
    if head is not None and tables is not None:
        if not head.tied:
            found += matrix("lm_head", "head", table, TOKENS)
        if head.bias:
            found.append(Weight(role="head", name="lm_head.bias", shape=(tables.vocab_size,)))
        if head.transform is not None:
            bias = head.transform.bias
            found += matrix("head_transform.dense", "head", (e, d), TOKENS, bias=bias)
            found += embedding_norm_weights(spec, "head_transform.norm")
    if spec.pooler:
        found += matrix("pooler.dense", "other", (d, d), SEQUENCES, bias=True)
    return tuple(found)


def end_products(spec: ModelSpec) -> tuple[Product, ...]:
    """List the product of a tied head with the token table, which is stored once.

    Source: Vaswani et al. 2017, arXiv:1706.03762, sec. 3.4.
    """
    if spec.head is None or not spec.head.tied:
        return ()
    table = token_table_params(spec)
    return (Product(role="head", name="tied head", width=table, per=TOKENS),)


def end_params(spec: ModelSpec) -> dict[str, Dim]:
    """Count the parameters before and after the blocks by role, without what belongs to each stack.

    Returns: parameters, exact; the tensors are those of `end_weights`.
    Source: Devlin et al. 2018, arXiv:1810.04805, and its code (`get_masked_lm_output`: transform,
    `pooled_output`); Clark et al. 2020, arXiv:2003.10555, and its code (`embeddings_project`);
    Zeng et al. 2021, arXiv:2104.12369, the query layer (query table).
    """
    return by_role(end_weights(spec), lambda weight: weight.params, ROLES)


def pooler_flops(spec: ModelSpec, *, batch_size: Dim) -> dict[str, Dim]:
    """Count the FLOPs of the pooler, a layer d -> d over the first token of each sequence: 2·B·d·d.

    Returns: FLOPs of the forward, exact; 0 without a pooler.
    Source: Devlin et al. 2018, arXiv:1810.04805, and its code (`pooled_output`).
    Not counted: tanh and bias.
    """
    pooler = (weight for weight in end_weights(spec) if weight.role == "other")
    return by_role(pooler, lambda weight: weight.flops({SEQUENCES: batch_size}), ("other",))


def end_flops(spec: ModelSpec, *, n_tokens: Dim) -> dict[str, Dim]:
    """Count the FLOPs of the embedding's projection and the head over n tokens, without the pooler.

    2 FLOPs per multiply-add: n·e·d to project, n·d·e to transform, n·e·V for the logits

    Returns: FLOPs of the forward, exact; a tied head multiplies like any other.
    Source: as `end_params`.
    Not counted: the look-up, the transform's activation and norm, biases.
    """
    run = {TOKENS: n_tokens}
    terms: tuple[Weight | Product, ...] = (*end_weights(spec), *end_products(spec))
    ours = (term for term in terms if term.role in ("embedding", "head"))
    return by_role(ours, lambda term: term.flops(run), ("embedding", "head"))


def looked_up_params(spec: ModelSpec) -> Dim:
    """Count the parameters of the tables that are looked up: tokens, token types, each layer's.

    Source: `token_table_params`, `around.layer_table_params`; [n_token_types, e].
    """
    types = 0 if spec.embedding is None else spec.embedding.n_token_types * table_width(spec)
    return token_table_params(spec) + types + around.layer_table_params(spec)


def other_flops(spec: ModelSpec, run: dict[str, Dim]) -> Dim:
    """Count the FLOPs before and after the blocks of what is neither embedding nor head.

    Returns: FLOPs of the forward, exact.
    Source: `end_weights`, `stack_end_weights`.
    Not counted: norms, activations, biases.
    """
    both = (*end_weights(spec), *stack_end_weights(spec))
    return by_role(both, lambda weight: weight.flops(run), ("other",))["other"]
