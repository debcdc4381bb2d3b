"""The record of proofs: which formulas were shown equal to transformers' code for all sizes.

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
NO_COUNTS = ("norm_eps", "rope_theta", "name")
SIZES = frozenset(term.name for term in MODEL_TERMS)


@frozen
class Proven:
    """What is recorded for a structure: by quantity, the conditions on sizes, in words."""

    model_type: str
    quantities: dict[str, tuple[str, ...]]
    transformers: str
    torch: str

    def to_dict(self) -> dict[str, object]:
        """As plain data."""
        return {
            "quantities": list(self.quantities),
            "where": sorted({condition for all in self.quantities.values() for condition in all}),
            "model_type": self.model_type,
            "transformers": self.transformers,
            "torch": self.torch,
        }

    def __str__(self) -> str:
        names = ", ".join(self.quantities)
        return (f"{names}: equal for all sizes to the code of {self.model_type} in transformers "
                f"{self.transformers}; `verify --all-sizes` shows it anew")  # fmt: skip


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
    data = _record
    record = data["structures"].get(structure(spec))
    if record is None:
        return None
    return Proven(
        model_type=record["model_type"],
        quantities={name: tuple(where) for name, where in record["quantities"].items()},
        transformers=data["transformers"],
        torch=data["torch"],
    )
