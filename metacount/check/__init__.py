"""Judging somebody's formula for a count: equal for all sizes, equal here, or wrong and why."""

from __future__ import annotations

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.check.judgement import Counterexample, Judgement, Term
    from metacount.check.verdict import check

__all__ = ["Counterexample", "Judgement", "Term", "check"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    home = "verdict" if name == "check" else "judgement"
    return getattr(import_module(f"{__name__}.{home}"), name)
