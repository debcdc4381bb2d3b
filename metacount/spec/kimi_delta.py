"""Kimi delta attention: gated DeltaNet with a decay for every channel of the keys."""

from __future__ import annotations

from metacount.spec.field import part
from metacount.spec.linear_attention import LinearHeads
from metacount.spec.recurrent import Recurrent


@part
class KimiDelta(LinearHeads, Recurrent):
    """Kimi delta attention; the ranks of its two gates are the width of a head."""

    word = "kimi_delta"
