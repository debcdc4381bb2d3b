"""Norms: how many weights one has, and how many norms a block holds."""

from __future__ import annotations

from metacount.formulas.dim import Dim
from metacount.formulas.terms import Weight, params_of

# norms of a block by placement: (per sublayer, so that cross-attention brings its own; or in all)
_PER_SUBLAYER = {
    "pre": 1,
    "post": 1,
    "deep": 1,
    "post_branch": 1,
    "stream": 1,
    "hybrid": 1,
    "sandwich": 2,
}
_PER_PARALLEL_BLOCK = {"parallel": 1, "parallel_two": 2}


def norm_weights(
    name: str, width: Dim, *, bias: bool = False, affine: bool = True
) -> tuple[Weight, ...]:
    """List the tensors of one norm: a weight [width], maybe a bias [width]; none when not affine.

    Returns: tensors.
    Source: as `norm_params`.

    >>> [weight.name for weight in norm_weights("input_layernorm", 1024, bias=True)]  # GPT-2 medium
    ['input_layernorm.weight', 'input_layernorm.bias']
    """
    parts = ("weight", *(("bias",) if bias else ())) if affine else ()
    return tuple(Weight(role="norm", name=f"{name}.{part}", shape=(width,)) for part in parts)


def norm_params(width: Dim, *, bias: bool = False, affine: bool = True) -> Dim:
    """Count the parameters of one LayerNorm (weight, maybe bias) or RMSNorm (weight only).

    weight [width]   (+ bias [width])   nothing when the norm is not affine

    Returns: parameters, exact.
    Source: Ba et al. 2016, arXiv:1607.06450, eq. 4 (their g and b);
    Zhang and Sennrich 2019, arXiv:1910.07467, eq. 4 (their g).

    >>> norm_params(4096)  # LLaMA-7B, one RMSNorm
    4096
    >>> norm_params(1024, bias=True)  # GPT-2 medium, one LayerNorm
    2048
    """
    return params_of(norm_weights("norm", width, bias=bias, affine=affine))


def norms_per_block(
    placement: str, *, cross: bool = False, mixer: bool = True, ffn: bool = True
) -> int:
    """Count the norms of width d in one block.

    A block has two sublayers (`mixer`, which is attention in most models, and feed-forward), three
    with cross-attention, one where it has only one of them. Pre-, post-, deep, post_branch,
    stream and hybrid norm put one norm on each sublayer, sandwich one before and one after it. A
    parallel block feeds both branches from one norm, parallel_two from one norm each.

    Returns: a count.
    Source: Vaswani et al. 2017, arXiv:1706.03762, sec. 3.1 (post); Xiong et al. 2020,
    arXiv:2002.04745, fig. 1 (pre); Wang et al. 2022, arXiv:2203.00555, fig. 2 (deep); Ding et al.
    2021, arXiv:2105.13290, sec. 2.4 (sandwich); Chowdhery et al. 2022, arXiv:2204.02311, sec. 2
    (parallel); Team OLMo 2024, arXiv:2501.00656, sec. 2 (post_branch);
    MiniMax 2025, arXiv:2501.08313, sec. 2 (stream).

    >>> norms_per_block("pre"), norms_per_block("sandwich")  # LLaMA, Gemma 2
    (2, 4)
    >>> norms_per_block("pre", cross=True)  # a decoder block of T5
    3
    >>> norms_per_block("pre", ffn=False)  # Mamba
    1
    """
    if placement in _PER_PARALLEL_BLOCK:
        return _PER_PARALLEL_BLOCK[placement]
    return _PER_SUBLAYER[placement] * (mixer + ffn + cross)


def qk_norm_weights(
    kind: str, n_heads: Dim, n_kv_heads: Dim, head_dim: Dim, *, borrows: bool = False
) -> tuple[Weight, ...]:
    """List the tensors of one block's norms on queries and keys; where it `borrows`, on queries.

    Returns: tensors; none for kinds none and l2.
    Source: as `qk_norm_params`.

    >>> [(weight.name, weight.shape) for weight in qk_norm_weights("head", 64, 8, 128)]  # Qwen3-32B
    [('self_attn.q_norm.weight', (128,)), ('self_attn.k_norm.weight', (128,))]
    """
    if kind in ("none", "l2"):
        return ()
    widths = {"q_norm": head_dim, "k_norm": head_dim}
    if kind == "full":
        widths = {"q_norm": n_heads * head_dim, "k_norm": n_kv_heads * head_dim}
    return tuple(
        weight
        for name, width in widths.items()
        if not (borrows and name == "k_norm")
        for weight in norm_weights(f"self_attn.{name}", width, bias=kind == "layernorm")
    )


def qk_norm_params(kind: str, n_heads: Dim, n_kv_heads: Dim, head_dim: Dim) -> Dim:
    """Count the parameters of one block's norms on queries and keys; RMSNorms but for layernorm.

    head: [h_d] on q + [h_d] on k, shared by all heads = 2·h_d
    full: [h·h_d] on q + [h_kv·h_d] on k = (h + h_kv)·h_d
    layernorm: [h_d] and a bias [h_d] on q, the same on k, shared by all heads = 4·h_d
    l2, none: no weights

    Returns: parameters, exact.
    Source: Qwen3, arXiv:2505.09388, sec. 2 (head); OLMo 2, arXiv:2501.00656, sec. 2 (full);
    Persimmon-8B's released code (layernorm).

    >>> qk_norm_params("head", 64, 8, 128)  # Qwen3-32B
    256
    >>> qk_norm_params("full", 32, 32, 128)  # OLMo 2 7B
    8192
    """
    return params_of(qk_norm_weights(kind, n_heads, n_kv_heads, head_dim))


def latent_norm_weights(q_lora_rank: Dim | None, kv_lora_rank: Dim) -> tuple[Weight, ...]:
    """List the tensors of the norms on the latents of one MLA block.

    Returns: tensors.
    Source: as `latent_norm_params`.

    >>> [weight.shape for weight in latent_norm_weights(1536, 512)]  # DeepSeek-V3
    [(1536,), (512,)]
    """
    queries = () if q_lora_rank is None else norm_weights("self_attn.q_a_layernorm", q_lora_rank)
    return (*queries, *norm_weights("self_attn.kv_a_layernorm", kv_lora_rank))


def latent_norm_params(q_lora_rank: Dim | None, kv_lora_rank: Dim) -> Dim:
    """Count the parameters of the RMSNorms on the latents of one MLA block.

    [d_c] on the key-value latent   (+ [r_q] on the query latent, where queries are compressed)

    Returns: parameters, exact.
    Source: DeepSeek-V2, arXiv:2405.04434, sec. 2.1.2 and appendix; their d_c' is our r_q.

    >>> latent_norm_params(1536, 512)  # DeepSeek-V3
    2048
    """
    return params_of(latent_norm_weights(q_lora_rank, kv_lora_rank))
