"""Every verdict of the audit, computed again: by hand, another way, and with a planted mistake."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

import pytest
from helpers import ROOT
from helpers.command_line import Ask
from helpers.release import daily, one_day_in

import metacount
from metacount.algebra.text import read
from metacount.audit import judge
from metacount.audit.judge import (
    LENGTHS,
    Audited,
    Found,
    both,
    detail,
    holds,
    judged,
    mfu,
    models,
    place_of,
    there,
    value_of,
)
from metacount.audit.record import RESULTS, Formula, Term, chosen, compared, formulas
from metacount.check.judgement import EQUAL, HERE, WRONG
from metacount.package import table_of_package
from metacount.spec import Workload

JUDGED = [formula for formula in formulas() if formula.judged]
SPECS = dict(models())


def changed(formula: Formula, terms: Sequence[Term]) -> Formula:
    names = {n: getattr(formula, n) for n in Formula.__annotations__}
    return Formula(**{**names, "terms": tuple(terms)})


def at(formula: Formula, model: str, seq_len: int) -> tuple[Fraction, Fraction]:
    return both(formula, (SPECS[model], Workload(seq_len=seq_len)))


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
            where = one.formula.id, found.model
            assert theirs == found.theirs, where
            assert (found.verdict == WRONG) == (theirs != found.ours), where
            # equal is for all sizes or under a condition; off is accounted for, whole
            assert found.verdict != HERE or found.condition, where
            assert "not decided" not in found.condition and found.accounted, where
            seen[found.verdict] += 1
        assert [f.model for f in one.found] == (list(SPECS) if one.formula.judged else [])
        if one.verdict == "off":
            # of training memory compared with torch in tests/formulas; no proof is recorded of it
            proven = one.formula.kind not in ("activations", "optimizer")
            assert ("proven equal to" if proven else "nothing is recorded") in one.witness
    assert min(seen[EQUAL], seen[HERE], seen[WRONG]) > 100


# Accelerate, LLaMA-3-8B, 2,048 tokens: 18·32·4096·14336 a token for the FFN; projections
# 12·32·128·(32 + 8), where 12·32·4096·128·(32 + 8) belongs; pairs 12·32·32·128·2048
#   (33,822,867,456 + 1,966,080 + 3,221,225,472)·2048 tokens
# the cookbook's cache of GPT-2: 2 bytes·768·12 layers·1024 tokens, where keys and values are twice
# litgpt, SmolLM2-135M, 2,048 tokens: 6·134,515,008 a token and 20·30·576·2048 for pairs, not 12
# Megatron-LM, gpt-oss-20b, 128 tokens: FFN of 2 matrices and no router, 24 layers, 4 of 32 experts
#   6·128·(24·(2880·64·(2·64 + 2·8) + 2·2880·2880·4) + 2880·201088) + 6·128²·24·64·64
MEGATRON = 24 * (2880 * 64 * (2 * 64 + 2 * 8) + 2 * 2880 * 2880 * 4) + 2880 * 201088
BY_HAND = [
    ("accelerate-training", "llama3-8b", 2048, (33_822_867_456 + 1_966_080 + 3_221_225_472) * 2048),
    ("eleuther-cookbook-kv-cache", "gpt2", 1024, 2 * 768 * 12 * 1024),
    ("litgpt-training", "smollm2-135m", 2048, (6 * 134_515_008 + 20 * 30 * 576 * 2048) * 2048),
    ("megatron-lm-training", "gpt-oss-20b", 128, 6 * 128 * MEGATRON + 6 * 128**2 * 24 * 64 * 64),
    # N of OLMo without its table, forward: a tied head goes with it
    ("olmo-forward", "qwen2-0.5b", 1, 2 * (494_032_768 - 151936 * 896) + 4 * 24 * 896),
]


@pytest.mark.parametrize(("id", "model", "seq_len", "value"), BY_HAND)
def test_theirs_by_hand(id: str, model: str, seq_len: int, value: int) -> None:
    (formula,) = chosen((id,))
    assert at(formula, model, seq_len)[0] == value


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


# A formula and a model, what is put in the place of what, and where it is right then.
CONDITIONS = [
    # a number where a size belongs holds at this model alone
    *(("open-instruct-kv-cache", "llama-7b"), ("n_kv_heads*head_dim", "n_kv_heads*128")),
    *(("vllm-kv-cache", "llama-7b"), ("(head_dim + head_dim)", "(d_model/n_heads + head_dim)")),
    *(("megatron-lm-training", "llama-7b"), ("2*n_kv_heads", "2*n_heads")),
]
HOLDS = ("head_dim = 128", "n_heads·head_dim = d_model", "n_heads = n_kv_heads")


@pytest.mark.parametrize("number", range(len(HOLDS)))
def test_equal_for_all_sizes_is_not_equal_here(number: int) -> None:
    (id, model), change = CONDITIONS[2 * number : 2 * number + 2]
    (formula,) = chosen((id,))
    terms = [Term(of=t.of, text=t.text.replace(*change), where=t.where) for t in formula.terms]
    found = judged(changed(formula, terms), SPECS[model], model, LENGTHS[:1])
    assert judged(formula, SPECS[model], model, LENGTHS[:1]).verdict == EQUAL
    assert (found.verdict, found.condition) == (HERE, HOLDS[number])


# formula, model, and what the convention is of a measured count
MEASURED = [
    ("llm-analysis-forward", "qwen3-235b-a22b", "matmul_flops", 1),  # W + A
    ("veomni-deepseek-training", "deepseek-v2", "matmul_flops", 3),  # 3·(W + A)
    ("prime-rl-deepseek-training", "deepseek-v3", "matmul_flops", 3),
    ("prime-rl-training", "qwen3-0.6b", "matmul_flops", 3),
    ("olmo-training", "olmo2-1b", "matmul_flops", 3),
    ("eleuther-cookbook-training", "gpt2", "matmul_flops", 3),
    ("megatron-lm-params", "gpt-oss-20b", "params", 1),  # Q
    ("megatron-lm-active-params", "gpt-oss-20b", "active_params", 1),  # P
    ("llm-analysis-params", "qwen3-0.6b", "params", 1),
    ("open-instruct-params", "gemma3-270m", "params", 1),
    ("eleuther-cookbook-kv-cache", "bloom-176b", "kv_cache_bytes", 1),  # U, without a window
    ("llm-analysis-kv-cache", "glm-4.5", "kv_cache_bytes", 1),
]


@daily(9)
@pytest.mark.parametrize(("id", "model", "quantity", "times"), MEASURED)
def test_a_reference_module_says_so_too(id: str, model: str, quantity: str, times: int) -> None:
    (formula,) = chosen((id,))
    small = detail(formula, metacount.find_model(model), 2048)["smallest"]
    sizes, theirs, ours = small.values()
    run = Workload(batch_size=sizes.pop("batch_size"), seq_len=sizes.pop("seq_len"))
    spec = SPECS[model].replace(**sizes)
    assert both(formula, (spec, run)) == (theirs, ours)
    measured = {witness.name: witness for witness in metacount.verify(spec, run).witnesses}
    count = measured["reference"].figures[quantity]
    assert ours == Fraction(times * count) != theirs


ALL = formulas()
COMMIT = re.compile(r"[0-9a-f]{7}|\d+\.\d+\.\d+")


@pytest.mark.parametrize("formula", ALL, ids=lambda f: f.id)
def test_a_row_is_complete(formula: Formula) -> None:
    assert formula.says and formula.scope_says and formula.place and formula.terms
    if formula.source.read:
        assert COMMIT.fullmatch(formula.source.version), "the version that was read"
    else:
        project = formula.source.project
        known = project.startswith("arXiv:") or project == "EleutherAI blog, 2023"
        assert known, "only papers and one blog are restated unread"
    letters = set(read(formula.convention).names) if formula.convention else set()
    assert letters <= {*table_of_package("textbook/amounts.tsv")}
    inside = [spec for spec in SPECS.values() if holds(formula.scope, spec)]
    assert inside, "a scope with a model in it"
    for spec in inside[:6]:
        place = place_of((spec, Workload(seq_len=128)))
        for term in (*there(formula.terms, spec), *there(formula.misses, spec)):
            value_of(term.text, place)  # every name is known and there


def test_what_was_compared_is_kept() -> None:
    full = json.loads((ROOT / "benchmarks/results/frameworks.json").read_text("utf-8"))
    kept = compared()
    assert len(kept) >= 12 and set(kept) <= {f.id for f in ALL}
    assert RESULTS.exists()
    for id, answers in full.items():
        assert all(answer["differ"] == 0 and answer["sizes"] >= 10 for answer in answers), id
        versions = ", ".join(answer["version"] for answer in answers)
        assert kept[id] == {"version": versions, "sizes": answers[0]["sizes"]}
    # and of the version that the row says
    projects = {f.id: f.source for f in ALL}
    for id, one in kept.items():
        assert projects[id].version in one["version"], id


def test_the_same_as_json(ask: Ask) -> None:
    (one,) = ask.json("audit accelerate-training --model llama3-8b")
    assert sum(term["value"] for term in one["theirs"]) == one["found"]["theirs"]
    gap = one["found"]["theirs"] - one["found"]["ours"]
    assert sum(term["value"] for term in one["difference"]) == gap and one["unaccounted"] == 0
    (palm,) = ask.json("audit palm --model llama-7b")
    in_all = sum(part["value"] for part in palm["parts"])
    assert in_all == palm["ours"][0]["value"] == 2048 * 6_738_415_616
    (four,) = ask.json("audit slime --model mixtral-8x7b")
    amounts, parts = ({row["of"]: row["value"] for row in four[key]} for key in ("ours", "parts"))
    assert sum(parts.values()) == amounts["W"]
    # Mixtral's head, 2,048 tokens
    assert parts["W, head"] == 2 * 2048 * 4096 * 32000
    rows = ask.json("audit vllm")
    assert [row["verdict"] for row in rows] == ["equal", "equal"]
    assert rows[0]["in_scope"]["equal"] == sum(m["in_scope"] for m in rows[0]["models"])


def test_mfu_by_hand(ask: Ask) -> None:
    # LLaMA-3-8B at 8,192 tokens, 3·(W + C) = 51,471,187,968 FLOPs a token (tests/test_conventions)
    # at 8,000 tokens a second on 989 TFLOP/s
    rows = mfu("llama3-8b", [8192], tokens_per_second=Fraction(8000), peak_tflops=Fraction(989))
    exact = Fraction(51_471_187_968 * 8000, 989 * 10**12)
    assert rows[0].formula is None and rows[0].mfu == (exact,)
    by_id = {row.formula.id: row for row in rows[1:] if row.formula is not None}
    assert by_id["nanotron-training"].per_token == (57_912_852_480,)
    assert by_id["palm-training"].per_token == (61_066_469_376,)
    assert by_id["maxtext-deepseek-training"].mfu == (None,)
    pair = ask.json("audit --mfu llama3-8b gpt2 --tokens-per-second 1e4 --peak 312")
    assert [one["model"] for one in pair] == ["llama3-8b", "gpt2"]
    assert [one["seq_len"] for one in pair] == [[2048, 8192, 32768], [1024]]


REFUSED = {
    "megatron": "'megatron'",
    "--mfu gpt2": "--mfu needs --tokens-per-second and --peak",
    "--peak 989": "--peak belongs to --mfu",
    "--model gpt2": "--model needs a NAME",
    "slime --model t5-small": "",
    "slime --model deepseek-v3.2": "",
    "slime --model gemma-3n-e4b-text": "n_altup_inputs",
    "--mfu t5-small --tokens-per-second 1 --peak 1": "t5-small",
    "--mfu gpt2 --seq 2048 --tokens-per-second 1 --peak 1": "gpt2 has 1024 positions",
    "--set n_layers=2": "--set belongs to --model or --mfu",
    "--seq 0": "",
    "--jobs 0": "must be 1 to 64",
    "--mfu gpt2 --peak fast": "'fast'",
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_is_refused(ask: Ask, line: str) -> None:
    assert REFUSED[line] in ask.refused(f"audit {line}")


def test_an_interrupt_keeps_what_was_judged(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    real = judge.at_every_model

    def stopped(job: tuple[Formula, tuple[int, ...]]) -> tuple[Found, ...]:
        if job[0].id == "nanochat-prefill":
            raise KeyboardInterrupt
        return real(job)

    monkeypatch.setattr(judge, "at_every_model", stopped)
    code, out, _ = ask.all("audit nanochat --json")
    assert (code, [row["id"] for row in json.loads(out)]) == (130, ["nanochat-training"])
