"""`metacount formula`: the closed form of a count."""

from __future__ import annotations

from metacount.commands import json_text
from metacount.options import add_model, add_workload, workload_of
from metacount.resolve import InputError, find_model, shown

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse

    from metacount.commands import Result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from metacount.closed_form import QUANTITIES

    add_model(parser, several=False)
    parser.add_argument(
        "--quantity",
        default="params",
        metavar="NAME",
        help=f"{', '.join(QUANTITIES)} (default params)",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--latex", action="store_true", help="print LaTeX")
    form.add_argument("--python", action="store_true", help="print a Python function")
    form.add_argument("--json", action="store_true", help="print JSON")
    add_workload(parser)


def run(args: argparse.Namespace) -> Result:
    from metacount.closed_form import QUANTITIES, closed_form

    if args.quantity not in QUANTITIES:
        from metacount.spec import nearest

        known = nearest(args.quantity, QUANTITIES, f"choose one of {', '.join(QUANTITIES)}")
        raise InputError(f"--quantity '{shown(args.quantity)}' is unknown; {known}")
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
