"""Counts FLOPs of a forward of a module that is not ours, on meta, by role and operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from metacount.measure.counter import Charge, FlopCounter
from metacount.measure.others.roles import Roles, role_name
from metacount.measure.questions import ListQuestions, Ordinary

if TYPE_CHECKING:
    from metacount.measure.torch_private import OpOverload, OpOverloadPacket

aten = torch.ops.aten

IDLE = "idle experts"  # in an operator's place


class CounterByClass(FlopCounter):
    """Counts inside `with counter.watching(model):`. Raises `UncountedOp` and `NeedsData`.

    A charge's detail says whether the product makes rotary tables.
    """

    def __init__(self, roles: Roles, *, last_position: int) -> None:
        super().__init__()
        self.roles = roles
        self.ordinary = Ordinary(last_position)

    def answer(self, func: OpOverload, args: tuple[object, ...]) -> object:
        """Answer a question about data as an ordinary run would."""
        return self.answer_in(func, args, self._path)

    def answer_in(self, func: OpOverload, args: tuple[Any, ...], path: list[nn.Module]) -> object:
        """Answer as an ordinary run would where the last module of `path` asks about data."""
        packet = func.overloadpacket
        if packet is aten._local_scalar_dense and args[0].is_meta:
            return self.ordinary.item(args[0])
        if packet is aten.nonzero and args[0].is_meta:
            return self.ordinary.nonzero(args[0], *self._n_experts(path))
        return NotImplemented

    def note(self, func: OpOverload, args: tuple[object, ...], out: object) -> None:
        """Remember what a later question may be about."""
        self.ordinary.note(func, out)

    def charge(self, packet: OpOverloadPacket, args: tuple[Any, ...], flops: int) -> None:
        """Put FLOPs down to the running module; what idle experts cost is noted beside them."""
        super().charge(packet, args, flops)
        if packet is aten.bmm and self.role_and_detail(self._path)[0] == "moe":
            self._note_idle(args[1], flops)

    def role_and_detail(self, path: list[nn.Module]) -> tuple[str | None, object]:
        """Return the role of the innermost module that has one,
        and whether it makes rotary tables.
        """
        # a module that was made while the model ran (BigBird's, for a short input) is its holder's
        known = (id(m) for m in reversed(path) if id(m) in self.roles.role)
        owner = next(known, 0)
        rotary = owner in self.roles.rotary
        return ("position" if rotary else role_name(self.roles.role.get(owner))), rotary

    def _note_idle(self, weight: Tensor, flops: int) -> None:
        """Note what idle experts cost: all tokens go through them,
        though each chose a few (Llama 4).
        """
        routed = self.roles.routed.get(id(weight))
        if routed is not None:
            chosen, n_experts = routed
            _, detail = self.role_and_detail(self._path)
            charge = Charge(self._running(), "moe", IDLE, detail)
            self.ran[charge] += flops - flops // n_experts * chosen

    def _n_experts(
        self, path: list[nn.Module]
    ) -> tuple[int | torch.SymInt | None, int | torch.SymInt]:
        """Return the numbers of experts and of zero experts that the running module,
        or one around it, says it has.
        """
        for module in reversed(path[-3:]):
            for name in ("num_routed_experts", "num_experts", "moe_num_experts"):
                value = getattr(module, name, None)
                if isinstance(value, int | torch.SymInt):
                    return value, getattr(module, "zero_expert_num", 0)
        return None, 0

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[Self]:
        """Count what runs inside, on meta, knowing at each operator which module runs it."""
        on_meta = torch.device("meta")
        with torch.no_grad(), on_meta, ListQuestions(self.ordinary), super().watching(model):
            yield self

    def counts(self, charge: Charge) -> bool:
        """Tell whether a charge belongs to the figures: rotary tables are in no textbook's; idle
        experts are in the others already.
        """
        return not charge.detail and charge.operator != IDLE

    def idle(self) -> int:
        """Return the FLOPs of experts on tokens that did not choose them;
        they are in the other figures.
        """
        return sum(flops for charge, flops in self.totals().items() if charge.operator == IDLE)

    def chosen_by_module(self) -> dict[str, int]:
        """Return the FLOPs by module, without what idle experts cost."""
        found = Counter(self.by_module())
        for charge, flops in self.charges():
            if charge.operator == IDLE:
                found[charge.module] -= flops
        return dict(found)

    def rotary(self) -> int:
        """Return the FLOPs of the products that make the tables of rotary angles."""
        return sum(flops for charge, flops in self.totals().items() if charge.detail)
