"""`metacount formula` and `flow --formula`: in letters, in numbers, as Python: the count."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from helpers.command_line import Ask, assert_readable, number
from helpers.miniatures import TINY, TINY_PARAMS
from helpers.release import daily, one_in

from metacount import Setup, Workload, catalog, count
from metacount.resolve import find_model
from metacount.textbook.count import QUANTITIES
from metacount.textbook.forward import forward_table
from metacount.textbook.training import count_step

# one of each kind of attention, mask, feed-forward and stack that the catalog has
VARIED = (
    "llama-7b", "deepseek-v3", "mixtral-8x7b", "gemma3-27b-text", "llama4-scout-text", "t5-11b",
    "switch-base-8", "bert-base", "gpt2", "glm-130b", "pangu-alpha-207b", "gpt-oss-20b",
    "palm-540b", "textbook-block",
)  # fmt: skip
BUILT = [e.id for e in catalog.entries() if e.sizes is not None]


@daily(14)
@pytest.mark.parametrize("quantity", QUANTITIES)
@pytest.mark.parametrize("name", one_in(3, VARIED))
def test_formulas_come_to_the_count(ask: Ask, name: str, quantity: str) -> None:
    line = f"formula {name} --quantity {quantity} --seq 2048"
    if quantity == "decode_matmul_flops" and find_model(name).spec.kind == "encoder":
        assert "has no decode step" in ask.refused(line)
        return
    expected = count(name, seq_len=2048).to_dict()[quantity]
    # as data: the parts sum, and their Python with the legend's numbers is the value
    data = ask.json(line)
    assert data["total"] == sum(part["value"] for part in data["parts"].values()) == expected
    sizes = {term["name"]: term["value"] for term in data["legend"]}
    for part in data["parts"].values():
        assert eval(part["python"], {"min": min}, dict(sizes)) == part["value"]
    # as a function: without arguments it is this model's count, in whole numbers
    namespace: dict[str, Any] = {}
    exec(ask(f"{line} --python"), namespace)
    result = namespace[quantity]()
    assert (result, type(result)) == (expected, int)
    # as text: what follows each = sign is a part, and the last one is their sum
    text = ask(line)
    assert_readable(text.splitlines(), 80)
    values = [number(found) for found in re.findall(r"= ([\d,]+)$", text, re.M)]
    parts = values if len(data["parts"]) < 2 else values[:-1]
    assert parts == [part["value"] for part in data["parts"].values()]
    assert sum(parts) == expected == (values or [0])[-1]
    # as LaTeX: the braces close
    latex = ask(f"{line} --latex")
    assert latex.count("{") == latex.count("}")
    assert latex.count(r"\left") == latex.count(r"\right")


def test_a_name_cannot_break_out_of_the_python(ask: Ask, tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text(json.dumps({**TINY, "name": '"""\nraise SystemExit("no")\n\\"""'}))
    namespace: dict[str, Any] = {}
    exec(ask(f"formula {file} --python"), namespace)
    assert namespace["params"]() == TINY_PARAMS


# ---- flow --formula


@pytest.mark.parametrize("name", BUILT[::6])
def test_the_flops_of_a_forward_are_those_of_count(name: str) -> None:
    spec = catalog.entry(name).spec()
    work = Workload(batch_size=2, seq_len=48, source_len=32 if spec.has_encoder else None)
    assert forward_table(spec, work).matmul_flops == count(spec, work).matmul_flops


@pytest.mark.parametrize("attention", ["eager", "flash", "sdpa"])
def test_what_a_block_saves_is_what_train_says(attention: str) -> None:
    spec, work = catalog.entry("mixtral-8x7b").spec(), Workload(seq_len=64)
    table = forward_table(spec, work, attention=attention)
    saved = sum(step.saved_value for step in table.parts[1].steps)
    counted = count_step(spec, work, Setup(attention=attention)).activation_bytes_of_block
    assert counted == {"experts": saved}


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("name", ["xlstm-7b", "qwen3-next-80b-a3b"])
def test_a_forward_fits_the_terminal(ask: Ask, name: str, width: int) -> None:
    lines = ask(f"flow {name} --formula", width=width).splitlines()
    assert [line for line in lines if len(line) > width] == []
