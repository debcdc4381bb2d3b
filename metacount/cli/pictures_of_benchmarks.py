"""Benchmark results as pictures: the roofline; GELU beside SwiGLU over the tokens."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from metacount.bench.rows import FORWARD, OK, Ceiling, Row
from metacount.cli.pictures import COLOURS, new_figure, short_tokens
from metacount.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.typing import LineStyleType

    from metacount.files import Json

Look = dict[str, Any]  # how a point or a line is drawn, in matplotlib's words
GREY = "#333333"
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "h", "d", "8")
# filled points, hollow ones, filled ones with an edge: so many families can be told apart
MOST_FAMILIES, MOST_MODELS = 3 * len(COLOURS), 8  # and so many panels side by side
GRAPH = "graph"
PART, WIDTH = ":", "@"  # in the names of older variants: parts of a layer, widths tried
# how a way is drawn and said; the longer first: a variant ends with the first that it ends with
WAYS: dict[str, tuple[LineStyleType, str]] = {
    "-joined-compiled": (":", "one matrix, torch.compile"),
    "-compiled": (":", "torch.compile"),
    "-joined": ("--", "gate and up in one matrix"),
    "-liger": ("-.", "Liger's silu·up"),
    "-triton": ((0, (5, 1, 1, 1, 1, 1)), "a Triton kernel for silu·up"),
    "": ("-", "as it is"),
}
WIDTH_NAMES = {
    "gelu": "GELU, 4·d",
    "swiglu": "SwiGLU, 8/3·d: GELU's parameters",
    "swiglu-4d": "SwiGLU, 4·d: GELU's width",
    "swiglu-own": "SwiGLU, the model's width",
    "swiglu-expert": "SwiGLU, an expert's width",
}


def split(variant: str) -> tuple[str, str]:
    """Split a variant into its width and way.

    >>> split("swiglu-4d-joined"), split("swiglu-joined-compiled"), split("gelu")
    (('swiglu-4d', '-joined'), ('swiglu', '-joined-compiled'), ('gelu', ''))
    """
    way = next(way for way in WAYS if variant.endswith(way))
    return variant.removesuffix(way), way


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Rows of one device, dtype, state and launch, the roof over them, and their title.

    `notes` say what of the results is not in the picture, or not as it seems.
    """

    points: list[Row]
    ceiling: Ceiling
    title: str
    notes: list[str]


def chosen(
    lines: Sequence[Json], *, state: str, dtype: str | None, launch: str | None = None
) -> Chosen:
    """Choose timed forward rows of the last line's device, in its dtype unless another is asked.

    Of the launches, graphs where there are any.
    """
    wanted = {"state": state, "status": OK}
    wanted |= {} if dtype is None else {"dtype": dtype}
    wanted |= {} if launch is None else {"launch": launch}
    timed = [
        line
        for line in lines
        if all(line[name] == value for name, value in wanted.items())
        and line.get("direction", FORWARD) == FORWARD
        and line.get("ceiling") is not None
        and not {PART, WIDTH} & set(line["variant"])
    ]
    if not timed:
        asked = f" in {dtype}" if dtype else ""
        asked += f", launched as {launch}" if launch else ""
        raise InputError(
            f"the results hold no timed {state} row{asked}, with the roof of its run; choose "
            "another --state, --dtype or --launch"
        )
    last, alike = timed[-1], ("device", "dtype", "torch")
    same = [line for line in timed if all(line[name] == last[name] for name in alike)]
    notes = []
    for name in alike:
        if others := sorted({line[name] for line in timed} - {last[name]}):
            notes.append(f"not drawn: {name} {', '.join(others)}")
    if {line.get("other_load") for line in same} - {None}:
        notes.append("something else was running while some of these were timed")
    if launch is None and any(line["launch"] == GRAPH for line in same):
        # what only Python can launch has no graph; it stays, and its name says so
        def key(line: Json) -> str:
            return repr([line[k] for k in ("topic", "model", "sizes", "workload", "variant")])

        graphs = {key(line) for line in same if line["launch"] == GRAPH}
        same = [x for x in same if x["launch"] == GRAPH or key(x) not in graphs]
    roofs = [Ceiling.from_dict({**line["ceiling"], "dtype": line["dtype"]}) for line in same]
    highest = max(roofs, key=lambda roof: roof.flops_per_s)
    lowest = min(roof.flops_per_s for roof in roofs)
    if lowest < 0.97 * highest.flops_per_s:
        notes.append(
            f"the best product was measured at {figure(lowest / 1e12)} to "
            f"{figure(highest.flops_per_s / 1e12)} TFLOP/s in the course of these runs; the "
            "highest is drawn"
        )
    points = [Row.from_dict(line) for line in same]
    return Chosen(points=points, ceiling=highest, title=_title(last), notes=notes)


def _title(last: Json) -> str:
    n = last.get("threads")
    threads = {None: "", 1: ", 1 thread"}.get(n, f", {n} threads")
    cpu = last.get("kind", "cpu") == "cpu"
    load = f" (load average {x})" if cpu and (x := last.get("load_average")) is not None else ""
    return (
        f"{last['device']}{threads}{load}, {last['dtype']}, {last['state']} caches, torch "
        f"{last['torch']}, {last['date'][:10]}"
    )


def figure(x: float) -> str:
    """Format a number with three significant digits, a whole one from 100; no exponent from 1e-4.

    >>> [figure(x) for x in (4321.0, 43.21, 0.04321)]
    ['4,321', '43.2', '0.0432']
    """
    if x >= 100:
        return f"{x:,.0f}"
    return f"{x:.3g}"


def roofline_figure(data: Chosen) -> Figure:
    """Draw TFLOP/s over FLOPs per byte under the measured roof: each row with products a point."""
    points = [row for row in data.points if row.intensity and row.tflops_per_s]
    if not points:
        raise InputError("the results hold no matrix products; a norm has no place on a roofline")
    families = list(dict.fromkeys(_family(row) for row in points))
    models = list(dict.fromkeys(row.model for row in points))
    _refuse_many("families of variants", families, MOST_FAMILIES)
    _refuse_many("models", models, len(MARKERS))
    n_keys = len(families) + len(models)
    data = replace(data, notes=[*data.notes, *above_the_roof(points, data.ceiling)])
    picture = new_figure(10.5, max(5.4, 1.2 + 0.17 * n_keys))
    axes = picture.subplots()
    _roof(axes, data.ceiling, points)
    for row in points:
        axes.plot(
            [row.intensity or 0],
            [row.tflops_per_s or 0],
            MARKERS[models.index(row.model)],
            alpha=0.75,
            markersize=5,
            **_look(families.index(_family(row))),
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    plain_ticks(axes.xaxis)
    plain_ticks(axes.yaxis)
    axes.set_xlabel("intensity [needed FLOPs per byte that must move]")
    axes.set_ylabel("TFLOP/s, of needed FLOPs")
    axes.set_title(data.title, loc="left")
    axes.grid(which="major")
    keys = [_key("o", name, _look(i)) for i, name in enumerate(families)]
    grey: Look = {"color": GREY, "markeredgewidth": 0}
    keys += [_key(MARKERS[i], name, grey) for i, name in enumerate(models)]
    picture.legend(handles=keys, loc="outside right upper")
    write_notes(picture, data.notes)
    return picture


def above_the_roof(points: Sequence[Row], ceiling: Ceiling) -> list[str]:
    """Say why points lie above the roof, where some do."""
    top, slope = ceiling.flops_per_s / 1e12, ceiling.bytes_per_s / 1e12
    reached = [(row.tflops_per_s or 0, slope * (row.intensity or 0)) for row in points]
    above = sum(allowed < rate <= top for rate, allowed in reached)
    over = sum(rate > top for rate, _ in reached)
    notes = []
    if above:
        notes.append(
            f"{above} of {len(points)} points lie above the slope: it is a copy through "
            "memory, and bytes that must move (weights, input, cache) can stay in a cache between "
            "two calls, or only be read, which is faster than copying"
        )
    if over:
        notes.append(
            f"{over} of {len(points)} points lie above the level: the sweep's best product "
            "was slower than theirs, by its shape or by the clock at that time"
        )
    return notes


def _refuse_many(
    what: str, names: Sequence[str], most: int, can: str = "can be told apart"
) -> None:
    if len(names) > most:
        raise InputError(f"the results hold {len(names)} {what}, {most} {can}; give fewer files")


def _look(index: int) -> Look:
    colour = COLOURS[index % len(COLOURS)]
    if index < len(COLOURS):
        return {"color": colour, "markeredgewidth": 0}
    if index < 2 * len(COLOURS):
        return {"color": colour, "markerfacecolor": "none", "markeredgewidth": 1.2}
    return {"color": colour, "markeredgecolor": "black", "markeredgewidth": 0.8}


def write_notes(picture: Figure, notes: Sequence[str]) -> None:
    """Write sentences below the picture."""
    width = int(picture.get_size_inches()[0] * 16)
    lines = [line for note in notes for line in textwrap.wrap(note, width)]
    if lines:
        picture.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=7.5, color="#555555")


def plain_ticks(axis: Axis, steps: tuple[float, ...] = (1, 2, 5)) -> None:
    """Put plain numbers on a logarithmic axis, at these multiples of the powers of 10."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(base=10, subs=steps, numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}" if x >= 1000 else f"{x:g}"))
    axis.set_minor_locator(NullLocator())


def _roof(axes: Axes, ceiling: Ceiling, points: Sequence[Row]) -> None:
    intensities = [row.intensity for row in points if row.intensity]
    low, high = min(*intensities, ceiling.ridge) / 2, max(*intensities, ceiling.ridge) * 2
    top = ceiling.flops_per_s / 1e12
    slope = ceiling.bytes_per_s / 1e12
    axes.plot([low, ceiling.ridge, high], [low * slope, top, top], color="black", linewidth=1.2)
    axes.axvline(ceiling.ridge, color="#888888", linewidth=0.8, linestyle=":")
    n, k, m = ceiling.shape
    best = f"best product [{n}, {k}] @ [{k}, {m}]: {figure(top)} TFLOP/s"
    copy, ridge = f"copy {figure(slope * 1000)} GB/s", f"ridge {figure(ceiling.ridge)}"
    at_right: Look = {"ha": "right", "va": "bottom"}
    at_ridge: Look = {"ha": "left", "xycoords": ("data", "axes fraction"), "color": "#555555"}
    _annotate(axes, best, (high, top), (0, 4), **at_right)
    _annotate(axes, copy, (ceiling.ridge / 2, top / 2), (-6, 2), **at_right)
    _annotate(axes, ridge, (ceiling.ridge, 0.02), (4, 0), **at_ridge)


def _annotate(
    axes: Axes, text: str, at: tuple[float, float], points: tuple[int, int], **look: Any
) -> None:
    axes.annotate(text, at, xytext=points, textcoords="offset points", **look)


def _key(marker: str, label: str, look: Look) -> Line2D:
    from matplotlib.lines import Line2D

    return Line2D([], [], linestyle="", marker=marker, label=label, **look)


def _family(row: Row) -> str:
    """Name the topic and variant; a feed-forward's ways share the colour of its width."""
    return f"{row.topic}: {split(row.variant)[0] if row.topic == 'ffn' else row.variant}"


def curves_figure(data: Chosen) -> Figure:
    """Draw each model's TFLOP/s over tokens under the ceiling; below, the ratio to GELU at 4·d."""
    rows = [row for row in data.points if row.topic == "ffn"]
    if not rows:
        raise InputError("the results hold no feed-forward rows; save `metacount bench ffn` first")
    models = list(dict.fromkeys(row.model for row in rows))
    _refuse_many("models", models, MOST_MODELS, "fit side by side")
    picture = new_figure(max(9.0, 3.4 * len(models)), 6.8)
    grid = picture.subplots(2, len(models), sharex="col", sharey="row", squeeze=False)
    widths = list(dict.fromkeys(split(row.variant)[0] for row in rows))
    for column, model in enumerate(models):
        mine = [row for row in rows if row.model == model]
        for name in dict.fromkeys(row.variant for row in mine):
            width, way = split(name)
            style: Look = {
                "color": COLOURS[widths.index(width) % len(COLOURS)],
                "linestyle": WAYS[way][0],
                "marker": "o",
                "markersize": 3,
                "linewidth": 1.3,
            }
            line = sorted((row for row in mine if row.variant == name), key=_tokens)
            _lines(grid[0][column], grid[1][column], line, style)
        _curve_roof(grid[0][column], mine, data.ceiling)
        grid[0][column].set_title(f"{model}, d = {mine[0].sizes['d_model']}", loc="left")
        grid[1][column].set_xlabel("tokens")
        grid[1][column].axhline(1, color="#888888", linewidth=0.8)
        _ticks(grid[0][column], grid[1][column], mine)
    for axes in grid.flat:
        axes.grid(which="major")
        axes.set_yscale("log")
        upper = axes in grid[0]
        plain_ticks(axes.yaxis, *(() if upper else ((1, 1.2, 1.5, 2, 3, 4, 6, 8),)))
    grid[0][0].set_ylabel("TFLOP/s of needed FLOPs\n(dashed: what the copy allows to GELU)")
    grid[1][0].set_ylabel("time / time of GELU at 4·d\n(bar: where it lies with 95 % confidence)")
    picture.suptitle(data.title, x=0.01, ha="left", fontsize=9)
    ways = list(dict.fromkeys(split(row.variant)[1] for row in rows))
    picture.legend(handles=_curve_keys(widths, ways), loc="outside lower center", ncols=3)
    write_notes(picture, data.notes)
    return picture


def _lines(rates: Axes, ratios: Axes, rows: Sequence[Row], style: Look) -> None:
    tokens = [_tokens(row) for row in rows]
    speeds = [math.nan if row.tflops_per_s is None else row.tflops_per_s for row in rows]
    rates.plot(tokens, speeds, **style)
    both = zip(tokens, rows, strict=True)
    compared = [(n, row, ratio) for n, row in both if (ratio := row.ratio)]
    bare: Look = {**style, "marker": ""}
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


def _curve_roof(axes: Axes, rows: Sequence[Row], ceiling: Ceiling) -> None:
    top = ceiling.flops_per_s / 1e12
    axes.axhline(top, color="black", linewidth=1.2)
    look: Look = {"xycoords": ("axes fraction", "data"), "fontsize": 7.5}
    _annotate(axes, f"best product {figure(top)}", (0.02, top), (0, 3), **look)
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
    ticks: list[int] = []
    for n in sorted({_tokens(row) for row in rows}):
        if not ticks or n >= 4 * ticks[-1]:
            ticks.append(n)
    for axes in (rates, ratios):
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [short_tokens(n) for n in ticks])
        axes.set_xticks([], minor=True)


def _curve_keys(widths: Sequence[str], ways: Sequence[str]) -> list[Line2D]:
    from matplotlib.lines import Line2D

    looks: dict[str, Look] = {
        WIDTH_NAMES.get(name, name): {"color": COLOURS[i % len(COLOURS)]}
        for i, name in enumerate(widths)
    }
    looks |= {WAYS[way][1]: {"color": GREY, "linestyle": WAYS[way][0]} for way in ways}
    hollow = {"linestyle": "", "marker": "o", "markersize": 4, "markerfacecolor": "white"}
    looks["ratio within noise"] = {"color": GREY, **hollow}
    return [Line2D([], [], label=label, **look) for label, look in looks.items()]


def _tokens(row: Row) -> int:
    return int(row.workload["tokens"])
