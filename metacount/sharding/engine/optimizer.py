"""Steps torch's own optimizers on meta, to see how much each keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from metacount.tensors import tensor_bytes

# Those that treat each value alike: what they keep of a share is a share of what they keep.
OPTIMIZERS: dict[str, Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "adagrad": torch.optim.Adagrad,
    "sgd": torch.optim.SGD,
    "sgd-momentum": lambda parameters: torch.optim.SGD(parameters, momentum=0.9),
}


def state_bytes(optimizer: str, sizes: Sequence[int], dtype: torch.dtype) -> int:
    """Bytes of the state that an optimizer keeps for tensors of these many values."""
    parameters = [nn.Parameter(torch.empty(n, dtype=dtype, device="meta")) for n in sizes]
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter)
    made = OPTIMIZERS[optimizer](parameters)
    made.step()
    return tensor_bytes(states(made))


def states(optimizer: torch.optim.Optimizer) -> Iterable[Tensor]:
    """Every tensor that an optimizer keeps."""
    for each in optimizer.state.values():
        yield from (value for value in each.values() if isinstance(value, Tensor))
