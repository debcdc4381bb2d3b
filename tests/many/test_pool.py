"""Jobs in processes: each job's answer or why there is none, and no job lost beside another."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from itertools import chain, repeat
from types import SimpleNamespace

import pytest
from helpers.release import daily, one_day_in

from metacount.cli.report import in_text
from metacount.cli.survey import SurveyRow, measure_type, report_of, survey, survey_types
from metacount.many import pool
from metacount.many.pool import Failed, WithTorch, answers


def doubled(number: int) -> int:
    """Twice a number; a negative one ends the process, 99 never ends."""
    if number < 0:
        os._exit(3)
    if number == 99:
        time.sleep(600)
    return 2 * number


def test_every_job_has_its_answer() -> None:
    assert dict(answers(doubled, [5, 7, 1, 4], processes=2)) == {0: 10, 1: 14, 2: 2, 3: 8}
    assert list(answers(doubled, [], processes=2)) == []
    # none is far ahead of the first without an answer
    found = [job for job, _ in answers(doubled, list(range(6)), processes=2, ahead=1)]
    assert found == [0, 1, 2, 3, 4, 5]


def test_a_process_that_ends_costs_its_own_job() -> None:
    found = dict(answers(doubled, [5, -1, 1], processes=1))
    assert (found[0], found[2]) == (10, 2)
    assert found[1] == Failed(reason="its process ended with code 3")


def test_a_job_that_never_ends_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    # the first job is given at 0 s; all else happens at 2 s, however long it takes
    clock = chain([0], repeat(2))
    monkeypatch.setattr(pool, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    found = dict(answers(doubled, [99, 1], processes=1, timeout_s=1.0))
    assert found == {0: Failed(reason="stopped after 1 s"), 1: 2}


def allocated(n_bytes: int) -> int:
    """How many bytes there were, of those that were asked for."""
    try:
        return len(bytearray(n_bytes))
    except MemoryError:
        return 0


@pytest.mark.skipif(sys.platform != "linux", reason="data are limited on Linux alone")
def test_memory_is_limited_and_the_process_goes_on() -> None:
    work = WithTorch(allocated, max_memory=2**31)
    assert list(answers(work, [2**20, 2**32, 2**20], processes=1)) == [
        (0, 2**20),
        (1, 0),
        (2, 2**20),
    ]


@daily(2)
@pytest.mark.parametrize("taken", [1, 2])
def test_processes_end_with_the_iterator(taken: int) -> None:
    found = answers(doubled, [1, 2, 99, 99], processes=2)
    assert {next(found)[1] for _ in range(taken)} <= {2, 4}
    found.close()
    assert multiprocessing.active_children() == []


# ---- the survey


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
