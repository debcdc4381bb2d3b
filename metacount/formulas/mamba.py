"""Mamba: a state of d_s values for each of d_i channels, updated by a selective scan.

The paper's letters: D is our d_ssm (d_i), N our ssm_state_dim (d_s); dt_rank is r_t here. B and C
in the code are the paper's input and output matrices, Δ its step.
"""

from __future__ import annotations

from metacount.formulas.convolution import CONVOLVED, convolution_weights, convolved_positions
from metacount.formulas.dim import Dim
from metacount.formulas.terms import TOKENS, Product, State, Weight

ROLE = "recurrent"


def mamba_weights(
    d_model: Dim,
    *,
    d_ssm: Dim,
    ssm_state_dim: Dim,
    dt_rank: Dim,
    conv_kernel: Dim,
    conv_bias: bool = True,
    in_bias: bool = False,
    out_bias: bool = False,
    norms: bool = False,
) -> tuple[Weight, ...]:
    """List the tensors of one Mamba mixer.

    in [2·d_i, d] + conv [d_i, 1, k_c] + x [r_t + 2·d_s, d_i] + dt [d_i, r_t] + its bias d_i
    + A_log [d_i, d_s] + D d_i + out [d, d_i]
    = d_i·(3·d + k_c + 2·r_t + 3·d_s + 2)
    (+ d_i with conv_bias, + 2·d_i with in_bias, + d with out_bias,
     + r_t + 2·d_s with norms of the step, of B and of C)

    Returns: the tensors, norms under their own role.
    Source: Gu, Dao 2023, arXiv:2312.00752, algorithm 2, fig. 3 and sec. 3.6 (the step's rank);
    Jamba, arXiv:2403.19887, sec. 6.4 (the three norms).
    Not counted: nothing.

    >>> from metacount.formulas.terms import params_of
    >>> params_of(mamba_weights(2560, d_ssm=5120, ssm_state_dim=16, dt_rank=160,
    ...                         conv_kernel=4))  # Mamba 2.8B
    41241600
    """
    read = dt_rank + 2 * ssm_state_dim
    weights = [
        _weight("in_proj", 2 * d_ssm, d_model, rows=TOKENS),
        *convolution_weights(d_ssm, conv_kernel, bias=conv_bias),
        _weight("x_proj", read, d_ssm, rows=TOKENS),
        _weight("dt_proj", d_ssm, dt_rank, rows=TOKENS),
        _weight("dt_proj.bias", d_ssm),
        _weight("A_log", d_ssm, ssm_state_dim),
        _weight("D", d_ssm),
        _weight("out_proj", d_model, d_ssm, rows=TOKENS),
    ]
    if in_bias:
        weights.append(_weight("in_proj.bias", 2 * d_ssm))
    if out_bias:
        weights.append(_weight("out_proj.bias", d_model))
    if norms:
        widths = {"dt_layernorm": dt_rank, "b_layernorm": ssm_state_dim}
        widths["c_layernorm"] = ssm_state_dim
        weights += [Weight(role="norm", name=name, shape=(n,)) for name, n in widths.items()]
    return tuple(weights)


def _weight(name: str, *shape: Dim, rows: str = "") -> Weight:
    return Weight(role=ROLE, name=name, shape=shape, rows=rows)


def mamba_products(*, d_ssm: Dim, ssm_state_dim: Dim) -> tuple[Product, ...]:
    """List the products of activations that run as matrix products: reading the state with C.

    [d_i, d_s] @ [d_s, 1] for each token, in prefill as in decode

    Returns: the products.
    Source: Gu, Dao 2023, arXiv:2312.00752, eq. 2b.
    Not counted: the update of the state, which is element by element, and what makes its factors.

    >>> from metacount.formulas.terms import flops_of
    >>> flops_of(mamba_products(d_ssm=5120, ssm_state_dim=16), {TOKENS: 128})  # Mamba 2.8B
    20971520
    """
    return (Product(role=ROLE, name="state @ C", width=d_ssm * ssm_state_dim, per=TOKENS),)


def mamba_run(
    batch_size: Dim, seq_len: Dim, *, conv_kernel: Dim, continued: bool = False
) -> dict[str, Dim]:
    """Count what Mamba's own tag (`rows`) stands for in one forward over `seq_len` new tokens.

    Returns: convolved positions.
    Source: `convolution.convolved_positions`.

    >>> mamba_run(1, 128, conv_kernel=4)
    {'convolved positions': 131}
    """
    return {CONVOLVED: convolved_positions(batch_size, seq_len, conv_kernel, continued=continued)}


def mamba_states(*, d_ssm: Dim, ssm_state_dim: Dim, conv_kernel: Dim) -> tuple[State, ...]:
    """List the states that one mixer keeps of one sequence, however long the sequence is.

    recurrent  d_i·d_s, in float32 whatever the model's dtype
    conv       k_c·d_i, the inputs of the last k_c positions; the next token needs k_c - 1 of them

    Returns: the states, by the names of the cache.
    Source: Gu, Dao 2023, arXiv:2312.00752, sec. 2: the hidden state has D·N values for each input;
    `conv_state` of state-spaces/mamba's `mamba_simple.py` and of transformers' caches.

    >>> [state.size for state in mamba_states(d_ssm=5120, ssm_state_dim=16, conv_kernel=4)]
    [20480, 81920]
    """
    return (
        State(name="conv", shape=(d_ssm, conv_kernel)),
        State(name="recurrent", shape=(d_ssm, ssm_state_dim), bytes_per_value=4),
    )


def mamba_scan_flops(n_tokens: Dim, d_ssm: Dim, ssm_state_dim: Dim) -> Dim:
    """Count the FLOPs of the selective scan, whether run as a recurrence or by a fused kernel.

    per token, channel and value of its state, 2 FLOPs per multiply-add × 2: the input is added,
    C reads it = 4·n·d_i·d_s

    There is no form of it in matrix products: every channel and value has a decay of its own.

    Returns: FLOPs of the forward, exact.
    Source: Gu, Dao 2023, arXiv:2312.00752, eq. 2 and sec. 3.3.2, O(B·L·D·N).
    Not counted: decays and what makes them (the exponential of Δ·A), Δ·x, D·x, the gate.

    >>> mamba_scan_flops(128, 5120, 16)  # Mamba 2.8B, 128 tokens
    41943040
    """
    return 4 * n_tokens * d_ssm * ssm_state_dim
