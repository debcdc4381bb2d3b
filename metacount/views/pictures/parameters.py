"""Where the parameters are: stacked bars, absolute and in percent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from metacount import units
from metacount.views.pictures.picture import COLOURS, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEAST_LABELLED = 0.06  # of a bar; a smaller part has no room for its percentage
DARK = ("#0072B2", "#009E73", "#D55E00", "#555555")  # white text reads better on these
UNITS = (("B", 10**9), ("M", 10**6), ("K", 10**3), ("", 1))


def parameters_figure(models: Sequence[tuple[str, dict[str, int]]]) -> Figure:
    """One bar for each (name, parameters by role): absolute on the left, percent on the right."""
    figure = new_figure(10, 1.3 + 0.5 * max(2, len(models)))
    absolute, percent = figure.subplots(1, 2, sharey=True)
    roles = [role for role in models[0][1] if any(parts.get(role) for _, parts in models)]
    totals = [sum(parts.values()) for _, parts in models]
    letter, unit = next((u for u in UNITS if max(totals) >= u[1]), UNITS[-1])
    places = range(len(models))
    lefts = [0] * len(models)
    for role, colour in zip(roles, COLOURS, strict=False):
        values = [parts.get(role, 0) for _, parts in models]
        absolute.barh(places, [v / unit for v in values], left=[x / unit for x in lefts],
                      color=colour, label=role, height=0.66)  # fmt: skip
        shares = [100 * v / total for v, total in zip(values, totals, strict=True)]
        starts = [100 * x / total for x, total in zip(lefts, totals, strict=True)]
        percent.barh(places, shares, left=starts, color=colour, height=0.66)
        for place, start, share in zip(places, starts, shares, strict=True):
            if share >= 100 * LEAST_LABELLED:
                said = ">99 %" if 99.5 <= share < 100 else f"{share:.0f} %"
                percent.text(start + share / 2, place, said, ha="center", va="center",
                             fontsize=8, color="white" if colour in DARK else "black")  # fmt: skip
        lefts = [x + v for x, v in zip(lefts, values, strict=True)]
    for place, total in zip(places, totals, strict=True):
        absolute.text(total / unit, place, f" {units.short(total)}", va="center", fontsize=8)
    absolute.set_yticks(places, [name for name, _ in models])
    absolute.set_ylim(len(models) - 0.5, -0.5)  # the first model on top
    absolute.set_xlim(0, 1.12 * max(totals) / unit)
    absolute.set_xlabel(f"parameters [{letter}, powers of 1000]" if letter else "parameters")
    percent.set_xlabel("share of the parameters [%]")
    percent.set_xlim(0, 100)
    for axes in (absolute, percent):
        axes.grid(axis="x")
        axes.tick_params(axis="y", length=0)
    handles: Any
    handles, labels = absolute.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
    return figure
