"""A whole model: its blocks, as many as there are of each kind, and its two ends.

>>> from metacount.spec import ModelSpec
>>> llama = ModelSpec(
...     kind="decoder", d_model=4096, n_layers=32, vocab_size=32000, n_heads=32, n_kv_heads=32,
...     head_dim=128, d_ff=11008, activation="silu", gated=True, norm="rmsnorm", position="rope")
>>> params(llama)  # LLaMA-7B
6738415616
>>> params_by_role(llama)  # doctest: +NORMALIZE_WHITESPACE
{'embedding': 131072000, 'position': 0, 'attention': 2147483648, 'recurrent': 0,
 'ffn': 4328521728, 'moe': 0, 'norm': 266240, 'head': 131072000, 'other': 0}
>>> active_params(llama), active_params_no_embed(llama), buffers(llama)
(6738415616, 6607343616, {'selection_bias': 0})
>>> matmul_flops(llama, batch_size=1, seq_len=128)
1700001742848
>>> causal_matmul_flops(llama, batch_size=1, seq_len=128)
1695740329984
>>> decode_matmul_flops(llama, batch_size=1, kv_len=128)
13281263616
>>> kv_cache_bytes_per_token(llama, bytes_per_value=2)
524288
>>> kv_cache_bytes(llama, batch_size=1, seq_len=2048, bytes_per_value=2)
1073741824
>>> param_bytes(llama, bytes_per_value=2)
13476831232

Sizes may be symbols (`spec.substituted`); the structure - kinds and flags - is always concrete.
"""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.formulas import attention, block, ends, stack
from metacount.formulas.dim import Dim, is_zero
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
    Product,
    Weight,
    by_role,
)
from metacount.spec import ModelSpec

ROLES = ("embedding", "position", "attention", "recurrent", "ffn", "moe", "norm", "head", "other")


def weights(spec: ModelSpec) -> tuple[Weight, ...]:
    """Every tensor of the model, each kind once with the number of its copies.

    Source: `stack.stack_weights`, `ends.end_weights`.
    """
    found: list[Weight] = []
    for n_layers, cross in stack.stacks(spec):
        found += stack.stack_weights(spec, n_layers, cross=cross)
    return (*found, *ends.end_weights(spec))


def products(spec: ModelSpec, *, decode: bool = False) -> tuple[Product, ...]:
    """Every product of activations that a forward, or one step of decoding, computes.

    Source: `stack.stack_products`, `ends.end_products`.
    """
    found: list[Product] = []
    for n_layers, cross in stack.stacks(spec):
        found += stack.stack_products(spec, n_layers, cross=cross, decode=decode)
    return (*found, *ends.end_products(spec))


def params_by_role(spec: ModelSpec) -> dict[str, Dim]:
    """Distinct stored parameters by role, tied ones once.

    Returns: every role in order; their sum is `params`.
    Source: the blocks of `block.block_params` and the two ends.
    """
    return _params_by_role(spec, active=False)


def params(spec: ModelSpec) -> Dim:
    """Distinct stored parameters, tied ones once.

    Source: `params_by_role`.
    """
    return sum(params_by_role(spec).values())


def active_params_by_role(spec: ModelSpec) -> dict[str, Dim]:
    """Parameters used for one token by role: top_k of the experts, everything else whole.

    Returns: every role in order; their sum is `active_params`.
    Source: `params_by_role`, with the MoE layers of `moe.moe_active_params`.
    """
    return _params_by_role(spec, active=True)


def active_params(spec: ModelSpec) -> Dim:
    """Parameters used for one token, the whole token table included.

    Source: `active_params_by_role`.
    """
    return sum(active_params_by_role(spec).values())


def active_params_no_embed(spec: ModelSpec) -> Dim:
    """Parameters used for one token, without a token table that is only looked up.

    A tied table stays: the head multiplies with it. Token-type and position tables stay.

    Source: `active_params`.
    """
    tied = spec.head is not None and spec.head.tied
    looked_up = 0 if tied else ends.token_table_params(spec)
    return active_params(spec) - looked_up


def buffers(spec: ModelSpec) -> dict[str, Dim]:
    """Stored values that are not parameters: one selection bias per expert of each MoE layer.

    Source: DeepSeek-V3, arXiv:2412.19437, eq. 16, their b_i.
    """
    values = 0
    mixture = spec.last_stack.mixture
    if mixture is not None and mixture.selection_bias:
        values = sum(stack.moe_layers(spec, n) * mixture.n_experts for n, _ in stack.stacks(spec))
    return {"selection_bias": values}


def matmul_flops_by_role(
    spec: ModelSpec, *, batch_size: Dim, seq_len: Dim, source_len: Dim | None = None
) -> dict[str, Dim]:
    """FLOPs of a forward by role, attention counted in full, logits for all positions.

    2 per multiply-add. MLA in its expanded form. An encoder-decoder reads source_len tokens
    (None: seq_len) and writes seq_len.

    Returns: every role in order, exact.
    Source: the functions of `block.py`, and the head.
    Not counted: softmax, norms, activations, rotary embedding, routing, biases, embedding look-up.
    """
    full = seq_len * seq_len
    return _forward_flops(spec, batch_size, seq_len, source_len, full, full)


def matmul_flops(
    spec: ModelSpec, *, batch_size: Dim, seq_len: Dim, source_len: Dim | None = None
) -> Dim:
    """FLOPs of a forward, attention counted in full. See `matmul_flops_by_role`."""
    by_role = matmul_flops_by_role(
        spec, batch_size=batch_size, seq_len=seq_len, source_len=source_len
    )
    return sum(by_role.values())


def causal_matmul_flops_by_role(
    spec: ModelSpec,
    *,
    batch_size: Dim,
    seq_len: Dim,
    source_len: Dim | None = None,
    prefix_len: Dim = 0,
) -> dict[str, Dim]:
    """FLOPs of a forward by role, the attention products only over pairs that the mask keeps.

    A prefix-decoder sees its first prefix_len tokens in both directions.

    Returns: every role in order, exact.
    Source: `matmul_flops_by_role`, with the pairs of `attention.self_attention_pairs`.
    Not counted: softmax, norms, activations, rotary embedding, routing, biases, embedding look-up.
    """
    _check_prefix(spec, prefix_len, seq_len)
    near = spec.last_stack.attention.window
    all_seen, windowed = (
        attention.self_attention_pairs(
            spec.kind,
            seq_len,
            window=window and window.size,
            chunked=window is not None and window.kind == "chunked",
            prefix_len=prefix_len,
        )
        for window in (None, near)
    )
    return _forward_flops(spec, batch_size, seq_len, source_len, all_seen, windowed)


def causal_matmul_flops(
    spec: ModelSpec,
    *,
    batch_size: Dim,
    seq_len: Dim,
    source_len: Dim | None = None,
    prefix_len: Dim = 0,
) -> Dim:
    """FLOPs of a forward over the pairs that the mask keeps. See `causal_matmul_flops_by_role`."""
    by_role = causal_matmul_flops_by_role(
        spec,
        batch_size=batch_size,
        seq_len=seq_len,
        source_len=source_len,
        prefix_len=prefix_len,
    )
    return sum(by_role.values())


def decode_matmul_flops_by_role(
    spec: ModelSpec, *, batch_size: Dim, kv_len: Dim, source_len: Dim | None = None
) -> dict[str, Dim]:
    """FLOPs by role of one more token per sequence, attending to kv_len positions, itself included.

    MLA in its absorbed form. A windowed layer attends min(kv_len, window) positions; a
    cross-attention source_len (None: kv_len) cached ones, and the encoder does not run again.
    Transformer-XL projects the sinusoids of its positions again.

    Returns: every role in order, exact.
    Source: `matmul_flops_by_role`, with one query per sequence.
    Not counted: softmax, norms, activations, rotary embedding, routing, biases, embedding look-up.
    """
    if spec.kind == "encoder":
        raise SpecError("kind", "has no decode step", spec.kind, "choose a decoder")
    source = kv_len if source_len is None else source_len
    near = attention.attended_positions(kv_len, _window(spec))
    run = {
        TOKENS: batch_size,
        SOURCE: 0,
        CACHED: batch_size,
        SEQUENCES: 0,
        POSITIONS: kv_len,
        WINDOWED_POSITIONS: near,
        PAIRS: batch_size * kv_len,
        WINDOWED_PAIRS: batch_size * near,
        CROSS_PAIRS: batch_size * source,
        SOURCE_PAIRS: 0,
    }
    part = spec.last_stack.recurrent
    mixer = mixer_of(part)
    run |= {} if mixer is None else mixer.decode_run(part, batch_size)
    return _flops_by_role(spec, run, decode=True)


def decode_matmul_flops(
    spec: ModelSpec, *, batch_size: Dim, kv_len: Dim, source_len: Dim | None = None
) -> Dim:
    """FLOPs of one more token per sequence. See `decode_matmul_flops_by_role`."""
    by_role = decode_matmul_flops_by_role(
        spec, batch_size=batch_size, kv_len=kv_len, source_len=source_len
    )
    return sum(by_role.values())


def kv_cache_bytes_per_token(spec: ModelSpec, *, bytes_per_value: Dim) -> Dim:
    """Bytes that one token writes into the caches of all layers' self-attention; 0 for an encoder.

    Windowed layers write too, they only forget later. Cross-attention writes nothing per token.

    Source: `block.kv_cache_values`.
    """
    if spec.kind == "encoder":
        return 0
    windowed, full = stack.attention_layers(spec)
    return (windowed + full) * block.kv_cache_values(spec) * bytes_per_value


def kv_cache_bytes(
    spec: ModelSpec,
    *,
    batch_size: Dim,
    seq_len: Dim,
    bytes_per_value: Dim,
    source_len: Dim | None = None,
) -> Dim:
    """Bytes that must be kept after seq_len tokens, to be able to go on; 0 for an encoder.

    A windowed layer keeps window - 1 positions at most. With an encoder, the keys and values of
    its source_len (None: seq_len) outputs are kept in every decoder layer too.

    Source: `block.kv_cache_values`, `attention.cached_positions`, `cross_kv_cache_bytes`.
    """
    if spec.kind == "encoder":
        return 0
    windowed, full = stack.attention_layers(spec)
    near = attention.cached_positions(seq_len, _window(spec))
    values = block.kv_cache_values(spec) * (windowed * near + full * seq_len)
    source = seq_len if source_len is None else source_len
    return batch_size * values * bytes_per_value + cross_kv_cache_bytes(
        spec, batch_size=batch_size, source_len=source, bytes_per_value=bytes_per_value
    )


def cross_kv_cache_bytes(
    spec: ModelSpec, *, batch_size: Dim, source_len: Dim, bytes_per_value: Dim
) -> Dim:
    """The part of `kv_cache_bytes` that cross-attention keeps; 0 without an encoder-decoder.

    Source: `block.kv_cache_values`.
    """
    if not spec.has_encoder:
        return 0
    values = spec.last_stack.n_layers * block.kv_cache_values(spec) * source_len
    return batch_size * values * bytes_per_value


def state_bytes_by_part(
    spec: ModelSpec, *, batch_size: Dim, bytes_per_value: Dim
) -> dict[str, Dim]:
    """Bytes that mixers with a state keep between tokens, however many there were, by kind.

    Returns: bytes of every state of the mixer by its name; nothing where no block has one.
    Source: the states of the mixer's topic, see `recurrent.MIXERS`.
    """
    part = spec.last_stack.recurrent
    mixer = mixer_of(part)
    if mixer is None:
        return {}
    copies = batch_size * stack.recurrent_layers(spec)
    return {
        state.name: copies * state.size
        * (bytes_per_value if state.bytes_per_value is None else state.bytes_per_value)
        for state in mixer.states(part)
    }  # fmt: skip


def state_bytes(spec: ModelSpec, *, batch_size: Dim, bytes_per_value: Dim) -> Dim:
    """Bytes that mixers with a state keep between tokens, convolutions included.

    Source: `state_bytes_by_part`.
    """
    parts = state_bytes_by_part(spec, batch_size=batch_size, bytes_per_value=bytes_per_value)
    return sum(parts.values())


def param_bytes(spec: ModelSpec, *, bytes_per_value: Dim) -> Dim:
    """Bytes of the stored parameters; buffers not included.

    Source: `params`.
    """
    return params(spec) * bytes_per_value


def _window(spec: ModelSpec) -> Dim | None:
    window = spec.last_stack.attention.window
    return None if window is None else window.size


def _params_by_role(spec: ModelSpec, *, active: bool) -> dict[str, Dim]:
    return by_role(weights(spec), lambda one: one.active if active else one.params, ROLES)


def _check_prefix(spec: ModelSpec, prefix_len: Dim, seq_len: Dim) -> None:
    if spec.kind != "prefix-decoder" and not is_zero(prefix_len):
        raise SpecError("prefix_len", "belongs to a prefix-decoder", prefix_len, "leave it out")
    if isinstance(prefix_len, int) and isinstance(seq_len, int) and prefix_len > seq_len:
        raise SpecError("prefix_len", "must be at most seq_len", prefix_len,
                        f"choose 0 to {seq_len}")  # fmt: skip


def _forward_flops(
    spec: ModelSpec,
    batch_size: Dim,
    seq_len: Dim,
    source_len: Dim | None,
    full_pairs: Dim,
    windowed_pairs: Dim,
) -> dict[str, Dim]:
    source = seq_len if source_len is None else source_len
    run = {
        TOKENS: batch_size * seq_len,
        SOURCE: batch_size * source,
        CACHED: batch_size * seq_len,
        SEQUENCES: batch_size,
        POSITIONS: seq_len,
        WINDOWED_POSITIONS: seq_len,
        PAIRS: batch_size * full_pairs,
        WINDOWED_PAIRS: batch_size * windowed_pairs,
        CROSS_PAIRS: batch_size * seq_len * source,
        SOURCE_PAIRS: batch_size * source * source,
    }
    part = spec.last_stack.recurrent
    mixer = mixer_of(part)
    run |= {} if mixer is None else mixer.run(part, batch_size, seq_len)
    return _flops_by_role(spec, run, decode=False)


def _flops_by_role(spec: ModelSpec, run: dict[str, Dim], *, decode: bool) -> dict[str, Dim]:
    terms = (*weights(spec), *products(spec, decode=decode))
    return by_role(terms, lambda term: term.flops(run), ROLES)
