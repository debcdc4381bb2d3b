"""Every formula says its source and has an example, and the README the files behind one model.

The examples are run with the package's other doctests.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from metacount import formulas

FOLDER = Path(formulas.__path__[0])

# files, and which of their functions are formulas of sizes
OF_SIZES = {
    "masks": r"\w+",
    "sublayers": r"\w+",
    "pieces": "lettered_layers|windowed_layers|layers_by_law",
    "feed_forward": "gated_d_ff",
    "mixers.convolution": "convolved_positions",
}


def functions(file: str, pattern: str = r"\w+") -> Iterator[Callable[..., Any]]:
    """The public functions of a file that take neither a model nor a tape."""
    module = importlib.import_module(f"metacount.formulas.{file}")
    for name, function in inspect.getmembers(module, inspect.isfunction):
        own = function.__module__ == module.__name__ and not name.startswith("_")
        taken = {str(kind).partition(" ")[0] for kind in function.__annotations__.values()}
        if own and re.fullmatch(pattern, name) and not taken & {"ModelSpec", "Tape"}:
            yield function


@pytest.mark.parametrize("file", OF_SIZES)
def test_every_formula_has_an_example_and_a_source(file: str) -> None:
    own = [*functions(file, OF_SIZES[file])]
    assert own
    for function in own:
        wanted = [">>>", "Source:"]
        wanted += ["Not counted:"] if function.__name__.endswith("_flops") else []
        text = function.__doc__ or ""
        assert [word for word in wanted if word not in text] == [], function.__name__


@pytest.mark.parametrize("file", ["dim", "tape"])
def test_what_formulas_are_made_of_has_examples(file: str) -> None:
    own = [*functions(file)]
    assert own and [f.__name__ for f in own if ">>>" not in (f.__doc__ or "")] == []
