"""The ways in which a feed-forward variant runs, as pictures show them: after its width's name."""

from __future__ import annotations

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from matplotlib.typing import LineStyleType

# the longer names first: a variant ends with the first that it ends with
WAYS: dict[str, LineStyleType] = {
    "-joined-compiled": ":",
    "-joined-autotuned": (0, (1, 3)),
    "-compiled": ":",
    "-autotuned": (0, (1, 3)),
    "-joined": "--",
    "-liger": "-.",
    "-triton": (0, (5, 1, 1, 1, 1, 1)),
    "": "-",
}


def split(variant: str) -> tuple[str, str]:
    """Split a variant into its width and way.

    >>> split("swiglu-4d-joined"), split("swiglu-joined-compiled"), split("gelu")
    (('swiglu-4d', '-joined'), ('swiglu', '-joined-compiled'), ('gelu', ''))
    """
    way = next(way for way in WAYS if variant.endswith(way))
    return variant.removesuffix(way), way
