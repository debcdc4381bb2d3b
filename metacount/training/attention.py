"""Runs attention by a fused kernel on meta: which kernel, and with what it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from metacount.errors import InputError
from metacount.measure.torch_private import cpu_fuses, is_fake

if TYPE_CHECKING:
    from collections.abc import Callable

aten = torch.ops.aten
WIDEST = 256  # of a head that CUDA's kernel takes
WRITTEN_OUT = (
    "attention sdpa: torch's CPU has no fused kernel for some calls (a bias that is trained, say) "
    "and writes their products out; a CUDA device may have one that keeps less"
)


class FusedAttention(TorchFunctionMode):
    """Inside, `scaled_dot_product_attention` of tensors on meta runs by one kernel.

    On meta torch writes it out, which no device does that has a kernel for it.
    """

    def __init__(self, way: str, said: set[str]) -> None:
        """Choose the kernel by `way`; `said` takes what is to be said of the kernel's calls."""
        super().__init__()
        self._said = said
        self._run: Callable[..., Tensor] | None = {"sdpa": as_on_cpu, "flash": by_flash}.get(way)
        self._fused: Callable[..., bool] | None = fused_on_cpu if way == "sdpa" else None

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        """Run the kernel, or let torch."""
        given = kwargs or {}
        if func is F.scaled_dot_product_attention and self._run is not None:
            q = args[0] if args else given["query"]
            # on a fake CPU torch takes the kernel that its CPU would
            flash = self._run is by_flash
            if isinstance(q, Tensor) and (q.is_meta or (flash and is_fake(q))):
                width = q.shape[-1]
                # of a symbol nothing is asked that no figure depends on
                if flash and isinstance(width, int) and width % 8:
                    self._said.add(
                        f"CUDA pads heads of {width} to a multiple of 8: no padding is counted"
                    )
                if self._fused is not None and not self._fused(*args, **given):
                    self._said.add(WRITTEN_OUT)
                return self._run(*args, **given)
        return func(*args, **given)


def scale_of(scale: float | None) -> float | None:
    """Return the scale of a kernel's scores, or None for a symbol: no size depends on the scale."""
    return None if isinstance(scale, torch.SymFloat) else scale


def fused_on_cpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **_: object,
) -> bool:
    """Tell whether torch's CPU has a fused kernel for a call."""
    plain = query.dim() == 4 and not dropout_p
    return plain and cpu_fuses(query, key, value, attn_mask, causal=is_causal)


def as_on_cpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Run attention as torch's CPU does: by its fused kernel, or the products where it has none."""
    if not fused_on_cpu(query, key, value, attn_mask, dropout_p, is_causal):
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        kept, hidden = (
            torch.scalar_tensor(x, dtype=query.dtype, device="meta") for x in (0.0, -torch.inf)
        )
        attn_mask = torch.where(attn_mask, kept, hidden)
    out: Tensor = aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, is_causal, attn_mask=attn_mask, scale=scale
    )[0]
    return out


def by_flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Run CUDA's flash attention, which takes no mask; pad values with zeros to the keys' width."""
    if attn_mask is not None or dropout_p:
        raise InputError("attention flash takes no mask and no dropout here: choose sdpa or eager")
    if query.element_size() != 2 or query.shape[-1] > WIDEST:
        raise InputError(
            f"attention flash is for 16-bit types and heads of at most {WIDEST}: got "
            f"{query.dtype} and {query.shape[-1]}; choose sdpa or eager"
        )
    width = value.shape[-1]
    if width != query.shape[-1]:
        value = F.pad(value, (0, query.shape[-1] - width))
    out: Tensor = aten._scaled_dot_product_flash_attention(
        query, key, value, 0.0, is_causal, False, scale=scale
    )[0]
    return out[..., :width] if width != query.shape[-1] else out
