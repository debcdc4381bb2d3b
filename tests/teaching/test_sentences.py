"""No sentence of the claims says more than was computed, and no change of the data breaks one."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

import pytest
from helpers.changed_claims import ALL, changed, verdict_on, with_options
from helpers.release import daily, one_in

from metacount import InputError
from metacount.errors import SpecError
from metacount.teaching.claim import RIGHT, VERDICTS, WRONG, Claim
from metacount.teaching.claims import judge_claim, needs_torch
from metacount.teaching.labels import Label, label
from metacount.teaching.parts import named
from metacount.teaching.texts import computed

BRACES = re.compile(r"\{[^{}]*\}")
SENTENCES = [(id, n) for id, claim in ALL.items() for n in range(len(claim.explain))]

# Digits in prose that are not put in when it is printed. Each is either part of a name, or a
# coefficient or an exponent of a formula that a condition of the sentence compares.
NAMES = (
    "Qwen3-4B",
    "Qwen3-0.6B",
    "LLaMA-7B",
    "T5 11B",
    "Mistral 7B",
    "DeepSeek-V3",
    "float32",
    "Qwen3-Next",
)
FORMULAS = {
    "8·d²": "8*d_model**2",
    "4·d²": "4*d_model**2",
    "13·d": "13*d_model",
    "5·d": "5*d_model",
    "2·h·h_d": '2*n_heads("llama-7b")*head_dim("llama-7b")',
    "3·d·m_s": '3*d_model("deepseek-v3")*d_ff_expert("deepseek-v3")',
    "k·3·d·m": "6*top_k*d_model*d_ff_expert",  # with the factor of 2 that is said
    "6·k·d·m": "6*top_k*d_model*d_ff_expert",
    "2·d·E": "2*d_model*n_experts",
    "2·d FLOPs": "2*d_model*n_experts",
    "d² + d": "d_model**2 + d_model",
    "The last 2·d": "2*d_model",
    "2·h_d": "2*head_dim",
    "2·d": "2*d_model",
    "8/3·d": "even_apart",  # the judge's, at a width where 8/3·d is whole
    "It is 8·d²": "even_apart == 0",  # what it is apart from
    "less than 4·d": "d_ff < 4*d_model",
    "takes 2 FLOPs": "6*top_k",  # 2 times 3·k·d·m
    "(2·N)^¼": "right",  # the formula that the block was compared with
    "less than 1": "less_than_one",
    "add up to 1.": "one",
    "add up to 1": "by_k",  # stated / module is k: the module's shares add up to 1
    "itself is 1": "softmax_renorm_unweighted",
    "{n_layers}·2·": "n_layers*2*head_dim",
    "β = 1": "is_silu",  # the module without a β against torch's
    "with W1·x": "doubled",  # the names of the equation's matrices
}


def typed_digits(say: str, where: tuple[str, ...]) -> str:
    """What digits are left when names, computed numbers and compared formulas are taken out."""
    for name in NAMES:
        say = say.replace(name, "")
    # the longest first: 2·d is a part of 2·d·E
    for text in sorted(FORMULAS, key=len, reverse=True):
        if any(FORMULAS[text] in condition for condition in where):
            say = say.replace(text, "")
    return "".join(re.findall(r"[0-9²³¼]+", BRACES.sub("", say)))


@pytest.mark.parametrize(("id", "n"), SENTENCES)
def test_no_number_is_typed(id: str, n: int) -> None:
    sentence = ALL[id].explain[n]
    assert typed_digits(sentence.say, sentence.where) == ""
    assert sentence.where, "a sentence has a condition under which it is true"


def test_typed_numbers_are_found() -> None:
    assert typed_digits("It is 8·d².", ("right",)) != ""
    assert typed_digits("It is 8·d².", ("ffn() == 8*d_model**2",)) == ""
    assert typed_digits("It has 35 of {d_model}.", ("right",)) == "35"


# Sentences about other models than the claim's: true or false whatever the claim is changed to.
OF_OTHERS = {
    ("attention-4d2", 0),
    ("attention-4d2", 1),
    ("mla-cache-dc", 1),
    ("ffn-gelu-8d2", 1),
}
MODELS = (
    "llama-7b",
    "qwen2-7b",
    "gpt2",
    "mixtral-8x7b",
    "deepseek-v2",
    "t5-11b",
    "qwen3-0.6b",
    "textbook-block",
    "gemma-7b",
)


def changes(claim: Claim) -> list[Claim]:
    """The claim about other models, with other numbers and other options."""
    out = [
        changed(claim.id, model=m)
        for m in (*MODELS, None, "no-such-model")
        if m != claim.model and claim.model is not None
    ]
    out += [changed(claim.id, claimed=other) for other in others(claim.claimed)]
    for name, option in claim.options.items():
        if name == "formula":
            other_formulas: list[Any] = ["d_model**2 - d_model*d_ff", "1/0", "d_model/7", "foo +"]
        else:
            other_formulas = others(option)
        out += [with_options(claim.id, **{name: other}) for other in other_formulas]
    return out


def others(value: Any) -> list[Any]:
    """Values of about that kind, sensible and not."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, 0, -1, 2 * value, "x"]
    if isinstance(value, str):
        swapped = {
            "sum": "mean",
            "bias": "weight",
            "weight": "bias",
            "alibi": "learned",
            "as_they_are": "over_chosen",
            "over_chosen": "as_they_are",
            "deep": "sandwich",
            "sandwich": "deep",
            "itself": "itself and later",
            "itself and later": "itself",
            "model": "open",
            "ffn": "causal",
            "rope": "learned",
            "pre": "post",
            "post": "pre",
            "alternating": "halves",
            "Swish": "SwiGLU",
            "SwiGLU": "Swish",
            "GELU": "ReLU",
            "GLU": "Swish",
        }
        return [swapped.get(value, "1"), "99 %", "7B", "apples", ""]
    if isinstance(value, dict):
        return [{**value, key: other} for key in value for other in others(value[key])[:3]]
    if isinstance(value, list):
        return [value[:-1], []]
    return []


def judged_or_refused(claim: Claim) -> tuple[str, str] | None:
    """Verdict and reason; None for a claim that is refused in one line."""
    try:
        judged = judge_claim(claim)
    except (SpecError, InputError) as error:
        assert "\n" not in str(error)
        return None
    assert judged.verdict in VERDICTS
    said = " ".join([judged.reason, judged.condition or "", judged.correct, *judged.computation])
    assert not re.search(r"[{}]", said.replace("{", "", said.count("{'")))
    return judged.verdict, judged.reason


@daily(14)
@pytest.mark.parametrize("id", one_in(5, ALL))
def test_a_changed_claim_is_judged_or_refused_and_loses_what_is_no_longer_so(id: str) -> None:
    claim = ALL[id]
    some = {"gate_order": 3, "softmax_places": 3}.get(claim.judge)
    step = 2 if claim.judge == "part_formula" else 1  # a third of a second each
    found = [judged_or_refused(other) for other in changes(claim)[:some:step]]
    reasons = [judged[1] for judged in found if judged is not None]
    told = judge_claim(claim).reason
    for n, sentence in enumerate(claim.explain):
        start = BRACES.split(sentence.say)[0]
        # what begins with a number is known by what follows it
        known_by = start if len(start) > 5 else max(BRACES.split(sentence.say), key=len)
        assert known_by in told
        if (id, n) in OF_OTHERS or (needs_torch(claim) and not claim.options):
            continue
        if not any(known_by not in reason for reason in reasons):
            # nothing that was tried changes it: then its conditions can fail for some model
            assert any(_fails_somewhere(claim, condition) for condition in sentence.where), n


def _fails_somewhere(claim: Claim, condition: str) -> bool:
    for model in MODELS:
        other = changed(claim.id, model=model)
        try:
            if computed(condition, named(other)) is not True:
                return True
        except (SpecError, TypeError):
            return True
    return False


LABELLED = (
    "count",
    "counts",
    "shares",
    "readings",
    "gated_width",
    "sum_and_rest",
    "tied_head",
    "token_cost",
    "expert_shares",
)


def stated_numbers(claim: Claim) -> list[tuple[str | None, str]]:
    if isinstance(claim.claimed, dict):
        return list(claim.claimed.items())
    return [(None, claim.claimed)]


@daily(7)
@pytest.mark.parametrize("id", [id for id, claim in ALL.items() if claim.judge in LABELLED])
def test_every_stated_number_decides(id: str) -> None:
    """Five units of its last digit up or down, a stated number is not right."""
    claim = ALL[id]
    for name, text in stated_numbers(claim):
        if text.startswith("over "):
            continue  # a bound, not a number: see test_another_number_gets_another_verdict
        printed = label(text.removeprefix("about "))
        for steps in (-5, 5):
            other = moved(printed, steps)
            claimed = other if name is None else {**claim.claimed, name: other}
            verdict = judge_claim(changed(id, claimed=claimed)).verdict
            assert verdict != RIGHT, (name, other)
            if verdict_on(id).verdict == RIGHT:
                assert verdict == WRONG, (name, other)


def moved(printed: Label, steps: int) -> str:
    if not printed.step:
        return printed.rounded(int(printed.value + steps))
    return printed.rounded(Fraction(printed.value + steps * printed.step))


def test_qk_norm_counted_twice() -> None:
    # 94 layers, queries and keys, 128 values each
    assert 94 * 2 * 128 == 24_064
    judged = verdict_on("qwen3-moe-qk-norm-twice")
    assert judged.verdict == WRONG
    assert "24,064 too many" in judged.reason
    assert judged.headline == "QK-norm counted twice: +24,064"
    once = ALL["qwen3-moe-qk-norm-twice"].options["formula"].replace("2*head_dim + n_ex", "n_ex")
    right = with_options("qwen3-moe-qk-norm-twice", formula=once)
    assert judge_claim(right).verdict == RIGHT
