"""What torch's autograd keeps and multiplies in one forward and backward, measured on its own.

Independent of metacount's own measuring: hooks on saved tensors, and torch's own FLOP counter.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from metacount.modules import attention as attention_module
from metacount.modules import moe as moe_module
from metacount.modules.block import Block
from metacount.modules.build import build
from metacount.spec import ModelSpec, Workload

FLASH = torch.ops.aten._scaled_dot_product_flash_attention


class Kept:
    """A tensor that autograd holds until its node is gone."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def one_expert(x_RD: Tensor, weight_EMD: Tensor, expert_R: Tensor, counts: list[int]) -> Tensor:
    """Every row through the first expert: as many products and kept rows as through any."""
    return x_RD @ weight_EMD[0].T


def flash_core(
    core: Any, q: Tensor, k: Tensor, v: Tensor, visibility: Any, bias: Any = None
) -> Tensor:
    """The middle of an attention as one fused operator, which knows no bias, cap or sink."""
    assert bias is None and core.softcap is None and core.sinks is None
    width, wide = v.shape[-1], q.shape[-1]
    v = v if width == wide else F.pad(v, (0, wide - width))
    out: Tensor = FLASH(q, k, v, 0.0, False, scale=core.scale)[0]
    return out if width == wide else out[..., :width]


@contextmanager
def as_asked(attention: str, checkpointing: str, patched: bool) -> Iterator[None]:
    """Attention and blocks run as asked; experts `patched`, as none can be chosen on meta."""
    with pytest.MonkeyPatch.context() as patch:
        if patched:
            patch.setattr(moe_module, "apply_rows", one_expert)
        if attention == "flash":
            patch.setattr(attention_module.ScaledDotProduct, "forward", flash_core)
        if checkpointing == "full":
            plain = Block.forward

            def forward(self: Block, *args: Any, **named: Any) -> Any:
                def again(*given: Any) -> Any:
                    return plain(
                        self,
                        *given[: len(args)],
                        **dict(zip(named, given[len(args) :], strict=True)),
                    )

                # by position: torch keeps what is given by name without telling anybody
                return checkpoint(again, *args, *named.values(), use_reentrant=False)

            patch.setattr(Block, "forward", forward)
        yield


class Step:
    """One forward, loss and backward: bytes kept after the loss, FLOPs of each half, gradients."""

    def __init__(
        self,
        spec: ModelSpec,
        run: Workload,
        *,
        attention: str = "eager",
        checkpointing: str = "none",
        device: str = "meta",
        patched: bool = True,
    ) -> None:
        model = build(spec, device=device, dtype=run.dtype)
        with as_asked(attention, checkpointing, patched), torch.device(device):
            self._run(model, spec, run)

    def _run(self, model: nn.Module, spec: ModelSpec, run: Workload) -> None:
        alive: weakref.WeakSet[Kept] = weakref.WeakSet()

        def pack(tensor: Tensor) -> Kept:
            # detached: a result that keeps its own node would never be freed
            kept = Kept(tensor.detach())
            alive.add(kept)
            return kept

        own = {t.untyped_storage()._cdata for t in (*model.parameters(), *model.buffers())}
        ids = torch.zeros(run.batch_size, run.seq_len, dtype=torch.int64)
        targets = torch.zeros(run.batch_size, run.seq_len, dtype=torch.int64)
        with (
            FlopCounterMode(display=False) as forward,
            torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.tensor),
        ):
            more = {}
            if spec.has_encoder:
                source = torch.zeros(run.batch_size, run.encoder_len, dtype=torch.int64)
                more["memory_BTD"] = model.encode(source)
            if spec.kind == "prefix-decoder":
                more["prefix_len"] = run.prefix_len
            out = model(ids, **more)
            logits = out.logits_BSV.flatten(0, 1)
            wide = logits if logits.dtype == torch.float64 else logits.float()
            loss = F.cross_entropy(wide, targets.flatten())
            del out, logits, wide, more
        self.tensors = [kept.tensor for kept in alive]
        stores = {t.untyped_storage()._cdata: t.untyped_storage() for t in self.tensors}
        self.kept = {key: s.nbytes() for key, s in stores.items() if key not in own}
        self.forward_flops = forward.get_total_flops()
        with FlopCounterMode(display=False) as backward:
            loss.backward()
        self.backward_flops = backward.get_total_flops()
        self.gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}

    @property
    def activation_bytes(self) -> int:
        return sum(self.kept.values())

    def listing(self) -> list[str]:
        """Every storage with what of it was saved, largest first."""
        seen: dict[int, list[str]] = {}
        for t in self.tensors:
            key = t.untyped_storage()._cdata
            if key in self.kept:
                seen.setdefault(key, []).append(f"{list(t.shape)} {str(t.dtype)[6:]}")
        return [f"{self.kept[k]:8d} {sorted(set(v))}" for k, v in seen.items()]
