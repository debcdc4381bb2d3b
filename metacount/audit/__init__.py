"""The formulas that frameworks and papers use, each judged by the machinery of `check`.

`data/` holds them, a file for each source; `record` reads it, `names` says what their names stand
for, `judge` decides at one model, `report` goes through the catalog, `mfu` puts one run under all.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.audit.judge import Found
    from metacount.audit.mfu import Utilization, mfu
    from metacount.audit.record import Formula, Source, formulas
    from metacount.audit.report import Audited, audit

_HOMES = {
    "Audited": "report",
    "Formula": "record",
    "Found": "judge",
    "Source": "record",
    "Utilization": "mfu",
    "audit": "report",
    "formulas": "record",
    "mfu": "mfu",
}
__all__ = ["Audited", "Formula", "Found", "Source", "Utilization", "audit", "formulas", "mfu"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
