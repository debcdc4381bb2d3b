"""JSON that a reader expects: what has names is an object, not a list of pairs."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.command_line import run_json
from helpers.release import daily

from metacount import catalog


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


@daily(6)
@pytest.mark.parametrize(
    "arguments",
    [
        ("models",),
        ("models", "--fields"),
        ("count", "deepseek-v3"),
        ("count", "gpt2", "t5-11b"),
        ("count", "llama-7b", "--conventions"),
        ("count", "type:mamba", "--seq", "8"),
        ("formula", "deepseek-v3"),
        ("formula", "type:gpt2", "--from-code"),
        ("tree", "deepseek-v3"),
        ("verify", "llama-7b", "--seq", "8"),
        ("check", "V*d + N*(2*d*h_d*(h + h_kv) + 3*d*m + 2*d) + d + V*d", "llama-7b"),
        ("claims", "mixtral-total"),
        ("survey", "gpt2", "--kind", "causal-LM", "--params-only"),
        ("bench", "norm", "--device", "cpu", "--tokens", "2", "--list"),
    ],
)
def test_no_names_in_lists_of_pairs(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    assert pairs(run_json(capsys, *arguments)) == []


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
