"""What one sublayer has and multiplies: its tape for a model, and the well-known formulas of sizes.

The formulas are sums over the same forwards: called with ints they give the count, with symbols the
closed form, with arrays a sweep.

>>> from metacount.catalog import entry
>>> [weight.name for weight in dense_tape(entry("llama-7b").spec()).weights]
['mlp.gate_proj.weight', 'mlp.up_proj.weight', 'mlp.down_proj.weight']
"""

from __future__ import annotations

from metacount.formulas import ends
from metacount.formulas.attention import (
    EVERY_PAIR,
    grouped_attention,
    latent_attention,
    relative_scores,
)
from metacount.formulas.block import (
    PLACED,
    STORED,
    Given,
    Layer,
    run_attention,
    run_block,
    run_feed_forward,
    run_shared,
)
from metacount.formulas.dim import Dim
from metacount.formulas.feed_forward import feed_forward, mixture
from metacount.formulas.masks import (
    attended_positions,
    causal_pairs,
    selected_block_pairs,
    selected_block_positions,
)
from metacount.formulas.pieces import indexed_layers, run_of, sharing_layers
from metacount.formulas.tape import (
    CACHED,
    PAIRS,
    POSITIONS,
    SOURCE,
    TOKENS,
    Pass,
    Product,
    Run,
    Tape,
    Tensor,
    Weight,
    active_params_of,
    by_role,
    flops_of,
    params_of,
)
from metacount.spec import ModelSpec
from metacount.spec.attention import (
    Attention,
    CompressedAttention,
    Indexer,
    LatentAttention,
    NoAttention,
)
from metacount.spec.ffn import FeedForward, Mixture, SharedExperts, ZeroExperts
from metacount.spec.field import altered
from metacount.spec.stack import Norms

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, TypeVar

    Made = TypeVar("Made", Attention, LatentAttention)


# --- a sublayer of a model --------------------------------------------------------------------


def recorded(
    spec: ModelSpec, forward: Callable[[Tape, Tensor], object], *, decode: bool = False
) -> Tape:
    """Record one forward of a model of two sequences of two tokens: its weights and products."""
    tape = Tape(run_of(spec, Pass(batch_size=2, seq_len=2, decode=decode)))
    forward(tape, tape.tensor(spec.d_model, TOKENS, grad=True))
    return tape


def attention_tape(spec: ModelSpec, *, indexed: bool = False, decode: bool = False) -> Tape:
    """Record one block's self-attention; `decode`: of one token more, which absorbs MLA."""
    layer = Layer(indexed=indexed)
    return recorded(spec, lambda t, x: run_attention(t, spec, layer, x, Given()), decode=decode)


def dense_tape(spec: ModelSpec) -> Tape:
    """Record a block's dense feed-forward; nothing where every block is MoE (no d_ff)."""
    part = spec.last_stack.feed_forward
    if part is None or part.d_ff is None:
        return recorded(spec, lambda t, x: None)
    return recorded(spec, lambda t, x: run_feed_forward(t, spec, Layer(), x, x))


def mixture_tape(spec: ModelSpec) -> Tape:
    """Record the experts of one MoE block."""
    part, like = spec.last_stack.mixture, spec.last_stack.feed_forward
    assert part is not None and like is not None
    name = "moe" if "B" in spec.last_stack.ffn_pattern else "mlp"
    return recorded(spec, lambda t, x: mixture(t, part, like, x, name=name))


def shared_tapes(spec: ModelSpec) -> tuple[list[Weight], list[Weight]]:
    """List the tensors of a block that many layers share, and those of each use of it."""
    weights = recorded(spec, lambda t, x: run_shared(t, spec, x, Given())).weights
    stored = [weight for weight in weights if weight.name.startswith(STORED)]
    return stored, [weight for weight in weights if weight not in stored]


def end_weights(spec: ModelSpec) -> list[Weight]:
    """List the tensors before and after the blocks, without what belongs to each stack."""
    return [weight for weight in _ends(spec).weights if weight.name.startswith(ends.OF_MODEL)]


def end_products(spec: ModelSpec) -> list[Product]:
    """List the product of a tied head with the token table, which is stored once."""
    return _ends(spec).products


def _ends(spec: ModelSpec) -> Tape:
    def forward(t: Tape, x: Tensor) -> None:
        stack = spec.last_stack
        ends.embed(t, spec, stack, TOKENS)
        ends.final_norm(t, stack, x)
        ends.unembed(t, spec, x)

    return recorded(spec, forward)


def params_of_role(tape: Tape, role: str) -> Dim:
    """Count the parameters of one role that a tape declares."""
    return params_of(weight for weight in tape.weights if weight.role == role)


def block_params(spec: ModelSpec, *, moe: bool) -> dict[str, Dim]:
    """Count by role the parameters of one block with attention, and if `moe` with experts."""
    layer = Layer(ffn="E" if moe else "F")
    tape = recorded(spec, lambda t, x: run_block(t, spec, layer, x, Given()))
    roles = ("position", "attention", "norm", "moe" if moe else "ffn")
    return by_role(tape.weights, lambda weight: weight.params, roles)


def self_attention_params(spec: ModelSpec) -> Dim:
    """Count the parameters of one block's self-attention, without norms and relative positions."""
    return params_of_role(attention_tape(spec), "attention")


def dense_ffn_params(spec: ModelSpec) -> Dim:
    """Count the parameters of a dense block's feed-forward; 0 where every block is MoE."""
    return params_of(dense_tape(spec).weights)


def moe_layer_params(spec: ModelSpec, *, active: bool) -> Dim:
    """Count the parameters of the mixture of one block, all or those that one token uses."""
    weights = mixture_tape(spec).weights
    return active_params_of(weights) if active else params_of(weights)


def width_norm_params(spec: ModelSpec) -> Dim:
    """Count the parameters of one norm of the residual stream."""
    tape = recorded(spec, lambda t, x: t.norm(x, "layernorm", spec.last_stack.norms))
    return params_of(tape.weights)


def self_attention_flops(
    spec: ModelSpec, *, batch_size: Dim, n_queries: Dim, n_keys: Dim, n_pairs: Dim, absorbed: bool
) -> dict[str, Dim]:
    """Count the FLOPs of one block's self-attention, Transformer-XL's share under `position`.

    Per sequence, n_queries new tokens attend to n_keys positions over n_pairs pairs.
    `absorbed` chooses the form of MLA.

    Not counted: softmax, norms, rotary embedding, biases, mask.
    """
    run = {
        TOKENS: batch_size * n_queries,
        CACHED: batch_size * (n_queries if absorbed else n_keys),
        PAIRS: batch_size * n_pairs,
        POSITIONS: n_keys,
    }
    tape = attention_tape(spec, decode=absorbed)
    both: list[Weight | Product] = [*tape.weights, *tape.products]
    terms = (product for product in both if product.role != "norm")
    return by_role(terms, lambda term: term.flops(run), ("position", "attention"))


def mixture_flops(spec: ModelSpec, n_tokens: Dim) -> Dim:
    """Count the FLOPs of the mixture of one block; not of the choice of experts and dispatch."""
    return flops_of(mixture_tape(spec).weights, {TOKENS: n_tokens})


def end_params(spec: ModelSpec) -> dict[str, Dim]:
    """Count the parameters before and after the blocks by role, without those of each stack."""
    roles = ("embedding", "position", "head", "norm", "other")
    return by_role(end_weights(spec), lambda weight: weight.params, roles)


def end_flops(spec: ModelSpec, run: Mapping[str, Dim]) -> dict[str, Dim]:
    """Count the FLOPs of the embedding's projection, the head and the pooler.

    Returns: FLOPs of the forward, exact; a tied head multiplies like any other.
    Not counted: the look-up, the transform's activation and norm, biases.
    """
    terms: list[Weight | Product] = [*_ends(spec).weights, *end_products(spec)]
    return by_role(terms, lambda term: term.flops(run), ("embedding", "head", "other"))


def token_table_params(spec: ModelSpec) -> Dim:
    """Count the parameters of the token table, [V, e], e = `table_width`; 0 for a body alone."""
    return 0 if spec.embedding is None else spec.embedding.vocab_size * ends.table_width(spec)


# --- formulas of sizes ------------------------------------------------------------------------

HEADS = Attention(n_heads=1, n_kv_heads=1, head_dim=1)
LATENT = LatentAttention(
    n_heads=1, q_lora_rank=1, kv_lora_rank=1, qk_nope_head_dim=1, qk_rope_head_dim=2, v_head_dim=1
)
EXPERTS = Mixture(n_experts=2, top_k=1, d_ff=1, router="softmax")
_RUN = Run(
    counts={TOKENS: 1, SOURCE: 1, CACHED: 1, PAIRS: 1, POSITIONS: 1},
    batch_size=1,
    n_queries=1,
    n_keys=1,
    source_len=1,
)


def _recorded(d_model: Dim, forward: Callable[[Tape, Tensor], object], **run: bool) -> Tape:
    """Record a forward of one token whose input is `d_model` wide."""
    tape = Tape(altered(_RUN, **run) if run else _RUN)
    forward(tape, tape.tensor(d_model, TOKENS, grad=True))
    return tape


def _sized(part: Made, sizes: dict[str, Any]) -> Made:
    if unknown := sizes.keys() - vars(part).keys():
        raise TypeError(f"attention has no {', '.join(sorted(unknown))}")
    return altered(part, **sizes)


def _grouped(d_model: Dim, **sizes: Any) -> Tape:
    part = _sized(HEADS, sizes)
    return _recorded(d_model, lambda t, x: grouped_attention(t, part, x))


def _latent(d_model: Dim, *, absorbed: bool = False, **sizes: Any) -> Tape:
    part = _sized(LATENT, sizes)
    return _recorded(d_model, lambda t, x: latent_attention(t, part, x), decode=absorbed)


def attention_params(
    d_model: Dim,
    n_heads: Dim,
    n_kv_heads: Dim,
    head_dim: Dim,
    **options: bool,
) -> Dim:
    """Count the parameters of one attention layer.

    q [h·h_d, d] + k, v [h_kv·h_d, d] + o [d, h·h_d] = 2·d·h_d·(h + h_kv)
    (+ h·h_d, h_kv·h_d, h_kv·h_d, d with a bias on q, k, v, o;   + h with one sink per head;
     with an output gate h·h_d more rows of q)

    `options`: q_bias, k_bias, v_bias, o_bias, sinks, output_gate.

    Returns: parameters, exact; without the weights of a QK-norm, see `qk_norm_params`.
    Source: `attention.grouped_attention`.

    >>> attention_params(4096, 32, 32, 128)  # LLaMA-7B
    67108864
    >>> attention_params(5120, 64, 8, 128)  # Qwen3-32B
    94371840
    >>> attention_params(2048, 16, 2, 256, output_gate=True)  # Qwen3-Next-80B-A3B
    27262976
    """
    sizes = {"n_heads": n_heads, "n_kv_heads": n_kv_heads, "head_dim": head_dim}
    return params_of(_grouped(d_model, **sizes, **options).weights)


def attention_projection_flops(
    n_tokens: Dim,
    d_model: Dim,
    n_heads: Dim,
    n_kv_heads: Dim,
    head_dim: Dim,
    *,
    n_kv_tokens: Dim | None = None,
) -> Dim:
    """Count the FLOPs of the four projections of one attention layer.

    2 FLOPs per multiply-add × (q and o over n tokens, k and v over n_kv tokens)
    = 4·n·d·h·h_d + 4·n_kv·d·h_kv·h_d

    `n_kv_tokens` is n itself unless keys and values come from elsewhere: cross-attention projects
    its source, and nothing at all once the source is cached.

    Source: Vaswani et al. 2017, arXiv:1706.03762, sec. 3.2.2.
    Not counted: biases, QK-norm, rotary embedding.

    >>> attention_projection_flops(128, 4096, 32, 32, 128)  # LLaMA-7B, 128 tokens
    17179869184
    """
    part = altered(HEADS, n_heads=n_heads, n_kv_heads=n_kv_heads, head_dim=head_dim)

    def forward(t: Tape, x: Tensor) -> None:
        source = t.tensor(d_model, SOURCE, grad=True)
        grouped_attention(t, part, x, source=source)

    n_kv = n_tokens if n_kv_tokens is None else n_kv_tokens
    return flops_of(_recorded(d_model, forward).weights, {TOKENS: n_tokens, SOURCE: n_kv})


def attention_pair_flops(n_pairs: Dim, n_heads: Dim, head_dim: Dim) -> Dim:
    """Count the FLOPs of the two products between positions: scores q·kᵀ and the weighted sum p·v.

    per head and pair of positions, 2 FLOPs per multiply-add × 2 products × h_d
    = 4·n_pairs·h·h_d

    Returns: FLOPs of the forward, exact; h_kv does not matter.
    Source: Vaswani et al. 2017, arXiv:1706.03762, eq. 1.
    Not counted: scaling, mask, softmax, sinks.

    >>> attention_pair_flops(128 * 128, 32, 128)  # LLaMA-7B, 128 tokens
    268435456
    """
    tape = _grouped(1, n_heads=n_heads, n_kv_heads=1, head_dim=head_dim)
    return flops_of(tape.products, {PAIRS: n_pairs})


def kv_cache_values(n_kv_heads: Dim, head_dim: Dim) -> Dim:
    """Count the values that one token leaves in one layer's cache: a key and a value per KV head.

    2·h_kv·h_d

    Source: Shazeer 2019, arXiv:1911.02150, sec. 2.4 and 3; their k = v is our h_d.

    >>> kv_cache_values(8, 128)  # Qwen3-32B
    2048
    """
    tape = _grouped(1, n_heads=n_kv_heads, n_kv_heads=n_kv_heads, head_dim=head_dim)
    return sum(state.size for state in tape.cached)


def mla_params(d_model: Dim, n_heads: Dim, *, bias: bool = False, **sizes: Any) -> Dim:
    """Count the parameters of one MLA layer.

    q_a [r_q, d] + q_b [h·(d_n + d_r), r_q], or q [h·(d_n + d_r), d] without q_lora_rank
    + kv_a [d_c + d_r, d] + kv_b [h·(d_n + d_v), d_c] + o [d, h·d_v]
    (+ r_q + (d_c + d_r) + d with biases, on q_a, kv_a and o)

    `sizes`: q_lora_rank, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim.

    Returns: parameters, exact; without the two latent norms, see `latent_norm_params`.
    Source: DeepSeek-V2, arXiv:2405.04434, eq. 37-47 (appendix).

    >>> mla_params(7168, 128, q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128,
    ...            qk_rope_head_dim=64, v_head_dim=128)  # DeepSeek-V3
    187105280
    """
    return params_of_role(_latent(d_model, n_heads=n_heads, bias=bias, **sizes), "attention")


def mla_matmul_flops(
    n_tokens: Dim,
    n_pairs: Dim,
    d_model: Dim,
    n_heads: Dim,
    *,
    absorbed: bool,
    n_kv_tokens: Dim | None = None,
    **sizes: Any,
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
    `sizes` as `mla_params`.

    Source: DeepSeek-V2, arXiv:2405.04434, eq. 37-47 and, for the absorption, sec. 2.1.2.
    Not counted: latent norms, rotary embedding, softmax, biases.

    >>> mla_matmul_flops(128, 128 * 128, 7168, 128, q_lora_rank=1536, kv_lora_rank=512,
    ...                  qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
    ...                  absorbed=False)  # DeepSeek-V3, 128 tokens
    49241128960
    """
    tape = _latent(d_model, n_heads=n_heads, absorbed=absorbed, **sizes)
    n_cached = n_tokens if absorbed or n_kv_tokens is None else n_kv_tokens
    run = {TOKENS: n_tokens, CACHED: n_cached, PAIRS: n_pairs}
    return flops_of((*tape.weights, *tape.products), run)


def mla_kv_cache_values(kv_lora_rank: Dim, qk_rope_head_dim: Dim) -> Dim:
    """Count the values that one token leaves in one layer's cache: the latent and the rotated key.

    d_c + d_r, whatever the number of heads

    Source: DeepSeek-V2, arXiv:2405.04434, sec. 2.1.3 and table 1.

    >>> mla_kv_cache_values(512, 64)  # DeepSeek-V3
    576
    """
    tape = _latent(1, kv_lora_rank=kv_lora_rank, qk_rope_head_dim=qk_rope_head_dim)
    return sum(state.size for state in tape.cached)


def transformer_xl_params(d_model: Dim, n_heads: Dim, head_dim: Dim) -> Dim:
    """Count the parameters of Transformer-XL's relative positions in one block.

    projection of the sinusoids [h·h_d, d] + the vectors u and v [h, h_d] = (d + 2)·h·h_d

    Source: Dai et al. 2019, arXiv:1901.02860, sec. 3.3, their W_k,R, u and v.

    >>> transformer_xl_params(16384, 128, 128)  # Gopher 280B
    268468224
    """
    part = altered(HEADS, n_heads=n_heads, n_kv_heads=n_heads, head_dim=head_dim)
    tape = _recorded(
        n_heads * head_dim, lambda t, x: relative_scores(t, part, x, d_model, EVERY_PAIR)
    )
    return params_of(tape.weights)


def learned_table_params(n_positions: Dim, d_model: Dim) -> Dim:
    """Count the parameters of a learned table with one row per position: [n_positions, d].

    Source: Radford et al. 2018 (GPT), sec. 3.1, their W_p; GPT-2 the same.

    >>> learned_table_params(1024, 1024)  # GPT-2 medium
    1048576
    """
    return n_positions * d_model


def t5_bias_params(n_buckets: Dim, n_heads: Dim) -> Dim:
    """Count the parameters of T5's relative position biases, one table for all layers of a stack.

    [n_buckets, h]

    Source: Raffel et al. 2019, arXiv:1910.10683, sec. 2.1.

    >>> t5_bias_params(32, 128)  # T5 11B, one stack
    4096
    """
    return n_buckets * n_heads


def norm_params(width: Dim, *, bias: bool = False, affine: bool = True) -> Dim:
    """Count the parameters of one LayerNorm (weight, maybe bias) or RMSNorm (weight only).

    weight [width]   (+ bias [width])   nothing when the norm is not affine

    Source: Ba et al. 2016, arXiv:1607.06450, eq. 4 (their g and b);
    Zhang and Sennrich 2019, arXiv:1910.07467, eq. 4 (their g).

    >>> norm_params(4096)  # LLaMA-7B, one RMSNorm
    4096
    >>> norm_params(1024, bias=True)  # GPT-2 medium, one LayerNorm
    2048
    """
    norms = Norms(kind="layernorm", bias=bias and affine, affine=affine)
    return params_of(_recorded(width, lambda t, x: t.norm(x, "norm", norms)).weights)


def norms_per_block(
    placement: str, *, cross: bool = False, mixer: bool = True, ffn: bool = True
) -> int:
    """Count the norms of width d in one block.

    A block has two sublayers (`mixer`, which is attention in most models, and feed-forward), three
    with cross-attention, one where it has only one of them. Pre-, post-, deep, post_branch,
    stream and hybrid norm put one norm on each sublayer, sandwich one before and one after it. A
    parallel block feeds both branches from one norm, parallel_two from one norm each.

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
    names = PLACED["pre" if placement == "hybrid" else placement]
    has = {"self_attn": mixer, "cross_attn": cross, "mlp": ffn}
    return sum(bool(name) for branch, there in has.items() if there for name in names[branch])


def qk_norm_params(kind: str, n_heads: Dim, n_kv_heads: Dim, head_dim: Dim) -> Dim:
    """Count the parameters of one block's norms on queries and keys; RMSNorms but for layernorm.

    head: [h_d] on q + [h_d] on k, shared by all heads = 2·h_d
    full: [h·h_d] on q + [h_kv·h_d] on k = (h + h_kv)·h_d
    layernorm: [h_d] and a bias [h_d] on q, the same on k, shared by all heads = 4·h_d
    l2, none: no weights

    Source: Qwen3, arXiv:2505.09388, sec. 2 (head); OLMo 2, arXiv:2501.00656, sec. 2 (full);
    Persimmon-8B's released code (layernorm).

    >>> qk_norm_params("head", 64, 8, 128)  # Qwen3-32B
    256
    >>> qk_norm_params("full", 32, 32, 128)  # OLMo 2 7B
    8192
    """
    tape = _grouped(1, n_heads=n_heads, n_kv_heads=n_kv_heads, head_dim=head_dim, qk_norm=kind)
    return params_of_role(tape, "norm")


def latent_norm_params(q_lora_rank: Dim | None, kv_lora_rank: Dim) -> Dim:
    """Count the parameters of the RMSNorms on the latents of one MLA block.

    [d_c] on the key-value latent   (+ [r_q] on the query latent, where queries are compressed)

    Source: DeepSeek-V2, arXiv:2405.04434, sec. 2.1.2 and appendix; their d_c' is our r_q.

    >>> latent_norm_params(1536, 512)  # DeepSeek-V3
    2048
    """
    return params_of_role(_latent(1, q_lora_rank=q_lora_rank, kv_lora_rank=kv_lora_rank), "norm")


def _feed_forward(d_model: Dim, d_ff: Dim, *, gated: bool, bias: bool = False) -> Tape:
    part = FeedForward(activation="silu", gated=gated, bias=bias)
    return _recorded(d_model, lambda t, x: feed_forward(t, part, x, d_ff))


def plain_params(d_model: Dim, d_ff: Dim, *, bias: bool = False) -> Dim:
    """Count the parameters of one plain feed-forward block.

    up [m, d] + down [d, m] = 2·d·m   (+ m + d with bias)

    Source: Vaswani et al. 2017, arXiv:1706.03762, eq. 2; their d_ff is our m, W_1 our up.

    >>> plain_params(1024, 4096, bias=True)  # GPT-2 medium
    8393728
    """
    return ffn_params(d_model, d_ff, gated=False, bias=bias)


def glu_params(d_model: Dim, d_ff: Dim, *, bias: bool = False) -> Dim:
    """Count the parameters of one gated feed-forward block.

    gate [m, d] + up [m, d] + down [d, m] = 3·d·m   (+ 2·m + d with bias)

    Source: Shazeer 2020, arXiv:2002.05202, eq. 6; their d_ff is our m, W our gate, V our up.

    >>> glu_params(4096, 11008)  # LLaMA-7B
    135266304
    """
    return ffn_params(d_model, d_ff, gated=True, bias=bias)


def ffn_params(d_model: Dim, d_ff: Dim, *, gated: bool, bias: bool = False) -> Dim:
    """Count the parameters of one feed-forward block, gated or plain.

    Source: `glu_params`, `plain_params`.

    >>> ffn_params(4096, 11008, gated=True)  # LLaMA-7B
    135266304
    """
    return params_of(_feed_forward(d_model, d_ff, gated=gated, bias=bias).weights)


def plain_matmul_flops(n_tokens: Dim, d_model: Dim, d_ff: Dim) -> Dim:
    """Count the FLOPs of the two matrix products of a plain feed-forward block.

    [n, d] @ [d, m] and [n, m] @ [m, d]: 2 FLOPs per multiply-add × 2 matrices = 4·n·d·m

    Source: Vaswani et al. 2017, arXiv:1706.03762, eq. 2.
    Not counted: the activation and the biases.

    >>> plain_matmul_flops(128, 1024, 4096)  # GPT-2 medium, 128 tokens
    2147483648
    """
    return ffn_matmul_flops(n_tokens, d_model, d_ff, gated=False)


def glu_matmul_flops(n_tokens: Dim, d_model: Dim, d_ff: Dim) -> Dim:
    """Count the FLOPs of the three matrix products of a gated feed-forward block.

    twice [n, d] @ [d, m], once [n, m] @ [m, d]: 2 FLOPs per multiply-add × 3 matrices = 6·n·d·m

    Source: Shazeer 2020, arXiv:2002.05202, eq. 6.
    Not counted: the activation, the elementwise product with the gate, the biases.

    >>> glu_matmul_flops(128, 4096, 11008)  # LLaMA-7B, 128 tokens
    34628173824
    """
    return ffn_matmul_flops(n_tokens, d_model, d_ff, gated=True)


def ffn_matmul_flops(n_tokens: Dim, d_model: Dim, d_ff: Dim, *, gated: bool) -> Dim:
    """Count the FLOPs of one feed-forward block, gated or plain.

    Source: `glu_matmul_flops`, `plain_matmul_flops`.
    Not counted: the activation, the elementwise product with the gate, the biases.

    >>> ffn_matmul_flops(128, 4096, 11008, gated=True)  # LLaMA-7B, 128 tokens
    34628173824
    """
    return flops_of(_feed_forward(d_model, d_ff, gated=gated).weights, {TOKENS: n_tokens})


def router_params(d_model: Dim, n_experts: Dim, *, bias: bool = False) -> Dim:
    """Count the parameters of one router.

    weight [E, d]   (+ bias [E])

    Returns: parameters, exact. All of them are active for every token.
    Source: Shazeer et al. 2017, arXiv:1701.06538, eq. 4, their W_g.

    >>> router_params(4096, 8)  # Mixtral 8x7B
    32768
    """
    return n_experts * d_model + (n_experts if bias else 0)


def _mixture(
    d_model: Dim,
    d_ff_expert: Dim,
    n_experts: Dim,
    top_k: Dim,
    *,
    gated: bool,
    router_bias: bool = False,
    expert_bias: bool = False,
    n_shared_experts: Dim = 0,
    d_ff_shared: Dim | None = None,
    shared_bias: bool = False,
    shared_gate: bool = False,
    n_zero_experts: Dim = 0,
    zero_expert_rows: bool = False,
) -> Tape:
    has = {"shared": n_shared_experts, "zero": n_zero_experts}
    parts = {name: not (isinstance(n, int) and n == 0) for name, n in has.items()}
    shared = altered(
        SharedExperts(n_experts=1), n_experts=n_shared_experts, d_ff=d_ff_shared, gate=shared_gate
    )
    zero = altered(ZeroExperts(n_experts=1), n_experts=n_zero_experts, rows=zero_expert_rows)
    part = altered(
        EXPERTS,
        n_experts=n_experts,
        top_k=top_k,
        d_ff=d_ff_expert,
        router_bias=router_bias,
        bias=expert_bias,
        shared=shared if parts["shared"] else None,
        zero=zero if parts["zero"] else None,
    )
    like = FeedForward(activation="silu", gated=gated, bias=shared_bias)
    return _recorded(d_model, lambda t, x: mixture(t, part, like, x))


def moe_params(
    d_model: Dim, d_ff_expert: Dim, n_experts: Dim, *, gated: bool, **options: Dim
) -> Dim:
    """Count the parameters of one MoE layer.

    router (E + E_z)·d + E experts of width m_e + shared experts; d_ff_shared None means m_e
    (+ with `zero_expert_rows` E_z first matrices, [2·m_e, d] or [m_e, d], that nobody reads)

    `options`: router_bias, expert_bias, n_shared_experts, d_ff_shared, shared_bias, shared_gate,
    n_zero_experts, zero_expert_rows.

    Returns: parameters, exact. A selection bias is a buffer, not counted here.
    Source: Shazeer et al. 2017, arXiv:1701.06538, eq. 1; DeepSeekMoE, arXiv:2401.06066, eq. 9;
    LongCat-Flash, arXiv:2509.01322, eq. 1 (zero experts).

    >>> moe_params(4096, 14336, 8, gated=True)  # Mixtral 8x7B
    1409318912
    >>> moe_params(6144, 2048, 512, gated=True, n_zero_experts=256)  # LongCat-Flash
    19332071424
    """
    return params_of(_mixture(d_model, d_ff_expert, n_experts, 1, gated=gated, **options).weights)


def moe_active_params(
    d_model: Dim, d_ff_expert: Dim, n_experts: Dim, top_k: Dim, *, gated: bool, **options: Dim
) -> Dim:
    """Count the parameters of one MoE layer that one token uses.

    router (E + E_z)·d, whole + k experts of width m_e + shared experts; `options` as `moe_params`.

    Returns: parameters, exact; with zero experts the most: a token may choose some of these.
    Source: Fedus et al. 2021, arXiv:2101.03961, sec. 2.1; Mixtral, arXiv:2401.04088, sec. 2.1.

    >>> moe_active_params(4096, 14336, 8, 2, gated=True)  # Mixtral 8x7B
    352354304
    """
    tape = _mixture(d_model, d_ff_expert, n_experts, top_k, gated=gated, **options)
    return active_params_of(tape.weights)


def moe_matmul_flops(
    n_tokens: Dim,
    d_model: Dim,
    d_ff_expert: Dim,
    n_experts: Dim,
    top_k: Dim,
    *,
    gated: bool,
    **options: Dim,
) -> Dim:
    """Count the FLOPs of one MoE layer, each token in exactly k experts.

    router 2·n·d·(E + E_z) + k experts of width m_e + shared feed-forward of width E_s·m_s
    (+ 2·n·d with a shared gate); 2 FLOPs per multiply-add; `options` as `moe_params`.

    Returns: FLOPs of the forward, exact, when no token is dropped, none chooses a zero expert and
    no expert is padded.
    Source: Shazeer et al. 2017, arXiv:1701.06538, eq. 1 and 4; DeepSeekMoE,
    arXiv:2401.06066, eq. 9.
    Not counted: the choice of experts, dispatch, weighting and summing of their outputs.

    >>> moe_matmul_flops(128, 4096, 14336, 8, 2, gated=True)  # Mixtral 8x7B, 128 tokens
    90202701824
    """
    tape = _mixture(d_model, d_ff_expert, n_experts, top_k, gated=gated, **options)
    return flops_of(tape.weights, {TOKENS: n_tokens})


def attention_by_selection(
    spec: ModelSpec, *, batch_size: Dim, seq_len: Dim, decode: bool = False
) -> dict[str, Dim]:
    """Count the FLOPs between positions of all layers, dense and selected, and those of the index.

    dense_attention_flops     attention's products over every position that a token may see
    selected_attention_flops  the same over the positions that the index leaves, in layers with one:
                              the k_i best at most, or the visible ones of the k_b best blocks
    index_flops               the index's projections, and its scores of every such position

    A forward over seq_len tokens (MLA expanded), or with `decode` one more token at seq_len
    positions, itself included (absorbed). Attention's own projections are in none of the three.

    Returns: FLOPs by name; nothing for a model without an indexer, or where it chooses entries.
    Source: `attention.position_index`, `attention.block_index`, `masks.selected_block_pairs`;
    DeepSeek-V3.2, arXiv:2512.02556, eq. 2 (the best positions).
    Not counted: softmax, norms, rotary embedding, the choice of the best.
    """
    part = spec.last_stack.attention
    if isinstance(part, NoAttention | CompressedAttention) or part.indexer is None:
        return {}
    n_layers = indexed = spec.last_stack.n_layers
    if decode:
        n_new, visible = batch_size, seq_len
    else:
        n_new, visible = batch_size * seq_len, causal_pairs(seq_len)
    index = part.indexer
    if isinstance(index, Indexer):
        # as many as a window of k_i leaves, though they may be anywhere
        chosen = (attended_positions if decode else causal_pairs)(seq_len, index.top_k)
        n_choosing = n_layers - sharing_layers(spec, n_layers)
    else:
        n_choosing = indexed = indexed_layers(spec, n_layers)
        of_blocks = selected_block_positions if decode else selected_block_pairs
        chosen = of_blocks(seq_len, index.block_len, index.top_blocks)
    tape = attention_tape(spec, indexed=True, decode=decode)
    of_index = [each for each in tape.products if each.name.startswith("index")]
    products = [each for each in tape.products if each not in of_index]
    scorers = [weight for weight in tape.weights if not weight.seen]
    seen = batch_size * visible
    pairs = batch_size * (indexed * chosen + (n_layers - indexed) * visible)
    run = {TOKENS: n_new, PAIRS: seen}
    return {
        "dense_attention_flops": n_layers * flops_of(products, run),
        "selected_attention_flops": flops_of(products, {PAIRS: pairs}),
        "index_flops": n_choosing * flops_of([*scorers, *of_index], run),
    }
