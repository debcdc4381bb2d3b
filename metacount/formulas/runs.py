"""What a run multiplies: the numbers behind the words of `terms`, of a forward and of a step.

>>> from metacount.catalog import entry
>>> forward_run(entry("llama-7b").spec(), batch_size=2, seq_len=128)["tokens"]
256
"""

from __future__ import annotations

from metacount.formulas import attention
from metacount.formulas.caches import window_size
from metacount.formulas.dim import Dim
from metacount.formulas.recurrent import mixer_of
from metacount.formulas.terms import (
    CACHED,
    CROSS_PAIRS,
    PAIRS,
    POSITIONS,
    SEQUENCES,
    SOURCE,
    SOURCE_PAIRS,
    TOKENS,
    WINDOWED_PAIRS,
    WINDOWED_POSITIONS,
)
from metacount.spec import ModelSpec


def forward_run(
    spec: ModelSpec,
    *,
    batch_size: Dim,
    seq_len: Dim,
    source_len: Dim | None = None,
    pairs: tuple[Dim, Dim] | None = None,
) -> dict[str, Dim]:
    """Count what the words of `terms` stand for in a forward.

    `pairs`: of one sequence, where everything is seen and where a window is; None: seq_len² each.

    Returns: what `Weight.flops` and `Product.flops` take.
    """
    source = seq_len if source_len is None else source_len
    full, windowed = (seq_len * seq_len,) * 2 if pairs is None else pairs
    run = {
        TOKENS: batch_size * seq_len,
        SOURCE: batch_size * source,
        CACHED: batch_size * seq_len,
        SEQUENCES: batch_size,
        POSITIONS: seq_len,
        WINDOWED_POSITIONS: seq_len,
        PAIRS: batch_size * full,
        WINDOWED_PAIRS: batch_size * windowed,
        CROSS_PAIRS: batch_size * seq_len * source,
        SOURCE_PAIRS: batch_size * source * source,
    }
    part = spec.last_stack.recurrent
    mixer = mixer_of(part)
    return run if mixer is None else {**run, **mixer.run(part, batch_size, seq_len)}


def decode_run(spec: ModelSpec, *, batch_size: Dim, kv_len: Dim, source_len: Dim) -> dict[str, Dim]:
    """Count what the words of `terms` stand for in a step of decoding.

    Returns: what `Weight.flops` and `Product.flops` take.
    """
    near = attention.attended_positions(kv_len, window_size(spec))
    run = {
        TOKENS: batch_size,
        SOURCE: 0,
        CACHED: batch_size,
        POSITIONS: kv_len,
        WINDOWED_POSITIONS: near,
        PAIRS: batch_size * kv_len,
        WINDOWED_PAIRS: batch_size * near,
        CROSS_PAIRS: batch_size * source_len,
        SOURCE_PAIRS: 0,
    }
    part = spec.last_stack.recurrent
    mixer = mixer_of(part)
    return run if mixer is None else {**run, **mixer.decode_run(part, batch_size)}


def kept_pairs(spec: ModelSpec, seq_len: Dim, prefix_len: Dim) -> tuple[Dim, Dim]:
    """Count one sequence's pairs that the mask keeps: where everything is seen, and in a window.

    Source: `attention.self_attention_pairs`.
    """
    near = spec.last_stack.attention.window
    everything, windowed = (
        attention.self_attention_pairs(
            spec.kind,
            seq_len,
            window=window and window.size,
            chunked=window is not None and window.kind == "chunked",
            prefix_len=prefix_len,
        )
        for window in (None, near)
    )
    return everything, windowed
