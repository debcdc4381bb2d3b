"""`metacount survey`: every text architecture of the installed transformers: what was measured, and
what was not.

Each type is measured in a process of its own that lives on to the next type; one that crashes or
hangs costs its own row and nothing else.
"""

from __future__ import annotations

import time
from contextlib import closing
from functools import partial

from metacount import units
from metacount.cli.answer import Answer
from metacount.cli.progress import gathered
from metacount.cli.report import Amount, Cell, Grid, Notes, Report, Text, bold, columns
from metacount.errors import InputError, nearest, shown
from metacount.frozen import frozen
from metacount.spec import Workload

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from torch import nn

    from metacount.files import Json

# What each column shows, shortened in this way.
COLUMNS = {
    "params": ("params", units.exact),
    "active": ("active_params", units.exact),
    "prefill": ("matmul_flops", units.flops),
    "decode": ("decode_matmul_flops", units.flops),
    "kv cache": ("kv_cache_bytes", units.gib),
    "state": ("state_bytes", units.gib),
}
DROPS = ("class", "state", "decode", "kv cache", "active", "prefill")


def run(args: argparse.Namespace) -> Answer:
    known = [(kind, name) for kind, name in survey_types() if args.kind in (None, kind)]
    jobs = [job for job in known if not args.types or job[1] in args.types]
    for name in args.types:
        if name not in {name for _, name in known}:
            close = nearest(name, {name for _, name in known}, "see `metacount survey --help`")
            raise InputError(f"{shown(name)} is no model type that is surveyed; {close}")
    measured = survey(jobs, flops=not args.params_only)
    rows, code, stopped = gathered(measured, len(jobs), "measured", "types")
    rows.sort(key=lambda row: jobs.index((row.kind, row.model_type)))
    return Answer(
        report=lambda: report_of(rows, stopped),
        data=lambda: [row.to_dict() for row in rows],
        table=lambda: _table(rows),
        code=code,
    )


def _table(rows: Sequence[SurveyRow]) -> Grid:
    names = [name for name, _ in COLUMNS.values()]
    cells = [
        (r.model_type, r.kind, r.class_name, *(getattr(r, name) for name in names), r.shortfall)
        for r in rows
    ]
    heads = ("type", "kind", "class", *names, "shortfall")
    return Grid(heads=heads, rows=cells, align="<<<" + ">" * len(names) + "<")


def report_of(rows: Sequence[SurveyRow], interrupted: str = "") -> Report:
    """Report one line per type, then every note on what falls short, then the sums.

    `interrupted` says how far it came, where it did not come to the end.
    """
    if not rows:
        return []
    heads = ("type", "kind", "class", *COLUMNS, "")
    cells: list[tuple[Cell, ...]] = [
        (
            row.model_type,
            row.kind,
            row.class_name or None,
            *(Amount(getattr(row, name), how, always=True) for name, how in COLUMNS.values()),
            "falls short" if row.shortfall else "",
        )
        for row in rows
    ]
    grid = Grid(heads=heads, rows=cells, align="<<<" + ">" * len(COLUMNS) + "<", drops=DROPS)
    dropped = ", ".join(grid.dropped(columns()))
    short = [row for row in rows if row.shortfall]
    note = (
        f"prefill of {SURVEYED.batch_size} × {SURVEYED.seq_len} tokens, decode of one more, cache "
        f"and recurrent state after them, in {SURVEYED.dtype}; FLOPs are matrix products, 2 per "
        "multiply-add; each class is built from its default config, on the meta device"
    )
    fall = Text(f"{len(short)} of {len(rows)} fall short", bold) if short else Text("")
    return [
        [grid],
        [Notes([("columns", f"with more width, or --json: {dropped}" if dropped else "")])],
        [fall, Notes((f"{row.model_type} ({row.kind})", row.shortfall) for row in short)],
        [_sums(rows)],
        [Notes([("figures", note)])],
        [Text(interrupted, bold)],
    ]


def _sums(rows: Sequence[SurveyRow]) -> Grid:
    counts: list[tuple[Cell, ...]] = []
    for kind in dict.fromkeys(row.kind for row in rows):
        mine = [row for row in rows if row.kind == kind]
        active = sum(row.active_params is not None for row in mine)
        complete = sum(not row.shortfall for row in mine)
        counts.append((kind, len(mine), sum(row.builds for row in mine), active, complete))
    heads = ("kind", "types", "build", "params and active", "nothing missing")
    return Grid(heads=heads, rows=counts, align="<>>>>")


# ---- what is measured

MAX_PROCESSES = 2
TIMEOUT_S = 240.0  # of one type
SURVEYED = Workload(batch_size=1, seq_len=48)


@frozen
class SurveyRow:
    """One model type under one kind of class. A figure is None where it was not measured.

    `shortfall` says exactly why something that was asked for is missing; empty when nothing is.
    `notes` say under which circumstances the rest holds.
    """

    model_type: str
    kind: str
    class_name: str
    params: int | None = None
    text_params: int | None = None
    active_params: int | None = None
    by_role: dict[str, int] | None = None
    unclaimed: tuple[str, ...] = ()
    matmul_flops: int | None = None
    rotary_flops: int | None = None
    decode_matmul_flops: int | None = None
    kv_cache_bytes: int | None = None
    cross_kv_cache_bytes: int | None = None
    state_bytes: int | None = None
    kv_cache_bytes_per_token: int | None = None
    notes: tuple[str, ...] = ()
    shortfall: str = ""
    seconds: float = 0.0

    @property
    def builds(self) -> bool:
        """Whether transformers built a module."""
        return self.params is not None

    def to_dict(self) -> Json:
        """Return the row as plain data."""
        return {**vars(self), "builds": self.builds}


def survey_types() -> list[tuple[str, str]]:
    """List (kind, model type) of everything that is surveyed."""
    from metacount.huggingface.module.model import TEXT_KINDS, model_types

    return [(kind, name) for kind in TEXT_KINDS for name in model_types(kind)]


def measure_type(
    kind: str, model_type: str, *, flops: bool = True, workload: Workload = SURVEYED
) -> SurveyRow:
    """Build one type's class of one kind from its default config, and measure it, here."""
    from metacount.huggingface.module.model import model_types
    from metacount.measure.theirs import Roles, measure_any_params

    start = time.monotonic()
    name = model_types(kind)[model_type]
    figures: Json = {}
    try:
        module, notes = _built(kind, model_type, name, running=False)
    except Exception as error:
        shortfalls = [_line(error)]
    else:
        roles = Roles(module)
        counted = measure_any_params(module, roles)
        names = ("params", "text_params", "active_params", "by_role", "unclaimed")
        figures = {**{each: getattr(counted, each) for each in names}, "notes": notes}
        independent = sum({id(p): p.numel() for p in module.parameters()}.values())
        shortfalls = []
        if counted.params != independent:
            both = f"roles sum to {counted.params}, the distinct tensors to {independent}"
            shortfalls.append(both)
        elif counted.unknown_routing:
            where = counted.unknown_routing[0]
            shortfalls.append(f"its config gives no number of experts per token ({where})")
        if flops:
            try:
                run, missing = _run_figures(kind, model_type, name, module, notes, workload)
            except Exception as error:
                from metacount.huggingface.module.witness import shortfall

                # it is somebody else's code that ran: whatever it raised is the reason
                run, missing = {}, [shortfall(error)]
            figures |= run
            shortfalls += missing
    return SurveyRow(
        model_type=model_type,
        kind=kind,
        class_name=name,
        **figures,
        shortfall="; ".join(shortfalls),
        seconds=round(time.monotonic() - start, 2),
    )


def _run_figures(
    kind: str,
    model_type: str,
    name: str,
    module: nn.Module,
    notes: tuple[str, ...],
    workload: Workload,
) -> tuple[Json, list[str]]:
    """Run a forward: what it shows, and what it falls short of."""
    from metacount.huggingface.module.model import small_configs
    from metacount.measure.theirs import TAKES_NONE, Roles, measure_any_forward

    small = small_configs().get(model_type, {})
    if small.get("for") == "run":
        module, notes = _built(kind, model_type, name, running=True)
        notes = (f"FLOPs and cache with {small['config']}: {small['why']}", *notes)
    run = measure_any_forward(module, workload, Roles(module))
    cache = run.cache
    figures = {
        "matmul_flops": run.prefill.matmul_flops,
        "rotary_flops": run.prefill.rotary,
        "decode_matmul_flops": None if run.decode is None else run.decode.matmul_flops,
        "kv_cache_bytes": None if cache is None else cache.kv_bytes,
        "cross_kv_cache_bytes": None if cache is None else cache.cross_kv_bytes,
        "state_bytes": None if cache is None else cache.state_bytes,
        "kv_cache_bytes_per_token": run.kv_bytes_per_token,
        "notes": (*notes, *run.assumed, *([run.no_cache] if run.no_cache else [])),
    }
    missing = run.kind != "encoder" and cache is None and run.no_cache != TAKES_NONE
    return figures, [f"no cache: {run.no_cache}"] if missing else []


def _built(
    kind: str, model_type: str, name: str, *, running: bool
) -> tuple[nn.Module, tuple[str, ...]]:
    from metacount.huggingface.module.model import (
        build_transformers,
        default_config,
        running_config,
        small_configs,
    )

    data = running_config(model_type) if running else default_config(model_type)
    data["architectures"] = [name]
    notes: tuple[str, ...] = ()
    if kind == "causal-LM" and model_type in IS_DECODER:
        # an encoder's type: its causal-LM class wants to be told, and has the same parameters
        data["is_decoder"] = True
        notes = ("is_decoder=True",)
    elif "is_decoder" in data:
        data["is_decoder"] = False
    module, choice = build_transformers(data)
    small = small_configs().get(model_type, {})
    if small.get("for") == "build":
        notes += (f"a small config: {small['why']}",)
    return module, notes + choice.notes


# Encoder types whose causal-LM class keeps a cache only if its config says so.
IS_DECODER = frozenset(
    (
        "bert",
        "bert-generation",
        "big_bird",
        "camembert",
        "data2vec-text",
        "electra",
        "ernie",
        "megatron-bert",
        "reformer",
        "rembert",
        "roberta",
        "roberta-prelayernorm",
        "roc_bert",
        "roformer",
        "xlm-roberta",
        "xlm-roberta-xl",
        "xmod",
    )
)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _row_of(job: tuple[str, str], *, flops: bool) -> SurveyRow:
    kind, model_type = job
    try:
        return measure_type(kind, model_type, flops=flops)
    except Exception as error:
        return SurveyRow(model_type=model_type, kind=kind, class_name="", shortfall=_line(error))


def survey(
    types: Sequence[tuple[str, str]],
    *,
    flops: bool = True,
    processes: int = MAX_PROCESSES,
    timeout_s: float = TIMEOUT_S,
) -> Iterator[SurveyRow]:
    """Measure every (kind, model type); yield the rows as they come."""
    from metacount.many.pool import Failed, WithTorch, answers

    n_processes = min(processes, MAX_PROCESSES)
    work = WithTorch(partial(_row_of, flops=flops))
    rows = answers(work, types, processes=n_processes, timeout_s=timeout_s)
    with closing(rows):
        for job, answer in rows:
            kind, model_type = types[job]
            if isinstance(answer, Failed):
                late: Json = {"shortfall": answer.reason, "seconds": timeout_s}
                yield SurveyRow(model_type=model_type, kind=kind, class_name="", **late)
            else:
                yield answer
