"""A whole model in plain Python, put together from `module_loops`: embedding, blocks, head."""

from __future__ import annotations

import math
from typing import Any

from helpers.module_loops import (
    SCALAR,
    Row,
    Rows,
    Sees,
    add,
    attention,
    ffn,
    linear,
    moe,
    norm,
    sinusoid,
    t5_bucket,
    times,
)
from metacount.spec import ModelSpec

# 6 heads: the slopes of 4 heads, 2^-2 … 2^-8, then every other one of 8: 2^-1, 2^-3
ALIBI_6 = [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8]


def visible(spec: ModelSpec, index: int, *, encoder: bool, prefix_len: int) -> Sees:
    """Who sees whom in block `index` of a stack."""
    pattern = spec.window_pattern
    window = spec.window if pattern[index % len(pattern)] == "L" else None

    def sees(s: int, t: int) -> bool:
        if encoder:
            return window is None or abs(s - t) <= window // 2
        if spec.kind == "prefix-decoder" and t < prefix_len:
            return True
        if window is not None and spec.window_kind == "chunked":
            return t <= s and s // window == t // window
        return t <= s and (window is None or s - t < window)

    return sees


def block_rows(
    block: Any, spec: ModelSpec, rows: Rows, sees: Sees, source: Rows | None, **rest: Any
) -> Rows:
    """One block with pre-norm or post-norm."""

    def add_up(rows: Rows, branch: Rows, after: str) -> Rows:
        scaled = [times(y, spec.residual_scale) for y in branch]
        total = [add(x, y) for x, y in zip(rows, scaled, strict=True)]
        return [norm(getattr(block, after), x) for x in total] if post else total

    def normed(rows: Rows, before: str) -> Rows:
        if post or (before == "input_layernorm" and not hasattr(block, before)):
            return rows
        return [norm(getattr(block, before), x) for x in rows]

    post = {"post": True, "pre": False}[spec.norm_placement]
    y = attention(block.self_attn, normed(rows, "input_layernorm"), sees, **rest)
    rows = add_up(rows, y, "self_attention_layernorm")
    if source is not None:
        x = normed(rows, "cross_attention_layernorm")
        y = attention(block.cross_attn, x, lambda s, t: True, source=source)
        rows = add_up(rows, y, "cross_attention_layernorm")
    feed = moe if hasattr(block.mlp, "experts") else ffn
    y = [feed(block.mlp, x) for x in normed(rows, "post_attention_layernorm")]
    return add_up(rows, y, "feedforward_layernorm")


def stack_rows(
    stack: Any,
    spec: ModelSpec,
    rows: Rows,
    *,
    encoder: bool,
    source: Rows | None = None,
    prefix_len: int = 0,
) -> Rows:
    """Positions, embedding norm and projection, blocks, final norm."""
    if spec.position == "learned":
        table = stack.embed_positions.weight.tolist()[spec.position_offset :]
        rows = [add(x, row) for x, row in zip(rows, table, strict=False)]
    if spec.position == "sinusoidal":
        rows = [add(x, sinusoid(p, len(x))) for p, x in enumerate(rows)]
    if spec.embedding_norm:
        rows = [norm(stack.embed_norm, x) for x in rows]
    if spec.d_embedding is not None:
        rows = [linear(stack.embed_proj, x) for x in rows]
    bias = None
    if spec.position == "alibi":
        bias = lambda h, s, t: -ALIBI_6[h] * abs(s - t)  # noqa: E731
    if spec.position == "t5":
        buckets = stack.relative_bias.relative_attention_bias.weight.tolist()
        sizes = (spec.n_buckets or 0, spec.max_distance or 0, encoder)
        bias = lambda h, s, t: buckets[t5_bucket(t - s, *sizes)][h]  # noqa: E731
    for i, block in enumerate(stack.layers):
        queries = None
        if spec.n_query_positions and i == len(stack.layers) - 1:
            queries = stack.embed_queries.weight.tolist()[: len(rows)]
        sees = visible(spec, i, encoder=encoder, prefix_len=prefix_len)
        rows = block_rows(block, spec, rows, sees, source, bias=bias, query_rows=queries)
    return [norm(stack.norm, x) for x in rows] if spec.final_norm else rows


def embedded(model: Any, spec: ModelSpec, tokens: list[int], types: list[int]) -> Rows:
    table = model.embed_tokens.weight.tolist()
    rows = [times(table[token], spec.embedding_scale) for token in tokens]
    if not spec.n_token_types:
        return rows
    kinds = model.embed_types.weight.tolist()
    return [add(x, kinds[kind]) for x, kind in zip(rows, types, strict=True)]


def head(model: Any, spec: ModelSpec, row: Row) -> Row:
    """Logits of one position."""
    if spec.head_transform:
        transform = model.head_transform
        act = SCALAR[spec.activation]
        row = norm(transform.norm, [act(x) for x in linear(transform.dense, row)])
    logits = times(linear(model.lm_head, row), spec.logit_scale)
    cap = spec.logit_softcap
    return logits if cap is None else [cap * math.tanh(x / cap) for x in logits]


def model_rows(
    model: Any,
    spec: ModelSpec,
    tokens: list[int],
    *,
    source: list[int] | None = None,
    types: list[int] | None = None,
    prefix_len: int = 0,
) -> Rows:
    """Last hidden states of one sequence."""
    memory = None
    zeros = [0] * 99
    if source is not None:
        x = embedded(model, spec, source, zeros[: len(source)])
        memory = stack_rows(model.encoder, spec, x, encoder=True)
    x = embedded(model, spec, tokens, types or zeros[: len(tokens)])
    return stack_rows(
        model.last_stack,
        spec,
        x,
        encoder=spec.kind == "encoder",
        source=memory,
        prefix_len=prefix_len,
    )
