"""Well-known statements about transformers, each judged by computing it.

`data/` holds the statements, one file per topic. Nothing there says which of them are right: every
claim names a judge, a row of `data/judges.json`: the values that are computed, by expressions and
by functions of the file that it `uses`, or of `experiments/` if it `runs` one, and what has to hold
of them. Then a claim is

right        if everything holds; a rounded number holds when the exact one rounds to it
conditional  if it holds in some of the cases that it is said of, and not in others
wrong        if the number, the formula or a part of the statement is not so

What is said of the values stands in the data as well, in English and Chinese: the texts of a judge
beside its values, what explains a single claim beside that. See `texts`.

A formula that is about so many d² is judged by the matrices, which alone grow with d²; biases and
norms are left out, and the explanation says so.
"""

from __future__ import annotations

import json
import os
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from metacount import catalog
from metacount.errors import SpecError, nearest
from metacount.formulas import model
from metacount.languages import LANGUAGES
from metacount.measure.isolated import isolated
from metacount.spec import FIELDS, ModelSpec
from metacount.spec.rules import beyond_branches
from metacount.teaching.parts import Subject, computation, models, value, without_biases
from metacount.teaching.texts import (
    CONDITIONAL,
    DATA,
    RIGHT,
    VERDICTS,
    WRONG,
    Claim,
    Verdict,
    computed,
    evaluated,
    lines,
    text_of,
    translated,
    written,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType

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


def claims() -> tuple[Claim, ...]:
    """Return every claim, by topic.

    >>> [claim.id for claim in claims()][:2]
    ['block-512-total', 'block-512-share']
    """
    return tuple(claim for topic in TOPICS for claim in _read(topic))


def find_claim(id: str) -> Claim:
    """Find the claim with an id; raise `SpecError` with the nearest id where none has it."""
    known = {claim.id: claim for claim in claims()}
    if id not in known:
        raise SpecError("claim", "is not known", id, nearest(id, known, "see `metacount claims`"))
    return known[id]


def needs_torch(claim: Claim) -> bool:
    """Tell whether judging a claim runs modules."""
    return "runs" in judges()[claim.judge][1]


class About(Subject):
    """What the names in a claim's texts stand for.

    What is known of the claim's model, what the judge computed, and the verdict.
    """

    def __init__(self, claim: Claim, lang: str = "en", uses: tuple[ModuleType, ...] = ()) -> None:
        values: dict[str, object] = {"claimed": claim.claimed, "options": claim.options}
        if claim.model is not None:
            entry = catalog.entry(claim.model)
            spec = entry.spec().replace(**claim.options.get("set", {}))
            values |= spec.to_dict() | {"name": entry.name, "entry": entry, "spec": spec}
        super().__init__(values, lang, judges()[claim.judge][0])
        self.claim, self.uses = claim, uses

    @property
    def spec(self) -> ModelSpec:
        """The claim's model, with the sizes that the claim sets itself."""
        return cast("ModelSpec", self.name("spec"))

    def call(self, name: str, arguments: Sequence[Any], options: Mapping[str, Any]) -> object:
        """Compute what a model has, or one of `OF_CLAIMS`."""
        if name not in OF_CLAIMS:
            return super().call(name, arguments, options)
        return OF_CLAIMS[name](self, *arguments, **options)

    def other(self, id: str | None = None, **changes: Any) -> ModelSpec:
        """Return the model with that id, or the claim's, with other values of fields."""
        return (self.spec if id is None else catalog.entry(id).spec()).replace(**changes)


OF_CLAIMS: dict[str, Callable[..., object]] = {
    # the claim's formula, at a model
    "stated": lambda about, *id: evaluated(
        about.claim.options["formula"], about.other(*id).to_dict()
    ),
    # a part that goes by a name of the data; the same in letters and numbers
    "part": lambda about, part, *id: value(about.other(*id), part),
    "steps": lambda about, part, *id, **changes: computation(about.other(*id, **changes), part),
    "field": lambda about, name: getattr(about.spec, name),
    "role": lambda about, role: model.params_by_role(about.spec)[role],
    "model_biases": lambda about: (
        model.params(about.spec) - model.params(without_biases(about.spec))
    ),
    "true": lambda about, conditions: all(computed(it, about) is True for it in conditions),
    # the model itself with other values of fields; without fields whose names start so
    "changed": lambda about, **changes: about.other(**changes),
    "without": lambda about, *starts: about.other(
        **{name: field.absent for name, field in FIELDS.items() if name.startswith(starts)}
    ),
    "catalog": lambda _, id: catalog.entry(id),
    "roles": lambda _, spec: model.params_by_role(spec),
    "beyond_branches": lambda _, spec: beyond_branches(spec),
    "models": lambda _: models(),
}


@isolated
def judge_claim(claim: Claim | str, *, lang: str = "en") -> Verdict:
    """Compute the verdict on one claim, or on the one with that id; `lang` is en or zh.

    >>> judge_claim("mixtral-total").verdict, judge_claim("mixtral-total").correct
    ('wrong', '46,702,792,704')
    >>> judge_claim("block-512-ffn", lang="zh").reason
    '精确值为 2,097,152。是注意力的两倍。'
    """
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
    """Compute the values, one after the other, then what has to hold; then write the texts."""
    texts, judge = judges()[claim.judge]
    uses = [f"experiments.{judge['runs']}"] if "runs" in judge else judge.get("uses", "").split()
    modules = tuple(import_module(f"metacount.teaching.{name}") for name in uses)
    known = About(claim, uses=modules)
    for name, expression in judge["values"].items():
        result = computed(expression, known)
        known.values |= result if name == "*" else {name: result}
    verdict = computed(judge["holds"], known)
    if not isinstance(verdict, str):
        each = [bool(it) for it in verdict]
        verdict = RIGHT if all(each) else CONDITIONAL if any(each) else WRONG
    known.lang = lang
    known.values = {name: name == verdict for name in VERDICTS} | known.values
    condition = None
    if verdict == CONDITIONAL:
        condition = written(claim.condition, known) or written(texts["condition"], known)
    reason = [written(text, known) for text in (texts["says"], claim.explain)]
    return Verdict(
        claim=claim,
        verdict=verdict,
        correct=written(texts["correct"], known),
        condition=condition,
        reason=translated(" ", lang).join(filter(None, reason)),
        computation=tuple(lines(texts["computation"], known)),
        witness=written(texts["witness"], known),
        headline=written(texts.get("headline", ()), known),
        lang=lang,
    )


@lru_cache
def judges() -> dict[str, tuple[dict[str, Text], Json]]:
    """Read of every judge its texts by name: says, correct, computation, witness and others.

    And how it judges: `uses` or `runs` a file of functions; `values` by name, `*` for several at
    once; and `holds`, the list of what the verdict goes by, or the verdict.
    """
    with open(os.path.join(DATA, "judges.json"), encoding="utf-8") as file:
        data: dict[str, Json] = json.load(file)
    rows: dict[str, tuple[dict[str, Text], Json]] = {}
    for name, texts in data.items():
        how: Json = {it: texts.pop(it) for it in ("uses", "runs", "values", "holds") if it in texts}
        rows[name] = {title: text_of(text) for title, text in texts.items()}, how
    return rows


def _read(topic: str) -> list[Claim]:
    with open(os.path.join(DATA, f"{topic}.json"), encoding="utf-8") as file:
        return [
            Claim(
                **{"model": None, "claimed": None, "options": {}, "topic": topic}
                | item
                | {text: text_of(item.get(text, [])) for text in ("condition", "explain")}
            )
            for item in json.load(file)
        ]
