"""Names of the tensors of linear attention: Qwen3-Next, Qwen3.5, OLMo Hybrid, MiniMax, Kimi."""

from __future__ import annotations

from torch import Tensor

from metacount.huggingface.weights.names import Place, Table
from metacount.spec import ModelSpec
from metacount.spec.mixers import GatedDelta

OURS = "linear_attn"  # what a block calls its mixer
# One name on both sides: OLMo Hybrid's, Kimi's, Lightning's.
NAMES = (
    "q_proj",
    "k_proj",
    "v_proj",
    "qkv_proj",
    "a_proj",
    "b_proj",
    "g_proj",
    "g_a_proj",
    "g_b_proj",
    "output_gate",
    "conv1d",
    "A_log",
    "dt_bias",
    "o_norm",
    "o_proj",
    "forget_gate.f_a_proj",
    "forget_gate.f_b_proj",
    "forget_gate.dt_bias",
    "forget_gate.A_log",
)
DECAYS = frozenset(["slope_rate", "query_decay", "key_decay", "diagonal_decay"])  # Lightning's


def _part(spec: ModelSpec) -> GatedDelta:
    part = spec.last_stack.recurrent
    assert isinstance(part, GatedDelta)  # the mixer of all types with these tensors
    return part


def joined(tensor: Tensor, spec: ModelSpec) -> tuple[Tensor, ...]:
    """Split a tensor that has all queries, then all keys, then all values (Qwen3.5)."""
    part = _part(spec)
    key, value = part.n_k_heads * part.k_head_dim, part.n_v_heads * part.v_head_dim
    return tensor.split((key, key, value)) if tensor.shape[0] == 2 * key + value else ()


def grouped(tensor: Tensor, spec: ModelSpec) -> tuple[Tensor, ...]:
    """Split a tensor key head by key head:
    its query, its key, its group's values and gates (Qwen3-Next).
    """
    part = _part(spec)
    key, value = part.k_head_dim, part.n_v_heads // part.n_k_heads * part.v_head_dim
    return _of_groups(tensor, part.n_k_heads, (key, key, value, value))


def grouped_rates(tensor: Tensor, spec: ModelSpec) -> tuple[Tensor, ...]:
    """Split a tensor key head by key head: the rates of its group, then the decays (Qwen3-Next)."""
    part = _part(spec)
    per_group = part.n_v_heads // part.n_k_heads
    return _of_groups(tensor, part.n_k_heads, (per_group, per_group))


def _of_groups(tensor: Tensor, n_groups: int, widths: tuple[int, ...]) -> tuple[Tensor, ...]:
    if tensor.shape[0] != n_groups * sum(widths):
        return ()
    parts = tensor.unflatten(0, (n_groups, -1)).split(widths, dim=1)
    return tuple(part.flatten(0, 1) for part in parts)


def _projections(letters: str) -> tuple[str, ...]:
    return tuple(f"{OURS}.{letter}_proj" for letter in letters)


LINEAR_ATTENTION: Table = {
    **{f"{OURS}.{name}": f"{OURS}.{name}" for name in NAMES},
    f"{OURS}.in_proj_qkvz": Place(_projections("qkvg"), grouped),
    f"{OURS}.in_proj_ba": Place(_projections("ba"), grouped_rates),
    f"{OURS}.in_proj_qkv": Place(_projections("qkv"), joined),
    f"{OURS}.in_proj_z": f"{OURS}.g_proj",
    f"{OURS}.in_proj_a": f"{OURS}.a_proj",
    f"{OURS}.in_proj_b": f"{OURS}.b_proj",
    f"{OURS}.norm": f"{OURS}.o_norm",
    f"{OURS}.out_proj": f"{OURS}.o_proj",
}
