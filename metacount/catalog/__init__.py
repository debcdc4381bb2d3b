"""Published models as data: one JSON file each, with its sizes, its published count and the source.

A file holds what others published and what we had to infer; it holds no count of our own.
How our count compares with the published one is computed here, on integers.
"""

from __future__ import annotations

import json
import os

from metacount.errors import SpecError, nearest
from metacount.frozen import frozen
from metacount.spec import ModelSpec

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json


_FOLDER = os.path.dirname(os.path.abspath(__file__))
_ENDING = ".json"

UNEXPLAINED = "unexplained"


class UnknownModel(SpecError):
    """A name that the catalog does not hold."""


class NotExpressible(SpecError):
    """A model of the catalog whose architecture `ModelSpec` has no fields for."""


@frozen
class Published:
    """What others published about the size of a model.

    `label` is the printed, mostly rounded number; `params` an exact integer, where somebody
    published one. `label_meaning` says what the label counts when it is not the parameters.
    """

    label: str | None
    label_meaning: str | None
    params: int | None
    params_source: str | None
    active_label: str | None
    active_label_meaning: str | None
    active_params: int | None


@frozen
class StoredCheckpoint:
    """Values in the published checkpoint; `extra` of them are not parameters of the model."""

    total: int
    extra: int
    note: str | None


@frozen
class CatalogEntry:
    """One published model.

    `sizes` are the fields of its spec that differ from a default, and the required ones.
    `inferred` names the fields that no source states, and how they were chosen. `model_type` is its
    type in transformers, None where that has none; `type_config` what a config of that type has
    beside sizes.
    """

    id: str
    name: str
    family: str
    model_type: str | None
    type_config: Json
    sizes: tuple[tuple[str, object], ...] | None
    not_expressible: str | None
    config: Json | None  # for transformers, of a model that no spec expresses
    published: Published
    explanation: str | None
    stored_checkpoint: StoredCheckpoint | None
    source: tuple[str, ...]
    confidence: str
    evidence_grade: str
    inferred: tuple[str, ...]
    notes: str | None

    def spec(self) -> ModelSpec:
        """Return the model as a checked `ModelSpec`;
        `NotExpressible` says why where there is none.
        """
        if self.sizes is None:
            raise NotExpressible(
                "model",
                "is in the catalog, but has no spec",
                self.id,
                self.not_expressible or "its spec is missing",
            )
        return ModelSpec.from_dict(dict(self.sizes))


@frozen
class Comparison:
    """Our count beside the published one.

    status: `exact` (the published integer), `rounds` (to the label, at its last digit), `differs`,
    or `unpublished`. `difference` is ours minus the published value; 0 where the label is met.
    """

    status: str
    difference: int | None
    percent: str
    explanation: str


_ids: list[str] = []  # the folder is read once


def ids() -> tuple[str, ...]:
    """List every name in the catalog, in alphabetical order."""
    if not _ids:
        names = os.listdir(_FOLDER)
        _ids.extend(sorted(n[: -len(_ENDING)] for n in names if n.endswith(_ENDING)))
    return tuple(_ids)


def entry(id: str) -> CatalogEntry:
    """Load one model of the catalog; reads only its file.

    >>> entry("llama-7b").spec().d_ff
    11008
    """
    known = ids()
    # asking the listing, not the file system, keeps every path outside the catalog out of reach
    if id not in known:
        raise UnknownModel(
            "model", "is not in the catalog", id, nearest(str(id), known, "see `metacount models`")
        )
    with open(os.path.join(_FOLDER, id + _ENDING), encoding="utf-8") as file:
        return _entry(json.load(file))


def entries() -> tuple[CatalogEntry, ...]:
    """Load the whole catalog, in alphabetical order."""
    return tuple(entry(id) for id in ids())


def compare_published(model: CatalogEntry, params: int) -> Comparison:
    """Compare `params` with what others published about `model`.

    An exact published integer decides alone; a label only where there is none. A label that
    counts something else (`label_meaning`) is never met, whatever its digits say.

    >>> compare_published(entry("llama-13b"), 13_015_864_320).status  # the label is 13.0B
    'rounds'
    >>> compare_published(entry("llama-7b"), 6_738_415_617).difference
    1
    """
    from metacount import units

    published = model.published
    if published.params is not None:
        difference = params - published.params
        return _comparison(
            model, difference, published.params, "differs" if difference else "exact"
        )
    if published.label is None:
        return Comparison(
            status="unpublished",
            difference=None,
            percent="n/a",
            explanation=model.explanation or "",
        )
    value, half = units.parse_count(published.label)
    difference = params - value
    if abs(difference) <= half and published.label_meaning is None:
        return _comparison(model, 0, value, "rounds")
    return _comparison(model, difference, value, "differs")


def _comparison(model: CatalogEntry, difference: int, value: int, status: str) -> Comparison:
    from metacount import units

    explanation = model.explanation or (UNEXPLAINED if status == "differs" else "")
    percent = units.relative(difference, value)
    return Comparison(
        status=status, difference=difference, percent=percent, explanation=explanation
    )


def _entry(data: Json) -> CatalogEntry:
    sizes, stored = data["spec"], data["stored_checkpoint"]
    return CatalogEntry(
        id=data["id"],
        name=data["name"],
        family=data["family"],
        model_type=data["model_type"],
        type_config=data.get("type_config", {}),
        sizes=None if sizes is None else tuple(sizes.items()),
        not_expressible=data.get("not_expressible"),
        config=data.get("config"),
        published=Published(**data["published"]),
        explanation=data["explanation"],
        stored_checkpoint=None if stored is None else StoredCheckpoint(**stored),
        source=tuple(data["source"]),
        confidence=data["confidence"],
        evidence_grade=data["evidence_grade"],
        inferred=tuple(data["inferred"]),
        notes=data["notes"],
    )
