"""No sentence of the claims says more than was computed, and no change of the data breaks one."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from helpers.changed_claims import ALL, changed, verdict_on, with_options
from helpers.release import daily

from metacount import InputError
from metacount.errors import SpecError
from metacount.teaching.claim import RIGHT, VERDICTS, WRONG, Claim
from metacount.teaching.claims import judge_claim
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
    "itself is 1": "softmax_renorm.unweighted",
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


MODELS = ("llama-7b", "qwen2-7b", "gpt2", "mixtral-8x7b", "deepseek-v2", "t5-11b", "gemma-7b")


@pytest.mark.parametrize(("id", "n"), SENTENCES)
def test_a_sentence_is_not_said_of_every_model(id: str, n: int) -> None:
    """Its conditions fail for some, or speak of a model by name, or of what the judge computed."""
    where = ALL[id].explain[n].where
    assert any('("' in condition for condition in where) or any(
        not _holds(condition, changed(id, model=model)) for condition in where for model in MODELS
    )


def _holds(condition: str, claim: Claim) -> bool:
    try:
        return computed(condition, named(claim)) is True
    except Exception:  # of another kind of model, or of what is computed when it is judged
        return False


@daily(8)
@pytest.mark.parametrize("id", ALL)
def test_a_claim_about_another_model_is_judged_or_refused_in_one_line(id: str) -> None:
    claim = ALL[id]
    some = {"gate_order": 0, "softmax_places": 0}.get(claim.judge)
    for model in (*MODELS, None, "no-such-model")[:some]:
        if claim.model is None or model == claim.model:
            continue
        try:
            judged = judge_claim(changed(id, model=model))
        except (SpecError, InputError) as error:
            assert "\n" not in str(error)
            continue
        assert judged.verdict in VERDICTS
        told = " ".join([judged.reason, judged.condition or "", judged.correct])
        assert "{" not in told and "}" not in told


LABELLED = "count counts shares readings gated_width sum_and_rest tied_head token_cost"


def stated_numbers(claim: Claim) -> list[tuple[str | None, str]]:
    if isinstance(claim.claimed, dict):
        return list(claim.claimed.items())
    return [(None, claim.claimed)]


@daily(7)
@pytest.mark.parametrize("id", [id for id, claim in ALL.items() if claim.judge in LABELLED.split()])
def test_every_stated_number_decides(id: str) -> None:
    """Five units of its last digit up or down, a stated number is not right."""
    claim = ALL[id]
    for name, text in stated_numbers(claim):
        printed = label(text)
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
