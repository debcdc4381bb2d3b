"""The script behind the literals: what it prints for a sample is what the tests' tables hold."""

from __future__ import annotations

import importlib.util
import json
import sys
from types import ModuleType

import pytest
from helpers import ROOT
from helpers.catalog_counts import MEASURED

# one of each kind of class; the whole table takes a minute: python benchmarks/measured_counts.py
SAMPLE = (
    "bert-base",
    "gpt2",
    "qwen3-0.6b",
    "olmo2-1b",
    "t5-small",
    "switch-base-8",
    "gemma3-270m",
    "pythia-12b",
    "gpt-oss-20b",
    "falcon-180b",
)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    path = ROOT / "benchmarks" / "measured_counts.py"
    found = importlib.util.spec_from_file_location("measured_counts", path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules["measured_counts"] = module
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize("id", SAMPLE)
def test_a_class_of_transformers_counts_what_the_table_says(script: ModuleType, id: str) -> None:
    count, by = script.counted(id)
    assert count == MEASURED[id]
    assert by != "algebra"


def test_three_flop_literals_of_checks_tests(script: ModuleType) -> None:
    text = (ROOT / "tests" / "check" / "words.json").read_text("utf-8")
    figures = dict(script.flop_figures())
    forward, half, twice = figures.values()
    # 2·2048·(32000·4096 + 32·202,375,168) + 4·32·2048²·4096
    assert forward == 2 * 2048 * (32_000 * 4096 + 32 * 202_375_168) + 4 * 32 * 2048**2 * 4096
    assert f"half of {forward:,}" in text and f"three times {forward:,}" in text
    assert f"-{half}]" in text and f" {twice}]" in text


def test_a_wrong_size_is_seen(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = json.loads((script.CATALOG / "gpt2.json").read_text("utf-8"))["spec"]
    monkeypatch.setattr(script, "sizes", lambda _: {**sizes, "n_layers": 13})
    assert script.counted("gpt2")[0] != MEASURED["gpt2"]
