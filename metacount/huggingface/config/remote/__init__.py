"""Model types whose code lies beside their weights: their configs are read by keys, never run.

transformers has no class for them, so it is no witness.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.huggingface.config.families.family import Family


def remote_types() -> dict[str, Family]:
    """Return the mapping of each model type whose code lies beside its weights."""
    from metacount.huggingface.config.remote import fused, like_llama

    return {**like_llama.FAMILIES, **fused.FAMILIES}
