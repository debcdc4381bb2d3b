"""Puts `torch.utils.checkpoint` around the layers of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import (
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from metacount.errors import InputError
from metacount.measure.operators import multiplies
from metacount.measure.torch_private import tree_flatten, tree_leaves, tree_unflatten

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

    Raises `InputError` where somebody wants to know what selective checkpointing keeps and torch
    does not say: 2.11 asks for a choice before it has the result.
    """
    if way == "none":
        yield
        return
    says = hasattr(SelectiveCheckpointContext(is_recompute=False), "op_output")
    if way == "selective" and not says and type(watch) is not Unwatched:
        raise InputError(
            f"checkpointing selective cannot be measured with torch {torch.__version__}, which "
            "does not say what an operator gave: choose full or none, or install torch 2.13"
        )
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

    def policy(
        context: SelectiveCheckpointContext, func: OpOverload, *args: object, **kwargs: object
    ) -> bool:
        keeps = multiplies(func)
        if keeps and type(watch) is not Unwatched:
            watch.result([t for t in tree_leaves(context.op_output) if isinstance(t, Tensor)])
        return keeps

    def contexts() -> tuple[AbstractContextManager[object], AbstractContextManager[object]]:
        if not selective:
            return nullcontext(), _all(watch.recomputing(layer), modes())
        first, again = create_selective_checkpoint_contexts(policy)
        return first, _all(watch.recomputing(layer), modes(), again)

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
