"""One training step, measured with numbers for sizes or read with symbols for them.

The step is the one that `train` measures, with its counter: what is kept for the backward, and what
that multiplies, have expressions where sizes are symbols.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import torch

from metacount.measure.counter import ROLES, Book
from metacount.tracing.count import Counted, WithSymbols
from metacount.tracing.layers import Amounts
from metacount.tracing.symbols import Sizes
from metacount.training.setup import setup_of
from metacount.training.step import (
    BACKWARD,
    LOSS,
    RECOMPUTE,
    Ledger,
    StepCounter,
    measure_step,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from metacount.tracing.layers import Place
    from metacount.training.step import Made, Program


MAX_OPERATORS = 30_000  # of a forward, a backward and an optimizer's step
PHASES = {"backward_matmul_flops": BACKWARD, "recompute_matmul_flops": RECOMPUTE}
SECONDS = 120.0  # of this process, for a step with symbols
# Part of an amount: its role (or operator), the name of the module that it is put down to.
Share = tuple[str, str, int | torch.SymInt]


class _Counter(WithSymbols, StepCounter):
    """Counts a step with symbols for sizes."""

    may_run = MAX_OPERATORS


def _with_symbols(sizes: Sizes) -> Made:
    """Return a function that makes the counter of a step with symbols, which ends after a time."""
    deadline = time.process_time() + SECONDS

    def made(book: Book, ledger: Ledger, place_of: Callable[[str], str]) -> StepCounter:
        counter = _Counter(book, ledger, place_of)
        counter.deadline, counter.sizes = deadline, sizes
        return counter

    return made


def shares(
    program: Program, quantity: str, roles: dict[str, str], by: str, made: Made
) -> list[Share]:
    """Run a step as far as a quantity asks for, and list each share in that, by role or operator.

    `roles` are those of parameters, by name.
    """
    setup, name = setup_of(quantity), quantity.partition(":")[0]
    assert setup is not None  # a quantity of a step
    if name == "optimizer_bytes":
        state: Counter[str] = Counter()
        for (path, _), size in measure_step(program, setup, made).optimizer_state.items():
            state[path] += size
        return _by_owner(state, roles)
    if name == "activation_bytes":
        found = measure_step(program, setup, made, last=LOSS)
        kept = found.counter.kept.items()
        return [(getattr(k, by), k.module, found.ledger.bytes[number]) for number, k in kept]
    found = measure_step(program, setup, made, last=BACKWARD)
    if name == "gradient_bytes":
        return _by_owner(found.gradients, roles)
    charged = found.counter.charged(PHASES[name])
    return [(getattr(one, by) or "other", one.module, flops) for one, flops in charged]


def _by_owner(held: dict[str, int], roles: dict[str, str]) -> list[Share]:
    return [(roles[path], path.rpartition(".")[0], size) for path, size in held.items()]


def measured_step(
    program: Program, quantity: str, roles: dict[str, str], *, by_operator: bool
) -> dict[str, int]:
    """Measure a quantity of a step that runs with numbers, by role (or operator)."""
    by = "operator" if by_operator else "role"
    parts: dict[str, int] = {} if by_operator else dict.fromkeys(ROLES, 0)
    for part, _, amount in shares(program, quantity, roles, by, StepCounter):
        parts[part] = parts.get(part, 0) + int(amount)
    return parts


def traced_step(
    program: Program,
    quantity: str,
    roles: dict[str, str],
    *,
    by_operator: bool,
    sizes: Sizes,
    places: dict[str, Place],
) -> Amounts:
    """Trace a quantity of a step that runs with symbols, by role (or operator) and layer."""
    by = "operator" if by_operator else "role"
    parts: Amounts = defaultdict(lambda: 0)
    with Counted():
        found = shares(program, quantity, roles, by, _with_symbols(sizes))
    for part, module, amount in found:
        parts[part, places.get(module)] += sizes.expr(amount)
    return dict(parts)
