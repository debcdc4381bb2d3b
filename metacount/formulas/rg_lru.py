"""The recurrent block of Griffin and RecurrentGemma around its RG-LRU.

Two branches of w channels: x through a causal convolution and the RG-LRU, y through an activation;
their product goes back to the residual width. The RG-LRU has one decay a channel and two gates,
each a block-diagonal matrix of h_l blocks.
"""

from __future__ import annotations

from metacount.formulas.convolution import CONVOLVED
from metacount.formulas.dim import Dim, exact_div
from metacount.formulas.terms import TOKENS, State, Weight, matrix

ROLE = "recurrent"
BLOCK = "temporal_block"


def rg_lru_weights(
    d_model: Dim, *, lru_width: Dim, n_lru_blocks: Dim, conv_kernel: Dim
) -> tuple[Weight, ...]:
    """List the tensors of one recurrent block.

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
    each: tuple[tuple[str, tuple[Dim, ...], str], ...] = (
        ("conv_1d.weight", (lru_width, 1, conv_kernel), CONVOLVED),
        ("conv_1d.bias", (lru_width,), ""),
        ("rg_lru.recurrent_param", (lru_width,), ""),
        ("rg_lru.input_gate_weight", gate, TOKENS),
        ("rg_lru.input_gate_bias", gate[:2], ""),
        ("rg_lru.recurrent_gate_weight", gate, TOKENS),
        ("rg_lru.recurrent_gate_bias", gate[:2], ""),
    )
    return (
        *matrix(f"{BLOCK}.linear_y", ROLE, (lru_width, d_model), TOKENS, bias=True),
        *matrix(f"{BLOCK}.linear_x", ROLE, (lru_width, d_model), TOKENS, bias=True),
        *matrix(f"{BLOCK}.linear_out", ROLE, (d_model, lru_width), TOKENS, bias=True),
        *(
            Weight(role=ROLE, name=f"{BLOCK}.{name}", shape=shape, rows=rows)
            for name, shape, rows in each
        ),
    )


def rg_lru_run(batch_size: Dim, seq_len: Dim, *, conv_kernel: Dim) -> dict[str, Dim]:
    """Count the positions that one forward's convolution computes, run by transformers' own code.

    B·(S + k_c - 1), padded at both ends; only S of a sequence's are used

    Where a cache is continued there are none: the one new token's filter is a sum of elementwise
    products. transformers takes a first forward over one token for that; here it is from nothing.

    Returns: the number of what the tag `CONVOLVED` names.
    Source: transformers, `models/recurrent_gemma/modeling_recurrent_gemma.py`.

    >>> rg_lru_run(1, 2048, conv_kernel=4)  # RecurrentGemma-2B
    {'convolved positions': 2051}
    """
    return {CONVOLVED: batch_size * (seq_len + conv_kernel - 1)}


def rg_lru_states(lru_width: Dim, conv_kernel: Dim) -> tuple[State, ...]:
    """List the states that one sequence keeps in one layer, however long the sequence is.

    conv [w, k_c - 1], the inputs before the next token; recurrent [w], one value a channel, in
    float32 whatever the model's dtype

    Returns: the states.
    Source: Griffin, arXiv:2402.19427, sec. 2.3 and eq. 4.

    >>> [state.size for state in rg_lru_states(2560, 4)]  # RecurrentGemma-2B
    [7680, 2560]
    """
    return (
        State(name="conv", shape=(lru_width, conv_kernel - 1)),
        State(name="recurrent", shape=(lru_width,), bytes_per_value=4),
    )


def rg_lru_scan_flops(n_tokens: Dim, lru_width: Dim) -> Dim:
    """Count the FLOPs of the recurrence h_t = a_t·h_{t-1} + x_t itself, position after position.

    2 FLOPs per multiply-add, one per token and channel = 2·n·w

    Returns: FLOPs of the forward, exact; none of it is a matrix product.
    Source: Griffin, arXiv:2402.19427, eq. 4.
    Not counted: the gates, their exponentials, the normalisation of the input.

    >>> rg_lru_scan_flops(128, 2560)  # RecurrentGemma-2B, 128 tokens
    655360
    """
    return 2 * n_tokens * lru_width
