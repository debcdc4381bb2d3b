"""`metacount verify`: every witness of a model side by side."""

from __future__ import annotations

from contextlib import suppress

from metacount.commands import json_text, prepare_for_torch
from metacount.commands.options import (
    MODEL_HELP,
    add_json,
    add_settings,
    add_workload,
    check_quantity,
    request_of,
)
from metacount.errors import EXIT_DISAGREE, EXIT_INTERRUPTED, InputError, interrupted, shown
from metacount.resolve import Model, find_any
from metacount.settings.values import bytes_size

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    from metacount.commands import Result
    from metacount.files import Json
    from metacount.given import TransformersOnly
    from metacount.spec import Request
    from metacount.verify.cases import Case
    from metacount.verify.compare import Verification
    from metacount.verify.for_all_sizes import Proof
    from metacount.verify.forward import Forward

    Item = TypeVar("Item")
    Found = TypeVar("Found")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", nargs="*", help=MODEL_HELP)
    parser.add_argument("--all", action="store_true", help="every model of the catalog")
    parser.add_argument(
        "--all-sizes",
        action="store_true",
        help="also show that the formulas less the forms read off code are zero for all sizes of a "
        "domain, which is printed: transformers' code of a config, our reference modules of a name "
        "of the catalog",
    )
    parser.add_argument(
        "--quantity",
        action="append",
        metavar="NAME",
        help="with --all-sizes: of a training step (backward_matmul_flops, activation_bytes, ..., "
        "as `formula` names them) instead of a forward's; may be repeated",
    )
    parser.add_argument(
        "--forward",
        choices=("cpu", "cuda"),
        help="also run transformers' module and the reference on this device, in float32 with the "
        "same random weights, and compare their logits; of 16 tokens without --seq",
    )
    parser.add_argument(
        "--memory",
        metavar="SIZE",
        help="with --forward: what a module may take of the device (default all); what is over "
        "runs through accelerate's dispatch, from CUDA to the CPU, from the CPU to disk",
    )
    add_settings(parser)
    add_workload(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> Result:
    from metacount import catalog

    if args.all == bool(args.model):
        raise InputError("verify needs either MODEL or --all; see `metacount verify --help`")
    request = request_of(args)
    asked = _quantities(args)
    names = args.model or [entry.id for entry in catalog.entries() if entry.sizes is not None]
    models = [find_any(name, args.settings) for name in names]
    memory = _checked(args, models, request)
    prepare_for_torch()
    from metacount.verify.compare import verify_model

    done = _with_progress(lambda model: verify_model(model, request), models, "verifying")
    code = 0 if all(result.agree for result in done) else EXIT_DISAGREE
    said = interrupted(len(done), len(models), "models") if len(done) < len(models) else ""
    proofs: list[list[tuple[Case, tuple[Proof, ...]]]] = []
    if args.all_sizes and not said:
        formulas = [model for model in models if isinstance(model, Model)]
        proofs = _with_progress(lambda model: _proved(model, asked), formulas, "proving")
        if any(proof.differences for cases in proofs for _, found in cases for proof in found):
            code = EXIT_DISAGREE
        if len(proofs) < len(models):
            said = interrupted(len(proofs), len(models), "models' proofs")
    asked_forwards = models if args.forward and not said else []
    forwards = _with_progress(
        lambda model: _forward(model, args, memory), asked_forwards, "running forwards"
    )
    if any(found.agree is False for found in forwards):
        code = EXIT_DISAGREE
    if len(forwards) < len(asked_forwards):
        said = interrupted(len(forwards), len(models), "models' forwards")
    code = EXIT_INTERRUPTED if said else code
    if args.json:
        data = _data(done, proofs, forwards)
        return json_text(data if len(models) > 1 else data[0]), code
    from metacount.views.verify import forward_text, verification_text, verifications_text

    if not done:
        return "", code
    text = (
        verification_text(done[0], models[0].name) if len(models) == 1 else verifications_text(done)
    )
    text += "".join(_proofs(model, p, request) for model, p in zip(models, proofs, strict=False))
    text += "".join(
        forward_text(model.name, forward) for model, forward in zip(models, forwards, strict=False)
    )
    return text + (f"\n{said}\n" if said else ""), code


def _data(
    done: Sequence[Verification],
    proofs: Sequence[list[tuple[Case, tuple[Proof, ...]]]],
    forwards: Sequence[Forward],
) -> list[Json]:
    """Return plain data, an object a model; proofs and forwards are fewer after an interrupt."""
    data = [result.to_dict() for result in done]
    if proofs:
        from metacount.views.proofs import proofs_data

        for one, p in zip(data, proofs, strict=False):
            one["all_sizes"] = proofs_data(p)
    for one, forward in zip(data, forwards, strict=False):
        one["forward"] = forward.to_dict()
    return data


def _checked(
    args: argparse.Namespace, models: Sequence[Model | TransformersOnly], request: Request
) -> int | None:
    """Raise for what cannot run, before the first slow step; return what --forward may take."""
    from metacount.textbook.count import fitted

    for model in models:
        if isinstance(model, Model):
            fitted(model.spec, request)
        elif args.all_sizes:
            raise InputError(
                f"--all-sizes needs a formula: {shown(model.id)} has none; give a name from "
                "`metacount models`, a config.json, a repository id, or type:NAME of a mapped type"
            )
    if args.forward is None and args.memory is not None:
        raise InputError("--memory goes with --forward: give both, or leave it out")
    for model in models if args.forward else ():
        if not isinstance(model, Model) or model.source is None or model.refused:
            raise InputError(
                f"--forward needs a config that both sides run: {shown(model.id)} has none; give "
                "type:NAME of a mapped type, a config.json or a repository, without --set"
            )
    return None if args.memory is None else bytes_size(args.memory)


def _forward(
    model: Model | TransformersOnly, args: argparse.Namespace, memory: int | None
) -> Forward:
    """Compare the two forwards of a model's config."""
    from metacount.verify.forward import compare_forwards

    assert isinstance(model, Model)  # it was checked
    return compare_forwards(
        model, device=args.forward, memory=memory, batch_size=args.batch, seq_len=args.seq
    )


def _quantities(args: argparse.Namespace) -> tuple[str, ...]:
    """Read the quantities of a training step that are asked for."""
    from metacount.textbook.training import TRAINING

    asked = tuple(dict.fromkeys(args.quantity or ()))
    if asked and not args.all_sizes:
        raise InputError("--quantity goes with --all-sizes: give both, or leave it out")
    for name in asked:
        check_quantity(name, TRAINING)
    return asked


def _proved(model: Model, asked: tuple[str, ...]) -> list[tuple[Case, tuple[Proof, ...]]]:
    """Prove each case of a structure: all sizes as letters first, then those that it has at 1."""
    from metacount.verify.cases import cases_of_a_step, shown_cases
    from metacount.verify.for_all_sizes import prove

    read = model.spec if model.source is None else model.source.config
    return [
        (case, prove(case.model, case.workload, case.run_as, case.quantities))
        for case in (cases_of_a_step(read, asked) if asked else shown_cases(read))
    ]


def _proofs(
    model: Model | TransformersOnly,
    shown: list[tuple[Case, tuple[Proof, ...]]],
    request: Request,
) -> str:
    """Write what the record of proofs says of a model at this run, then what is proven anew."""
    from metacount.textbook.count import count
    from metacount.textbook.proven import proven_of
    from metacount.views.layout import bold, columns
    from metacount.views.proofs import proofs_text
    from metacount.views.proven import recorded_lines

    proof = proven_of(model, count(model.spec, request)) if isinstance(model, Model) else None
    lines = [] if proof is None else recorded_lines(proof, columns())
    head = ["", bold(f"{model.name}: what is recorded of these formulas")] if lines else []
    return "\n".join([*head, *lines, "", proofs_text(model.name, shown)])


def _with_progress(run: Callable[[Item], Found], items: Sequence[Item], doing: str) -> list[Found]:
    """Call `run` on each item, with a bar on stderr when there are several; Ctrl-C leaves fewer."""
    if len(items) <= 1:
        return [run(item) for item in items]
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    done: list[Found] = []
    with (
        suppress(KeyboardInterrupt),
        Progress(console=console, transient=True, disable=not console.is_terminal) as bar,
    ):
        task = bar.add_task(doing, total=len(items))
        for item in items:
            done.append(run(item))
            bar.advance(task)
    return done
