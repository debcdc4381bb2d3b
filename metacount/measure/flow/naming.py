"""Puts letters beside the numbers of steps, from the same steps at other sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from metacount.measure.flow.letters import Letters
from metacount.measure.flow.record import Shape
from metacount.measure.flow.step import Named, Step


def named(
    steps: tuple[Step, ...], others: Sequence[tuple[Step, ...]], letters: Letters
) -> tuple[Step, ...]:
    """Give the steps letters, where the other runs went through the same steps."""
    if any(len(other) != len(steps) for other in others):
        return tuple(map(unnamed, steps))
    return tuple(
        _named(step, [other[i] for other in others], letters) for i, step in enumerate(steps)
    )


def alike(steps: tuple[Step, ...], others: tuple[Step, ...]) -> bool:
    """Tell whether two runs went through the same steps."""
    return len(steps) == len(others) and all(
        _kind(a) == _kind(b) and alike(a.inside, b.inside)
        for a, b in zip(steps, others, strict=True)
    )


def filled(steps: tuple[Step, ...], others: tuple[Step, ...]) -> tuple[Step, ...]:
    """Merge two namings of the same steps: the second's where the first knows no letter."""
    return tuple(
        replace(one if one.output_letters else other, inside=filled(one.inside, other.inside))
        for one, other in zip(steps, others, strict=True)
    )


def unnamed(step: Step) -> Step:
    """Complete the equations of a step of which no letter is known."""
    return _filled(replace(step, inside=tuple(map(unnamed, step.inside))))


def _named(step: Step, others: list[Step], letters: Letters) -> Step:
    if any(_kind(other) != _kind(step) for other in others):
        return unnamed(step)
    simple = not step.inside
    step = replace(
        step,
        inside=named(step.inside, [other.inside for other in others], letters),
        input_letters=_shapes([s.inputs for s in (step, *others)], letters),
        output_letters=_shapes([s.outputs for s in (step, *others)], letters),
        params_letters=letters.name([s.params for s in (step, *others)]) if simple else None,
        flops_letters=letters.name([s.flops for s in (step, *others)]) if simple else None,
    )
    return _filled(step)


def _kind(step: Step) -> tuple[object, ...]:
    ranks = tuple(tuple(map(len, shapes)) for shapes in (step.inputs, step.outputs))
    return step.name, step.module, step.times, step.code, ranks


def _shapes(runs: list[tuple[Shape, ...]], letters: Letters) -> tuple[Named, ...]:
    return tuple(
        tuple(letters.name(sizes) for sizes in zip(*shapes, strict=True))
        for shapes in zip(*runs, strict=True)
    )


def _filled(step: Step) -> Step:
    """Put the width of a step's first input in the place of its equation that waits for it."""
    if step.equation is None or "{last}" not in step.equation:
        return step
    known = step.input_letters[0][-1] if step.input_letters else None
    width = known or str(step.inputs[0][-1])
    text = f"({width})" if " " in width else width
    return replace(step, equation=step.equation.replace("{last}", text))
