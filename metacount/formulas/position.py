"""Position information that has parameters: learned tables, T5's buckets, Transformer-XL's vectors.

Sinusoids, RoPE and ALiBi have none and multiply no matrices.
"""

from __future__ import annotations

from metacount.formulas.dim import Dim


def learned_table_params(n_positions: Dim, d_model: Dim) -> Dim:
    """Parameters of a learned table with one row per position.

    [n_positions, d]

    Returns: parameters, exact.
    Source: Radford et al. 2018 (GPT), sec. 3.1, their W_p; GPT-2 the same.

    >>> learned_table_params(1024, 1024)  # GPT-2 medium
    1048576
    """
    return n_positions * d_model


def t5_bias_params(n_buckets: Dim, n_heads: Dim) -> Dim:
    """Parameters of T5's relative position biases, one table for all layers of a stack.

    [n_buckets, h]

    Returns: parameters, exact.
    Source: Raffel et al. 2019, arXiv:1910.10683, sec. 2.1.

    >>> t5_bias_params(32, 128)  # T5 11B, one stack
    4096
    """
    return n_buckets * n_heads


def transformer_xl_params(d_model: Dim, n_heads: Dim, head_dim: Dim) -> Dim:
    """Parameters of Transformer-XL's relative positions in one block.

    projection of the sinusoids [h·h_d, d] + the vectors u and v [h, h_d] = (d + 2)·h·h_d

    Returns: parameters, exact.
    Source: Dai et al. 2019, arXiv:1901.02860, sec. 3.3, their W_k,R, u and v.

    >>> transformer_xl_params(16384, 128, 128)  # Gopher 280B
    268468224
    """
    return (d_model + 2) * n_heads * head_dim


def transformer_xl_projection_flops(n_keys: Dim, d_model: Dim, n_heads: Dim, head_dim: Dim) -> Dim:
    """FLOPs of projecting the sinusoids of n_keys distances in one block.

    [n_keys, d] @ [d, h·h_d], once per forward, not per sequence: 2·n_keys·d·h·h_d

    Returns: FLOPs of the forward, exact.
    Source: Dai et al. 2019, arXiv:1901.02860, sec. 3.3 and appendix B, W_k,R · R.
    Not counted: the sinusoids.

    >>> transformer_xl_projection_flops(128, 16384, 128, 128)  # Gopher 280B, 128 tokens
    68719476736
    """
    return 2 * n_keys * d_model * n_heads * head_dim


def transformer_xl_score_flops(n_pairs: Dim, n_heads: Dim, head_dim: Dim) -> Dim:
    """FLOPs of the second product of the scores, queries with projected distances.

    per head and pair of positions, 2 FLOPs per multiply-add × h_d = 2·n_pairs·h·h_d

    Returns: FLOPs of the forward, exact.
    Source: Dai et al. 2019, arXiv:1901.02860, sec. 3.3, terms (b) and (d).
    Not counted: adding u and v, the shift.

    >>> transformer_xl_score_flops(128 * 128, 128, 128)  # Gopher 280B, 128 tokens
    536870912
    """
    return 2 * n_pairs * n_heads * head_dim
