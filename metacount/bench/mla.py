"""Multi-head latent attention, expanded and absorbed, over its cache of latents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from metacount.bench import reference
from metacount.bench.attention import Attend, Core, OverCache, by_row, flash_mla, folded, sdpa
from metacount.bench.case import (
    DTYPES,
    Case,
    Inputs,
    Positions,
    Variant,
    missing_package,
    weight,
    with_weights,
    work_of,
)
from metacount.formulas.sublayers import latent_norm_params, mla_matmul_flops, mla_params
from metacount.modules.mla import LatentAttention
from metacount.spec import ModelSpec
from metacount.spec import attention as parts

if TYPE_CHECKING:
    from metacount.files import Json

# name: absorbed, and what takes the core's place over a cache that is written in place
GPU_WAYS: dict[str, tuple[bool, Attend | None]] = {
    "expanded": (False, None),
    "expanded-sdpa": (False, sdpa),
    "absorbed": (True, None),
    "absorbed-folded": (True, folded),
    "absorbed-flashmla": (True, flash_mla),
}
PEER = "absorbed-flashmla"
WAYS = tuple(name for name in GPU_WAYS if name != PEER)
SIZES = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def case(
    model: str, spec: ModelSpec, at: Positions, dtype: str, ways: Sequence[str] = WAYS
) -> Case:
    """Make a case of one MLA layer of `spec`, latent norms and rotary embedding included."""
    sizes: Json = {name: getattr(spec, name) for name in SIZES}
    d, h, value_bytes = spec.d_model, spec.n_heads, DTYPES[dtype].itemsize
    cache = at.batch_size * at.kv_len * (sizes["kv_lora_rank"] + sizes["qk_rope_head_dim"])
    set_bytes = (at.n_tokens * d + cache) * value_bytes
    params = mla_params(d, h, q_lora_rank=spec.q_lora_rank, **sizes)
    params += latent_norm_params(spec.q_lora_rank, sizes["kv_lora_rank"])
    # the plain absorbed form repeats the latent, the expanded one makes keys and values, per head
    repeated = 2 * cache * h * value_bytes
    return Case(
        topic="mla",
        model=model,
        dtype=dtype,
        sizes={"d_model": d, "n_heads": h}
        | ({} if spec.q_lora_rank is None else {"q_lora_rank": spec.q_lora_rank})
        | sizes,
        workload=at.workload,
        rows=at.n_tokens,
        checked_rows=2,
        needs_bytes=int(params) * value_bytes + 3 * set_bytes + repeated + 12 * at.all_pairs * h,
        set_bytes=set_bytes,
        build=partial(_build, spec, sizes, at, DTYPES[dtype], tuple(ways)),
    )


def _build(
    spec: ModelSpec,
    sizes: Json,
    at: Positions,
    dtype: torch.dtype,
    ways: Sequence[str],
    device: torch.device,
    n_sets: int,
) -> list[Variant]:
    d, h = spec.d_model, spec.n_heads

    def layer() -> LatentAttention:
        """Build the module on meta, its softmax scaled by the width of a query head alone."""
        with torch.device("meta"):
            plain = parts.LatentAttention(n_heads=h, q_lora_rank=spec.q_lora_rank, **sizes)
            return LatentAttention(plain, d)

    weights = {
        path: weight(tuple(parameter.shape), device, dtype)
        for path, parameter in layer().named_parameters()
    }
    draw = partial(torch.randn, device=device, dtype=dtype)
    width = sizes["kv_lora_rank"] + sizes["qk_rope_head_dim"]
    inputs: list[Inputs] = [
        (draw(at.batch_size, at.seq_len, d), draw(at.batch_size, at.kv_len, width))
        for _ in range(n_sets)
    ]

    def flops(n_pairs: int, *, absorbed: bool) -> int:
        cached = at.batch_size * at.kv_len
        total = mla_matmul_flops(
            at.n_tokens,
            n_pairs,
            d,
            h,
            q_lora_rank=spec.q_lora_rank,
            **sizes,
            absorbed=absorbed,
            n_kv_tokens=cached,
        )
        return int(total)

    def over_cache(name: str) -> nn.Module:
        absorbed, attend = GPU_WAYS[name]
        own = with_weights(layer(), weights)
        if attend is not None:
            own.add_module("core", Core(attend, own.core.scale))
        return OverCache(own, at, static=attend is not None, absorbed=absorbed)

    expected = by_row(at.seq_len, partial(_expected, layer(), weights, at))
    return [
        Variant(
            name=name,
            module=over_cache(name),
            work=work_of(
                flops(at.all_pairs, absorbed=absorbed),
                *weights.values(),
                *inputs[0],
                inputs[0][0],
                needed=flops(at.kept_pairs, absorbed=absorbed),
            ),
            reference=expected,
            inputs=inputs,
            baseline=name == "expanded",
            shows_mask=attend is None,
            missing=missing_package("-flashmla") if name == PEER else None,
            foreign=name == PEER,
            stand_in=over_cache("absorbed-folded") if name == PEER else None,
            stand_in_name="absorbed-folded" if name == PEER else None,
        )
        for name in ways
        for absorbed, attend in (GPU_WAYS[name],)
    ]


def _expected(
    layer: LatentAttention,
    weights: Mapping[str, Tensor],
    at: Positions,
    inputs: Inputs,
    b: int,
    s: int,
) -> Tensor:
    x, cache = inputs
    return reference.latent_attention(
        x[b],
        cache[b, : at.past],
        {path.removesuffix(".weight"): values for path, values in weights.items()},
        (layer.n_heads, layer.rank, layer.nope, layer.rope, layer.v_head_dim),
        [s],
        theta=layer.rope_theta,
        eps=1e-6,
    )
