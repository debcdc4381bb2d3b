"""Every text architecture of the installed transformers: what was measured, and what was not.

Each type is measured in a process of its own that lives on to the next type; one that crashes or
hangs costs its own row and nothing else.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from metacount.many.pool import Failed, WithTorch, answers
from metacount.spec import Workload

if TYPE_CHECKING:
    from torch import nn

    from metacount.files import Json

MAX_PROCESSES = 2
TIMEOUT_S = 240.0  # of one type
SURVEYED = Workload(batch_size=1, seq_len=48)


@dataclass(frozen=True, kw_only=True)
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
        return {**dataclasses.asdict(self), "builds": self.builds}


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
IS_DECODER = frozenset((
    "bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie",
    "megatron-bert", "reformer", "rembert", "roberta", "roberta-prelayernorm", "roc_bert",
    "roformer", "xlm-roberta", "xlm-roberta-xl", "xmod"
))  # fmt: skip


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
