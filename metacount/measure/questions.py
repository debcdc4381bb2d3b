"""Answers what code asks of data, where meta tensors hold none.

The answer is that of an ordinary run: full sequences without padding, no special tokens, tokens
spread evenly over experts. A question that has no such answer is an error, never a guess.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from metacount.measure.torch_private import unwatched

if TYPE_CHECKING:
    from collections.abc import Callable

    from metacount.measure.torch_private import OpOverload

aten = torch.ops.aten
ON_META = re.compile(r"(?:\b|_)meta\b", re.IGNORECASE)


class NeedsData(RuntimeError):
    """The code asks for a value that depends on data, and no ordinary run answers it."""


def lacks_data(error: Exception) -> bool:
    """Tell whether torch says that a tensor on meta has no values, or an operator needs them.

    A class that raises `NotImplementedError` for reasons of its own does not speak of meta.

    >>> lacks_data(NotImplementedError("Cannot copy out of meta tensor; no data!"))
    True
    >>> lacks_data(NotImplementedError("the metadata have no such mode"))
    False
    """
    # NotImplementedError is a RuntimeError
    return isinstance(error, RuntimeError) and bool(ON_META.search(str(error)))


class Ordinary:
    """What an ordinary run answers when code asks for a value.

    `any` is False (nothing is padded or special) and `all` is True (the mask is full). Tokens
    choose experts evenly: of a list of E experts all are hit, each by its share of the choices,
    and none of those that compute nothing.
    The largest of any positions is the last one.
    """

    def __init__(self, last_position: int) -> None:
        self._last = last_position
        # the tensor as well, weakly: ids are used again, and nobody is to be kept alive
        self._said: dict[int, tuple[ref[Tensor], int]] = {}
        self._choices = 0
        self._experts = self._turn = 0
        self.assumed: set[str] = set()

    def note(self, func: OpOverload, out: Any) -> None:
        """Remember what a later question may be about."""
        packet = func.overloadpacket
        if packet in (aten.any, aten.all, aten._is_all_true):
            self._said[id(out)] = (ref(out), packet is not aten.any)
        elif packet is aten.max and isinstance(out, Tensor) and not out.is_floating_point():
            self._said[id(out)] = (ref(out), self._last)
        elif packet is aten.topk:
            self._choices = out[0].numel()

    def item(self, asked: Tensor) -> object:
        """Return the value that an ordinary run would have in a tensor of one value."""
        known, said = self._said.get(id(asked), (None, None))
        if known is None or known() is not asked:
            raise NeedsData(f"the code asks for the value of a {asked.dtype} computed from data")
        self.assumed.add("assumed full sequences without padding")
        return said

    def nonzero(
        self, asked: Tensor, n_experts: int | torch.SymInt | None, n_zero: int | torch.SymInt = 0
    ) -> Tensor:
        """Return the indices of what is not zero:
        all experts of a list, or one expert's share of choices.

        A list one longer than the experts has a last place for no expert, which nothing chooses.
        Nor does anything choose one of `n_zero` experts behind the others, which compute nothing:
        what runs is the most that tokens can ask for.
        """
        if asked.dim() == 1 and n_experts and asked.shape[0] - n_experts in (n_zero, 0, 1):
            self._experts, self._turn = self.hit(n_experts), 0
            none = " that compute, none over zero experts" if n_zero else ""
            self.assumed.add(f"assumed tokens spread evenly over experts{none}")
            with unwatched():
                # real numbers: the code makes names and places of them
                return torch.arange(self._experts, device="cpu")[:, None]
        if asked.dim() != 2 or not self._experts:
            raise NeedsData(f"the code asks which of {tuple(asked.shape)} values are not zero")
        share = self._share(asked.numel(), self._experts)[self._turn % self._experts]
        self._turn += 1
        return torch.empty(share, 2, dtype=torch.long, device="meta")

    def hit(self, n_experts: int | torch.SymInt) -> int:
        """Count the experts of a list that tokens choose."""
        return int(n_experts)

    def sizes(self, asked: Tensor) -> list[int]:
        """List the numbers of tokens per expert."""
        if asked.dim() != 1 or not self._choices:
            raise NeedsData(f"the code asks for {tuple(asked.shape)} values computed from data")
        self.assumed.add("assumed tokens spread evenly over experts")
        return self._share(self._choices, asked.shape[0])

    @staticmethod
    def _share(choices: int, experts: int) -> list[int]:
        each, rest = choices // experts, choices % experts
        return [each + (i < rest) for i in range(experts)]


class ListQuestions(TorchFunctionMode):
    """Questions that never reach the dispatcher: `tolist` of a tensor without data."""

    def __init__(self, ordinary: Ordinary) -> None:
        super().__init__()
        self._ordinary = ordinary

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        """Answer `tolist` of a tensor on meta, or let torch answer."""
        if func is Tensor.tolist and args[0].is_meta:
            return self._ordinary.sizes(args[0])
        return func(*args, **(kwargs or {}))
