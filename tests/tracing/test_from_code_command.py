"""`formula --from-code` and `verify --all-sizes` as a user runs them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from helpers.release import ONLY, daily, one_day_in

from metacount.cli import main
from metacount.spec import Workload
from metacount.tracing.forms import CodeForm, Tracer


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(arguments) == code
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    return printed.err


@one_day_in(6)
def test_python_output_runs_and_comes_to_the_count(capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, Any] = {}
    exec(run(capsys, "formula", "type:mixtral", "--from-code", "--python"), namespace)
    assert namespace["params"]() == 46702792704
    # 4 layers: 28 fewer, of 1,451,270,144 = attention 41,943,040 + moe 1,409,318,912 + norm 8,192
    assert namespace["params"](num_hidden_layers=4) == 46702792704 - 28 * 1451270144


# names of several parts, of parts of a config, rounded quotients, a mixer with a state, an encoder
EXPORTED = [
    ("type:mamba2", "--quantity", "params"),
    ("type:qwen3_moe", "--quantity", "active_params"),
    ("type:t5", "--quantity", "params"),
    ("type:gpt2", "--quantity", "matmul_flops", "--by", "operator", "--seq", "64"),
    ("bert-base", "--quantity", "params"),
    ("type:lfm2", "--quantity", "params"),
]


@daily(2)
@pytest.mark.parametrize(
    "arguments",
    [
        EXPORTED[0],
        EXPORTED[3],
        *(pytest.param(each, marks=ONLY) for each in EXPORTED[1:3] + EXPORTED[4:]),
    ],
)
def test_python_and_latex_of_any_model(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    """Python runs and comes to the count; LaTeX keeps names apart; both say the conditions."""
    monkeypatch.setattr("metacount.tracing.forms.Tracer", OneForm(Tracer))
    data = json.loads(run(capsys, "formula", *arguments, "--from-code", "--json"))
    text = run(capsys, "formula", *arguments, "--from-code", "--python")
    namespace: dict[str, Any] = {}
    exec(text, namespace)
    assert namespace[data["quantity"]]() == data["total"]
    said = " ".join(line.strip().removeprefix("# ") for line in text.splitlines())
    lines = run(capsys, "formula", *arguments, "--from-code", "--latex").splitlines()
    for condition in data["domain"]:
        assert condition in said
        assert any(line.startswith("%") and condition in line for line in lines)
    check_mathematics([s for s in lines if not s.startswith(("%", r"\begin", r"\end"))])


class OneForm:
    """A tracer that reads one form, once: three commands print the same one."""

    def __init__(self, tracer: type[Tracer]) -> None:
        self.tracer, self.found = tracer, list[CodeForm]()

    def __call__(self, model: Any, workload: Workload, *, split: str) -> OneForm:
        self.given = model, workload, split
        return self

    def form(self, quantity: str) -> CodeForm:
        if not self.found:
            model, workload, split = self.given
            self.found.append(self.tracer(model, workload, split=split).form(quantity))
        return self.found[0]


def check_mathematics(body: list[str]) -> None:
    from matplotlib.mathtext import MathTextParser

    parser = MathTextParser("path")
    for line in body:
        parser.parse(f"${line.removesuffix(chr(92) * 2).replace('&=', '=')}$")
        # a name of several letters has a sign on both sides, where a factor could stand
        bare = re.sub(r"\\(mathrm|text)\{[^{}]*\}(\^\{\d+\})?", "N", line.replace(r"\cdot", "*"))
        assert not re.search(r"[\w)}] *N|N *[\w({]|N *\\(left|frac|lceil|lfloor)", bare), bare
        # a hyphen in mathematics is a minus
        assert "-" not in "".join(re.findall(r"\\mathrm\{([^{}]*)\}", line))


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
        (("llama-7b", "--by", "operator"), "--by belongs to --from-code"),
        (("llama-7b", "--from-code", "--by", "operator"), "params have no operator; leave it out"),
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
