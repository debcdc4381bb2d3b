"""Records every collective that runs: its kind, its group, and the bytes of its tensor."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor
from torch.distributed.tensor import DTensor

from metacount.measure.torch_private import DispatchMode, group_of, operator_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from metacount.measure.torch_private import OpOverload

# torch's operator -> what it is, and which argument is the whole tensor: the one that is larger
# where a group gathers or scatters
KINDS = {
    "c10d::allreduce_": "all-reduce",
    "_c10d_functional::all_reduce": "all-reduce",
    "_c10d_functional::all_reduce_": "all-reduce",
    "c10d::_allgather_base_": "all-gather",
    "c10d::allgather_": "all-gather",
    "_c10d_functional::all_gather_into_tensor": "all-gather",
    "_c10d_functional::all_gather_into_tensor_out": "all-gather",
    "c10d::_reduce_scatter_base_": "reduce-scatter",
    "_c10d_functional::reduce_scatter_tensor": "reduce-scatter",
    "c10d::alltoall_base_": "all-to-all",
    "_c10d_functional::all_to_all_single": "all-to-all",
    "_c10d_functional_autograd::all_to_all_single": "all-to-all",
    "c10d::broadcast_": "broadcast",
    "c10d::send": "send",
    "c10d::recv_": "receive",
}
LOCAL = frozenset(
    ["_c10d_functional::wait_tensor", "_c10d_functional::_wrap_tensor_autograd", "c10d::barrier"]
)
NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")


class UnknownCollective(LookupError):
    """A communication of torch's that has no row in `KINDS`: it would be counted as nothing."""


class Seen(NamedTuple):
    """A collective: what it is, the group it runs in, the bytes of the whole tensor.

    From one to each other, it is the tensor that this rank sends.
    """

    kind: str
    group: str
    n_bytes: int


class Traffic(DispatchMode):
    """Records collectives inside `with`; `groups` says what each process group is for."""

    def __init__(self, groups: dict[str, str]) -> None:
        super().__init__()
        self._groups = groups
        self.seen: Counter[Seen] = Counter()

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: tuple[type, ...],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        """Run the operator, then write it down if it communicates."""
        if DTensor in types:
            return NotImplemented  # what it does with each rank's part comes here again
        out = func(*args, **(kwargs or {}))
        if func.namespace in NAMESPACES:
            self._note(operator_name(func), args, out)
        return out

    def taken(self) -> Counter[Seen]:
        """Take what was seen since the last call."""
        found, self.seen = self.seen, Counter()
        return found

    def _note(self, name: str, args: tuple[object, ...], out: object) -> None:
        if name in LOCAL:
            return
        if name not in KINDS:
            raise UnknownCollective(f"{name} communicates, and is not known here")
        if KINDS[name] == "all-to-all":
            whole = _bytes(args)[2 if name == "c10d::alltoall_base_" else 1]
        else:
            whole = max(_bytes((*args, out)))
        group = group_of(args, self._groups)
        said, kind = self._groups.get(group, "other"), KINDS[name]
        if said == "cp" and kind == "all-to-all" and _to_one(args):
            kind = "permute"
        self.seen[Seen(kind, said, whole)] += 1


def _to_one(args: Iterable[object]) -> bool:
    """Tell whether what could go to all goes to one rank, which is how torch permutes."""
    splits = [each for each in args if isinstance(each, list | tuple)]
    return bool(splits) and all(sum(n != 0 for n in split) == 1 for split in splits)


def _bytes(values: Iterable[object]) -> list[int]:
    """Count the bytes of each tensor in arguments and results,
    those of a list of tensors together.
    """
    found = [0]
    for value in values:
        if isinstance(value, Tensor):
            found.append(value.numel() * value.element_size())
        elif isinstance(value, list | tuple):
            found.append(sum(_bytes(value)))
    return found
