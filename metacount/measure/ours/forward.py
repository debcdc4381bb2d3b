"""Runs a model over a workload on meta: prefill, one decoded token, and the cache they leave."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from metacount.measure.ours.flops import FlopReport, ReferenceCounter
from metacount.modules.cache import Cache
from metacount.modules.model import Model
from metacount.spec import Workload
from metacount.tensors import tensor_bytes


@dataclass(frozen=True, kw_only=True)
class ForwardReport:
    """What running the workload showed. `decode` is None for an encoder, which cannot decode."""

    prefill: FlopReport
    decode: FlopReport | None
    kv_cache_bytes: int
    cross_kv_cache_bytes: int
    kv_cache_bytes_per_token: int


def measure_forward(model: Model, workload: Workload) -> ForwardReport:
    """Run `model` (on meta) over `workload` and measure it.

    The workload's dtype is the model's own: cache bytes are those of the tensors it makes.
    """
    batch, seq_len = workload.batch_size, workload.seq_len
    if model.spec.kind == "encoder":
        return ForwardReport(
            prefill=measure_prefill(model, workload),
            decode=None,
            kv_cache_bytes=0,
            cross_kv_cache_bytes=0,
            kv_cache_bytes_per_token=0,
        )
    prefill, cache, _ = _fill(model, workload, seq_len)
    _, shorter, memory = _fill(model, workload, seq_len - 1)
    _, single, _ = _fill(model, workload, 1)
    with torch.no_grad(), ReferenceCounter().watching(model) as counter:
        model(_input(model, batch, 1), memory_BTD=memory, cache=shorter, absorbed=True)
    per_token = tensor_bytes(t for layer in single.layers for t in layer.tensors)
    return ForwardReport(
        prefill=prefill,
        decode=counter.report(),
        kv_cache_bytes=tensor_bytes(cache.tensors()),
        cross_kv_cache_bytes=tensor_bytes(t for layer in cache.cross for t in layer.tensors),
        kv_cache_bytes_per_token=per_token // batch,
    )


def measure_prefill(model: Model, workload: Workload) -> FlopReport:
    """Run `model` (on meta) once over the whole workload."""
    if model.spec.kind != "encoder":
        return _fill(model, workload, workload.seq_len)[0]
    with torch.no_grad(), ReferenceCounter().watching(model) as counter:
        model(_input(model, workload.batch_size, workload.seq_len))
    return counter.report()


def _input(model: Model, batch: int, length: int) -> Tensor:
    if model.spec.vocab_size is None:
        dtype = next(model.parameters()).dtype
        return torch.empty(batch, length, model.spec.d_model, device="meta", dtype=dtype)
    return torch.empty(batch, length, device="meta", dtype=torch.long)


def _fill(model: Model, workload: Workload, length: int) -> tuple[FlopReport, Cache, Tensor | None]:
    """Prefill `length` tokens into a new cache (none: only the encoder runs)."""
    cache, batch = model.new_cache(), workload.batch_size
    with torch.no_grad(), ReferenceCounter().watching(model) as counter:
        memory = None
        if model.spec.has_encoder:
            memory = model.encode(_input(model, batch, workload.encoder_len))
        if length or memory is not None:
            model(
                _input(model, batch, max(length, 0)),
                memory_BTD=memory,
                cache=cache,
                prefix_len=min(workload.prefix_len, length),
            )
    return counter.report(), cache, memory
