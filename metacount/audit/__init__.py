"""The formulas that frameworks and papers use, each judged by the machinery of `check`.

`data/` holds them, a file for each source; `record` reads it, `judge` says what their names
stand for, decides at a model and in the catalog, and puts one run under all.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.audit.judge import Audited, Found, Utilization, audit, mfu
    from metacount.audit.record import Formula, Source, formulas

__all__ = ["Audited", "Formula", "Found", "Source", "Utilization", "audit", "formulas", "mfu"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from metacount.audit import judge, record

    return getattr(record if name in ("Formula", "Source", "formulas") else judge, name)
