"""`--columns` of count and models, and models with and without a formula in one table."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from helpers.command_line import refused, run, run_json
from helpers.release import one_day_in

from metacount import catalog
from metacount.cli import main

pytestmark = pytest.mark.usefixtures("eighty_columns")

RWKV = {
    "model_type": "rwkv",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "vocab_size": 100,
    "attention_hidden_size": 64,
    "intermediate_size": 256,
}


@pytest.fixture
def rwkv(tmp_path: Path) -> str:
    """The config of a model that only transformers knows, in a folder of its own."""
    folder = tmp_path / "small-rwkv"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(RWKV), "utf-8")
    return str(folder / "config.json")


def without_envelope(row: dict[str, Any]) -> dict[str, Any]:
    envelope = ("metacount", "schema", "changes", "workload", "not_counted", "notes")
    return {name: value for name, value in row.items() if name not in envelope}


def test_the_columns_of_the_slides(capsys: pytest.CaptureFixture[str]) -> None:
    names = "kind,norm,norm_placement,position,ffn,attention,layers,h,experts,params,share.ffn"
    models = ("gpt2", "mixtral-8x7b", "t5-small", "deepseek-v3")
    text = run(capsys, "count", *models, "--columns", names)
    assert max(map(len, text.splitlines())) <= 80
    gpt2 = {word for line in text.splitlines() if line.startswith("gpt2 ") for word in line.split()}
    assert gpt2 >= {"decoder", "layernorm", "pre", "learned", "(tanh)", "MHA", "12", "-", "45.5"}
    _, mixtral, t5, deepseek = run_json(capsys, "count", *models, "--columns", names)
    assert (mixtral["attention"], mixtral["ffn"], mixtral["experts"]) == ("GQA", "SwiGLU", "2 of 8")
    assert (t5["kind"], t5["layers"], t5["ffn"]) == ("encoder-decoder", "6 + 6", "ReLU")
    assert (deepseek["attention"], deepseek["experts"]) == ("MLA", "8 + 1 of 256 + 1")


def test_columns_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    columns = "num_key_value_heads,gated,params,by_role.moe,share.moe,seq_len,window,d_ff/d_model"
    (found,) = run_json(capsys, "count", "mixtral-8x7b", "--columns", columns, "--seq", "64")
    assert without_envelope(found) == {
        "model": "mixtral-8x7b",
        "n_kv_heads": 8,
        "gated": True,
        "params": 46_702_792_704,
        "by_role.moe": 45_098_205_184,
        "share.moe": 45_098_205_184 / 46_702_792_704,
        "seq_len": 64,
        "window": None,
        "d_ff/d_model": None,
    }


def test_every_column_of_every_model(capsys: pytest.CaptureFixture[str]) -> None:
    from metacount.cli.columns import BY_ROLE, DERIVED, ROLES, RUN
    from metacount.figures import COUNTED
    from metacount.spec import FIELDS

    by_role = [f"{each}.{role}" for each in BY_ROLE for role in ROLES]
    names = [*FIELDS, *DERIVED, *COUNTED, *RUN, *by_role, "name"]
    rows = run_json(capsys, "models", "--columns", ",".join(names))
    assert [row["model"] for row in rows] == list(catalog.ids())
    for row in rows:
        entry = catalog.entry(row["model"])
        assert row["d_model"] == (entry.spec().d_model if entry.sizes is not None else None)
        assert set(without_envelope(row)) == {"model", *names}


@one_day_in(6)
def test_a_model_without_a_formula_stands_in_the_same_table(
    capsys: pytest.CaptureFixture[str], rwkv: str
) -> None:
    measured: dict[str, Any] = run_json(capsys, "count", rwkv, "--seq", "16")
    assert main(["count", "gpt2", rwkv, "--seq", "16"]) == 0
    out = capsys.readouterr().out
    line = next(line for line in out.splitlines() if line.startswith("params "))
    assert line.split() == ["params", "124,439,808", f"{measured['params']:,}"]
    assert re.search(r"^ +gpt2 +small-rwkv$", out, re.M)  # headed by its folder
    assert "no formula: the model type rwkv has no textbook spec" in out
    assert "measured  small-rwkv  by transformers" in out
    (_, row) = run_json(capsys, "count", "gpt2", rwkv, "--seq", "16", "--columns", "norm,params")
    assert without_envelope(row) == {
        "model": "small-rwkv",
        "norm": None,
        "params": measured["params"],
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["count", "gpt2", "--columns", "parms"], "'parms' is not a column; did you mean params"),
        (["count", "nothing", "--columns", "parms"], "'parms' is not a column"),
        (["count", "gpt2", "--columns", "share.foo"], "'share.foo' is not a column"),
        (["count", "gpt2", "--columns", "hidden_dim"], "'hidden_dim' is not a column"),
        (["count", "gpt2", "--columns", ""], "'' is not a column"),
        (["count", "gpt2", "--conventions", "--columns", "params"], "does not go with --con"),
        (["count", "--folder", ".", "--columns", "params"], "does not go with --folder"),
        (["models", "--fields", "--columns", "params"], "does not go with --fields"),
        (["models", "--columns", "parms"], "'parms' is not a column; did you mean params"),
    ],
)
def test_a_column_that_is_none(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert said in refused(capsys, *arguments)
