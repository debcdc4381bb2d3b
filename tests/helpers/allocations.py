"""Real storages: what is alive after each operator, by asking each for its size."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type


class Alive(TorchDispatchMode):
    """Bytes of real storages that are alive, and the most there ever were."""

    def __init__(self, before: Alive | None = None) -> None:
        super().__init__()
        self.most = 0
        self._held: dict[int, weakref.ref[UntypedStorage]] = {**before._held} if before else {}

    @property
    def now(self) -> int:
        living = [storage for held in self._held.values() if (storage := held()) is not None]
        return sum(storage.nbytes() for storage in living)

    def add(self, tensor: Tensor) -> None:
        if not is_traceable_wrapper_subclass_type(type(tensor)):
            storage = tensor.untyped_storage()
            self._held[storage._cdata] = weakref.ref(storage)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(is_traceable_wrapper_subclass_type(kind) for kind in types):
            return NotImplemented  # what a wrapper runs on the tensors that it holds is seen
        out = func(*args, **(kwargs or {}))
        for made in out if isinstance(out, list | tuple) else (out,):
            if isinstance(made, Tensor):
                self.add(made)
        self.most = max(self.most, self.now)
        return out
