"""What a claim is, what a judge finds, and what is said in the end; numbers as they are printed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from metacount.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from metacount.files import Json
    from metacount.teaching.texts import Sentence, Text

RIGHT, CONDITIONAL, WRONG = "right", "conditional", "wrong"
VERDICTS = (RIGHT, CONDITIONAL, WRONG)


@frozen
class Claim:
    """A statement, and which judge with which options decides about it.

    `claimed` holds numbers as they were printed ("67.11M"): the digits say how exact they are.
    The sentences of `explain` and `condition` are printed where what they say was computed.
    """

    id: str
    topic: str
    statement: str
    statement_zh: str
    model: str | None
    claimed: Any
    judge: str
    options: Json
    condition: Text
    explain: tuple[Sentence, ...]

    def said(self, lang: str) -> str:
        """Return the statement in a language."""
        return self.statement_zh if lang == "zh" else self.statement

    @property
    def stated(self) -> object:
        """What is claimed: a number as printed, several by name, or a formula."""
        return self.options.get("formula") if self.claimed is None else self.claimed


@frozen
class Finding:
    """What a judge found: the verdict, and the values that its texts and the claim's speak of."""

    verdict: str
    values: Mapping[str, object]


def found(holds: Iterable[bool], /, **values: object) -> Finding:
    """Return the values, with the verdict: right if everything holds, conditional if something."""
    each = list(holds)
    return Finding(
        verdict=RIGHT if all(each) else CONDITIONAL if any(each) else WRONG, values=values
    )


@frozen
class Verdict:
    """The verdict on one claim, as it is printed in a language; `verdict` is one of `VERDICTS`."""

    claim: Claim
    verdict: str
    correct: str
    condition: str | None
    reason: str
    computation: tuple[str, ...]
    witness: str
    headline: str = ""
    lang: str = "en"

    @property
    def statement(self) -> str:
        """The statement in the verdict's language."""
        return self.claim.said(self.lang)

    def to_dict(self) -> Json:
        """Return the verdict as plain data under public names."""
        return {
            "id": self.claim.id,
            "topic": self.claim.topic,
            "statement": self.statement,
            "model": self.claim.model,
            "claimed": self.claim.stated,
            "verdict": self.verdict,
            "correct": self.correct,
            "condition": self.condition,
            "reason": self.reason,
            "computation": list(self.computation),
            "witness": self.witness,
            "lang": self.lang,
        }
