"""Steps torch's own optimizers on meta, to see how much each keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from metacount.measure.adam8bit import adam8bit, inner_tensors, uncompiled
from metacount.sharding.engine.styles import local_part
from metacount.tensors import tensor_bytes
from metacount.training.optimizers import ADAM8BIT, RATE

# Those that need no more than a rank's own share of a tensor to know what they keep of it.
OPTIMIZERS: dict[str, Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "adagrad": torch.optim.Adagrad,
    "sgd": torch.optim.SGD,
    "sgd-momentum": lambda parameters: torch.optim.SGD(parameters, momentum=0.9),
    ADAM8BIT: lambda parameters: adam8bit(parameters, RATE),
}


def state_bytes(optimizer: str, sizes: Sequence[int], dtype: torch.dtype) -> int:
    """Count the bytes of the state that an optimizer keeps for tensors of these many values."""
    parameters = [nn.Parameter(torch.empty(n, dtype=dtype, device="meta")) for n in sizes]
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter)
    return tensor_bytes(states(stepped(optimizer, parameters)))


def stepped(optimizer: str, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Make an optimizer and step it once, as it is written, by the gradients that are there."""
    made = OPTIMIZERS[optimizer](parameters)
    with uncompiled() if optimizer == ADAM8BIT else nullcontext():
        made.step()
    return made


def states(optimizer: torch.optim.Optimizer) -> Iterable[Tensor]:
    """Yield every tensor that an optimizer keeps on this rank, of a wrapper those inside."""
    for each in optimizer.state.values():
        for name, value in each.items():
            if isinstance(value, Tensor):
                for _, tensor in inner_tensors(name, local_part(value)):
                    yield tensor
