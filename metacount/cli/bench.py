"""`metacount bench`: how long the forward of a layer takes, variant by variant."""

from __future__ import annotations

import argparse
import sys

from metacount.cli.answer import Answer, Pieces, json_text
from metacount.cli.options import (
    JSON,
    Several,
    check_known,
    each_of,
    flag,
    grouped,
    limited,
    option,
)
from metacount.cli.report import Lines
from metacount.errors import EXIT_DISAGREE, EXIT_WRONG_INPUT, InputError, shown
from metacount.settings.values import length

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from typing import Any

    from metacount.bench.case import Case
    from metacount.bench.grid import Asked
    from metacount.bench.run import Plan
    from metacount.bench.session import Session
    from metacount.cli.options import Option
    from metacount.files import Json

TOPICS = ("ffn", "attention", "mla", "moe", "norm")
DIRECTIONS = ("forward", "backward", "forward+backward")
DTYPES = ("bf16", "fp16", "tf32", "fp32")
LARGEST = 2**24  # of any size; larger ones are a slip of the finger
LONGEST = 7 * 86400  # seconds of a budget
SAVED = ""  # --save without a file


EPILOG = (
    "Every variant is compared with a float64 reference, and its FLOPs with the operators that "
    "run, before it is timed; a difference is a row of its own and exit code 1, and so is a run, "
    "or a case of it, that measured nothing."
)


def _size(text: str) -> int:
    if (n := length(text)) and n <= LARGEST:
        return n
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and 0 < int(text) <= LARGEST):
        raise argparse.ArgumentTypeError(f"must be a whole number from 1: got '{shown(text)}'")
    return int(text)


# What an option takes that takes several numbers.
SIZES: dict[str, Any] = {"type": each_of(_size), "action": Several, "nargs": "+"}


def options() -> Sequence[Option]:
    return (
        option("topic", "TOPIC", ", ".join(TOPICS), choices=TOPICS),
        *grouped(
            "what is timed",
            option("--model", "NAME", "take the sizes of these models of the catalog", nargs="+"),
            option("--d-model", "N", "of ffn: these widths, in no model", **SIZES),
            option(
                "--d-ff",
                "N",
                "of ffn: SwiGLU at these widths too (swiglu-own)",
                **SIZES,
            ),
            option("--tokens", "N", "tokens of ffn, moe and norm", **SIZES),
            option(
                "--seq",
                "N",
                "prefill of attention and mla: so many tokens, as in 1k,4k",
                **SIZES,
            ),
            option(
                "--kv-len",
                "N",
                "decode of attention and mla: one token that attends to so many, itself included",
                **SIZES,
            ),
            option(
                "--batch",
                "N",
                "sequences of attention and mla",
                **SIZES,
            ),
            option(
                "--part",
                None,
                "of attention: core is what lies between the projections",
                choices=("layer", "core"),
            ),
            flag("--parts", "of ffn: each product and the activation alone as well"),
            flag("--equal-time", "of ffn: the width at which SwiGLU takes GELU's time"),
            option(
                "--direction",
                "WAY",
                f"of ffn: {', '.join(DIRECTIONS)} (default forward)",
                nargs="+",
                choices=DIRECTIONS,
            ),
            option(
                "--routing",
                None,
                "of moe (default both)",
                nargs="+",
                choices=("balanced", "skewed"),
            ),
            option(
                "--dtype",
                "DTYPE",
                f"{', '.join(DTYPES)} (default bf16 on CUDA, else fp32)",
                nargs="+",
                choices=DTYPES,
            ),
            option("--device", None, "default cuda where there is one", choices=("cpu", "cuda")),
            option("--variant", "NAME", "only these variants", nargs="+"),
            flag("--no-compile", "leave out torch.compile"),
            flag("--autotune", "of ffn: torch.compile in its mode max-autotune as well"),
        ),
        *grouped(
            "how",
            option(
                "--state",
                None,
                "caches as they are, or flushed first (default both)",
                nargs="+",
                choices=("hot", "cold"),
            ),
            option(
                "--launch",
                None,
                "on CUDA: from Python, or as a CUDA graph (default both)",
                nargs="+",
                choices=("eager", "graph"),
            ),
            option(
                "--precision",
                "PERCENT",
                "stop when every median is known to so much of it, up or down, at 95 %% "
                "confidence (default 0.5)",
                type=limited("percent", 0, 100),
            ),
            option(
                "--rounds",
                "N",
                "most rounds; each variant has one turn in a round (default 40)",
                type=_size,
            ),
            option(
                "--seconds",
                "X",
                "stop, after three rounds, when they have lasted so long for each variant, "
                "launch and state (default 0.3)",
                type=limited("seconds", 0, 3600),
            ),
            option(
                "--budget",
                "SECONDS",
                "of the whole run: cases that by an estimate would not fit any more are rows "
                "that say so",
                type=limited("seconds", 0, LONGEST),
            ),
            flag("--no-ceiling", "do not measure what the device can do; no shares then"),
        ),
        *grouped(
            "what becomes of it",
            option(
                "-o --output --save",
                "FILE",
                "append the rows as JSON lines to FILE (default metacount-bench-TOPIC.jsonl in "
                "the current folder)",
                nargs="?",
                const=SAVED,
                dest="save",
            ),
            option("--compare", "OLD", "lay the medians beside those of a file that --save wrote"),
            flag("--list", "print the cases and variants, and run nothing"),
            flag(
                "--dry-run",
                "print shapes, FLOPs, bytes and an estimate of the time, and run nothing; needs "
                "no device",
            ),
        ),
        JSON,
    )


def run(args: argparse.Namespace) -> Answer | Pieces:
    import torch

    from metacount.bench import grid, saved
    from metacount.output_file import check_writable

    looking = args.list or args.dry_run
    device = _device(args.device, cuda=torch.cuda.is_available(), looking=looking)
    cases = grid.cases(args.topic, device, _asked(args))
    for name in args.variant or ():
        known = grid.variants_of(cases)
        otherwise = f"choose among {', '.join(known)}"
        check_known("--variant", name, known, otherwise, "is none of these cases'")
    if device == "cpu" and args.launch is not None and "eager" not in args.launch:
        raise InputError("--launch graph needs a CUDA device; leave it out, or --device cuda")
    if args.list:
        from metacount.cli.bench_rows import cases_data, cases_text

        return _looked(lambda: cases_text(cases), lambda: cases_data(cases))
    plan = _plan(args, device)
    if args.dry_run:
        return _dry_run(cases, plan)
    old = None if args.compare is None else saved.latest_run(saved.read(args.compare))
    file = None if args.save is None else args.save or saved.default_file(args.topic)
    if file is not None:
        check_writable("--save", file)
    from metacount.bench.session import Session
    from metacount.cli import bench_rows

    session = Session(
        cases=cases,
        plan=plan,
        show=bench_rows,
        file=file,
        budget=args.budget,
        ceiling=not args.no_ceiling,
        command=_command(args),
    )
    if args.json:
        return Pieces(text=_at_the_end(session), code=lambda: _code(session))
    return Pieces(text=_as_it_comes(session, old), code=lambda: _code(session))


def _looked(text: Callable[[], str], data: Callable[[], object]) -> Answer:
    """Show what would run."""
    return Answer(report=lambda: [[Lines(lambda _: text().splitlines())]], data=data)


def _code(session: Session) -> int:
    """Return the exit code of the run, known when it has ended."""
    if session.interrupted is not None:
        return int(session.interrupted)
    if session.unsaved:
        return EXIT_WRONG_INPUT
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
        from metacount.cli.bench_rows import compare_text

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
    left_out = ("topic", "json", "save", "compare", "list", "dry_run")
    for name in sorted({one.dest for one in options()} - {*left_out}):
        value = getattr(args, name)
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


def _dry_run(cases: Sequence[Case], plan: Plan) -> Answer:
    from metacount.bench.session import beforehand, plan_of
    from metacount.cli.bench_rows import plan_data, plan_text

    rates = beforehand(plan)
    plans = [plan_of(case, plan, rates(case.dtype)) for case in cases]
    where = {dtype: rates(dtype) for dtype in dict.fromkeys(case.dtype for case in cases)}
    return _looked(lambda: plan_text(plans, where), lambda: plan_data(plans, where))
