"""The command line: parse, call, print. No arithmetic, and nothing imported before it is needed.

Every command returns its whole text and its exit code; only `main` writes.
Exit codes: 0 fine, 1 witnesses disagree, 2 the request or an input is wrong.
"""

from __future__ import annotations

import argparse
import os
import sys

from metacount import __version__
from metacount.options import (
    MODEL_HELP,
    add_json,
    add_model,
    add_settings,
    add_workload,
    workload_of,
)
from metacount.resolve import (
    Foreign,
    InputError,
    Model,
    Source,
    find_any,
    find_model,
    parse_settings,
    printable,
    shown,
)
from metacount.spec import SpecError

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, NoReturn

    from metacount.check import Verification
    from metacount.spec import Workload

    Result = tuple[str, int]

EXIT_DISAGREE, EXIT_WRONG_INPUT, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 1, 2, 130, 141

LONGEST_MESSAGE = 500  # characters of argparse's messages, which repeat what was typed


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    if sys.stdout is not None and hasattr(sys.stdout, "reconfigure"):
        # a terminal that cannot show × gets its escape, not a crash
        sys.stdout.reconfigure(errors="backslashreplace")
    arguments = sys.argv[1:] if argv is None else list(argv)
    try:
        args = _parser(arguments).parse_args(arguments)
        text, code = args.run(args)
        return _write(text) or code
    except (InputError, SpecError) as error:
        print(f"metacount: error: {printable(error)}", file=sys.stderr)
        return EXIT_WRONG_INPUT
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except SystemExit as done:  # argparse has printed the help or the version
        return _write("") or int(done.code or 0)


def _write(text: str) -> int:
    if sys.stdout is None:
        return 0
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # the reader has seen enough; Python would complain once more when it closes stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"metacount: error: cannot write the result: {error.strerror}", file=sys.stderr)
        return EXIT_WRONG_INPUT
    return 0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(f"{printable(message[:LONGEST_MESSAGE])}; see `{self.prog} --help`")


def _formatter(prog: str) -> argparse.HelpFormatter:
    from metacount.views.layout import columns

    return argparse.HelpFormatter(prog, max_help_position=28, width=min(columns(), 100) - 2)


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="metacount",
        description="Count large language models exactly: parameters, FLOPs, KV cache, "
        "and the formulas behind the numbers.",
        epilog="Try: metacount count llama-7b",
        formatter_class=_formatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"metacount {__version__}")
    # with prog given, argparse formats no usage line to find it
    commands = parser.add_subparsers(
        prog="metacount", metavar="COMMAND", required=True, dest="command"
    )
    for name, (summary, add_arguments, run) in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            formatter_class=_formatter,
            allow_abbrev=False,
        )
        # only the command at hand: the others' options are not read, and take time to set up
        if name in arguments:
            add_arguments(command)
        command.set_defaults(run=run)
    return parser


def _json(data: object) -> str:
    import json

    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def _prepare_for_torch() -> None:
    """Collecting among the million objects that importing torch leaves behind is in vain."""
    import gc

    gc.disable()
    # transformers' own advice is for people who run a model, not for those who count it
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


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


def _models_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "text",
        metavar="TEXT",
        nargs="?",
        default="",
        help="only models whose id, name or family contains TEXT",
    )
    parser.add_argument("--family", metavar="NAME", help="only models of this family")
    parser.add_argument(
        "--fields",
        action="store_true",
        help="print the fields that --set takes, with their meaning",
    )
    add_json(parser)


def _models(args: argparse.Namespace) -> Result:
    from metacount import catalog
    from metacount.formulas.model import params

    if args.fields:
        from metacount.views.fields import field_rows, fields_text

        return (_json(field_rows()) if args.json else fields_text()), 0
    entries = catalog.entries()
    if args.family is not None:
        families = {entry.family.lower(): entry.family for entry in entries}
        if args.family.lower() not in families:
            from metacount.spec import nearest

            known = nearest(args.family, families, f"choose one of {', '.join(families.values())}")
            raise InputError(f"--family '{shown(args.family)}' is not in the catalog; {known}")
        entries = tuple(e for e in entries if e.family.lower() == args.family.lower())
    text = args.text.lower()
    entries = tuple(e for e in entries if text in f"{e.id}\n{e.name}\n{e.family}".lower())
    if not entries:
        print("metacount: no model of the catalog matches", file=sys.stderr)
    counted = [(e, params(e.spec()) if e.sizes is not None else None) for e in entries]
    from metacount.views.models import models_data, models_text

    if args.json:
        return _json(models_data(counted)), 0
    return models_text(counted) if counted else "", 0


def _count_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser, several=True)
    add_workload(parser)
    add_json(parser)


def _count(args: argparse.Namespace) -> Result:
    from metacount.figures import count

    parse_settings(args.settings)  # a wrong setting is reported before a wrong model
    workload = workload_of(args)
    found = [find_any(argument, args.settings) for argument in args.model]
    if any(isinstance(model, Foreign) for model in found):
        return _count_measured(found, workload, args.json)
    models = [model for model in found if isinstance(model, Model)]
    results = [count(model.spec, workload) for model in models]
    if args.json:
        data = [_count_data(model, result) for model, result in zip(models, results, strict=True)]
        return _json(data if len(data) > 1 else data[0]), 0
    from metacount.views.table import comparison_text, count_text

    if len(models) == 1:
        return count_text(models[0], results[0]), 0
    return comparison_text(models, results), 0


def _count_measured(found: Sequence[Model | Foreign], workload: Workload, as_json: bool) -> Result:
    """Models among which at least one has no formula: that one is measured with transformers."""
    from metacount.figures import count

    _prepare_for_torch()
    from metacount.check import outside_witnesses
    from metacount.views.foreign import foreign_data, foreign_text
    from metacount.views.table import count_text

    data: list[dict[str, Any]] = []
    texts: list[str] = []
    for model in found:
        if isinstance(model, Model):
            result = count(model.spec, workload)
            data.append(_count_data(model, result))
            texts.append(count_text(model, result))
            continue
        (said, *_), _ = outside_witnesses(Source(config=model.source.config), workload)
        data.append(foreign_data(model, said, workload))
        texts.append(foreign_text(model, said, workload))
    return (_json(data if len(data) > 1 else data[0]) if as_json else "\n".join(texts)), 0


def _count_data(model: Any, result: Any) -> dict[str, Any]:
    inferred = list(model.entry.inferred) if model.entry is not None else []
    return {
        "model": model.id,
        "name": model.name,
        "changes": model.changes,
        **result.to_dict(),
        "inferred": inferred,
        "notes": list(model.notes),
    }


def _formula_arguments(parser: argparse.ArgumentParser) -> None:
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


def _formula(args: argparse.Namespace) -> Result:
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
        return _json(formula.formula_data(model, form)), 0
    if args.latex:
        return formula.latex_text(model, form), 0
    if args.python:
        return formula.python_text(model, form), 0
    return formula.formula_text(model, form), 0


def _tree_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser, several=False)
    add_json(parser)


def _tree(args: argparse.Namespace) -> Result:
    model = find_any(args.model, args.settings)
    _prepare_for_torch()
    from metacount.measure.tree import module_tree
    from metacount.views.tree import tree_text

    # of a config, transformers' own module: its names can be laid beside a checkpoint
    if model.source is not None:
        from metacount.huggingface.model import build_transformers

        module, choice = build_transformers(model.source.config)
        root, made_by = module_tree(module), f"transformers: {choice}"
    else:
        from metacount.build import build

        root, made_by = module_tree(build(model.spec)), "reference"
    if args.json:
        changes = model.changes if isinstance(model, Model) else {}
        data = {"model": model.id, "name": model.name, "changes": changes}
        return _json({**data, "source": made_by, "tree": root.to_dict(root.params)}), 0
    return tree_text(model, root, made_by), 0


def _verify_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", nargs="*", help=MODEL_HELP)
    parser.add_argument("--all", action="store_true", help="every model of the catalog")
    add_settings(parser)
    add_workload(parser)
    add_json(parser)


def _verify(args: argparse.Namespace) -> Result:
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
    _prepare_for_torch()
    done = _with_progress(lambda model: _verified(model, workload), models, "verifying")
    code = 0 if all(result.agree for result in done) else EXIT_DISAGREE
    if args.json:
        data = [result.to_dict() for result in done]
        return _json(data if len(data) > 1 else data[0]), code
    from metacount.views.verify import verification_text, verifications_text

    if len(done) == 1:
        return verification_text(done[0], models[0].name), code
    return verifications_text(done), code


def _verified(model: Model | Foreign, workload: Workload) -> Verification:
    from metacount.check import verify

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


def _survey_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("types", metavar="TYPE", nargs="*",
                        help="model types (default: all that transformers knows)")  # fmt: skip
    parser.add_argument("--kind", choices=("causal-LM", "seq2seq", "masked-LM"),
                        help="only classes of this kind")  # fmt: skip
    parser.add_argument("--params-only", action="store_true", help="run no forward")
    add_json(parser)


def _survey(args: argparse.Namespace) -> Result:
    from metacount.survey import survey, survey_types
    from metacount.views.survey import progress_bar, survey_data, survey_text

    known = [(kind, name) for kind, name in survey_types() if args.kind in (None, kind)]
    jobs = [job for job in known if not args.types or job[1] in args.types]
    for name in args.types:
        if name not in {name for _, name in known}:
            from metacount.spec import nearest

            close = nearest(name, {name for _, name in known}, "see `metacount survey --help`")
            raise InputError(f"{shown(name)} is no model type that is surveyed; {close}")
    with progress_bar() as progress:
        rows = survey(jobs, flops=not args.params_only, progress=progress)
    return (_json(survey_data(rows)) if args.json else survey_text(rows)), 0


COMMANDS: dict[
    str,
    tuple[str, Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], Result]],
] = {
    "models": ("list the published models, with their counts", _models_arguments, _models),
    "count": (
        "parameters, FLOPs and KV cache of a model, or of several side by side",
        _count_arguments,
        _count,
    ),
    "formula": (
        "the closed form of a count, in letters and in numbers",
        _formula_arguments,
        _formula,
    ),
    "tree": ("the module tree of a model, with shapes and parameters", _tree_arguments, _tree),
    "verify": ("every witness of a model's counts side by side", _verify_arguments, _verify),
    "survey": (
        "every architecture of the installed transformers, measured",
        _survey_arguments,
        _survey,
    ),
}
