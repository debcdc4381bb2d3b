"""Puts `torch.utils.checkpoint` around the layers of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Protocol

from torch import Tensor, nn
from torch.utils.checkpoint import (
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from metacount.measure.operators import multiplies
from metacount.measure.torch_private import (
    DispatchMode,
    tree_flatten,
    tree_leaves,
    tree_unflatten,
)

if TYPE_CHECKING:
    from metacount.measure.torch_private import OpOverload


class Watch(Protocol):
    """Who wants to know what checkpointing keeps, and when it runs a layer again."""

    def inputs(self, tensors: list[Tensor]) -> None:
        """Note the inputs of a layer, which are kept."""

    def result(self, tensors: list[Tensor]) -> None:
        """Note the results of an operator, which are kept."""

    def recomputing(self, layer: nn.Module) -> AbstractContextManager[None]:
        """Mark what runs inside as a layer's forward run again."""


class Unwatched:
    """Nobody wants to know."""

    def inputs(self, tensors: list[Tensor]) -> None:
        """Do nothing."""

    def result(self, tensors: list[Tensor]) -> None:
        """Do nothing."""

    def recomputing(self, layer: nn.Module) -> AbstractContextManager[None]:
        """Return a context that does nothing."""
        return nullcontext()


class _Results(DispatchMode):
    """Says what the operators gave whose results selective checkpointing keeps."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Iterable[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        """Run the operator, then say what it gave."""
        out = func(*args, **(kwargs or {}))
        if multiplies(func):
            self._watch.result([leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)])
        return out


def _keeps(
    _: SelectiveCheckpointContext, func: OpOverload, *args: object, **kwargs: object
) -> bool:
    """Choose the results that selective checkpointing keeps: those of matrix products."""
    return multiplies(func)


def outermost_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the children of each `ModuleList` that is in no layer, by name; of a list in a list
    its own.
    """
    found: dict[str, nn.Module] = {}
    for path, module in model.named_modules():
        inside = any(path.startswith(f"{layer}.") for layer in found)
        if isinstance(module, nn.ModuleList) and not inside:
            found.pop(path, None)  # a list has no forward that could be run again
            found |= {f"{path}.{n}" if path else n: child for n, child in module.named_children()}
    return found


Modes = Callable[[], AbstractContextManager[None]]


@contextmanager
def checkpointed(layers: list[nn.Module], way: str, watch: Watch, modes: Modes) -> Iterator[None]:
    """Make layers keep what `way` (none, selective, full) says and recompute the rest; undo after.

    `modes` are those that a forward runs in: the backward, which runs it again, has none.
    """
    if way == "none":
        yield
        return
    before = {id(layer): vars(layer).get("forward") for layer in layers}
    for layer in layers:
        vars(layer)["forward"] = _checkpointed(layer, way == "selective", watch, modes)
    try:
        yield
    finally:
        for layer in layers:
            own = before[id(layer)]
            if own is None:
                del vars(layer)["forward"]
            else:
                vars(layer)["forward"] = own


def _checkpointed(
    layer: nn.Module, selective: bool, watch: Watch, modes: Modes
) -> Callable[..., object]:
    forward = layer.forward

    def contexts() -> tuple[AbstractContextManager[object], AbstractContextManager[object]]:
        if not selective:
            return nullcontext(), _all(watch.recomputing(layer), modes())
        first, again = create_selective_checkpoint_contexts(_keeps)
        asked = () if type(watch) is Unwatched else (_Results(watch),)
        return _all(first, *asked), _all(watch.recomputing(layer), modes(), again)

    def run(*args: object, **kwargs: object) -> object:
        leaves, shape = tree_flatten((args, kwargs))
        watch.inputs([leaf for leaf in leaves if isinstance(leaf, Tensor)])

        def again(*given: object) -> object:
            plain, named = tree_unflatten(given, shape)
            return forward(*plain, **named)

        # our models draw nothing at random, and on meta nobody does: no generator has a state
        return checkpoint(
            again, *leaves, use_reentrant=False, preserve_rng_state=False, context_fn=contexts
        )

    return run


@contextmanager
def _all(*contexts: AbstractContextManager[object]) -> Iterator[None]:
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield
