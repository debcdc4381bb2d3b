"""Which cases a topic has: the catalog models whose sizes it takes, and the workloads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from metacount import catalog
from metacount.bench.work import Positions
from metacount.errors import InputError
from metacount.spec import ModelSpec

from .layers import attention, ffn, mla, moe, norm
from .layers.case import Case

DTYPES = ("bf16", "fp16", "fp32")


@dataclass(frozen=True, kw_only=True)
class Grid:
    """What a topic is measured at, unless asked otherwise."""

    models: tuple[str, ...]
    dtypes: tuple[str, ...]
    tokens: tuple[int, ...] = ()
    seq_lens: tuple[int, ...] = ()
    kv_lens: tuple[int, ...] = ()
    batch_sizes: tuple[int, ...] = (1,)
    routings: tuple[str, ...] = moe.ROUTINGS


GRIDS: dict[str, dict[str, Grid]] = {
    "ffn": {
        "cuda": Grid(
            models=("llama-7b", "llama3.1-405b", "mixtral-8x7b", "qwen3-0.6b", "textbook-block"),
            dtypes=DTYPES,
            tokens=(1, 16, 128, 1024, 8192, 16384),
        ),
        "cpu": Grid(models=("textbook-block", "qwen3-0.6b"), dtypes=("fp32",), tokens=(1, 64)),
    },
    "attention": {
        "cuda": Grid(
            models=("llama-7b", "llama3.1-405b"),
            dtypes=("bf16",),
            seq_lens=(2048, 8192),
            kv_lens=(4096, 32768),
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
            models=("llama-7b", "llama3.1-405b"), dtypes=DTYPES, tokens=(1, 256, 8192, 16384)
        ),
        "cpu": Grid(models=("qwen3-0.6b", "llama-7b"), dtypes=("fp32",), tokens=(1, 512)),
    },
}
TOPICS = tuple(GRIDS)


def spec_for(topic: str, model: str) -> ModelSpec:
    """A catalog model that has such a layer."""
    spec = catalog.entry(model).spec()
    if topic == "moe" and not spec.is_moe:
        raise InputError(f"{model} has no experts; try mixtral-8x7b, or `metacount bench ffn`")
    if topic == "mla" and spec.attention != "mla":
        raise InputError(f"{model} has no MLA; try deepseek-v3, or `metacount bench attention`")
    if topic == "attention" and spec.attention == "mla":
        raise InputError(f"{model} has MLA; try llama-7b, or `metacount bench mla`")
    return spec


def cases(
    topic: str,
    device: str,
    *,
    models: Sequence[str] | None = None,
    dtypes: Sequence[str] | None = None,
    tokens: Sequence[int] | None = None,
    seq_lens: Sequence[int] | None = None,
    kv_lens: Sequence[int] | None = None,
    batch_sizes: Sequence[int] | None = None,
    routings: Sequence[str] | None = None,
) -> list[Case]:
    """The cases of a topic on a kind of device; None stands for the default of `GRIDS`.

    For attention, `seq_lens` gives prefill and `kv_lens` decode; where one is given, the other
    is not filled in.
    """
    grid = GRIDS[topic][device]
    _refuse_misplaced(topic, tokens=tokens, seq_lens=seq_lens, kv_lens=kv_lens,
                      batch_sizes=batch_sizes, routings=routings)  # fmt: skip
    names = [catalog.entry(model.lower()).id for model in models or grid.models]
    specs = {name: spec_for(topic, name) for name in names}
    found: list[Case] = []
    for name, spec in specs.items():
        for dtype in dtypes or grid.dtypes:
            if topic in ("attention", "mla"):
                layer = attention if topic == "attention" else mla
                asked = seq_lens is not None or kv_lens is not None
                prefills = (seq_lens or ()) if asked else grid.seq_lens
                decodes = (kv_lens or ()) if asked else grid.kv_lens
                found += [
                    layer.case(name, spec, at, dtype)
                    for at in _positions(prefills, decodes, batch_sizes or grid.batch_sizes)
                ]
            elif topic == "moe":
                found += [
                    moe.case(name, spec, n, routing, dtype)
                    for n in tokens or grid.tokens
                    for routing in routings or grid.routings
                ]
            else:
                one = ffn.case if topic == "ffn" else norm.case
                found += [one(name, spec, n, dtype) for n in tokens or grid.tokens]
    return found


def _positions(
    prefills: Sequence[int], decodes: Sequence[int], batch_sizes: Sequence[int]
) -> list[Positions]:
    lengths = [(s, s) for s in prefills] + [(1, t) for t in decodes]
    return [Positions(batch_size=b, seq_len=s, kv_len=t) for s, t in lengths for b in batch_sizes]


def _refuse_misplaced(topic: str, **given: Sequence[object] | None) -> None:
    """An option that the topic has no use for is an error, not ignored."""
    takes = {
        "attention": ("seq_lens", "kv_lens", "batch_sizes"),
        "mla": ("seq_lens", "kv_lens", "batch_sizes"),
        "moe": ("tokens", "routings"),
    }.get(topic, ("tokens",))
    options = {"tokens": "--tokens", "seq_lens": "--seq", "kv_lens": "--kv-len",
               "batch_sizes": "--batch", "routings": "--routing"}  # fmt: skip
    for name, values in given.items():
        if values is not None and name not in takes:
            use = ", ".join(options[other] for other in takes)
            raise InputError(f"{options[name]} means nothing to bench {topic}; it takes {use}")


def variants_of(found: Sequence[Case]) -> tuple[str, ...]:
    """Every name of a variant among the cases, in order."""
    return tuple(dict.fromkeys(name for case in found for name in case.variants))
