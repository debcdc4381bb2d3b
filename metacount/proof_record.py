"""The record of proofs: which formulas were shown equal to code for all sizes.

Made by `benchmarks/prove.py`; read without torch. A proof is of a structure (every switch of a
spec, and which sizes it has), not of sizes; a model of another structure is not covered by it.
"""

from __future__ import annotations

import json
import os

from metacount.frozen import frozen
from metacount.symbols import MODEL_TERMS

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from typing import Any

    from metacount.spec import ModelSpec

FILE = os.path.join(os.path.dirname(__file__), "proofs.json")

_record: dict[str, Any] = {}  # read once

# Numbers of a spec that no count depends on.
NO_COUNTS = ("norm_eps", "rope_theta", "name", "rope_scaling", "rope_scaling_windowed",
             "query_growth", "sinusoid_style")  # fmt: skip
SIZES = frozenset(term.name for term in MODEL_TERMS)


@frozen
class Proven:
    """What is recorded for a structure: by quantity, the conditions on sizes, in words.

    `quantities` were compared with transformers' code of `model_type`, `by_reference` with our
    reference modules.
    """

    model_type: str | None
    quantities: dict[str, tuple[str, ...]]
    by_reference: dict[str, tuple[str, ...]]
    transformers: str
    torch: str

    def to_dict(self) -> dict[str, object]:
        """As plain data."""
        return {
            "quantities": list(self.quantities),
            "where": _where(self.quantities),
            "model_type": self.model_type,
            "reference": {
                "quantities": list(self.by_reference),
                "where": _where(self.by_reference),
            },
            "transformers": self.transformers,
            "torch": self.torch,
        }

    def __str__(self) -> str:
        said = []
        if self.quantities:
            names = ", ".join(self.quantities)
            said.append(f"{names}: equal to the code of {self.model_type} in transformers "
                        f"{self.transformers}")  # fmt: skip
        if self.by_reference:
            names = ", ".join(self.by_reference)
            if said and self.quantities.keys() <= self.by_reference.keys():
                more = [name for name in self.by_reference if name not in self.quantities]
                names = ", ".join(["the same", *more])
            said.append(f"{names}: equal to our reference modules")
        return "for all sizes, " + "; ".join(said) + "; `verify --all-sizes` shows it anew"


def _where(quantities: dict[str, tuple[str, ...]]) -> list[str]:
    return sorted({condition for found in quantities.values() for condition in found})


def structure(spec: ModelSpec) -> str:
    """A spec without its sizes, as one key: every switch, and whether a size is there at all.

    A pattern is kept whole; a step of 1 is no step.
    """
    found = []
    for name, value in spec.to_dict().items():
        if name in NO_COUNTS or isinstance(value, float):
            continue
        if name in SIZES:
            value = bool(value) and not (name == "moe_every" and value == 1)
        if value not in (None, False):
            found.append(name if value is True else f"{name}={value}")
    return " ".join(found)


def proven(spec: ModelSpec) -> Proven | None:
    """The record for models of this structure; None where nothing is recorded."""
    if not _record:
        with open(FILE, encoding="utf-8") as file:
            _record.update(json.load(file))
    key = structure(spec)
    of_type, reference = _record["structures"].get(key, {}), _record["reference"].get(key, {})
    if not of_type and not reference:
        return None
    return Proven(
        model_type=of_type.get("model_type"),
        quantities=_tuples(of_type.get("quantities", {})),
        by_reference=_tuples(reference.get("quantities", {})),
        transformers=_record["transformers"],
        torch=_record["torch"],
    )


def _tuples(quantities: dict[str, list[str]]) -> dict[str, tuple[str, ...]]:
    return {name: tuple(where) for name, where in quantities.items()}
