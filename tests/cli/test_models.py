"""`metacount models` and `metacount code`: the catalog, its fields, the code that runs."""

from __future__ import annotations

import inspect
import re
from importlib import import_module

import pytest
from helpers.command_line import Ask, assert_readable
from helpers.release import daily

from metacount import catalog
from metacount.cli.code import Code, codes, find_codes
from metacount.spec import FIELDS


def test_models_lists_the_catalog(ask: Ask) -> None:
    data = ask.json("models")
    assert [row["model"] for row in data] == list(catalog.ids())
    by_name = {row["model"]: row for row in data}
    assert by_name["llama-7b"]["params"] == 6738415616
    assert by_name["llama-7b"]["status"] == "exact"
    assert by_name["llama-13b"]["status"] == "rounds"
    assert by_name["llama4-maverick"]["params"] is None
    assert by_name["llama4-maverick"]["not_expressible"]
    text = ask("models")
    lines = text.splitlines()
    assert_readable(lines, 80)
    printed = {line.split()[0]: line.split()[1] for line in lines[1 : 1 + len(data)]}
    assert printed == {r["model"]: f"{r['params']:,}" if r["params"] else "-" for r in data}
    assert re.search(r"With more width, or --json: .*name\.", text, re.S)
    wide = ask("models", width=180)
    assert "DeepSeek-V3 671B" in wide and "With more width" not in wide


def test_every_field_has_a_line_and_a_meaning(ask: Ask) -> None:
    rows = ask.json("models --fields")
    assert [row["field"] for row in rows] == list(FIELDS)
    assert all(row["meaning"] for row in rows)
    text = ask("models --fields")
    assert_readable(text.splitlines(), 80)
    assert {line.split()[0] for line in text.splitlines() if line} >= {r["field"] for r in rows}
    required = {row["field"] for row in rows if row["required"]}
    assert required == {"kind", "d_model", "n_layers", "vocab_size", "norm", "position"}


@daily(9)
@pytest.mark.parametrize("code", codes(), ids=lambda code: f"{code.file}:{code.name}")
def test_code_is_what_runs(code: Code) -> None:
    module = import_module("metacount." + code.file.removesuffix(".py").replace("/", "."))
    thing = getattr(module, code.name)
    assert code.text == inspect.getsource(thing).rstrip("\n")
    assert inspect.getsourcelines(thing)[1] == code.line
    assert code.says and code.says == (inspect.getdoc(thing) or "").partition("\n")[0]


def test_code_of_a_name_or_a_topic(ask: Ask) -> None:
    assert "\nclass RMSNorm(nn.Module):\n" in ask("code RMSNorm glu_params")
    assert [code["name"] for code in ask.json("code ffn")][:2] == ["activate", "gate"]
    assert {c.file for c in find_codes(["formulas.masks"])} == {"formulas/masks.py"}
    assert [c.file for c in find_codes(["modules.ffn.gated_d_ff"])] == ["modules/ffn.py"]
    assert len(find_codes(["norm", "RMSNorm"])) == len(find_codes(["norm"]))
    assert all(f"\n  {code.name} " in ask("code") for code in codes()[:3])
