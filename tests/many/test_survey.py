"""The survey: rows, their shortfalls, and that one type cannot harm the others."""

from __future__ import annotations

import pytest
from helpers.release import daily, one_day_in

pytest.importorskip("torch")

from metacount.cli.report import in_text
from metacount.cli.survey import report_of
from metacount.many.survey import SurveyRow, measure_type, survey, survey_types


def test_types_of_three_kinds() -> None:
    types = survey_types()
    assert ("causal-LM", "llama") in types
    assert ("seq2seq", "t5") in types
    assert ("masked-LM", "bert") in types
    assert len(types) == len(set(types)) > 200


CAUSAL = "llama mixtral bert jetmoe qwen3_next dbrx blenderbot"


@daily(11)
@pytest.mark.parametrize(
    ("kind", "model_type"),
    [("causal-LM", name) for name in CAUSAL.split()]
    + [
        ("seq2seq", "bart"),
        ("seq2seq", "switch_transformers"),
        ("masked-LM", "modernbert"),
        ("masked-LM", "fnet"),
    ],
)
def test_a_sample_lacks_nothing(kind: str, model_type: str) -> None:
    row = measure_type(kind, model_type)
    assert row.shortfall == ""
    assert row.by_role is not None
    assert sum(row.by_role.values()) == row.params
    assert row.active_params is not None
    assert row.matmul_flops is not None
    if kind != "masked-LM":
        assert row.decode_matmul_flops is not None
        assert row.kv_cache_bytes is not None


def test_a_type_that_does_not_build_says_why() -> None:
    row = measure_type("causal-LM", "gemma4_assistant", flops=False)
    assert not row.builds
    assert "makes no Gemma4Assistant" in row.shortfall


@one_day_in(6)
def test_a_slow_type_costs_its_own_row_only() -> None:
    jobs = [("causal-LM", "llama"), ("causal-LM", "no such type")]
    rows = sorted(survey(jobs, flops=False, processes=1), key=lambda row: row.model_type)
    assert [row.model_type for row in rows] == ["llama", "no such type"]
    assert rows[0].params == 6_738_415_616
    assert rows[1].params is None
    assert rows[1].shortfall

    (late,) = survey([("causal-LM", "gpt2")], timeout_s=0.0, processes=1)
    assert late.shortfall == "stopped after 0 s"


def test_the_table_holds_every_row_and_reason() -> None:
    rows = [
        measure_type("causal-LM", "gpt2", flops=False),
        SurveyRow(model_type="x", kind="seq2seq", class_name="", shortfall="it is late"),
    ]
    text = in_text(report_of(rows))
    assert "124,439,808" in text
    assert "it is late" in text
    assert rows[0].to_dict()["params"] == 124_439_808
