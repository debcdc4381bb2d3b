"""The KV caches of kinds of attention in one model: of one token, and over a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from metacount import units
from metacount.figures import BYTES
from metacount.views.pictures.ffn import short
from metacount.views.pictures.picture import COLOURS, new_figure, plain
from metacount.views.pictures.quantities import AXES
from metacount.views.pictures.words import say

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from metacount.textbook.series import Cache


def caches_figure(
    title: str, kinds: Sequence[Cache], lengths: Sequence[int], batch_size: int, lang: str
) -> Figure:
    """Draw the cache's bytes of one token on the left, of whole sequences on the right."""
    figure = new_figure(10, 4)
    one, whole = figure.subplots(1, 2, width_ratios=(5, 4))
    largest = max(kind.bytes_per_token for kind in kinds)
    letter, unit = next(u for u in AXES[BYTES] if largest >= u[1])
    names, mine = [], say("the model's own", lang)
    for place, (kind, colour) in enumerate(zip(kinds, COLOURS, strict=False)):
        one.barh([place], [kind.bytes_per_token / unit], color=colour, height=0.66)
        one.text(
            kind.bytes_per_token / unit,
            place,
            f" {units.gib(kind.bytes_per_token)}",
            va="center",
            fontsize=8,
        )
        sizes = ", ".join(f"{name} = {size}" for name, size in kind.sizes.items())
        own = f"\n({mine})" if kind.own else ""
        names.append(f"{kind.kind}\n{sizes}{own}")
        whole.plot(
            lengths,
            [batch_size * n * kind.bytes_per_token / 2**30 for n in lengths],
            "o-",
            color=colour,
            markersize=3.5,
            linewidth=2.4 if kind.own else 1.3,
            label=kind.kind,
        )
    one.set_yticks(range(len(kinds)), names)
    one.set_ylim(len(kinds) - 0.5, -0.5)
    one.set_xlim(0, 1.2 * largest / unit)
    power = unit.bit_length() - 1
    one.set_xlabel(f"{say('KV cache of one token, all layers', lang)} [{letter} = 2^{power} B]")
    one.tick_params(axis="y", length=0)
    one.grid(axis="x")
    whole.set_xscale("log", base=2)
    whole.set_yscale("log", base=2)
    whole.set_xticks(lengths, [short(n) for n in lengths])
    whole.set_xticks([], minor=True)
    whole.yaxis.set_major_formatter(lambda x, _: f"{x:g}" if x >= 1 else f"1/{1 / x:.0f}")
    whole.set_yticks([], minor=True)
    whole.set_xlabel(f"{say('tokens of the sequence', lang)}, {say('batch', lang)} {batch_size}")
    whole.set_ylabel(f"{say('KV cache', lang)} [GiB = 2^30 B]")
    whole.grid(which="major")
    whole.legend(loc="upper left")
    said = f"{plain(title)}: {say('every layer keeps every token', lang)}"
    figure.suptitle(said, x=0.01, ha="left", fontsize=9)
    return figure
