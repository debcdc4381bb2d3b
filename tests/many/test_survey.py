"""The survey: rows, their shortfalls, and that one type cannot harm the others."""

from __future__ import annotations

import pytest
from helpers.release import daily, one_day_in

pytest.importorskip("torch")

from metacount.cli.report import in_text
from metacount.cli.survey import SurveyRow, measure_type, report_of, survey, survey_types

KINDS = {
    "causal-LM": "llama mixtral bert jetmoe qwen3_next dbrx blenderbot",
    "seq2seq": "bart switch_transformers",
    "masked-LM": "modernbert fnet",
}
SAMPLE = [(kind, name) for kind, names in KINDS.items() for name in names.split()]


@daily(11)
@pytest.mark.parametrize(("kind", "model_type"), SAMPLE)
def test_a_sample_lacks_nothing(kind: str, model_type: str) -> None:
    row = measure_type(kind, model_type)
    assert row.shortfall == "" and row.by_role is not None
    assert sum(row.by_role.values()) == row.params
    assert None not in (row.active_params, row.matmul_flops)
    if kind != "masked-LM":
        assert None not in (row.decode_matmul_flops, row.kv_cache_bytes)


def test_a_type_that_does_not_build_says_why() -> None:
    types = survey_types()
    assert {*SAMPLE, ("causal-LM", "gemma4_assistant")} <= {*types}
    assert len(types) == len(set(types)) > 200
    row = measure_type("causal-LM", "gemma4_assistant", flops=False)
    assert not row.builds and "makes no Gemma4Assistant" in row.shortfall


@one_day_in(6)
def test_a_slow_type_costs_its_own_row_only() -> None:
    jobs = [("causal-LM", "llama"), ("causal-LM", "no such type")]
    rows = {row.model_type: row for row in survey(jobs, flops=False, processes=1)}
    assert rows["llama"].params == 6_738_415_616
    assert rows["no such type"].params is None and rows["no such type"].shortfall
    (late,) = survey([("causal-LM", "gpt2")], timeout_s=0.0, processes=1)
    assert late.shortfall == "stopped after 0 s"


def test_the_table_holds_every_row_and_reason() -> None:
    late = SurveyRow(model_type="x", kind="seq2seq", class_name="", shortfall="it is late")
    text = in_text(report_of([measure_type("causal-LM", "gpt2", flops=False), late]))
    assert "124,439,808" in text and "it is late" in text
