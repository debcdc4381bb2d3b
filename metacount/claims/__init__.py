"""Well-known statements about transformers, each judged by computing it.

`data/` holds the statements, one file per topic. Nothing there says which of them are right: every
claim names a judge, and the judge computes. `counted`, `compared`, `lengths`, `published`,
`sizes` and `spread` judge numbers by the formulas, `training` what is said of a step, `algebra` and
`whole` judge formulas for all sizes, those of `executed` run the reference modules. The verdicts:

right        it holds; a rounded number holds when the exact one rounds to it
conditional  it holds in some of the cases that it is said of, and not in others
wrong        the number, the formula or a part of the statement is not so

A sentence that explains a verdict stands in the data with the conditions under which it is true,
and is printed only where they were computed to hold; so are its numbers. Every text is there in
English and in Chinese, beside each other in the data; those of the judges are told by `text`.

A formula that is about so many d² is judged by the matrices, which alone grow with d²; biases and
norms are left out, and the explanation says so.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from metacount.claims.finding import CONDITIONAL as CONDITIONAL
from metacount.claims.finding import Claim, Finding, Sentence, Verdict
from metacount.claims.text import in_language, translated
from metacount.languages import LANGUAGES

if TYPE_CHECKING:
    from metacount.files import Json

TOPICS = (
    "block",
    "attention",
    "recurrent",
    "ffn",
    "norm",
    "embedding",
    "position",
    "moe",
    "model",
    "training",
)
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
    "sum_and_rest": "published",
    "tied_head": "published",
    "plain_ffn": "published",
    "two_stacks": "sizes",
    "selected_work": "sizes",
    "selected_cache": "sizes",
    "token_cost": "compared",
    "same_at_length": "lengths",
    "expert_shares": "spread",
    "part_formula": "algebra",
    "dense_flops": "compared",
    "whole_formula": "whole",
    "single_expert": "executed.routing",
    "unselected_gradient": "executed.routing",
    "weight_gradient": "executed.routing",
    "balance": "executed.routing",
    "gate_order": "executed.gates",
    "softmax_places": "executed.softmax",
    "rmsnorm_divisor": "executed.norms",
    "layernorm_roles": "executed.norms",
    "block_norms": "executed.norms",
    "gelu_forms": "executed.equations",
    "moe_by_size": "spread",
    "norm_ratio": "spread",
    "experts_with_gradient": "executed.gates",
    "mixture_sum": "executed.gates",
    "ffn_equation": "executed.equations",
    "activation_forms": "executed.equations",
    "sinusoids": "executed.positions",
    "reach": "executed.reach",
    "position_params": "executed.positions",
    "rope_shift": "executed.positions",
    "step_ratio": "training.flops",
    "bytes_per_parameter": "training.memory",
    "kept_formula": "training.memory",
    "adapter_state": "training.memory",
}
# its files import torch
RUNNING = "executed."


def claims() -> tuple[Claim, ...]:
    """Return every claim, by topic.

    >>> [claim.id for claim in claims()][:2]
    ['block-512-total', 'block-512-share']
    """
    return tuple(claim for topic in TOPICS for claim in _read(topic))


def find_claim(id: str) -> Claim:
    """Find the claim with an id; raise `SpecError` with the nearest id where none has it."""
    from metacount.errors import SpecError, nearest

    known = {claim.id: claim for claim in claims()}
    if id not in known:
        raise SpecError("claim", "is not known", id, nearest(id, known, "see `metacount claims`"))
    return known[id]


def needs_torch(claim: Claim) -> bool:
    """Tell whether judging a claim runs modules."""
    return JUDGES[claim.judge].startswith(RUNNING)


def judge_claim(claim: Claim | str, *, lang: str = "en") -> Verdict:
    """Compute the verdict on one claim, or on the one with that id; `lang` is en or zh.

    >>> judge_claim("mixtral-total").verdict, judge_claim("mixtral-total").correct
    ('wrong', '46,702,792,704')
    >>> judge_claim("block-512-ffn", lang="zh").reason
    '精确值为 2,097,152。是注意力的两倍。'
    """
    from metacount.errors import SpecError

    if lang not in LANGUAGES:
        raise SpecError("lang", "is not known", lang, f"choose one of {', '.join(LANGUAGES)}")
    if isinstance(claim, str):
        claim = find_claim(claim)
    try:
        return _judged(claim, lang)
    except SpecError:
        raise
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RuntimeError,
        SyntaxError,
        TypeError,
        ValueError,
    ) as error:
        raise SpecError(
            "claim",
            "cannot be judged as it stands in the data",
            claim.id,
            f"{type(error).__name__}: {error}",
        ) from error


def _judged(claim: Claim, lang: str) -> Verdict:
    from metacount.claims.facts import sentences

    judge = getattr(import_module(f"{__name__}.judges.{JUDGES[claim.judge]}"), claim.judge)
    found: Finding = judge(claim)
    condition = None
    if found.verdict == CONDITIONAL:
        told = sentences(claim, found, claim.condition, lang)
        condition = told or in_language(found.condition, lang)
    explain = sentences(claim, found, claim.explain, lang)
    return Verdict(
        claim=claim,
        verdict=found.verdict,
        correct=in_language(found.correct, lang),
        condition=condition,
        reason=translated(" ", lang).join(filter(None, (in_language(found.says, lang), explain))),
        computation=tuple(in_language(line, lang) for line in found.computation),
        witness=in_language(found.witness, lang),
        headline=in_language(found.headline, lang),
        lang=lang,
    )


def _read(topic: str) -> list[Claim]:
    with open(DATA / f"{topic}.json", encoding="utf-8") as file:
        return [
            Claim(
                id=item["id"],
                topic=topic,
                statement=item["statement"],
                statement_zh=item["statement_zh"],
                model=item.get("model"),
                claimed=item.get("claimed"),
                judge=item["judge"],
                options=item.get("options", {}),
                condition=_sentences(item.get("condition", [])),
                explain=_sentences(item.get("explain", [])),
            )
            for item in json.load(file)
        ]


def _sentences(items: list[Json]) -> tuple[Sentence, ...]:
    return tuple(
        Sentence(say=item["say"], say_zh=item["say_zh"], where=tuple(item["where"]))
        for item in items
    )
