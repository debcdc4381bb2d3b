"""Benchmark results as pictures: the roofline, and GELU against SwiGLU over the tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from metacount.bench.rows import OK, Ceiling, Row
from metacount.errors import InputError
from metacount.views.picture import COLOURS, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
MOST_MODELS = 5  # panels side by side
WAYS = {"": "-", "-joined": "--", "-compiled": ":"}
WAY_NAMES = {"": "as it is", "-joined": "gate and up in one matrix", "-compiled": "torch.compile"}


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Rows of one device, dtype and state, the roof they were measured under, and their title."""

    points: list[Row]
    ceiling: Ceiling
    title: str


def chosen(lines: Sequence[dict[str, Any]], *, state: str, dtype: str | None) -> Chosen:
    """Timed rows of the device of the last line, in its dtype unless another one is asked for."""
    timed = [line for line in lines if line["state"] == state and line["status"] == OK]
    if dtype is not None:
        timed = [line for line in timed if line["dtype"] == dtype]
    if not timed:
        wanted = f"{state} row" + (f" in {dtype}" if dtype else "")
        raise InputError(f"the results hold no timed {wanted}; choose another --state or --dtype")
    last = timed[-1]
    same = [line for line in timed if all(line[k] == last[k] for k in ("device", "dtype", "torch"))]
    roof = last["ceiling"]
    n = last.get("threads")
    threads = {None: "", 1: ", 1 thread"}.get(n, f", {n} threads")
    load = f" (load average {x})" if (x := last.get("load_average")) is not None else ""
    return Chosen(
        points=[Row.from_dict(line) for line in same],
        ceiling=Ceiling(
            dtype=roof["dtype"],
            flops_per_s=roof["flops_per_s"],
            shape=tuple(roof["shape"]),
            bytes_per_s=roof["bytes_per_s"],
        ),
        title=f"{last['device']}{threads}{load}, {last['dtype']}, {state} caches, torch "
        f"{last['torch']}, {last['date'][:10]}",
    )


def roofline_figure(data: Chosen) -> Figure:
    """TFLOP/s over FLOPs per byte, under the measured roof; a point for each row with products."""
    points = [row for row in data.points if row.intensity and row.tflops_per_s]
    if not points:
        raise InputError("the results hold no matrix products; a norm has no place on a roofline")
    figure = new_figure(10, 5.4)
    axes = figure.subplots()
    families = list(dict.fromkeys(_family(row) for row in points))
    models = list(dict.fromkeys(row.model for row in points))
    _roof(axes, data.ceiling, points)
    for row in points:
        axes.plot(
            [row.intensity or 0],
            [row.tflops_per_s or 0],
            MARKERS[models.index(row.model) % len(MARKERS)],
            color=COLOURS[families.index(_family(row)) % len(COLOURS)],
            alpha=0.75,
            markersize=5,
            markeredgewidth=0,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    _plain_ticks(axes.xaxis)
    _plain_ticks(axes.yaxis)
    axes.set_xlabel("intensity [needed FLOPs per byte that must move]")
    axes.set_ylabel("TFLOP/s, of needed FLOPs")
    axes.set_title(data.title, loc="left")
    axes.grid(which="major")
    keys = [_key(axes, COLOURS[i % len(COLOURS)], "o", name) for i, name in enumerate(families)]
    keys += [_key(axes, "#333333", MARKERS[i % len(MARKERS)], name)
             for i, name in enumerate(models)]  # fmt: skip
    figure.legend(handles=keys, loc="outside right upper")
    return figure


def _plain_ticks(axis: Any, steps: tuple[float, ...] = (1, 2, 5)) -> None:
    """A logarithmic axis with plain numbers on it, at these multiples of the powers of 10."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(base=10, subs=steps, numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axis.set_minor_locator(NullLocator())


def _roof(axes: Any, ceiling: Ceiling, points: Sequence[Row]) -> None:
    """The slope of the copy and the level of the best product, with their figures on them."""
    intensities = [row.intensity for row in points if row.intensity]
    low, high = min(*intensities, ceiling.ridge) / 2, max(*intensities, ceiling.ridge) * 2
    top = ceiling.flops_per_s / 1e12
    slope = ceiling.bytes_per_s / 1e12
    axes.plot([low, ceiling.ridge, high], [low * slope, top, top], color="black", linewidth=1.2)
    axes.axvline(ceiling.ridge, color="#888888", linewidth=0.8, linestyle=":")
    n, k, m = ceiling.shape
    axes.annotate(f"best product [{n}, {k}] @ [{k}, {m}]: {top:.3g} TFLOP/s", (high, top),
                  ha="right", va="bottom", xytext=(0, 4), textcoords="offset points")  # fmt: skip
    axes.annotate(f"copy {slope * 1000:.3g} GB/s", (ceiling.ridge / 2, top / 2), ha="right",
                  va="bottom", xytext=(-6, 2), textcoords="offset points")  # fmt: skip
    axes.annotate(f"ridge {ceiling.ridge:.3g}", (ceiling.ridge, 0.02), ha="left",
                  xycoords=("data", "axes fraction"), xytext=(4, 0),
                  textcoords="offset points", color="#555555")  # fmt: skip


def _key(axes: Any, colour: str, marker: str, label: str) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], linestyle="", marker=marker, color=colour, label=label)


def _family(row: Row) -> str:
    """Topic and variant, without what the compiler or another layout does to it: one colour."""
    return f"{row.topic}: {_split(row.variant)[0]}"


def curves_figure(data: Chosen) -> Figure:
    """For each model, time over tokens, and below it the ratio to GELU at 4·d."""
    rows = [row for row in data.points if row.topic == "ffn"]
    if not rows:
        raise InputError("the results hold no feed-forward rows; save `metacount bench ffn` first")
    models = list(dict.fromkeys(row.model for row in rows))[:MOST_MODELS]
    figure = new_figure(max(9.0, 3.4 * len(models)), 6.4)
    grid = figure.subplots(2, len(models), sharex=True, sharey="row", squeeze=False)
    widths = list(dict.fromkeys(_split(row.variant)[0] for row in rows))
    for column, model in enumerate(models):
        mine = [row for row in rows if row.model == model]
        for name in dict.fromkeys(row.variant for row in mine):
            width, way = _split(name)
            style = {"color": COLOURS[widths.index(width)], "linestyle": WAYS[way],
                     "marker": "o", "markersize": 3, "linewidth": 1.3}  # fmt: skip
            line = sorted((row for row in mine if row.variant == name), key=_tokens)
            _lines(grid[0][column], grid[1][column], line, style)
        sizes = mine[0].sizes
        grid[0][column].set_title(f"{model}, d = {sizes['d_model']}", loc="left")
        grid[1][column].set_xlabel("tokens")
        grid[1][column].axhline(1, color="#888888", linewidth=0.8)
    _axes_of_curves(grid, rows)
    figure.suptitle(data.title, x=0.01, ha="left", fontsize=9)
    figure.legend(handles=_curve_keys(widths), loc="outside lower center", ncols=3)
    return figure


def _lines(times: Any, ratios: Any, rows: Sequence[Row], style: dict[str, Any]) -> None:
    tokens = [_tokens(row) for row in rows]
    times.plot(tokens, [1e3 * (row.median_s or 0) for row in rows], **style)
    times.fill_between(tokens, [1e3 * (row.p20_s or 0) for row in rows],
                       [1e3 * (row.p80_s or 0) for row in rows], color=style["color"], alpha=0.08,
                       linewidth=0)  # fmt: skip
    compared = [(n, row) for n, row in zip(tokens, rows, strict=True) if row.ratio]
    ratios.plot([n for n, _ in compared], [row.ratio for _, row in compared],
                **{**style, "marker": ""})  # fmt: skip
    for n, row in compared:
        noise = row.within_noise and row.variant != row.baseline
        ratios.plot([n], [row.ratio], "o", markersize=4, color=style["color"],
                    markerfacecolor="white" if noise else style["color"])  # fmt: skip


def _axes_of_curves(grid: Any, rows: Sequence[Row]) -> None:
    ticks = sorted({_tokens(row) for row in rows})
    for axes in grid.flat:
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [f"{n:,}" for n in ticks])
        axes.grid(which="major")
    for axes in grid[0]:
        axes.set_yscale("log")
        _plain_ticks(axes.yaxis)
    for axes in grid[1]:
        axes.set_yscale("log")
        _plain_ticks(axes.yaxis, (1, 1.2, 1.5, 2, 3, 4, 6, 8))
    grid[0][0].set_ylabel("median time of a forward [ms]\nband: p20 to p80")
    grid[1][0].set_ylabel("time / time of GELU at 4·d")


def _curve_keys(widths: Sequence[str]) -> list[Any]:
    from matplotlib.lines import Line2D

    styles: dict[str, Any] = dict(WAYS)
    meaning = {
        "gelu": "GELU, 4·d",
        "swiglu": "SwiGLU, 8/3·d: GELU's parameters",
        "swiglu-4d": "SwiGLU, 4·d: GELU's width",
        "swiglu-own": "SwiGLU, the model's width",
    }
    keys = [Line2D([], [], color=COLOURS[i], label=meaning.get(name, name))
            for i, name in enumerate(widths)]  # fmt: skip
    keys += [Line2D([], [], color="#333333", linestyle=style, label=WAY_NAMES[way])
             for way, style in styles.items()]  # fmt: skip
    return [*keys, Line2D([], [], color="#333333", linestyle="", marker="o", markersize=4,
                          markerfacecolor="white", label="ratio within noise")]  # fmt: skip


def _split(variant: str) -> tuple[str, str]:
    """A variant's width and way: swiglu-4d-joined is swiglu-4d, -joined."""
    for way in WAYS:
        if way and variant.endswith(way):
            return variant.removesuffix(way), way
    return variant, ""


def _tokens(row: Row) -> int:
    return int(row.workload["tokens"])
