"""`metacount models`: the whole catalog, filtered or not, and every field of a spec."""

from __future__ import annotations

import re

import pytest
from helpers.command_line import assert_readable, refused, run, run_json

from metacount import catalog
from metacount.cli import main
from metacount.cli.models import field_rows
from metacount.spec import FIELDS

pytestmark = pytest.mark.usefixtures("eighty_columns")


def test_models_lists_the_catalog(capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, "models")
    assert [row["model"] for row in data] == list(catalog.ids())
    by_name = {row["model"]: row for row in data}
    assert by_name["llama-7b"]["params"] == 6738415616
    assert by_name["llama-7b"]["status"] == "exact"
    assert by_name["llama-13b"]["status"] == "rounds"
    assert by_name["llama4-maverick"]["params"] is None
    assert by_name["llama4-maverick"]["not_expressible"]
    lines = run(capsys, "models").splitlines()
    assert_readable(lines, 80)
    printed = {line.split()[0]: line.split()[1] for line in lines[1 : 1 + len(data)]}
    assert printed == {r["model"]: f"{r['params']:,}" if r["params"] else "-" for r in data}


def test_models_shows_more_with_more_width(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "180")
    wide = run(capsys, "models")
    assert "DeepSeek-V3 671B" in wide
    assert "With more width" not in wide
    assert_readable(wide.splitlines(), 180)
    monkeypatch.setenv("COLUMNS", "80")
    assert re.search(r"With more width, or --json: .*name\.", run(capsys, "models"), re.S)


def test_models_can_be_filtered(capsys: pytest.CaptureFixture[str]) -> None:
    assert {r["model"] for r in run_json(capsys, "models", "DEEPSEEK-V")} == {
        "deepseek-v2",
        "deepseek-v3",
        "deepseek-v3.2",
    }
    family = run_json(capsys, "models", "--family", "deepseek v3")
    assert [row["model"] for row in family] == ["deepseek-v3"]
    error = refused(capsys, "models", "--family", "DeepSeek V33")
    assert "deepseek v3" in error
    assert main(["models", "nothing-like-it"]) == 0
    assert capsys.readouterr() == ("", "metacount: no model of the catalog matches\n")


def test_every_field_has_a_line_and_a_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    rows = field_rows()
    assert [row["field"] for row in rows] == list(FIELDS)
    assert [row["field"] for row in rows if not row["meaning"]] == []
    text = run(capsys, "models", "--fields")
    assert_readable(text.splitlines(), 80)
    assert {line.split()[0] for line in text.splitlines() if line} >= {r["field"] for r in rows}
    printed = run_json(capsys, "models", "--fields")
    assert all(row.items() <= found.items() for row, found in zip(rows, printed, strict=True))
    required = {row["field"] for row in rows if row["required"]}
    assert required == {"kind", "d_model", "n_layers", "vocab_size", "norm", "position"}
