"""Multi-head latent attention: keys and values of all heads from one cached latent.

The paper's letters: d_c is our kv_lora_rank, d_c' our q_lora_rank (r_q here), d_h our
qk_nope_head_dim (d_n) and our v_head_dim (d_v), d_h^R our qk_rope_head_dim (d_r), n_h our n_heads.
"""

from __future__ import annotations

from metacount.formulas.dim import Dim, when


def mla_params(
    d_model: Dim,
    n_heads: Dim,
    *,
    q_lora_rank: Dim | None,
    kv_lora_rank: Dim,
    qk_nope_head_dim: Dim,
    qk_rope_head_dim: Dim,
    v_head_dim: Dim,
    bias: bool = False,
) -> Dim:
    """Parameters of one MLA layer.

    q_a [r_q, d] + q_b [h·(d_n + d_r), r_q], or q [h·(d_n + d_r), d] without q_lora_rank
    + kv_a [d_c + d_r, d] + kv_b [h·(d_n + d_v), d_c] + o [d, h·d_v]
    (+ r_q + (d_c + d_r) + d with biases, on q_a, kv_a and o)

    Returns: parameters, exact; without the two latent norms, see `norm.latent_norm_params`.
    Source: DeepSeek-V2, arXiv:2405.04434, eq. 37-47 (appendix); the letters are above.

    >>> mla_params(7168, 128, q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128,
    ...            qk_rope_head_dim=64, v_head_dim=128)  # DeepSeek-V3
    187105280
    """
    q_width = n_heads * (qk_nope_head_dim + qk_rope_head_dim)
    kv_a_width = kv_lora_rank + qk_rope_head_dim
    kv_b = kv_lora_rank * n_heads * (qk_nope_head_dim + v_head_dim)
    o = n_heads * v_head_dim * d_model
    if q_lora_rank is None:
        q = d_model * q_width
        q_a_width = 0
    else:
        q = q_lora_rank * (d_model + q_width)
        q_a_width = q_lora_rank
    biases = when(bias, q_a_width + kv_a_width + d_model)
    return q + d_model * kv_a_width + kv_b + o + biases


def mla_matmul_flops(
    n_tokens: Dim,
    n_pairs: Dim,
    d_model: Dim,
    n_heads: Dim,
    *,
    q_lora_rank: Dim | None,
    kv_lora_rank: Dim,
    qk_nope_head_dim: Dim,
    qk_rope_head_dim: Dim,
    v_head_dim: Dim,
    absorbed: bool,
    n_kv_tokens: Dim | None = None,
) -> Dim:
    """FLOPs of one MLA layer over n new tokens and n_pairs pairs of positions.

    2 FLOPs per multiply-add × (projections + pairs), in one of two forms of the same layer:

    both:      q (or q_a and q_b), kv_a and o over the n new tokens
    expanded:  kv_b over every cached token, n_kv·d_c·h·(d_n + d_v);
               per pair and head, d_n + d_r for the score, d_v for the sum
    absorbed:  kv_b's two halves move to the query and the output side of the new tokens,
               n·h·d_n·d_c + n·h·d_c·d_v;
               per pair and head, d_c + d_r for the score, d_c for the sum

    `n_kv_tokens` (n_tokens when None) is what the expanded form expands; absorbed expands nothing.

    Returns: FLOPs of the forward, exact.
    Source: DeepSeek-V2, arXiv:2405.04434, eq. 37-47 and, for the absorption, sec. 2.1.2.
    Not counted: latent norms, rotary embedding, softmax, biases.

    >>> mla_matmul_flops(128, 128 * 128, 7168, 128, q_lora_rank=1536, kv_lora_rank=512,
    ...                  qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
    ...                  absorbed=False)  # DeepSeek-V3, 128 tokens
    49241128960
    """
    q_width = n_heads * (qk_nope_head_dim + qk_rope_head_dim)
    if q_lora_rank is None:
        q = d_model * q_width
    else:
        q = q_lora_rank * (d_model + q_width)
    kv_a = d_model * (kv_lora_rank + qk_rope_head_dim)
    kv_b = kv_lora_rank * n_heads * (qk_nope_head_dim + v_head_dim)
    o = n_heads * v_head_dim * d_model
    if absorbed:
        n_kv_b = n_tokens
        per_pair = n_heads * (kv_lora_rank + qk_rope_head_dim + kv_lora_rank)
    else:
        n_kv_b = n_tokens if n_kv_tokens is None else n_kv_tokens
        per_pair = n_heads * (qk_nope_head_dim + qk_rope_head_dim + v_head_dim)
    return 2 * (n_tokens * (q + kv_a + o) + n_kv_b * kv_b + n_pairs * per_pair)


def mla_kv_cache_values(kv_lora_rank: Dim, qk_rope_head_dim: Dim) -> Dim:
    """Values that one token leaves in the cache of one layer: the latent and the rotated key.

    d_c + d_r, whatever the number of heads

    Returns: values, not bytes.
    Source: DeepSeek-V2, arXiv:2405.04434, sec. 2.1.3 and table 1.

    >>> mla_kv_cache_values(512, 64)  # DeepSeek-V3
    576
    """
    return kv_lora_rank + qk_rope_head_dim
