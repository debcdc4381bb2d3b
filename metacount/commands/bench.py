"""`metacount bench`: how long the forward of a layer takes, variant by variant."""

from __future__ import annotations

import argparse
import sys

from metacount.commands import json_text
from metacount.commands.options import add_json
from metacount.errors import EXIT_DISAGREE, InputError, shown

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from typing import Any

    from metacount.bench.grid import Asked
    from metacount.bench.layers.case import Case
    from metacount.bench.prepare import Plan
    from metacount.commands import Result

TOPICS = ("ffn", "attention", "mla", "moe", "norm")
DIRECTIONS = ("forward", "backward", "forward+backward")
DTYPES = ("bf16", "fp16", "tf32", "fp32")
LARGEST = 2**24  # of any size; larger ones are a slip of the finger
LONGEST = 7 * 86400  # seconds of a budget
SAVED = ""  # --save without a file


def _size(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and 0 < int(text) <= LARGEST):
        raise argparse.ArgumentTypeError(f"must be a whole number from 1: got '{shown(text)}'")
    return int(text)


def _between(text: str, what: str, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= most:  # not a number is refused too
        raise argparse.ArgumentTypeError(f"must be {what}, 0 to {most}: got '{shown(text)}'")
    return value


def _seconds(text: str) -> float:
    return _between(text, "seconds", 3600)


def _budget(text: str) -> float:
    return _between(text, "seconds", LONGEST)


def _percent(text: str) -> float:
    return _between(text, "percent", 100)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Every variant is compared with a float64 reference, and its FLOPs with the operators "
        "that run, before it is timed; a difference is a row of its own and exit code 1, and so "
        "is a run, or a case of it, that measured nothing."
    )
    parser.add_argument("topic", metavar="TOPIC", choices=TOPICS, help=", ".join(TOPICS))
    what = parser.add_argument_group("what is timed")
    what.add_argument(
        "--model", nargs="+", metavar="NAME", help="take the sizes of these models of the catalog"
    )
    what.add_argument(
        "--d-model", nargs="+", type=_size, metavar="N", help="of ffn: these widths, in no model"
    )
    what.add_argument(
        "--d-ff",
        nargs="+",
        type=_size,
        metavar="N",
        help="of ffn: SwiGLU at these widths too (swiglu-own)",
    )
    what.add_argument(
        "--tokens", nargs="+", type=_size, metavar="N", help="tokens of ffn, moe and norm"
    )
    what.add_argument(
        "--seq",
        nargs="+",
        type=_size,
        metavar="N",
        help="prefill of attention and mla: so many tokens",
    )
    what.add_argument(
        "--kv-len",
        nargs="+",
        type=_size,
        metavar="N",
        help="decode of attention and mla: one token that attends to so many, itself included",
    )
    what.add_argument(
        "--batch", nargs="+", type=_size, metavar="N", help="sequences of attention and mla"
    )
    what.add_argument(
        "--part",
        choices=("layer", "core"),
        help="of attention: core is what lies between the projections",
    )
    what.add_argument(
        "--parts", action="store_true", help="of ffn: each product and the activation alone as well"
    )
    what.add_argument(
        "--equal-time",
        action="store_true",
        help="of ffn: the width at which SwiGLU takes GELU's time",
    )
    what.add_argument(
        "--direction",
        nargs="+",
        metavar="WAY",
        choices=DIRECTIONS,
        help=f"of ffn: {', '.join(DIRECTIONS)} (default forward)",
    )
    what.add_argument(
        "--routing", nargs="+", choices=("balanced", "skewed"), help="of moe (default both)"
    )
    what.add_argument(
        "--dtype",
        nargs="+",
        metavar="DTYPE",
        choices=DTYPES,
        help=f"{', '.join(DTYPES)} (default bf16 on CUDA, else fp32)",
    )
    what.add_argument("--device", choices=("cpu", "cuda"), help="default cuda where there is one")
    what.add_argument("--variant", nargs="+", metavar="NAME", help="only these variants")
    what.add_argument("--no-compile", action="store_true", help="leave out torch.compile")
    what.add_argument(
        "--autotune",
        action="store_true",
        help="of ffn: torch.compile in its mode max-autotune as well",
    )
    how = parser.add_argument_group("how")
    how.add_argument(
        "--state",
        nargs="+",
        choices=("hot", "cold"),
        help="caches as they are, or flushed first (default both)",
    )
    how.add_argument(
        "--launch",
        nargs="+",
        choices=("eager", "graph"),
        help="on CUDA: from Python, or as a CUDA graph (default both)",
    )
    how.add_argument(
        "--precision",
        type=_percent,
        metavar="PERCENT",
        help="stop when every median is known to so much of it, up or down, at 95 %% "
        "confidence (default 0.5)",
    )
    how.add_argument(
        "--rounds",
        type=_size,
        metavar="N",
        help="most rounds; each variant has one turn in a round (default 40)",
    )
    how.add_argument(
        "--seconds",
        type=_seconds,
        metavar="X",
        help="stop, after three rounds, when they have lasted so long for each "
        "variant, launch and state (default 0.3)",
    )
    how.add_argument(
        "--budget",
        type=_budget,
        metavar="SECONDS",
        help="of the whole run: cases that by an estimate would not fit any more are "
        "rows that say so",
    )
    how.add_argument(
        "--no-ceiling",
        action="store_true",
        help="do not measure what the device can do; no shares then",
    )
    out = parser.add_argument_group("what becomes of it")
    out.add_argument(
        "--save",
        nargs="?",
        const=SAVED,
        metavar="FILE",
        help="append the rows as JSON lines to FILE (default "
        "metacount-bench-TOPIC.jsonl in the current folder)",
    )
    out.add_argument(
        "--compare", metavar="OLD", help="lay the medians beside those of a file that --save wrote"
    )
    out.add_argument(
        "--list", action="store_true", help="print the cases and variants, and run nothing"
    )
    out.add_argument(
        "--dry-run",
        action="store_true",
        help="print shapes, FLOPs, bytes and an estimate of the time, and run "
        "nothing; needs no device",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> Result:
    import torch

    from metacount.bench import grid
    from metacount.bench.results import files as results
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
    old = None if args.compare is None else results.latest_run(results.read(args.compare))
    file = None if args.save is None else args.save or results.default_file(args.topic)
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


def _code(session: Any) -> int:
    """What the run ends with, known when it has ended."""
    if session.interrupted is not None:
        return int(session.interrupted)
    return EXIT_DISAGREE if session.report.failed or session.report.unmeasured else 0


def _at_the_end(session: Any) -> Generator[str, None, None]:
    """Every row as JSON, also of a run that was stopped."""
    for _ in session.text():
        pass
    yield json_text(session.lines)


def _as_it_comes(session: Any, old: Sequence[dict[str, Any]] | None) -> Generator[str, None, None]:
    """Each case as it is done; at the end what the columns mean, and how it compares."""
    for piece in session.text():
        yield piece
        sys.stdout.flush()
    if old is not None:
        from metacount.bench.results.comparison import compare
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

    from metacount.bench.prepare import Plan

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
    """The options that decide what is measured, without files, which name places of a machine."""
    words = ["metacount", "bench", args.topic]
    for name, value in sorted(vars(args).items()):
        if name in ("topic", "run", "command", "json", "save", "compare", "list", "dry_run"):
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
    from metacount.bench.estimate import plan_of
    from metacount.bench.session import beforehand
    from metacount.views.benchmarks.plan import plan_data, plan_text

    rates = beforehand(plan)
    plans = [plan_of(case, plan, rates(case.dtype)) for case in cases]
    where = {dtype: rates(dtype) for dtype in dict.fromkeys(case.dtype for case in cases)}
    return (json_text(plan_data(plans, where)) if args.json else plan_text(plans, where)), 0
