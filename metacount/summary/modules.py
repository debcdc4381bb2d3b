"""A module that somebody has in hand: found in a file, copied, run on meta or on the CPU."""

from __future__ import annotations

import contextlib
import copy
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from metacount.check.given.process import NAME, loaded
from metacount.errors import InputError, shown
from metacount.flow.equations import of_torch
from metacount.flow.steps import Recording, Step, WholeAttention, steps_of, tensors_in
from metacount.measure.operators import UncountedOp
from metacount.measure.theirs import lacks_data
from metacount.measure.torch_private import is_fake, tensors_of, tree_map, unhook
from metacount.tensors import DTYPES, tensor_bytes
from metacount.units import gib

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


DEEP = 4  # of lists and dicts in which a module keeps tensors
DEVICES = ("meta", "cpu")
MOST_BYTES = 2**32  # of a module that is run with real values
SPREAD = 0.1  # standard deviation of values that nobody gave
REMEDY = 'run it on the CPU with real ones: device="cpu" in Python, --device cpu'


def copied(module: nn.Module, device: str = "meta") -> nn.Module:
    """Copy `module` without hooks: on meta, where its tensors have no values, or on the CPU.

    There a tensor that has no values gets random ones. Raises `InputError` for a module that has
    parameters without a shape, cannot be copied, or is too large for the CPU.
    """
    if device not in DEVICES:
        raise InputError(
            f"device is unknown: got {shown(repr(device))}; choose {' or '.join(DEVICES)}"
        )
    lazy = [name for name, p in module.named_parameters(remove_duplicate=False) if is_lazy(p)]
    if lazy:
        raise InputError(
            f"{named(module)}: parameter {shown(lazy[0])} has no shape yet (a lazy module): "
            "run the module once, then measure it"
        )
    size = tensor_bytes([*module.parameters(), *module.buffers()])
    if device == "cpu" and size > MOST_BYTES:
        raise InputError(
            f"{named(module)} has {gib(size)}, and device cpu takes {gib(MOST_BYTES)} at most: "
            "make it with fewer or narrower layers"
        )
    memo: dict[int, object] = {}
    for owner in module.modules():
        held = (*tensors_of(owner).values(), *_tensors(list(vars(owner).values()), DEEP))
        for tensor in held:
            if id(tensor) not in memo:
                memo[id(tensor)] = _copy_of(tensor, device)
    try:
        made = copy.deepcopy(module, memo)
    except Exception as error:
        # whatever somebody else's objects raise when they are copied
        raise InputError(f"{named(module)} cannot be copied: {error_text(error)}") from None
    for owner in made.modules():
        unhook(owner)
    return made


def _copy_of(tensor: Tensor, device: str) -> Tensor:
    try:
        bare = with_values(tensor) if device == "cpu" else bare_of(tensor.detach())
    except RuntimeError as error:
        said_of = f"a {type(tensor).__name__} has no copy on {device}"
        raise InputError(f"{said_of}: {error_text(error)}") from None
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(bare, requires_grad=tensor.requires_grad)
    return bare


def with_values(tensor: Tensor, tokens: int = 2) -> Tensor:
    """Copy a tensor to the CPU; one without values gets random ones, whole numbers below `tokens`.

    The same shape gets the same values, whenever it is asked for.
    """
    if not tensor.is_meta:
        return tensor.detach().to("cpu", copy=True)
    draw = torch.Generator().manual_seed(tensor.numel())
    if tensor.is_floating_point() or tensor.is_complex():
        return torch.randn(tensor.shape, generator=draw).mul_(SPREAD).to(tensor.dtype)
    return torch.randint(tokens, tensor.shape, generator=draw).to(tensor.dtype)


def input_values(module: nn.Module, value: object, device: str) -> object:
    """Return an input as a copy of `module` on a device takes it; other values are unchanged."""
    if not isinstance(value, Tensor):
        return value
    if device == "meta":
        return bare_of(value)
    tables = [m.num_embeddings for m in module.modules() if isinstance(m, nn.Embedding)]
    return with_values(value, min(tables, default=2))


def _tensors(value: object, depth: int) -> Iterator[Tensor]:
    """Yield the tensors in attributes that are no parameters and no buffers."""
    if isinstance(value, Tensor):
        yield value
    elif depth and isinstance(value, list | tuple | set):
        for item in value:
            yield from _tensors(item, depth - 1)
    elif depth and isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item, depth - 1)
    elif depth and hasattr(value, "__dict__") and not isinstance(value, nn.Module | type):
        yield from _tensors(vars(value), depth - 1)


def named(module: nn.Module) -> str:
    """Name a module as an error calls it."""
    return shown(type(module).__name__)


def error_text(error: BaseException) -> str:
    """Write somebody else's error in one line."""
    text = " ".join(str(error).split())
    return shown(f"{type(error).__name__}: {text}" if text else type(error).__name__)


INTEGERS = {"int64": torch.int64, "int32": torch.int32, "bool": torch.bool}
Sizes = Sequence[int] | Sequence[Sequence[int]]


def recorded(
    module: nn.Module,
    inputs: Sequence[object],
    keywords: Mapping[str, object],
    device: str = "meta",
) -> tuple[tuple[Step, ...], tuple[str, ...]]:
    """Record the steps of one forward of a copy of `module`, and what is to be said of it.

    Raises `UncountedOp` for an operator that nobody priced, `InputError` where it does not run.
    """
    model = copied(module, device)
    counter, notes = run_copy(model, inputs, keywords, device)
    return steps_of(counter.root, model, of_torch), notes


@contextlib.contextmanager
def outputs_of(model: nn.Module) -> Iterator[dict[str, list[list[int]]]]:
    """Note the shapes of what each module gives in the first forward of the block, by its path."""
    outputs: dict[str, list[list[int]]] = {}

    def noting(path: str) -> Callable[[nn.Module, object, object], None]:
        def note(_: nn.Module, __: object, given: object) -> None:
            outputs.setdefault(path, [[*tensor.shape] for tensor in tensors_in(given)])

        return note

    handles = [part.register_forward_hook(noting(path)) for path, part in model.named_modules()]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


def run_copy(
    model: nn.Module, inputs: Sequence[object], keywords: Mapping[str, object], device: str
) -> tuple[Recording, tuple[str, ...]]:
    """Run a copy over inputs on a device; return the recording, and what is to be said of it."""
    for path, part in model.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            where = f"{path} in it" if path else "it"
            raise InputError(
                f"{named(model)}: {where} is TorchScript, in which no module can be watched; "
                "count the module that it was made from"
            )
    counter = Recording()
    before = dict(_plain(model))
    arguments, named_ones = tree_map(
        lambda value: input_values(model, value, device), (tuple(inputs), dict(keywords))
    )
    attention = WholeAttention(counter)
    try:
        with torch.no_grad(), torch.device(device), counter.watching(model), attention:
            model(*arguments, **named_ones)
    except UncountedOp as error:
        # torch's name of the operator, without its overload, comes first
        name = str(error).partition(" ")[0].rpartition(".")[0]
        raise UncountedOp(f"{error}; price it with {HOW.format(name=name)}") from None
    except Exception as error:
        # whatever somebody else's forward raises
        raise InputError(f"{named(model)}: {reason(error, arguments, named_ones)}") from None
    changed = sorted(name for name, value in _plain(model) if before.get(name, ABSENT) != value)
    notes = [f"its forward changes {', '.join(changed[:3])}: a copy was run, yours is as it was"]
    all_notes = (*sorted(counter.said), *(notes if changed else ()), *said_of_device(device))
    return counter, all_notes


ABSENT = object()
HOW = (
    "metacount.price(torch.ops.{name}, lambda *args: FLOPS), or with 0 in the place of a function "
    "where it multiplies no matrices"
)


def bare_of(tensor: Tensor) -> Tensor:
    if is_fake(tensor):  # its like would be of the caller's mode, which is off
        return torch.empty_strided(
            tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta"
        )
    return torch.empty_like(tensor, device="meta")


def said_of_device(device: str) -> tuple[str, ...]:
    """Say how a module was run that was not run on meta."""
    real = "run on the CPU, with random values where none were given: others may take another way"
    return (real,) if device == "cpu" else ()


def _plain(model: nn.Module) -> Iterator[tuple[str, object]]:
    """Yield what a forward may change beside tensors: whole numbers, texts, lengths of lists."""
    for path, owner in model.named_modules():
        for name, value in vars(owner).items():
            if isinstance(value, int | float | str | None):
                yield f"{path}.{name}".lstrip("."), value
            elif isinstance(value, list | dict | set) and not name.startswith("_"):
                yield f"{path}.{name}".lstrip("."), len(value)


def reason(error: Exception, inputs: Iterable[object], keywords: Mapping[str, object]) -> str:
    """Say in one line why a forward, or what follows it, did not run."""
    text = str(error)
    if isinstance(error, NotImplementedError) and "forward" in text and "missing" in text:
        return "it has no forward; measure the modules in it that have one"
    if lacks_data(error):
        return f"its forward depends on the values of tensors, which meta has none of; {REMEDY}"
    given = [*map(_told, inputs), *(f"{name}={_told(v)}" for name, v in keywords.items())]
    if "argument #1 'indices'" in text:  # torch's own words of an embedding
        wrong = "an embedding reads whole numbers; give tokens, as in --input 2,16:int64"
    else:
        wrong = error_text(error)
    return f"its forward fails on {', '.join(given) or 'no input'}: {wrong}"


def _told(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{list(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    return shown(repr(value))


def made_inputs(
    module: nn.Module, input_size: Sizes | None, dtype: torch.dtype | str | None
) -> tuple[Tensor, ...]:
    """Make meta tensors of one size or of several, of the module's type if none is said."""
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
        if (
            not isinstance(size, Sequence)
            or isinstance(size, str)
            or any(type(n) is not int or n < 0 for n in size)
        ):
            raise InputError(f"input_size is whole numbers from 0: got {shown(repr(input_size))}")
        sizes.append(tuple(size))
    kind = _dtype(module, dtype)
    return tuple(torch.empty(size, dtype=kind, device="meta") for size in sizes)


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


def module_of(path: str, name: str, device: str = "meta") -> nn.Module:
    """Find the module called `name` in a file, which is run:
    an instance, or what a call of it gives.

    A class or a function is called without arguments, on the device. What the file prints goes to
    stderr.
    """
    if not os.path.isfile(path):
        raise InputError(f"{shown(path)}: no such file")
    with contextlib.redirect_stdout(sys.stderr):
        file = loaded(path, shown(path))
        made: object = getattr(file, name, None)
        if made is None:
            own = [
                key
                for key, value in vars(file).items()
                if getattr(value, "__module__", None) == NAME or isinstance(value, nn.Module)
            ]
            remedy = f"it has {', '.join(own[:8])}" if own else "it has none"
            raise InputError(f"{shown(path)}: has no '{shown(name)}'; {remedy}")
        if not isinstance(made, nn.Module) and callable(made):
            make = made
            made = _called(make, f"{shown(path)}:{name}", "meta")
            if device == "cpu" and isinstance(made, nn.Module):
                copied(made, "cpu")  # that it fits is known before it has values
                made = _called(make, f"{shown(path)}:{name}", "cpu")
    if not isinstance(made, nn.Module):
        raise InputError(f"{shown(path)}:{name} is no module: got {shown(repr(made))}")
    return made


def _called(make: Callable[..., object], place: str, device: str) -> object:
    try:
        with torch.device(device):
            return make()
    except MemoryError:
        raise
    except Exception as error:
        # whatever somebody else's code raises
        raise InputError(
            f"{place} cannot be called without arguments: {error_text(error)}; "
            "name a function that makes the module"
        ) from None


def typed_inputs(module: nn.Module, texts: Sequence[str]) -> tuple[Tensor, ...]:
    """Make meta tensors of sizes as they are typed: `2,16,64`, or `2,16:int64` for tokens."""
    tensors: list[Tensor] = []
    for text in texts:
        sizes, colon, kind = text.partition(":")
        parts = sizes.split(",")
        if not all(part.isdecimal() and part.isascii() and len(part) < 13 for part in parts):
            raise InputError(f"--input is sizes as in 2,16,64 or 2,16:int64: got {shown(text)}")
        tensors += made_inputs(module, [int(part) for part in parts], kind if colon else None)
    return tuple(tensors)
