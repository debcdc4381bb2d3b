"""`metacount verify`: witnesses side by side, wide or narrow; exit 1 where two disagree."""

from __future__ import annotations

import json

import pytest
from helpers.command_line import Ask
from helpers.miniatures import TINY_PARAMS

from metacount.cli.report import in_text
from metacount.cli.verify import many_report, report_of
from metacount.figures import BREAKDOWNS, QUANTITIES, Witness
from metacount.spec import Workload
from metacount.verify.compare import Verification


def test_verify_of_a_small_model(ask: Ask, tiny: str) -> None:
    data = ask.json(f"verify {tiny} --seq 7")
    assert (data["model"], data["agree"], len(data["witnesses"])) == ("tiny", True, 2)
    for witness in data["witnesses"]:
        keys = {"name", "active_params", "matmul_flops", "kv_cache_bytes", "detail"}
        assert keys <= set(witness) and witness["params"] == TINY_PARAMS


def test_verify_exits_1_when_witnesses_differ(
    ask: Ask, monkeypatch: pytest.MonkeyPatch, tiny: str
) -> None:
    from metacount.formulas import block

    # the formulas forget every feed-forward
    monkeypatch.setattr(block, "feed_forward", lambda t, part, x, width: x)
    code, out, _ = ask.all(f"verify {tiny} --seq 7 --json")
    data = json.loads(out)
    assert (code, data["agree"]) == (1, False)
    assert any(d.startswith("params:") for d in data["differences"])


def test_verify_has_all_figures_of_bert(ask: Ask) -> None:
    data = ask.json("verify type:bert")
    assert data["workload"]["seq_len"] == 512
    assert "seq_len 512: all its positions" in data["notes"]
    said = {w["name"]: w["matmul_flops"] for w in data["witnesses"]}
    assert said.keys() == {"formula", "reference", "transformers"}
    assert None not in said.values() and len({*said.values()}) == 1
    assert ask.json("verify bert-base --seq 512")["notes"] == []  # asked for: no word of it


def result(differences: tuple[str, ...] = (), **params: int) -> Verification:
    """What witnesses of these names say of the parameters."""
    witnesses = tuple(
        Witness(
            name=name,
            figures={**dict.fromkeys(QUANTITIES), "params": n, "kv_cache_bytes": 0},
            parts=dict.fromkeys(BREAKDOWNS),
            detail=f"what {name} is",
        )
        for name, n in params.items()
    )
    return Verification(
        model="m", workload=Workload(), witnesses=witnesses, differences=differences
    )


AGREE = result(formula=1234, reference=1234)
WRONG = "params: formula - transformers = 1,234 - 1,235 = -1"
DISAGREE = result((WRONG,), formula=1234, reference=1234, transformers=1235)


def test_a_column_for_each_witness_or_a_line_for_each_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    lines = in_text(report_of(AGREE, "a model")).splitlines()
    assert lines[4].split() == ["params", "1,234", "1,234", "equal"]
    assert lines[5] == ""  # a cache of nothing is no line
    text = in_text(report_of(DISAGREE, "m"))
    assert "params    1,234      1,234         1,235  differ" in text
    assert text.endswith(f"DISAGREE\n  {WRONG}\n")
    many = in_text(many_report([AGREE, DISAGREE]))
    assert "1 of 2 models agree" in many and many.endswith(f"m:\n  {WRONG}\n")
    monkeypatch.setenv("COLUMNS", "44")
    lines = in_text(report_of(DISAGREE, "m")).splitlines()
    assert [line.split() for line in lines[4:6]] == [
        ["params", "1,234", "formula", "=", "reference"],
        ["1,235", "transformers"],
    ]
    text = in_text(report_of(result(transformers=5), "m"), 80)
    assert "one witness  there is nothing to compare it with" in text
