"""Runs a model over a workload on meta: prefill, one decoded token, and the cache they leave."""

from __future__ import annotations

import torch
from torch import Tensor

from metacount.measure.ours.flops import ReferenceCounter
from metacount.measure.result import MeasuredCache, MeasuredFlops, MeasuredRun
from metacount.modules.cache import Cache
from metacount.modules.model import Model
from metacount.modules.mtp import MultiTokenPrediction
from metacount.spec import Workload
from metacount.tensors import tensor_bytes


def measure_forward(model: Model, workload: Workload) -> MeasuredRun:
    """Run `model` (on meta) over `workload` and measure it.

    The workload's dtype is the model's own: cache bytes are those of the tensors it makes.
    """
    batch, seq_len = workload.batch_size, workload.seq_len
    if model.spec.kind == "encoder":
        return MeasuredRun(
            kind=model.spec.kind,
            prefill=measure_prefill(model, workload),
            decode=None,
            cache=None,
            kv_bytes_per_token=None,
        )
    prefill = ReferenceCounter()
    cache, _ = run_prefill(model, workload, seq_len, prefill)
    single, _ = run_prefill(model, workload, 1, ReferenceCounter())
    decode = ReferenceCounter()
    run_decode(model, workload, decode)
    per_token = tensor_bytes(t for layer in single.layers for t in layer.tensors)
    return MeasuredRun(
        kind=model.spec.kind,
        prefill=prefill.report(),
        decode=decode.report(),
        cache=_bytes_of(cache),
        kv_bytes_per_token=per_token // batch,
        states=tuple(cache.state_tensors()),
    )


def _bytes_of(cache: Cache) -> MeasuredCache:
    return MeasuredCache(
        kv_bytes=tensor_bytes(cache.tensors()),
        cross_kv_bytes=tensor_bytes(t for layer in cache.cross for t in layer.tensors),
        state_bytes=tensor_bytes(cache.state_tensors()),
    )


def measure_prediction(module: MultiTokenPrediction, workload: Workload) -> MeasuredRun:
    """Run prediction modules (on meta) over `workload`, the model itself not, and measure them.

    Each reads as many hidden states and next tokens as the workload has tokens.
    """
    prefill, decode, seq_len = ReferenceCounter(), ReferenceCounter(), workload.seq_len
    cache, single, shorter = (module.new_cache() for _ in range(3))
    _predict(module, workload.batch_size, seq_len, cache, prefill)
    _predict(module, workload.batch_size, 1, single, ReferenceCounter())
    if seq_len > 1:
        _predict(module, workload.batch_size, seq_len - 1, shorter, ReferenceCounter())
    _predict(module, workload.batch_size, 1, shorter, decode, absorbed=True)
    return MeasuredRun(
        kind="decoder",
        prefill=prefill.report(),
        decode=decode.report(),
        cache=_bytes_of(cache),
        kv_bytes_per_token=tensor_bytes(single.tensors()) // workload.batch_size,
    )


def _predict(
    module: MultiTokenPrediction,
    batch: int,
    length: int,
    cache: Cache,
    counter: ReferenceCounter,
    *,
    absorbed: bool = False,
) -> None:
    like = next(module.parameters())
    hidden_BSD = torch.empty(
        batch, length, module.main.spec.d_model, device="meta", dtype=like.dtype
    )
    tokens = torch.empty(batch, length + len(module.layers) - 1, device="meta", dtype=torch.long)
    with torch.no_grad(), counter.watching(module):
        module(hidden_BSD, tokens, cache=cache, absorbed=absorbed)


def measure_prefill(model: Model, workload: Workload) -> MeasuredFlops:
    """Run `model` (on meta) once over the whole workload."""
    counter = ReferenceCounter()
    if model.spec.kind == "encoder":
        run_encoder(model, workload, counter)
    else:
        run_prefill(model, workload, workload.seq_len, counter)
    return counter.report()


def _input(model: Model, batch: int, length: int) -> Tensor:
    if model.spec.vocab_size is None:
        dtype = next(model.parameters()).dtype
        return torch.empty(batch, length, model.spec.d_model, device="meta", dtype=dtype)
    return torch.empty(batch, length, device="meta", dtype=torch.long)


def run_prefill(
    model: Model, workload: Workload, length: int, counter: ReferenceCounter
) -> tuple[Cache, Tensor | None]:
    """Read `length` tokens into a new cache (none: only the encoder runs), what runs being counted.

    Returns the cache, and what the encoder gave.
    """
    cache, batch = model.new_cache(), workload.batch_size
    with torch.no_grad(), counter.watching(model):
        memory = None
        if model.spec.has_encoder:
            source = _input(model, batch, workload.encoder_len)
            memory = counter.called(model, model.encode, source)
        if length or memory is not None:
            model(
                _input(model, batch, max(length, 0)),
                memory_BTD=memory,
                cache=cache,
                prefix_len=min(workload.prefix_len, length),
            )
    return cache, memory


def run_decode(model: Model, workload: Workload, counter: ReferenceCounter) -> None:
    """Run one more token, the last of the workload's, what runs being counted.

    The token continues a state, also where it is the only one that attention sees.
    """
    shorter, memory = run_prefill(model, workload, workload.seq_len - 1, ReferenceCounter())
    if workload.seq_len == 1 and model.spec.recurrent != "none":
        one, _ = run_prefill(model, workload, 1, ReferenceCounter())
        for empty, filled in zip(shorter.states, one.states, strict=True):
            empty.states = filled.states
    with torch.no_grad(), counter.watching(model):
        token = _input(model, workload.batch_size, 1)
        model(token, memory_BTD=memory, cache=shorter, absorbed=True)


def run_encoder(model: Model, workload: Workload, counter: ReferenceCounter) -> None:
    """Run a model that has no decoder, what runs being counted."""
    with torch.no_grad(), counter.watching(model):
        model(_input(model, workload.batch_size, workload.seq_len))
