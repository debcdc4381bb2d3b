"""A spec becomes a module: on meta, where it costs nothing, or really, on CPU or CUDA."""

from __future__ import annotations

import torch

from metacount.errors import SpecError
from metacount.modules.model import Model, MultiTokenPrediction
from metacount.spec import ModelSpec
from metacount.tensors import DTYPES as DTYPES
from metacount.tensors import made_in

# Every block is really instantiated; this many take about two seconds and 200 MB on meta.
MAX_BLOCKS = 4096


def build(
    spec: ModelSpec, *, device: str = "meta", dtype: str = "bf16", seed: int | None = None
) -> Model:
    """Build the reference module of `spec`, in eval mode.

    On meta no memory is allocated for weights; elsewhere they are random (`seed` fixes them).
    Raises `SpecError` for more than 4096 blocks and for a dtype that modules do not run in.
    """
    n_blocks = spec.n_layers + spec.n_encoder_layers + (spec.n_mtp_layers or 0)
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
    place = torch.device(device)
    devices = [place] if place.type == "cuda" else []
    with torch.random.fork_rng(devices, enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        with place, made_in(DTYPES[dtype]):
            return Model(spec).eval()


def build_prediction(main: Model) -> MultiTokenPrediction:
    """Make the prediction modules of a model that was built, on its device, in its dtype."""
    like = next(main.parameters())
    with like.device, made_in(like.dtype):
        return MultiTokenPrediction(main).eval()
