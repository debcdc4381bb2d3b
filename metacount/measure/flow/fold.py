"""Folds neighbours that are alike, and periods of them: layers 0 to 31 are one step, ×32."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from metacount.measure.flow.step import Step

LONGEST_PERIOD = 16
LOOP = 2  # what has no number repeats more often than that


def folded(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Fold alike neighbours among the steps, and alike periods of neighbours, into one step each.

    A step that is like one before it, but no neighbour of it, says which in `like`.
    """
    keys = [step.alike() for step in steps]
    numbers = {key: n for n, key in reversed(list(enumerate(dict.fromkeys(keys))))}
    found = _runs(list(steps), [numbers[key] for key in keys])
    return _with_likes(found, {})


def _runs(steps: list[Step], kinds: list[int]) -> list[Step]:
    out: list[Step] = []
    i = 0
    while i < len(steps):
        period, times = _best(steps, kinds, i)
        if times > 1:
            last = steps[i + period * (times - 1) : i + period * times]
            out.append(_repeated(steps[i : i + period], last, kinds[i : i + period], times))
        else:
            out.append(steps[i])
        i += period * times
    return out


def _best(steps: list[Step], kinds: list[int], start: int) -> tuple[int, int]:
    """Find the period from `start` that covers most, the shortest such, and how often it comes."""
    best = (1, 1)
    for period in range(1, min(LONGEST_PERIOD, (len(kinds) - start) // 2) + 1):
        first = kinds[start : start + period]
        times = 1
        while kinds[start + period * times : start + period * (times + 1)] == first:
            times += 1
        numbered = any(_numbered(step) for step in steps[start : start + period])
        if times > (1 if numbered else LOOP) and period * times > best[0] * best[1]:
            best = (period, times)
    return best


def _numbered(step: Step) -> bool:
    return any(part.isdecimal() for part in step.name.split("."))


def _repeated(first: list[Step], last: list[Step], kinds: list[int], times: int) -> Step:
    if len(first) == 1:
        return replace(first[0], name=_span(first[0].name, last[0].name), times=times)
    inside = tuple(_runs(first, kinds))
    ends = [step for step in (*first, *last) if _numbered(step)]
    return replace(
        first[0],
        name=_span(ends[0].name, ends[-1].name) if ends else "loop",
        module="",
        equation=None,
        code="",
        alone=False,
        operators=(),
        inputs=first[0].inputs,
        outputs=first[-1].outputs,
        params=sum(step.params * step.times for step in inside),
        flops=sum(step.flops * step.times for step in inside),
        uncounted=sum(step.uncounted * step.times for step in inside),
        role=None,
        times=times,
        inside=inside,
    )


def _span(first: str, last: str) -> str:
    """Write `layers.0` to `layers.31` as `layers.0-31`."""
    for a, b in zip(first.split("."), last.split("."), strict=False):
        if a != b:
            return first.replace(a, f"{a}-{b}", 1) if a.isdecimal() else f"{first}-{last}"
    return first


def _with_likes(steps: Sequence[Step], shown: dict[object, str]) -> tuple[Step, ...]:
    out = []
    for step in steps:
        key = replace(step, times=1).alike() if step.module and step.inside else None
        if key is not None and key in shown:
            out.append(replace(step, like=shown[key]))
            continue
        if key is not None:
            shown[key] = step.name
        if not step.module and step.inside:
            step = replace(step, inside=_with_likes(step.inside, shown))
        out.append(step)
    return tuple(out)


def called_by(path: str, prefix: str) -> str:
    """Name a call inside another by its path in that one, or else by its path in its layer."""
    if f"{path}.".startswith(f"{prefix}.") or not prefix:
        return path.removeprefix(prefix).lstrip(".") or path
    return re.sub(r"^.*?\blayers\.\d+\.", "", path)


def without_met(step: Step, like: str) -> Step:
    """Copy a step for one like it, less the parameters outside of `like`:
    those were used already.
    """
    if step.inside:
        inside = tuple(without_met(one, like) for one in step.inside)
        return replace(step, inside=inside, params=sum(one.params * one.times for one in inside))
    own = f"{step.path}.".startswith(f"{like}.")
    return step if own else replace(step, params=0)
