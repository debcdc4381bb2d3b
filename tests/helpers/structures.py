"""The catalog's structures, a model for each: sisters differ in sizes alone."""

from __future__ import annotations

from functools import cache

from metacount.catalog import entries
from metacount.textbook.proof_record import structure


@cache
def first_of_each(*, logits: bool = False) -> tuple[str, ...]:
    """The first model of each structure of the catalog; with `logits`, of those that have them."""
    found: dict[str, str] = {}
    for one in entries():
        if one.sizes is None:
            continue
        spec = one.spec()
        if not logits or None not in (spec.embedding, spec.head):
            found.setdefault(structure(spec), one.id)
    return tuple(found.values())
