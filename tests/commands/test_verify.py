"""`metacount tree` and `metacount verify`: witnesses side by side; exit 1 where two disagree."""

from __future__ import annotations

import json

import pytest
from helpers.command_line import refused, run, run_json
from helpers.miniatures import TINY_PARAMS

from metacount.cli import main

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
