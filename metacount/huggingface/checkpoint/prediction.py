"""Tells the tensors of multi-token-prediction modules in a checkpoint, and of what kind they are.

Their names are those of DeepSeek-V3, GLM-4.5 and their kin (a layer beyond the last), or begin with
`mtp` (Qwen3-Next).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from metacount.units import exact

# What such a layer has and no other layer.
PARTS = ("eh_proj", "enorm", "hnorm", "shared_head")
ROOTS = ("mtp", "mtp_layers", "mtp_block")
# Among its tensors: copies of the model's embedding and head, and values that are no parameters.
COPIES = (("embed_tokens",), ("shared_head", "head"))
BUFFERS = ("e_score_correction_bias",)


def prediction_layers(parameters: Iterable[str], stored: Iterable[str]) -> set[str]:
    """Find the layers beyond a module's last that hold what only a prediction layer has.

    A layer beyond the last without it means a wrong number of layers, and stays unexplained.

    >>> stored = ["model.layers.1.eh_proj.weight", "model.layers.2.mlp.up_proj.weight"]
    >>> prediction_layers(["model.layers.0.mlp.up_proj.weight"], stored)
    {'model.layers.1'}
    """
    n_layers: dict[str, int] = {}
    for name in parameters:
        for folder, layer, _ in _numbered(name):
            n_layers[folder] = max(n_layers.get(folder, 0), layer + 1)
    return {
        f"{folder}.{layer}"
        for name in stored
        for folder, layer, part in _numbered(name)
        if part in PARTS and folder in n_layers and layer >= n_layers[folder]
    }


def is_prediction(name: str, layers: set[str]) -> bool:
    """Say whether a stored tensor is a prediction module's; `layers` are those found above."""
    parts = name.split(".")
    return any(step in ROOTS for step in parts[:2]) or any(
        ".".join(parts[:n]) in layers for n in range(1, len(parts))
    )


def by_kind(values: Mapping[str, int]) -> dict[str, int]:
    """Add up the values of a module's tensors, by name, as params, copies and buffers.

    >>> by_kind({"model.layers.61.enorm.weight": 7168, "model.layers.61.embed_tokens.weight": 9})
    {'params': 7168, 'copies': 9, 'buffers': 0}
    """
    found = {"params": 0, "copies": 0, "buffers": 0}
    for name, n_values in values.items():
        parts = tuple(name.split(".")[:-1])
        kind = "copies" if any(parts[-len(end) :] == end for end in COPIES) else "params"
        kind = "buffers" if name.endswith(BUFFERS) else kind
        found[kind] += n_values
    return found


def said_besides(values: Mapping[str, int]) -> list[str]:
    """Say what prediction modules hold that is no parameter of theirs; nothing where nothing is.

    >>> said_besides({"params": 7168, "copies": 1000, "buffers": 0})
    ['of the prediction layers, 1,000 values are copies of embedding and head']
    """
    words = {"copies": "copies of embedding and head", "buffers": "buffers"}
    parts = [
        f"{exact(values[kind])} values are {word}" for kind, word in words.items() if values[kind]
    ]
    return [f"of the prediction layers, {' and '.join(parts)}"] if parts else []


def _numbered(name: str) -> Iterator[tuple[str, int, str]]:
    """Split a name around each number in it:
    `model.layers.61.enorm.weight` gives model.layers, 61, enorm.
    """
    parts = name.split(".")
    for n, part in enumerate(parts[1:-1], start=1):
        if part.isdecimal() and part.isascii() and len(part) < 10:
            yield ".".join(parts[:n]), int(part), parts[n + 1]
