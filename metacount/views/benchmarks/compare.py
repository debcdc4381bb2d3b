"""Two runs of a benchmark side by side, as text."""

from __future__ import annotations

from metacount.views.layout import WIDEST_TEXT, bold, columns, paragraph, table, wrapped

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.bench.saved import Comparison

HEADS = ("case", "variant", "state", "old", "new", "change", "")
NOTE = (
    "! where the intervals of the two medians (95 %) do not touch: the runs differ by more than "
    "either of them varied within itself; ? where a run had too few rounds for an interval."
)


def compare_text(found: Comparison) -> str:
    """Write every point of both runs with its change, and the median of the changes."""
    width = min(columns(), WIDEST_TEXT)
    lines = ["", bold("beside the older run")]
    for name, (old, new) in found.places.items():
        lines += paragraph(name, f"was {old}, is {new}", width)
    if found.pairs:
        body = [
            (
                f"{pair.line['model']} {'/'.join(map(str, pair.line['workload'].values()))} "
                f"{pair.line['dtype']}",
                pair.line["variant"],
                f"{pair.line['state']} {pair.line['launch']}",
                _time(pair.old_s),
                _time(pair.new_s),
                f"{pair.change * 100:+.1f} %",
                {True: "!", False: "", None: "?"}[pair.apart],
            )
            for pair in found.pairs
        ]
        lines += table(HEADS, body, "<<<>>><")
        lines += wrapped(NOTE, width)
    middle = found.median_change
    said = (
        "no point is in both"
        if middle is None
        else (f"{len(found.pairs)} points in both, apart by {middle * 100:.1f} % in the middle")
    )
    lines += wrapped(f"{said}; only new {found.only_new}, only old {found.only_old}", width)
    return "\n".join(lines) + "\n"


def _time(seconds: float) -> str:
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= scale:
            return f"{seconds / scale:.4g} {unit}"
    return f"{seconds / 1e-6:.4g} µs"
