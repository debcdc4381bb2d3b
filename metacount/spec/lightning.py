"""Lightning attention: linear attention with a fixed decay for each head and layer."""

from __future__ import annotations

from metacount.spec.field import part
from metacount.spec.linear_attention import LinearHeads


@part
class Lightning(LinearHeads):
    """Lightning attention: no convolution, no learned decay."""

    word = "lightning"
