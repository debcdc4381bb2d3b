"""`metacount survey`: every architecture of the installed transformers."""

from __future__ import annotations

from metacount.commands import json_text
from metacount.commands.options import add_json
from metacount.errors import EXIT_INTERRUPTED, InputError, interrupted, shown

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse

    from metacount.commands import Result
    from metacount.many.survey import SurveyRow


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "types",
        metavar="TYPE",
        nargs="*",
        help="model types (default: all that transformers knows)",
    )
    parser.add_argument(
        "--kind", choices=("causal-LM", "seq2seq", "masked-LM"), help="only classes of this kind"
    )
    parser.add_argument("--params-only", action="store_true", help="run no forward")
    parser.add_argument(
        "--train", action="store_true", help="FLOPs of the backward and bytes kept, too"
    )
    add_json(parser)


def run(args: argparse.Namespace) -> Result:
    from metacount.many.survey import survey, survey_types
    from metacount.views.survey import progress_bar, survey_data, survey_text

    if args.train and args.params_only:
        raise InputError("--train does not go with --params-only; leave one of them out")

    known = [(kind, name) for kind, name in survey_types() if args.kind in (None, kind)]
    jobs = [job for job in known if not args.types or job[1] in args.types]
    for name in args.types:
        if name not in {name for _, name in known}:
            from metacount.errors import nearest

            close = nearest(name, {name for _, name in known}, "see `metacount survey --help`")
            raise InputError(f"{shown(name)} is no model type that is surveyed; {close}")
    found: dict[tuple[str, str], SurveyRow] = {}
    code, said = 0, ""
    try:
        with progress_bar() as bar:

            def progress(done: int, total: int, row: SurveyRow) -> None:
                found[row.kind, row.model_type] = row
                bar(done, total, row)

            survey(jobs, flops=not args.params_only, training=args.train, progress=progress)
    except KeyboardInterrupt:
        code, said = EXIT_INTERRUPTED, interrupted(len(found), len(jobs), "types")
    rows = [found[job] for job in jobs if job in found]
    return (json_text(survey_data(rows)) if args.json else survey_text(rows, said)), code
