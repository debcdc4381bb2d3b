"""Every number in a docstring of the formulas is executed, and every formula has one."""

from __future__ import annotations

import doctest
import importlib
import inspect

import pytest
from helpers.release import daily

TOPICS = (
    "dim",
    "terms",
    "norm",
    "ffn",
    "attention",
    "masks",
    "mla",
    "moe",
    "shared_experts",
    "position",
    "convolution",
    "short_conv",
    "rg_lru",
    "indexer",
)
SUMS = (
    "selection",
    "sublayers",
    "block",
    "caches",
    "runs",
    "ends",
    "stack",
    "model",
    "forward",
    "kept",
    "kept_moe",
    "kept_position",
    "kept_attention",
    "kept_ends",
    "kept_model",
    "kept_selected",
    "backward",
    "trained",
    "optimizer",
    "training",
)


@daily(5)
@pytest.mark.parametrize("name", TOPICS + SUMS)
def test_examples_hold(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"metacount.formulas.{name}"))
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize("name", TOPICS)
def test_every_formula_has_an_example(name: str) -> None:
    module = importlib.import_module(f"metacount.formulas.{name}")
    own = [
        f
        for _, f in inspect.getmembers(module, inspect.isfunction)
        if f.__module__ == module.__name__
    ]
    assert own
    assert [f.__name__ for f in own if ">>>" not in (f.__doc__ or "")] == []
    if name not in ("dim", "terms"):
        wanting = [
            f.__name__ for f in own if "Returns:" not in f.__doc__ or "Source:" not in f.__doc__
        ]
        assert wanting == []
        silent = [
            f.__name__
            for f in own
            if f.__name__.endswith("_flops") and "Not counted:" not in f.__doc__
        ]
        assert silent == []
