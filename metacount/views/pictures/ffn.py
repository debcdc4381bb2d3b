"""GELU against SwiGLU over the tokens: how fast under the ceiling, and how long beside GELU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

from metacount.bench.rows import Ceiling, Row
from metacount.errors import InputError
from metacount.views.pictures.benchmarks import Chosen, figure, plain_ticks, write_notes
from metacount.views.pictures.ffn_ways import WAYS, split
from metacount.views.pictures.picture import COLOURS, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.typing import LineStyleType


class Style(TypedDict):
    """How a line is drawn, in matplotlib's words."""

    color: str
    linestyle: LineStyleType
    marker: str
    markersize: float
    linewidth: float


MOST_MODELS = 8  # panels side by side
WAY_NAMES = {
    "": "as it is",
    "-joined": "gate and up in one matrix",
    "-compiled": "torch.compile",
    "-joined-compiled": "one matrix, torch.compile",
    "-autotuned": "torch.compile, max-autotune",
    "-joined-autotuned": "one matrix, max-autotune",
    "-liger": "Liger's silu·up",
    "-triton": "a Triton kernel for silu·up",
}
WIDTH_NAMES = {
    "gelu": "GELU, 4·d",
    "swiglu": "SwiGLU, 8/3·d: GELU's parameters",
    "swiglu-4d": "SwiGLU, 4·d: GELU's width",
    "swiglu-own": "SwiGLU, the model's width",
    "swiglu-expert": "SwiGLU, an expert's width",
}


def curves_figure(data: Chosen) -> Figure:
    """Draw each model's TFLOP/s over tokens under the ceiling; below, the ratio to GELU at 4·d."""
    rows = [row for row in data.points if row.topic == "ffn"]
    if not rows:
        raise InputError("the results hold no feed-forward rows; save `metacount bench ffn` first")
    models = list(dict.fromkeys(row.model for row in rows))
    if len(models) > MOST_MODELS:
        raise InputError(
            f"the results hold {len(models)} models, {MOST_MODELS} fit side by side; give fewer "
            "files"
        )
    picture = new_figure(max(9.0, 3.4 * len(models)), 6.8)
    grid = picture.subplots(2, len(models), sharex="col", sharey="row", squeeze=False)
    widths = list(dict.fromkeys(split(row.variant)[0] for row in rows))
    for column, model in enumerate(models):
        mine = [row for row in rows if row.model == model]
        for name in dict.fromkeys(row.variant for row in mine):
            width, way = split(name)
            style: Style = {
                "color": COLOURS[widths.index(width) % len(COLOURS)],
                "linestyle": WAYS[way],
                "marker": "o",
                "markersize": 3,
                "linewidth": 1.3,
            }
            line = sorted((row for row in mine if row.variant == name), key=_tokens)
            _lines(grid[0][column], grid[1][column], line, style)
        _roof(grid[0][column], mine, data.ceiling)
        grid[0][column].set_title(f"{model}, d = {mine[0].sizes['d_model']}", loc="left")
        grid[1][column].set_xlabel("tokens")
        grid[1][column].axhline(1, color="#888888", linewidth=0.8)
        _ticks(grid[0][column], grid[1][column], mine)
    _axes_of_curves(grid.tolist())
    picture.suptitle(data.title, x=0.01, ha="left", fontsize=9)
    ways = list(dict.fromkeys(split(row.variant)[1] for row in rows))
    picture.legend(handles=_curve_keys(widths, ways), loc="outside lower center", ncols=3)
    write_notes(picture, data.notes)
    return picture


def _lines(rates: Axes, ratios: Axes, rows: Sequence[Row], style: Style) -> None:
    tokens = [_tokens(row) for row in rows]
    speeds = [math.nan if row.tflops_per_s is None else row.tflops_per_s for row in rows]
    rates.plot(tokens, speeds, **style)
    both = zip(tokens, rows, strict=True)
    compared = [(n, row, ratio) for n, row in both if (ratio := row.ratio)]
    bare: Style = {**style, "marker": ""}
    ratios.plot([n for n, _, _ in compared], [ratio for *_, ratio in compared], **bare)
    for n, row, ratio in compared:
        noise = row.within_noise and row.variant != row.baseline
        if row.ratio_low and row.ratio_high:
            ratios.plot(
                [n, n], [row.ratio_low, row.ratio_high], color=style["color"], linewidth=0.8
            )
        ratios.plot(
            [n],
            [ratio],
            "o",
            markersize=4,
            color=style["color"],
            markerfacecolor="white" if noise else style["color"],
        )


def _roof(axes: Axes, rows: Sequence[Row], ceiling: Ceiling) -> None:
    """Draw the best product, and what the copy allows to GELU at each number of tokens."""
    top = ceiling.flops_per_s / 1e12
    axes.axhline(top, color="black", linewidth=1.2)
    axes.annotate(
        f"best product {figure(top)}",
        (0.02, top),
        xycoords=("axes fraction", "data"),
        xytext=(0, 3),
        textcoords="offset points",
        fontsize=7.5,
    )
    gelu = sorted((row for row in rows if row.variant == "gelu" and row.intensity), key=_tokens)
    if len(gelu) > 1:
        slope = ceiling.bytes_per_s / 1e12
        axes.plot(
            [_tokens(row) for row in gelu],
            [min(top, slope * (row.intensity or 0)) for row in gelu],
            color="black",
            linewidth=0.8,
            linestyle=(0, (4, 3)),
        )


def _ticks(rates: Axes, ratios: Axes, rows: Sequence[Row]) -> None:
    """Put a label at most at every fourfold of tokens, short ones: 1, 16, 256, 4K."""
    found = sorted({_tokens(row) for row in rows})
    kept: list[int] = []
    for n in found:
        if not kept or n >= 4 * kept[-1]:
            kept.append(n)
    for axes in (rates, ratios):
        axes.set_xscale("log", base=2)
        axes.set_xticks(kept, [short(n) for n in kept])
        axes.set_xticks([], minor=True)


def short(n: int) -> str:
    """Format a number of tokens, in units of 1024 where it is a multiple.

    >>> [short(n) for n in (1, 128, 1000, 1024, 16384)]
    ['1', '128', '1000', '1K', '16K']
    """
    return f"{n // 1024}K" if n % 1024 == 0 else str(n)


def _axes_of_curves(grid: list[list[Axes]]) -> None:
    for axes in (*grid[0], *grid[1]):
        axes.grid(which="major")
        axes.set_yscale("log")
    for axes in grid[0]:
        plain_ticks(axes.yaxis)
    for axes in grid[1]:
        plain_ticks(axes.yaxis, (1, 1.2, 1.5, 2, 3, 4, 6, 8))
    grid[0][0].set_ylabel("TFLOP/s of needed FLOPs\n(dashed: what the copy allows to GELU)")
    grid[1][0].set_ylabel("time / time of GELU at 4·d\n(bar: where it lies with 95 % confidence)")


def _curve_keys(widths: Sequence[str], ways: Sequence[str]) -> list[Line2D]:
    from matplotlib.lines import Line2D

    keys = [
        Line2D([], [], color=COLOURS[i % len(COLOURS)], label=WIDTH_NAMES.get(name, name))
        for i, name in enumerate(widths)
    ]
    keys += [
        Line2D([], [], color="#333333", linestyle=WAYS[way], label=WAY_NAMES[way]) for way in ways
    ]
    return [
        *keys,
        Line2D(
            [],
            [],
            color="#333333",
            linestyle="",
            marker="o",
            markersize=4,
            markerfacecolor="white",
            label="ratio within noise",
        ),
    ]


def _tokens(row: Row) -> int:
    return int(row.workload["tokens"])
