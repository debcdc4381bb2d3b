"""Runs a copy of somebody's module on meta over inputs of theirs, and records what ran."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from metacount.errors import InputError, shown
from metacount.measure.flow.known import of_torch
from metacount.measure.flow.record import Recording
from metacount.measure.flow.step import Step
from metacount.measure.flow.steps import steps_of
from metacount.measure.operators import UncountedOp
from metacount.measure.questions import lacks_data
from metacount.measure.torch_private import tree_map
from metacount.summary.copied import copied_on_meta, named, said
from metacount.tensors import DTYPES

if TYPE_CHECKING:
    from collections.abc import Iterable

INTEGERS = {"int64": torch.int64, "int32": torch.int32, "bool": torch.bool}
Sizes = Sequence[int] | Sequence[Sequence[int]]


def recorded(
    module: nn.Module, inputs: Sequence[object], keywords: Mapping[str, object]
) -> tuple[tuple[Step, ...], tuple[str, ...]]:
    """Record the steps of one forward of a copy of `module`, and what is to be said of it.

    Raises `UncountedOp` for an operator that nobody priced, `InputError` where it does not run.
    """
    for path, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            where = f"{path} in it" if path else "it"
            raise InputError(
                f"{named(module)}: {where} is TorchScript, in which no module can be watched; "
                "count the module that it was made from"
            )
    model = copied_on_meta(module)
    counter = Recording()
    before = dict(_plain(model))
    arguments, named_ones = tree_map(_bare, (tuple(inputs), dict(keywords)))
    try:
        with torch.no_grad(), torch.device("meta"), counter.watching(model):
            model(*arguments, **named_ones)
    except UncountedOp as error:
        # torch's name of the operator, without its overload, comes first
        name = str(error).partition(" ")[0].rpartition(".")[0]
        raise UncountedOp(f"{error}; price it with {HOW.format(name=name)}") from None
    except Exception as error:
        # whatever somebody else's forward raises
        raise InputError(f"{named(module)}: {_reason(error, arguments, named_ones)}") from None
    changed = sorted(name for name, value in _plain(model) if before.get(name, ABSENT) != value)
    notes = [f"its forward changes {', '.join(changed[:3])}: a copy was run, yours is as it was"]
    found = (*sorted(counter.said), *(notes if changed else ()))
    return steps_of(counter.root, model, of_torch), found


ABSENT = object()
HOW = (
    "metacount.price(torch.ops.{name}, lambda *args: FLOPS), or with 0 in the place of a function "
    "where it multiplies no matrices"
)


def _bare(value: object) -> object:
    return torch.empty_like(value, device="meta") if isinstance(value, Tensor) else value


def _plain(model: nn.Module) -> Iterator[tuple[str, object]]:
    """Yield what a forward may change beside tensors: whole numbers, texts, lengths of lists."""
    for path, owner in model.named_modules():
        for name, value in vars(owner).items():
            if isinstance(value, int | float | str | None):
                yield f"{path}.{name}".lstrip("."), value
            elif isinstance(value, list | dict | set) and not name.startswith("_"):
                yield f"{path}.{name}".lstrip("."), len(value)


def _reason(error: Exception, inputs: Iterable[object], keywords: Mapping[str, object]) -> str:
    """Say in one line why a forward did not run."""
    text = str(error)
    if isinstance(error, NotImplementedError) and "forward" in text and "missing" in text:
        return "it has no forward; measure the modules in it that have one"
    if lacks_data(error):
        return f"its forward depends on the values of data, which meta tensors lack: {said(error)}"
    given = [*map(_told, inputs), *(f"{name}={_told(v)}" for name, v in keywords.items())]
    return f"its forward fails on {', '.join(given) or 'no input'}: {said(error)}"


def _told(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{list(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    return shown(repr(value))


def made_inputs(
    module: nn.Module, input_size: Sizes | None, dtype: torch.dtype | str | None
) -> tuple[Tensor, ...]:
    """Make meta tensors of one size or of several, in a type:
    that of the module where none is said.
    """
    if input_size is None:
        raise InputError(
            f"{named(module)}: its forward needs inputs: give them, or input_size=(2, 16, 64) "
            'and, for tokens, dtype="int64"'
        )
    several: list[object] = list(input_size)
    if all(isinstance(n, int) for n in several):
        several = [several]
    sizes: list[tuple[int, ...]] = []
    for size in several:
        if not isinstance(size, Sequence) or isinstance(size, str) or not _are_sizes(size):
            raise InputError(f"input_size is whole numbers from 0: got {shown(repr(input_size))}")
        sizes.append(tuple(size))
    kind = _dtype(module, dtype)
    return tuple(torch.empty(size, dtype=kind, device="meta") for size in sizes)


def _are_sizes(size: Sequence[object]) -> bool:
    return all(type(n) is int and n >= 0 for n in size)


def _dtype(module: nn.Module, dtype: torch.dtype | str | None) -> torch.dtype:
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype is None:
        floats = (p.dtype for p in module.parameters() if p.is_floating_point())
        return next(floats, torch.get_default_dtype())
    known = {**DTYPES, **INTEGERS}
    if dtype not in known:
        raise InputError(f"dtype is unknown: got {shown(repr(dtype))}; choose {', '.join(known)}")
    return known[dtype]
