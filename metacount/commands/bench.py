"""`metacount bench`: how long the forward of a layer takes, variant by variant."""

from __future__ import annotations

import argparse
import sys

from metacount.commands import json_text
from metacount.commands.bench_options import add_arguments as add_arguments
from metacount.errors import EXIT_DISAGREE, InputError, shown

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from metacount.bench.case import Case
    from metacount.bench.grid import Asked
    from metacount.bench.run import Plan
    from metacount.bench.session import Session
    from metacount.commands import Result
    from metacount.files import Json


def run(args: argparse.Namespace) -> Result:
    import torch

    from metacount.bench import grid, saved
    from metacount.output_file import check_writable

    looking = args.list or args.dry_run
    device = _device(args.device, cuda=torch.cuda.is_available(), looking=looking)
    cases = grid.cases(args.topic, device, _asked(args))
    _check_variants(args.variant, grid.variants_of(cases))
    if device == "cpu" and args.launch is not None and "eager" not in args.launch:
        raise InputError("--launch graph needs a CUDA device; leave it out, or --device cuda")
    if args.list:
        from metacount.views.benchmarks.rows import cases_data, cases_text

        return json_text(cases_data(cases)) if args.json else cases_text(cases), 0
    plan = _plan(args, device)
    if args.dry_run:
        return _dry_run(args, cases, plan)
    old = None if args.compare is None else saved.latest_run(saved.read(args.compare))
    file = None if args.save is None else args.save or saved.default_file(args.topic)
    if file is not None:
        check_writable("--save", file)
    from metacount.bench.session import Session
    from metacount.views.benchmarks import rows

    session = Session(
        cases=cases,
        plan=plan,
        show=rows,
        file=file,
        budget=args.budget,
        ceiling=not args.no_ceiling,
        command=_command(args),
    )
    if args.json:
        return _at_the_end(session), lambda: _code(session)
    return _as_it_comes(session, old), lambda: _code(session)


def _code(session: Session) -> int:
    """Return the exit code of the run, known when it has ended."""
    if session.interrupted is not None:
        return int(session.interrupted)
    return EXIT_DISAGREE if session.report.failed or session.report.unmeasured else 0


def _at_the_end(session: Session) -> Generator[str, None, None]:
    """Run to the end, then yield every row as JSON, also of a run that was stopped."""
    for _ in session.text():
        pass
    yield json_text(session.lines)


def _as_it_comes(session: Session, old: Sequence[Json] | None) -> Generator[str, None, None]:
    """Yield each case as it is done; at the end what the columns mean, and how `old` compares."""
    for piece in session.text():
        yield piece
        sys.stdout.flush()
    if old is not None:
        from metacount.bench.saved import compare
        from metacount.views.benchmarks.compare import compare_text

        yield compare_text(compare(session.lines, old))


def _asked(args: argparse.Namespace) -> Asked:
    from metacount.bench.grid import Asked

    return Asked(
        models=args.model,
        dtypes=args.dtype,
        tokens=args.tokens,
        seq_lens=args.seq,
        kv_lens=args.kv_len,
        batch_sizes=args.batch,
        routings=args.routing,
        d_models=args.d_model,
        d_ffs=args.d_ff,
        directions=args.direction,
        part=args.part,
        parts=args.parts,
        equal_time=args.equal_time,
        autotune=args.autotune,
    )


def _plan(args: argparse.Namespace, device: str) -> Plan:
    import torch

    from metacount.bench.run import Plan

    with_index = device == "cuda" and torch.cuda.is_available()
    return Plan(
        device=torch.device("cuda", torch.cuda.current_device())
        if with_index
        else torch.device(device),
        rounds=args.rounds or 40,
        seconds=0.3 if args.seconds is None else args.seconds,
        precision=(0.5 if args.precision is None else args.precision) / 100,
        states=tuple(s for s in ("hot", "cold") if args.state is None or s in args.state),
        launches=tuple(x for x in ("eager", "graph") if args.launch is None or x in args.launch),
        compile=not args.no_compile,
        only=None if args.variant is None else tuple(args.variant),
    )


def _command(args: argparse.Namespace) -> str:
    """Write the command with the options that decide what is measured, no files of this machine."""
    words = ["metacount", "bench", args.topic]
    for name, value in sorted(vars(args).items()):
        if name in ("topic", "command", "json", "save", "compare", "list", "dry_run"):
            continue
        if callable(value):  # what the parser leaves for the program, no option
            continue
        if value is None or value is False:
            continue
        words.append("--" + name.replace("_", "-"))
        if value is not True:
            words += [str(v) for v in (value if isinstance(value, list) else [value])]
    return " ".join(words)


def _device(asked: str | None, *, cuda: bool, looking: bool) -> str:
    if asked == "cuda" and not cuda and not looking:
        raise InputError(
            "--device cuda: torch finds no CUDA device here; use --device cpu, or --dry-run to "
            "see the plan"
        )
    return asked or ("cuda" if cuda else "cpu")


def _check_variants(asked: Sequence[str] | None, known: Sequence[str]) -> None:
    from metacount.errors import nearest

    for name in asked or ():
        if name not in known:
            close = nearest(name, known, f"choose among {', '.join(known)}")
            raise InputError(f"--variant '{shown(name)}' is none of these cases'; {close}")


def _dry_run(args: argparse.Namespace, cases: Sequence[Case], plan: Plan) -> tuple[str, int]:
    from metacount.bench.session import beforehand, plan_of
    from metacount.views.benchmarks.plan import plan_data, plan_text

    rates = beforehand(plan)
    plans = [plan_of(case, plan, rates(case.dtype)) for case in cases]
    where = {dtype: rates(dtype) for dtype in dict.fromkeys(case.dtype for case in cases)}
    return (json_text(plan_data(plans, where)) if args.json else plan_text(plans, where)), 0
