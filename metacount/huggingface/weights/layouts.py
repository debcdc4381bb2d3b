"""How transformers lays out tensors that a reference module stores otherwise.

Fused, transposed and alternating ones are taken apart. RoPE needs no permutation: the spec's
`rope_style` says which columns are a pair, there as here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from metacount.spec import ModelSpec
from metacount.spec.mixers import GatedDelta

Apart = Callable[[Tensor, ModelSpec], tuple[Tensor, ...]]


def as_it_is(tensor: Tensor, _spec: ModelSpec) -> tuple[Tensor, ...]:
    """Return one tensor as it is: theirs is stored as ours."""
    return (tensor,)


def transposed(tensor: Tensor, _spec: ModelSpec) -> tuple[Tensor, ...]:
    """Transpose [in, out], as GPT-2's Conv1D and gpt-oss's experts have it; a vector stays."""
    return (tensor.transpose(-2, -1) if tensor.dim() > 1 else tensor,)


def conv1d(tensor: Tensor, spec: ModelSpec) -> tuple[Tensor, ...]:
    """Transpose GPT-2's [in, out]; StarCoder, told by its one key/value head,
    has the names, not the form.
    """
    return (tensor,) if spec.n_kv_heads != spec.n_heads else transposed(tensor, spec)


def conv1d_qkv(tensor: Tensor, spec: ModelSpec) -> tuple[Tensor, ...]:
    """Split GPT-2's [in, q + k + v] into three equal parts,
    StarCoder's into queries, one key, one value.
    """
    if spec.n_kv_heads != spec.n_heads:
        return joined_qkv(tensor, spec)
    return transposed(tensor, spec)[0].chunk(3)


def grouped_qkv(tensor: Tensor, spec: ModelSpec) -> tuple[Tensor, ...]:
    """Split a tensor group by group: its R query heads, then its key, then its value.

    With G = H this is GPT-NeoX's and BLOOM's [H, 3, K], with G = 1 Falcon-7B's q, k, v.
    """
    n_groups, width = spec.n_kv_heads or spec.n_heads, spec.head_dim or 0
    per_group = spec.n_heads // n_groups + 2
    if tensor.shape[0] != n_groups * per_group * width:
        return ()
    parts = tensor.unflatten(0, (n_groups, per_group, width)).split((per_group - 2, 1, 1), dim=1)
    return tuple(part.flatten(0, 2) for part in parts)


def joined_qkv(tensor: Tensor, spec: ModelSpec) -> tuple[Tensor, ...]:
    """Split a tensor that has all queries, then all keys,
    then all values (Phi-3, MPT, ModernBERT).
    """
    width = spec.head_dim or 0
    n_rows = [n * width for n in (spec.n_heads, spec.n_kv_heads or 0, spec.n_kv_heads or 0)]
    return tensor.split(n_rows) if tensor.shape[0] == sum(n_rows) else ()


def codegen_qkv(tensor: Tensor, _spec: ModelSpec) -> tuple[Tensor, ...]:
    """Split CodeGen's tensor: in each of four parts its queries, then its values, then its keys."""
    if tensor.shape[0] % 12:
        return ()
    q, v, k = tensor.unflatten(0, (4, 3, -1)).unbind(1)
    return q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)


def halves(tensor: Tensor, _spec: ModelSpec) -> tuple[Tensor, ...]:
    """Split the rows of one matrix into gate, then up."""
    return tensor.chunk(2) if tensor.shape[0] % 2 == 0 else ()


def alternating(tensor: Tensor, _spec: ModelSpec) -> tuple[Tensor, ...]:
    """Separate gpt-oss's gate and up, which alternate in the last axis:
    ours has all of the gate first.
    """
    fused = torch.cat((tensor[..., 0::2], tensor[..., 1::2]), dim=-1)
    return (fused.transpose(-2, -1) if tensor.dim() == 3 else fused,)


def _delta(spec: ModelSpec) -> GatedDelta:
    part = spec.last_stack.recurrent
    assert isinstance(part, GatedDelta)  # the mixer of all types with these tensors
    return part


def delta_qkv(tensor: Tensor, spec: ModelSpec) -> tuple[Tensor, ...]:
    """Split a tensor that has all queries, then all keys, then all values (Qwen3.5)."""
    part = _delta(spec)
    key, value = part.n_k_heads * part.k_head_dim, part.n_v_heads * part.v_head_dim
    return tensor.split((key, key, value)) if tensor.shape[0] == 2 * key + value else ()


def delta_qkvz(tensor: Tensor, spec: ModelSpec) -> tuple[Tensor, ...]:
    """Split a tensor key head by key head:
    its query, its key, its group's values and gates (Qwen3-Next).
    """
    part = _delta(spec)
    key, value = part.k_head_dim, part.n_v_heads // part.n_k_heads * part.v_head_dim
    return _of_groups(tensor, part.n_k_heads, (key, key, value, value))


def delta_rates(tensor: Tensor, spec: ModelSpec) -> tuple[Tensor, ...]:
    """Split a tensor key head by key head: the rates of its group, then the decays (Qwen3-Next)."""
    part = _delta(spec)
    per_group = part.n_v_heads // part.n_k_heads
    return _of_groups(tensor, part.n_k_heads, (per_group, per_group))


def _of_groups(tensor: Tensor, n_groups: int, widths: tuple[int, ...]) -> tuple[Tensor, ...]:
    if tensor.shape[0] != n_groups * sum(widths):
        return ()
    parts = tensor.unflatten(0, (n_groups, -1)).split(widths, dim=1)
    return tuple(part.flatten(0, 1) for part in parts)


@dataclass(frozen=True)
class Place:
    """Where a tensor of theirs goes: one module of ours or more, and how it is taken apart."""

    modules: tuple[str, ...]
    apart: Apart = as_it_is
