"""A training step of a whole model on one device: what its backward multiplies, and what is stored.

>>> from metacount.catalog import entry
>>> llama, run = entry("llama-7b").spec(), Pass(batch_size=1, seq_len=2048)
>>> backward_matmul_flops(llama, run)
58523224375296
>>> activation_bytes(llama, run)
39605280772
>>> optimizer_bytes(llama, bytes_per_value=2), gradient_bytes(llama, bytes_per_value=2)
(26953663628, 13476831232)

Sizes may be symbols or arrays; bytes of a value and the kinds of attention and checkpointing are
structure. All parameters are trained, and the loss is the cross-entropy of all positions.
"""

from __future__ import annotations

from metacount.formulas import model
from metacount.formulas.backward import (
    backward_matmul_flops_by_role,
    recompute_matmul_flops_by_role,
)
from metacount.formulas.dim import Dim
from metacount.formulas.forward import Pass
from metacount.formulas.kept_model import kept_terms
from metacount.formulas.optimizer import add, gradient_bytes_by_role, optimizer_bytes_by_role
from metacount.spec import ModelSpec


def backward_matmul_flops(spec: ModelSpec, run: Pass) -> Dim:
    """Count the FLOPs of a backward. See `backward.backward_matmul_flops_by_role`."""
    return sum(backward_matmul_flops_by_role(spec, run).values())


def recompute_matmul_flops(spec: ModelSpec, run: Pass) -> Dim:
    """Count the FLOPs that are computed twice. See `backward.recompute_matmul_flops_by_role`."""
    return sum(recompute_matmul_flops_by_role(spec, run).values())


def activation_bytes_by_role(spec: ModelSpec, run: Pass) -> dict[str, Dim]:
    """Count the bytes that autograd holds between the loss and its backward, by role.

    Every storage once, parameters and buffers apart; to the role of the operation that keeps it.
    What several keep, as the inputs of the branches of a block, is `other`.

    Returns: bytes, exact for the reference modules.
    Source: `kept_model.kept_terms`.
    """
    found: dict[str, Dim] = dict.fromkeys(model.ROLES, 0)
    for term in kept_terms(spec, run):
        add(found, term.role, term.bytes)
    return found


def activation_bytes(spec: ModelSpec, run: Pass) -> Dim:
    """Count the bytes that autograd holds for a backward. See `activation_bytes_by_role`."""
    return sum(activation_bytes_by_role(spec, run).values())


def gradient_bytes(spec: ModelSpec, *, bytes_per_value: int) -> Dim:
    """Count the bytes of all gradients. See `optimizer.gradient_bytes_by_role`."""
    return sum(gradient_bytes_by_role(spec, bytes_per_value=bytes_per_value).values())


def optimizer_bytes(
    spec: ModelSpec, *, optimizer: str = "adamw", bytes_per_value: int, master_weights: bool = False
) -> Dim:
    """Count the bytes of an optimizer's state. See `optimizer.optimizer_bytes_by_role`."""
    return sum(
        optimizer_bytes_by_role(
            spec,
            optimizer=optimizer,
            bytes_per_value=bytes_per_value,
            master_weights=master_weights,
        ).values()
    )
