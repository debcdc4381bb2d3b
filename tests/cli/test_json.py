"""JSON that a reader expects: what has names is an object, not a list of pairs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from helpers.command_line import run_json
from helpers.release import daily

from metacount import catalog
from metacount.cli import COMMANDS, file_of, main


def pairs(value: Any, path: str = "") -> list[str]:
    """Where a list holds nothing but (name, value)."""
    found = []
    if isinstance(value, dict):
        for key, item in value.items():
            found += pairs(item, f"{path}.{key}")
    elif isinstance(value, list):
        if value and all(
            isinstance(item, list) and len(item) == 2 and isinstance(item[0], str) for item in value
        ):
            found.append(path)
        for i, item in enumerate(value):
            found += pairs(item, f"{path}[{i}]")
    return found


# A command line of each command that has --json; a list has the envelope around each of its rows.
LINES = [
    "models",
    "models --fields",
    "claims mixtral-total",
    "code",
    "audit",
    "survey gpt2 --kind causal-LM --params-only",
    "plot --caches llama-7b",
    "count gpt2 --columns params",
    "count deepseek-v3",
    "count gpt2 t5-11b",
    "count llama-7b --conventions",
    "count type:mamba --seq 8",
    "formula deepseek-v3",
    "formula type:gpt2 --from-code",
    "tree deepseek-v3",
    "tree gpt2 --columns flops --seq 8",
    "flow gpt2 --seq 8",
    "flow gpt2 --formula --set n_layers=2",
    "diff gpt2 llama-7b",
    "plot gpt2",
    "train gpt2 --formula --set n_layers=2",
    "train gpt2 --seq 8 --set n_layers=2",
    "shard gpt2 --mesh dp=2 --formula --set n_layers=2",
    "fit gpt2 --set n_layers=2",
    "check 12*N*d^2 gpt2 --set n_layers=2",
    "verify llama-7b --seq 8",
    "lesson norm",
    "bench norm --device cpu --tokens 2 --list",
]
ENVELOPE = {"metacount", "schema", "model", "changes", "workload", "not_counted", "notes"}


@daily(9)
@pytest.mark.parametrize("line", LINES)
def test_one_envelope_around_every_answer(capsys: pytest.CaptureFixture[str], line: str) -> None:
    main([*line.split(), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert pairs(found) == []
    for answer in found if isinstance(found, list) else [found]:
        assert answer.keys() >= ENVELOPE
        assert list(answer)[:2] == ["metacount", "schema"]
        for name in ("not_counted", "notes"):
            assert all(isinstance(text, str) for text in answer[name])
        assert isinstance(answer["workload"], dict | None)
        assert answer["changes"] == ({"n_layers": 2} if "n_layers=2" in line else {})


def test_every_command_with_json_is_there() -> None:
    tried = {line.split()[0] for line in LINES}
    have = {
        name
        for name in COMMANDS
        if any("--json" in option.names for option in file_of(name).options())
    }
    assert tried == have


def test_a_list_of_pairs_would_be_found() -> None:
    assert pairs({"a": [{"spec": [["kind", "decoder"], ["d_model", 7]]}]}) == [".a[0].spec"]


def test_the_spec_of_a_model_is_an_object_that_makes_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from metacount.spec import ModelSpec

    for model in run_json(capsys, "models"):
        entry = catalog.entry(model["model"])
        if model["spec"] is None:
            assert entry.sizes is None
        else:
            assert ModelSpec.from_dict(model["spec"]) == entry.spec()
