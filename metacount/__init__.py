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

    from metacount.api import Tree as Tree
    from metacount.api import count as count
    from metacount.api import count_training as count_training
    from metacount.api import diff as diff
    from metacount.api import flow as flow
    from metacount.api import like as like
    from metacount.api import summary as summary
    from metacount.api import tree as tree
    from metacount.api import verify as verify
    from metacount.audit import audit as audit
    from metacount.catalog import CatalogEntry as CatalogEntry
    from metacount.catalog import compare_published as compare_published
    from metacount.catalog import entries as entries
    from metacount.catalog import entry as entry
    from metacount.catalog import ids as ids
    from metacount.check import Judgement as Judgement
    from metacount.check import check as check
    from metacount.cli.lesson import Lesson as Lesson
    from metacount.cli.lesson import lesson as lesson
    from metacount.cli.page import page as page
    from metacount.cli.pictures import plot as plot
    from metacount.diff.compared import Diff as Diff
    from metacount.errors import InputError as InputError
    from metacount.errors import SpecError as SpecError
    from metacount.flow.result import Flow as Flow
    from metacount.measure.operators import price as price
    from metacount.resolve import Model as Model
    from metacount.resolve import find_model as find_model
    from metacount.sharding.fit import fit as fit
    from metacount.sharding.result import Sharded as Sharded
    from metacount.sharding.shard import shard as shard
    from metacount.spec import ModelSpec as ModelSpec
    from metacount.spec import Request as Request
    from metacount.spec import Workload as Workload
    from metacount.summary.summary import Summary as Summary
    from metacount.summary.training_step import train as train
    from metacount.teaching.claims import judge_claim as judge_claim
    from metacount.textbook.count import Count as Count
    from metacount.textbook.training import TrainingCount as TrainingCount
    from metacount.training.setup import Setup as Setup
    from metacount.training.setup import Training as Training
    from metacount.verify.compare import Verification as Verification
    from metacount.verify.compare import Witness as Witness

else:
    ModuleType = type(sys)  # without loading types

# The public names of each module.
_NAMES = {
    "api": "Tree count count_training diff flow like summary tree verify",
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
    "summary.summary": "Summary",
    "summary.training_step": "train",
    "teaching.claims": "judge_claim",
    "textbook.count": "Count",
    "textbook.training": "TrainingCount",
    "training.setup": "Setup Training",
    "verify.compare": "Verification Witness",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

if not TYPE_CHECKING:  # to type checkers, what is imported as itself above is public
    __all__ = sorted((*_HOMES, "__version__"))

# Results that print themselves, by the function that makes them: module and class.
_RESULTS = {
    "audit": ("audit.judge", "Audits"),
    "check": ("check.judgement", "Judgement"),
    "count": ("textbook.count", "Count"),
    "count_training": ("textbook.training", "TrainingCount"),
    "diff": ("diff.compared", "Diff"),
    "fit": ("sharding.fit", "Fits"),
    "flow": ("flow.result", "Flow"),
    "judge_claim": ("teaching.texts", "Verdict"),
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
    return sorted((*_HOMES, "__version__"))
