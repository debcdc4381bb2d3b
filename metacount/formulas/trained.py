"""The tensors that a training step updates, each with its shape: what optimizers depend on."""

from __future__ import annotations

from metacount.formulas import ends
from metacount.formulas.block import STORED
from metacount.formulas.covered import check_reached
from metacount.formulas.dim import Dim, is_zero
from metacount.formulas.pieces import BLOCK, merged, nominal_pieces, remembered
from metacount.formulas.tape import Weight
from metacount.frozen import frozen
from metacount.spec import ModelSpec
from metacount.spec.field import altered


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

    >>> from metacount.catalog import entry
    >>> sum(weight.params for weight in trained_tensors(entry("llama-7b").spec()).all)
    6738415616
    """
    check_reached(spec)
    return remembered(spec, "trained", lambda: _collect(spec))


def _collect(spec: ModelSpec) -> Trained:
    inner: list[tuple[Dim, Weight]] = []
    outer: list[tuple[Dim, Weight]] = []
    known: set[str] = set()
    for piece in nominal_pieces(spec):
        for weight in piece.tape.weights:
            if weight.name in piece.tape.unseen or any(is_zero(n) for n in weight.shape):
                continue
            stored = as_stored(weight)
            if weight.name.startswith(STORED):
                assert spec.last_stack.shared is not None
                inner.append((spec.last_stack.shared.n_blocks, stored))
            elif piece.place == BLOCK:
                inner.append((piece.times, stored))
            elif not (weight.name.startswith(ends.OF_MODEL) and weight.name in known):
                known.add(weight.name)
                outer.append((1, stored))
    return Trained(inner=_repeated(inner), ends=_repeated(outer))


def _repeated(found: list[tuple[Dim, Weight]]) -> list[Weight]:
    return [weight.repeated(number) for number, weight in merged(found)]


def as_stored(weight: Weight) -> Weight:
    """Return a tensor as a module stores it: experts, of which a token uses some, are one."""
    if weight.used is None:
        return altered(weight, rows="", split=(), uses=None)
    shape = (weight.times, *weight.shape)
    return Weight(role=weight.role, name=weight.name, shape=shape)
