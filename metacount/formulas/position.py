"""Position information that has parameters: learned tables, T5's buckets, Transformer-XL's vectors.

Sinusoids, RoPE and ALiBi have none and multiply no matrices.
"""

from __future__ import annotations

from metacount.formulas.dim import Dim
from metacount.formulas.terms import (
    PAIRS,
    POSITIONS,
    Product,
    Weight,
    flops_of,
    params_of,
)


def learned_table_params(n_positions: Dim, d_model: Dim) -> Dim:
    """Count the parameters of a learned table with one row per position.

    [n_positions, d]

    Returns: parameters, exact.
    Source: Radford et al. 2018 (GPT), sec. 3.1, their W_p; GPT-2 the same.

    >>> learned_table_params(1024, 1024)  # GPT-2 medium
    1048576
    """
    return n_positions * d_model


def t5_bias_params(n_buckets: Dim, n_heads: Dim) -> Dim:
    """Count the parameters of T5's relative position biases, one table for all layers of a stack.

    [n_buckets, h]

    Returns: parameters, exact.
    Source: Raffel et al. 2019, arXiv:1910.10683, sec. 2.1.

    >>> t5_bias_params(32, 128)  # T5 11B, one stack
    4096
    """
    return n_buckets * n_heads


def transformer_xl_weights(d_model: Dim, n_heads: Dim, head_dim: Dim) -> tuple[Weight, ...]:
    """List the tensors of Transformer-XL's relative positions in one block.

    projection of the sinusoids [h·h_d, d], the vectors u and v [h, h_d]

    Returns: tensors; what the projection multiplies is among `transformer_xl_products`.
    Source: as `transformer_xl_params`.

    >>> [weight.shape for weight in transformer_xl_weights(16384, 128, 128)]  # Gopher 280B
    [(16384, 16384), (128, 128), (128, 128)]
    """
    shapes: dict[str, tuple[Dim, ...]] = {
        "r_proj.weight": (n_heads * head_dim, d_model),
        "content_bias": (n_heads, head_dim),
        "position_bias": (n_heads, head_dim),
    }
    return tuple(
        Weight(role="position", name=f"self_attn.relative.{name}", shape=shape)
        for name, shape in shapes.items()
    )


def transformer_xl_products(
    d_model: Dim, n_heads: Dim, head_dim: Dim, *, pairs: str = PAIRS, positions: str = POSITIONS
) -> tuple[Product, ...]:
    """List the products of Transformer-XL's relative positions in one block.

    d·h·h_d multiply-adds to project the sinusoids of one distance, h·h_d for a pair's second score

    Returns: products of one layer.
    Source: as `transformer_xl_projection_flops` and `transformer_xl_score_flops`.

    >>> for product in transformer_xl_products(16384, 128, 128):  # Gopher 280B
    ...     print(product.width, product.per)
    268435456 positions
    16384 pairs of positions
    """
    width = n_heads * head_dim
    return (
        Product(
            role="position",
            name="projection of the relative positions",
            width=d_model * width,
            per=positions,
        ),
        Product(role="position", name="scores of the relative positions", width=width, per=pairs),
    )


def transformer_xl_params(d_model: Dim, n_heads: Dim, head_dim: Dim) -> Dim:
    """Count the parameters of Transformer-XL's relative positions in one block.

    projection of the sinusoids [h·h_d, d] + the vectors u and v [h, h_d] = (d + 2)·h·h_d

    Returns: parameters, exact.
    Source: Dai et al. 2019, arXiv:1901.02860, sec. 3.3, their W_k,R, u and v.

    >>> transformer_xl_params(16384, 128, 128)  # Gopher 280B
    268468224
    """
    return params_of(transformer_xl_weights(d_model, n_heads, head_dim))


def transformer_xl_projection_flops(n_keys: Dim, d_model: Dim, n_heads: Dim, head_dim: Dim) -> Dim:
    """Count the FLOPs of projecting the sinusoids of n_keys distances in one block.

    [n_keys, d] @ [d, h·h_d], once per forward, not per sequence: 2·n_keys·d·h·h_d

    Returns: FLOPs of the forward, exact.
    Source: Dai et al. 2019, arXiv:1901.02860, sec. 3.3 and appendix B, W_k,R · R.
    Not counted: the sinusoids.

    >>> transformer_xl_projection_flops(128, 16384, 128, 128)  # Gopher 280B, 128 tokens
    68719476736
    """
    projection, _ = transformer_xl_products(d_model, n_heads, head_dim)
    return flops_of([projection], {POSITIONS: n_keys})


def transformer_xl_score_flops(n_pairs: Dim, n_heads: Dim, head_dim: Dim) -> Dim:
    """Count the FLOPs of the second product of the scores, queries with projected distances.

    per head and pair of positions, 2 FLOPs per multiply-add × h_d = 2·n_pairs·h·h_d

    Returns: FLOPs of the forward, exact.
    Source: Dai et al. 2019, arXiv:1901.02860, sec. 3.3, terms (b) and (d).
    Not counted: adding u and v, the shift.

    >>> transformer_xl_score_flops(128 * 128, 128, 128)  # Gopher 280B, 128 tokens
    536870912
    """
    _, scores = transformer_xl_products(0, n_heads, head_dim)
    return flops_of([scores], {PAIRS: n_pairs})
