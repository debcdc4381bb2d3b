"""Attention between the projections alone: queries, keys and values in, values out.

At one sequence a decode's time is that of the projections' weights; here only the cache counts, so
that kernels and head layouts can be compared, and with what others measured.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from metacount.bench import reference
from metacount.bench.layers.attention import (
    PEERS,
    WAYS,
    baselines,
    core_of,
    kv_heads,
    variant_names,
    workload,
)
from metacount.bench.layers.case import DTYPES, Built, Case, Inputs, Reference, Variant
from metacount.bench.peers.activations import missing
from metacount.bench.work import Positions, attention_core_work
from metacount.modules.attention import ScaledDotProduct, Visibility
from metacount.spec import ModelSpec


class Core(nn.Module):
    """A core over its own of the keys and values that all variants are given."""

    def __init__(self, core: nn.Module, at: Positions, first: int) -> None:
        super().__init__()
        self.core, self.first = core, first
        self.sees = Visibility(
            n_queries=at.seq_len, n_keys=at.kv_len, query_start=at.kv_len - at.seq_len
        )

    def forward(self, q_BHSK: Tensor, *caches: Tensor) -> Tensor:
        """Compute the middle of attention: [B, H, S, K] and the caches -> [B, H, S, K]."""
        k, v = caches[self.first : self.first + 2]
        y_BHSK: Tensor = self.core(q_BHSK, k, v, self.sees)
        return y_BHSK


def case(
    model: str, spec: ModelSpec, at: Positions, dtype: str, ways: Sequence[str] = WAYS
) -> Case:
    """Make a case of the middle of one attention layer of `spec`'s heads."""
    h, width = spec.n_heads, spec.head_dim
    assert width is not None
    kinds, value_bytes = kv_heads(spec), DTYPES[dtype].itemsize
    values = at.n_tokens * h + sum(2 * at.batch_size * at.kv_len * g for g in kinds.values())
    set_bytes = values * width * value_bytes
    scores = 12 * at.all_pairs * h + 2 * at.batch_size * at.kv_len * h * width * value_bytes
    return Case(
        topic="attention",
        model=model,
        dtype=dtype,
        sizes={"n_heads": h, "head_dim": width}
        | {f"{kind}_n_kv_heads": g for kind, g in kinds.items()},
        workload={"part": "core", **workload(at)},
        variants=variant_names(kinds, ways),
        baselines=baselines(kinds, ways),
        rows=at.n_tokens * h,
        checked_rows=16,
        needs_bytes=3 * set_bytes + scores,
        set_bytes=set_bytes,
        build=lambda device, n_sets: _build(
            (h, width), kinds, at, DTYPES[dtype], device, n_sets, ways
        ),
    )


def _build(
    heads: tuple[int, int],
    kinds: dict[str, int],
    at: Positions,
    dtype: torch.dtype,
    device: torch.device,
    n_sets: int,
    ways: Sequence[str],
) -> Built:
    (h, width), variants = heads, []
    scale = width**-0.5
    for index, (kind, g) in enumerate(kinds.items()):
        work = attention_core_work(at, h, g, width, value_bytes=dtype.itemsize)
        for way in ways:
            if kind == "mha" and way == "-folded":
                continue
            peer = way in PEERS
            core = core_of(way, scale) if way else ScaledDotProduct(scale=scale)
            variants.append(
                Variant(
                    name=kind + way,
                    module=Core(core, at, 2 * index),
                    work=work,
                    reference=_reference(at, 1 + 2 * index, h // g, scale),
                    shows_mask=way == "",
                    missing=missing(way) if peer else None,
                    foreign=peer,
                    stand_in=Core(core_of("-sdpa", scale), at, 2 * index) if peer else None,
                    stand_in_name="scaled_dot_product_attention" if peer else "",
                )
            )

    def one_set() -> Inputs:
        shapes = [(at.batch_size, g, at.kv_len, width) for g in kinds.values() for _ in "kv"]
        q = (at.batch_size, h, at.seq_len, width)
        return tuple(torch.randn(s, device=device, dtype=dtype) for s in (q, *shapes))

    return Built(inputs=[one_set() for _ in range(n_sets)], variants=variants)


def _reference(at: Positions, cache: int, group: int, scale: float) -> Reference:
    def rows_of(inputs: Inputs, rows: list[int]) -> tuple[Tensor]:
        q, k, v = inputs[0], inputs[cache], inputs[cache + 1]
        out = []
        for row in rows:
            rest, s = divmod(row, at.seq_len)
            b, head = divmod(rest, q.shape[1])
            position = at.kv_len - at.seq_len + s
            y = reference.attend(
                q[b, head, s : s + 1].double(),
                k[b, head // group].double(),
                v[b, head // group].double(),
                [position],
                scale,
            )
            out.append(y)
        return (torch.cat(out),)

    return rows_of
