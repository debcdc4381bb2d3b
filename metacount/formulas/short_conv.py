"""The gated short convolution of LFM2: a causal convolution between two gates, no attention.

B, C, x = split(W_in·h);  y = C · conv(B · x);  out = W_out·y, with d channels everywhere.
"""

from __future__ import annotations

from metacount.formulas.convolution import CONVOLVED, convolved_positions
from metacount.formulas.dim import Dim
from metacount.formulas.terms import TOKENS, State, Weight, matrix

ROLE = "recurrent"


def short_conv_weights(
    d_model: Dim, *, conv_kernel: Dim, conv_bias: bool = False
) -> tuple[Weight, ...]:
    """List the tensors of one gated short convolution.

    in [3·d, d] + conv [d, 1, k_c] + out [d, d] = 4·d² + k_c·d   (+ 3·d + d + d with biases)

    Returns: the tensors; one filter a channel, so that a position costs k_c·d multiply-adds.
    Source: LFM2 technical report, arXiv:2511.23404, sec. 2; its L_cache is our k_c.
    Not counted: nothing.

    >>> from metacount.formulas.terms import params_of
    >>> params_of(short_conv_weights(2048, conv_kernel=3))  # LFM2-1.2B
    16783360
    """
    filters = [
        Weight(role=ROLE, name="conv.conv.weight", shape=(d_model, 1, conv_kernel), rows=CONVOLVED)
    ]
    if conv_bias:
        filters.append(Weight(role=ROLE, name="conv.conv.bias", shape=(d_model,)))
    return (
        *matrix("conv.in_proj", ROLE, (3 * d_model, d_model), TOKENS, bias=conv_bias),
        *filters,
        *matrix("conv.out_proj", ROLE, (d_model, d_model), TOKENS, bias=conv_bias),
    )


def short_conv_run(
    batch_size: Dim, seq_len: Dim, *, conv_kernel: Dim, continued: bool = False
) -> dict[str, Dim]:
    """Count what the mixer's own tag (`rows`) stands for in a forward over `seq_len` new tokens.

    Returns: convolved positions.
    Source: `convolution.convolved_positions`.

    >>> short_conv_run(1, 2048, conv_kernel=3)  # LFM2-1.2B
    {'convolved positions': 2050}
    """
    return {CONVOLVED: convolved_positions(batch_size, seq_len, conv_kernel, continued=continued)}


def short_conv_states(d_model: Dim, conv_kernel: Dim) -> tuple[State, ...]:
    """List the states that one sequence keeps in one layer, however long the sequence is.

    conv [d, k_c], the inputs of the last k_c positions, of which the next token needs k_c - 1

    Returns: the states; there is no recurrent one.
    Source: LFM2 technical report, arXiv:2511.23404, sec. 2; transformers' cache keeps k_c.

    >>> [state.size for state in short_conv_states(2048, 3)]  # LFM2-1.2B
    [6144]
    """
    return (State(name="conv", shape=(d_model, conv_kernel)),)


def short_conv_scan_flops(n_tokens: Dim, d_model: Dim, *, conv_kernel: Dim) -> Dim:
    """Count the FLOPs of the convolution itself over the tokens that are used, and its two gates.

    per token and channel 2·k_c for the filter, 1 for B·x and 1 for C·y = n·d·(2·k_c + 2)

    Returns: FLOPs of the forward, exact; padded positions are not among them.
    Source: LFM2 technical report, arXiv:2511.23404, sec. 2.
    Not counted: the two projections.

    >>> short_conv_scan_flops(128, 2048, conv_kernel=3)  # LFM2-1.2B, 128 tokens
    2097152
    """
    return n_tokens * d_model * (2 * conv_kernel + 2)
