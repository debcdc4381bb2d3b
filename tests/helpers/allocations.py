"""Real storages, followed by their addresses: what is alive after each operator."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type


class Alive(TorchDispatchMode):
    """Bytes of real storages that are alive, and the most there ever were."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self.known: set[int] = set()

    def add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
        if size == 0 or address in self.known:
            return
        self.known.add(address)
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self.gone, address, size)

    def gone(self, address: int, size: int) -> None:
        self.known.remove(address)
        self.now -= size

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(is_traceable_wrapper_subclass_type(kind) for kind in types):
            return NotImplemented  # what a wrapper runs on the tensors that it holds is seen
        out = func(*args, **(kwargs or {}))
        for made in out if isinstance(out, list | tuple) else (out,):
            if isinstance(made, Tensor):
                self.add(made)
        return out
