"""FLOPs of a forward of a module that is not ours, on meta, by role and operator.

On meta there are no values. Where the code asks for one, the answer is that of an ordinary run:
full sequences without padding, no special tokens, tokens spread evenly over experts. A question
that has no such answer is an error, never a guess.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from .foreign_roles import Roles, role_name
from .operators import flops_of
from .quick_meta import without_compiler
from .roles import ROLES

aten = torch.ops.aten

# What torch asks of a tensor whose sizes are symbols; nothing is computed.
QUESTIONS = frozenset(
    ["aten::sym_size", "aten::sym_stride", "aten::sym_numel", "aten::sym_storage_offset",
     "aten::is_contiguous", "aten::sym_is_contiguous", "aten::is_strides_like_format",
     "aten::is_non_overlapping_and_dense", "aten::size", "aten::stride", "aten::dim"]
)  # fmt: skip

IDLE = ("moe", "idle experts", False)


class NeedsData(RuntimeError):
    """The code asks for a value that depends on data, and no ordinary run answers it."""


class Ordinary:
    """What an ordinary run answers when code asks for a value.

    `any` is False (nothing is padded or special) and `all` is True (the mask is full). Tokens
    choose experts evenly: of a list of E experts all are hit, each by its share of the choices.
    The largest of any positions is the last one.
    """

    def __init__(self, last_position: int) -> None:
        self._last = last_position
        self._said: dict[int, tuple[Tensor, Any]] = {}  # holds the tensor: ids are used again
        self._choices = 0
        self._experts = self._turn = 0
        self.assumed: set[str] = set()

    def note(self, func: Any, out: Any) -> None:
        """Remember what a later question may be about."""
        packet = func.overloadpacket
        if packet in (aten.any, aten.all, aten._is_all_true):
            self._said[id(out)] = (out, packet is not aten.any)
        elif packet is aten.max and isinstance(out, Tensor) and not out.is_floating_point():
            self._said[id(out)] = (out, self._last)
        elif packet is aten.topk:
            self._choices = out[0].numel()

    def item(self, asked: Tensor) -> Any:
        """The value of a tensor of one value."""
        if id(asked) not in self._said:
            raise NeedsData(f"the code asks for the value of a {asked.dtype} computed from data")
        self.assumed.add("assumed full sequences without padding")
        return self._said[id(asked)][1]

    def nonzero(self, asked: Tensor, n_experts: int | torch.SymInt | None) -> Tensor:
        """Indices of what is not zero: all experts of a list, or one expert's share of choices.

        A list one longer than the experts has a last place for no expert, which nothing chooses.
        """
        if asked.dim() == 1 and n_experts and asked.shape[0] - n_experts in (0, 1):
            self._experts, self._turn = self.hit(n_experts), 0
            self.assumed.add("assumed tokens spread evenly over experts")
            with _disable_current_modes():
                # real numbers: the code makes names and places of them
                return torch.arange(self._experts, device="cpu")[:, None]
        if asked.dim() != 2 or not self._experts:
            raise NeedsData(f"the code asks which of {tuple(asked.shape)} values are not zero")
        share = self._share(asked.numel(), self._experts)[self._turn % self._experts]
        self._turn += 1
        return torch.empty(share, 2, dtype=torch.long, device="meta")

    def hit(self, n_experts: int | torch.SymInt) -> int:
        """How many experts of a list tokens choose."""
        return int(n_experts)

    def sizes(self, asked: Tensor) -> list[int]:
        """The numbers of tokens per expert, as a list."""
        if asked.dim() != 1 or not self._choices:
            raise NeedsData(f"the code asks for {tuple(asked.shape)} values computed from data")
        self.assumed.add("assumed tokens spread evenly over experts")
        return self._share(self._choices, asked.shape[0])

    @staticmethod
    def _share(choices: int, experts: int) -> list[int]:
        each, rest = choices // experts, choices % experts
        return [each + (i < rest) for i in range(experts)]


class _Questions(TorchFunctionMode):
    """Questions that never reach the dispatcher: `tolist` of a tensor without data."""

    def __init__(self, ordinary: Ordinary) -> None:
        super().__init__()
        self._ordinary = ordinary

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Answer, or let torch."""
        if func is Tensor.tolist and args[0].is_meta:
            return self._ordinary.sizes(args[0])
        return func(*args, **(kwargs or {}))


class ForeignCounter(TorchDispatchMode):
    """Counts inside `with counter.watching():`. Raises `UncountedOp` and `NeedsData`.

    `ops` counts FLOPs by (role, operator, whether they make rotary tables).
    """

    def __init__(self, roles: Roles, *, last_position: int) -> None:
        TorchDispatchMode.__init__(self)
        self.roles = roles
        self.ordinary = Ordinary(last_position)
        self.ops: Counter[tuple[Any, ...]] = Counter()
        self._path: list[nn.Module] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here; asking would import the compiler

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operator (or answer its question), then charge for it."""
        if func.namespace == "prim" or func._schema.name in QUESTIONS:
            return func(*args, **(kwargs or {}))
        packet = func.overloadpacket
        if packet is aten._local_scalar_dense and args[0].is_meta:
            return self.ordinary.item(args[0])
        if packet is aten.nonzero and args[0].is_meta:
            return self.ordinary.nonzero(args[0], self._n_experts())
        out = func(*args, **(kwargs or {}))
        self.ordinary.note(func, out)
        flops = flops_of(func, args, out)
        if flops:
            self._charge(packet, args, flops)
        return out

    def _charge(self, packet: Any, args: Any, flops: int) -> None:
        role, rotary = self._where()
        self.ops[role, str(packet), rotary] += flops
        if packet is aten.bmm and role == "moe":
            self._note_idle(args[1], flops)

    def replay(self, cost: Counter[Any], layer: nn.Module) -> None:
        """Charge what a layer like this one cost when it ran."""
        self.ops.update(cost)

    def _where(self) -> tuple[str, bool]:
        # a module that was made while the model ran (BigBird's, for a short input) is its holder's
        known = (id(m) for m in reversed(self._path) if id(m) in self.roles.role)
        owner = next(known, 0)
        rotary = owner in self.roles.rotary
        return ("position" if rotary else role_name(self.roles.role.get(owner))), rotary

    def _note_idle(self, weight: Tensor, flops: int) -> None:
        """Experts that all tokens go through though each token chose a few (Llama 4)."""
        routed = self.roles.routed.get(id(weight))
        if routed is not None:
            chosen, n_experts = routed
            self.ops[IDLE] += flops - flops // n_experts * chosen

    def _n_experts(self) -> int | torch.SymInt | None:
        """The number of experts that the running module, or one around it, says it has."""
        for module in reversed(self._path[-3:]):
            for name in ("total_experts", "num_experts", "moe_num_experts"):
                value = getattr(module, name, None)
                if isinstance(value, int | torch.SymInt):
                    return value
        return None

    @contextmanager
    def watching(self) -> Iterator[ForeignCounter]:
        """Count what runs inside, on meta, knowing at each operator which module runs it."""
        handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]
        try:
            on_meta = torch.device("meta")
            with without_compiler(), torch.no_grad(), on_meta, _Questions(self.ordinary), self:
                yield self
        finally:
            self._path.clear()
            for handle in handles:
                handle.remove()

    def _enter(self, module: nn.Module, _args: tuple[Any, ...]) -> None:
        self._path.append(module)

    def _leave(self, _module: nn.Module, _args: tuple[Any, ...], _out: Any) -> None:
        self._path.pop()

    def by_role(self) -> dict[str, int]:
        """FLOPs by role, without those that make rotary tables."""
        found: dict[str, int] = dict.fromkeys(ROLES, 0)
        for (role, operator, rotary), flops in self.ops.items():
            found[role] += 0 if rotary or operator == IDLE[1] else flops
        return found

    def by_operator(self) -> dict[str, int]:
        """FLOPs by operator, without those that make rotary tables."""
        found: Counter[str] = Counter()
        for (_, operator, rotary), flops in self.ops.items():
            found[operator] += 0 if rotary or operator == IDLE[1] else flops
        return dict(found)

    def idle(self) -> int:
        """FLOPs of experts on tokens that did not choose them; they are in the other figures."""
        return self.ops[IDLE]

    def rotary(self) -> int:
        """FLOPs of the products that make the tables of rotary angles."""
        return sum(flops for (_, _, rotary), flops in self.ops.items() if rotary)
