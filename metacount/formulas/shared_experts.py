"""Shared experts of a mixture: one feed-forward that sees every token, perhaps behind a gate."""

from __future__ import annotations

from metacount.formulas.dim import Dim, is_zero
from metacount.formulas.ffn import ffn_weights
from metacount.formulas.terms import TOKENS, Weight, flops_of, matrix, params_of


def shared_weights(
    d_model: Dim,
    d_ff_shared: Dim,
    n_shared_experts: Dim,
    *,
    gated: bool,
    bias: bool = False,
    gate: bool = False,
    name: str = "mlp",
) -> tuple[Weight, ...]:
    """List the tensors of one layer's shared experts: a feed-forward of width E_s·m_s, a gate.

    Returns: tensors; none when E_s is 0.
    Source: as `shared_params`.

    >>> for weight in shared_weights(2048, 1408, 4, gated=True, gate=True):  # Qwen1.5-MoE-A2.7B
    ...     print(weight.name, weight.shape)
    mlp.shared_experts.gate_proj.weight (5632, 2048)
    mlp.shared_experts.up_proj.weight (5632, 2048)
    mlp.shared_experts.down_proj.weight (2048, 5632)
    mlp.shared_expert_gate.weight (1, 2048)
    """
    if is_zero(n_shared_experts):
        return ()
    width = n_shared_experts * d_ff_shared
    experts = ffn_weights(
        d_model, width, gated=gated, bias=bias, name=f"{name}.shared_experts", role="moe"
    )
    gates = matrix(f"{name}.shared_expert_gate", "moe", (1, d_model), TOKENS) if gate else ()
    return (*experts, *gates)


def shared_params(
    d_model: Dim,
    d_ff_shared: Dim,
    n_shared_experts: Dim,
    *,
    gated: bool,
    bias: bool = False,
    gate: bool = False,
) -> Dim:
    """Count the parameters of a layer's shared experts, one stored feed-forward of width E_s·m_s.

    the feed-forward of width E_s·m_s   (+ d with a gate d -> 1)   nothing when E_s is 0

    Returns: parameters, exact.
    Source: DeepSeekMoE, arXiv:2401.06066, eq. 9, their K_s is our E_s; the gate is Qwen1.5-MoE's.

    >>> shared_params(7168, 2048, 1, gated=True)  # DeepSeek-V3
    44040192
    """
    return params_of(
        shared_weights(d_model, d_ff_shared, n_shared_experts, gated=gated, bias=bias, gate=gate)
    )


def shared_matmul_flops(
    n_tokens: Dim,
    d_model: Dim,
    d_ff_shared: Dim,
    n_shared_experts: Dim,
    *,
    gated: bool,
    gate: bool = False,
) -> Dim:
    """Count the FLOPs of the shared experts of one layer, which see every token.

    the feed-forward of width E_s·m_s   (+ 2·n·d with a gate d -> 1)   nothing when E_s is 0

    Returns: FLOPs of the forward, exact.
    Source: DeepSeekMoE, arXiv:2401.06066, eq. 9.
    Not counted: the activation, the gate's sigmoid and its product with the output, the biases.

    >>> shared_matmul_flops(128, 7168, 2048, 1, gated=True)  # DeepSeek-V3, 128 tokens
    11274289152
    """
    weights = shared_weights(d_model, d_ff_shared, n_shared_experts, gated=gated, gate=gate)
    return flops_of(weights, {TOKENS: n_tokens})
