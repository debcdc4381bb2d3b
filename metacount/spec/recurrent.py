"""Mixers that keep a state of fixed size in place of a cache of keys and values.

State spaces, linear attention and short convolutions: each is a part in a file of its own.
"""

from __future__ import annotations

from metacount.spec.field import part, size


@part
class NoRecurrent:
    """No layer has a state: attention alone."""

    word = "none"


@part
class Recurrent:
    """What every mixer with a state has."""

    conv_kernel: int = size(
        "conv_kernel",
        "k_c",
        "positions that the causal convolution sees, itself included",
        "positions",
        "d_conv mamba_d_conv linear_conv_kernel_dim conv_L_cache conv1d_width"
        " short_conv_kernel_size",
        most=2**16,
    )
