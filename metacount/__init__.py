"""metacount counts large language models exactly, and proves the formulas behind the numbers.

    >>> import metacount
    >>> metacount.count("llama-7b").params
    6738415616

Each name is loaded when it is first used, so that `import metacount` costs next to nothing.
"""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.api import count, verify
    from metacount.catalog import CatalogEntry, compare_published, entries, entry, ids
    from metacount.check import Judgement, check
    from metacount.claims import judge_claim
    from metacount.errors import InputError, SpecError
    from metacount.resolve import Model, find_model
    from metacount.spec import ModelSpec, Request, Workload
    from metacount.textbook.count import Count
    from metacount.verify.compare import Verification, Witness

# Where each public name lives. No name is also a module's: importing that would hide it.
_HOMES = {
    "CatalogEntry": "catalog",
    "compare_published": "catalog",
    "entries": "catalog",
    "entry": "catalog",
    "ids": "catalog",
    "Verification": "witnesses",
    "Witness": "witnesses",
    "verify": "api",
    "Judgement": "judge",
    "check": "judge",
    "judge_claim": "claims",
    "Count": "figures",
    "count": "api",
    "InputError": "errors",
    "Model": "resolve",
    "find_model": "resolve",
    "ModelSpec": "spec",
    "Request": "spec",
    "SpecError": "errors",
    "Workload": "spec",
}

__all__ = [
    "CatalogEntry",
    "Count",
    "InputError",
    "Judgement",
    "Model",
    "ModelSpec",
    "Request",
    "SpecError",
    "Verification",
    "Witness",
    "Workload",
    "__version__",
    "check",
    "compare_published",
    "count",
    "entries",
    "entry",
    "find_model",
    "ids",
    "judge_claim",
    "verify",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
