"""`metacount formula`: in letters, with numbers, as Python and LaTeX, it comes to the count."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from helpers.command_line import assert_readable, number, refused, run, run_json
from helpers.miniatures import TINY, TINY_PARAMS
from helpers.release import daily, one_in

from metacount import count
from metacount.resolve import find_model
from metacount.textbook.count import QUANTITIES

pytestmark = pytest.mark.usefixtures("eighty_columns")


# one of each kind of attention, mask, feed-forward and stack that the catalog has
VARIED = (
    "llama-7b", "deepseek-v3", "mixtral-8x7b", "gemma3-27b-text", "llama4-scout-text", "t5-11b",
    "switch-base-8", "bert-base", "gpt2", "glm-130b", "pangu-alpha-207b", "gpt-oss-20b",
    "palm-540b", "textbook-block",
)  # fmt: skip


@daily(14)
@pytest.mark.parametrize("quantity", QUANTITIES)
@pytest.mark.parametrize("name", one_in(3, VARIED))
def test_formulas_come_to_the_count(
    capsys: pytest.CaptureFixture[str], name: str, quantity: str
) -> None:
    arguments = ("formula", name, "--quantity", quantity, "--seq", "2048")
    if quantity == "decode_matmul_flops" and find_model(name).spec.kind == "encoder":
        assert "has no decode step" in refused(capsys, *arguments)
        return
    expected = count(name, seq_len=2048).to_dict()[quantity]
    # as data: the parts sum, and their Python with the legend's numbers is the value
    data = run_json(capsys, *arguments)
    assert data["total"] == sum(part["value"] for part in data["parts"].values()) == expected
    sizes = {term["name"]: term["value"] for term in data["legend"]}
    for part in data["parts"].values():
        assert eval(part["python"], {"min": min}, dict(sizes)) == part["value"]
    # as a function: without arguments it is this model's count, in whole numbers
    namespace: dict[str, Any] = {}
    exec(run(capsys, *arguments, "--python"), namespace)
    result = namespace[quantity]()
    assert (result, type(result)) == (expected, int)
    # as text: what follows each = sign is a part, and the last one is their sum
    text = run(capsys, *arguments)
    assert_readable(text.splitlines(), 80)
    values = [number(found) for found in re.findall(r"= ([\d,]+)$", text, re.M)]
    parts = values if len(data["parts"]) < 2 else values[:-1]
    assert parts == [part["value"] for part in data["parts"].values()]
    assert sum(parts) == expected == (values or [0])[-1]
    # as LaTeX: the braces close
    latex = run(capsys, *arguments, "--latex")
    assert latex.count("{") == latex.count("}")
    assert latex.count(r"\left") == latex.count(r"\right")


def test_the_closed_form_of_llama(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "formula", "llama-7b")
    assert "attention  2·N·d·h_d·(h + h_kv)\n" in text
    assert "           2·32·4096·128·(32 + 32) = 2,147,483,648\n" in text
    assert re.search(r"^h_kv +n_kv_heads +32  key/value heads$", text, re.M)
    assert r"\mathrm{ffn} &= 3 N d m" in run(capsys, "formula", "llama-7b", "--latex")


def test_the_closed_form_of_a_window_keeps_a_letter_for_its_layers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = run_json(capsys, "formula", "gemma3-27b-text", "--quantity", "kv_cache_bytes")
    cache = data["parts"]["self-attention"]["letters"]
    assert cache == "2·B·c·h_d·h_kv·(N_w·min(S, w - 1) + S·(N - N_w))"
    assert {t["letter"]: t["value"] for t in data["legend"]}["N_w"] == 52


def test_where_every_layer_has_a_window_the_layers_keep_their_letter(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ("--quantity", "kv_cache_bytes", "--seq", "9000")
    data = run_json(capsys, "formula", "mistral-7b", *arguments)
    cache = data["parts"]["self-attention"]
    assert cache["letters"] == "2·B·N·c·h_d·h_kv·min(S, w - 1)"
    # 32 layers · 8 heads · 128 values · keys and values · 2 bytes · 4095 positions
    assert cache["value"] == 32 * 8 * 128 * 2 * 2 * 4095
    assert "N_w" not in {term["letter"] for term in data["legend"]}
    # and where no layer has one there is neither
    data = run_json(capsys, "formula", "llama-7b", *arguments)
    assert data["parts"]["self-attention"]["letters"] == "2·B·N·S·c·h_d·h_kv"
    assert not {"N_w", "w"} & {term["letter"] for term in data["legend"]}


def test_a_letter_for_each_size_of_the_workload(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--batch", "3", "--seq", "5", "--source-len", "7", "--dtype", "fp32")
    data = run_json(capsys, "formula", "t5-small", "--quantity", "kv_cache_bytes", *arguments)
    # 6 layers · 8 heads · 64 values · keys and values · 4 bytes · 3 sequences
    one = 6 * 8 * 64 * 2 * 4 * 3
    assert {name: part["value"] for name, part in data["parts"].items()} == {
        "self-attention": one * 5,
        "cross-attention": one * 7,
    }
    assert {term["letter"]: term["value"] for term in data["legend"]} == {
        "B": 3,
        "S": 5,
        "S_e": 7,
        "c": 4,
        "N": 6,
        "h_kv": 8,
        "h_d": 64,
    }


def test_a_name_cannot_break_out_of_the_python(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "x.json"
    file.write_text(json.dumps({**TINY, "name": '"""\nraise SystemExit("no")\n\\"""'}))
    namespace: dict[str, Any] = {}
    exec(run(capsys, "formula", str(file), "--python"), namespace)
    assert namespace["params"]() == TINY_PARAMS
