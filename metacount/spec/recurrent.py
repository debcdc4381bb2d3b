"""What every recurrent mixer has: a causal convolution before it."""

from __future__ import annotations

from metacount.spec.field import part, size


@part
class Recurrent:
    """A mixer that keeps a state of constant size instead of keys and values."""

    conv_kernel: int = size(
        "conv_kernel", "k_c", "positions that the causal convolution sees, itself included",
        "positions", "d_conv mamba_d_conv")  # fmt: skip
