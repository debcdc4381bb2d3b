"""The statement of a source file that a line belongs to: what it gives, and its text."""

from __future__ import annotations

import ast
import linecache
import os
from functools import cache
from types import CodeType, FrameType
from typing import NamedTuple

import torch

TESTED = (ast.If, ast.While)  # statements of which a first part is computed
FAR = 400  # frames outwards in which a forward is looked for


class Statement(NamedTuple):
    """One statement. `gives` is the name that it binds, `return`, or nothing."""

    gives: str
    text: str
    line: int


NOWHERE = Statement("", "", 0)
LIBRARIES = tuple(os.path.dirname(found) + os.sep for found in (torch.__file__, __file__))


def statements_in(code: CodeType | None, frame: FrameType | None) -> tuple[Statement, ...]:
    """Find the running statement of `code`, outwards from `frame`, then those that it called.

    Torch's own and the recorder's are left out.
    """
    found: list[Statement] = []
    steps = 0
    while code is not None and frame is not None and steps < FAR:
        file = frame.f_code.co_filename
        if frame.f_code is code or not file.startswith(LIBRARIES):
            found.append(statement_at(file, frame.f_lineno, frame.f_globals))
        if frame.f_code is code:
            return tuple(found[::-1])
        frame, steps = frame.f_back, steps + 1
    return (NOWHERE,)


def statement_at(file: str, line: int | None, names: dict[str, object]) -> Statement:
    """Find the statement at a line; `names` are the file's globals,
    by which its loader is found.
    """
    if line is None:
        return NOWHERE
    linecache.lazycache(file, names)
    return _statements(file).get(line, Statement("", "", line))


@cache
def _statements(file: str) -> dict[int, Statement]:
    """Find the innermost statement at each line of a file; none where its source cannot be read."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return {}
    found: dict[int, Statement] = {}
    for node in ast.walk(tree):  # from the outside in
        if not isinstance(node, ast.stmt):
            continue
        if isinstance(node, TESTED):
            part: ast.AST = node.test
        elif isinstance(node, ast.For):
            part = node.iter
        elif isinstance(node, ast.With):
            part = node.items[0].context_expr
        elif hasattr(node, "body"):
            continue
        else:
            part = node
        said = Statement(_gives(node), _text(part), node.lineno)
        last = getattr(part, "end_lineno", None) or node.lineno
        found.update(dict.fromkeys(range(node.lineno, last + 1), said))
    return found


def _gives(node: ast.stmt) -> str:
    if isinstance(node, ast.Assign):
        return ", ".join(ast.unparse(target).strip("()") for target in node.targets)
    if isinstance(node, ast.AnnAssign | ast.AugAssign):
        return ast.unparse(node.target)
    return "return" if isinstance(node, ast.Return) else ""


def _text(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())
