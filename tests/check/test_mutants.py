"""A formula with any one term changed is refuted; unchanged, it is equal for all sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sympy
from helpers.release import daily, one_in

from metacount import Workload, check, find_model
from metacount.algebra.text import in_letters
from metacount.cli.formula import textbook
from metacount.textbook.closed_form import closed_form
from metacount.textbook.count import fitted

KINDS = [
    *(("llama-7b", "params"), ("gpt2", "params"), ("mixtral-8x7b", "active_params")),
    *(("deepseek-v3", "params"), ("qwen3-32b", "matmul_flops"), ("t5-small", "params")),
    *(("deepseek-v2", "kv_cache_bytes"), ("gemma3-27b-text", "kv_cache_bytes")),
    ("mistral-7b", "causal_matmul_flops"),
]
STEP = 3  # every third change: a judgement takes a few hundredths of a second


def whole(model: str, quantity: str) -> Any:
    """The total of `metacount formula`."""
    spec = find_model(model).spec
    form = closed_form(spec, fitted(spec, Workload()), quantity)
    return sympy.Add(*form.parts.values())


def mutants(expr: Any) -> Iterator[Any]:
    """`expr` with one term left out, one number or one letter changed, at any depth."""
    if expr.is_Integer:
        yield from (expr + 1, expr - 1)
    if expr.is_Symbol:
        yield from (expr + 1, 2 * expr, sympy.Integer(1))
    for i, arg in enumerate(expr.args):
        before, after = expr.args[:i], expr.args[i + 1 :]
        if (expr.is_Add or expr.is_Mul) and len(expr.args) > 1:
            yield expr.func(*before, *after)
        if expr.is_Pow and i == 1:
            yield expr.func(expr.args[0], arg + 1)
            continue
        if isinstance(expr, sympy.floor):
            continue  # a change inside may round to the same
        for changed in mutants(arg):
            yield expr.func(*before, changed, *after)


@daily(2)
@pytest.mark.parametrize(("model", "quantity"), one_in(6, KINDS, first=1))
def test_unchanged_it_is_equal_and_any_change_is_refuted(model: str, quantity: str) -> None:
    expr = whole(model, quantity)
    assert check(in_letters(expr), model, quantity=quantity).verdict == "equal"
    # a change may be none: 1 for the exponent of 1, a letter in a product with another
    changed = {in_letters(m): m for m in mutants(expr) if sympy.expand(m - expr) != 0}
    assert len(changed) > 15
    tried = sorted(changed)[::STEP]
    assert [text for text in tried if check(text, model, quantity=quantity).holds] == []


@daily(2)
@pytest.mark.parametrize(("model", "quantity"), one_in(6, KINDS))
def test_the_printed_python_is_equal(model: str, quantity: str) -> None:
    found = find_model(model)
    form = closed_form(found.spec, fitted(found.spec, Workload()), quantity)
    space: dict[str, Any] = {}
    exec(textbook(found, form).function(), space)  # our own text
    assert check(space[quantity], model, quantity=quantity, timeout=60).verdict == "equal"
