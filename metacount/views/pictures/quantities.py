"""One quantity of several models, values or lengths: stacked bars, absolute and in percent."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from metacount.errors import InputError
from metacount.figures import BYTES, FIGURES, FLOPS, MACS, VALUES
from metacount.views.pictures.fonts import give_letters
from metacount.views.pictures.picture import COLOURS, new_figure, plain
from metacount.views.pictures.words import say

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from metacount.resolve import Given
    from metacount.textbook.series import Bar

LEAST_LABELLED = 0.06  # of a bar; a smaller part has no room for its percentage
DARK = ("#0072B2", "#009E73", "#D55E00", "#555555")  # white text reads better on these
MOST_BARS = 40
WIDEST_NAME = 30  # letters of one line of a name
WIDEST_NOTE = 150
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
PARTS = (
    "embedding",
    "position",
    "attention",
    "recurrent",
    "ffn",
    "moe",
    "norm",
    "head",
    "other",
    "self-attention",
    "cross-attention",
    "conv",
)
COLOUR_OF = {
    part: COLOURS[i] for part, i in zip(PARTS, (0, 1, 2, 8, 4, 3, 6, 5, 7, 2, 1, 0), strict=True)
}


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

    found = [model_of(model) for model in models]
    requests = [Request(seq_len=n) for n in seq_lens] or [Request()]
    figure = quantities_figure(
        bars([(one.name, one) for one in found], requests, quantity), quantity, lang
    )
    give_letters(figure)
    return figure


def quantities_figure(bars: Sequence[Bar], quantity: str, lang: str = "en") -> Figure:
    """Draw one bar for each of `bars`, absolute on the left, percent on the right."""
    runs = bool(FIGURES[quantity].run)  # what is stored is the same whatever is run
    rows = [(_name(bar, bars, lang) if runs else bar.label, bar.parts) for bar in bars]
    notes = _notes(bars) if runs else []
    return _figure(rows, quantity, lang, said=_said(bars, quantity, lang), notes=notes)


def _notes(bars: Sequence[Bar]) -> list[str]:
    """Write each warning once, after the model, or after how many models it is of."""
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
    at = f"{say('seq', lang)} {bar.run.seq_len:,}"
    same_length = len({one.run.seq_len for one in bars}) == 1
    same_label = len({one.label for one in bars}) == 1
    if same_length:
        return bar.label
    return at if same_label else f"{bar.label}, {at}"


def _said(bars: Sequence[Bar], quantity: str, lang: str) -> str:
    """Say what all bars share: the model where it is not beside them, and what is run."""
    models, lengths = {bar.model for bar in bars}, {bar.run.seq_len for bar in bars}
    run = bars[0].run
    found = []
    if FIGURES[quantity].run:
        found = [f"{say('batch', lang)} {run.batch_size:,}"]
        found += [f"{say('seq', lang)} {run.seq_len:,}"] if len(lengths) == 1 else []
        found += [run.dtype] if "c" in FIGURES[quantity].run else []
    beside = len(bars) == 1 or any(bar.label != bar.model for bar in bars) or len(lengths) > 1
    name = [bars[0].model] if len(models) == 1 and beside and len(bars) > 1 else []
    return ": ".join(filter(None, [*name, ", ".join(found)]))


def _figure(
    rows: Sequence[tuple[str, dict[str, int]]],
    quantity: str,
    lang: str,
    *,
    said: str,
    notes: Sequence[str],
) -> Figure:
    if len(rows) > MOST_BARS:
        raise InputError(f"{len(rows)} bars are too many for one picture, at most {MOST_BARS}")
    totals = [sum(parts.values()) for _, parts in rows]
    if not any(totals):
        raise InputError(f"there is nothing to draw: {quantity} is 0 for all that was asked for")
    parts = [part for part in PARTS if any(found.get(part) for _, found in rows)]
    names = [plain("\n".join(textwrap.wrap(name, WIDEST_NAME))) for name, _ in rows]
    lines = max(name.count("\n") + 1 for name in names)
    # one part alone has no shares
    figure = new_figure(10, 1.4 + max(0.5, 0.2 * lines) * max(2, len(rows)) + 0.2 * len(notes))
    axes = figure.subplots(1, 2 if len(parts) > 1 else 1, sharey=True, squeeze=False)[0]
    _bars(axes, rows, totals, parts, _unit(quantity, max(totals)), lang)
    for place, total in enumerate(totals):
        axes[0].text(
            total / _unit(quantity, max(totals)),
            place,
            f" {FIGURES[quantity].short(total)}",
            va="center",
            fontsize=8,
        )
    axes[0].set_yticks(range(len(rows)), names)
    axes[0].set_ylim(len(rows) - 0.5, -0.5)  # the first one on top
    _labels(axes, quantity, max(totals), lang)
    if said:
        axes[0].set_title(plain(said), loc="left", fontsize=9)
    handles, labels = axes[0].get_legend_handles_labels()
    if len(parts) > 1:
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
    if notes:
        below = [line for note in notes for line in textwrap.wrap(note, WIDEST_NOTE)]
        figure.supxlabel(plain("\n".join(below)), x=0.01, ha="left", fontsize=7.5, color="#555555")
    return figure


def _bars(
    axes: Sequence[Axes],
    rows: Sequence[tuple[str, dict[str, int]]],
    totals: Sequence[int],
    shown: Sequence[str],
    unit: int,
    lang: str,
) -> None:
    places, lefts = range(len(rows)), [0] * len(rows)
    for part in shown:
        colour = COLOUR_OF[part]
        values = [parts.get(part, 0) for _, parts in rows]
        axes[0].barh(
            places,
            [v / unit for v in values],
            left=[x / unit for x in lefts],
            color=colour,
            label=say(part, lang),
            height=0.66,
        )
        if len(shown) > 1:
            _shares(axes[1], values, lefts, totals, colour)
        lefts = [x + v for x, v in zip(lefts, values, strict=True)]


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
            axes.text(
                start + share / 2,
                place,
                text,
                ha="center",
                va="center",
                fontsize=8,
                color="white" if colour in DARK else "black",
            )


def _labels(axes: Sequence[Axes], quantity: str, largest: int, lang: str) -> None:
    letter, unit = _unit_of(quantity, largest)
    name = "parameters" if quantity == "params" else quantity
    thousands = say("powers of 1000", lang)
    if FIGURES[quantity].unit == BYTES:
        bracket = f" [{letter}]" if unit == 1 else f" [{letter} = 2^{unit.bit_length() - 1} B]"
    else:
        bracket = f" [{letter}, {thousands}]" if unit > 1 else ""
    axes[0].set_xlabel(say(name, lang) + bracket)
    axes[0].set_xlim(0, (1.14 if FIGURES[quantity].unit == VALUES else 1.2) * largest / unit)
    for one in axes:
        one.grid(axis="x")
        one.tick_params(axis="y", length=0)
    if len(axes) > 1:
        share = "share of the parameters" if quantity == "params" else "share"
        axes[1].set_xlabel(f"{say(share, lang)} [%]")
        axes[1].set_xlim(0, 100)


def _unit(quantity: str, largest: int) -> int:
    return _unit_of(quantity, largest)[1]


def _unit_of(quantity: str, largest: int) -> tuple[str, int]:
    known = AXES[FIGURES[quantity].unit]
    return next((u for u in known if largest >= u[1]), known[-1])
