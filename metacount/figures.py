"""Every figure of a model once: its name, its unit, what it means, which models have it.

They stand in `figures.tsv`, a row each. Texts, tables, `--columns`, `diff`, `formula`, `check`,
pictures, the page and the README read them.
"""

from __future__ import annotations

from metacount import units
from metacount.files import Json
from metacount.frozen import frozen
from metacount.package import table_of_package

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


VALUES, BYTES, FLOPS, MACS = "values", "bytes", "FLOP", "MAC"
SHORTENED: dict[str, Callable[[int], str]] = {
    VALUES: units.short,
    BYTES: units.gib,
    FLOPS: units.flops,
    MACS: units.macs,
}
QUANTISATION, TOWERS = "a quantisation", "parts that are not of text"
MTP = "multi-token-prediction modules"


@frozen
class Figure:
    """One quantity: its unit, its meaning in a few words beside its name and in a whole line.

    `run`: the letters of a workload that it depends on: B sequences, S tokens of each, T positions
    before a new token, c bytes of a value. `has`: what a model without it lacks; "" of all models.
    """

    unit: str
    brief: str
    meaning: str
    run: str = ""
    has: str = ""

    @property
    def short(self) -> Callable[[int], str]:
        """What writes a value of it in three digits and a unit."""
        return SHORTENED[self.unit]


def _figures() -> dict[str, Figure]:
    figures = {}
    for name, (unit, brief, meaning, *rest) in table_of_package("figures.tsv").items():
        run, has = (*rest, "", "")[:2]
        figures[name] = Figure(unit=unit, brief=brief, meaning=meaning, run=run, has=has)
    return figures


FIGURES = _figures()
# What `train` says of a step beside what `count` prints, in its order.
OF_A_STEP = {
    name: FIGURES[name]
    for name in (
        "backward_matmul_flops",
        "train_matmul_flops",
        "recompute_matmul_flops",
        "activation_bytes",
        "gradient_bytes",
        "optimizer_bytes",
        "peak_bytes",
    )
}
COUNTED = {name: figure for name, figure in FIGURES.items() if name not in OF_A_STEP}
# Of few models; of others nobody knows them, where what a model lacks is 0 (a state, a cache).
OF_SOME = tuple(name for name, figure in COUNTED.items() if figure.has in (QUANTISATION, TOWERS))
OF_MTP = tuple(name for name, figure in COUNTED.items() if figure.has == MTP)


def is_shown(name: str, values: Iterable[int | None]) -> bool:
    """Tell whether a figure is shown: what few models have is left out where no value is above 0.

    >>> is_shown("params", [0]), is_shown("state_bytes", [0, None]), is_shown("state_bytes", [7])
    (True, False, True)
    """
    return not FIGURES[name].has or any(values)


# What witnesses are asked of prediction modules, which are counted apart.
PREDICTED = (
    "mtp_params",
    "mtp_active_params",
    "mtp_matmul_flops",
    "mtp_causal_matmul_flops",
    "mtp_decode_matmul_flops",
    "mtp_kv_cache_bytes",
)
# What witnesses are asked. Each is one integer, or None where a witness has no opinion.
QUANTITIES = (
    "params",
    "active_params",
    "active_params_no_embed",
    "matmul_flops",
    "causal_matmul_flops",
    "decode_matmul_flops",
    "kv_cache_bytes_per_token",
    "kv_cache_bytes",
    "cross_kv_cache_bytes",
    "state_bytes",
    *PREDICTED,
)

# The same, role by role; and buffers by name. Compared too, so that no two errors cancel.
BREAKDOWNS = (
    "by_role",
    "active_by_role",
    "matmul_flops_by_role",
    "causal_matmul_flops_by_role",
    "decode_matmul_flops_by_role",
    "buffers",
    "mtp_by_role",
    "mtp_matmul_flops_by_role",
)


@frozen
class Witness:
    """One independent opinion on a model: `figures` by quantity, `parts` by breakdown."""

    name: str
    figures: dict[str, int | None]
    parts: dict[str, dict[str, int] | None]
    detail: str

    def to_dict(self) -> Json:
        """Return plain data, every quantity under its own name."""
        return {"name": self.name, **self.figures, **self.parts, "detail": self.detail}
