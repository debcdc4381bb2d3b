"""`metacount verify`: witnesses side by side, wide or narrow; exit 1 where two disagree."""

from __future__ import annotations

import json

import pytest
from helpers.command_line import refused, run, run_json
from helpers.miniatures import TINY_PARAMS

from metacount.cli import main
from metacount.cli.report import in_text
from metacount.cli.verify import many_report, report_of
from metacount.spec import Workload
from metacount.verify.compare import BREAKDOWNS, QUANTITIES, Verification, Witness

pytestmark = pytest.mark.usefixtures("eighty_columns")


def test_tree_and_verify_of_a_small_model(capsys: pytest.CaptureFixture[str], tiny: str) -> None:
    assert "q_proj" in run(capsys, "tree", tiny)
    assert run_json(capsys, "tree", tiny)["tree"]["params"] == TINY_PARAMS
    data = run_json(capsys, "verify", tiny, "--seq", "7")
    assert (data["model"], data["agree"]) == ("tiny", True)
    for witness in data["witnesses"]:
        assert {
            "name",
            "params",
            "active_params",
            "matmul_flops",
            "kv_cache_bytes",
            "detail",
        } <= set(witness)
        assert witness["params"] == TINY_PARAMS
    assert len(data["witnesses"]) == 2
    run(capsys, "verify", tiny, "--seq", "7")


def test_verify_exits_1_when_witnesses_differ(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tiny: str
) -> None:
    from metacount.formulas import block

    # the formulas forget every feed-forward
    monkeypatch.setattr(block, "feed_forward", lambda t, part, x, width: x)
    assert main(["verify", tiny, "--seq", "7", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["agree"] is False
    assert any(d.startswith("params:") for d in data["differences"])


def test_verify_needs_models_or_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert "either MODEL or --all" in refused(capsys, "verify")
    assert "either MODEL or --all" in refused(capsys, "verify", "gpt2", "--all")


def said(name: str, **figures: int) -> Witness:
    return Witness(
        name=name,
        figures={**dict.fromkeys(QUANTITIES), **figures},
        parts=dict.fromkeys(BREAKDOWNS),
        detail=f"what {name} is",
    )


def result(*witnesses: Witness, differences: tuple[str, ...] = ()) -> Verification:
    return Verification(
        model="m", workload=Workload(), witnesses=witnesses, differences=differences
    )


AGREE = result(
    said("formula", params=1234, macs=7), said("reference", params=1234, kv_cache_bytes=0)
)
DISAGREE = result(
    said("formula", params=1234),
    said("reference", params=1234),
    said("transformers", params=1235),
    differences=("params: formula - transformers = 1,234 - 1,235 = -1",),
)


def test_a_column_for_each_witness(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    lines = in_text(report_of(AGREE, "a model")).splitlines()
    assert [line.split() for line in lines[3:5]] == [
        ["formula", "reference"],
        ["params", "1,234", "1,234", "equal"],
    ]
    assert lines[5] == ""  # a cache of nothing is no line
    assert "agree  formula, reference: whatever two of them give" in lines[-1]


def test_a_disagreement_is_marked_and_counted_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    text = in_text(report_of(DISAGREE, "m"))
    assert "params    1,234      1,234         1,235  differ" in text
    assert text.endswith("DISAGREE\n  params: formula - transformers = 1,234 - 1,235 = -1\n")
    many = in_text(many_report([AGREE, DISAGREE]))
    assert "1 of 2 models agree" in many
    assert many.endswith("m:\n  params: formula - transformers = 1,234 - 1,235 = -1\n")


def test_a_narrow_terminal_gets_a_line_for_each_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "44")
    lines = in_text(report_of(DISAGREE, "m")).splitlines()
    assert [line.split() for line in lines[3:6]] == [
        ["value", "said", "by"],
        ["params", "1,234", "formula", "=", "reference"],
        ["1,235", "transformers"],
    ]


def test_one_witness_proves_nothing() -> None:
    text = in_text(report_of(result(said("transformers", params=5)), "m"))
    assert "one witness  there is nothing to compare it with" in text
