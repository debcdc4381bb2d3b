"""Runs one training step of a program and measures it: forward, loss, backward, optimizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from metacount.measure.torch_private import tree_leaves
from metacount.training.adapters import trainable
from metacount.training.attention import FusedAttention
from metacount.training.checkpointing import Unwatched, Watch, checkpointed
from metacount.training.counter import (
    BACKWARD,
    FORWARD,
    INPUT_OF_LAYER,
    KEPT_RESULT,
    LOSS,
    OPTIMIZER,
    Made,
    RoleBook,
    StepCounter,
)
from metacount.training.memory import Ledger
from metacount.training.optimizers import Updates
from metacount.training.setup import Setup


@dataclass(kw_only=True)
class Program:
    """What is trained, and how its forward is run; on meta as well as on a device."""

    model: nn.Module
    inputs: tuple[Tensor, ...]
    run: Callable[..., object]  # what the inputs give: logits, hidden states, or any tensors
    targets: Tensor | None  # token numbers; None where the loss is the sum of what `run` gives
    layers: dict[str, nn.Module]
    shared: tuple[str, ...] = ()  # paths of what layers share, stored beside them
    head: nn.Module | None = None
    book: RoleBook = field(default_factory=RoleBook)
    # what the model is like from the forward to the backward, and the modes that a forward runs in
    context: Callable[[], AbstractContextManager[object]] = nullcontext
    modes: Callable[[], AbstractContextManager[object]] = nullcontext
    _places: dict[str, str] = field(default_factory=dict)

    def place_of(self, module: str) -> str:
        """Name the layer that a module is in; a module outside of layers is its own place."""
        if module not in self._places:
            parts = module.split(".")
            paths = [".".join(parts[: n + 1]) for n in range(len(parts))]
            found = next((path for path in paths if path in self.layers), module)
            self._places[module] = found
        return self._places[module]


def loss_of(logits: Tensor, targets: Tensor, setup: Setup) -> Tensor:
    """Compute the mean cross-entropy over all positions, in float32 at least."""
    rows, wanted = logits.flatten(0, -2), targets.flatten()
    wide = torch.float32 if rows.element_size() < 4 else rows.dtype
    if setup.loss == "full":
        return F.cross_entropy(rows.to(wide), wanted)

    def of_chunk(some: Tensor, those: Tensor) -> Tensor:
        return F.cross_entropy(some.to(wide), those, reduction="sum")

    n = setup.loss_chunks
    chunks = zip(rows.chunk(n), wanted.chunk(n), strict=True)
    parts = [
        checkpoint(of_chunk, some, those, use_reentrant=False, preserve_rng_state=False)
        for some, those in chunks
    ]
    return torch.stack(parts).sum() / wanted.numel()


class Step:
    """One step of a program under a setup, which runs on any device; measured by who watches."""

    def __init__(self, program: Program, setup: Setup, watch: Watch | None = None) -> None:
        self.program, self.setup = program, setup
        self._watch = watch or Unwatched()
        self._stack = ExitStack()
        self.said: set[str] = set()

    def __enter__(self) -> Step:
        """Set the model up: what is trained and kept, and the optimizer."""
        program, setup, stack = self.program, self.setup, self._stack
        try:
            stack.enter_context(trainable(program.model, setup, program.head))
            self.trained = {
                name: p for name, p in program.model.named_parameters() if p.requires_grad
            }
            self._set_grad_dtype()
            self.updates = Updates(setup, self.trained, self._inner())
            layers = list(program.layers.values())
            stack.enter_context(checkpointed(layers, setup.checkpointing, self._watch, self._modes))
        except BaseException:
            stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the model as it was."""
        self._stack.close()

    def _set_grad_dtype(self) -> None:
        from metacount.errors import InputError
        from metacount.tensors import DTYPES

        if self.setup.grad_dtype is None:
            return
        dtype = DTYPES[self.setup.grad_dtype]
        for p in self.trained.values():
            if dtype != p.dtype:
                if not hasattr(p, "grad_dtype"):
                    said = f"this torch ({torch.__version__}) keeps no gradients of another type"
                    raise InputError(f"grad_dtype: {said} than the parameters'; leave it out")
                p.grad_dtype = dtype
                self._stack.callback(setattr, p, "grad_dtype", p.dtype)

    def _inner(self) -> set[str]:
        inside = tuple(f"{path}." for path in (*self.program.layers, *self.program.shared))
        return {name for name in self.trained if name.startswith(inside)}

    def drop_unreached(self) -> list[Tensor]:
        """Train no parameter that the backward left without a gradient: an optimizer skips it.

        Returns: what was prepared for these, its states and copies.
        """
        unreached = {name: p for name, p in self.trained.items() if p.grad is None}
        values = sum(p.numel() for p in unreached.values())
        if unreached and isinstance(values, int):  # symbols have no number to say
            self.said.add(
                f"{values:,} parameters have no gradient: the loss does not depend on them"
            )
        return [tensor for name in unreached for tensor in self.updates.drop(name)]

    @contextmanager
    def _modes(self) -> Iterator[None]:
        """Enter the modes that a forward runs in, also when the backward runs a layer again."""
        with self.program.modes(), FusedAttention(self.setup.attention, self.said):
            yield

    def forward(self) -> object:
        """Run the forward, and return what the model gives."""
        with self._modes():
            return self.program.run(*self.program.inputs)

    def loss_of(self, out: object) -> Tensor:
        """Compute the loss of what the model gave."""
        targets = self.program.targets
        if targets is not None:
            assert isinstance(out, Tensor)
            return loss_of(out, targets, self.setup)
        tensors = [t for t in tree_leaves(out) if isinstance(t, Tensor) and t.requires_grad]
        return torch.stack([t.float().sum() for t in tensors]).sum()


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A step that was run, and everything that was written down meanwhile."""

    counter: StepCounter
    ledger: Ledger
    numbers: dict[str, set[int]]  # storages by what they are
    optimizer_state: dict[tuple[str, str], int]  # bytes by parameter and its own name there
    gradients: dict[str, int]  # bytes by parameter, each storage with the first that has it
    params: int
    trainable: int
    logits_bytes: int
    logits_float32_bytes: int
    said: tuple[str, ...]


class _Watching:
    """Tells the counter what checkpointing does."""

    def __init__(self) -> None:
        self.counter: StepCounter | None = None

    def inputs(self, tensors: list[Tensor]) -> None:
        if self.counter is not None:
            self.counter.keep(tensors, INPUT_OF_LAYER)

    def result(self, tensors: list[Tensor]) -> None:
        if self.counter is not None:
            self.counter.keep(tensors, KEPT_RESULT)

    def recomputing(self, layer: nn.Module) -> AbstractContextManager[None]:
        assert self.counter is not None
        return self.counter.recomputing(layer)


def measure_step(
    program: Program, setup: Setup, made: Made = StepCounter, last: str = OPTIMIZER
) -> Measured:
    """Measure a step that is not the first: the optimizer's state is there when it begins.

    `made` makes the counter. The step ends after the phase `last`; no state before the optimizer's.
    """
    watch = _Watching()
    with Step(program, setup, watch) as step:
        model = program.model
        warm_up = made(RoleBook(), Ledger(), program.place_of)
        if last == OPTIMIZER:
            with warm_up.watching(model), warm_up.during(OPTIMIZER):
                step.updates.prepare()
        ledger = Ledger()
        counter = made(program.book, ledger, program.place_of)
        numbers = _there_before(ledger, step)
        counter.leave_out([*model.parameters(), *model.buffers()])
        watch.counter = counter
        with counter.watching(model):
            with step.program.context():
                logits = _through_backward(step, counter, numbers, last)
            if last != LOSS:
                ledger.erase(step.drop_unreached())
            gradients = _gradients(step, ledger)
            numbers["gradients"] = set(gradients)
            if last == OPTIMIZER:
                with counter.during(OPTIMIZER):
                    step.updates.step()
        state: Counter[tuple[str, str]] = Counter()
        for path, name, tensor in step.updates.state_of_each():
            state[path, name] += tensor.untyped_storage().nbytes()
        model.zero_grad()
        ledger.close()
        return Measured(
            counter=counter,
            ledger=ledger,
            numbers=numbers,
            optimizer_state=dict(state),
            gradients={path: ledger.bytes[number] for number, path in gradients.items()},
            params=sum(p.numel() for p in model.parameters()),
            trainable=sum(p.numel() for p in step.trained.values()),
            logits_bytes=logits[0],
            logits_float32_bytes=logits[1],
            said=tuple(sorted(step.said)),
        )


def _there_before(ledger: Ledger, step: Step) -> dict[str, set[int]]:
    """Number the storages that the step finds, by what they are."""
    program, updates = step.program, step.updates
    targets = [] if program.targets is None else [program.targets]
    return {
        "parameters": ledger.numbers(program.model.parameters()),
        "buffers": ledger.numbers(program.model.buffers()),
        "master weights": ledger.numbers(updates.master_tensors()),
        "optimizer state": ledger.numbers(t for _, t in updates.state()),
        "inputs": ledger.numbers([*program.inputs, *targets]),
    }


def _through_backward(
    step: Step, counter: StepCounter, numbers: dict[str, set[int]], last: str
) -> tuple[int, int]:
    """Run forward, loss and backward; return the bytes of the logits and of their float32 copy.

    No backward where `last` is the loss.
    """
    ledger = counter.ledger
    with saved_tensors_hooks(counter.pack, lambda kept: kept):
        with counter.during(FORWARD):
            out = step.forward()
        logits = out if step.program.targets is not None and isinstance(out, Tensor) else None
        sizes = (0, 0) if logits is None else _sizes(logits, step.setup)
        numbers["logits"] = set() if logits is None else ledger.numbers([logits])
        del logits
        with counter.during(LOSS):
            loss = step.loss_of(out)
            del out
    counter.name_keepers(loss)
    counter.leave_out([loss])
    before = ledger.living()
    numbers["activations"] = set(counter.kept)
    numbers["held"] = before - set().union(*numbers.values()) - ledger.numbers([loss])
    if last != LOSS:
        with counter.during(BACKWARD):
            loss.backward()
            del loss
    return sizes


def _gradients(step: Step, ledger: Ledger) -> dict[int, str]:
    """Return the numbers of the gradients' storages, each with the first parameter that has it."""
    found: dict[int, str] = {}
    for name, p in step.trained.items():
        if p.grad is not None:
            found.setdefault(ledger.number(p.grad), name)
    return found


def _sizes(logits: Tensor, setup: Setup) -> tuple[int, int]:
    values, wide = logits.numel(), 4 if logits.element_size() < 4 else 0
    copied = values
    if setup.loss == "chunked":
        copied = -(-values // logits.shape[-1] // setup.loss_chunks) * logits.shape[-1]
    return values * logits.element_size(), copied * wide
