"""A reference module as a program that can be trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metacount.errors import InputError
from metacount.measure.ours.roles import role_of
from metacount.modules.attention import ScaledDotProduct, Visibility
from metacount.modules.block import Block
from metacount.modules.model import Model
from metacount.modules.moe import Experts
from metacount.modules.shared_block import SharedBlock
from metacount.spec import Workload
from metacount.training.attention import scale_of
from metacount.training.counter import RoleBook
from metacount.training.setup import Setup
from metacount.training.step import Program

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    RowsOf: TypeAlias = Callable[[Experts], Callable[..., Tensor]]


class ReferenceBook(RoleBook):
    """Roles by owner; nothing of ours asks for data."""

    def role(self, path: list[nn.Module]) -> str | None:
        """Return the role that the modules from the root to the running one give."""
        return role_of(path)


def reference_program(
    model: Model,
    workload: Workload,
    setup: Setup,
    *,
    device: str = "meta",
    rows_of: RowsOf | None = None,
) -> Program:
    """Make a training step of a reference module over a workload; its tokens are zeros off meta.

    `rows_of` runs experts in another way than with as many rows as each other.
    """

    def tokens(length: int) -> Tensor:
        if model.spec.vocab_size is None:
            dtype = next(model.parameters()).dtype
            shape = (workload.batch_size, length, model.spec.d_model)
            return torch.zeros(shape, dtype=dtype, device=device)
        return torch.zeros(workload.batch_size, length, dtype=torch.long, device=device)

    given = tokens(workload.seq_len)
    inputs = (given, tokens(workload.encoder_len)) if model.spec.has_encoder else (given,)

    def run(ids: Tensor, source: Tensor | None = None) -> Tensor:
        memory = None if source is None else model.encode(source)
        out = model(ids, memory_BTD=memory, prefix_len=min(workload.prefix_len, workload.seq_len))
        found: Tensor = out.hidden_BSD if out.logits_BSV is None else out.logits_BSV
        return found

    return Program(
        model=model,
        inputs=inputs,
        run=run,
        targets=torch.zeros_like(given) if model.lm_head is not None else None,
        layers={name: m for name, m in model.named_modules() if isinstance(m, Block)},
        shared=tuple(name for name, m in model.named_modules() if isinstance(m, SharedBlock)),
        head=model.lm_head,
        book=ReferenceBook(),
        context=lambda: as_trained(model, setup.attention, rows_of),
    )


@contextmanager
def as_trained(model: nn.Module, attention: str, rows_of: RowsOf | None = None) -> Iterator[None]:
    """Set how attention runs inside, and spread tokens evenly over experts on meta; undo after."""
    changed: list[tuple[nn.Module, str]] = []
    for module in model.modules():
        if isinstance(module, Experts):
            vars(module)["rows"] = (rows_of or _even)(module)
            changed.append((module, "rows"))
        elif isinstance(module, ScaledDotProduct) and attention != "eager":
            vars(module)["forward"] = _fused(module, attention)
            changed.append((module, "forward"))
    try:
        yield
    finally:
        for module, name in changed:
            del vars(module)[name]


def _even(experts: Experts) -> Callable[..., Tensor]:
    """Make a `rows` that gives experts even shares on meta, where nobody can know the choice."""

    def rows(x_RD: Tensor, name: str, expert_R: Tensor, counts: list[int]) -> Tensor:
        each, rest = divmod(x_RD.shape[0], experts.n_experts)
        even = [each + (n < rest) for n in range(experts.n_experts)]
        return Experts.rows(experts, x_RD, name, expert_R, counts or even)

    return rows


def _fused(core: ScaledDotProduct, way: str) -> Callable[..., Tensor]:
    """Make the forward of attention's core by `scaled_dot_product_attention`."""
    if core.softcap is not None or core.sinks is not None:
        what = "caps its scores" if core.sinks is None else "has sinks"
        raise InputError(f"attention {way} is not for a model that {what}: choose eager")

    def forward(
        q_BHSK: Tensor, k_BGTK: Tensor, v_BGTU: Tensor, sees: Visibility, bias: Tensor | None = None
    ) -> Tensor:
        plain = bias is None and (sees.window is None or way == "flash") and not sees.chunked
        masked = not plain or sees.kind == "prefix"
        if masked and way == "flash":
            raise InputError(
                "attention flash is for causal and windowed attention without a bias "
                "on the scores: choose sdpa or eager"
            )
        mask = _mask(sees, bias, q_BHSK) if masked else None
        return F.scaled_dot_product_attention(
            q_BHSK,
            k_BGTK,
            v_BGTU,
            attn_mask=mask,
            is_causal=mask is None and sees.kind == "causal",
            scale=scale_of(core.scale),
            enable_gqa=bool(q_BHSK.shape[1] != k_BGTK.shape[1]),  # of symbols too
        )

    return forward


def _mask(sees: Visibility, bias: Tensor | None, q: Tensor) -> Tensor:
    keep = sees.keep(q.device)
    if bias is None:
        return keep
    hidden = bias.masked_fill(~keep, -torch.inf).to(q.dtype)
    return hidden if hidden.dim() == 4 else hidden[None]
