"""Every formula says its source and has an example, which is run with the package's doctests."""

from __future__ import annotations

import importlib
import inspect
import re

import pytest

# files, and which of their functions are formulas of sizes; of the last two no source is asked
OF_SIZES = {
    "masks": r"\w+",
    "sublayers": r"\w+",
    "pieces": "lettered_layers|windowed_layers|layers_by_law",
    "feed_forward": "gated_d_ff",
    "mixers.convolution": "convolved_positions",
    "dim": r"\w+",
    "tape": r"\w+",
}


@pytest.mark.parametrize("file", OF_SIZES)
def test_every_formula_has_an_example_and_a_source(file: str) -> None:
    """The public functions of a file that take neither a model nor a tape."""
    module, seen = importlib.import_module(f"metacount.formulas.{file}"), 0
    for name, function in inspect.getmembers(module, inspect.isfunction):
        own = function.__module__ == module.__name__ and not name.startswith("_")
        taken = {str(kind).partition(" ")[0] for kind in function.__annotations__.values()}
        if own and re.fullmatch(OF_SIZES[file], name) and not taken & {"ModelSpec", "Tape"}:
            wanted = [">>>"] if file in ("dim", "tape") else [">>>", "Source:"]
            wanted += ["Not counted:"] if name.endswith("_flops") else []
            text, seen = function.__doc__ or "", seen + 1
            assert [word for word in wanted if word not in text] == [], name
    assert seen
