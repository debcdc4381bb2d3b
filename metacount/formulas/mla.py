"""Multi-head latent attention: keys and values of all heads from one cached latent.

The paper's letters: d_c is our kv_lora_rank, d_c' our q_lora_rank (r_q here), d_h our
qk_nope_head_dim (d_n) and our v_head_dim (d_v), d_h^R our qk_rope_head_dim (d_r), n_h our n_heads.
"""

from __future__ import annotations

from metacount.formulas.dim import Dim
from metacount.formulas.terms import (
    CACHED,
    PAIRS,
    TOKENS,
    Product,
    Weight,
    flops_of,
    matrix,
    params_of,
)


def mla_weights(
    d_model: Dim,
    n_heads: Dim,
    *,
    q_lora_rank: Dim | None,
    kv_lora_rank: Dim,
    qk_nope_head_dim: Dim,
    qk_rope_head_dim: Dim,
    v_head_dim: Dim,
    bias: bool = False,
) -> tuple[Weight, ...]:
    """List the tensors of one MLA layer, without the two latent norms.

    Returns: tensors; kv_b multiplies what is cached (expanded) or the new tokens (absorbed).
    Source: as `mla_params`, which says their shapes.

    >>> sizes = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
    >>> for weight in mla_weights(5120, 128, q_lora_rank=1536, v_head_dim=128, **sizes):
    ...     print(weight.name, weight.shape, weight.rows)
    self_attn.q_a_proj.weight (1536, 5120) tokens
    self_attn.q_b_proj.weight (24576, 1536) tokens
    self_attn.kv_a_proj_with_mqa.weight (576, 5120) tokens
    self_attn.kv_b_proj.weight (32768, 512) cached tokens
    self_attn.o_proj.weight (5120, 16384) tokens
    """
    q_width = n_heads * (qk_nope_head_dim + qk_rope_head_dim)
    kv_a_width = kv_lora_rank + qk_rope_head_dim
    kv_b_width = n_heads * (qk_nope_head_dim + v_head_dim)
    if q_lora_rank is None:
        queries = [("q_proj", q_width, d_model, TOKENS, False)]
    else:
        queries = [
            ("q_a_proj", q_lora_rank, d_model, TOKENS, bias),
            ("q_b_proj", q_width, q_lora_rank, TOKENS, False),
        ]
    each = (
        *queries,
        ("kv_a_proj_with_mqa", kv_a_width, d_model, TOKENS, bias),
        ("kv_b_proj", kv_b_width, kv_lora_rank, CACHED, False),
        ("o_proj", d_model, n_heads * v_head_dim, TOKENS, bias),
    )
    queries_in = d_model if q_lora_rank is None else q_lora_rank
    plain, rotated = (
        queries_in * n_heads * width for width in (qk_nope_head_dim, qk_rope_head_dim)
    )
    keys, values = (kv_lora_rank * n_heads * width for width in (qk_nope_head_dim, v_head_dim))
    of_queries = (("not rotated", plain), ("rotated", rotated))
    splits = {
        "q_proj": of_queries,
        "q_b_proj": of_queries,
        "kv_a_proj_with_mqa": (
            ("latent", d_model * kv_lora_rank),
            ("rotated key", d_model * qk_rope_head_dim),
        ),
        "kv_b_proj": (("keys", keys), ("values", values)),
    }
    found: list[Weight] = []
    for name, n_rows, n_columns, rows, has_bias in each:
        shape, path = (n_rows, n_columns), f"self_attn.{name}"
        found += matrix(path, "attention", shape, rows, bias=has_bias, split=splits.get(name, ()))
    return tuple(found)


def mla_products(
    n_heads: Dim,
    *,
    kv_lora_rank: Dim,
    qk_nope_head_dim: Dim,
    qk_rope_head_dim: Dim,
    v_head_dim: Dim,
    absorbed: bool,
    per: str = PAIRS,
) -> tuple[Product, ...]:
    """List the products of one MLA layer for each pair of positions (`per`).

    expanded: h·d_n and h·d_r for the score, h·d_v for the sum
    absorbed: h·d_c and h·d_r for the score, h·d_c for the sum

    Returns: products of one layer.
    Source: as `mla_matmul_flops`.

    >>> sizes = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
    >>> [(product.name, product.width)
    ...  for product in mla_products(128, **sizes, v_head_dim=128, absorbed=True)]  # DeepSeek-V2
    [('scores', 65536), ('scores of the rotated keys', 8192), ('sums of values', 65536)]
    """
    widths = {
        "scores": kv_lora_rank if absorbed else qk_nope_head_dim,
        "scores of the rotated keys": qk_rope_head_dim,
        "sums of values": kv_lora_rank if absorbed else v_head_dim,
    }
    return tuple(
        Product(role="attention", name=name, width=n_heads * width, per=per)
        for name, width in widths.items()
    )


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
    """Count the parameters of one MLA layer.

    q_a [r_q, d] + q_b [h·(d_n + d_r), r_q], or q [h·(d_n + d_r), d] without q_lora_rank
    + kv_a [d_c + d_r, d] + kv_b [h·(d_n + d_v), d_c] + o [d, h·d_v]
    (+ r_q + (d_c + d_r) + d with biases, on q_a, kv_a and o)

    Returns: parameters, exact; without the two latent norms, see `norm.latent_norm_params`.
    Source: DeepSeek-V2, arXiv:2405.04434, eq. 37-47 (appendix); the letters are above.

    >>> mla_params(7168, 128, q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128,
    ...            qk_rope_head_dim=64, v_head_dim=128)  # DeepSeek-V3
    187105280
    """
    return params_of(
        mla_weights(
            d_model,
            n_heads,
            q_lora_rank=q_lora_rank,
            kv_lora_rank=kv_lora_rank,
            qk_nope_head_dim=qk_nope_head_dim,
            qk_rope_head_dim=qk_rope_head_dim,
            v_head_dim=v_head_dim,
            bias=bias,
        )
    )


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
    """Count the FLOPs of one MLA layer over n new tokens and n_pairs pairs of positions.

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
    weights = mla_weights(
        d_model,
        n_heads,
        q_lora_rank=q_lora_rank,
        kv_lora_rank=kv_lora_rank,
        qk_nope_head_dim=qk_nope_head_dim,
        qk_rope_head_dim=qk_rope_head_dim,
        v_head_dim=v_head_dim,
    )
    products = mla_products(
        n_heads,
        kv_lora_rank=kv_lora_rank,
        qk_nope_head_dim=qk_nope_head_dim,
        qk_rope_head_dim=qk_rope_head_dim,
        v_head_dim=v_head_dim,
        absorbed=absorbed,
    )
    n_cached = n_tokens if absorbed or n_kv_tokens is None else n_kv_tokens
    return flops_of((*weights, *products), {TOKENS: n_tokens, CACHED: n_cached, PAIRS: n_pairs})


def mla_kv_cache_values(kv_lora_rank: Dim, qk_rope_head_dim: Dim) -> Dim:
    """Count the values that one token leaves in one layer's cache: the latent and the rotated key.

    d_c + d_r, whatever the number of heads

    Returns: values, not bytes.
    Source: DeepSeek-V2, arXiv:2405.04434, sec. 2.1.3 and table 1.

    >>> mla_kv_cache_values(512, 64)  # DeepSeek-V3
    576
    """
    return kv_lora_rank + qk_rope_head_dim
