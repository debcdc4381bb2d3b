"""What a backward keeps of a mixer with a state: which function counts it, by its part."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.formulas.dim import Dim
from metacount.formulas.forward import Kept, Pass
from metacount.formulas.kept_delta import gated_delta_kept, kimi_delta_kept
from metacount.formulas.kept_gates import rg_lru_kept, short_conv_kept
from metacount.formulas.kept_mixing import Mixing
from metacount.formulas.kept_scans import lightning_kept, mamba2_kept, mamba_kept
from metacount.spec import ModelSpec
from metacount.spec.gated_delta import GatedDelta
from metacount.spec.kimi_delta import KimiDelta
from metacount.spec.lightning import Lightning
from metacount.spec.mamba import Mamba
from metacount.spec.mamba2 import Mamba2
from metacount.spec.rg_lru import RgLru
from metacount.spec.short_conv import ShortConv

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable

KEPT: dict[type, Callable[..., list[Kept]]] = {
    GatedDelta: gated_delta_kept,
    KimiDelta: kimi_delta_kept,
    Lightning: lightning_kept,
    Mamba: mamba_kept,
    Mamba2: mamba2_kept,
    ShortConv: short_conv_kept,
    RgLru: rg_lru_kept,
}


def recurrent_terms(spec: ModelSpec, run: Pass, n: Dim) -> list[Kept]:
    """List what the mixer with a state of one block keeps behind its input.

    Source: the function of the mixer in `KEPT`.
    """
    part = spec.last_stack.recurrent
    if type(part) not in KEPT:
        raise SpecError(
            "recurrent", "has no formula for training", spec.recurrent, "measure it instead"
        )
    mixing = Mixing(
        batch_size=run.batch_size,
        seq_len=n,
        d_model=spec.d_model,
        norms=spec.last_stack.norms,
        widths=run.widths,
    )
    return KEPT[type(part)](mixing, part)
