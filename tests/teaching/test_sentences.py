"""No sentence of the claims says more than was computed, and no change of the data breaks one."""

from __future__ import annotations

from fractions import Fraction

import pytest
from helpers.changed_claims import ALL, changed, verdict_on, with_options
from helpers.release import daily

from metacount import InputError
from metacount.errors import SpecError
from metacount.teaching.claims import judge_claim
from metacount.teaching.parts import named
from metacount.teaching.texts import RIGHT, VERDICTS, WRONG, Claim, Label, computed, label

SENTENCES = [(id, n) for id, claim in ALL.items() for n in range(len(claim.explain))]

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
