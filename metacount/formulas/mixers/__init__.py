"""Mixers that keep a state between tokens: a forward each, and what its own words count.

A mixer's file is loaded where a model has one.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from typing import Any

    from metacount.formulas.dim import Dim
    from metacount.formulas.tape import Tape, Tensor


# Of the mixers that share a file.
FILES = {"mamba": "state_space", "mamba2": "state_space", "rg_lru": "gates", "short_conv": "gates"}
FILES |= dict.fromkeys(("gated_delta", "kimi_delta"), "delta")


def run_mixer(t: Tape, part: Any, x: Tensor) -> Tensor:
    """Run the forward of a mixer on a tape: [n, d] -> [n, d]."""
    y: Tensor = getattr(_file_of(part), part.word)(t, part, x)
    return y


def mixer_counts(
    part: Any, batch_size: Dim, seq_len: Dim, *, decode: bool = False
) -> dict[str, Dim]:
    """Count what a mixer's own words stand for in a forward, or in a step of decoding."""
    if part.word in ("mamba", "short_conv"):  # a convolution, and no word beside its own
        from metacount.formulas.mixers.convolution import CONVOLVED, convolved_positions

        n = convolved_positions(batch_size, seq_len, part.conv_kernel, decode=decode)
        return {CONVOLVED: n}
    name = "delta" if part.word.endswith("delta") else part.word
    count = getattr(_file_of(part), f"{name}_counts")
    counts: dict[str, Dim] = count(part, batch_size, seq_len, decode=decode)
    return counts


def _file_of(part: Any) -> Any:
    """Load the file of a mixer."""
    from importlib import import_module

    return import_module(f"metacount.formulas.mixers.{FILES.get(part.word, part.word)}")
