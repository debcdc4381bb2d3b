"""Bytes that a model keeps between tokens: keys and values, and the states of other mixers.

>>> from metacount.catalog import entry
>>> kv_cache_bytes_per_token(entry("llama-7b").spec(), bytes_per_value=2)
524288
"""

from __future__ import annotations

from metacount.formulas import attention, block, stack
from metacount.formulas.dim import Dim
from metacount.formulas.indexed import index_cache_values
from metacount.formulas.recurrent import mixer_of
from metacount.spec import ModelSpec


def kv_cache_bytes_per_token(spec: ModelSpec, *, bytes_per_value: Dim) -> Dim:
    """Count the bytes one token writes into all layers' self-attention caches; 0 for an encoder.

    Windowed layers write too, they only forget later. Cross-attention writes nothing per token, nor
    do layers that read the keys and values of others. The keys of an index are among them.

    Source: `stack.caching_layers`, `block.kv_cache_values`, `index_cache_values`.
    """
    if spec.kind == "encoder":
        return 0
    windowed, full = stack.caching_layers(spec)
    values = (windowed + full) * block.kv_cache_values(spec) + index_cache_values(spec)
    return values * bytes_per_value


def kv_cache_bytes(
    spec: ModelSpec,
    *,
    batch_size: Dim,
    seq_len: Dim,
    bytes_per_value: Dim,
    source_len: Dim | None = None,
) -> Dim:
    """Count the bytes that must be kept after seq_len tokens to go on; 0 for an encoder.

    A windowed layer keeps window - 1 positions at most. With an encoder, the keys and values of
    its source_len (None: seq_len) outputs are kept in every decoder layer too. Nothing of what a
    selection passes over can be dropped: a later token may choose it.

    Source: `block.kv_cache_values`, `attention.cached_positions`, `index_cache_values`,
    `cross_kv_cache_bytes`.
    """
    if spec.kind == "encoder":
        return 0
    windowed, full = stack.caching_layers(spec)
    near = attention.cached_positions(seq_len, window_size(spec))
    values = block.kv_cache_values(spec) * (windowed * near + full * seq_len)
    values += index_cache_values(spec) * seq_len
    source = seq_len if source_len is None else source_len
    return batch_size * values * bytes_per_value + cross_kv_cache_bytes(
        spec, batch_size=batch_size, source_len=source, bytes_per_value=bytes_per_value
    )


def cross_kv_cache_bytes(
    spec: ModelSpec, *, batch_size: Dim, source_len: Dim, bytes_per_value: Dim
) -> Dim:
    """Count the part of `kv_cache_bytes` that cross-attention keeps; 0 without an encoder-decoder.

    Source: `block.kv_cache_values`.
    """
    if not spec.has_encoder:
        return 0
    values = spec.last_stack.n_layers * block.kv_cache_values(spec) * source_len
    return batch_size * values * bytes_per_value


def state_bytes_by_part(
    spec: ModelSpec, *, batch_size: Dim, bytes_per_value: Dim
) -> dict[str, Dim]:
    """Count by kind the bytes that mixers with a state keep between tokens, however many.

    Returns: bytes of every state of the mixer by its name; nothing where no block has one.
    Source: the states of the mixer's topic, see `recurrent.MIXERS`.
    """
    part = spec.last_stack.recurrent
    mixer = mixer_of(part)
    if mixer is None:
        return {}
    copies = batch_size * stack.recurrent_layers(spec)
    return {
        state.name: copies
        * state.size
        * (bytes_per_value if state.bytes_per_value is None else state.bytes_per_value)
        for state in (*mixer.states(part), *mixer.wide_states(part, spec.d_model))
    }


def state_bytes(spec: ModelSpec, *, batch_size: Dim, bytes_per_value: Dim) -> Dim:
    """Count the bytes that mixers with a state keep between tokens, convolutions included.

    Source: `state_bytes_by_part`.
    """
    parts = state_bytes_by_part(spec, batch_size=batch_size, bytes_per_value=bytes_per_value)
    return sum(parts.values())


def window_size(spec: ModelSpec) -> Dim | None:
    """Count the positions that a windowed layer sees; None where there is no window."""
    window = spec.last_stack.attention.window
    return None if window is None else window.size
