"""Every verdict of the audit, computed again: by hand, another way, and with a planted mistake."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

import pytest
from helpers.release import daily, one_day_in

import metacount
from metacount import entry
from metacount.audit.judge import (
    LENGTHS,
    Audited,
    audit,
    both,
    holds,
    judged,
    models,
    place_of,
    there,
    value_of,
)
from metacount.audit.record import Formula, Term, chosen, formulas
from metacount.check.judgement import EQUAL, HERE, WRONG
from metacount.formulas import model as ours
from metacount.spec import Workload
from metacount.spec.field import altered

JUDGED = [formula for formula in formulas() if formula.judged]
SPECS = dict(models())


def changed(formula: Formula, terms: Sequence[Term]) -> Formula:
    names = {n: getattr(formula, n) for n in Formula.__annotations__}
    return Formula(**{**names, "terms": tuple(terms)})


def at(formula: Formula, model: str, seq_len: int) -> tuple[Fraction, Fraction]:
    return both(formula, (SPECS[model], Workload(seq_len=seq_len)))


@one_day_in(6)
def test_every_model_has_a_verdict(audits: tuple[Audited, ...]) -> None:
    for one in audits:
        assert [f.model for f in one.found] == (list(SPECS) if one.formula.judged else [])
        assert not one.formula.judged or one.asked() > 0


@one_day_in(6)
def test_a_verdict_is_what_the_numbers_say(audits: tuple[Audited, ...]) -> None:
    """Python's own arithmetic on the texts of the data, and our formulas, model by model."""
    seen: Counter[str] = Counter()
    for one in audits:
        for found in one.found:
            if not found.in_scope:
                continue
            place = place_of((found.spec, Workload(seq_len=found.seq_len)))
            theirs = Fraction(0)
            for term in there(one.formula.terms, found.spec):
                names = {w: Fraction(place[w]) for w in re.findall(r"[A-Za-z_]\w*", term.text)}
                theirs += Fraction(eval(term.text, {}, names))
            assert theirs == found.theirs, (one.formula.id, found.model)
            assert (found.verdict == WRONG) == (theirs != found.ours)
            seen[found.verdict] += 1
    assert min(seen[EQUAL], seen[HERE], seen[WRONG]) > 100


def unproven(audits: tuple[Audited, ...]) -> list[str]:
    """Where a formula is called equal inside its scope, neither for all sizes nor if something."""
    return [
        f"{one.formula.id} {found.model}"
        for one in audits
        for found in one.found
        if found.in_scope
        and found.verdict == HERE
        and (not found.condition or "not decided" in found.condition)
    ]


@one_day_in(6)
def test_equal_is_for_all_sizes_or_under_a_condition(audits: tuple[Audited, ...]) -> None:
    assert unproven(audits) == []
    verdicts = {found.verdict for one in audits for found in one.found if found.in_scope}
    assert {EQUAL, HERE, WRONG} <= verdicts
    one = next(o for o in audits if any(f.in_scope and f.verdict == HERE for f in o.found))
    bare = tuple(altered(f, condition="") for f in one.found)  # planted: a condition is lost
    assert unproven((Audited(**{**vars(one), "found": bare}),))


@one_day_in(6)
def test_the_whole_difference_is_accounted_for(audits: tuple[Audited, ...]) -> None:
    for one in audits:
        bad = [f.model for f in one.found if f.in_scope and not f.accounted]
        assert bad == [], one.formula.id


@one_day_in(6)
def test_who_is_called_wrong_has_two_witnesses(audits: tuple[Audited, ...]) -> None:
    wrong = [one for one in audits if one.verdict == "off"]
    assert wrong
    for one in wrong:
        worst = one.worst()
        assert worst is not None and worst.theirs != worst.ours
        assert "our textbook formula" in one.witness, one.formula.id
        if one.formula.kind in ("activations", "optimizer"):
            # compared with torch in tests/formulas/test_training.py; no proof is recorded of it
            assert "nothing is recorded" in one.witness
        else:
            assert "proven equal to" in one.witness, one.formula.id


# Accelerate, LLaMA-3-8B, 2,048 tokens: 18·32·4096·14336 a token for the FFN; projections
# 12·32·128·(32 + 8), where 12·32·4096·128·(32 + 8) belongs; pairs 12·32·32·128·2048
#   (33,822,867,456 + 1,966,080 + 3,221,225,472)·2048 tokens
# the cookbook's cache of GPT-2: 2 bytes·768·12 layers·1024 tokens, where keys and values are twice
# litgpt, SmolLM2-135M, 2,048 tokens: 6·134,515,008 a token and 20·30·576·2048 for pairs, not 12
# Megatron-LM, gpt-oss-20b, 128 tokens: FFN of 2 matrices and no router, 24 layers, 4 of 32 experts
#   6·128·(24·(2880·64·(2·64 + 2·8) + 2·2880·2880·4) + 2880·201088) + 6·128²·24·64·64
BY_HAND = [
    ("accelerate-training", "llama3-8b", 2048, (33_822_867_456 + 1_966_080 + 3_221_225_472) * 2048),
    ("eleuther-cookbook-kv-cache", "gpt2", 1024, 2 * 768 * 12 * 1024),
    ("litgpt-training", "smollm2-135m", 2048, (6 * 134_515_008 + 20 * 30 * 576 * 2048) * 2048),
    (
        "megatron-lm-training",
        "gpt-oss-20b",
        128,
        6 * 128 * (24 * (2880 * 64 * (2 * 64 + 2 * 8) + 2 * 2880 * 2880 * 4) + 2880 * 201088)
        + 6 * 128**2 * 24 * 64 * 64,
    ),
    # N of OLMo without its table, forward: a tied head goes with it
    ("olmo-forward", "qwen2-0.5b", 1, 2 * (494_032_768 - 151936 * 896) + 4 * 24 * 896),
]


@pytest.mark.parametrize(("id", "model", "seq_len", "value"), BY_HAND)
def test_theirs_by_hand(id: str, model: str, seq_len: int, value: int) -> None:
    (formula,) = chosen((id,))
    assert at(formula, model, seq_len)[0] == value


def test_ours_is_the_count_that_everything_else_is_compared_with() -> None:
    spec, n = SPECS["gpt-oss-20b"], 4096
    run = {"batch_size": 1, "seq_len": n}
    full, kept = ours.matmul_flops(spec, **run), ours.causal_matmul_flops(spec, **run)
    weights = 2 * value_of("matrix_params", place_of((spec, Workload(seq_len=n)))) * n
    # 12 windowed layers of 128 positions, 12 full ones; 4·64·64 FLOPs a pair
    windowed = 12 * 4 * 64 * 64 * (128 * n - 128 * 127 // 2)
    assert kept == weights + windowed + 12 * 4 * 64 * 64 * n * (n + 1) // 2
    (verl,) = chosen(("verl-gpt-oss-training",))
    (maxtext,) = chosen(("maxtext-gpt-oss-training",))
    table = 201088 * 2880
    full_layers = 12 * 4 * 64 * 64 * n * n
    assert (
        at(verl, "gpt-oss-20b", n)[1]
        == 3 * (weights + (12 * 4 * 64 * 64 * 128 * n + full_layers) // 2) + 6 * n * table
    )
    assert at(maxtext, "gpt-oss-20b", n)[1] == 3 * (
        weights + full_layers // 2 + 12 * 2 * 64 * 64 * (2 * n * 128 - 128 * 128) // 1
    )
    assert full == weights + 24 * 4 * 64 * 64 * n * n


@daily(4)
@pytest.mark.parametrize("formula", JUDGED, ids=lambda f: f.id)
def test_a_planted_mistake_changes_the_verdict(formula: Formula) -> None:
    """Each term twice, and each term left out: the numbers or what accounts for them change."""
    model = next(id for id, spec in SPECS.items() if holds(formula.scope, spec))
    spec, lengths = SPECS[model], LENGTHS[:1]
    before = judged(formula, spec, model, lengths)
    assert before.accounted
    for term in there(formula.terms, spec):
        if not value_of(term.text, place_of((spec, Workload(seq_len=64)))):
            continue
        double = Term(of=term.of, text=f"2*({term.text})", where=term.where)
        for others in ([double], []):
            planted = changed(formula, [t for t in formula.terms if t is not term] + others)
            after = judged(planted, spec, model, lengths)
            assert not after.accounted and after.off != before.off, term.of
            if before.verdict != WRONG:
                assert after.verdict == WRONG, term.of


@pytest.mark.parametrize(
    ("id", "model", "old", "new"),
    [
        (
            "accelerate-training",
            "llama3-8b",
            "n_layers*(d_model//n_heads)*(n_heads + n_kv_heads)",
            "n_layers*d_model*(d_model//n_heads)*(n_heads + n_kv_heads)",
        ),
        ("eleuther-cookbook-kv-cache", "gpt2", "bytes_per_value*", "2*bytes_per_value*"),
        ("litgpt-training", "llama-7b", "8*batch_size", "0*batch_size"),
        ("levanter-gemma-forward", "gemma-2b", "2*d_model*ffn_width", "3*d_model*ffn_width"),
    ],
)
def test_a_mistake_that_is_mended_is_no_more(id: str, model: str, old: str, new: str) -> None:
    (formula,) = chosen((id,))
    assert judged(formula, SPECS[model], model).verdict == WRONG
    terms = [Term(of=t.of, text=t.text.replace(old, new), where=t.where) for t in formula.terms]
    assert [t.text for t in terms] != [t.text for t in formula.terms]
    assert judged(changed(formula, terms), SPECS[model], model).verdict in (EQUAL, HERE)


@pytest.mark.parametrize(
    ("id", "model", "old", "new", "condition"),
    [
        # a number where a size belongs holds at this model alone
        (
            "open-instruct-kv-cache",
            "llama-7b",
            "n_kv_heads*head_dim",
            "n_kv_heads*128",
            "head_dim = 128",
        ),
        ("nemo-rl-qwen3-training", "qwen3-235b-a22b", "18*", "18*", None),
        (
            "vllm-kv-cache",
            "llama-7b",
            "(head_dim + head_dim)",
            "(d_model/n_heads + head_dim)",
            "n_heads·head_dim = d_model",
        ),
        ("megatron-lm-training", "llama-7b", "2*n_kv_heads", "2*n_heads", "n_heads = n_kv_heads"),
    ],
)
def test_equal_for_all_sizes_is_not_equal_here(
    id: str, model: str, old: str, new: str, condition: str | None
) -> None:
    (formula,) = chosen((id,))
    spec = SPECS[model]
    terms = [Term(of=t.of, text=t.text.replace(old, new), where=t.where) for t in formula.terms]
    found = judged(changed(formula, terms), spec, model, LENGTHS[:1])
    if condition is None:
        assert found.verdict == judged(formula, spec, model, LENGTHS[:1]).verdict
        return
    assert judged(formula, spec, model, LENGTHS[:1]).verdict == EQUAL
    assert (found.verdict, found.condition) == (HERE, condition)


def test_a_condition_on_the_number_of_layers() -> None:
    (found,) = audit("maxtext-gemma2-training")
    assert found.conditions == ("n_layers is a multiple of 2",)


def test_the_public_function_takes_a_model_in_any_form() -> None:
    (by_name,) = metacount.audit("slime-forward", model="qwen3-4b")
    (by_spec,) = metacount.audit(["slime-forward"], model=entry("qwen3-4b").spec())
    assert by_name.found[0].off == by_spec.found[0].off < 0
    assert by_name.verdict == "off" and by_name.compared is not None


@one_day_in(6)
def test_jobs_give_the_same() -> None:
    names = ["vllm", "slime", "lingua"]
    alone, together = audit(names), audit(names, jobs=2)
    for one, other in zip(alone, together, strict=True):
        assert [(f.model, f.verdict, f.off, f.condition) for f in one.found] == [
            (f.model, f.verdict, f.off, f.condition) for f in other.found
        ]
