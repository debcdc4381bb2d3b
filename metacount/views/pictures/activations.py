"""Activations and their derivatives beside each other, from points that were executed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from metacount.errors import InputError
from metacount.views.pictures.picture import COLOURS, new_figure
from metacount.views.pictures.words import say

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from metacount.measure.activations import Curve

JUMP = 0.25  # between two neighbours: a derivative that has a step there, not a slope
LINES = ("-", "--", "-.", ":")


def activations_figure(curves: Sequence[Curve], lang: str) -> Figure:
    """Draw y on the left, dy/dx on the right; a step of a derivative is left open."""
    if len(curves) > len(COLOURS):
        raise InputError(f"{len(curves)} activations cannot be told apart, at most {len(COLOURS)}")
    figure = new_figure(10, 4.2)
    left, right = figure.subplots(1, 2)
    for i, curve in enumerate(curves):
        look = {"color": COLOURS[i], "linestyle": LINES[i % len(LINES)], "linewidth": 1.7}
        left.plot(curve.x, curve.y, label=curve.name, **look)
        right.plot(curve.x, _with_gaps(curve.derivative), **look)
    for axes, name in ((left, "activation"), (right, "derivative")):
        axes.set_title(say(name, lang), loc="left")
        axes.axhline(0, color="#888888", linewidth=0.7, zorder=0)
        axes.axvline(0, color="#888888", linewidth=0.7, zorder=0)
        axes.grid()
        axes.set_xlabel("x")
        axes.set_xlim(curves[0].x[0], curves[0].x[-1])
    left.set_ylim(-1, max(2.0, min(4.0, max(max(curve.y) for curve in curves))))
    right.set_ylim(-0.4, 2)
    figure.legend(loc="outside upper center", ncols=min(len(curves), 7))
    return figure


def _with_gaps(values: Sequence[float]) -> list[float]:
    """Copy the values, with NaN after a step so that nothing is drawn across it."""
    found = list(values)
    for i in range(1, len(values)):
        if abs(values[i] - values[i - 1]) > JUMP:
            found[i] = float("nan")
    return found
