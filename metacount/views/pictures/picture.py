"""Pictures: one look for all of them, and the file they end in. matplotlib is loaded here alone."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from metacount.errors import InputError, shown
from metacount.output_file import check_writable, write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENDINGS = (".svg", ".png", ".pdf")

# Okabe and Ito's colours, which people with any colour vision can tell apart, and two greys.
COLOURS = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
    "#F0E442",
    "#555555",
    "#999999",
)

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
        said = f"'{shown(ending)}'" if ending else "no ending"
        raise InputError(f"-o must end in {', '.join(ENDINGS)}: got {said} in {shown(file)}")
    check_writable("-o", file)


def new_figure(width: float, height: float) -> Figure:
    """Make an empty figure of a size in inches, whose parts make room for each other."""
    import matplotlib
    from matplotlib.figure import Figure

    settings: Any = matplotlib.rcParams  # its keys are typed one by one
    settings.update(LOOK)
    return Figure(figsize=(width, height), layout="constrained")


def plain(text: str) -> str:
    """Write somebody's text in letters that can be drawn; a $ is one, no start of a formula."""
    from metacount.views.pictures.fonts import known_letters

    return known_letters(text).replace("$", r"\$")


def save(figure: Figure, file: str) -> None:
    """Write the picture, without the date that would make each one different."""
    from io import BytesIO

    from metacount.views.pictures.fonts import give_letters

    ending = os.path.splitext(file)[1].lower()
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {}}[ending]
    give_letters(figure)
    drawn = BytesIO()
    figure.savefig(drawn, format=ending[1:], metadata=metadata)
    write_whole("-o", file, drawn.getvalue())
