"""Which cases a topic has: the catalog models whose sizes it takes, and the workloads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from metacount import catalog
from metacount.bench import attention, ffn, mla, moe, norm
from metacount.bench.case import TF32, Case
from metacount.bench.ffn import gated_widths, widths
from metacount.bench.work import Positions
from metacount.errors import InputError
from metacount.spec import ModelSpec

DTYPES = ("bf16", "fp16", "tf32", "fp32")
PARTS = ("layer", "core")  # of attention: with its projections, or what lies between them
DECODE_BATCHES = (1, 16, 128)  # one sequence alone is the time of the projections' weights


@dataclass(frozen=True, kw_only=True)
class Grid:
    """What a topic is measured at, unless asked otherwise."""

    models: tuple[str, ...]
    dtypes: tuple[str, ...]
    tokens: tuple[int, ...] = ()
    seq_lens: tuple[int, ...] = ()
    kv_lens: tuple[int, ...] = ()
    decode_batches: tuple[int, ...] = (1,)
    routings: tuple[str, ...] = moe.ROUTINGS


GRIDS: dict[str, dict[str, Grid]] = {
    "ffn": {
        "cuda": Grid(
            models=("llama-7b", "llama3-8b", "qwen3-32b", "deepseek-v3"),
            dtypes=("bf16",),
            tokens=(1, 16, 128, 1024, 4096, 16384),
        ),
        "cpu": Grid(models=("textbook-block", "qwen3-0.6b"), dtypes=("fp32",), tokens=(1, 64)),
    },
    "attention": {
        "cuda": Grid(
            models=("llama-7b", "llama3-8b"),
            dtypes=("bf16",),
            seq_lens=(2048, 8192),
            kv_lens=(4096, 32768),
            decode_batches=DECODE_BATCHES,
        ),
        "cpu": Grid(
            models=("textbook-block", "qwen3-0.6b"),
            dtypes=("fp32",),
            seq_lens=(128,),
            kv_lens=(2048,),
        ),
    },
    "mla": {
        "cuda": Grid(
            models=("deepseek-v3", "deepseek-v2"),
            dtypes=("bf16",),
            seq_lens=(2048,),
            kv_lens=(4096, 32768),
            decode_batches=DECODE_BATCHES,
        ),
        "cpu": Grid(models=("deepseek-v2",), dtypes=("fp32",), seq_lens=(32,), kv_lens=(256,)),
    },
    "moe": {
        "cuda": Grid(
            models=("mixtral-8x7b", "qwen3-235b-a22b", "deepseek-moe-16b"),
            dtypes=("bf16",),
            tokens=(1, 16, 256, 2048, 16384),
        ),
        "cpu": Grid(models=("deepseek-moe-16b",), dtypes=("fp32",), tokens=(1, 64)),
    },
    "norm": {
        "cuda": Grid(
            models=("llama-7b", "llama3.1-405b"), dtypes=("bf16",), tokens=(1, 256, 8192, 16384)
        ),
        "cpu": Grid(models=("qwen3-0.6b", "llama-7b"), dtypes=("fp32",), tokens=(1, 512)),
    },
}
TOPICS = tuple(GRIDS)


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


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What somebody asked for; None stands for the default of `GRIDS`.

    `widths` of the feed-forward stand beside the catalog: (d_model, d_ff or None).
    """

    models: Sequence[str] | None = None
    dtypes: Sequence[str] | None = None
    tokens: Sequence[int] | None = None
    seq_lens: Sequence[int] | None = None
    kv_lens: Sequence[int] | None = None
    batch_sizes: Sequence[int] | None = None
    routings: Sequence[str] | None = None
    d_models: Sequence[int] | None = None
    d_ffs: Sequence[int] | None = None
    directions: Sequence[str] | None = None
    part: str | None = None
    parts: bool = False
    equal_time: bool = False
    autotune: bool = False


OPTIONS = {
    "tokens": "--tokens",
    "seq_lens": "--seq",
    "kv_lens": "--kv-len",
    "batch_sizes": "--batch",
    "routings": "--routing",
    "d_models": "--d-model",
    "d_ffs": "--d-ff",
    "directions": "--direction",
    "part": "--part",
    "parts": "--parts",
    "equal_time": "--equal-time",
    "autotune": "--autotune",
}
TAKES = {
    "ffn": ("tokens", "d_models", "d_ffs", "directions", "parts", "equal_time", "autotune"),
    "attention": ("seq_lens", "kv_lens", "batch_sizes", "part"),
    "mla": ("seq_lens", "kv_lens", "batch_sizes"),
    "moe": ("tokens", "routings"),
    "norm": ("tokens",),
}


def cases(topic: str, device: str, asked: Asked | None = None) -> list[Case]:
    """List the cases of a topic on a kind of device.

    For attention, `seq_lens` gives prefill and `kv_lens` decode; where one is given, the other
    is not filled in.
    """
    asked = asked or Asked()
    grid = GRIDS[topic][device]
    _refuse_misplaced(topic, asked)
    dtypes = tuple(asked.dtypes or grid.dtypes)
    if device != "cuda" and TF32 in dtypes:
        raise InputError("--dtype tf32 is a mode of CUDA devices; use fp32, or --device cuda")
    names = asked.models or (() if asked.d_models or asked.d_ffs else grid.models)
    specs = [(catalog.entry(name.lower()).id, spec_for(topic, name.lower())) for name in names]
    gpu = device == "cuda"
    if topic == "ffn":
        return _ffn_cases(grid, asked, specs, dtypes, gpu=gpu)
    return [
        case
        for name, spec in dict(specs).items()
        for dtype in dtypes
        for case in _cases_of(topic, grid, asked, name, spec, dtype, gpu=gpu)
    ]


def _cases_of(
    topic: str, grid: Grid, asked: Asked, name: str, spec: ModelSpec, dtype: str, *, gpu: bool
) -> list[Case]:
    tokens = asked.tokens or grid.tokens
    if topic == "attention":
        ways = attention.GPU_WAYS if gpu else attention.WAYS
        core = asked.part == "core"
        return [
            attention.case(name, spec, at, dtype, ways, core=core) for at in _positions(grid, asked)
        ]
    if topic == "mla":
        ways = tuple(mla.GPU_WAYS if gpu else mla.WAYS)
        return [mla.case(name, spec, at, dtype, ways) for at in _positions(grid, asked)]
    if topic == "moe":
        return [
            moe.case(name, spec, n, routing, dtype)
            for n in tokens
            for routing in asked.routings or grid.routings
        ]
    return [norm.case(name, spec, n, dtype) for n in tokens]


def _ffn_cases(
    grid: Grid,
    asked: Asked,
    specs: Sequence[tuple[str, ModelSpec]],
    dtypes: Sequence[str],
    *,
    gpu: bool,
) -> list[Case]:
    extras = ffn.Extras(
        peers=gpu,
        autotune=asked.autotune,
        parts=asked.parts,
        equal_time=asked.equal_time,
        directions=tuple(asked.directions or ("forward",)),
    )
    blocks = {name: (spec.d_model, widths(spec)) for name, spec in specs}
    for d in asked.d_models or ():
        for width in asked.d_ffs or (None,):
            label = f"d{d}" if width is None else f"d{d}-ff{width}"
            blocks[label] = d, gated_widths(d, {"swiglu-own": width})
    if asked.d_ffs and not asked.d_models:
        if not specs:
            raise InputError("--d-ff needs --d-model, or --model for the other width")
        blocks = {}
        for name, spec in specs:
            for width in asked.d_ffs:
                gated = gated_widths(spec.d_model, {"swiglu-own": width})
                blocks[f"{name}-ff{width}"] = spec.d_model, gated
    return [
        ffn.sized(label, d, gated, n, dtype, extras)
        for label, (d, gated) in blocks.items()
        for dtype in dtypes
        for n in asked.tokens or grid.tokens
    ]


def _positions(grid: Grid, asked: Asked) -> list[Positions]:
    named = asked.seq_lens is not None or asked.kv_lens is not None
    prefills = (asked.seq_lens or ()) if named else grid.seq_lens
    decodes = (asked.kv_lens or ()) if named else grid.kv_lens
    found = [(b, s, s) for s in prefills for b in asked.batch_sizes or (1,)]
    found += [(b, 1, t) for t in decodes for b in asked.batch_sizes or grid.decode_batches]
    return [Positions(batch_size=b, seq_len=s, kv_len=t) for b, s, t in found]


def _refuse_misplaced(topic: str, asked: Asked) -> None:
    """Raise an error for an option that the topic has no use for, rather than ignore it."""
    for name, option in OPTIONS.items():
        if getattr(asked, name) not in (None, False) and name not in TAKES[topic]:
            use = ", ".join(OPTIONS[other] for other in TAKES[topic])
            raise InputError(f"{option} means nothing to bench {topic}; it takes {use}")


def variants_of(found: Sequence[Case]) -> tuple[str, ...]:
    """List every name of a variant among the cases, in order."""
    return tuple(dict.fromkeys(name for case in found for name in case.variants))
