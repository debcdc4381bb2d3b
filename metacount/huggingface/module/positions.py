"""How many tokens a model of transformers can run, as its own config says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metacount.huggingface.module.model import chosen_class

if TYPE_CHECKING:
    from metacount.files import Json

# Keys of transformers' configs for the rows of a position table, or the longest input meant.
KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_target_positions",
    "max_seq_len",
    "max_sequence_length",
)
PARTS = ("text_config", "encoder", "decoder")  # of a config made of configs


def longest_of(source: str | Json) -> tuple[int, str] | None:
    """Find the smallest number of positions that a config gives, and its key;
    None where it gives none.

    transformers' defaults stand for keys that are missing. Raises `SpecError` for a config that
    means no model.
    """
    _, config, _ = chosen_class(source)
    parts = [config, *(getattr(config, name, None) for name in PARTS)]
    found = []
    for part in parts:
        for key in KEYS:
            value = getattr(part, key, None)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                found.append((value, key))
    return min(found, default=None)
