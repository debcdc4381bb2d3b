"""metacount counts large language models exactly, and proves the formulas behind the numbers.

    >>> import metacount
    >>> metacount.count("llama-7b").params
    6738415616

Each name is loaded when it is first used, so that `import metacount` costs next to nothing.
"""

from __future__ import annotations

__version__ = "0.1.0"

import sys

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from metacount.api import Tree, count, diff, flow, like, summary, tree, verify
    from metacount.audit import audit
    from metacount.catalog import CatalogEntry, compare_published, entries, entry, ids
    from metacount.check import Judgement, check
    from metacount.cli.lesson import Lesson, lesson
    from metacount.cli.page import page
    from metacount.cli.pictures import plot
    from metacount.diff.compared import Diff
    from metacount.errors import InputError, SpecError
    from metacount.flow.result import Flow
    from metacount.measure.operators import price
    from metacount.resolve import Model, find_model
    from metacount.sharding.fit import fit
    from metacount.sharding.result import Sharded
    from metacount.sharding.shard import shard
    from metacount.spec import ModelSpec, Request, Workload
    from metacount.summary.counted import count_training
    from metacount.summary.summary import Summary
    from metacount.summary.training_step import train
    from metacount.teaching.claims import judge_claim
    from metacount.textbook.count import Count
    from metacount.textbook.training import TrainingCount
    from metacount.training.setup import Setup, Training
    from metacount.verify.compare import Verification, Witness

else:
    ModuleType = type(sys)  # without loading types

# The public names of each module.
_NAMES = {
    "api": "Tree count diff flow like summary tree verify",
    "audit.judge": "audit",
    "catalog": "CatalogEntry compare_published entries entry ids",
    "check.judgement": "Judgement",
    "check.verdict": "check",
    "cli.lesson": "Lesson lesson",
    "cli.page": "page",
    "cli.pictures": "plot",
    "diff.compared": "Diff",
    "errors": "InputError SpecError",
    "flow.result": "Flow",
    "measure.operators": "price",
    "resolve": "Model find_model",
    "sharding.fit": "fit",
    "sharding.result": "Sharded",
    "sharding.shard": "shard",
    "spec": "ModelSpec Request Workload",
    "summary.counted": "count_training",
    "summary.summary": "Summary",
    "summary.training_step": "train",
    "teaching.claims": "judge_claim",
    "textbook.count": "Count",
    "textbook.training": "TrainingCount",
    "training.setup": "Setup Training",
    "verify.compare": "Verification Witness",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = [
    "CatalogEntry",
    "Count",
    "Diff",
    "Flow",
    "InputError",
    "Judgement",
    "Lesson",
    "Model",
    "ModelSpec",
    "Request",
    "Setup",
    "Sharded",
    "SpecError",
    "Summary",
    "Training",
    "TrainingCount",
    "Tree",
    "Verification",
    "Witness",
    "Workload",
    "__version__",
    "audit",
    "check",
    "compare_published",
    "count",
    "count_training",
    "diff",
    "entries",
    "entry",
    "find_model",
    "fit",
    "flow",
    "ids",
    "judge_claim",
    "lesson",
    "like",
    "page",
    "plot",
    "price",
    "shard",
    "summary",
    "train",
    "tree",
    "verify",
]


# Results that print themselves, by the function that makes them: module and class.
_RESULTS = {
    "audit": ("audit.judge", "Audits"),
    "check": ("check.judgement", "Judgement"),
    "count": ("textbook.count", "Count"),
    "count_training": ("textbook.training", "TrainingCount"),
    "diff": ("diff.compared", "Diff"),
    "fit": ("sharding.fit", "Fits"),
    "flow": ("flow.result", "Flow"),
    "judge_claim": ("teaching.claim", "Verdict"),
    "shard": ("sharding.result", "Sharded"),
    "summary": ("summary.summary", "Summary"),
    "train": ("training.setup", "Training"),
    "tree": ("api", "Tree"),
    "verify": ("verify.compare", "Verification"),
}


class _Package(ModuleType):
    """This package: `metacount.check` and `metacount.verify` are functions, not their folders."""

    def __setattr__(self, name: str, value: object) -> None:
        # importing a module of a folder binds the folder here, under the function's name
        if name not in _HOMES or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    for made in ("summary", "flow") if name == "summary" else (name,):
        if made in _RESULTS:
            home, kind = _RESULTS[made]
            _let_print_itself(getattr(import_module(f"{__name__}.{home}"), kind))
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def _let_print_itself(kind: type) -> None:
    """Make results of a class text in a terminal, and HTML in a notebook."""

    from importlib import import_module

    def shown(how: str) -> Callable[[object], str]:
        return lambda result: str(getattr(import_module(f"{__name__}.cli.results"), how)(result))

    methods = {"__str__": "text_of", "__repr__": "text_of", "_repr_html_": "html_of"}
    if kind.__name__ == "Summary":
        methods["to_markdown"] = "summary_markdown"
    for name, how in methods.items():
        setattr(kind, name, shown(how))


def __dir__() -> list[str]:
    return sorted(__all__)
