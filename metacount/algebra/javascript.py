"""Writes arithmetic of whole numbers as JavaScript of BigInts, exact at every size.

What is written is the text that `formula --python` prints, or a condition on sizes: it is read by
`text.read` and written sign by sign. JavaScript's own / and % round towards zero; Python's, and so
the formulas', towards minus infinity: the page's `floorDiv` and `floorMod` do as Python does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from metacount.algebra.text import read

if TYPE_CHECKING:
    from collections.abc import Mapping

    from metacount.algebra.text import Node

COMPARED = {" == ": "===", " != ": "!==", " <= ": "<=", " >= ": ">=", " < ": "<", " > ": ">"}
CALLS = {"//": "floorDiv", "%": "floorMod", "min": "least", "max": "most"}


class NotWhole(ValueError):
    """A formula that leaves the whole numbers."""


def in_javascript(text: str, names: Mapping[str, str]) -> str:
    """Write a formula of whole numbers in JavaScript; `names` says what stands for each name.

    >>> in_javascript("2*d**2 - (S + 1) // 2", {"d": "v.d", "S": "v.S"})
    '((2n * (v.d ** 2n)) + -(floorDiv((v.S + 1n), 2n)))'
    """
    return _written(read(text).tree, names)


def condition(text: str, names: Mapping[str, str]) -> str:
    """Write one comparison of whole numbers in JavaScript.

    >>> condition("n_heads % n_kv_heads == 0", {"n_heads": "v.h", "n_kv_heads": "v.k"})
    'floorMod(v.h, v.k) === 0n'
    """
    left, sign, right = _split(text)
    if not sign:
        raise NotWhole(text)
    return f"{in_javascript(left, names)} {COMPARED[sign]} {in_javascript(right, names)}"


def names_in(text: str) -> tuple[str, ...]:
    """List the names of a condition, or of a formula, in the order in which they are read.

    >>> names_in("S + 1 < window")
    ('S', 'window')
    """
    left, sign, right = _split(text)
    return tuple(dict.fromkeys((*read(left).names, *(read(right).names if sign else ()))))


def _split(text: str) -> tuple[str, str, str]:
    """Split a comparison at its sign, which is empty where there is none."""
    sign = next((sign for sign in COMPARED if sign in text), "")
    return text.partition(sign) if sign else (text, "", "")


def _written(node: Node, names: Mapping[str, str]) -> str:
    if node.kind == "number":
        if node.value.denominator != 1:
            raise NotWhole(str(node.value))
        return f"{node.value.numerator}n"
    if node.kind == "name":
        return names[node.word]
    parts = [_written(part, names) for part in node.parts]
    if node.kind == "neg":
        return f"-({parts[0]})"  # its own brackets: JavaScript refuses -a ** b
    if node.kind in CALLS:
        return f"{CALLS[node.kind]}({', '.join(parts)})"
    if node.kind in ("+", "*", "**"):
        return f"({f' {node.kind} '.join(parts)})"
    raise NotWhole(node.kind)
