"""`metacount verify`: every witness of a model side by side."""

from __future__ import annotations

from metacount.commands import EXIT_DISAGREE, json_text, prepare_for_torch
from metacount.options import MODEL_HELP, add_json, add_settings, add_workload, workload_of
from metacount.resolve import Foreign, InputError, Model, find_any

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence
    from typing import Any

    from metacount.commands import Result
    from metacount.spec import Workload
    from metacount.witnesses import Verification


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", nargs="*", help=MODEL_HELP)
    parser.add_argument("--all", action="store_true", help="every model of the catalog")
    add_settings(parser)
    add_workload(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> Result:
    from metacount import catalog

    if args.all == bool(args.model):
        raise InputError("verify needs either MODEL or --all; see `metacount verify --help`")
    workload = workload_of(args)
    names = args.model or [entry.id for entry in catalog.entries() if entry.sizes is not None]
    models = [find_any(name, args.settings) for name in names]
    from metacount.figures import fitted

    for model in models:
        if isinstance(model, Model):
            fitted(model.spec, workload)  # what cannot run is said before the first slow step
    prepare_for_torch()
    done = _with_progress(lambda model: _verified(model, workload), models, "verifying")
    code = 0 if all(result.agree for result in done) else EXIT_DISAGREE
    if args.json:
        data = [result.to_dict() for result in done]
        return json_text(data if len(data) > 1 else data[0]), code
    from metacount.views.verify import verification_text, verifications_text

    if len(done) == 1:
        return verification_text(done[0], models[0].name), code
    return verifications_text(done), code


def _with_progress(run: Callable[[Any], Any], items: Sequence[Any], doing: str) -> list[Any]:
    """`run` of each item, with a bar on stderr when there are several."""
    if len(items) == 1:
        return [run(items[0])]
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(doing, total=len(items))
        done = []
        for item in items:
            done.append(run(item))
            bar.advance(task)
    return done


def _verified(model: Model | Foreign, workload: Workload) -> Verification:
    from metacount.witnesses import verify

    if isinstance(model, Foreign):
        why = f"no formula and no reference module: {model.problem}"
        return verify(model.id, None, workload, source=model.source, notes=(why,))
    notes = model.notes
    if model.changes:
        changed = ", ".join(f"{name}={value}" for name, value in model.changes.items())
        notes += (f"changed {changed}: nothing published, no config and no checkpoint is of this",)
    return verify(
        model.id,
        model.spec,
        workload,
        entry=model.published,
        source=model.source,
        notes=notes,
    )
