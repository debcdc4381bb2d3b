"""A function's docstring begins with a verb: what the function does, and to what."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import metacount

PACKAGE = Path(metacount.__file__).parent
# Words that docstrings begin with; another verb is added here.
WORDS = """
    Add Answer Append Apply Ask Attend Blend Break Bring Build Call Capture Change Charge Check
    Choose Cite Clear Close Collect Compare Complete Compute Convert Convolve Copy Correct Count
    Cut Declare Derive Describe Divide Do Draw Drop Embed Encode End Enter Escape Estimate
    Evaluate Exchange Expand Explain Express Fetch Fill Find Fit Flatten Fold Follow Forget
    Format Gate Give Go Group Grow Halve Hide Ignore Import Initialise Inspect Instantiate
    Interpolate Invert Join Judge Keep Key Kill Lay Leave Let Limit List Load Look Lower Make
    Map Mark Match Measure Merge Mix Move Multiply Name Negate Norm Note Number Pad Paint Pair
    Parse Pass Pick Place Plan Pool Predict Prepare Print Project Prove Put Queue Raise Rank
    Read Record Recover Reduce Refuse Remember Rename Render Repeat Replace Report Return Reword
    Rewrite Rotate Round Route Run Say Scale Score Select Send Separate Set Share Shorten Show
    Shrink Silence Solve Split Start State Stop Subtract Sum Summarise Switch Tabulate
    Take Talk Tell Test Time Trace Transform Translate Transpose Try Turn Type Update Wait Warm
    Weigh Widen Work Wrap Write Yield
"""
VERBS = set(WORDS.split())


def functions(text: str) -> Iterator[tuple[int, str]]:
    """Line and docstring of each function that has one; a property says what it is."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        marks = {word for each in node.decorator_list for word in ast.unparse(each).split(".")}
        said = ast.get_docstring(node)
        if said is not None and marks.isdisjoint({"property", "cached_property", "setter"}):
            yield node.lineno, said


def without_a_verb(text: str) -> list[str]:
    return [
        f"{line}: {said.splitlines()[0]}"
        for line, said in functions(text)
        if said.split()[0] not in VERBS
    ]


def test_every_functions_docstring_begins_with_a_verb() -> None:
    found = {
        file.relative_to(PACKAGE).as_posix(): without_a_verb(file.read_text("utf-8"))
        for file in sorted(PACKAGE.rglob("*.py"))
    }
    assert {file: lines for file, lines in found.items() if lines} == {}


def test_every_verb_is_used() -> None:
    """A list that nobody needs would let other words in."""
    files = PACKAGE.rglob("*.py")
    used = {said.split()[0] for file in files for _, said in functions(file.read_text("utf-8"))}
    assert used >= VERBS


def test_a_docstring_without_a_verb_is_found() -> None:
    text = 'def f():\n    """The number of layers."""\ndef g():\n    """Count the layers."""\n'
    text += '@property\ndef h():\n    """The layers."""\n'
    assert without_a_verb(text) == ["1: The number of layers."]
