"""Run torch's context parallelism for real on CPUs, whose fused attention it does not know.

Its ring calls the operators of CUDA's kernels alone, which have no code for the CPU; for the CPU's
own, `_scaled_dot_product_flash_attention_for_cpu`, DTensor has no rule. Here that one is put in the
place of CUDA's flash attention; all else is torch's: how a sequence is cut, what ranks exchange,
and how the parts are merged.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, library
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._context_parallel import _attention

from metacount.modules.attention import Visibility
from metacount.sharding import engine

aten = torch.ops.aten


def _flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """CUDA's operator by the CPU's; heads that share keys get a copy each."""
    groups = q.shape[1] // k.shape[1]
    wide = (t.repeat_interleave(groups, 1) for t in (k, v))
    out, summed = aten._scaled_dot_product_flash_attention_for_cpu(
        q, *wide, dropout_p, is_causal, scale=scale
    )
    seed, offset = (torch.zeros(size, dtype=torch.uint64) for size in ((2,), ()))
    return out, summed, None, None, q.shape[2], k.shape[2], seed, offset, q.new_empty(0)


def _flash_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Tensor,
    cum_seq_k: Tensor,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Tensor,
    philox_offset: Tensor,
    *,
    scale: float | None = None,
) -> tuple[Tensor, ...]:
    groups = query.shape[1] // key.shape[1]
    wide = (t.repeat_interleave(groups, 1) for t in (key, value))
    of_query, *shared = aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad_out, query, *wide, out, logsumexp, dropout_p, is_causal, scale=scale
    )
    return of_query, *(t.unflatten(1, (-1, groups)).sum(2) for t in shared)


@cache
def cpu_kernels() -> library.Library:
    """Give the CPU CUDA's flash attention, for as long as this process lives."""
    made = library.Library("aten", "IMPL")
    name = "_scaled_dot_product_flash_attention"
    made.impl(name, _flash, "CPU")
    made.impl(f"{name}_backward", _flash_backward, "CPU")
    return made


def _in_any_type(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """What `by_flash` runs, of float64 too, which is none of CUDA's types."""
    assert attn_mask is None and not dropout_p
    width = value.shape[-1]
    value = F.pad(value, (0, query.shape[-1] - width))
    out: Tensor = aten._scaled_dot_product_flash_attention(
        query, key, value, 0.0, is_causal, scale=scale
    )[0]
    return out[..., :width]


@contextmanager
def in_parts(mesh: Any, wide: bool, *sequences: Tensor) -> Iterator[None]:
    """Inside, this rank has its part of each sequence [.., S], and positions are those of the part.

    `wide`: attention is merged and gradients are summed in the type of the tensors, which torch
    would do in float32.
    """
    cpu_kernels()
    positions = torch.arange(sequences[0].shape[-1])
    cut = [*sequences, positions]
    options, none = _attention._cp_options, nullcontext()
    with (
        patch.object(Visibility, "queries", lambda self, device: positions.clone()),
        patch.object(engine, "by_flash", _in_any_type) if wide else none,
        patch.object(options, "convert_to_f32", not wide),
        context_parallel(mesh, buffers=cut, buffer_seq_dims=[t.dim() - 1 for t in cut]),
    ):
        yield
