"""Which cases a topic has: the catalog models whose sizes it takes, and the workloads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

from metacount import catalog
from metacount.bench import attention, ffn, mla, moe, norm
from metacount.bench.case import TF32, Case, Positions
from metacount.errors import InputError
from metacount.spec import ModelSpec

DECODE_BATCHES = (1, 16, 128)  # one sequence alone is the time of the projections' weights


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What somebody asked for, by the names of the options; None stands for the default of `GRIDS`.

    For attention, `seq` gives prefill and `kv_len` decode; where one is given, the other is not
    filled in.
    """

    model: Sequence[str] | None = None
    dtype: Sequence[str] | None = None
    tokens: Sequence[int] | None = None
    seq: Sequence[int] | None = None
    kv_len: Sequence[int] | None = None
    batch: Sequence[int] | None = None
    routing: Sequence[str] | None = None
    d_model: Sequence[int] | None = None
    d_ff: Sequence[int] | None = None
    direction: Sequence[str] | None = None
    part: str | None = None
    parts: bool = False
    equal_time: bool = False
    autotune: bool = False


# topic: what it takes beside models and dtypes, and what it is measured at on a kind of device
TAKES = {
    "ffn": ("tokens", "d_model", "d_ff", "direction", "parts", "equal_time", "autotune"),
    "attention": ("seq", "kv_len", "batch", "part"),
    "mla": ("seq", "kv_len", "batch"),
    "moe": ("tokens", "routing"),
    "norm": ("tokens",),
}
TOPICS = tuple(TAKES)
GRIDS = {
    ("ffn", "cuda"): Asked(
        model=("llama-7b", "llama3-8b", "qwen3-32b", "deepseek-v3"),
        dtype=("bf16",),
        tokens=(1, 16, 128, 1024, 4096, 16384),
    ),
    ("ffn", "cpu"): Asked(model=("textbook-block", "qwen3-0.6b"), dtype=("fp32",), tokens=(1, 64)),
    ("attention", "cuda"): Asked(
        model=("llama-7b", "llama3-8b"),
        dtype=("bf16",),
        seq=(2048, 8192),
        kv_len=(4096, 32768),
        batch=DECODE_BATCHES,
    ),
    ("attention", "cpu"): Asked(
        model=("textbook-block", "qwen3-0.6b"), dtype=("fp32",), seq=(128,), kv_len=(2048,)
    ),
    ("mla", "cuda"): Asked(
        model=("deepseek-v3", "deepseek-v2"),
        dtype=("bf16",),
        seq=(2048,),
        kv_len=(4096, 32768),
        batch=DECODE_BATCHES,
    ),
    ("mla", "cpu"): Asked(model=("deepseek-v2",), dtype=("fp32",), seq=(32,), kv_len=(256,)),
    ("moe", "cuda"): Asked(
        model=("mixtral-8x7b", "qwen3-235b-a22b", "deepseek-moe-16b"),
        dtype=("bf16",),
        tokens=(1, 16, 256, 2048, 16384),
    ),
    ("moe", "cpu"): Asked(model=("deepseek-moe-16b",), dtype=("fp32",), tokens=(1, 64)),
    ("norm", "cuda"): Asked(
        model=("llama-7b", "llama3.1-405b"), dtype=("bf16",), tokens=(1, 256, 8192, 16384)
    ),
    ("norm", "cpu"): Asked(model=("qwen3-0.6b", "llama-7b"), dtype=("fp32",), tokens=(1, 512)),
}


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
    """List the cases of a topic on a kind of device."""
    asked, grid = asked or Asked(), GRIDS[topic, device]
    _refuse_misplaced(topic, asked)
    dtypes = asked.dtype or grid.dtype or ()
    if device != "cuda" and TF32 in dtypes:
        raise InputError("--dtype tf32 is a mode of CUDA devices; use fp32, or --device cuda")
    names = asked.model or (() if asked.d_model or asked.d_ff else grid.model or ())
    specs = {catalog.entry(n.lower()).id: spec_for(topic, n.lower()) for n in names}
    tokens, gpu = asked.tokens or grid.tokens or (), device == "cuda"
    if topic == "ffn":
        return [
            ffn.sized(label, d, gated, n, dtype, _extras(asked, gpu=gpu))
            for label, (d, gated) in _blocks(asked, specs).items()
            for dtype in dtypes
            for n in tokens
        ]

    def of_model(name: str, spec: ModelSpec, dtype: str) -> list[Case]:
        if topic == "attention":
            ways, core = attention.GPU_WAYS if gpu else attention.WAYS, asked.part == "core"
            places = _positions(grid, asked)
            return [attention.case(name, spec, at, dtype, ways, core=core) for at in places]
        if topic == "mla":
            latent = tuple(mla.GPU_WAYS) if gpu else mla.WAYS
            return [mla.case(name, spec, at, dtype, latent) for at in _positions(grid, asked)]
        if topic == "moe":
            routings = asked.routing or moe.ROUTINGS
            return [moe.case(name, spec, n, how, dtype) for n in tokens for how in routings]
        return [norm.case(name, spec, n, dtype) for n in tokens]

    return [
        case
        for name, spec in specs.items()
        for dtype in dtypes
        for case in of_model(name, spec, dtype)
    ]


def _extras(asked: Asked, *, gpu: bool) -> ffn.Extras:
    return ffn.Extras(
        peers=gpu,
        autotune=asked.autotune,
        parts=asked.parts,
        equal_time=asked.equal_time,
        directions=tuple(asked.direction or ("forward",)),
    )


def _blocks(asked: Asked, specs: dict[str, ModelSpec]) -> dict[str, tuple[int, dict[str, int]]]:
    """Label the feed-forward blocks: d_model, and each width of SwiGLU by name."""
    if asked.d_ff and not asked.d_model and not specs:
        raise InputError("--d-ff needs --d-model, or --model for the other width")
    alone = {f"d{d}": d for d in asked.d_model or ()}
    # with --d-ff alone, the models lend their d_model
    beside = {name: spec.d_model for name, spec in specs.items()} if not alone else {}
    blocks = {}
    if not asked.d_ff or alone:
        blocks = {name: (spec.d_model, ffn.widths(spec)) for name, spec in specs.items()}
    for label, d in (alone | (beside if asked.d_ff else {})).items():
        for width in asked.d_ff or (None,):
            name = label if width is None else f"{label}-ff{width}"
            blocks[name] = d, ffn.gated_widths(d, {"swiglu-own": width})
    return blocks


def _positions(grid: Asked, asked: Asked) -> Iterator[Positions]:
    named = asked.seq is not None or asked.kv_len is not None
    chosen = asked if named else grid
    for length in chosen.seq or ():
        for b in asked.batch or (1,):
            yield Positions(batch_size=b, seq_len=length, kv_len=length)
    for length in chosen.kv_len or ():
        for b in asked.batch or grid.batch or (1,):
            yield Positions(batch_size=b, seq_len=1, kv_len=length)


def _refuse_misplaced(topic: str, asked: Asked) -> None:
    """Raise an error for an option that the topic has no use for, rather than ignore it."""

    def option(name: str) -> str:
        return f"--{name.replace('_', '-')}"

    everywhere = {"model", "dtype", *TAKES[topic]}
    for name in (field.name for field in fields(Asked)):
        if name not in everywhere and getattr(asked, name) not in (None, False):
            use = ", ".join(map(option, TAKES[topic]))
            raise InputError(f"{option(name)} means nothing to bench {topic}; it takes {use}")


def variants_of(found: Sequence[Case]) -> tuple[str, ...]:
    """List every name of a variant among the cases, in order."""
    return tuple(dict.fromkeys(name for case in found for name in case.variants))
