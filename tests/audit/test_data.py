"""The data of the audit: every row complete, every text readable, every comparison kept."""

from __future__ import annotations

import json
import re

import pytest
from helpers import ROOT

from metacount.algebra.text import read
from metacount.audit.judge import MEANINGS, holds, models, place_of, there, value_of
from metacount.audit.record import KINDS, RESULTS, Formula, chosen, compared, formulas
from metacount.cli.conventions import MEANINGS as CONVENTIONS
from metacount.errors import InputError
from metacount.spec import Workload
from metacount.textbook.conventions import FORMULAS, ROWS

ALL = formulas()
SPECS = dict(models())
COMMIT = re.compile(r"[0-9a-f]{7}|\d+\.\d+\.\d+")


def test_there_are_enough() -> None:
    judged = [f for f in ALL if f.judged]
    assert len({f.source.id for f in ALL}) >= 25
    assert len(judged) >= 60
    assert {f.kind for f in ALL} == set(KINDS)
    assert [f.id for f in ALL if not f.judged] == []


def test_ids_are_unique() -> None:
    assert len({f.id for f in ALL}) == len(ALL)


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
    assert letters <= {*MEANINGS, *CONVENTIONS}
    inside = [spec for spec in SPECS.values() if holds(formula.scope, spec)]
    assert inside, "a scope with a model in it"
    for spec in inside[:6]:
        place = place_of((spec, Workload(seq_len=128)))
        for term in (*there(formula.terms, spec), *there(formula.misses, spec)):
            value_of(term.text, place)  # every name is known and there


def test_a_condition_of_a_term_is_of_the_structure_alone() -> None:
    # terms are chosen before letters take the place of sizes
    words = """and or not is_moe gated attention activation tie_embeddings ffn_bias q_lora_rank d_ff
        position embedding_norm n_query_positions norm_placement swish_beta True"""
    known = set(words.split())
    for formula in ALL:
        for term in (*formula.terms, *formula.misses):
            used = set(re.findall(r"[A-Za-z_]+", re.sub(r"'[^']*'", "", term.where)))
            assert used <= known


def test_names_choose_formulas_and_sources() -> None:
    assert [f.id for f in chosen(("slime",))] == ["slime-forward"]
    assert [f.id for f in chosen(("slime-forward",))] == ["slime-forward"]
    with pytest.raises(InputError, match="'slim'"):
        chosen(("slim",))


def test_the_same_project_is_read_at_one_commit() -> None:
    cited = [row.source.where for row in ROWS.values()]
    both = 0
    for formula in ALL:
        project = formula.source.project
        for where in cited:
            if where.startswith(f"{project} "):
                both += 1
                assert where.startswith(f"{project} {formula.source.version}"), formula.id
    assert both >= 8


def test_conventions_that_have_a_row_of_their_own() -> None:
    shared = {f.convention for f in ALL if f.convention in FORMULAS}
    assert {"3·(W + A)", "6·P + 3·A", "6·(Q - L) + 3·D"} & shared
    assert len(shared) >= 6


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
