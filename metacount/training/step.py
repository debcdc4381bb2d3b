"""Runs one training step of a program and measures it: forward, loss, backward, optimizer.

A ledger follows every storage from the operator that makes it to the moment nobody holds it; one
counter prices the operators of each phase, and says what autograd keeps of the forward.

A node of autograd's graph has a number that grows as the forward makes nodes. Noting the number at
every beginning and end of a module says which module made a node: so the products of the backward,
and what it keeps, are put down to modules and roles exactly, not by the order in which they come.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from metacount.measure.counter import ROLES, Book, Charge, FlopCounter
from metacount.measure.torch_private import (
    graph_names,
    next_node_number,
    running_node_number,
    storage_key,
    tree_leaves,
)
from metacount.training.model import FusedAttention, Watch, checkpointed, trainable
from metacount.training.optimizers import Updates, is_wrapper
from metacount.training.setup import Setup, Stage

if TYPE_CHECKING:
    from metacount.measure.torch_private import OpOverload, OpOverloadPacket


class Mark(NamedTuple):
    """From which event on a phase and a place of the model are at work."""

    event: int
    phase: str
    place: str


class Ledger:
    """Bytes of distinct storages, as they come and go.

    A storage has a number from the first time it is seen until nobody holds it; another that comes
    to lie in its place has another.
    """

    def __init__(self) -> None:
        self.bytes: list[int] = []  # of each storage, by its number
        self.alive: dict[int, int] = {}  # a storage's key -> its number
        self._held: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._events: list[int] = []  # n + 1: storage n came; -(n + 1): it went
        self._marks: list[Mark] = []

    def number(self, tensor: Tensor) -> int:
        """Return the number of a tensor's storage, a new one if the storage was not seen before."""
        storage = tensor.untyped_storage()
        key = storage_key(storage)
        known = self.alive.get(key)
        if known is not None:
            return known
        number = len(self.bytes)
        self.bytes.append(storage.nbytes())
        self.alive[key] = number
        self._events.append(number + 1)
        self._held[key] = weakref.ref(storage, lambda _: self._gone(key))
        return number

    def numbers(self, tensors: Iterable[Tensor]) -> set[int]:
        """Return the numbers of the storages of tensors."""
        return {self.number(tensor) for tensor in tensors}

    def erase(self, tensors: Iterable[Tensor]) -> None:
        """Count the storages of tensors as if they had never been there."""
        for number in self.numbers(tensors):
            self.bytes[number] = 0

    def resized(self, tensor: Tensor) -> None:
        """Note that a tensor's storage was emptied, or filled again: it goes, another comes."""
        storage = tensor.untyped_storage()
        if storage_key(storage) in self.alive:
            self._gone(storage_key(storage))
        if storage.nbytes():
            self.number(tensor)

    def _gone(self, key: int) -> None:
        self._events.append(-self.alive.pop(key) - 1)
        del self._held[key]

    def living(self) -> set[int]:
        """Return the numbers of the storages that somebody holds."""
        return set(self.alive.values())

    def sum(self, numbers: Iterable[int]) -> int:
        """Sum the bytes of storages."""
        return sum(self.bytes[number] for number in numbers)

    def mark(self, phase: str, place: str) -> None:
        """Note that from now on `place` is at work, in `phase`."""
        if not self._marks or self._marks[-1][1:] != (phase, place):
            self._marks.append(Mark(len(self._events), phase, place))

    def _totals(self) -> list[int]:
        sizes = (self.bytes[n - 1] if n > 0 else -self.bytes[-n - 1] for n in self._events)
        return [*accumulate(sizes, initial=0)]

    def spans(self) -> list[Stage]:
        """Cut the step at its marks, from the first on, into spans where anything came or went."""
        totals = self._totals()
        ends = [mark.event for mark in self._marks[1:]] + [len(self._events)]
        return [
            Stage(
                phase=mark.phase,
                place=mark.place,
                start_bytes=totals[mark.event],
                peak_bytes=max(totals[mark.event : end + 1]),
                end_bytes=totals[end],
            )
            for mark, end in zip(self._marks, ends, strict=True)
            if mark.event < end
        ]

    def peak(self) -> tuple[Mark, set[int]]:
        """Find the mark and storages where the most bytes are alive, from the first mark on."""
        start = self._marks[0].event
        totals = self._totals()
        top = max(range(start, len(totals)), key=totals.__getitem__)
        alive: set[int] = set()
        for event in self._events[:top]:
            if event > 0:
                alive.add(event - 1)
            else:
                alive.remove(-event - 1)
        # the event that made the peak belongs to the mark before it
        at = max((m for m in self._marks if m.event < top), default=self._marks[0])
        return at, alive

    def peak_of_each_span(self, part_of: Mapping[int, str]) -> dict[tuple[str, str], Counter[str]]:
        """Return the bytes of each part where most are alive, for each phase and place at work.

        `part_of` says of storages what they are a part of; others are `OTHER`.
        """
        peaks: dict[tuple[str, str], Counter[str]] = {}
        alive: Counter[str] = Counter()
        marks = iter([*self._marks, Mark(len(self._events) + 1, "", "")])
        at, following = Mark(0, "", ""), next(marks)
        for i, event in enumerate(self._events):
            while following.event <= i:
                at, following = following, next(marks)
            number = abs(event) - 1
            part = part_of.get(number, OTHER)
            alive[part] += self.bytes[number] if event > 0 else -self.bytes[number]
            if alive.total() > peaks.get(at[1:], Counter()).total():
                peaks[at[1:]] = Counter(alive)
        return peaks

    def close(self) -> None:
        """Forget the storages that are alive: what becomes of them is no part of the step."""
        self._held.clear()


FORWARD, LOSS, BACKWARD, OPTIMIZER = "forward", "loss", "backward", "optimizer"
PHASES = (FORWARD, LOSS, BACKWARD, OPTIMIZER)
RECOMPUTE = "recompute"  # of FLOPs: run once more in the backward, for what was not kept
INPUT_OF_LAYER = "input of a checkpointed layer"
KEPT_RESULT = "result kept by selective checkpointing"
OTHER = "other_bytes"

aten = torch.ops.aten


class Kept(NamedTuple):
    """Who keeps a storage for the backward: module, role, and the node of autograd."""

    module: str
    role: str
    operator: str


class StepCounter(FlopCounter, Watch):
    """Counts inside `with counter.noting(model):`, phase by phase.

    A charge's detail is its phase.
    """

    def __init__(self, book: Book, ledger: Ledger, place_of: Callable[[str], str]) -> None:
        super().__init__(book)
        self.ledger, self._place_of = ledger, place_of
        self.phase = FORWARD
        self.fused = 0  # fused attention operators that ran
        self.kept: dict[int, Kept] = {}  # by the number of the storage
        self._node_of: dict[int, int] = {}  # the autograd node that keeps a storage
        self._aside: set[int] = set()  # storages that are no activations: parameters, buffers
        self._recomputing = False
        self._starts: list[int] = []  # numbers of nodes, from which on ...
        self._makers: list[tuple[str, str | None]] = []  # ... this module and role make them

    def leave_out(self, tensors: list[Tensor]) -> None:
        """Leave out storages that nobody keeps for the backward alone."""
        self._aside |= self.ledger.numbers(tensors)

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Put what runs inside down to a phase."""
        self.phase = phase
        self.ledger.mark(phase, "")
        self._note_maker()
        yield

    def leaves_to(self, types: Iterable[type]) -> bool:
        """Tell whether these are an optimizer's wrappers, followed through what they run."""
        return self.phase == OPTIMIZER and any(map(is_wrapper, types))

    def detail(self) -> object:
        """Return the phase."""
        return RECOMPUTE if self._recomputing else self.phase

    def answer(self, func: OpOverload, args: tuple[object, ...]) -> object:
        """Answer for an operator that cannot run without data."""
        if self.phase == OPTIMIZER:
            # it scales an update; no size depends on it
            asks = func.overloadpacket is aten._local_scalar_dense
            of_meta = isinstance(args[0], Tensor) and args[0].is_meta
            return 1.0 if asks and of_meta else NotImplemented
        answered = super().answer(func, args)
        if isinstance(answered, Tensor):
            self.ledger.number(answered)
        return answered

    def note(self, func: OpOverload, out: object) -> None:
        """Follow what the operator made."""
        maker = self._maker()
        self.ledger.mark(self.phase, self._place_of(maker[0]) if maker else self._last_place)
        for made in tree_leaves(out):
            if isinstance(made, Tensor):
                self.ledger.number(made)
        super().note(func, out)

    _last_place = ""

    def _maker(self) -> tuple[str, str | None] | None:
        """Find the module and role at work: of the running module, or of the node that runs."""
        if self.phase == BACKWARD and not self._recomputing:
            number = running_node_number()
            at = -1 if number is None else bisect_right(self._starts, number) - 1
            maker = self._makers[at] if at >= 0 else None
        else:
            maker = (self._running(), None)
        if maker is not None:
            self._last_place = self._place_of(maker[0])
        return maker

    def _running(self) -> str:
        return super()._running() or (LOSS if self.phase == LOSS else "")

    def charge(self, packet: OpOverloadPacket, args: tuple[object, ...], flops: int) -> None:
        """Put FLOPs down to the running module, in the backward to the one that made the node."""
        if "attention" in str(packet):
            self.fused += 1
        if self.phase == BACKWARD and not self._recomputing:
            module, role = self._maker() or ("", None)
            self.write(Charge(module, role, str(packet), True, BACKWARD), flops, args)
        else:
            super().charge(packet, args, flops)

    def entered(self, module: nn.Module, args: tuple[object, ...]) -> None:
        """Note that a module's forward begins."""
        super().entered(module, args)
        self._note_maker()

    def left(self, module: nn.Module, args: tuple[object, ...], out: object) -> None:
        """Note that a module's forward ends."""
        super().left(module, args, out)
        self._note_maker()

    def _note_maker(self) -> None:
        number, maker = next_node_number(), (self._running(), self.book.role(self._path))
        if self._starts and self._starts[-1] == number:
            self._makers[-1] = maker
        else:
            self._starts.append(number)
            self._makers.append(maker)

    @contextmanager
    def recomputing(self, layer: nn.Module) -> Iterator[None]:
        """Put what runs inside down to recomputing a checkpointed layer's forward."""
        depth, self._recomputing = len(self._path), True
        self.entered(layer, ())
        try:
            yield
        finally:
            del self._path[depth:]
            self._note_maker()
            self._recomputing = False

    def inputs(self, tensors: list[Tensor]) -> None:
        """Note the inputs of a checkpointed layer, which are kept."""
        self.keep(tensors, INPUT_OF_LAYER)

    def result(self, tensors: list[Tensor]) -> None:
        """Note the results that selective checkpointing keeps."""
        self.keep(tensors, KEPT_RESULT)

    def keep(self, tensors: list[Tensor], operator: str) -> None:
        """Note tensors that the backward keeps, though no node of autograd does."""
        for tensor in tensors:
            number = self.ledger.number(tensor)
            if number not in self._aside:
                role = self.book.role(self._path) or "other"
                self.kept.setdefault(number, Kept(self._running(), role, operator))

    def pack(self, tensor: Tensor) -> Tensor:
        """Note that a node of autograd keeps a tensor; the first node that does is reported."""
        number = self.ledger.number(tensor)
        if number not in self._aside and number not in self.kept:
            self.keep([tensor], "")
            self._node_of[number] = next_node_number() - 1
        # a node's own result would hold the node that holds it
        return tensor.detach()

    def name_keepers(self, loss: Tensor) -> None:
        """Say of what is kept which node keeps it, and forget what nobody keeps any more."""
        names = graph_names(loss)
        living = self.ledger.living()
        self.kept = {number: store for number, store in self.kept.items() if number in living}
        for number, store in self.kept.items():
            if number in self._node_of:
                name = names.get(self._node_of[number], "")
                self.kept[number] = store._replace(operator=name)

    def charged(self, phase: str) -> Iterator[tuple[Charge, int]]:
        """Yield the charges of a phase that belong to the figures."""
        for charge, flops in self.totals().items():
            if charge.counted and charge.detail == phase:
                yield charge, flops

    def flops(self, phase: str, by: str) -> dict[str, int]:
        """Sum the FLOPs of a phase by `role`, `operator` or `module`."""
        sums: Counter[str] = Counter()
        for charge, flops in self.charged(phase):
            sums[getattr(charge, by) or ("other" if by == "role" else "")] += flops
        return in_order(sums) if by == "role" else dict(sums)

    def kept_bytes(self, by: str) -> dict[str, int]:
        """Sum by `role`, `operator` or `module` the bytes that the backward keeps."""
        sums: Counter[str] = Counter()
        for number, store in self.kept.items():
            sums[getattr(store, by)] += self.ledger.bytes[number]
        return in_order(sums) if by == "role" else dict(sums)


def in_order(by_role: Counter[str]) -> dict[str, int]:
    """Return the count of every role, in the order of the table of roles."""
    return {role: by_role[role] for role in ROLES}


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
    book: Book = field(default_factory=Book)
    # what the model is like from the forward to the backward, and the modes that a forward runs in
    context: Callable[[], AbstractContextManager[object]] = nullcontext
    modes: Callable[[], AbstractContextManager[object]] = nullcontext
    _places: dict[str, str] = field(default_factory=dict)

    def place_of(self, module: str) -> str:
        """Name the layer that a module is in; a module outside of layers is its own place."""
        if module not in self._places:
            parts = module.split(".")
            paths = [".".join(parts[: n + 1]) for n in range(len(parts))]
            layer = next((path for path in paths if path in self.layers), module)
            self._places[module] = layer
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
        self._watch = watch or Watch()
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
                    problem = f"this torch ({torch.__version__}) keeps no gradients of another type"
                    raise InputError(f"grad_dtype: {problem} than the parameters'; leave it out")
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
        if unreached:
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


def measure_step(program: Program, setup: Setup) -> Measured:
    """Measure a step that is not the first: the optimizer's state is there when it begins."""
    ledger = Ledger()
    counter = StepCounter(program.book, ledger, program.place_of)
    with Step(program, setup, counter) as step:
        model = program.model
        warm_up = StepCounter(Book(), Ledger(), program.place_of)
        with warm_up.noting(model), warm_up.during(OPTIMIZER):
            step.updates.prepare()
        numbers = _there_before(ledger, step)
        counter.leave_out([*model.parameters(), *model.buffers()])
        with counter.noting(model):
            with step.program.context():
                logits = _through_backward(step, counter, numbers)
            ledger.erase(step.drop_unreached())
            gradients = _gradients(step, ledger)
            numbers["gradients"] = set(gradients)
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
    step: Step, counter: StepCounter, numbers: dict[str, set[int]]
) -> tuple[int, int]:
    """Run forward, loss and backward; return the bytes of the logits and of their float32 copy."""
    ledger = counter.ledger
    with saved_tensors_hooks(counter.pack, lambda saved: saved):
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
    with counter.during(BACKWARD):
        loss.backward()
        del loss
    return sizes


def _gradients(step: Step, ledger: Ledger) -> dict[int, str]:
    names: dict[int, str] = {}
    for name, p in step.trained.items():
        if p.grad is not None:
            names.setdefault(ledger.number(p.grad), name)
    return names


def _sizes(logits: Tensor, setup: Setup) -> tuple[int, int]:
    values, wide = logits.numel(), 4 if logits.element_size() < 4 else 0
    copied = values
    if setup.loss == "chunked":
        copied = -(-values // logits.shape[-1] // setup.loss_chunks) * logits.shape[-1]
    return values * logits.element_size(), copied * wide
