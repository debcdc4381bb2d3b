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
from metacount.formulas import around, ends, stack
from metacount.formulas.caches import cross_kv_cache_bytes as cross_kv_cache_bytes
from metacount.formulas.caches import kv_cache_bytes as kv_cache_bytes
from metacount.formulas.caches import kv_cache_bytes_per_token as kv_cache_bytes_per_token
from metacount.formulas.caches import state_bytes as state_bytes
from metacount.formulas.caches import state_bytes_by_part as state_bytes_by_part
from metacount.formulas.dim import Dim, exact_div, is_zero, smaller
from metacount.formulas.runs import decode_run as decode_run
from metacount.formulas.runs import forward_run as forward_run
from metacount.formulas.runs import kept_pairs as kept_pairs
from metacount.formulas.terms import Product, Weight, by_role
from metacount.spec import ModelSpec

ROLES = ("embedding", "position", "attention", "recurrent", "ffn", "moe", "norm", "head", "other")


def weights(spec: ModelSpec) -> tuple[Weight, ...]:
    """List every tensor of the model, each kind once with the number of its copies.

    Source: `stack.stack_weights`, `ends.end_weights`.
    """
    found: list[Weight] = []
    for n_layers, cross in stack.stacks(spec):
        found += stack.stack_weights(spec, n_layers, cross=cross)
    return (*found, *ends.end_weights(spec))


def products(spec: ModelSpec, *, decode: bool = False) -> tuple[Product, ...]:
    """List every product of activations that a forward, or one step of decoding, computes.

    Source: `stack.stack_products`, `ends.end_products`.
    """
    found: list[Product] = []
    for n_layers, cross in stack.stacks(spec):
        found += stack.stack_products(spec, n_layers, cross=cross, decode=decode)
    return (*found, *ends.end_products(spec))


def params_by_role(spec: ModelSpec) -> dict[str, Dim]:
    """Count the distinct stored parameters by role, tied ones once.

    Returns: every role in order; their sum is `params`.
    Source: the blocks of `block.block_params` and the two ends.
    """
    return _params_by_role(spec, active=False)


def params(spec: ModelSpec) -> Dim:
    """Count the distinct stored parameters, tied ones once.

    Source: `params_by_role`.
    """
    return sum(params_by_role(spec).values())


def active_params_by_role(spec: ModelSpec) -> dict[str, Dim]:
    """Count the parameters used for one token by role: top_k of the experts, everything else whole.

    The most, where there are zero experts: `least_active_params` has the least.

    Returns: every role in order; their sum is `active_params`.
    Source: `params_by_role`, with the MoE layers of `moe.moe_active_params`.
    """
    return _params_by_role(spec, active=True)


def active_params(spec: ModelSpec) -> Dim:
    """Count the parameters used for one token, the whole token table included.

    Source: `active_params_by_role`.
    """
    return sum(active_params_by_role(spec).values())


def active_params_no_embed(spec: ModelSpec) -> Dim:
    """Count the parameters used for one token, without a token table that is only looked up.

    A tied table stays: the head multiplies with it. Token-type and position tables stay. The table
    of each layer's own embeddings, which tokens look up, goes like a token table.

    Source: `active_params`.
    """
    tied = spec.head is not None and spec.head.tied
    looked_up = 0 if tied else ends.token_table_params(spec)
    return active_params(spec) - looked_up - around.layer_table_params(spec)


def least_active_params(spec: ModelSpec) -> Dim:
    """Count the parameters used for one token that chooses as many zero experts as it can.

    `active_params` less min(k, E_z) of its k experts in each MoE layer; the same where E_z is 0

    Source: LongCat-Flash, arXiv:2509.01322, sec. 2.1.

    >>> from metacount.catalog import entry
    >>> longcat = entry("longcat-flash").spec()
    >>> active_params(longcat), least_active_params(longcat)
    (32182654976, 19499079680)
    """
    mixture = spec.last_stack.mixture
    if mixture is None or mixture.zero is None:
        return active_params(spec)
    k, given_back = mixture.top_k, smaller(mixture.top_k, mixture.zero.n_experts)
    chosen = sum(one.active for one in weights(spec) if one.used is not None)
    return active_params(spec) - exact_div(chosen, k) * given_back


def buffers(spec: ModelSpec) -> dict[str, Dim]:
    """Count stored values that are not parameters: one selection bias per score of each MoE layer.

    Source: DeepSeek-V3, arXiv:2412.19437, eq. 16, their b_i.
    """
    values = 0
    mixture = spec.last_stack.mixture
    if mixture is not None and mixture.selection_bias:
        values = sum(stack.moe_layers(spec, n) * mixture.n_scores for n, _ in stack.stacks(spec))
    return {"selection_bias": values}


def matmul_flops_by_role(
    spec: ModelSpec, *, batch_size: Dim, seq_len: Dim, source_len: Dim | None = None
) -> dict[str, Dim]:
    """Count the FLOPs of a forward by role, attention counted in full, logits for all positions.

    2 per multiply-add. MLA in its expanded form. An encoder-decoder reads source_len tokens
    (None: seq_len) and writes seq_len.

    Returns: every role in order, exact.
    Source: the functions of `block.py`, and the head.
    Not counted: softmax, norms, activations, rotary embedding, routing, biases, embedding look-up.
    """
    run = forward_run(spec, batch_size=batch_size, seq_len=seq_len, source_len=source_len)
    return _flops_by_role(spec, run, decode=False)


def matmul_flops(
    spec: ModelSpec, *, batch_size: Dim, seq_len: Dim, source_len: Dim | None = None
) -> Dim:
    """Count the FLOPs of a forward, attention counted in full. See `matmul_flops_by_role`."""
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
    """Count the FLOPs of a forward by role, attention products only over pairs that the mask keeps.

    A prefix-decoder sees its first prefix_len tokens in both directions.

    Returns: every role in order, exact.
    Source: `matmul_flops_by_role`, with the pairs of `attention.self_attention_pairs`.
    Not counted: softmax, norms, activations, rotary embedding, routing, biases, embedding look-up.
    """
    _check_prefix(spec, prefix_len, seq_len)
    pairs = kept_pairs(spec, seq_len, prefix_len)
    run = forward_run(
        spec, batch_size=batch_size, seq_len=seq_len, source_len=source_len, pairs=pairs
    )
    return _flops_by_role(spec, run, decode=False)


def causal_matmul_flops(
    spec: ModelSpec,
    *,
    batch_size: Dim,
    seq_len: Dim,
    source_len: Dim | None = None,
    prefix_len: Dim = 0,
) -> Dim:
    """Count a forward's FLOPs over pairs that the mask keeps. See `causal_matmul_flops_by_role`."""
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
    """Count by role the FLOPs of one more token per sequence at kv_len positions, itself included.

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
    run = decode_run(spec, batch_size=batch_size, kv_len=kv_len, source_len=source)
    return _flops_by_role(spec, run, decode=True)


def decode_matmul_flops(
    spec: ModelSpec, *, batch_size: Dim, kv_len: Dim, source_len: Dim | None = None
) -> Dim:
    """Count the FLOPs of one more token per sequence. See `decode_matmul_flops_by_role`."""
    by_role = decode_matmul_flops_by_role(
        spec, batch_size=batch_size, kv_len=kv_len, source_len=source_len
    )
    return sum(by_role.values())


def param_bytes(spec: ModelSpec, *, bytes_per_value: Dim) -> Dim:
    """Count the bytes of the stored parameters; buffers not included.

    Source: `params`.
    """
    return params(spec) * bytes_per_value


def _params_by_role(spec: ModelSpec, *, active: bool) -> dict[str, Dim]:
    return by_role(weights(spec), lambda one: one.active if active else one.params, ROLES)


def _check_prefix(spec: ModelSpec, prefix_len: Dim, seq_len: Dim) -> None:
    if spec.kind != "prefix-decoder" and not is_zero(prefix_len):
        raise SpecError("prefix_len", "belongs to a prefix-decoder", prefix_len, "leave it out")
    if isinstance(prefix_len, int) and isinstance(seq_len, int) and prefix_len > seq_len:
        raise SpecError(
            "prefix_len", "must be at most seq_len", prefix_len, f"choose 0 to {seq_len}"
        )


def _flops_by_role(spec: ModelSpec, run: dict[str, Dim], *, decode: bool) -> dict[str, Dim]:
    terms: tuple[Weight | Product, ...] = (*weights(spec), *products(spec, decode=decode))
    return by_role(terms, lambda term: term.flops(run), ROLES)
