"""Forward and backward of a feed-forward block in one call, and the float64 gradients it must give.

Of the gradients of the weights, which are as large as the weights, some hidden units are compared:
a unit is a row of the matrices that lead to it and a column of the one that leads away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from metacount.bench import reference
from metacount.bench.layers.case import Expected, Inputs, Pick, Reference
from metacount.bench.observe import rows_to_check

if TYPE_CHECKING:
    from metacount.bench.layers.case import Output

UNITS = 8  # hidden units whose weights' gradients are compared


class ForwardBackward(nn.Module):
    """A layer's output and the gradients of its input and weights, for a given output gradient."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.weights = list(layer.parameters())
        for weight in self.weights:
            weight.requires_grad_(True)

    def compiled(self, mode: str) -> ForwardBackward:
        """Return another module with the layer under torch.compile, its backward with it."""
        other = ForwardBackward(self.layer)
        layer: object = torch.compile(self.layer, dynamic=False, fullgraph=True, mode=mode)
        assert isinstance(layer, nn.Module)  # as a module's compilation is, whatever its type says
        other.layer = layer
        return other

    def forward(self, x_ND: Tensor, grad_ND: Tensor) -> tuple[Tensor, ...]:
        """Compute the output, the input's gradient and each weight's from [N, D] and [N, D]."""
        with torch.enable_grad():
            x = x_ND.detach().requires_grad_(True)
            y = self.layer(x)
            found = torch.autograd.grad(y, (x, *self.weights), grad_ND)
        return (y.detach(), *found)


def units_of(d_ff: int) -> list[int]:
    """Choose the hidden units that are compared, spread evenly."""
    return rows_to_check(d_ff, UNITS)


def picks(*names: str) -> Pick:
    """Make a pick: rows of output and input gradient, then some units of each weight's gradient.

    `names` are the weights in order: up, gate, down, or gate_up for both in one matrix.
    """

    def pick(out: Output, rows: list[int]) -> Expected:
        y, dx, *weights = out
        units = units_of(weights[-1].shape[-1])
        found = [y[rows], dx[rows]]
        for name, grad in zip(names, weights, strict=True):
            if name == "gate_up":
                gate, up = grad.chunk(2)
                found += [gate[units], up[units]]
            else:
                found.append(grad[:, units].T if name == "down" else grad[units])
        return found

    return pick


def plain_gradients(up_MD: Tensor, down_DM: Tensor) -> Reference:
    """Return the reference of down·gelu(up·x): output and gradients, in float64."""

    def rows_of(inputs: Inputs, rows: list[int]) -> Expected:
        x, grad = (t.double() for t in inputs)
        up, down = up_MD.detach().double(), down_DM.detach().double()
        units = units_of(len(up))
        hidden = x[rows] @ up.T
        d_hidden = (grad[rows] @ down) * reference.gelu_slope(hidden)
        unit_in = x @ up[units].T
        d_unit = (grad @ down[:, units]) * reference.gelu_slope(unit_in)
        return [
            reference.gelu(hidden) @ down.T,
            d_hidden @ up,
            d_unit.T @ x,
            reference.gelu(unit_in).T @ grad,
        ]

    return rows_of


def gated_gradients(gate_MD: Tensor, up_MD: Tensor, down_DM: Tensor) -> Reference:
    """Return the reference of down·(silu(gate·x)·(up·x)): output and gradients, in float64."""

    def rows_of(inputs: Inputs, rows: list[int]) -> Expected:
        x, grad = (t.double() for t in inputs)
        gate, up, down = (w.detach().double() for w in (gate_MD, up_MD, down_DM))
        units = units_of(len(up))

        def inside(
            tokens: list[int] | slice, chosen: list[int] | slice
        ) -> tuple[Tensor, Tensor, Tensor]:
            a, b = x[tokens] @ gate[chosen].T, x[tokens] @ up[chosen].T
            d = grad[tokens] @ down[:, chosen]
            return d * b * reference.silu_slope(a), d * reference.silu(a), reference.silu(a) * b

        every = slice(None)
        d_gate, d_up, hidden = inside(rows, every)
        unit_gate, unit_up, unit_hidden = inside(every, units)
        return [
            hidden @ down.T,
            d_gate @ gate + d_up @ up,
            unit_gate.T @ x,
            unit_up.T @ x,
            unit_hidden.T @ grad,
        ]

    return rows_of
