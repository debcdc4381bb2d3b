"""The recurrent block of Griffin and RecurrentGemma around its RG-LRU.

Two branches of w channels: x through a causal convolution and the RG-LRU, y through an activation;
their product goes back to the residual width. The RG-LRU has one decay a channel and two gates,
each a block-diagonal matrix of h_l blocks.
"""

from __future__ import annotations

from metacount.formulas.dim import Dim, exact_div
from metacount.formulas.terms import TOKENS, Weight

ROLE = "recurrent"
# Positions that the convolution of one forward computes, those before the first token included.
CONVOLVED = "convolved positions"


def rg_lru_weights(
    d_model: Dim, *, lru_width: Dim, n_lru_blocks: Dim, conv_kernel: Dim
) -> tuple[Weight, ...]:
    """Tensors of one recurrent block.

    x, y [w, d] + out [d, w] + conv [w, 1, k_c] + two gates [h_l, w/h_l, w/h_l]
    + w decays + biases: 2·w of x and y, d of out, w of conv, 2·w of the gates

    Returns: the tensors.
    Source: Griffin, arXiv:2402.19427, sec. 2.3, 2.4 and appendix A; their D_RNN is our w.
    Not counted: nothing.

    >>> from metacount.formulas.terms import params_of
    >>> params_of(rg_lru_weights(2560, lru_width=2560, n_lru_blocks=10, conv_kernel=4))
    20999680
    """
    block = exact_div(lru_width, n_lru_blocks)
    gate = (n_lru_blocks, block, block)
    return (
        Weight(role=ROLE, name="linear_y", shape=(lru_width, d_model), rows=TOKENS),
        Weight(role=ROLE, name="linear_x", shape=(lru_width, d_model), rows=TOKENS),
        Weight(role=ROLE, name="linear_out", shape=(d_model, lru_width), rows=TOKENS),
        Weight(role=ROLE, name="conv_1d", shape=(lru_width, 1, conv_kernel), rows=CONVOLVED),
        Weight(role=ROLE, name="input_gate_weight", shape=gate, rows=TOKENS),
        Weight(role=ROLE, name="recurrent_gate_weight", shape=gate, rows=TOKENS),
        Weight(role=ROLE, name="recurrent_param", shape=(lru_width,)),
        Weight(role=ROLE, name="linear_y.bias", shape=(lru_width,)),
        Weight(role=ROLE, name="linear_x.bias", shape=(lru_width,)),
        Weight(role=ROLE, name="linear_out.bias", shape=(d_model,)),
        Weight(role=ROLE, name="conv_1d.bias", shape=(lru_width,)),
        Weight(role=ROLE, name="input_gate_bias", shape=(n_lru_blocks, block)),
        Weight(role=ROLE, name="recurrent_gate_bias", shape=(n_lru_blocks, block)),
    )


def rg_lru_run(
    batch_size: Dim, seq_len: Dim, *, conv_kernel: Dim, continued: bool = False
) -> dict[str, Dim]:
    """Positions that the convolution of one forward computes, as transformers' own code runs it.

    from nothing:  B·(S + k_c - 1), padded at both ends; only S of a sequence's are used
    continued:     none: the one new token's filter is a sum of elementwise products

    Returns: the number of what the tag `CONVOLVED` names.
    Source: transformers, `models/recurrent_gemma/modeling_recurrent_gemma.py`.

    >>> rg_lru_run(1, 2048, conv_kernel=4)  # RecurrentGemma-2B
    {'convolved positions': 2051}
    """
    if continued:
        return {CONVOLVED: 0}
    return {CONVOLVED: batch_size * (seq_len + conv_kernel - 1)}


def rg_lru_state_values(lru_width: Dim) -> Dim:
    """Values of the recurrent state of one sequence in one layer: one a channel.

    Returns: values, not bytes.
    Source: Griffin, arXiv:2402.19427, eq. 4.

    >>> rg_lru_state_values(2560)  # RecurrentGemma-2B
    2560
    """
    return lru_width


def rg_lru_conv_values(lru_width: Dim, conv_kernel: Dim) -> Dim:
    """Values of the convolution's state: the k_c - 1 inputs before the next token.

    Returns: values, not bytes.
    Source: Griffin, arXiv:2402.19427, sec. 2.3.

    >>> rg_lru_conv_values(2560, 4)  # RecurrentGemma-2B
    7680
    """
    return (conv_kernel - 1) * lru_width


def rg_lru_scan_flops(n_tokens: Dim, lru_width: Dim) -> Dim:
    """FLOPs of the recurrence h_t = a_t·h_{t-1} + x_t itself, position after position.

    2 FLOPs per multiply-add, one per token and channel = 2·n·w

    Returns: FLOPs of the forward, exact; none of it is a matrix product.
    Source: Griffin, arXiv:2402.19427, eq. 4.
    Not counted: the gates, their exponentials, the normalisation of the input.

    >>> rg_lru_scan_flops(128, 2560)  # RecurrentGemma-2B, 128 tokens
    655360
    """
    return 2 * n_tokens * lru_width
