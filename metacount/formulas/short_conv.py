"""The gated short convolution of LFM2: a causal convolution between two gates, no attention.

B, C, x = split(W_in·h);  y = C · conv(B · x);  out = W_out·y, with d channels everywhere.
"""

from __future__ import annotations

from metacount.formulas.dim import Dim, smaller
from metacount.formulas.terms import TOKENS, Weight

ROLE = "recurrent"
# Positions that the convolution of one forward computes, those before the first token included.
CONVOLVED = "convolved positions"


def short_conv_weights(
    d_model: Dim, *, conv_kernel: Dim, conv_bias: bool = False
) -> tuple[Weight, ...]:
    """Tensors of one gated short convolution.

    in [3·d, d] + conv [d, 1, k_c] + out [d, d] = 4·d² + k_c·d   (+ 3·d + d + d with biases)

    Returns: the tensors; one filter a channel, so that a position costs k_c·d multiply-adds.
    Source: LFM2 technical report, arXiv:2511.23404, sec. 2; its L_cache is our k_c.
    Not counted: nothing.

    >>> from metacount.formulas.terms import params_of
    >>> params_of(short_conv_weights(2048, conv_kernel=3))  # LFM2-1.2B
    16783360
    """
    weights = [
        Weight(role=ROLE, name="in_proj", shape=(3 * d_model, d_model), rows=TOKENS),
        Weight(role=ROLE, name="conv", shape=(d_model, 1, conv_kernel), rows=CONVOLVED),
        Weight(role=ROLE, name="out_proj", shape=(d_model, d_model), rows=TOKENS),
    ]
    if conv_bias:
        widths = (("in_proj", 3 * d_model), ("conv", d_model), ("out_proj", d_model))
        weights += [Weight(role=ROLE, name=f"{name}.bias", shape=(width,))
                    for name, width in widths]  # fmt: skip
    return tuple(weights)


def short_conv_run(
    batch_size: Dim, seq_len: Dim, *, conv_kernel: Dim, continued: bool = False
) -> dict[str, Dim]:
    """Positions that the convolution of one forward computes, as transformers' own code runs it.

    from nothing:  B·(max(S, k_c) + k_c - 1), padded to a kernel's width, then at both ends
    continued:     B·(S + 1), the k_c cached positions before the S new ones, nothing padded

    Only S of a sequence's positions are used.

    Returns: the number of what the tag `CONVOLVED` names.
    Source: transformers, `models/lfm2/modeling_lfm2.py`.

    >>> short_conv_run(1, 2048, conv_kernel=3)  # LFM2-1.2B
    {'convolved positions': 2050}
    >>> short_conv_run(1, 1, conv_kernel=3, continued=True)
    {'convolved positions': 2}
    """
    if continued:
        return {CONVOLVED: batch_size * (seq_len + 1)}
    widest = seq_len + conv_kernel - smaller(seq_len, conv_kernel)
    return {CONVOLVED: batch_size * (widest + conv_kernel - 1)}


def short_conv_values(d_model: Dim, conv_kernel: Dim) -> Dim:
    """Values that one sequence keeps in one layer, however long it is.

    k_c·d, the inputs of the last k_c positions; the next token needs only k_c - 1 of them

    Returns: values, not bytes. There is no other state.
    Source: LFM2 technical report, arXiv:2511.23404, sec. 2; transformers' cache keeps k_c.

    >>> short_conv_values(2048, 3)  # LFM2-1.2B
    6144
    """
    return conv_kernel * d_model


def short_conv_scan_flops(n_tokens: Dim, d_model: Dim, *, conv_kernel: Dim) -> Dim:
    """FLOPs of the convolution itself over the tokens that are used, and of its two gates.

    per token and channel 2·k_c for the filter, 1 for B·x and 1 for C·y = n·d·(2·k_c + 2)

    Returns: FLOPs of the forward, exact; padded positions are not among them.
    Source: LFM2 technical report, arXiv:2511.23404, sec. 2.
    Not counted: the two projections.

    >>> short_conv_scan_flops(128, 2048, conv_kernel=3)  # LFM2-1.2B, 128 tokens
    2097152
    """
    return n_tokens * d_model * (2 * conv_kernel + 2)
