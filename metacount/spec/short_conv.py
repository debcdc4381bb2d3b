"""The gated short convolution of LFM2."""

from __future__ import annotations

from metacount.spec.field import flag, part
from metacount.spec.recurrent import Recurrent


@part
class ShortConv(Recurrent):
    """A causal convolution of each channel between two gates; its only state is its inputs."""

    word = "short_conv"

    conv_bias: bool = flag(
        "short_conv_bias", "a bias on the convolution and its two projections", default=False
    )
