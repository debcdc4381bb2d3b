"""`metacount audit`: the formulas that frameworks and papers use, each judged."""

from __future__ import annotations

import argparse
import sys
from fractions import Fraction

from metacount.commands import json_text
from metacount.commands.options import MODEL_HELP, add_json, add_settings
from metacount.errors import EXIT_INTERRUPTED, InputError, interrupted, shown

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.commands import Result

MAX_JOBS = 64
LONGEST = 2**31


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names", metavar="NAME", nargs="*", help="formulas or sources; all where none is named"
    )
    parser.add_argument(
        "--model", metavar="MODEL", help=f"these formulas term by term at one model: {MODEL_HELP}"
    )
    parser.add_argument(
        "--mfu",
        metavar="MODEL",
        nargs="+",
        help="the same run's MFU under every training formula, for these models "
        "at --seq, with --tokens-per-second and --peak",
    )
    parser.add_argument(
        "--seq",
        metavar="N",
        nargs="+",
        type=_length,
        help="tokens of each sequence; several give several lengths (default 2048 "
        "with --model, else 2048, 8192 and 32768)",
    )
    parser.add_argument(
        "--tokens-per-second",
        metavar="X",
        type=_amount,
        help="of the run, on one device (with --mfu)",
    )
    parser.add_argument(
        "--peak",
        metavar="TFLOPS",
        type=_amount,
        help="the device's, in 10^12 FLOPs a second (with --mfu)",
    )
    parser.add_argument("--jobs", metavar="N", type=_jobs, default=1, help="processes (default 1)")
    parser.add_argument(
        "--markdown", action="store_true", help="the table of findings, a row for each source"
    )
    add_settings(parser)
    add_json(parser)


def _length(text: str) -> int:
    from metacount.settings.values import length

    n = length(text) or (int(text) if text.isdecimal() and len(text) < 12 else 0)
    if not 0 < n <= LONGEST:
        raise argparse.ArgumentTypeError(
            f"must be a whole number from 1 to {LONGEST}: got '{shown(text)}'"
        )
    return n


def _jobs(text: str) -> int:
    n = int(text) if text.isdecimal() and len(text) < 5 else 0
    if not 0 < n <= MAX_JOBS:
        raise argparse.ArgumentTypeError(f"must be 1 to {MAX_JOBS}: got '{shown(text)}'")
    return n


def _amount(text: str) -> Fraction:
    try:
        found = Fraction(text.replace("_", "").replace(",", "")[:40])
    except (ValueError, ZeroDivisionError):
        found = Fraction(0)
    if not 0 < found < 10**18:
        raise argparse.ArgumentTypeError(f"must be a number more than 0: got '{shown(text)}'")
    return found


def run(args: argparse.Namespace) -> Result:
    _fitting(args)
    if args.mfu:
        return _mfu(args), 0
    if args.model is not None:
        return _details(args), 0
    return _table(args)


def _fitting(args: argparse.Namespace) -> None:
    """Raise `InputError` for options that do not go together."""
    run = (args.tokens_per_second, args.peak)
    if args.mfu and None in run:
        raise InputError("--mfu needs --tokens-per-second and --peak; give both")
    if not args.mfu and run != (None, None):
        raise InputError("--tokens-per-second and --peak belong to --mfu; leave them out")
    if args.mfu and (args.names or args.model is not None):
        raise InputError("--mfu takes every training formula: leave out NAME and --model")
    if args.model is not None and not args.names:
        raise InputError("--model needs a NAME: `metacount audit` lists them")
    if args.settings and not args.mfu and args.model is None:
        raise InputError("--set changes a model: give --model or --mfu")
    if args.markdown and (args.mfu or args.model is not None or args.json):
        raise InputError("--markdown is of the table: leave out --mfu, --model and --json")


def _table(args: argparse.Namespace) -> Result:
    from metacount.audit.judge import LENGTHS
    from metacount.audit.record import chosen
    from metacount.audit.report import audited

    wanted = chosen(tuple(args.names))
    found, code, said = {}, 0, ""
    try:
        for i, one in audited(wanted, tuple(args.seq or LENGTHS), args.jobs):
            found[i] = one
            _progress(len(found), len(wanted))
    except KeyboardInterrupt:
        code, said = EXIT_INTERRUPTED, interrupted(len(found), len(wanted), "formulas")
    audits = [found[i] for i in sorted(found)]
    if args.json:
        from metacount.views.audit_data import audits_data

        return json_text(audits_data(audits)), code
    if args.markdown:
        from metacount.views.audit_data import markdown

        return markdown(audits), code
    from metacount.views.audit import audits_text

    text = audits_text(audits, outside=bool(args.names)) if audits else ""
    return text + (f"\n{said}\n" if said and audits else ""), code


def _progress(done: int, total: int) -> None:
    """Show on a terminal's stderr how far the audit is."""
    if sys.stderr.isatty():
        end = "\r\x1b[K" if done == total else ""
        said = f"\rmetacount: judged {done} of {total} formulas{end}"
        print(said, end="", file=sys.stderr, flush=True)


def _details(args: argparse.Namespace) -> str:
    from metacount.audit.detail import detail
    from metacount.audit.record import chosen, compared
    from metacount.audit.report import rests_of
    from metacount.audit.restated import check_inside
    from metacount.resolve import find_model
    from metacount.views.audit import detail_text
    from metacount.views.audit_data import detail_data

    model = find_model(args.model, args.settings)
    check_inside(model.spec, model.id)
    lengths, real = args.seq or [2048], compared()
    data, texts = [], []
    for formula in chosen(tuple(args.names)):
        for n in lengths:
            one = detail(formula, model.spec, model.id, n)
            witness = rests_of(formula, one.found, model)
            if args.json:
                data.append(detail_data(one, model, witness, real.get(formula.id)))
            else:
                texts.append(detail_text(one, model, witness, real.get(formula.id)))
    return json_text(data) if args.json else "\n".join(texts)


def _mfu(args: argparse.Namespace) -> str:
    from metacount.audit.judge import LENGTHS, lengths_of
    from metacount.audit.mfu import mfu
    from metacount.resolve import find_model
    from metacount.views.audit import mfu_text
    from metacount.views.audit_data import mfu_data

    run = {"tokens_per_second": args.tokens_per_second, "peak_tflops": args.peak}
    words = f"{_plain(args.tokens_per_second)} tokens/s, peak {_plain(args.peak)} TFLOP/s"
    data, texts = [], []
    for id in args.mfu:
        model = find_model(id, args.settings)
        lengths = args.seq or list(lengths_of(model.spec, LENGTHS))
        longest = model.spec.longest
        if longest is not None and max(lengths) > longest:
            raise InputError(
                f"--seq {max(lengths)}: {model.id} has {longest} positions; give as many or fewer"
            )
        rows = mfu(model, lengths, **run)
        data.append(mfu_data(model, lengths, rows))
        texts.append(mfu_text(model, lengths, rows, words))
    return json_text(data if len(data) > 1 else data[0]) if args.json else "\n".join(texts)


def _plain(number: Fraction) -> str:
    return f"{int(number):,}" if number.denominator == 1 else f"{float(number):,g}"
