"""`metacount check`: somebody's own formula against what the model has."""

from __future__ import annotations

from metacount.commands import json_text
from metacount.commands.options import (
    WAYS,
    add_json,
    add_model,
    add_quantity,
    add_workload,
    check_quantity,
    request_of,
)
from metacount.errors import EXIT_DISAGREE, InputError, shown
from metacount.resolve import file_and_name, find_model

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse

    from metacount.check import Judgement
    from metacount.commands import Result
    from metacount.resolve import Model
    from metacount.spec import Request

MAX_TIMEOUT = 3600


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from metacount.textbook.closed_form import COUNTS

    parser.add_argument(
        "formula",
        metavar="FORMULA",
        help='FILE.py:FUNCTION, or an expression: "12*n_layers*d_model**2"; sizes are named in '
        "our words, our letters or a config's",
    )
    add_model(parser, several=False)
    add_quantity(parser, COUNTS, WAYS)
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=10.0,
        metavar="SECONDS",
        help="a formula that takes longer is stopped (default 10)",
    )
    add_workload(parser)
    add_json(parser)


def _seconds(text: str) -> float:
    import argparse

    try:
        seconds = float(text[:40])
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= MAX_TIMEOUT:
        raise argparse.ArgumentTypeError(
            f"must be seconds, more than 0 and at most {MAX_TIMEOUT}: got '{shown(text)}'"
        )
    return seconds


def run(args: argparse.Namespace) -> Result:
    from metacount.textbook.closed_form import COUNTS

    check_quantity(args.quantity, COUNTS)
    model = find_model(args.model, args.settings)
    judgement = _judgement(args.formula, model, args.quantity, request_of(args), args.timeout)
    code = 0 if judgement.holds else EXIT_DISAGREE
    if args.json:
        return json_text(judgement.to_dict()), code
    from metacount.views.check import check_text

    return check_text(judgement, model), code


def _judgement(
    formula: str, model: Model, quantity: str, request: Request, timeout: float
) -> Judgement:
    from metacount.check import check
    from metacount.textbook.count import fitted

    file = file_and_name(formula)
    if file is not None:
        from metacount.check.function import judged_file

        case = (model.spec, fitted(model.spec, request))
        return judged_file(*file, model, case, quantity, timeout=timeout)
    if formula.strip().endswith(".py"):
        raise InputError(f"{shown(formula)}: which function? give FILE.py:FUNCTION")
    return check(formula, model, quantity=quantity, workload=request, timeout=timeout)
