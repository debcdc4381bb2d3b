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
from fractions import Fraction
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from metacount.frozen import frozen
from metacount.languages import LANGUAGES
from metacount.teaching.texts import DATA, Known, Sentence, lines, text_of, translated, written

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from metacount.files import Json
    from metacount.teaching.texts import Text

RIGHT, CONDITIONAL, WRONG = "right", "conditional", "wrong"
VERDICTS = (RIGHT, CONDITIONAL, WRONG)
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
# the file of `judges/` -> the judges that it holds; those of `executed` run modules
JUDGES = {
    judge: file
    for file, judges in {
        "counted": "count counts shares readings growth gated_width same_part token_cost "
        "dense_flops same_at_length two_stacks fields selected_work selected_cache "
        "sum_and_rest tied_head plain_ffn",
        "catalog": "catalog_shares same_top_k expert_shares moe_by_size norm_ratio",
        "algebra": "part_formula whole_formula step_ratio kept_formula bytes_per_parameter "
        "adapter_state",
        "executed": "single_expert unselected_gradient weight_gradient balance gate_order "
        "experts_with_gradient mixture_sum softmax_places rmsnorm_divisor layernorm_roles "
        "block_norms gelu_forms ffn_equation activation_forms sinusoids position_params "
        "rope_shift reach",
    }.items()
    for judge in judges.split()
}


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
    return JUDGES[claim.judge] == "executed"


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
    judge = getattr(import_module(f"metacount.teaching.judges.{JUDGES[claim.judge]}"), claim.judge)
    finding: Finding = judge(claim)
    texts = texts_of_judges()[claim.judge]
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


class About(Known):
    """What the names in a claim's texts stand for.

    The verdict; sizes, fields and parts of the claim's model, or of another one; `stated`, the
    claim's formula at the sizes of a model; and what the judge computed.
    """

    def __init__(
        self, claim: Claim, finding: Finding | None, lang: str, texts: Mapping[str, Text]
    ) -> None:
        from metacount.teaching.parts import model_of, spec_of

        values: dict[str, object] = {"claimed": claim.claimed}
        if claim.model is not None:
            values |= spec_of(claim).to_dict() | {"name": model_of(claim).name}
        if finding is not None:
            values |= {verdict: verdict == finding.verdict for verdict in VERDICTS}
            values |= finding.values
        super().__init__(values, lang, texts)
        self.claim = claim

    def call(self, name: str, arguments: Sequence[object]) -> object:
        """Compute a part or look up a size, of the claim's model or of that with an id."""
        from metacount import catalog
        from metacount.teaching.parts import PARTS, spec_of, value
        from metacount.teaching.texts import FUNCTIONS, evaluated

        if name in FUNCTIONS:
            return super().call(name, arguments)
        spec = catalog.entry(str(arguments[0])).spec() if arguments else spec_of(self.claim)
        if name == "stated":
            return evaluated(self.claim.options["formula"], spec.to_dict())
        return value(spec, name) if name in PARTS else getattr(spec, name)


def named(claim: Claim) -> Known:
    """Return the sizes and parts of a claim's model under their names."""
    return About(claim, None, "en", {})


@lru_cache
def texts_of_judges() -> dict[str, dict[str, Text]]:
    """Read the texts of every judge: says, correct, computation, witness and others, by name."""
    with open(os.path.join(DATA, "judges.json"), encoding="utf-8") as file:
        return {
            judge: {name: text_of(data) for name, data in texts.items()}
            for judge, texts in json.load(file).items()
        }


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


UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


@frozen
class Label:
    """A number as somebody printed it. `step` is one unit of its last digit, 0 if it is exact.

    A whole number with all its digits is exact. Any other number says its last digit and no more:
    67.11M is right for what rounds to it, 67,105,000 to 67,115,000. K, M, B are powers of 1000.
    """

    text: str
    value: Fraction
    step: Fraction

    def holds(self, exact: int | Fraction) -> bool:
        """Tell whether `exact` is the number, or rounds to it."""
        return 2 * abs(exact - self.value) <= self.step

    def rounded(self, exact: int | Fraction) -> str:
        """Format `exact` with as many decimals as the label has, in its unit.

        >>> label("46B").rounded(46_702_792_704), label("67 %").rounded(Fraction(1, 3))
        ('47B', '33 %')
        """
        if not self.step:
            return f"{exact:,}" if isinstance(exact, int) else str(exact)
        number, unit = _split(self.text)
        places = len(number.partition(".")[2])
        digits = round(exact / self.step)
        whole, rest = divmod(digits, 10**places)
        return (f"{whole:,}.{rest:0{places}d}" if places else f"{whole:,}") + unit


def label(text: str) -> Label:
    """Read the number that a text prints.

    >>> printed = label("67.11M")
    >>> printed.holds(67_108_864), printed.holds(67_115_001), printed.holds(67_104_999)
    (True, False, False)
    >>> label("2.25").holds(Fraction(22495, 10000)), label("9/4").holds(Fraction(22495, 10000))
    (True, False)
    >>> label("7 apples")
    Traceback (most recent call last):
    ValueError: a claimed number is 1,234, 67.11M, 0.67, 67 % or 9/4: got '7 apples'
    """
    number, unit = _split(text)
    plain = number.replace(",", "")
    try:
        value = Fraction(plain)
    except ValueError:
        value = None
    scale = Fraction(1, 100) if unit.strip() == "%" else Fraction(UNITS.get(unit, 0))
    if value is None or not scale:
        raise ValueError(f"a claimed number is 1,234, 67.11M, 0.67, 67 % or 9/4: got {text!r}")
    decimals = len(plain.partition(".")[2])
    exact = "/" in plain or (not unit and not decimals)
    return Label(
        text=text, value=value * scale, step=Fraction(0) if exact else scale / 10**decimals
    )


def _split(text: str) -> tuple[str, str]:
    """Split a label into digits and unit.

    >>> _split("67.11M"), _split("67 %")
    (('67.11', 'M'), ('67', ' %'))
    """
    end = max(i for i, char in enumerate("0" + text) if char.isdigit())
    return text[:end], text[end:]
