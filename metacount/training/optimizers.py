"""Real optimizers over the trained parameters, with float32 master weights where asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypedDict

import torch
from torch import Tensor, nn

from metacount.errors import InputError
from metacount.measure.theirs import silent
from metacount.measure.torch_private import step_of, without_compiler
from metacount.training.setup import Setup


def adam8bit(updated: Iterable[nn.Parameter], rate: float) -> torch.optim.Optimizer:
    """Make torchao's AdamW8bit; raise `InputError` where torchao is not installed."""
    try:
        with silent():
            from torchao.optim import AdamW8bit
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and str(error.name).startswith("torchao")
        why = "is not installed" if missing else "cannot be imported"
        raise InputError(
            f"adam8bit is AdamW8bit of the library torchao, which {why}; "
            "pip install 'metacount[adam8bit]', or choose adamw"
        ) from None
    made = AdamW8bit(list(updated), lr=rate)
    assert isinstance(made, torch.optim.Optimizer)
    return made


def torchao_version() -> str:
    """Return the version of torchao that is installed."""
    from importlib.metadata import version

    return version("torchao")


@contextmanager
def uncompiled() -> Iterator[None]:
    """Run code that asks to be compiled as it is written, not compiled."""
    with torch.compiler.set_stance("force_eager"):
        yield


def is_wrapper(kind: type) -> bool:
    """Tell whether a class's tensors hold their values in other tensors, and can say in which."""
    return hasattr(kind, "__tensor_flatten__")


def inner_tensors(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that hold a tensor's values: itself, or those that it is a wrapper of."""
    flatten: Callable[[], tuple[list[str], object]] | None
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        yield name, tensor
        return
    for part in flatten()[0]:
        yield from inner_tensors(f"{name}.{part}", getattr(tensor, part))


def kept_states(
    optimizer: torch.optim.Optimizer, part: Callable[[Tensor], Tensor] = lambda tensor: tensor
) -> Iterator[tuple[Tensor, str, Tensor]]:
    """Yield the tensors that an optimizer keeps: of which parameter, its own name, the tensor.

    Of a wrapper those that hold its values: `exp_avg.codes`. `part` gives a rank's of a tensor.
    """
    for parameter, states in optimizer.state.items():
        for name, value in states.items():
            if isinstance(value, Tensor):
                for path, tensor in inner_tensors(name, part(value)):
                    yield parameter, path, tensor


RATE = 1e-3  # any: no size depends on it
ADAM8BIT = "adam8bit"


class Updates:
    """The optimizer of one model: its state, the master weights, and a step."""

    def __init__(self, setup: Setup, trained: dict[str, nn.Parameter], inner: set[str]) -> None:
        """Take parameters by name, `trained`; `inner` names those of layers, for Muon."""
        self._trained = trained
        self._master: dict[str, nn.Parameter] = {}
        if setup.master_weights:
            self._master = {
                name: nn.Parameter(p.detach().to(torch.float32)) for name, p in trained.items()
            }
        updated = self._master or trained
        matrices = [p for name, p in updated.items() if name in inner and p.dim() == 2]
        with without_compiler():
            self.optimizers = made(setup, list(updated.values()), matrices)
        self._compiled = setup.optimizer == ADAM8BIT

    def master_tensors(self) -> list[Tensor]:
        """Return the float32 copies of parameters that the optimizer updates."""
        return list(self._master.values())

    def state(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors that the optimizer keeps between steps, each under its own name."""
        for _, name, tensor in self.state_of_each():
            yield name, tensor

    def state_of_each(self) -> Iterator[tuple[str, str, Tensor]]:
        """Yield what `state` yields, each with the name of its parameter in front."""
        names = {id(p): name for name, p in (self._master or self._trained).items()}
        for optimizer in self.optimizers:
            for p, name, tensor in kept_states(optimizer):
                yield names[id(p)], name, tensor

    def prepare(self) -> None:
        """Make the state that a first step makes, by a step with zero gradients."""
        for p in (self._master or self._trained).values():
            p.grad = torch.zeros_like(p)
        self._update()

    def _update(self) -> None:
        with uncompiled() if self._compiled else without_compiler():
            for optimizer in self.optimizers:
                if self._compiled:
                    optimizer.step()
                else:
                    step_of(optimizer)
                optimizer.zero_grad(set_to_none=True)

    def drop(self, name: str) -> list[Tensor]:
        """Train a parameter no more; return what was prepared for it."""
        p = (self._master or self._trained)[name]
        tensors = [t for each in self.optimizers for q, _, t in kept_states(each) if q is p]
        for optimizer in self.optimizers:
            optimizer.state.pop(p, None)
        del self._trained[name]
        return [*tensors, *([self._master.pop(name)] if self._master else [])]

    def step(self) -> None:
        """Update the parameters by their gradients, and drop these."""
        for name, master in self._master.items():
            gradient = self._trained[name].grad
            if gradient is not None:
                master.grad = gradient.to(torch.float32)
            # what was copied is dropped at once; what is float32 already is not copied
            self._trained[name].grad = gradient = None
        self._update()
        with torch.no_grad():
            for name, master in self._master.items():
                self._trained[name].copy_(master)


class Way(TypedDict):
    """What the optimizers of `torch.optim` are told alike."""

    lr: float
    foreach: bool | None


def made(
    setup: Setup, updated: list[nn.Parameter], matrices: list[nn.Parameter]
) -> list[torch.optim.Optimizer]:
    """Make the optimizers of `torch.optim` that a setup means, or torchao's."""
    if not updated:
        raise InputError("nothing is trained: no parameter is left that is not frozen")
    if setup.optimizer == ADAM8BIT:
        return [adam8bit(updated, RATE)]
    way: Way = {"lr": RATE, "foreach": setup.foreach}
    if setup.optimizer == "adamw":
        return [torch.optim.AdamW(updated, **way)]
    if setup.optimizer == "adagrad":
        return [torch.optim.Adagrad(updated, **way)]
    if setup.optimizer == "adafactor":
        return [torch.optim.Adafactor(updated, **way)]
    if setup.optimizer == "muon":
        muon = getattr(torch.optim, "Muon", None)
        if muon is None:
            raise InputError(f"this torch ({torch.__version__}) has no Muon: choose adamw")
        chosen = {id(p) for p in matrices}
        rest = [p for p in updated if id(p) not in chosen]
        optimizers = [muon(matrices, lr=RATE)] if matrices else []
        return [*optimizers, torch.optim.AdamW(rest, **way)] if rest else optimizers
    momentum = 0.9 if setup.optimizer == "sgd-momentum" else 0.0
    return [torch.optim.SGD(updated, momentum=momentum, **way)]
