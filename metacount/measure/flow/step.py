"""One step of a forward, and what an equation of it may depend on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from metacount.measure.flow.record import Shape

Named: TypeAlias = tuple[str | None, ...]  # a letter or a term for each axis


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step. Figures are of one of its `times`; those of the steps inside are in them.

    `equation` is known or None; `code` is the statement that ran, where its source is at hand.
    `like` is the step, shown before, that this one repeats. `uncounted` are FLOPs that belong to
    no figure (tables of angles).
    """

    name: str
    path: str
    module: str
    equation: str | None
    code: str
    alone: bool  # whether the statement did nothing else
    operators: tuple[str, ...]
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    params: int
    flops: int
    uncounted: int
    role: str | None
    times: int = 1
    like: str | None = None
    inside: tuple[Step, ...] = ()
    # the same shapes and figures in letters, where they are known
    input_letters: tuple[Named, ...] = ()
    output_letters: tuple[Named, ...] = ()
    params_letters: str | None = None
    flops_letters: str | None = None

    def alike(self) -> tuple[object, ...]:
        """Return what two steps must share to be shown as one;
        a number in a name does not count.
        """
        label = ".".join("#" if part.isdecimal() else part for part in self.name.split("."))
        return (
            label,
            self.module,
            self.equation,
            self.code,
            self.operators,
            self.inputs,
            self.outputs,
            self.params,
            self.flops,
            self.uncounted,
            self.role,
            self.times,
            tuple(step.alike() for step in self.inside),
        )


@dataclass(kw_only=True)
class Seen:
    """What an equation may depend on: the module, what its statement binds, what ran in it."""

    module: Any
    holder: Any
    name: str  # of the module in its holder
    gives: str
    operators: tuple[str, ...]  # that compute something, each once
    inputs: tuple[Shape, ...]
    before: tuple[str, ...] = ()  # names of the steps before it in the same call


# None: nothing is known of it. An empty text: it says nothing worth a line.
Explain: TypeAlias = Callable[[Seen], str | None]


class Row(NamedTuple):
    """One equation: a text, or who makes it of what was seen. An empty text is not shown."""

    module: type
    gives: str
    ran: str
    text: str | Callable[[Seen], str | None]
    beside: str = ""


HIDDEN = ""


def summed(steps: Iterable[Step]) -> dict[str, Any]:
    """Sum the figures of steps, every repetition counted."""
    steps = tuple(steps)
    return {
        "params": sum(step.params * step.times for step in steps),
        "flops": sum(step.flops * step.times for step in steps),
        "uncounted": sum(step.uncounted * step.times for step in steps),
    }
