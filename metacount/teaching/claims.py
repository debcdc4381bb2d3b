"""Well-known statements about transformers, each judged by computing it.

`data/` holds the statements, one file per topic. Nothing there says which of them are right: every
claim names a judge, a function of `judges/`, which computes plain values and a verdict from them:

right        it holds; a rounded number holds when the exact one rounds to it
conditional  it holds in some of the cases that it is said of, and not in others
wrong        the number, the formula or a part of the statement is not so

What is said of the values stands in the data as well, in English and Chinese: the texts of a judge
in `data/judges.json`, what explains a single claim beside it. See `texts`.

A formula that is about so many d² is judged by the matrices, which alone grow with d²; biases and
norms are left out, and the explanation says so.
"""

from __future__ import annotations

import json
import os
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from metacount.languages import LANGUAGES
from metacount.measure.isolated import isolated
from metacount.teaching.texts import (
    CONDITIONAL,
    DATA,
    Claim,
    Finding,
    Verdict,
    computed,
    found,
    lines,
    text_of,
    translated,
    written,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from metacount.files import Json
    from metacount.teaching.texts import Text

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
# file of `judges/` -> its judges; those of `executed` run modules, and others are expressions
JUDGES = {
    judge: file
    for file, judges in {
        "algebra": "part_formula dense_flops whole_formula step_ratio kept_formula "
        "bytes_per_parameter adapter_state same_at_length",
        "executed": "single_expert unselected_gradient weight_gradient balance gate_order "
        "experts_with_gradient mixture_sum softmax_places rmsnorm_divisor layernorm_roles "
        "block_norms gelu_forms ffn_equation activation_forms sinusoids position_params "
        "rope_shift reach",
    }.items()
    for judge in judges.split()
}


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
    return JUDGES.get(claim.judge) == "executed"


@isolated
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
    from metacount.teaching.parts import About

    texts, expressions = texts_of_judges()[claim.judge]
    finding = judge_in(claim.judge)(claim) if not expressions else _computed(claim, expressions)
    known = About(claim, finding, lang, texts)
    condition = None
    if finding.verdict == CONDITIONAL:
        condition = written(claim.condition, known) or written(texts["condition"], known)
    reason = [written(text, known) for text in (texts["says"], claim.explain)]
    return Verdict(
        claim=claim,
        verdict=finding.verdict,
        correct=written(texts["correct"], known),
        condition=condition,
        reason=translated(" ", lang).join(filter(None, reason)),
        computation=tuple(lines(texts["computation"], known)),
        witness=written(texts["witness"], known),
        headline=written(texts.get("headline", ()), known),
        lang=lang,
    )


def judge_in(name: str) -> Callable[[Claim], Finding]:
    """Import the judge that is a function of `judges/`."""
    judge: Callable[[Claim], Finding] = getattr(
        import_module(f"metacount.teaching.judges.{JUDGES[name]}"), name
    )
    return judge


def _computed(claim: Claim, expressions: Json) -> Finding:
    """Judge by expressions: the values, one after the other, then what has to hold."""
    from metacount.teaching.parts import About

    known = About(claim, None, "en", {})
    values: dict[str, Any] = {}
    for name, expression in expressions["values"].items():
        value = computed(expression, known)
        more = value if name == "*" else {name: value}
        values |= more
        known.values |= more
    return found(map(bool, computed(expressions["holds"], known)), **values)


@lru_cache
def texts_of_judges() -> dict[str, tuple[dict[str, Text], Json]]:
    """Read of every judge its texts by name: says, correct, computation, witness and others.

    And the expressions of a judge that is no function: `values` by name, `*` for several at once,
    and `holds`, the list of what the verdict goes by.
    """
    with open(os.path.join(DATA, "judges.json"), encoding="utf-8") as file:
        data: dict[str, Json] = json.load(file)
    judges: dict[str, tuple[dict[str, Text], Json]] = {}
    for judge, texts in data.items():
        expressions: Json = {it: texts.pop(it) for it in ("values", "holds") if it in texts}
        judges[judge] = {name: text_of(text) for name, text in texts.items()}, expressions
    return judges


def _read(topic: str) -> list[Claim]:
    with open(os.path.join(DATA, f"{topic}.json"), encoding="utf-8") as file:
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
                condition=text_of(item.get("condition", [])),
                explain=text_of(item.get("explain", [])),
            )
            for item in json.load(file)
        ]
