"""What is recorded of a formula in use: where it stands, what it is, and what it says it counts.

`data/` has a file for each source. A formula is restated there in our words, as a sum of terms:
text in the language of `check`, each under a condition on the model's structure. Nothing in the
data says whether a formula is right; `judge` computes it.
"""

from __future__ import annotations

import json
from pathlib import Path

from metacount.errors import InputError, nearest, shown
from metacount.frozen import frozen

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json

DATA = Path(__file__).parent / "data"
RESULTS = Path(__file__).parent / "compared.json"

# what is counted -> the words for it
KINDS = {
    "params": "parameters",
    "active_params": "active parameters",
    "forward": "FLOPs of a forward",
    "training": "FLOPs of training",
    "kv_cache": "bytes of the KV cache",
    "activations": "bytes of activations",
    "optimizer": "bytes of weights, gradients and optimizer",
}
FLOPS = ("forward", "training")
NO_COUNT = "not judged: metacount has no count of this yet"


@frozen
class Term:
    """A part of a formula: in words, as text, and for which structures it is there."""

    of: str
    text: str
    where: str = "True"


@frozen
class Source:
    """A project, a paper or a book. `version` is what was read; `read` says how it was read."""

    id: str
    name: str
    project: str
    version: str
    read: bool


@frozen
class Formula:
    """One formula of one source.

    `convention` is what it says it counts, in the letters of `count --conventions`; None where
    metacount has no count of its kind. `scope` is a condition on a model: those that the source
    means it for. `misses` are terms by which it leaves its convention, theirs less ours.
    """

    id: str
    source: Source
    kind: str
    place: str
    function: str
    says: str
    convention: str | None
    scope: str
    scope_says: str
    terms: tuple[Term, ...]
    misses: tuple[Term, ...]
    threads: tuple[str, ...]
    note: str

    @property
    def judged(self) -> bool:
        """Whether metacount has a count to judge it by."""
        return self.convention is not None

    @property
    def where(self) -> str:
        """The project, what of it was read, and the place in it."""
        return f"{self.source.project} {self.source.version}, {self.place}".replace(" ,", ",")


def _terms(items: list[dict[str, str]]) -> tuple[Term, ...]:
    return tuple(Term(**item) for item in items)


def _read(path: Path) -> tuple[Formula, ...]:
    data: Json = json.loads(path.read_text("utf-8"))
    source = Source(
        id=path.stem,
        name=data["name"],
        project=data["project"],
        version=data["version"],
        read=data.get("read", True),
    )
    return tuple(
        Formula(
            id=f"{path.stem}-{item['id']}",
            source=source,
            kind=item["kind"],
            place=item["place"],
            function=item.get("function", ""),
            says=item["says"],
            convention=item["convention"],
            scope=item["scope"],
            scope_says=item["scope_says"],
            terms=_terms(item["terms"]),
            misses=_terms(item.get("misses", [])),
            threads=tuple(item.get("threads", ())),
            note=item.get("note", ""),
        )
        for item in data["formulas"]
    )


def formulas() -> tuple[Formula, ...]:
    """Return every formula, by source.

    >>> "megatron-lm-training" in [formula.id for formula in formulas()]
    True
    """
    return tuple(formula for path in sorted(DATA.glob("*.json")) for formula in _read(path))


def chosen(names: tuple[str, ...]) -> tuple[Formula, ...]:
    """Choose the formulas with these ids or of these sources; every one where none is named."""
    known = formulas()
    if not names:
        return known
    ids = {formula.id for formula in known} | {formula.source.id for formula in known}
    for name in names:
        if name not in ids:
            remedy = nearest(name, ids, "see `metacount audit`")
            raise InputError(f"formula '{shown(name)}' is not known; {remedy}")
    return tuple(f for f in known if f.id in names or f.source.id in names)


def compared() -> dict[str, Json]:
    """Read by id which restatements were compared with the real function: version, how many sizes.

    Written by benchmarks/frameworks.py.
    """
    if not RESULTS.exists():
        return {}
    found: dict[str, Json] = json.loads(RESULTS.read_text("utf-8"))
    return found
