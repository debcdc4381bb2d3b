"""What README says of times is what the saved rows say: table, sentences and pictures."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from helpers import ROOT

from metacount.bench.results import files as results
from metacount.cli import main

README = (ROOT / "README.md").read_text(encoding="utf-8")
RESULTS = ROOT / "benchmarks" / "results"

NAMES = {
    "gelu, 4·d": "gelu",
    "swiglu, equal parameters": "swiglu",
    "swiglu, gate and up joined": "swiglu-joined",
    "swiglu, compiled": "swiglu-joined-compiled",
    "swiglu, equal width": "swiglu-4d",
}


def rows() -> dict[str, dict[str, Any]]:
    """The rows of the table: Qwen3-0.6B's sizes, 256 tokens, hot."""
    lines = results.latest_run(results.read(str(RESULTS / "ffn.jsonl")))
    return {
        line["variant"]: line
        for line in lines
        if (line["model"], line["workload"], line["state"])
        == ("qwen3-0.6b", {"tokens": 256}, "hot")
    }


def cells(line: dict[str, Any]) -> list[str]:
    """What the table shows of a row."""
    assert line["dtype"] == "fp32" and line["threads"] == 2
    return [
        f"{1e3 * line['median_s']:.1f} ms",
        f"{1e3 * line['p20_s']:.1f} – {1e3 * line['p80_s']:.1f}",
        f"{line['tflops_per_s']:.3f}",
        f"{100 * line['ceiling_share']:.0f} %",
        f"{line['intensity']:.0f}",
        f"{line['ratio']:.2f}"
        + (" ~" if line["within_noise"] and line["variant"] != line["baseline"] else ""),
    ]


def table(text: str) -> dict[str, list[str]]:
    """The README's table: first cell, and the others."""
    (body,) = re.findall(r"^\| variant \| median .*\n\|[-:|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines()]
    return {first: rest for first, *rest in found}


def differences(text: str) -> list[str]:
    measured, shown = rows(), table(text)
    wrong = [
        name for name in shown if name not in NAMES or cells(measured[NAMES[name]]) != shown[name]
    ]
    return wrong + [name for name in NAMES if name not in shown]


def test_the_table_is_what_the_saved_rows_say() -> None:
    assert differences(README) == []


@pytest.mark.parametrize(("right", "wrong"), [("24.4 ms", "24.5 ms"), ("| 1.00 ~ |", "| 1.00 |")])
def test_a_changed_figure_is_found(right: str, wrong: str) -> None:
    assert differences(README.replace(right, wrong, 1)) != []


def test_the_sentences_are_what_the_saved_rows_say() -> None:
    found = rows()
    words = " ".join(README.split())
    gelu, equal, wide = found["gelu"], found["swiglu"], found["swiglu-4d"]
    top = gelu["ceiling"]["flops_per_s"] / 1e12
    assert f"({top:.3f} TFLOP/s at most)" in words
    assert gelu["load_average"] < 1 and "on two otherwise idle cores" in words
    assert "At equal parameters SwiGLU takes GELU's time;" in words
    assert equal["within_noise"] and abs(equal["ratio"] - 1) < 0.01
    assert "at equal width it has 3/2 of the FLOPs and takes 3/2 of the time" in words
    assert 2 * wide["matmul_flops"] == 3 * gelu["matmul_flops"]
    assert round(2 * wide["ratio"]) == 3 and abs(wide["ratio"] / 1.5 - 1) < 0.05


def test_no_row_of_a_gpu_is_saved_while_readme_says_so() -> None:
    kinds = {line["kind"] for file in RESULTS.glob("*.jsonl") for line in results.read(str(file))}
    assert ("cuda" not in kinds) == ("Every figure of a GPU is still missing" in README)


PICTURES = {
    "ffn-cpu.svg": ("--curves", "ffn.jsonl"),
    "roofline-cpu.svg": ("--roofline", "ffn.jsonl", "attention.jsonl", "mla.jsonl", "moe.jsonl"),
}


def shown(svg: str) -> tuple[list[str], Counter[tuple[str, str]]]:
    """The words of a picture, and how many marks of each kind and look it has.

    Places and the names of parts differ from machine to machine.
    """
    marks = Counter((e.tag, e.get("style", "")) for e in ElementTree.fromstring(svg).iter())
    return re.findall(r"<!-- (.*?) -->", svg), marks


@pytest.mark.parametrize("name", list(PICTURES))
def test_the_pictures_are_drawn_from_the_saved_rows(name: str, tmp_path: Path) -> None:
    how, *files = PICTURES[name]
    drawn = tmp_path / name
    assert main(["plot", how, *(str(RESULTS / file) for file in files), "-o", str(drawn)]) == 0
    saved = (RESULTS / name).read_text("utf-8")
    assert shown(drawn.read_text("utf-8")) == shown(saved)
    for changed in (r"<use [^>]*/>", ""), (r'style="stroke', 'style="fill'), ("<!-- ", "<!-- not "):
        assert shown(re.sub(*changed, saved, count=1)) != shown(saved)


def test_every_picture_is_one_of_these() -> None:
    assert {file.name for file in RESULTS.glob("*.svg")} == set(PICTURES)


def test_what_save_writes_by_itself_is_no_file_of_the_checkout() -> None:
    from fnmatch import fnmatch

    if not (ROOT / ".gitignore").exists():
        pytest.skip("no checkout: the tests of an image")
    ignored = (ROOT / ".gitignore").read_text("utf-8").splitlines()
    for topic in ("ffn", "attention", "mla", "moe", "norm"):
        assert any(fnmatch(results.default_file(topic), pattern) for pattern in ignored)
        assert not (RESULTS / results.default_file(topic)).exists()
