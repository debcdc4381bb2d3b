"""`formula --from-code` and `verify --all-sizes` as a user runs them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from helpers.command_line import refused
from helpers.release import one_day_in

from metacount.cli import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0
    return capsys.readouterr().out


@one_day_in(6)
def test_python_output_runs_and_comes_to_the_count(capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, Any] = {}
    exec(run(capsys, "formula", "type:mixtral", "--from-code", "--python"), namespace)
    assert namespace["params"]() == 46702792704
    # 4 layers: 28 fewer, of 1,451,270,144 = attention 41,943,040 + moe 1,409,318,912 + norm 8,192
    assert namespace["params"](num_hidden_layers=4) == 46702792704 - 28 * 1451270144


def test_json_has_parts_layers_and_domain(capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(run(capsys, "formula", "type:gpt2", "--from-code", "--json"))
    assert (data["total"], data["how"]) == (124439808, "traced")
    assert data["domain"] == ["n_head divides n_embd"]
    assert data["parts"]["embedding"]["fields"] == "n_embd·vocab_size"
    assert {layer["count"] for layer in data["layers"]} == {"n_layer"}
    assert data["numbers"] == {
        "n_layer": 12,
        "vocab_size": 50257,
        "n_embd": 768,
        "n_positions": 1024,
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("type:gpt2", "--from-code", "--quantity", "flops"), "is unknown"),
        (
            ("type:rwkv", "--from-code", "--quantity", "causal_matmul_flops"),
            "computes every pair and masks afterwards",
        ),
        (
            ("type:bert", "--from-code", "--quantity", "kv_cache_bytes", "--seq", "64"),
            "no form of kv_cache_bytes: nothing is measured",
        ),
        (
            ("type:bert", "--from-code", "--quantity", "matmul_flops", "--seq", "2048"),
            "no form of matmul_flops: RuntimeError: The expanded size of the tensor (2048) must",
        ),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert message in refused(capsys, "formula", *arguments)


@one_day_in(6)
def test_verify_for_all_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(run(capsys, "verify", "type:gpt2", "--all-sizes", "--seq", "64", "--json"))
    assert [(p["quantity"], p["proven"]) for p in data["all_sizes"]] == [
        ("params", True),
        ("active_params", True),
        ("matmul_flops", True),
        ("decode_matmul_flops", True),
        ("kv_cache_bytes", True),
    ]
    assert "--all-sizes needs a formula: type:rwkv has none" in refused(
        capsys, "verify", "type:rwkv", "--all-sizes"
    )
