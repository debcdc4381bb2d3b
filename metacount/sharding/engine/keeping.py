"""What autograd keeps of a forward on one rank: each distinct storage once, parameters apart."""

from __future__ import annotations

from contextlib import AbstractContextManager

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from metacount.measure.torch_private import storage_key
from metacount.sharding.engine.styles import local_part
from metacount.training.checkpointing import Unwatched
from metacount.training.memory import Ledger


class Keeping(Unwatched):
    """Follows what a module's forward saves inside `with keeping.watching():`.

    Of a checkpointed layer, it is told its inputs.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._ledger = Ledger()
        self._kept: set[int] = set()

    def watching(self) -> AbstractContextManager[None]:
        """Note what autograd saves inside the block."""
        return saved_tensors_hooks(self._pack, lambda kept: kept)

    def inputs(self, tensors: list[Tensor]) -> None:
        """Note that the inputs of a checkpointed layer are kept."""
        for tensor in tensors:
            self._keep(tensor)

    def result(self, tensors: list[Tensor]) -> None:
        """Note that the results of an operator in a checkpointed layer are kept."""
        self.inputs(tensors)

    def _pack(self, tensor: Tensor) -> Tensor:
        self._keep(tensor)
        # a node's own result would hold the node that holds it
        return tensor.detach()

    def _keep(self, tensor: Tensor) -> None:
        mine = local_part(tensor)
        # FSDP2 puts gathered parameters in the place of a rank's shares, so they are looked up now
        owned = {storage_key(local_part(p).untyped_storage()) for p in self._model.parameters()}
        if storage_key(mine.untyped_storage()) not in owned:
            self._kept.add(self._ledger.number(mine))

    def bytes(self) -> int:
        """Count the bytes of what was saved and is alive."""
        return self._ledger.sum(self._kept & self._ledger.living())
