"""Which mixer with a state a part is: what counts it is loaded where a model has one."""

from __future__ import annotations

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.formulas.mixers import Mixer


def mixer_of(part: object) -> Mixer | None:
    """Return the functions that count a mixer with a state; None for the part of no such mixer."""
    word: str = vars(type(part))["word"]
    if word == "none":
        return None
    from metacount.formulas.mixers import MIXERS

    return MIXERS[word]
