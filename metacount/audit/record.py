"""What is recorded of a formula in use: where it stands, what it is, and what it says it counts.

`data/` has a file for each source. A formula is restated there in our words, as a sum of terms:
text in the language of `check`, each under a condition on the model's structure. Nothing in the
data says whether a formula is right; `judge` computes it.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from metacount.errors import InputError, nearest, shown
from metacount.frozen import frozen

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Iterator

    from metacount.files import Json

DATA = Path(__file__).parent / "data"
RESULTS = Path(__file__).parent / "compared.json"  # written by benchmarks/frameworks.py

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
    function: str = ""
    says: str
    convention: str | None
    scope: str
    scope_says: str
    terms: tuple[Term, ...]
    misses: tuple[Term, ...] = ()
    threads: tuple[str, ...] = ()
    note: str = ""

    @property
    def judged(self) -> bool:
        """Whether metacount has a count to judge it by."""
        return self.convention is not None

    @property
    def where(self) -> str:
        """The project, what of it was read, and the place in it."""
        return f"{self.source.project} {self.source.version}, {self.place}".replace(" ,", ",")

    def to_dict(self) -> Json:
        """Convert what is recorded to plain data."""
        return {
            "id": self.id,
            "source": self.source.id,
            **{name: value for name, value in vars(self.source).items() if name != "id"},
            "place": self.place,
            "function": self.function,
            "kind": self.kind,
            "says": self.says,
            "convention": self.convention,
            "scope": self.scope_says,
            "judged": self.judged,
            "terms": [vars(term) for term in self.terms],
            "misses": [vars(term) for term in self.misses],
            "threads": list(self.threads),
            "note": self.note,
        }


def _read(path: Path) -> Iterator[Formula]:
    data: Json = json.loads(path.read_text("utf-8"))
    items = data.pop("formulas")
    source = Source(id=path.stem, **{"read": True, **data})
    for item in items:
        terms = {
            name: tuple(Term(**term) for term in item.get(name, ())) for name in ("terms", "misses")
        }
        own = {"id": f"{path.stem}-{item['id']}", "threads": tuple(item.get("threads", ()))}
        yield Formula(source=source, **{**item, **terms, **own})


def formulas() -> tuple[Formula, ...]:
    """Return every formula, by source.

    >>> "megatron-lm-training" in [formula.id for formula in formulas()]
    True
    """
    return tuple(formula for path in sorted(DATA.glob("*.json")) for formula in _read(path))


def chosen(names: tuple[str, ...]) -> tuple[Formula, ...]:
    """Choose the formulas with these ids or of these sources; every one where none is named."""
    known = formulas()
    ids = {formula.id for formula in known} | {formula.source.id for formula in known}
    for name in names:
        if name not in ids:
            remedy = nearest(name, ids, "see `metacount audit`")
            raise InputError(f"formula '{shown(name)}' is not known; {remedy}")
    return tuple(f for f in known if not names or f.id in names or f.source.id in names)


@cache
def compared() -> dict[str, Json]:
    """Read by id which restatements were compared with the real function: version, sizes tried."""
    answers: dict[str, Json] = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    return answers
