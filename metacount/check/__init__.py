"""Judging somebody's formula for a count: equal for all sizes, equal here, or wrong and why."""

from __future__ import annotations

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.check.judgement import Counterexample, Judgement, Term
    from metacount.check.verdict import check

_HOMES = {
    "Counterexample": "judgement",
    "Judgement": "judgement",
    "Term": "judgement",
    "check": "verdict",
}
__all__ = ["Counterexample", "Judgement", "Term", "check"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
