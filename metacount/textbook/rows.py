"""The formula of every row of a model's tree, by the row's path in the model.

A row is a tensor or a module; its formula is the sum of the tensors below its path. Every form is
of one copy: of one block, not of all. Sizes are ints or symbols.

>>> from metacount.catalog import entry
>>> rows = Rows(entry("mixtral-8x7b").spec())
>>> rows.form("decoder.layers.31.self_attn.q_proj"), rows.form("decoder.layers.0.mlp")
(16777216, 1409318912)
>>> rows.form("decoder.layers.0.mlp.experts.down_proj")
469762048
>>> Rows(entry("mixtral-8x7b").spec(), symbols=True).form("decoder.layers.0.mlp.gate")
E*d
"""

from __future__ import annotations

from metacount.formulas import ends, model
from metacount.formulas.dim import Dim
from metacount.formulas.pieces import (
    BLOCK,
    LAYERS,
    nominal_pieces,
    stack_name,
    weights_of_pieces,
)
from metacount.formulas.step import tensors_by_path
from metacount.formulas.tape import params_of
from metacount.spec import ModelSpec, legend


def sizes_of(spec: ModelSpec) -> dict[str, int]:
    """Return the sizes that letters stand for: those that are 0 or None are structure."""
    sizes = {term.name: getattr(spec, term.name) for term in legend.MODEL_TERMS}
    if spec.moe_every == 1:
        sizes.pop("moe_every")
    return {name: size for name, size in sizes.items() if size}


def in_symbols(spec: ModelSpec) -> tuple[ModelSpec, dict[str, int]]:
    """Put a letter for each size of a model; return the letters' numbers as well."""
    sizes = sizes_of(spec)
    letters = legend.sympy_symbols(sizes)
    numbers = {letters[name].name: size for name, size in sizes.items()}
    return spec.substituted(**letters), numbers


class Rows:
    """The forms of one model's rows, in numbers or, with `symbols`, in letters."""

    def __init__(self, spec: ModelSpec, *, symbols: bool = False) -> None:
        self.spec, self.numbers = in_symbols(spec) if symbols else (spec, {})
        self._below: dict[str, list[Dim]] = {}
        for path, weight in tensors_by_path(self.spec, spec).items():
            steps = path.split(".")
            for n in range(1, len(steps) + 1):
                self._below.setdefault(".".join(steps[:n]), []).append(weight.size)
        if spec.head is not None and spec.head.tied:  # a tied head has no tensor of its own
            self._below |= {ends.HEAD: [0], f"{ends.HEAD}.weight": [0]}

    def form(self, path: str) -> Dim:
        """Count the parameters of the module or tensor at `path`, of one copy.

        Raises `KeyError` for a path that a model of this spec does not have.
        """
        if not path:
            return model.params(self.spec)
        for stack in self.spec.stacks:
            name = stack_name(self.spec, stack)
            if path in (name, f"{name}.{LAYERS}"):
                return self._of_stack(name == "encoder", blocks_only=path != name)
        return sum(self._below[path])

    def _of_stack(self, of_encoder: bool, *, blocks_only: bool) -> Dim:
        """Count the values of a stack, or of its blocks, by how many there are of each kind."""
        second = of_encoder and self.spec.has_encoder
        pieces = [
            piece
            for piece in nominal_pieces(self.spec)
            if piece.of_encoder == second and (piece.place == BLOCK or not blocks_only)
        ]
        weights = weights_of_pieces(self.spec, pieces)
        if blocks_only:
            return params_of(weight for weight in weights if weight.uses is None)
        inside = ("embed_proj.", "embed_queries.")
        return params_of(
            weight
            for weight in weights
            if not weight.name.startswith(ends.OF_MODEL) or weight.name.startswith(inside)
        )
