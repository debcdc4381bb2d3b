"""Claims with something else in them than what is in the data."""

from __future__ import annotations

from typing import Any

from metacount.claims import claims
from metacount.claims.finding import Claim

ALL = {claim.id: claim for claim in claims()}


def changed(id: str, **values: Any) -> Claim:
    """The claim with other values."""
    fields = {name: getattr(ALL[id], name) for name in Claim.__annotations__}
    return Claim(**{**fields, **values})


def with_options(id: str, **options: Any) -> Claim:
    """The claim with other options for its judge."""
    return changed(id, options={**ALL[id].options, **options})
