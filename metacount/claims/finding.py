"""What a claim is, what a judge finds, and what is said in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from metacount.claims.text import Words
from metacount.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from metacount.files import Json

RIGHT, CONDITIONAL, WRONG = "right", "conditional", "wrong"
VERDICTS = (RIGHT, CONDITIONAL, WRONG)


@frozen
class Sentence:
    """A sentence, and the conditions under which it is true; see `facts` for both."""

    say: str
    say_zh: str
    where: tuple[str, ...]

    def said(self, lang: str) -> str:
        """Return the sentence in a language, what is computed still between braces."""
        return self.say_zh if lang == "zh" else self.say


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
    condition: tuple[Sentence, ...]
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
    """What a judge found: the verdict, the correct value, and the computation behind both.

    Its texts are in both languages; see `text`.
    `says` is about this claim's numbers; `values` are numbers, texts and facts for the sentences of
    the claim. `condition` is when a conditional statement holds, as far as the judge can say it.
    `headline` is the step of the computation that stands in the list, if one does.
    """

    verdict: str
    says: Words
    correct: Words
    computation: tuple[Words, ...]
    values: Mapping[str, object]
    witness: Words
    headline: Words = ""
    condition: Words = ""


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
