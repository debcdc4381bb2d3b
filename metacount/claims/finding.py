"""What a claim is, what a judge finds, and what is said in the end."""

from __future__ import annotations

from typing import Any

from metacount.frozen import frozen

RIGHT, CONDITIONAL, WRONG = "right", "conditional", "wrong"
VERDICTS = (RIGHT, CONDITIONAL, WRONG)


@frozen
class Claim:
    """A statement, and which judge with which options decides about it.

    `claimed` holds numbers as they were printed ("67.11M"): the digits say how exact they are.
    `explain` has a text for the verdict that was expected when it was written. It is printed only
    when the computation arrives at that verdict, with the computed numbers filled in.
    """

    id: str
    topic: str
    statement: str
    model: str | None
    claimed: Any
    judge: str
    options: dict[str, Any]
    condition: str | None
    explain: dict[str, str]

    @property
    def stated(self) -> Any:
        """What is claimed: a number as printed, several by name, or a formula."""
        return self.options.get("formula") if self.claimed is None else self.claimed


@frozen
class Finding:
    """What a judge found: the verdict, the correct value, and the computation behind both.

    `says` is one sentence about this claim's numbers; `values` fill the texts of the claim.
    `headline` is the step of the computation that stands in the list, if one does.
    """

    verdict: str
    says: str
    correct: str
    computation: tuple[str, ...]
    values: dict[str, str]
    witness: str
    headline: str = ""


@frozen
class Verdict:
    """The verdict on one claim, as it is printed."""

    claim: Claim
    verdict: str
    correct: str
    condition: str | None
    reason: str
    computation: tuple[str, ...]
    witness: str
    headline: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain data under public names."""
        return {
            "id": self.claim.id,
            "topic": self.claim.topic,
            "statement": self.claim.statement,
            "model": self.claim.model,
            "claimed": self.claim.stated,
            "verdict": self.verdict,
            "correct": self.correct,
            "condition": self.condition,
            "reason": self.reason,
            "computation": list(self.computation),
            "witness": self.witness,
        }
