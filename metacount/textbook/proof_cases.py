"""What the record of proofs holds of one structure, case by case: to be asked at other sizes.

`proven` answers for one setting; whoever goes through settings elsewhere (a page in a browser)
needs the cases themselves.
"""

from __future__ import annotations

from metacount.frozen import frozen
from metacount.textbook.fingerprints import has_changed
from metacount.textbook.proven import CODE, OURS, read_records_of, structure

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from typing import Any

    from metacount.spec import ModelSpec


@frozen
class Candidate:
    """What was proven against one code: for each quantity its cases, as they are recorded.

    `stale` is a file that is not what was proven: then nothing is said.
    """

    name: str
    stale: str | None
    cases: dict[str, tuple[dict[str, Any], ...]]


@frozen
class ProofCases:
    """All of one structure: `conditions` are (words, test), which cases name by number."""

    conditions: tuple[tuple[str, str], ...]
    sides: dict[str, tuple[Candidate, ...]]
    transformers: str
    torch: str


def proof_cases(spec: ModelSpec, config: dict[str, Any] | None = None) -> ProofCases | None:
    """The cases of a model's structure; None where nothing is recorded of it.

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


def _candidate(one: dict[str, Any], record: dict[str, Any]) -> Candidate:
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
