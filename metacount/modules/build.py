"""A spec becomes a module: on meta, where it costs nothing, or really, on CPU or CUDA."""

from __future__ import annotations

import torch

from metacount.errors import SpecError
from metacount.modules.model import Model
from metacount.spec import ModelSpec
from metacount.tensors import DTYPES as DTYPES

# Every block is really instantiated; this many take about two seconds and 200 MB on meta.
MAX_BLOCKS = 4096


def build(
    spec: ModelSpec, *, device: str = "meta", dtype: str = "bf16", seed: int | None = None
) -> Model:
    """The reference module of `spec`, in eval mode.

    On meta no memory is allocated for weights; elsewhere they are random (`seed` fixes them).
    Raises `SpecError` for more than 4096 blocks and for a dtype that modules do not run in.
    """
    n_blocks = spec.n_layers + spec.n_encoder_layers
    if n_blocks > MAX_BLOCKS:
        raise SpecError(
            "n_layers",
            f"is too large to instantiate block by block (limit {MAX_BLOCKS} in all)",
            n_blocks,
            "use `count`, which needs no module",
        )
    if dtype not in DTYPES:
        raise SpecError(
            "dtype",
            "is not one that a module is built in",
            dtype,
            f"choose one of {', '.join(DTYPES)}",
        )
    if seed is not None:
        torch.manual_seed(seed)
    before = torch.get_default_dtype()
    torch.set_default_dtype(DTYPES[dtype])
    try:
        with torch.device(device):
            return Model(spec).eval()
    finally:
        torch.set_default_dtype(before)
