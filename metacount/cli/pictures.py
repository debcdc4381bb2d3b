"""Pictures of counts: one look for all, words in two languages, the file that they end in."""

from __future__ import annotations

import os
import textwrap
import warnings
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from metacount import units
from metacount.errors import InputError, shown
from metacount.figures import BYTES, FIGURES, FLOPS, MACS, VALUES
from metacount.files import check_writable, write_whole
from metacount.languages import label

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from metacount.measure.activations import Curve
    from metacount.resolve import Given
    from metacount.sharding.result import Sharded
    from metacount.textbook.series import Bar, Cache

ENDINGS = (".svg", ".png", ".pdf")

# Okabe and Ito's colours, which people with any colour vision can tell apart, and two greys.
COLOURS = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#555555",
    "#999999",
)  # fmt: skip

LOOK: dict[str, object] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    # the same picture gives the same bytes
    "svg.hashsalt": "metacount",
    "savefig.dpi": 150,
}


def check_output(file: str) -> None:
    """Check before anything is computed: the ending is known and the folder can be written to."""
    ending = os.path.splitext(file)[1].lower()
    if ending not in ENDINGS:
        given = f"'{shown(ending)}'" if ending else "no ending"
        raise InputError(f"-o must end in {', '.join(ENDINGS)}: got {given} in {shown(file)}")
    check_writable("-o", file)


def new_figure(width: float, height: float) -> Figure:
    """Make an empty figure of a size in inches, whose parts make room for each other."""
    import matplotlib
    from matplotlib.figure import Figure

    settings: Any = matplotlib.rcParams  # its keys are typed one by one
    settings.update({**LOOK, "font.family": _fonts()})
    return Figure(figsize=(width, height), layout="constrained")


PLAIN = "DejaVu Sans"  # comes with matplotlib
# For Chinese, those that are made for it: others draw some letters as Japanese or Korean does.
CHINESE = (
    "Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "Source Han Sans CN",
    "PingFang SC", "Microsoft YaHei", "Hiragino Sans GB", "WenQuanYi Zen Hei",
    "WenQuanYi Micro Hei", "SimHei", "Noto Sans CJK JP", "Noto Serif CJK SC",
)  # fmt: skip


def _fonts() -> list[str]:
    """List fonts, each for the letters that those before it lack."""
    from matplotlib.font_manager import fontManager

    installed = {entry.name for entry in fontManager.ttflist}
    return [PLAIN, *(name for name in CHINESE if name in installed)]


def check_chinese() -> None:
    """Raise `InputError` where no font for the Chinese labels is installed."""
    from matplotlib.font_manager import findSystemFonts, fontManager

    # matplotlib's list is from when it was first used
    known = {PLAIN, *(entry.fname for entry in fontManager.ttflist)}
    for file in findSystemFonts() if len(_fonts()) == 1 else ():
        if file not in known:
            try:
                fontManager.addfont(file)
            except (OSError, RuntimeError):  # a broken file
                continue
    if len(_fonts()) == 1:
        raise InputError(
            "--lang zh: no installed font has Chinese letters; install one, such as Noto Sans CJK "
            "(Debian: fonts-noto-cjk)"
        )


def plain(text: str) -> str:
    """Write somebody's text so that a $ starts no formula."""
    return text.replace("$", r"\$")


def save(figure: Figure, file: str) -> None:
    """Write the picture, without the date that would make each one different."""
    ending = os.path.splitext(file)[1].lower()
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {}}[ending]
    write_whole("-o", file, _drawn(figure, format=ending[1:], metadata=metadata))


def _drawn(figure: Figure, **how: Any) -> bytes:
    from io import BytesIO

    file = BytesIO()
    with warnings.catch_warnings():  # a letter that no font has is drawn as a box
        warnings.filterwarnings("ignore", r"Glyph \d+ .*missing from", UserWarning)
        figure.savefig(file, **how)
    return file.getvalue()


LEAST_LABELLED = 0.06  # of a bar; a smaller part has no room for its percentage
DARK = ("#0072B2", "#009E73", "#D55E00", "#555555")  # white text reads better on these
MOST_BARS = 40
WIDEST_NAME = 30  # letters of one line of a name
WIDEST_NOTE = 150
WHOLE = {VALUES: "", FLOPS: " FLOP", MACS: " MAC"}
THOUSANDS = ((6, "E"), (5, "P"), (4, "T"), (3, "G"), (2, "M"), (1, "k"), (0, ""))
# Letter and size of the units of an axis, the largest first.
AXES = {
    VALUES: (("T", 10**12), ("B", 10**9), ("M", 10**6), ("K", 10**3), ("", 1)),
    BYTES: (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1)),
    **{
        unit: tuple((f"{letter}{unit}", 1000**power) for power, letter in THOUSANDS)
        for unit in (FLOPS, MACS)
    },
}
# One colour for each part, in every picture; cross-attention is beside self-attention only.
PARTS = {"embedding": 0, "position": 1, "attention": 2, "recurrent": 8, "ffn": 4, "moe": 3}
PARTS |= {"norm": 6, "head": 5, "other": 7, "self-attention": 2, "cross-attention": 1, "conv": 0}


def plot(
    *models: Given, quantity: str = "params", seq_lens: Sequence[int] = (), lang: str = "en"
) -> Figure:
    """Draw one quantity of models, as `metacount plot` does: matplotlib's figure, to show or save.

    >>> plot("llama-7b", "mixtral-8x7b").axes[1].get_xlabel()
    'share of the parameters [%]'
    """
    from metacount.resolve import model_of
    from metacount.spec import Request
    from metacount.textbook.series import bars

    given = [model_of(model) for model in models]
    requests = [Request(seq_len=n) for n in seq_lens] or [Request()]
    drawn = bars([(model.name, model) for model in given], requests, quantity)
    figure = quantities_figure(drawn, quantity, lang)
    # what a notebook shows
    vars(figure)["_repr_png_"] = lambda: _drawn(figure, format="png", bbox_inches="tight")
    return figure


def quantities_figure(bars: Sequence[Bar], quantity: str, lang: str = "en") -> Figure:
    """Draw one bar for each of `bars`, absolute on the left, percent on the right."""
    if len(bars) > MOST_BARS:
        raise InputError(f"{len(bars)} bars are too many for one picture, at most {MOST_BARS}")
    totals = [sum(bar.parts.values()) for bar in bars]
    if not any(totals):
        raise InputError(f"there is nothing to draw: {quantity} is 0 for all that was asked for")
    runs = bool(FIGURES[quantity].run)  # what is stored is the same whatever is run
    names = [_name(bar, bars, lang) if runs else bar.label for bar in bars]
    names = [plain("\n".join(textwrap.wrap(name, WIDEST_NAME))) for name in names]
    notes = [line for note in _notes(bars) for line in textwrap.wrap(note, WIDEST_NOTE)]
    notes = notes if runs else []
    parts = [part for part in PARTS if any(bar.parts.get(part) for bar in bars)]
    lines = max(name.count("\n") + 1 for name in names)
    # a part alone has no shares
    figure = new_figure(10, 1.4 + max(0.5, 0.2 * lines) * max(2, len(bars)) + 0.2 * len(notes))
    axes = figure.subplots(1, 2 if len(parts) > 1 else 1, sharey=True, squeeze=False)[0]
    figure_of = FIGURES[quantity]
    unit, bracket = _unit(figure_of.unit, max(totals))
    lefts = [0] * len(bars)
    for part in parts:
        values = [bar.parts.get(part, 0) for bar in bars]
        axes[0].barh(
            range(len(bars)),
            [v / unit for v in values],
            left=[x / unit for x in lefts],
            color=COLOURS[PARTS[part]],
            label=label(part, lang),
            height=0.66,
        )
        if len(parts) > 1:
            _shares(axes[1], values, lefts, totals, COLOURS[PARTS[part]])
        lefts = [x + v for x, v in zip(lefts, values, strict=True)]
    for place, total in enumerate(totals):
        axes[0].text(total / unit, place, f" {figure_of.short(total)}", va="center", fontsize=8)
    axes[0].set_yticks(range(len(bars)), names)
    axes[0].set_ylim(len(bars) - 0.5, -0.5)  # the first one on top
    axes[0].set_xlabel(label(quantity, lang) + bracket)
    axes[0].set_xlim(0, (1.14 if figure_of.unit == VALUES else 1.2) * max(totals) / unit)
    for each in axes:
        each.grid(axis="x")
        each.tick_params(axis="y", length=0)
    if title := _title(bars, quantity, lang):
        axes[0].set_title(plain(title), loc="left", fontsize=9)
    if len(parts) > 1:
        share = "share of the parameters" if quantity == "params" else "share"
        axes[1].set_xlabel(f"{label(share, lang)} [%]")
        axes[1].set_xlim(0, 100)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
    if notes:
        below = plain("\n".join(notes))
        figure.supxlabel(below, x=0.01, ha="left", fontsize=7.5, color="#555555")
    return figure


def _notes(bars: Sequence[Bar]) -> list[str]:
    models: dict[str, dict[str, None]] = {}
    for bar in bars:
        for text in bar.warnings:
            models.setdefault(text, {})[bar.model] = None
    return [
        f"{next(iter(those)) if len(those) == 1 else f'{len(those)} models'}: {text}"
        for text, those in models.items()
    ]


def _name(bar: Bar, bars: Sequence[Bar], lang: str) -> str:
    """Name a bar by what it does not share with the others."""
    at = f"{label('seq', lang)} {bar.run.seq_len:,}"
    if len({other.run.seq_len for other in bars}) == 1:
        return bar.label
    return at if len({other.label for other in bars}) == 1 else f"{bar.label}, {at}"


def _title(bars: Sequence[Bar], quantity: str, lang: str) -> str:
    models, lengths = {bar.model for bar in bars}, {bar.run.seq_len for bar in bars}
    run, depends = bars[0].run, FIGURES[quantity].run
    shared = [f"{label('batch', lang)} {run.batch_size:,}"] if depends else []
    shared += [f"{label('seq', lang)} {run.seq_len:,}"] if depends and len(lengths) == 1 else []
    shared += [run.dtype] if "c" in depends else []
    apart = any(bar.label != bar.model for bar in bars) or len(lengths) > 1
    name = bars[0].model if len(models) == 1 and apart and len(bars) > 1 else ""
    return ": ".join(filter(None, [name, ", ".join(shared)]))


def _shares(
    axes: Axes, values: Sequence[int], lefts: Sequence[int], totals: Sequence[int], colour: str
) -> None:
    for place, (value, left, total) in enumerate(zip(values, lefts, totals, strict=True)):
        if not total:
            continue
        share, start = 100 * value / total, 100 * left / total
        axes.barh([place], [share], left=[start], color=colour, height=0.66)
        if share >= 100 * LEAST_LABELLED:
            text = ">99 %" if share >= 99.5 and value < total else f"{share:.0f} %"
            ink = "white" if colour in DARK else "black"
            axes.text(
                start + share / 2, place, text, ha="center", va="center", fontsize=8, color=ink
            )


def _unit(kind: str, largest: int) -> tuple[int, str]:
    letter, unit = next((u for u in AXES[kind] if largest >= u[1]), AXES[kind][-1])
    if kind == BYTES:
        return unit, f" [{letter}]" if unit == 1 else f" [{letter} = 2^{unit.bit_length() - 1} B]"
    return unit, f" [{letter} = 10^{len(str(unit)) - 1}{WHOLE[kind]}]" if unit > 1 else ""


def short_tokens(n: int) -> str:
    """Format a number of tokens, in units of 1024 where it is a multiple.

    >>> [short_tokens(n) for n in (1, 128, 1000, 1024, 16384)]
    ['1', '128', '1000', '1K', '16K']
    """
    return f"{n // 1024}K" if n % 1024 == 0 else str(n)


def caches_figure(
    title: str, kinds: Sequence[Cache], lengths: Sequence[int], batch_size: int, lang: str
) -> Figure:
    """Draw the cache's bytes of one token on the left, of whole sequences on the right."""
    figure = new_figure(10, 4)
    left, right = figure.subplots(1, 2, width_ratios=(5, 4))
    largest = max(kind.bytes_per_token for kind in kinds)
    unit, bracket = _unit(BYTES, largest)
    names, mine = [], label("the model's own", lang)
    for place, (kind, colour) in enumerate(zip(kinds, COLOURS, strict=False)):
        left.barh([place], [kind.bytes_per_token / unit], color=colour, height=0.66)
        text = f" {units.gib(kind.bytes_per_token)}"
        left.text(kind.bytes_per_token / unit, place, text, va="center", fontsize=8)
        sizes = ", ".join(f"{name} = {size}" for name, size in kind.sizes.items())
        own = f"\n({mine})" if kind.own else ""
        names.append(f"{kind.kind}\n{sizes}{own}")
        right.plot(
            lengths,
            [batch_size * n * kind.bytes_per_token / 2**30 for n in lengths],
            "o-",
            color=colour,
            markersize=3.5,
            linewidth=2.4 if kind.own else 1.3,
            label=kind.kind,
        )
    left.set_yticks(range(len(kinds)), names)
    left.set_ylim(len(kinds) - 0.5, -0.5)
    left.set_xlim(0, 1.2 * largest / unit)
    left.set_xlabel(label("KV cache of one token, all layers", lang) + bracket)
    left.tick_params(axis="y", length=0)
    left.grid(axis="x")
    right.set_xscale("log", base=2)
    right.set_yscale("log", base=2)
    right.set_xticks(lengths, [short_tokens(n) for n in lengths])
    right.set_xticks([], minor=True)
    right.yaxis.set_major_formatter(lambda x, _: f"{x:g}" if x >= 1 else f"1/{1 / x:.0f}")
    right.set_yticks([], minor=True)
    right.set_xlabel(
        f"{label('tokens of the sequence', lang)}, {label('batch', lang)} {batch_size}"
    )
    right.set_ylabel(f"{label('KV cache', lang)} [GiB = 2^30 B]")
    right.grid(which="major")
    right.legend(loc="upper left")
    heading = f"{plain(title)}: {label('every layer keeps every token', lang)}"
    figure.suptitle(heading, x=0.01, ha="left", fontsize=9)
    return figure


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
        axes.set_title(label(name, lang), loc="left")
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
    steps = (abs(b - a) > JUMP for a, b in pairwise(values))
    return [float("nan") if jump else v for v, jump in zip(values, [False, *steps], strict=True)]


def mesh_figure(sharded: Sharded, job: str) -> Figure:
    """Draw stages below each other: a row for each tp index, a column for each of dp and cp."""
    import numpy as np

    mesh = sharded.job.mesh
    held = np.zeros(mesh.world)
    for kind in sharded.kinds:
        for first, last, step in kind.ranks:
            held[first : last + 1 : step] = kind.total_bytes
    rows = held.reshape(mesh.pp, mesh.shard, mesh.tp).transpose(0, 2, 1)
    figure = new_figure(9, min(9, 2 + 0.35 * mesh.pp + 0.08 * mesh.pp * mesh.tp))
    axes = figure.subplots()
    drawn = axes.imshow(
        rows.reshape(mesh.pp * mesh.tp, mesh.shard) / 2**30,
        cmap="cividis",
        aspect="auto",
        interpolation="nearest",
        vmin=0,
    )
    for stage in range(1, mesh.pp):
        axes.axhline(stage * mesh.tp - 0.5, color="white", linewidth=1.5)
    middles = [stage * mesh.tp + (mesh.tp - 1) / 2 for stage in range(mesh.pp)]
    few = range(0, mesh.pp, -(-mesh.pp // 16))
    names = [f"stage {stage}\n{_between(rows[stage].min(), rows[stage].max())}" for stage in few]
    axes.set_yticks([middles[stage] for stage in few], names)
    axes.set_xticks(range(0, mesh.shard, -(-mesh.shard // 16)))
    axes.set_ylabel(f"tp 0 to {mesh.tp - 1} in each stage" if mesh.tp > 1 else "stages")
    ranks = f"dp rank, {mesh.dp} in all" if mesh.cp == 1 else f"dp {mesh.dp} · cp {mesh.cp}: rank"
    axes.set_xlabel(ranks)
    figure.colorbar(drawn, ax=axes, label="memory of a rank [GiB = 2^30 B]")
    title = f"{plain(sharded.name)} on {units.exact(mesh.world)} ranks: {mesh}\n{job}"
    figure.suptitle(title, x=0.01, ha="left", fontsize=9)
    return figure


def _between(least: float, most: float) -> str:
    first, last = units.gib(int(least)), units.gib(int(most))
    return first if first == last else f"{first} to {last}"
