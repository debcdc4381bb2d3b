"""The record of proofs, made by `benchmarks/prove.py`: read without torch, whole or by structure.

`proven` answers for one setting; whoever goes through settings elsewhere (a page in a browser)
needs the cases themselves: `proof_cases`.
"""

from __future__ import annotations

import json
import os

from metacount.frozen import frozen
from metacount.spec.legend import MODEL_TERMS
from metacount.textbook.fingerprints import has_changed, source_of, unix_lines

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
    """Read the whole record; what is of one structure has the same list of conditions."""
    found: Json = json.loads(_bytes())
    found["records"] = [one for of_one in found.pop("structures") for one in _records(of_one)]
    return found


def read_records_of(key: str) -> Json:
    """Read the record with what is of one structure alone:
    reading all of it takes longer than a count.

    `benchmarks/prove.py` writes each structure between lines of two spaces and a brace.
    """
    if key not in _read:
        data = _bytes()
        start = data.index(b',\n "structures": [')
        found: Json = json.loads(data[:start] + b"}")
        mark = f'\n  {{\n   "structure": "{key}",'
        at = data.find(mark.encode(), start)
        end = data.find(b"\n  }", at)
        found["records"] = [] if at < 0 else _records(json.loads(data[at:end] + b"}"))
        _read[key] = found
    return _read[key]


def _bytes() -> bytes:
    found = source_of(os.path.basename(FILE))  # from an archive, too
    if found is None:
        raise FileNotFoundError(FILE)
    return unix_lines(found)


def _records(of_one: Json) -> list[Json]:
    shared = {"structure": of_one["structure"], "conditions": of_one["conditions"]}
    return [{**one, **shared} for one in of_one["records"]]


def all_said(record: Json) -> Iterator[tuple[Json, Json, str, Json]]:
    """Yield (record, case, quantity, what is recorded of it), one after the other."""
    for one in record["records"]:
        for case in one["cases"]:
            for quantity, found in case["quantities"].items():
                yield one, case, quantity, found


@frozen
class Candidate:
    """What was proven against one code: for each quantity its cases, as they are recorded.

    `stale` is a file that is not what was proven: then nothing is said.
    """

    name: str
    stale: str | None
    cases: dict[str, tuple[Json, ...]]


@frozen
class ProofCases:
    """All of one structure: `conditions` are (words, test), which cases name by number."""

    conditions: tuple[tuple[str, str], ...]
    sides: dict[str, tuple[Candidate, ...]]
    transformers: str
    torch: str


def proof_cases(spec: ModelSpec, config: Json | None = None) -> ProofCases | None:
    """Return the cases of a model's structure; None where nothing is recorded of it.

    Of transformers' types those of the model's own type, or of all where it has none.

    >>> from metacount.catalog import entry
    >>> found = proof_cases(entry("llama-7b").spec())
    >>> [candidate.name for candidate in found.sides["reference"]]
    ['deepseek-67b']
    """
    record = read_records_of(structure(spec))
    found = record["records"]
    if not found:
        return None
    own = (config or {}).get("model_type")
    of_types = [one for one in found if one["side"] == CODE]
    of_types = [one for one in of_types if one["name"] == own] or of_types
    of_ours = [one for one in found if one["side"] == OURS]
    return ProofCases(
        conditions=tuple((says, test) for says, test in found[0]["conditions"]),
        sides={
            CODE: tuple(_candidate(one, record) for one in of_types),
            OURS: tuple(_candidate(one, record) for one in of_ours),
        },
        transformers=record["transformers"],
        torch=record["torch"],
    )


def _candidate(one: Json, record: Json) -> Candidate:
    files = (record["file_names"][i] for i in one["files"])
    names = dict.fromkeys(name for case in one["cases"] for name in case["quantities"])
    return Candidate(
        name=one["name"],
        stale=next((name for name in files if has_changed(name, record["files"])), None),
        cases={
            name: tuple(
                case["quantities"][name] for case in one["cases"] if name in case["quantities"]
            )
            for name in names
        },
    )
