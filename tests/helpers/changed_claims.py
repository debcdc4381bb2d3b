"""Claims of the data with their verdicts, and with something else in them."""

from __future__ import annotations

from functools import cache
from typing import Any

from metacount.teaching.claims import claims, judge_claim
from metacount.teaching.texts import Claim, Verdict

ALL = {claim.id: claim for claim in claims()}


@cache
def verdict_on(id: str, lang: str = "en") -> Verdict:
    """The verdict on a claim as it is in the data, worked out once in a process."""
    return judge_claim(id, lang=lang)


def changed(id: str, **values: Any) -> Claim:
    """The claim with other values."""
    fields = {name: getattr(ALL[id], name) for name in Claim.__annotations__}
    return Claim(**{**fields, **values})


def with_options(id: str, **options: Any) -> Claim:
    """The claim with other options for its judge."""
    return changed(id, options={**ALL[id].options, **options})
