"""The causal convolution of a mixer: one filter of k_c values for each channel.

Transformers' own PyTorch code computes a few positions that nobody reads; they are counted, since
they are run. CUDA kernels compute none of them.
"""

from __future__ import annotations

from metacount.formulas.dim import Dim, smaller
from metacount.formulas.terms import Weight

# Positions that the convolution of one forward computes, over all sequences.
CONVOLVED = "convolved positions"


def convolution_weights(channels: Dim, conv_kernel: Dim, *, bias: bool) -> tuple[Weight, ...]:
    """List the tensors of a causal convolution with one filter a channel.

    weight [channels, 1, k_c]   (+ channels with a bias)

    Returns: the tensors; a position costs k_c multiply-adds a channel.
    Source: Gu, Dao 2023, arXiv:2312.00752, fig. 3 and sec. 3.4.

    >>> from metacount.formulas.terms import params_of
    >>> params_of(convolution_weights(5120, 4, bias=True))  # Mamba 2.8B
    25600
    """
    shape = (channels, 1, conv_kernel)
    weights = [Weight(role="recurrent", name="conv1d.weight", shape=shape, rows=CONVOLVED)]
    if bias:
        weights.append(Weight(role="recurrent", name="conv1d.bias", shape=(channels,)))
    return tuple(weights)


def convolved_positions(
    batch_size: Dim, seq_len: Dim, conv_kernel: Dim, *, continued: bool = False
) -> Dim:
    """Count the positions that one forward's convolution computes; S of each sequence are read.

    from nothing:  B·(max(S, k_c) + k_c - 1): padded to a kernel's width, then on both sides
    continued:     B·(S + 1): the k_c kept positions before the S new ones, nothing padded

    Returns: positions.
    Source: transformers, `causal_conv1d_fn` and `causal_conv1d_update` of `modeling_mamba2.py`.

    >>> convolved_positions(1, 2048, 4), convolved_positions(1, 1, 4, continued=True)
    (2051, 2)
    """
    if continued:
        return continued_positions(batch_size, seq_len)
    widest = seq_len + conv_kernel - smaller(seq_len, conv_kernel)
    return batch_size * (widest + conv_kernel - 1)


def continued_positions(batch_size: Dim, seq_len: Dim) -> Dim:
    """Count the positions of a convolution continued from a filled cache, however wide its kernel.

    B·(S + 1), as `convolved_positions` says

    Returns: positions.
    Source: as `convolved_positions`.

    >>> continued_positions(1, 1)
    2
    """
    return batch_size * (seq_len + 1)
