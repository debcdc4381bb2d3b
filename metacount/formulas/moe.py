"""Mixture of experts: a router, E experts of which k see a token, and shared experts for all."""

from __future__ import annotations

from metacount.formulas.dim import Dim, floor_div, is_symbolic, smaller, when
from metacount.formulas.shared_experts import shared_matmul_flops as shared_matmul_flops
from metacount.formulas.shared_experts import shared_params as shared_params
from metacount.formulas.shared_experts import shared_weights
from metacount.formulas.terms import TOKENS, Weight, active_params_of, flops_of, matrix, params_of


def moe_weights(
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
    name: str = "mlp",
) -> tuple[Weight, ...]:
    """List the tensors of one MoE layer: router [E, d], k used of E experts, shared experts.

    Zero experts have a row of the router each, [E + E_z, d], and no matrix; with `zero_expert_rows`
    the first matrix of each is stored, and never read. k of the E compute, the most that can.

    Returns: tensors; gate and up of the routed experts are one, [2·m_e, d], as they are stored.
    Source: as `moe_params`; zero experts, LongCat-Flash, arXiv:2509.01322, eq. 1; what is stored of
    them for nobody, `LongcatFlashExperts` of transformers.

    >>> for weight in moe_weights(4096, 14336, 8, 2, gated=True):  # Mixtral 8x7B
    ...     print(weight.name, weight.shape, weight.times, weight.used)
    mlp.gate.proj.weight (8, 4096) 1 None
    mlp.experts.gate_up_proj (28672, 4096) 8 2
    mlp.experts.down_proj (4096, 14336) 8 2
    """
    n_scores = n_experts + n_zero_experts
    router = matrix(f"{name}.gate.proj", "moe", (n_scores, d_model), TOKENS, bias=router_bias)
    n_first = n_scores if zero_expert_rows else n_experts
    up = (
        ("gate_up_proj", (2 * d_ff_expert, d_model))
        if gated
        else ("up_proj", (d_ff_expert, d_model))
    )
    found = list(router)
    down = ("down_proj", (d_model, d_ff_expert))
    for (part, shape), times in ((up, n_first), (down, n_experts)):
        path = f"{name}.experts.{part}"
        found.append(
            Weight(role="moe", name=path, shape=shape, times=times, used=top_k, rows=TOKENS)
        )
        if expert_bias:
            found.append(
                Weight(role="moe", name=f"{path}_bias", shape=shape[:1], times=times, used=top_k)
            )
    shared = shared_weights(
        d_model,
        d_ff_expert if d_ff_shared is None else d_ff_shared,
        n_shared_experts,
        gated=gated,
        bias=shared_bias,
        gate=shared_gate,
        name=name,
    )
    return (*found, *shared)


def router_params(d_model: Dim, n_experts: Dim, *, bias: bool = False) -> Dim:
    """Count the parameters of one router.

    weight [E, d]   (+ bias [E])

    Returns: parameters, exact. All of them are active for every token.
    Source: Shazeer et al. 2017, arXiv:1701.06538, eq. 4, their W_g.

    >>> router_params(4096, 8)  # Mixtral 8x7B
    32768
    """
    return n_experts * d_model + when(bias, n_experts)


def moe_params(
    d_model: Dim,
    d_ff_expert: Dim,
    n_experts: Dim,
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
) -> Dim:
    """Count the parameters of one MoE layer.

    router (E + E_z)·d + E experts of width m_e + shared experts; d_ff_shared None means m_e
    (+ with `zero_expert_rows` E_z first matrices, [2·m_e, d] or [m_e, d], that nobody reads)

    Returns: parameters, exact. A selection bias is a buffer, not counted here.
    Source: Shazeer et al. 2017, arXiv:1701.06538, eq. 1; DeepSeekMoE, arXiv:2401.06066, eq. 9;
    LongCat-Flash, arXiv:2509.01322, eq. 1 (zero experts).

    >>> moe_params(4096, 14336, 8, gated=True)  # Mixtral 8x7B
    1409318912
    >>> moe_params(6144, 2048, 512, gated=True, n_zero_experts=256)  # LongCat-Flash
    19332071424
    """
    return params_of(
        moe_weights(
            d_model,
            d_ff_expert,
            n_experts,
            n_experts,  # how many a token uses does not matter
            gated=gated,
            router_bias=router_bias,
            expert_bias=expert_bias,
            n_shared_experts=n_shared_experts,
            d_ff_shared=d_ff_shared,
            shared_bias=shared_bias,
            shared_gate=shared_gate,
            n_zero_experts=n_zero_experts,
            zero_expert_rows=zero_expert_rows,
        )
    )


def moe_active_params(
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
) -> Dim:
    """Count the parameters of one MoE layer that one token uses.

    router (E + E_z)·d, whole + k experts of width m_e + shared experts; d_ff_shared None means m_e

    Returns: parameters, exact; with zero experts the most: a token may choose some of these.
    Source: Fedus et al. 2021, arXiv:2101.03961, sec. 2.1; Mixtral, arXiv:2401.04088, sec. 2.1.

    >>> moe_active_params(4096, 14336, 8, 2, gated=True)  # Mixtral 8x7B
    352354304
    """
    return active_params_of(
        moe_weights(
            d_model,
            d_ff_expert,
            n_experts,
            top_k,
            gated=gated,
            router_bias=router_bias,
            expert_bias=expert_bias,
            n_shared_experts=n_shared_experts,
            d_ff_shared=d_ff_shared,
            shared_bias=shared_bias,
            shared_gate=shared_gate,
            n_zero_experts=n_zero_experts,
        )
    )


def moe_matmul_flops(
    n_tokens: Dim,
    d_model: Dim,
    d_ff_expert: Dim,
    n_experts: Dim,
    top_k: Dim,
    *,
    gated: bool,
    n_shared_experts: Dim = 0,
    d_ff_shared: Dim | None = None,
    shared_gate: bool = False,
    n_zero_experts: Dim = 0,
) -> Dim:
    """Count the FLOPs of one MoE layer, each token in exactly k experts.

    router 2·n·d·(E + E_z) + k experts of width m_e + shared feed-forward of width E_s·m_s
    (+ 2·n·d with a shared gate); 2 FLOPs per multiply-add

    Returns: FLOPs of the forward, exact, when no token is dropped, none chooses a zero expert and
    no expert is padded.
    Source: Shazeer et al. 2017, arXiv:1701.06538, eq. 1 and 4; DeepSeekMoE,
    arXiv:2401.06066, eq. 9.
    Not counted: the choice of experts, dispatch, weighting and summing of their outputs.

    >>> moe_matmul_flops(128, 4096, 14336, 8, 2, gated=True)  # Mixtral 8x7B, 128 tokens
    90202701824
    """
    weights = moe_weights(
        d_model,
        d_ff_expert,
        n_experts,
        top_k,
        gated=gated,
        n_shared_experts=n_shared_experts,
        d_ff_shared=d_ff_shared,
        shared_gate=shared_gate,
        n_zero_experts=n_zero_experts,
    )
    return flops_of(weights, {TOKENS: n_tokens})


def moe_layers(
    n_layers: Dim, *, n_dense_layers: Dim = 0, moe_every: Dim = 1, moe_offset: Dim = 0
) -> Dim:
    """Count a stack's MoE layers: i >= n_dense_layers, from 0, where moe_every divides i + 1 - o.

    o is moe_offset, which is less than moe_every. Numbers up to N that are o more than a multiple
    of moe_every, less those up to the dense layers:
    (N - o) // moe_every - (min(n_dense_layers, N) - o) // moe_every

    Returns: a count; a symbol for either count is taken at its word: n_dense_layers <= N.
    Source: DeepSeek-V3, arXiv:2412.19437, sec. 4.2 (leading dense layers); Fedus et al. 2021,
    arXiv:2101.03961, table 9 (Switch-Base, expert frequency 1/2).

    >>> moe_layers(61, n_dense_layers=3)  # DeepSeek-V3
    58
    >>> moe_layers(12, moe_every=2)  # one stack of Switch-Base
    6
    >>> moe_layers(12, moe_every=4, moe_offset=2)  # layers 1, 5 and 9
    3
    """
    if is_symbolic(n_layers) or is_symbolic(n_dense_layers):
        leading = n_dense_layers
    else:
        leading = smaller(n_dense_layers, n_layers)
    upto_last = floor_div(n_layers - moe_offset, moe_every)
    return upto_last - floor_div(leading - moe_offset, moe_every)
