"""A forward in order, as it is handed out: in Python, as plain data, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from metacount.errors import InputError, nearest, shown
from metacount.flow.steps import Named, Shape, Step, summed

if TYPE_CHECKING:
    from metacount.files import Json


@dataclass(frozen=True, kw_only=True)
class Letter:
    """A letter of shapes: the size it stands for, its value, and what it is."""

    letter: str
    name: str
    value: int
    meaning: str


@dataclass(frozen=True, kw_only=True)
class Flow:
    """The steps of one forward, in the order in which they ran.

    `source` says whose module ran, on `device`. `unused` are parameters that no step of this
    forward needs.
    """

    model: str
    name: str
    source: str
    workload: Json
    decode: bool
    steps: tuple[Step, ...]
    letters: tuple[Letter, ...]
    unused: int = 0
    notes: tuple[str, ...] = ()
    depth: int | None = None
    device: str = "meta"

    @property
    def params(self) -> int:
        """Parameters that the steps use, every repetition counted."""
        return int(summed(self.steps)["params"])

    @property
    def matmul_flops(self) -> int:
        """FLOPs of all steps, every repetition counted."""
        return int(summed(self.steps)["flops"])

    def walk(self) -> Iterator[tuple[int, Step]]:
        """Yield (repetitions in all, step) of every step without steps inside, in order."""
        yield from _walk(self.steps, 1)

    def only(self, paths: Sequence[str]) -> Flow:
        """Return the flow with the steps below some modules alone, named as in the tree."""
        steps = []
        for path in paths:
            matching = list(_matching(self.steps, path))
            if not matching:
                known = {step.path for _, step in _every(self.steps, 1) if step.name}
                words = {*known, *(name.rpartition(".")[2] for name in known)}
                close = nearest(path, words, f"try {', '.join(sorted(known, key=len)[:3])}")
                raise InputError(f"--only {shown(path)}: no step ran there; {close}")
            steps += matching
        return replace(self, steps=tuple(steps))

    def down_to(self, depth: int | None) -> Flow:
        """Return the flow shown to a depth of modules; figures stay whole."""
        return replace(self, depth=depth)

    def to_dict(self) -> Json:
        """Return plain data."""
        return {
            "model": self.model,
            "name": self.name,
            "source": self.source,
            "workload": self.workload,
            "decode": self.decode,
            "matmul_flops": self.matmul_flops,
            "params": self.params,
            "unused_params": self.unused,
            "letters": {
                letter.letter: {
                    "name": letter.name,
                    "value": letter.value,
                    "meaning": letter.meaning,
                }
                for letter in self.letters
            },
            "notes": list(self.notes),
            "steps": [_data(step, self.depth) for step in self.steps],
        }


def _walk(steps: Sequence[Step], times: int) -> Iterator[tuple[int, Step]]:
    for step in steps:
        if step.inside:
            yield from _walk(step.inside, times * step.times)
        else:
            yield times * step.times, step


def _every(steps: Sequence[Step], times: int) -> Iterator[tuple[int, Step]]:
    for step in steps:
        yield times, step
        yield from _every(step.inside, times * step.times)


def _matching(steps: Sequence[Step], path: str) -> Iterator[Step]:
    """Yield the steps that a path names: their full path, or its end; the outermost ones."""
    for step in steps:
        if step.name and step.module and _is_named(step, path):
            # of layers that are alike, the one that was asked for
            yield replace(step, times=1, name=path if step.times > 1 else step.name, like=None)
        else:
            yield from _matching(step.inside, path)


def _is_named(step: Step, path: str) -> bool:
    """Tell whether a path is a step's, or that of a layer that it stands for."""
    mine, asked = step.path.split("."), path.split(".")
    if len(asked) > len(mine):
        return False
    span = step.name.rpartition(".")[2].partition("-")
    for own, wanted in zip(reversed(mine), reversed(asked), strict=False):
        first, dash, last = span
        inside = (
            dash
            and own == first
            and last.isdecimal()
            and wanted.isdecimal()
            and int(first) <= int(wanted) <= int(last)
        )
        if own != wanted and not inside:
            return False
    return True


def _data(step: Step, depth: int | None) -> Json:
    inner = None if depth is None else depth - 1
    return {
        "name": step.name,
        "path": step.path,
        "module": step.module,
        "equation": step.equation,
        "code": step.code,
        "operators": list(step.operators),
        "inputs": _sizes(step.inputs, step.input_letters),
        "outputs": _sizes(step.outputs, step.output_letters),
        "params": step.params,
        "params_letters": step.params_letters,
        "matmul_flops": step.flops,
        "matmul_flops_letters": step.flops_letters,
        "uncounted_flops": step.uncounted,
        "role": step.role,
        "times": step.times,
        "like": step.like,
        "steps": []
        if step.like or depth == 1
        else [_data(inner_step, inner) for inner_step in step.inside],
    }


def _sizes(shapes: Sequence[Shape], letters: Sequence[Named]) -> list[Json]:
    named = letters or [(None,) * len(shape) for shape in shapes]
    return [
        {"shape": list(shape), "letters": list(terms)}
        for shape, terms in zip(shapes, named, strict=True)
    ]
