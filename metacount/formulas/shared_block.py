"""Blocks of attention and feed-forward that are stored once and used at many layers (Zamba2).

A stored block reads 2·d values, the hidden state and the embedding side by side, and gives d. A
layer that uses it adds to its projections what adapters of rank r_a give, and puts a linear layer
of its own behind it. Parameters are stored once, FLOPs and cache come with each use.

>>> from metacount.formulas.terms import params_of
>>> stored = shared_block_weights(2560, 10240, 32, 32, 160, gated=True)  # Zamba2-2.7B
>>> params_of(stored)
170401280
>>> own = shared_use_weights(2560, 10240, 32, 32, 160, gated=True, adapter_rank=128)
>>> params_of(own)
9502720
>>> 2 * params_of(stored) + 9 * params_of(own)  # two stored blocks, used nine times
426327040
"""

from __future__ import annotations

from metacount.formulas.attention import attention_weights
from metacount.formulas.dim import Dim
from metacount.formulas.ffn import ffn_weights
from metacount.formulas.norm import norm_weights
from metacount.formulas.terms import TOKENS, Weight, matrix


def shared_block_weights(
    d_model: Dim,
    d_ff: Dim,
    n_heads: Dim,
    n_kv_heads: Dim,
    head_dim: Dim,
    *,
    gated: bool,
    ffn_bias: bool = False,
    norm_bias: bool = False,
    norm_affine: bool = True,
    attention_biases: tuple[bool, bool, bool, bool] = (False, False, False, False),
) -> tuple[Weight, ...]:
    """List the tensors of one stored block.

    norm [2·d], q [h·h_d, 2·d], k and v [h_kv·h_d, 2·d], o [d, h·h_d], norm [d], and the
    feed-forward: 2·d·h_d·(h + 2·h_kv) + d·h·h_d + 3·d·m + 3·d where it is gated

    Returns: tensors; `attention_biases` says which of q, k, v and o have one.
    Source: Glorioso et al. 2024, arXiv:2411.15242, sec. 2 and fig. 2; the block that reads both:
    arXiv:2405.16712, eq. 6.

    >>> [weight.shape for weight in shared_block_weights(8, 9, 2, 1, 8, gated=False)][1:4]
    [(16, 16), (8, 16), (8, 16)]
    """
    q, k, v, o = attention_biases
    norms = {"bias": norm_bias, "affine": norm_affine}
    return (
        *norm_weights("input_layernorm", 2 * d_model, **norms),
        *attention_weights(
            d_model,
            n_heads,
            n_kv_heads,
            head_dim,
            q_bias=q,
            k_bias=k,
            v_bias=v,
            o_bias=o,
            d_input=2 * d_model,
        ),
        *norm_weights("pre_ff_layernorm", d_model, **norms),
        *ffn_weights(d_model, d_ff, gated=gated, bias=ffn_bias),
    )


def shared_use_weights(
    d_model: Dim,
    d_ff: Dim,
    n_heads: Dim,
    n_kv_heads: Dim,
    head_dim: Dim,
    *,
    gated: bool,
    adapter_rank: Dim | None = None,
    attention_adapters: bool = False,
) -> tuple[Weight, ...]:
    """List the tensors that a layer has of its own to use a stored block.

    linear [d, d];   with r_a for gate and up together [r_a, d] and [2·m, r_a];
    with attention_adapters [r_a, 2·d] and [h·h_d, r_a] for q, the same with h_kv for k and v

    Returns: tensors; a block without a gate has [m, r_a] for up.
    Source: Glorioso et al. 2024, arXiv:2411.15242, sec. 2 and fig. 2 (adapters).

    >>> [weight.shape for weight in shared_use_weights(8, 9, 2, 1, 8, gated=True, adapter_rank=3)]
    [(8, 8), (3, 8), (18, 3)]
    """
    found = list(matrix("shared_use.linear", "other", (d_model, d_model), TOKENS))
    if adapter_rank is None:
        return tuple(found)
    each = [("gate_up" if gated else "up", "ffn", d_model, (2 if gated else 1) * d_ff)]
    if attention_adapters:
        heads = {"q": n_heads, "k": n_kv_heads, "v": n_kv_heads}
        each += [(name, "attention", 2 * d_model, n * head_dim) for name, n in heads.items()]
    for name, role, width, gives in each:
        place = f"shared_use.adapters.{name}"
        found += matrix(f"{place}.down_proj", role, (adapter_rank, width), TOKENS)
        found += matrix(f"{place}.up_proj", role, (gives, adapter_rank), TOKENS)
    return tuple(found)
