"""`metacount formula`: the closed form of a count."""

from __future__ import annotations

from metacount.commands import json_text, prepare_for_torch
from metacount.options import add_model, add_workload, workload_of
from metacount.resolve import Foreign, InputError, find_any, find_model, shown

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from metacount.commands import Result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from metacount.closed_form import QUANTITIES

    add_model(parser, several=False)
    parser.add_argument(
        "--quantity",
        default="params",
        metavar="NAME",
        help=f"{', '.join(QUANTITIES)} (default params); with --from-code also state_bytes",
    )
    parser.add_argument(
        "--from-code",
        action="store_true",
        help="read it off transformers' code instead, run with symbols for the config's sizes",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--latex", action="store_true", help="print LaTeX")
    form.add_argument("--python", action="store_true", help="print a Python function")
    form.add_argument("--json", action="store_true", help="print JSON")
    add_workload(parser)


def run(args: argparse.Namespace) -> Result:
    from metacount.closed_form import QUANTITIES, closed_form

    if args.from_code:
        return _from_code(args)
    _check_quantity(args.quantity, QUANTITIES)
    model = find_model(args.model, args.settings)
    from metacount.figures import fitted

    workload = fitted(model.spec, workload_of(args))
    from metacount.views import formula

    form = closed_form(model.spec, workload, args.quantity)
    if args.json:
        return json_text(formula.formula_data(model, form)), 0
    if args.latex:
        return formula.latex_text(model, form), 0
    if args.python:
        return formula.python_text(model, form), 0
    return formula.formula_text(model, form), 0


def _check_quantity(quantity: str, known: Iterable[str]) -> None:
    if quantity not in known:
        from metacount.spec import nearest

        close = nearest(quantity, known, f"choose one of {', '.join(known)}")
        raise InputError(f"--quantity '{shown(quantity)}' is unknown; {close}")


def _from_code(args: argparse.Namespace) -> Result:
    """The form that transformers' code has, in the names of its config."""
    model = find_any(args.model, args.settings)
    if model.source is None:
        raise InputError(
            f"--from-code reads transformers' code: {shown(model.id)} names none; give a "
            "config.json, a repository id, or type:NAME"
        )
    prepare_for_torch()
    from metacount.tracing.forms import QUANTITIES, NotTraced, Tracer
    from metacount.views import code_form

    _check_quantity(args.quantity, QUANTITIES)
    workload = workload_of(args)
    if not isinstance(model, Foreign):
        from metacount.figures import fitted

        workload = fitted(model.spec, workload)
    try:
        form = Tracer(model.source.config, workload).form(args.quantity)
    except NotTraced as error:
        raise InputError(f"{shown(model.id)}: no form of {args.quantity}: {error}") from None
    if args.json:
        return json_text(code_form.code_form_data(model.id, model.name, form)), 0
    if args.latex:
        return code_form.code_form_latex(model.name, form), 0
    if args.python:
        return code_form.code_form_python(model.name, form), 0
    return code_form.code_form_text(model.name, form), 0
