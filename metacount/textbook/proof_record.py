"""The record of proofs, made by `benchmarks/prove.py`: read without torch, whole or by structure.

Of each structure it has the textbook's closed forms, each in total and in the spec's own names;
conditions on sizes; and for each code and case under which of these conditions a form is what the
code does, with a digest of the textbook's and of the code's expression as they were compared.
"""

from __future__ import annotations

import json
import os

from metacount.files import read_of_package
from metacount.spec.legend import MODEL_TERMS

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Iterator

    from metacount.files import Json
    from metacount.spec import ModelSpec

FILE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "proofs.json")

_read: dict[str, Json] = {}  # by structure, each read once

# Numbers of a spec that no count depends on; prediction modules are counted apart.
NO_COUNTS = (
    "norm_eps",
    "rope_theta",
    "name",
    "rope_scaling",
    "rope_scaling_windowed",
    "query_growth",
    "sinusoid_style",
    "n_mtp_layers",
    "mtp_dense",
    "altup_active",
    "activation_sparsity",
    "sparsity_pattern",
)
ONE_WIDTH = ("d_ff_pattern", "M")
SIZES = frozenset(term.name for term in MODEL_TERMS) - {*NO_COUNTS}
CODE, OURS = "transformers", "reference"


def structure(spec: ModelSpec) -> str:
    """Write a spec without its sizes, as one key: every switch, and whether a size is there at all.

    A pattern is kept whole; a step of 1 is no step, one width of feed-forwards no pattern. Which
    sizes were letters, and which numbers the others were, is in the conditions of each case.
    """
    found = []
    for name, value in spec.to_dict().items():
        if name in NO_COUNTS or isinstance(value, float) or (name, value) == ONE_WIDTH:
            continue
        if name in SIZES:
            value = bool(value) and not (name == "moe_every" and value == 1)
        if value not in (None, False):
            found.append(name if value is True else f"{name}={value}")
    return " ".join(found)


def read_record() -> Json:
    """Read the whole record: `structures`, each with its forms, conditions and records."""
    found: Json = json.loads(read_of_package(os.path.basename(FILE)))
    return found


def read_structure(key: str) -> Json | None:
    """Read what is recorded of one structure alone, with the versions of the codes; None where
    nothing is: reading all of the record takes longer than a count.

    `benchmarks/prove.py` writes each structure between lines of two spaces and a brace.
    """
    if key not in _read:
        data = read_of_package(os.path.basename(FILE))
        start = data.index(b',\n "structures": [')
        at = data.find(f'\n  {{\n   "structure": "{key}",'.encode(), start)
        end = data.find(b"\n  }", at)
        versions: Json = json.loads(data[:start] + b"}")
        _read[key] = {} if at < 0 else {**versions, **json.loads(data[at:end] + b"}")}
    return _read[key] or None


def by_side(of_one: Json, own_type: str | None) -> dict[str, list[Json]]:
    """Return the records of a structure by side: of transformers' types the model's own where that
    is recorded, else all.
    """
    sides = {side: [r for r in of_one["records"] if r["side"] == side] for side in (CODE, OURS)}
    own = [one for one in sides[CODE] if one["name"] == own_type]
    return {**sides, CODE: own or sides[CODE]}


def all_said(record: Json) -> Iterator[tuple[Json, Json, Json, str, Json]]:
    """Yield (structure, record, case, quantity, what is recorded of it), one after the other."""
    for of_one in record["structures"]:
        for one in of_one["records"]:
            for case in one["cases"]:
                for quantity, found in case["quantities"].items():
                    yield of_one, one, case, quantity, found
