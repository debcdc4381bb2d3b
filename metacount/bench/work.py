"""What one forward of a layer has to do: FLOPs from the formulas, bytes that must move. No torch.

Bytes that must move are every weight that is used, the input, the output and, with a KV cache,
what is read from it and written to it, each once. What lies between two operators of a layer is
not among them: a fused kernel can keep it on the chip.
"""

from __future__ import annotations

from metacount.formulas.masks import causal_pairs
from metacount.formulas.sublayers import (
    attention_pair_flops,
    attention_params,
    attention_projection_flops,
    ffn_matmul_flops,
    ffn_params,
    kv_cache_values,
    latent_norm_params,
    mla_kv_cache_values,
    mla_matmul_flops,
    mla_params,
    moe_matmul_flops,
    norm_params,
    router_params,
)
from metacount.frozen import frozen

INDEX_BYTES = 8  # of one choice of an expert, an int64


@frozen
class Work:
    """One forward.

    `matmul_flops` is torch's convention, what a counter of operators must find; `needed_flops` is
    what cannot be avoided: pairs that a causal mask keeps, no padding. Rates are of the latter.
    """

    matmul_flops: int
    needed_flops: int
    weight_bytes: int
    input_bytes: int
    output_bytes: int
    cache_bytes: int = 0

    @property
    def moved_bytes(self) -> int:
        """Bytes that must move, see the head of the file."""
        return self.weight_bytes + self.input_bytes + self.output_bytes + self.cache_bytes

    @property
    def intensity(self) -> float:
        """FLOPs for each byte that must move."""
        return self.needed_flops / self.moved_bytes


@frozen
class Positions:
    """`batch_size` sequences of `seq_len` new tokens that attend to `kv_len` positions, causally.

    Prefill has kv_len = seq_len, decode seq_len = 1.
    """

    batch_size: int
    seq_len: int
    kv_len: int

    @property
    def n_tokens(self) -> int:
        """New tokens in all sequences."""
        return self.batch_size * self.seq_len

    @property
    def all_pairs(self) -> int:
        """Pairs of a query and a position, the mask ignored."""
        return self.batch_size * self.seq_len * self.kv_len

    @property
    def kept_pairs(self) -> int:
        """Pairs that the causal mask keeps: all, less the triangle ahead of the new tokens.

        >>> Positions(batch_size=1, seq_len=5, kv_len=5).kept_pairs  # 1 + 2 + 3 + 4 + 5
        15
        >>> Positions(batch_size=3, seq_len=1, kv_len=7).kept_pairs
        21
        """
        ahead = causal_pairs(self.seq_len) - self.seq_len
        return int(self.batch_size * (self.seq_len * self.kv_len - ahead))

    def cache_bytes(self, values_per_token: int, value_bytes: int) -> int:
        """Count the cache bytes moved: past tokens read, new ones written, every position once."""
        return self.batch_size * self.kv_len * values_per_token * value_bytes


def ffn_work(n_tokens: int, d_model: int, d_ff: int, *, gated: bool, value_bytes: int) -> Work:
    """Count the work of one feed-forward block.

    >>> ffn_work(2, 3, 5, gated=True, value_bytes=2).moved_bytes  # 3·3·5 weights + 2·3 in, 2·3 out
    114
    """
    flops = ffn_matmul_flops(n_tokens, d_model, d_ff, gated=gated)
    return Work(
        matmul_flops=flops,
        needed_flops=flops,
        weight_bytes=ffn_params(d_model, d_ff, gated=gated) * value_bytes,
        input_bytes=n_tokens * d_model * value_bytes,
        output_bytes=n_tokens * d_model * value_bytes,
    )


def ffn_training_work(
    n_tokens: int, d_model: int, d_ff: int, *, gated: bool, value_bytes: int
) -> Work:
    """Count the work of forward and backward of one feed-forward block, all gradients.

    Each product of the forward has two in the backward, one for what it multiplied and one for its
    weights: three times the FLOPs. Weights are read and their gradients written; input and output
    gradient are read, output and input gradient written.

    >>> ffn_training_work(2, 3, 5, gated=True, value_bytes=2).matmul_flops  # 3 · 2·2·3·5·3
    540
    """
    once = ffn_work(n_tokens, d_model, d_ff, gated=gated, value_bytes=value_bytes)
    return Work(
        matmul_flops=3 * once.matmul_flops,
        needed_flops=3 * once.needed_flops,
        weight_bytes=2 * once.weight_bytes,
        input_bytes=2 * once.input_bytes,
        output_bytes=2 * once.output_bytes,
    )


def backward_work(forward: Work, both: Work) -> Work:
    """Count what the backward alone has to do: the FLOPs that the forward has not.

    It reads weights, input and output gradient, and writes the gradients of weights and input.
    """
    return Work(
        matmul_flops=both.matmul_flops - forward.matmul_flops,
        needed_flops=both.needed_flops - forward.needed_flops,
        weight_bytes=both.weight_bytes,
        input_bytes=both.input_bytes,
        output_bytes=forward.input_bytes,
    )


def product_work(n_rows: int, d_in: int, d_out: int, *, value_bytes: int) -> Work:
    """Count the work of one matrix product [n, d_in] @ [d_in, d_out].

    >>> product_work(2, 3, 5, value_bytes=2).matmul_flops
    60
    """
    flops = 2 * n_rows * d_in * d_out  # 2 per multiply-add
    return Work(
        matmul_flops=flops,
        needed_flops=flops,
        weight_bytes=d_in * d_out * value_bytes,
        input_bytes=n_rows * d_in * value_bytes,
        output_bytes=n_rows * d_out * value_bytes,
    )


def elementwise_work(n_in: int, n_out: int, *, value_bytes: int) -> Work:
    """Count the work of so many values in and out, no matrix product."""
    return Work(
        matmul_flops=0,
        needed_flops=0,
        weight_bytes=0,
        input_bytes=n_in * value_bytes,
        output_bytes=n_out * value_bytes,
    )


def attention_core_work(
    at: Positions, n_heads: int, n_kv_heads: int, head_dim: int, *, value_bytes: int
) -> Work:
    """Count the work between the projections: queries in, keys and values read, values out."""
    heads = at.n_tokens * n_heads * head_dim * value_bytes
    return Work(
        matmul_flops=attention_pair_flops(at.all_pairs, n_heads, head_dim),
        needed_flops=attention_pair_flops(at.kept_pairs, n_heads, head_dim),
        weight_bytes=0,
        input_bytes=heads,
        output_bytes=heads,
        cache_bytes=at.cache_bytes(kv_cache_values(n_kv_heads, head_dim), value_bytes),
    )


def attention_work(
    at: Positions,
    d_model: int,
    n_heads: int,
    n_kv_heads: int,
    head_dim: int,
    *,
    value_bytes: int,
) -> Work:
    """Count the work of projections and attention of one layer, causal, over a KV cache."""
    projections = attention_projection_flops(at.n_tokens, d_model, n_heads, n_kv_heads, head_dim)
    return Work(
        matmul_flops=projections + attention_pair_flops(at.all_pairs, n_heads, head_dim),
        needed_flops=projections + attention_pair_flops(at.kept_pairs, n_heads, head_dim),
        weight_bytes=attention_params(d_model, n_heads, n_kv_heads, head_dim) * value_bytes,
        input_bytes=at.n_tokens * d_model * value_bytes,
        output_bytes=at.n_tokens * d_model * value_bytes,
        cache_bytes=at.cache_bytes(kv_cache_values(n_kv_heads, head_dim), value_bytes),
    )


def mla_work(
    at: Positions,
    d_model: int,
    n_heads: int,
    *,
    q_lora_rank: int | None,
    kv_lora_rank: int,
    qk_nope_head_dim: int,
    qk_rope_head_dim: int,
    v_head_dim: int,
    absorbed: bool,
    value_bytes: int,
) -> Work:
    """Count the work of one layer's MLA, causal, over its cache of latents and rotated keys."""

    def flops(n_pairs: int) -> int:
        found = mla_matmul_flops(
            at.n_tokens,
            n_pairs,
            d_model,
            n_heads,
            q_lora_rank=q_lora_rank,
            kv_lora_rank=kv_lora_rank,
            qk_nope_head_dim=qk_nope_head_dim,
            qk_rope_head_dim=qk_rope_head_dim,
            v_head_dim=v_head_dim,
            absorbed=absorbed,
            n_kv_tokens=at.batch_size * at.kv_len,
        )
        return int(found)

    params = mla_params(
        d_model,
        n_heads,
        q_lora_rank=q_lora_rank,
        kv_lora_rank=kv_lora_rank,
        qk_nope_head_dim=qk_nope_head_dim,
        qk_rope_head_dim=qk_rope_head_dim,
        v_head_dim=v_head_dim,
    ) + latent_norm_params(q_lora_rank, kv_lora_rank)
    return Work(
        matmul_flops=flops(at.all_pairs),
        needed_flops=flops(at.kept_pairs),
        weight_bytes=params * value_bytes,
        input_bytes=at.n_tokens * d_model * value_bytes,
        output_bytes=at.n_tokens * d_model * value_bytes,
        cache_bytes=at.cache_bytes(
            mla_kv_cache_values(kv_lora_rank, qk_rope_head_dim), value_bytes
        ),
    )


def moe_work(
    n_tokens: int,
    d_model: int,
    d_ff_expert: int,
    n_experts: int,
    top_k: int,
    *,
    experts_used: int,
    rows: int | None = None,
    value_bytes: int,
) -> Work:
    """Count the work of one layer's router and gated experts; the choice of experts is an input.

    Only the weights of the `experts_used` that got a token must be read. `rows` is how many rows
    the experts compute in all, where padding makes it more than n·k; the padding is not needed.
    """
    needed = moe_matmul_flops(n_tokens, d_model, d_ff_expert, n_experts, top_k, gated=True)
    computed = needed
    if rows is not None:
        padding = rows - n_tokens * top_k
        computed += ffn_matmul_flops(padding, d_model, d_ff_expert, gated=True)
    used = experts_used * ffn_params(d_model, d_ff_expert, gated=True)
    return Work(
        matmul_flops=computed,
        needed_flops=needed,
        weight_bytes=(used + router_params(d_model, n_experts)) * value_bytes,
        input_bytes=n_tokens * d_model * value_bytes + n_tokens * top_k * INDEX_BYTES,
        output_bytes=n_tokens * d_model * value_bytes,
    )


def norm_work(n_tokens: int, width: int, *, bias: bool, value_bytes: int) -> Work:
    """Count the work of one norm: no matrix product, every value in and out once."""
    return Work(
        matmul_flops=0,
        needed_flops=0,
        weight_bytes=norm_params(width, bias=bias) * value_bytes,
        input_bytes=n_tokens * width * value_bytes,
        output_bytes=n_tokens * width * value_bytes,
    )
