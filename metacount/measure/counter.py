"""Counts FLOPs of any module: every operator that runs, priced by its shapes.

One counter for our modules, transformers' and anybody's. What differs is the role book, which says
to which role the running module's work belongs: `reference_roles` for ours, by owner;
`foreign_roles` for others, by class.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from metacount.measure.operators import GROUPED, flops_of, grouped_refusal, grouped_result
from metacount.measure.roles import ROLES
from metacount.measure.torch_private import DispatchMode, is_fake, operator_name, without_compiler

if TYPE_CHECKING:
    from metacount.measure.torch_private import OpOverload, OpOverloadPacket

T = TypeVar("T")

# What torch asks of a tensor whose sizes are symbols; nothing is computed.
QUESTIONS = frozenset(
    [
        "aten::sym_size",
        "aten::sym_stride",
        "aten::sym_numel",
        "aten::sym_storage_offset",
        "aten::is_contiguous",
        "aten::sym_is_contiguous",
        "aten::is_strides_like_format",
        "aten::is_non_overlapping_and_dense",
        "aten::size",
        "aten::stride",
        "aten::dim",
    ]
)


# Whose operators compute nothing: what the interpreter asks, and marks for a profiler.
SILENT = ("prim", "profiler")


class Charge(NamedTuple):
    """To whom FLOPs are put down: the innermost running module, its role, and the operator.

    `detail` is what a role book adds: which pairs of positions a product computes, for example.
    """

    module: str
    role: str | None
    operator: str
    detail: Any = None


Cost = Counter[Charge]  # FLOPs of each


class FlopCounter(DispatchMode):
    """Counts inside `with counter.watching(model):`. Raises `UncountedOp` rather than guess."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: Cost = Counter()
        self.said: set[str] = set()  # on what the figures rest
        # layers that did not run because one like them had: its cost, its name, the layer's own
        self.replayed: list[tuple[Cost, str, str]] = []
        self._path: list[nn.Module] = []
        self._names: dict[int, str] = {}

    def role_and_detail(self, path: list[nn.Module]) -> tuple[str | None, object]:
        """Return the role of what the last module of `path` computes, and the charge's detail."""
        return None, None

    def answer(self, func: OpOverload, args: tuple[object, ...]) -> object:
        """Return the result of an operator that cannot run without data;
        `NotImplemented` lets it run.
        """
        return NotImplemented

    def note(self, func: OpOverload, args: tuple[object, ...], out: object) -> None:
        """Remember what a later question may be about."""

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        """Run the operator (or answer its question), then charge for it."""
        if func.namespace in SILENT or operator_name(func) in QUESTIONS:
            return func(*args, **(kwargs or {}))
        answered = self.answer(func, args)
        if answered is not NotImplemented:
            return answered
        grouped = args[:2] if func.overloadpacket is GROUPED else ()
        if any(isinstance(x, Tensor) and (x.is_meta or is_fake(x)) for x in grouped):
            out = grouped_result(*args, **(kwargs or {}))
            if refused := grouped_refusal(*grouped):
                self.said.add(
                    f"torch's grouped product refuses {refused}: experts are counted as if it "
                    "took them"
                )
        else:
            out = func(*args, **(kwargs or {}))
        self.note(func, args, out)
        flops = flops_of(func, args, out)
        if flops:
            self.charge(func.overloadpacket, args, flops)
        return out

    def charge(self, packet: OpOverloadPacket, args: tuple[object, ...], flops: int) -> None:
        """Put FLOPs down to the module that is running."""
        role, detail = self.role_and_detail(self._path)
        self.ran[Charge(self._running(), role, str(packet), detail)] += flops

    def _running(self) -> str:
        """Return the name of the innermost running module that has one in the watched model."""
        return next((self._names[id(m)] for m in reversed(self._path) if id(m) in self._names), "")

    def spent_in(self, run: Callable[[], T]) -> tuple[T, Cost]:
        """Run a layer and return what it gives and what it cost, which is charged as well."""
        before, self.ran = self.ran, Counter()
        try:
            out, cost = run(), self.ran
        finally:
            # zeros are kept out, symbols cannot be compared: plain sums alone
            after, self.ran = self.ran, before
            for charge, flops in after.items():
                self.ran[charge] += flops
        return out, cost

    def replay(self, cost: Cost, like: nn.Module, layer: nn.Module) -> None:
        """Charge a layer that is like `like` with what `like` cost when it ran."""
        self.replayed.append((cost, self._names[id(like)], self._names[id(layer)]))

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[Self]:
        """Count what runs inside, knowing at each operator which module runs it."""
        self._names = {id(module): name for name, module in model.named_modules()}
        handles = [
            register_module_forward_pre_hook(self.entered),
            register_module_forward_hook(self.left, always_call=True),
        ]
        try:
            with without_compiler(), self:
                yield self
        finally:
            self._path.clear()
            for handle in handles:
                handle.remove()

    def entered(self, module: nn.Module, args: tuple[object, ...]) -> None:
        """Note that a module's forward begins."""
        self._path.append(module)

    def left(self, module: nn.Module, args: tuple[object, ...], out: object) -> None:
        """Note that a module's forward ends."""
        self._path.pop()

    def called(self, module: nn.Module, function: Callable[..., T], *args: object) -> T:
        """Run another function of a module than its forward, as a call of the module."""
        out = None
        self.entered(module, args)
        try:
            out = function(*args)
        finally:
            self.left(module, args, out)
        return out

    def charges(self) -> Iterator[tuple[Charge, int]]:
        """Yield every charge; those of layers that did not run stand under their own names."""
        yield from self.ran.items()
        for cost, like, name in self.replayed:
            for charge, flops in cost.items():
                inside = charge.module == like or charge.module.startswith(f"{like}.")
                # what a layer runs outside itself, as a block shared by many, keeps its name
                own = name + charge.module[len(like) :] if inside else charge.module
                yield charge._replace(module=own), flops

    def totals(self) -> Cost:
        """Sum the FLOPs by charge; layers
        that did not run stand under the name of the one that did.
        """
        found: Cost = Counter(self.ran)
        times = Counter(id(cost) for cost, _, _ in self.replayed)
        for cost in {id(cost): cost for cost, _, _ in self.replayed}.values():
            for charge, flops in cost.items():
                found[charge] += flops * times[id(cost)]
        return found

    def counts(self, charge: Charge) -> bool:
        """Tell whether a charge belongs to the figures; a note beside them does not."""
        return True

    def by_role(self) -> dict[str, int]:
        """Sum the FLOPs by role; what no role claims is `other`."""
        found: dict[str, int] = dict.fromkeys(ROLES, 0)
        for charge, flops in self.totals().items():
            found[charge.role or "other"] += flops if self.counts(charge) else 0
        return found

    def by_operator(self) -> dict[str, int]:
        """Sum the FLOPs by operator."""
        found: Counter[str] = Counter()
        for charge, flops in self.totals().items():
            if self.counts(charge):
                found[charge.operator] += flops
        return dict(found)

    def by_module(self) -> dict[str, int]:
        """Sum the FLOPs by the module that ran the operator itself, under its full name."""
        found: Counter[str] = Counter()
        for charge, flops in self.charges():
            if self.counts(charge):
                found[charge.module] += flops
        return dict(found)
