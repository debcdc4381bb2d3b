"""The tensors that a training step updates, each with its shape: what optimizers depend on."""

from __future__ import annotations

from metacount.formulas import ends, indexer, stack
from metacount.formulas.covered import check_reached
from metacount.formulas.dim import Dim, is_zero
from metacount.formulas.terms import Weight
from metacount.frozen import frozen
from metacount.spec import ModelSpec

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Iterable

HEAD = "lm_head"
# a linear layer though no token meets it: what it multiplies is a product of positions
OF_POSITIONS = "self_attn.relative.r_proj.weight"
NOT_SEEN = "pooler."  # the loss does not see it


@frozen
class Trained:
    """Tensors of a model, those `inner` to its blocks apart from its `ends`."""

    inner: list[Weight]
    ends: list[Weight]

    @property
    def all(self) -> list[Weight]:
        """Both."""
        return [*self.inner, *self.ends]


def trained_tensors(spec: ModelSpec) -> Trained:
    """List every tensor that the loss has a gradient of: all but a pooler's and an indexer's.

    An indexer chooses positions, and no gradient passes a choice. Tied ones stand once, experts in
    one tensor [E, out, in].

    Returns: tensors with shapes; their values sum to the model's parameters, less those two's.
    Source: the terms of `stack.in_blocks`, `stack.shared_weights`, `ends.stack_end_weights` and
        `ends.end_weights`.

    >>> from metacount.catalog import entry
    >>> sum(weight.params for weight in trained_tensors(entry("llama-7b").spec()).all)
    6738415616
    """
    check_reached(spec)
    inner: list[Weight] = []
    outer: list[Weight] = []
    for n_layers, cross in stack.stacks(spec):
        for times, weights in stack.in_blocks(spec, n_layers, cross=cross):
            inner += _stored(weights, times)
        inner += _stored(stack.shared_weights(spec, n_layers), 1)
        outer += _stored(ends.stack_end_weights(spec), 1)
    return Trained(inner=inner, ends=[*outer, *_stored(ends.end_weights(spec), 1)])


def _stored(weights: Iterable[Weight], times: Dim) -> list[Weight]:
    """List the tensors that have a gradient, `times` as many, as a module stores them."""
    return [_as_stored(w, times) for w in weights if _has_gradient(w)]


def _has_gradient(weight: Weight) -> bool:
    without = (f"{indexer.BLOCK}.", NOT_SEEN)
    return not weight.name.startswith(without) and not any(is_zero(n) for n in weight.shape)


def _as_stored(weight: Weight, times: Dim) -> Weight:
    shape, copies = weight.shape, times * weight.times
    if weight.used is not None:  # a token uses some of them: experts, which are one tensor
        shape, copies = (weight.times, *shape), times
    return Weight(role=weight.role, name=weight.name, shape=shape, times=copies)
