"""Well-known statements about transformers, each judged by computing it.

`data/` holds the statements, one file per topic. Nothing there says which of them are right: every
claim names a judge, and the judge computes. `counted`, `compared`, `sizes` and `spread` judge
numbers by the formulas, `algebra` and `whole` judge formulas for all sizes, `routing`, `gates`,
`norms` and `running` run the reference modules. The verdicts:

right        it holds; a rounded number holds when the exact one rounds to it
conditional  it holds in some of the cases that it is said of, and not in others
wrong        the number, the formula or a part of the statement is not so

A sentence that explains a verdict stands in the data with the conditions under which it is true,
and is printed only where they were computed to hold; so are its numbers.

A formula that is about so many d² is judged by the matrices, which alone grow with d²; biases and
norms are left out, and the explanation says so.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

from metacount.claims.finding import CONDITIONAL as CONDITIONAL
from metacount.claims.finding import Claim, Sentence, Verdict

TOPICS = ("block", "attention", "ffn", "norm", "embedding", "position", "moe", "model")
DATA = Path(__file__).parent / "data"

# judge -> the file of this package that holds it
JUDGES = {
    "count": "counted",
    "counts": "counted",
    "shares": "counted",
    "readings": "counted",
    "fields": "sizes",
    "catalog_shares": "spread",
    "same_top_k": "spread",
    "same_part": "compared",
    "growth": "compared",
    "gated_width": "compared",
    "sum_and_rest": "compared",
    "tied_head": "compared",
    "plain_ffn": "compared",
    "two_stacks": "sizes",
    "token_cost": "compared",
    "expert_shares": "spread",
    "part_formula": "algebra",
    "dense_flops": "compared",
    "whole_formula": "whole",
    "single_expert": "routing",
    "unselected_gradient": "routing",
    "weight_gradient": "routing",
    "balance": "routing",
    "gate_order": "gates",
    "softmax_places": "running",
    "rmsnorm_divisor": "norms",
    "layernorm_roles": "norms",
    "block_norms": "norms",
    "gelu_forms": "running",
    "position_params": "running",
    "rope_shift": "running",
}
# these import torch
RUNNING = ("routing", "gates", "norms", "running")


def claims() -> tuple[Claim, ...]:
    """Every claim, by topic.

    >>> [claim.id for claim in claims()][:2]
    ['block-512-total', 'block-512-share']
    """
    return tuple(claim for topic in TOPICS for claim in _read(topic))


def find_claim(id: str) -> Claim:
    """One claim; `SpecError` with the nearest id for one that is not there."""
    from metacount.errors import SpecError, nearest

    known = {claim.id: claim for claim in claims()}
    if id not in known:
        raise SpecError("claim", "is not known", id, nearest(id, known, "see `metacount claims`"))
    return known[id]


def needs_torch(claim: Claim) -> bool:
    """Whether judging it runs modules."""
    return JUDGES[claim.judge] in RUNNING


def judge_claim(claim: Claim | str) -> Verdict:
    """Compute the verdict on one claim, or on the one with that id.

    >>> judge_claim("mixtral-total").verdict, judge_claim("mixtral-total").correct
    ('wrong', '46,702,792,704')
    """
    if isinstance(claim, str):
        claim = find_claim(claim)
    from metacount.errors import SpecError

    try:
        return _judged(claim)
    except SpecError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, SyntaxError, TypeError,
            ValueError) as error:  # fmt: skip
        raise SpecError("claim", "cannot be judged as it stands in the data", claim.id,
                        f"{type(error).__name__}: {error}") from error  # fmt: skip


def _judged(claim: Claim) -> Verdict:
    from metacount.claims.facts import sentences

    judge = getattr(import_module(f"{__name__}.judges.{JUDGES[claim.judge]}"), claim.judge)
    found = judge(claim)
    condition = None
    if found.verdict == CONDITIONAL:
        condition = sentences(claim, found, claim.condition) or found.condition
    explain = sentences(claim, found, claim.explain)
    return Verdict(
        claim=claim,
        verdict=found.verdict,
        correct=found.correct,
        condition=condition,
        reason=f"{found.says} {explain}".strip(),
        computation=found.computation,
        witness=found.witness,
        headline=found.headline,
    )


def _read(topic: str) -> list[Claim]:
    with open(DATA / f"{topic}.json", encoding="utf-8") as file:
        return [
            Claim(
                id=item["id"],
                topic=topic,
                statement=item["statement"],
                model=item.get("model"),
                claimed=item.get("claimed"),
                judge=item["judge"],
                options=item.get("options", {}),
                condition=_sentences(item.get("condition", [])),
                explain=_sentences(item.get("explain", [])),
            )
            for item in json.load(file)
        ]


def _sentences(items: list[dict[str, Any]]) -> tuple[Sentence, ...]:
    return tuple(Sentence(say=item["say"], where=tuple(item["where"])) for item in items)
