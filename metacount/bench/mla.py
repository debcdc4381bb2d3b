"""Multi-head latent attention, expanded and absorbed, over its cache of latents."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from metacount.bench import reference
from metacount.bench.attention import FlashMla, FoldedCore, FusedCore, OverCache, workload
from metacount.bench.case import (
    DTYPES,
    Built,
    Case,
    Inputs,
    Reference,
    Variant,
    gain,
    missing_package,
    weight,
)
from metacount.bench.work import Positions, mla_work
from metacount.modules.mla import LatentAttention
from metacount.spec import ModelSpec
from metacount.spec import attention as parts

# name: absorbed, and what takes the core's place over a cache that is written in place
WAYS: dict[str, tuple[bool, Callable[[float], nn.Module] | None]] = {
    "expanded": (False, None),
    "expanded-sdpa": (False, FusedCore),
    "absorbed": (True, None),
    "absorbed-folded": (True, FoldedCore),
}
PEERS: dict[str, tuple[bool, Callable[[float], nn.Module] | None]] = {
    "absorbed-flashmla": (True, FlashMla)
}
GPU_WAYS = WAYS | PEERS
SIZES = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def case(
    model: str, spec: ModelSpec, at: Positions, dtype: str, ways: Sequence[str] = tuple(WAYS)
) -> Case:
    """Make a case of one MLA layer of `spec`, latent norms and rotary embedding included."""
    sizes = {name: getattr(spec, name) for name in SIZES}
    h, value_bytes = spec.n_heads, DTYPES[dtype].itemsize
    cache = at.batch_size * at.kv_len * (sizes["kv_lora_rank"] + sizes["qk_rope_head_dim"])
    set_bytes = (at.n_tokens * spec.d_model + cache) * value_bytes
    weights = mla_work(
        at,
        spec.d_model,
        h,
        q_lora_rank=spec.q_lora_rank,
        **sizes,
        absorbed=True,
        value_bytes=value_bytes,
    ).weight_bytes
    # the plain absorbed form repeats the latent, the expanded one makes keys and values, per head
    repeated = 2 * cache * h * value_bytes
    return Case(
        topic="mla",
        model=model,
        dtype=dtype,
        sizes={"d_model": spec.d_model, "n_heads": h}
        | ({} if spec.q_lora_rank is None else {"q_lora_rank": spec.q_lora_rank})
        | sizes,
        workload=workload(at),
        variants=tuple(ways),
        rows=at.n_tokens,
        checked_rows=2,
        needs_bytes=weights + 3 * set_bytes + repeated + 12 * at.all_pairs * h,
        set_bytes=set_bytes,
        build=lambda device, n_sets: _build(spec, sizes, at, DTYPES[dtype], device, n_sets, ways),
    )


def _build(
    spec: ModelSpec,
    sizes: dict[str, int],
    at: Positions,
    dtype: torch.dtype,
    device: torch.device,
    n_sets: int,
    ways: Sequence[str],
) -> Built:
    first = layer_of(spec, sizes)
    for name, parameter in list(first.named_parameters()):
        owner = first.get_submodule(name.removesuffix(".weight"))
        if parameter.dim() == 1:
            owner.weight = gain(parameter.shape[0], device, dtype)
        else:
            owner.weight = weight(tuple(parameter.shape), device, dtype)
    variants, expected = [], _reference(first, at)

    def over_cache(name: str) -> OverCache:
        absorbed, core = GPU_WAYS[name]
        layer = layer_of(spec, sizes)
        for (path, values), _ in zip(first.named_parameters(), layer.parameters(), strict=True):
            layer.get_submodule(path.removesuffix(".weight")).weight = values
        if core is not None:  # another module of the same signature
            layer.add_module("core", core(layer.core.scale))
        return OverCache(layer, at, static=core is not None, absorbed=absorbed)

    for name in ways:
        absorbed, core = GPU_WAYS[name]
        work = mla_work(
            at,
            spec.d_model,
            spec.n_heads,
            q_lora_rank=spec.q_lora_rank,
            **sizes,
            absorbed=absorbed,
            value_bytes=dtype.itemsize,
        )
        peer = name in PEERS
        variants.append(
            Variant(
                name=name,
                module=over_cache(name),
                work=work,
                reference=expected,
                shows_mask=core is None,
                missing=missing_package("-flashmla") if peer else None,
                foreign=peer,
                stand_in=over_cache("absorbed-folded") if peer else None,
                stand_in_name="absorbed-folded" if peer else "",
            )
        )
    width = sizes["kv_lora_rank"] + sizes["qk_rope_head_dim"]
    inputs = [
        (
            torch.randn(at.batch_size, at.seq_len, spec.d_model, device=device, dtype=dtype),
            torch.randn(at.batch_size, at.kv_len, width, device=device, dtype=dtype),
        )
        for _ in range(n_sets)
    ]
    return Built(inputs=list(inputs), variants=variants)


def layer_of(spec: ModelSpec, sizes: dict[str, int]) -> LatentAttention:
    """Build the reference module on meta, its softmax scaled by the width of a query head alone."""
    with torch.device("meta"):
        plain = parts.LatentAttention(
            n_heads=spec.n_heads,
            q_lora_rank=spec.q_lora_rank,
            kv_lora_rank=sizes["kv_lora_rank"],
            qk_nope_head_dim=sizes["qk_nope_head_dim"],
            qk_rope_head_dim=sizes["qk_rope_head_dim"],
            v_head_dim=sizes["v_head_dim"],
        )
        return LatentAttention(plain, spec.d_model)


def _reference(layer: LatentAttention, at: Positions) -> Reference:
    named = {
        "kv_a": layer.kv_a_proj_with_mqa.weight,
        "kv_norm": layer.kv_a_layernorm.weight,
        "kv_b": layer.kv_b_proj.weight,
        "o": layer.o_proj.weight,
    }
    if layer.q_lora_rank is None:
        named["q"] = layer.q_proj.weight
    else:
        named["q_a"], named["q_b"] = layer.q_a_proj.weight, layer.q_b_proj.weight
        named["q_norm"] = layer.q_a_layernorm.weight
    weights = {name: tensor for name, tensor in named.items() if tensor is not None}
    sizes = (layer.n_heads, layer.rank, layer.nope, layer.rope, layer.v_head_dim)

    def rows_of(inputs: Inputs, rows: list[int]) -> tuple[Tensor]:
        x, kept = inputs
        past, out = at.kv_len - at.seq_len, []
        for row in rows:
            b, s = divmod(row, at.seq_len)
            out.append(
                reference.latent_attention(
                    x[b], kept[b, :past], weights, sizes, [s], theta=layer.rope_theta, eps=1e-6
                )
            )
        return (torch.cat(out),)

    return rows_of
