"""Which cases a topic has (models, workloads, variants), and how long measuring them will take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch

from metacount import catalog
from metacount.bench import device as devices
from metacount.bench import layers
from metacount.bench.case import DTYPES, TF32, Case, Variant
from metacount.bench.rows import FEWEST_FOR_INTERVAL, FORWARD, Work
from metacount.bench.timing import (
    BURST_SECONDS,
    COLD,
    FEWEST_ROUNDS,
    LONG_SECONDS,
    SAMPLE_SECONDS,
    WARM_SECONDS,
    Plan,
    estimate_call,
)
from metacount.errors import InputError
from metacount.spec import ModelSpec

if TYPE_CHECKING:
    from metacount.files import Json

# topic: what it takes beside models and dtypes
TAKES = {
    "ffn": ("tokens", "d_model", "d_ff", "direction"),
    "attention": ("seq", "kv_len", "batch", "part"),
    "mla": ("seq", "kv_len", "batch"),
    "moe": ("tokens", "routing"),
    "norm": ("tokens",),
}
TOPICS = tuple(TAKES)
# what somebody asks for, by the names of options; without it, on a kind of device (bf16 on CUDA,
# fp32 on a CPU). For attention `seq` gives prefill and `kv_len` decode.
Asked = Mapping[str, Any]
OPTIONS = ("model", "dtype", *dict.fromkeys(name for names in TAKES.values() for name in names))
GRIDS: dict[tuple[str, str], Asked] = {}
# decoding one sequence alone takes the time of the projections' weights
for _row in """\
ffn cuda llama-7b llama3-8b qwen3-32b deepseek-v3; tokens 1 16 128 1024 4096 16384
ffn cpu textbook-block qwen3-0.6b; tokens 1 64
attention cuda llama-7b llama3-8b; seq 2048 8192; kv_len 4096 32768; batch 1 16 128
attention cpu textbook-block qwen3-0.6b; seq 128; kv_len 2048
mla cuda deepseek-v3 deepseek-v2; seq 2048; kv_len 4096 32768; batch 1 16 128
mla cpu deepseek-v2; seq 32; kv_len 256
moe cuda mixtral-8x7b qwen3-235b-a22b deepseek-moe-16b; tokens 1 16 256 2048 16384
moe cpu deepseek-moe-16b; tokens 1 64
norm cuda llama-7b llama3.1-405b; tokens 1 256 8192 16384
norm cpu qwen3-0.6b llama-7b; tokens 1 512
""".splitlines():
    _of, *_sizes = map(str.split, _row.split(";"))
    _numbers = {name: tuple(map(int, numbers)) for name, *numbers in _sizes}
    GRIDS[_of[0], _of[1]] = {"model": tuple(_of[2:]), **_numbers}


def spec_for(topic: str, model: str) -> ModelSpec:
    """Return the spec of a catalog model, which must have the topic's layer."""
    spec = catalog.entry(model).spec()
    if topic == "moe" and not spec.is_moe:
        raise InputError(f"{model} has no experts; try mixtral-8x7b, or `metacount bench ffn`")
    if topic == "mla" and spec.attention != "mla":
        raise InputError(f"{model} has no MLA; try deepseek-v3, or `metacount bench attention`")
    if topic == "attention" and spec.attention == "none":
        raise InputError(f"{model} has no attention; try llama-7b")
    if topic == "ffn" and spec.d_ff is None and spec.d_ff_expert is None:
        raise InputError(f"{model} has no feed-forward; try llama-7b")
    if topic == "attention" and spec.attention == "mla":
        raise InputError(f"{model} has MLA; try llama-7b, or `metacount bench mla`")
    return spec


def cases(topic: str, device: str, asked: Asked | None = None) -> list[Case]:
    """List the cases of a topic on a kind of device; an option without use there is an error."""
    grid, gpu = GRIDS[topic, device], device == "cuda"
    asked = {name: value for name, value in (asked or {}).items() if value is not None}
    for name in OPTIONS:
        if name in asked and name not in ("model", "dtype", *TAKES[topic]):
            use = ", ".join(map(_option, TAKES[topic]))
            raise InputError(f"{_option(name)} means nothing to bench {topic}; it takes {use}")
    dtypes = asked.get("dtype") or ("bf16" if gpu else "fp32",)
    if not gpu and TF32 in dtypes:
        raise InputError("--dtype tf32 is a mode of CUDA devices; use fp32, or --device cuda")
    sized = "d_model" in asked or "d_ff" in asked
    names = asked.get("model") or (() if sized else grid["model"])
    specs = {catalog.entry(n.lower()).id: spec_for(topic, n.lower()) for n in names}
    tokens = asked.get("tokens") or grid.get("tokens", ())
    if topic == "ffn":
        ways = asked.get("direction", (FORWARD,))
        return [
            layers.ffn_case(label, d, gated, n, dtype, peers=gpu, directions=ways)
            for label, (d, gated) in _blocks(asked, specs).items()
            for dtype in dtypes
            for n in tokens
        ]

    def of_model(name: str, spec: ModelSpec, dtype: str) -> list[Case]:
        if topic == "attention":
            ways, core = layers.GPU_WAYS if gpu else layers.WAYS, asked.get("part") == "core"
            return [
                layers.attention_case(name, spec, at, dtype, ways, core=core)
                for at in _positions(grid, asked)
            ]
        if topic == "mla":
            return [layers.mla_case(name, spec, at, dtype) for at in _positions(grid, asked)]
        if topic == "moe":
            routings = asked.get("routing", layers.ROUTINGS)
            return [layers.moe_case(name, spec, n, how, dtype) for n in tokens for how in routings]
        return [layers.norm_case(name, spec, n, dtype) for n in tokens]

    return [
        case
        for name, spec in specs.items()
        for dtype in dtypes
        for case in of_model(name, spec, dtype)
    ]


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _blocks(asked: Asked, specs: dict[str, ModelSpec]) -> dict[str, tuple[int, dict[str, int]]]:
    widths = asked.get("d_ff", ())
    if widths and "d_model" not in asked and not specs:
        raise InputError("--d-ff needs --d-model, or --model for the other width")
    alone = {f"d{d}": d for d in asked.get("d_model", ())}
    blocks = {}
    if not widths or alone:
        blocks = {name: (spec.d_model, layers.widths(spec)) for name, spec in specs.items()}
    else:  # the models lend their d_model
        alone = {name: spec.d_model for name, spec in specs.items()}
    for label, d in alone.items():
        for width in widths or (None,):
            name = label if width is None else f"{label}-ff{width}"
            blocks[name] = d, layers.gated_widths(d, {"swiglu-own": width})
    return blocks


def _positions(grid: Asked, asked: Asked) -> Iterator[layers.Positions]:
    chosen = asked if "seq" in asked or "kv_len" in asked else grid
    for length in chosen.get("seq", ()):
        for b in asked.get("batch", (1,)):
            yield layers.Positions(batch_size=b, seq_len=length, kv_len=length)
    for length in chosen.get("kv_len", ()):
        for b in asked.get("batch") or grid.get("batch", (1,)):
            yield layers.Positions(batch_size=b, seq_len=1, kv_len=length)


# How long a run will take, before anything is measured

SHARE_OF_ROOF = 0.7  # that a variant is taken to reach
COMPILE_SECONDS = 3.0
BUILD_SECONDS = 0.2  # of a case: tensors drawn, allocator emptied
CHECK_CALLS = 10  # counted, warmed up, its memory and its result looked at
DEFAULT_GPU = "NVIDIA H200"
PROBE = 512  # [n, n] @ [n, n] that says roughly what a CPU does
PROBE_BYTES = 2**25


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What a device is taken to do, and who says so."""

    flops_per_s: float
    bytes_per_s: float
    flush_s: float
    source: str


@cache
def rates_of(plan: Plan, dtype: str) -> Rates:
    """Return the rates of a dtype: those that the vendor states, of a CPU a quick look.

    Of a GPU that is not known they are an H200's.
    """
    if not plan.cuda:
        return _probed(dtype)
    present = torch.cuda.is_available()
    name = torch.cuda.get_device_properties(plan.device).name if present else ""
    name = name if name in devices.STATED_PEAKS else DEFAULT_GPU
    peaks = devices.STATED_PEAKS[name]
    tflops = peaks["bf16_tflops"] / 2 if dtype == TF32 else peaks[f"{dtype}_tflops"]
    return Rates(
        flops_per_s=tflops * 1e12,
        bytes_per_s=peaks["memory_tbytes_per_s"] * 1e12,
        flush_s=60e-6,
        source=f"stated for {name}",
    )


def _probed(dtype: str) -> Rates:
    cpu = torch.device("cpu")
    a = torch.ones(PROBE, PROBE, dtype=DTYPES[dtype])
    x = torch.ones(PROBE_BYTES // 4, dtype=torch.int32)
    bytes_per_s = PROBE_BYTES / estimate_call(partial(torch.amax, x, 0), cpu)
    return Rates(
        flops_per_s=2 * PROBE**3 / estimate_call(partial(torch.mm, a, a), cpu),
        bytes_per_s=bytes_per_s,
        flush_s=devices.flush_bytes(cpu, devices.cache_bytes_of(cpu)) / bytes_per_s,
        source="a quick look",
    )


def call_seconds(work: Work, rates: Rates) -> float:
    """Estimate the seconds of one call, at a share of the roof."""
    roof = max(work.matmul_flops / rates.flops_per_s, work.moved_bytes / rates.bytes_per_s)
    return roof / SHARE_OF_ROOF


def measuring_seconds(variant: Variant, call_s: float, plan: Plan, rates: Rates) -> float:
    """Estimate the seconds of all that is done with a variant: checked, compiled, warmed up, timed.

    Six rounds are assumed, three where they last longer than `--seconds` allows.
    """
    if variant.missing is not None or (variant.compiled and not plan.compile):
        return 0.0
    launches = len(plan.launches) if plan.cuda else 1
    sample_s = max(SAMPLE_SECONDS, call_s * (1 if call_s >= LONG_SECONDS else 3))
    turn_s = WARM_SECONDS if plan.cuda else 3 * call_s
    for state in plan.states:
        turn_s += max(BURST_SECONDS, call_s + rates.flush_s if state == COLD else sample_s)
    allowed = plan.seconds * len(plan.states)
    rounds = min(FEWEST_FOR_INTERVAL, max(FEWEST_ROUNDS, plan.rounds))
    if rounds * turn_s > allowed:
        rounds = max(FEWEST_ROUNDS, min(rounds, int(allowed / turn_s)))
    compiling = COMPILE_SECONDS if variant.compiled else 0.0
    return compiling + CHECK_CALLS * call_s + launches * rounds * turn_s


def plan_of(case: Case, plan: Plan, rates: Rates) -> Json:
    """Plan a case, built on meta, where it costs nothing: its sizes, inputs, variants and seconds.

    Each variant with what it has to do, and how long one call and all its measuring may take.
    """
    torch.manual_seed(plan.seed)  # a run draws the same routing
    built = case.build(torch.device("meta"), 1)
    variants: list[Json] = []
    for variant in built:
        if plan.only is None or variant.name in plan.only:
            call_s = max(call_seconds(variant.work, rates), 2e-6 if plan.cuda else 0.0)
            variants.append(
                {
                    "name": variant.name,
                    "direction": variant.direction,
                    "matmul_flops": variant.work.matmul_flops,
                    "needed_flops": variant.work.needed_flops,
                    "moved_bytes": variant.work.moved_bytes,
                    "call_s": call_s,
                    "measuring_s": measuring_seconds(variant, call_s, plan, rates),
                    "missing": variant.missing,
                }
            )
    given = {id(t): list(t.shape) for v in built for t in v.inputs[0]}
    names = ("topic", "model", "sizes", "workload", "dtype", "needs_bytes")
    return {name: getattr(case, name) for name in names} | {
        "inputs": [*given.values()],
        "estimated_by": rates.source,
        "seconds": BUILD_SECONDS + sum(variant["measuring_s"] for variant in variants),
        "variants": variants,
    }
