"""Tensors of a formula beside a module's, by name and shape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import prod
from re import sub
from typing import Any

from metacount.formulas.tape import Weight


def is_called(full: str, name: str) -> bool:
    """Whether a full name ends in the formula's, which says of norms only what they are."""
    before = "._" if name.startswith("layernorm.") else "."
    return any(
        f".{full}".endswith(tuple(f"{dot}{name}{end}" for dot in before)) for end in ("", ".weight")
    )


def unmatched(module: Any, weights: Iterable[Weight]) -> tuple[set[str], dict[str, Any]]:
    """What the formula has and the module has not, by name and shape, and the other way round.

    What the formula has n times is n tensors, or fewer with more axes, as a mixture's experts.
    """
    left = {name: tuple(tensor.shape) for name, tensor in module.named_parameters()}
    asked = Counter[tuple[str, Any]]()
    for weight in weights:
        asked[weight.name, weight.shape] += weight.times * prod(weight.shape)
    missing = set()
    for (name, shape), size in sorted(asked.items(), key=lambda one: -len(one[0][0])):
        of_name = [full for full in left if is_called(sub(r"\.\d+", "", full), name)]
        taken = [full for full in of_name if left[full][-len(shape) :] == shape]
        if sum(prod(left[full]) for full in taken) != size:
            missing.add(name)
            continue
        for full in taken:
            del left[full]
    return missing, left
