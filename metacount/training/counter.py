"""The one counter over a whole step: FLOPs of each phase, and what autograd keeps of the forward.

A node of autograd's graph has a number that grows as the forward makes nodes. Noting the number at
every beginning and end of a module says which module made a node: so the products of the backward,
and what it keeps, are put down to modules and roles exactly, not by the order in which they come.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from metacount.measure.adam8bit import is_wrapper
from metacount.measure.counter import Charge, FlopCounter
from metacount.measure.roles import ROLES
from metacount.measure.torch_private import (
    graph_names,
    next_node_number,
    running_node_number,
    tree_leaves,
)
from metacount.training.memory import Ledger

if TYPE_CHECKING:
    from metacount.measure.torch_private import OpOverload, OpOverloadPacket

FORWARD, LOSS, BACKWARD, OPTIMIZER = "forward", "loss", "backward", "optimizer"
PHASES = (FORWARD, LOSS, BACKWARD, OPTIMIZER)
RECOMPUTE = "recompute"  # of FLOPs: run once more in the backward, for what was not kept
INPUT_OF_LAYER = "input of a checkpointed layer"
KEPT_RESULT = "result kept by selective checkpointing"

aten = torch.ops.aten


class Kept(NamedTuple):
    """Who keeps a storage for the backward: module, role, and the node of autograd."""

    module: str
    role: str
    operator: str


class RoleBook:
    """What a kind of modules says of itself: whose work it is, and answers to questions of data."""

    def role(self, path: list[nn.Module]) -> str | None:
        """Return the role of what the last module of `path` computes."""
        return None

    def counts(self, path: list[nn.Module]) -> bool:
        """Tell whether what runs belongs to the figures."""
        return True

    def answer(self, func: OpOverload, args: tuple[object, ...], path: list[nn.Module]) -> object:
        """Answer for an operator that cannot run without data; `NotImplemented` lets it run."""
        return NotImplemented

    def note(self, func: OpOverload, out: object) -> None:
        """Remember what a later question may be about."""


class StepCounter(FlopCounter):
    """Counts inside `with counter.watching(model):`, phase by phase.

    A charge's detail is its phase and whether it belongs to the figures.
    """

    def __init__(self, book: RoleBook, ledger: Ledger, place_of: Callable[[str], str]) -> None:
        super().__init__()
        self.book, self.ledger, self._place_of = book, ledger, place_of
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

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Iterable[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        """Follow an operator; one of an optimizer's wrappers is followed through what it runs."""
        if self.phase == OPTIMIZER and any(map(is_wrapper, types)):
            return NotImplemented
        return super().__torch_dispatch__(func, types, args, kwargs)

    def role_and_detail(self, path: list[nn.Module]) -> tuple[str | None, object]:
        """Find the role of what the last module of `path` computes; the phase, and if it counts."""
        phase = RECOMPUTE if self._recomputing else self.phase
        return self.book.role(path), (phase, self.book.counts(path))

    def answer(self, func: OpOverload, args: tuple[object, ...]) -> object:
        """Answer for an operator that cannot run without data."""
        if self.phase == OPTIMIZER:
            # it scales an update; no size depends on it
            asks = func.overloadpacket is aten._local_scalar_dense
            of_meta = isinstance(args[0], Tensor) and args[0].is_meta
            return 1.0 if asks and of_meta else NotImplemented
        found = self.book.answer(func, args, self._path)
        if isinstance(found, Tensor):
            self.ledger.number(found)
        return found

    def note(self, func: OpOverload, args: tuple[object, ...], out: object) -> None:
        """Follow what the operator made."""
        maker = self._maker()
        self.ledger.mark(self.phase, self._place_of(maker[0]) if maker else self._last_place)
        for made in tree_leaves(out):
            if isinstance(made, Tensor):
                self.ledger.number(made)
        self.book.note(func, out)

    _last_place = ""

    def _maker(self) -> tuple[str, str | None] | None:
        """Find the module and role at work: of the running module, or of the node that runs."""
        if self.phase == BACKWARD and not self._recomputing:
            number = running_node_number()
            at = -1 if number is None else bisect_right(self._starts, number) - 1
            found = self._makers[at] if at >= 0 else None
        else:
            found = (self._running(), None)
        if found is not None:
            self._last_place = self._place_of(found[0])
        return found

    def _running(self) -> str:
        """Name the innermost running module, or the loss if its phase runs outside of modules."""
        return super()._running() or (LOSS if self.phase == LOSS else "")

    def charge(self, packet: OpOverloadPacket, args: tuple[object, ...], flops: int) -> None:
        """Put FLOPs down to the running module, in the backward to the one that made the node."""
        if "attention" in str(packet):
            self.fused += 1
        if self.phase == BACKWARD and not self._recomputing:
            module, role = self._maker() or ("", None)
            self.ran[Charge(module, role, str(packet), (BACKWARD, True))] += flops
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
        self.kept = {number: kept for number, kept in self.kept.items() if number in living}
        for number, kept in self.kept.items():
            if number in self._node_of:
                name = names.get(self._node_of[number], "")
                self.kept[number] = kept._replace(operator=name)

    def charged(self, phase: str) -> Iterator[tuple[Charge, int]]:
        """Yield the charges of a phase that belong to the figures."""
        for charge, flops in self.ran.items():
            if charge.detail == (phase, True):
                yield charge, flops

    def flops(self, phase: str, by: str) -> dict[str, int]:
        """Sum the FLOPs of a phase by `role`, `operator` or `module`."""
        found: Counter[str] = Counter()
        for charge, flops in self.charged(phase):
            found[getattr(charge, by) or ("other" if by == "role" else "")] += flops
        return in_order(found) if by == "role" else dict(found)

    def kept_bytes(self, by: str) -> dict[str, int]:
        """Sum by `role`, `operator` or `module` the bytes that the backward keeps."""
        found: Counter[str] = Counter()
        for number, kept in self.kept.items():
            found[getattr(kept, by)] += self.ledger.bytes[number]
        return in_order(found) if by == "role" else dict(found)


# Makes the counter of a step for a book of roles, a ledger, and the layer of a module.
Made = Callable[[RoleBook, Ledger, Callable[[str], str]], StepCounter]


def in_order(by_role: Counter[str]) -> dict[str, int]:
    """Return the count of every role, in the order of the table of roles."""
    return {role: by_role[role] for role in ROLES}
