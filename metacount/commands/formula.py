"""`metacount formula`: the closed form of a count."""

from __future__ import annotations

from metacount.commands import json_text, prepare_for_torch
from metacount.commands.options import (
    WAYS,
    add_model,
    add_quantity,
    add_workload,
    check_quantity,
    request_of,
)
from metacount.errors import InputError, shown
from metacount.resolve import TransformersOnly, find_any, find_model

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse

    from metacount.commands import Result
    from metacount.files import Json
    from metacount.spec import ModelSpec

CAUSAL = "causal_matmul_flops"  # transformers' code has none


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from metacount.textbook.closed_form import COUNTS

    add_model(parser, several=False)
    add_quantity(parser, COUNTS, WAYS)
    parser.add_argument(
        "--from-code",
        action="store_true",
        help="read it off the code instead, run with symbols for sizes: transformers' for a "
        "config, our reference modules for a name of the catalog",
    )
    parser.add_argument(
        "--by",
        choices=("role", "operator"),
        default="role",
        help="with --from-code: split FLOPs by role (default) or by operator",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--latex", action="store_true", help="print LaTeX")
    form.add_argument("--python", action="store_true", help="print a Python function")
    form.add_argument("--json", action="store_true", help="print JSON")
    add_workload(parser)


def run(args: argparse.Namespace) -> Result:
    from metacount.textbook.closed_form import COUNTS, closed_form

    if args.from_code:
        return _from_code(args)
    if args.by != "role":
        raise InputError("--by goes with --from-code: a textbook formula knows no operators")
    check_quantity(args.quantity, COUNTS)
    model = find_model(args.model, args.settings)
    from metacount.textbook.count import fitted

    workload = fitted(model.spec, request_of(args))
    from metacount.views import formula

    form = closed_form(model.spec, workload, args.quantity)
    if args.json:
        return json_text(formula.formula_data(model, form)), 0
    if args.latex:
        return formula.latex_text(model, form), 0
    if args.python:
        return formula.python_text(model, form), 0
    return formula.formula_text(model, form), 0


def _from_code(args: argparse.Namespace) -> Result:
    """Write the formula read off the code, in the names of its config or of our spec."""
    model = find_any(args.model, args.settings)
    prepare_for_torch()
    from metacount.textbook.training import TRAINING
    from metacount.tracing.forms import QUANTITIES, NotTraced, Tracer
    from metacount.training.setup import setup_of
    from metacount.views import code_form

    name = args.quantity.partition(":")[0]
    if setup_of(args.quantity) is None:
        check_quantity(args.quantity, (*QUANTITIES, *TRAINING))
    if args.by == "operator" and not name.endswith("flops") and name != "activation_bytes":
        raise InputError(f"--by operator splits FLOPs: {name} have no operator; leave it out")
    if isinstance(model, TransformersOnly):
        from metacount.verify.compare import fitted_outside

        workload, _ = fitted_outside(model.source, request_of(args))
        read: Json | ModelSpec = model.source.config
    else:
        from metacount.textbook.count import fitted

        workload = fitted(model.spec, request_of(args))
        read = model.spec
        if model.source is not None and args.quantity != CAUSAL:
            read = model.source.config
    try:
        form = Tracer(read, workload, split=args.by).form(args.quantity)
    except NotTraced as error:
        raise InputError(f"{shown(model.id)}: no form of {args.quantity}: {error}") from None
    if args.json:
        return json_text(code_form.code_form_data(model.id, model.name, form)), 0
    if args.latex:
        return code_form.code_form_latex(model.name, form), 0
    if args.python:
        return code_form.code_form_python(model.name, form), 0
    return code_form.code_form_text(model.name, form), 0
