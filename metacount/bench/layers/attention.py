"""Attention with as many key/value heads as query heads, with fewer, and with one; over a cache."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from metacount.bench import reference
from metacount.bench.layers.case import DTYPES, Built, Case, Inputs, Reference, Variant, weight
from metacount.bench.layers.cores import BACKENDS, FoldedCore, FusedCore, OverCache
from metacount.bench.peers.activations import missing
from metacount.bench.peers.cores import FlashAttention3, FlashInfer
from metacount.bench.work import Positions, attention_work
from metacount.modules.attention import Attention
from metacount.spec import ModelSpec
from metacount.spec import attention as parts

WAYS = ("", "-folded", "-sdpa")
PEERS: dict[str, type[nn.Module]] = {"-fa3": FlashAttention3, "-flashinfer": FlashInfer}
# each kernel of torch by its name, and those of other projects
GPU_WAYS = (*WAYS, *BACKENDS, *PEERS)


def kv_heads(spec: ModelSpec) -> dict[str, int]:
    """Choose the key/value heads of each kind; for GQA the model's, or one per four query heads."""
    h, own = spec.n_heads, spec.n_kv_heads or spec.n_heads
    grouped = own if 1 < own < h else h // 4 if h % 4 == 0 and h > 4 else None
    return {"mha": h} | ({"gqa": grouped} if grouped else {}) | {"mqa": 1}


def variant_names(kinds: dict[str, int], ways: Sequence[str] = WAYS) -> tuple[str, ...]:
    """Name every variant; with a key/value head for each query head there is nothing to fold."""
    return tuple(k + w for k in kinds for w in ways if not (k == "mha" and w == "-folded"))


def baselines(kinds: dict[str, int], ways: Sequence[str] = WAYS) -> tuple[str, ...]:
    """Name the variants with a key/value head for each query head: ratios are to the fastest."""
    return tuple(name for name in variant_names(kinds, ways) if name.startswith("mha"))


def workload(at: Positions) -> dict[str, int | str]:
    """Return the positions under their public names, with the phase."""
    phase = "decode" if at.seq_len == 1 and at.kv_len > 1 else "prefill"
    return {
        "phase": phase,
        "batch_size": at.batch_size,
        "seq_len": at.seq_len,
        "kv_len": at.kv_len,
    }


def case(
    model: str, spec: ModelSpec, at: Positions, dtype: str, ways: Sequence[str] = WAYS
) -> Case:
    """Make a case of one attention layer of `spec`'s sizes, without rotary embedding or QK-norm."""
    d, h, width = spec.d_model, spec.n_heads, spec.head_dim
    assert width is not None
    kinds, value_bytes = kv_heads(spec), DTYPES[dtype].itemsize
    params = sum(2 * d * width * (h + g) for g in kinds.values())
    cache = sum(2 * at.batch_size * at.kv_len * g * width for g in kinds.values())
    set_bytes = (at.n_tokens * d + cache) * value_bytes
    # scores in float32, three times: scaled, masked, softmax; the keys repeated for each query head
    scores = 12 * at.all_pairs * h + 2 * at.batch_size * at.kv_len * h * width * value_bytes
    return Case(
        topic="attention",
        model=model,
        dtype=dtype,
        sizes={"d_model": d, "n_heads": h, "head_dim": width}
        | {f"{kind}_n_kv_heads": g for kind, g in kinds.items()},
        workload=workload(at),
        variants=variant_names(kinds, ways),
        baselines=baselines(kinds, ways),
        rows=at.n_tokens,
        checked_rows=4,
        needs_bytes=params * value_bytes + 3 * set_bytes + scores,
        set_bytes=set_bytes,
        build=lambda device, n_sets: _build(
            d, h, width, kinds, at, DTYPES[dtype], device, n_sets, ways
        ),
    )


class _Pick(nn.Module):
    """Calls a layer with its own of the caches that all variants are given."""

    def __init__(self, layer: OverCache, first: int) -> None:
        super().__init__()
        self.layer, self.first = layer, first

    def forward(self, x_BSD: Tensor, *caches: Tensor) -> Tensor:
        y_BSD: Tensor = self.layer(x_BSD, *caches[self.first : self.first + 2])
        return y_BSD


def _build(
    d: int,
    h: int,
    width: int,
    kinds: dict[str, int],
    at: Positions,
    dtype: torch.dtype,
    device: torch.device,
    n_sets: int,
    ways: Sequence[str],
) -> Built:
    variants = []
    for index, (kind, g) in enumerate(kinds.items()):
        weights = (
            weight((h * width, d), device, dtype),
            weight((g * width, d), device, dtype),
            weight((g * width, d), device, dtype),
            weight((d, h * width), device, dtype),
        )
        work = attention_work(at, d, h, g, width, value_bytes=dtype.itemsize)
        expected = _reference(weights, h, at, 1 + 2 * index)
        for way in ways:
            if kind == "mha" and way == "-folded":
                continue

            over_cache = partial(_over_cache, weights, (d, h, g, width), at, 2 * index)
            peer = way in PEERS
            variants.append(
                Variant(
                    name=kind + way,
                    module=over_cache(way),
                    work=work,
                    reference=expected,
                    shows_mask=way == "",
                    missing=missing(way) if peer else None,
                    foreign=peer,
                    stand_in=over_cache("-sdpa") if peer else None,
                    stand_in_name="scaled_dot_product_attention" if peer else "",
                )
            )

    def one_set() -> Inputs:
        x = torch.randn(at.batch_size, at.seq_len, d, device=device, dtype=dtype)
        shapes = [(at.batch_size, g, at.kv_len, width) for g in kinds.values() for _ in "kv"]
        return (x, *(torch.randn(shape, device=device, dtype=dtype) for shape in shapes))

    return Built(inputs=[one_set() for _ in range(n_sets)], variants=variants)


def _over_cache(
    weights: tuple[nn.Parameter, ...],
    sizes: tuple[int, int, int, int],
    at: Positions,
    first: int,
    way: str,
) -> _Pick:
    return _Pick(OverCache(layer_of(weights, *sizes, way), at, static=way != ""), first)


def layer_of(
    weights: tuple[nn.Parameter, ...], d: int, h: int, g: int, width: int, way: str
) -> Attention:
    """Build the reference module with these weights and the core of one way."""
    with torch.device("meta"):
        layer = Attention(parts.Attention(n_heads=h, n_kv_heads=g, head_dim=width), d)
    projections = (layer.q_proj, layer.k_proj, layer.v_proj, layer.o_proj)
    for projection, values in zip(projections, weights, strict=True):
        projection.weight = values
    if way:
        layer.add_module("core", core_of(way, layer.scale))  # another module of the same signature
    return layer


def core_of(way: str, scale: float) -> nn.Module:
    """Build the module that computes the middle of attention in one way."""
    if way in PEERS:
        return PEERS[way](scale)
    if way == "-folded":
        return FoldedCore(scale)
    return FusedCore(scale, None if way == "-sdpa" else way)


def _reference(
    weights: tuple[nn.Parameter, ...], n_heads: int, at: Positions, cache: int
) -> Reference:
    q, k, v, o = weights

    def rows_of(inputs: Inputs, rows: list[int]) -> tuple[Tensor]:
        x, past = inputs[0], at.kv_len - at.seq_len
        out = []
        for row in rows:
            b, s = divmod(row, at.seq_len)
            held = [t[b, :, :past] for t in inputs[cache : cache + 2]]
            out.append(reference.attention(x[b], held[0], held[1], (q, k, v, o), n_heads, [s]))
        return (torch.cat(out),)

    return rows_of
