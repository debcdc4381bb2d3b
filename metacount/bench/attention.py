"""Attention with as many key/value heads as query heads, with fewer, and with one; over a cache.

A layer with its projections, or only what lies between them: at one sequence a decode's time is
that of the projections' weights; without them the cache alone counts, so that kernels and head
layouts can be compared, and with what others measured. Kernels of other projects are optional
variants, called as their own examples call them; none shows an operator that a counter could
price, so FLOPs are counted on a stand-in of the same shapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metacount.bench import reference
from metacount.bench.case import (
    DTYPES,
    PACKAGES,
    Apply,
    Case,
    Expected,
    Inputs,
    Positions,
    Reference,
    Variant,
    missing_package,
    weight,
    with_weights,
    work_of,
)
from metacount.formulas.sublayers import attention_pair_flops, attention_projection_flops
from metacount.modules.attention import Attention, ScaledDotProduct, Visibility
from metacount.modules.cache import LayerCache
from metacount.modules.norm import at_least_float32
from metacount.spec import ModelSpec
from metacount.spec import attention as parts

PAGE = 64  # positions of a page of FlashMLA's cache
LATENT = (512, 64)  # the only widths FlashMLA has: latent and rotated key

# queries [B, H, S, K], keys [B, G, T, K], values [B, G, T, U], who sees whom, the factor on the
# scores -> [B, H, S, U]
Attend = Callable[[Tensor, Tensor, Tensor, Visibility, float], Tensor]


class Core(nn.Module):
    """A function in the place of a layer's own core, with the same arguments."""

    def __init__(self, attend: Attend, scale: float) -> None:
        super().__init__()
        self.attend, self.scale = attend, scale

    def forward(
        self, q_BHSK: Tensor, k_BGTK: Tensor, v_BGTU: Tensor, sees: Visibility, _bias: object = None
    ) -> Tensor:
        """Attend: -> [B, H, S, U]."""
        return self.attend(q_BHSK, k_BGTK, v_BGTU, sees, self.scale)


def sdpa(
    q_BHSK: Tensor,
    k_BGTK: Tensor,
    v_BGTU: Tensor,
    sees: Visibility,
    scale: float,
    backend: str | None = None,
) -> Tensor:
    """Attend by torch's scaled_dot_product_attention: the kernel it chooses, or one by name.

    Causally from the first position on, or with one query to all.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with nullcontext() if backend is None else sdpa_kernel(getattr(SDPBackend, backend)):
        return F.scaled_dot_product_attention(
            q_BHSK,
            k_BGTK,
            v_BGTU,
            is_causal=sees.n_queries > 1,
            scale=scale,
            enable_gqa=q_BHSK.shape[1] != k_BGTK.shape[1],
        )


def folded(
    q_BHSK: Tensor, k_BGTK: Tensor, v_BGTU: Tensor, sees: Visibility, scale: float
) -> Tensor:
    """Attend by the written-out products, with the queries of a group as rows of one matrix.

    A key head is then read once for its whole group; broadcasting would copy it for each query.
    """
    n_groups, n_queries = k_BGTK.shape[1], q_BHSK.shape[2]
    q_BGXK = q_BHSK.unflatten(1, (n_groups, -1)).flatten(2, 3)
    # [b, g, r·s, k] @ [b, g, k, t] -> [b, g, r·s, t]
    scores = at_least_float32(q_BGXK @ k_BGTK.transpose(-1, -2) * scale)
    if n_queries > 1:
        hidden_ST = ~sees.keep(scores.device)
        scores = scores.unflatten(2, (-1, n_queries)).masked_fill(hidden_ST, -math.inf)
        scores = scores.flatten(2, 3)
    # [b, g, r·s, t] @ [b, g, t, u] -> [b, g, r·s, u]
    y_BGXU: Tensor = scores.softmax(-1).to(v_BGTU.dtype) @ v_BGTU
    y_BHSU: Tensor = y_BGXU.unflatten(2, (-1, n_queries)).flatten(1, 2)
    return y_BHSU


def flash_attention_3(
    q_BHSK: Tensor, k_BGTK: Tensor, v_BGTU: Tensor, sees: Visibility, scale: float
) -> Tensor:
    """Attend by flash_attn_interface.flash_attn_func, which takes [B, S, H, K]."""
    from flash_attn_interface import flash_attn_func

    q, k, v = (t.transpose(1, 2) for t in (q_BHSK, k_BGTK, v_BGTU))
    out = flash_attn_func(q, k, v, softmax_scale=scale, causal=sees.n_queries > 1)
    y_BSHU: Tensor = out[0] if isinstance(out, tuple) else out
    return y_BSHU.transpose(1, 2)


def flash_infer(
    q_BHSK: Tensor, k_BGTK: Tensor, v_BGTU: Tensor, sees: Visibility, scale: float
) -> Tensor:
    """Attend by flashinfer's kernels for one sequence, [G, T, K] for keys and values."""
    import flashinfer

    if len(q_BHSK) != 1:
        raise RuntimeError("flashinfer's single-sequence kernels take one sequence only")
    q_SHK, k, v = q_BHSK[0].transpose(0, 1).contiguous(), k_BGTK[0], v_BGTU[0]
    how = {"kv_layout": "HND", "sm_scale": scale}
    if sees.n_queries == 1:
        y = flashinfer.single_decode_with_kv_cache(q_SHK[0], k, v, **how)[None]
    else:
        y = flashinfer.single_prefill_with_kv_cache(q_SHK, k, v, causal=True, **how)
    y_BHSU: Tensor = y.transpose(0, 1)[None]
    return y_BHSU


def flash_mla(
    q_BHSK: Tensor, k_BGTK: Tensor, v_BGTU: Tensor, sees: Visibility, scale: float
) -> Tensor:
    """Attend to latents, which are the keys and, first part, the values; decode only.

    flash_mla_with_kvcache over a cache of latents in pages of 64 positions.
    """
    from flash_mla import flash_mla_with_kvcache, get_mla_metadata

    n, heads, queries, width = q_BHSK.shape
    value, kv_len = v_BGTU.shape[-1], k_BGTK.shape[2]
    if (value, width - value) != LATENT or kv_len % PAGE:
        raise RuntimeError(
            f"FlashMLA takes latents of {LATENT[0]} + {LATENT[1]} and whole pages of {PAGE}"
        )
    pages, device = kv_len // PAGE, q_BHSK.device
    table = torch.arange(n * pages, device=device, dtype=torch.int32).view(n, pages)
    lengths = torch.full((n,), kv_len, device=device, dtype=torch.int32)
    plan, splits = get_mla_metadata(lengths, queries * heads, 1)
    y_BSHU, _ = flash_mla_with_kvcache(
        q_BHSK.transpose(1, 2).contiguous(),
        k_BGTK.reshape(n * pages, PAGE, 1, width),
        table,
        lengths,
        value,
        plan,
        splits,
        softmax_scale=scale,
        causal=sees.n_queries > 1,
    )
    y: Tensor = y_BSHU.transpose(1, 2)
    return y


# what takes the place of the layer's own core, over a cache that is written in place
CORES: dict[str, Attend | None] = {
    "": None,
    "-folded": folded,
    "-sdpa": sdpa,
    "-cudnn": partial(sdpa, backend="CUDNN_ATTENTION"),
    "-flash": partial(sdpa, backend="FLASH_ATTENTION"),
    "-efficient": partial(sdpa, backend="EFFICIENT_ATTENTION"),
    "-math": partial(sdpa, backend="MATH"),
    "-fa3": flash_attention_3,
    "-flashinfer": flash_infer,
}
WAYS, GPU_WAYS = ("", "-folded", "-sdpa"), tuple(CORES)


class StaticCache(LayerCache):
    """A cache with room for all positions: new rows are written in place, nothing is copied."""

    def __init__(self, tensors: tuple[Tensor, ...], past: int) -> None:
        super().__init__()
        self.tensors, self.length = tensors, past

    def update(self, *new: Tensor) -> tuple[Tensor, ...]:
        """Write the new rows behind the past ones; return all rows."""
        for held, rows in zip(self.tensors, new, strict=True):
            held[..., self.length :, :].copy_(rows)
        return self.tensors


class OverCache(nn.Module):
    """A layer run at fixed positions over a cache that is given with the input.

    The last S rows of each cache tensor are what the layer itself computes, so that running it
    again changes nothing. `static` writes them in place; otherwise the past is concatenated with
    them, as `LayerCache` does.
    """

    def __init__(self, layer: nn.Module, at: Positions, *, static: bool, absorbed: bool = False):
        super().__init__()
        self.layer, self.static, self.absorbed = layer, static, absorbed
        self.past, self.sees = at.past, sight(at)

    def forward(self, x_BSD: Tensor, *cache: Tensor) -> Tensor:
        """Run the layer over the cache: [B, S, D] and the cache -> [B, S, D]."""
        held = StaticCache(cache, self.past) if self.static else LayerCache()
        if self.past and not self.static:
            held.tensors = tuple(t[..., : self.past, :] for t in cache)
            held.length = self.past
        how = {"absorbed": True} if self.absorbed else {}
        y_BSD: Tensor = self.layer(x_BSD, self.sees, cache=held, **how)
        return y_BSD


def sight(at: Positions) -> Visibility:
    """Return what each new token sees: the past and, causally, the new ones."""
    return Visibility(n_queries=at.seq_len, n_keys=at.kv_len, query_start=at.past)


def by_row(n: int, compute: Callable[[Inputs, int, int], Tensor]) -> Reference:
    """Make a reference that computes row by row; row i is of place i % n in sequence i // n."""

    def rows_of(inputs: Inputs, rows: list[int]) -> Expected:
        return (torch.cat([compute(inputs, *divmod(row, n)) for row in rows]),)

    return rows_of


def kv_heads(spec: ModelSpec) -> dict[str, int]:
    """Choose the key/value heads of each kind; for GQA the model's, or one per four query heads."""
    h, own = spec.n_heads, spec.n_kv_heads or spec.n_heads
    grouped = own if 1 < own < h else h // 4 if h % 4 == 0 and h > 4 else None
    return {"mha": h} | ({"gqa": grouped} if grouped else {}) | {"mqa": 1}


def case(
    model: str,
    spec: ModelSpec,
    at: Positions,
    dtype: str,
    ways: Sequence[str] = WAYS,
    *,
    core: bool = False,
) -> Case:
    """Make a case of one attention layer of `spec`'s sizes, without rotary embedding or QK-norm.

    With `core` of its middle alone: queries, keys and values in, values out.
    """
    d, h, width = spec.d_model, spec.n_heads, spec.head_dim
    assert width is not None
    kinds, value_bytes = kv_heads(spec), DTYPES[dtype].itemsize
    params = 0 if core else sum(2 * d * width * (h + g) for g in kinds.values())
    cache = sum(2 * at.batch_size * at.kv_len * g * width for g in kinds.values())
    set_bytes = (at.n_tokens * (h * width if core else d) + cache) * value_bytes
    # scores in float32, three times: scaled, masked, softmax; the keys repeated for each query head
    scores = 12 * at.all_pairs * h + 2 * at.batch_size * at.kv_len * h * width * value_bytes
    heads = {"n_heads": h, "head_dim": width, **{f"{k}_n_kv_heads": g for k, g in kinds.items()}}
    return Case(
        topic="attention",
        model=model,
        dtype=dtype,
        sizes=heads if core else {"d_model": d, **heads},
        workload={"part": "core", **at.workload} if core else at.workload,
        rows=at.n_tokens * h if core else at.n_tokens,
        checked_rows=16 if core else 4,
        needs_bytes=params * value_bytes + 3 * set_bytes + scores,
        set_bytes=set_bytes,
        build=partial(
            _build, (None if core else d, h, width), kinds, at, DTYPES[dtype], tuple(ways)
        ),
    )


def _build(
    sizes: tuple[int | None, int, int],
    kinds: dict[str, int],
    at: Positions,
    dtype: torch.dtype,
    ways: Sequence[str],
    device: torch.device,
    n_sets: int,
) -> list[Variant]:
    (d, h, width), variants = sizes, []
    draw = partial(torch.randn, device=device, dtype=dtype)
    shape = (at.batch_size, h, at.seq_len, width) if d is None else (at.batch_size, at.seq_len, d)
    given = [draw(shape) for _ in range(n_sets)]
    for kind, g in kinds.items():
        cache = (at.batch_size, g, at.kv_len, width)
        inputs = [(x, draw(cache), draw(cache)) for x in given]
        module: Callable[[str], nn.Module]
        weights: tuple[nn.Parameter, ...] = ()
        if d is None:
            products = 0
            module = partial(_middle, at, width**-0.5)
            expected = by_row(at.seq_len, partial(_expected_middle, at, width**-0.5))
        else:
            shapes = ((h * width, d), (g * width, d), (g * width, d), (d, h * width))
            weights = tuple(weight(shape, device, dtype) for shape in shapes)
            products = int(attention_projection_flops(at.n_tokens, d, h, g, width))
            module = partial(_layer, at, (d, h, g, width), weights)
            expected = by_row(at.seq_len, partial(_expected_layer, at, h, weights))
        work = work_of(
            products + int(attention_pair_flops(at.all_pairs, h, width)),
            *weights,
            *inputs[0],
            given[0],
            needed=products + int(attention_pair_flops(at.kept_pairs, h, width)),
        )
        for way in ways:
            if kind == "mha" and way == "-folded":
                continue  # with a key/value head for each query head there is nothing to fold
            peer = way in PACKAGES
            variants.append(
                Variant(
                    name=kind + way,
                    module=module(way),
                    work=work,
                    reference=expected,
                    inputs=list(inputs),
                    baseline=kind == "mha",
                    shows_mask=way == "",
                    missing=missing_package(way),
                    foreign=peer,
                    stand_in=module("-sdpa") if peer else None,
                    stand_in_name="scaled_dot_product_attention" if peer else None,
                )
            )
    return variants


def _middle(at: Positions, scale: float, way: str) -> nn.Module:
    attend = CORES[way]
    core = ScaledDotProduct(scale=scale) if attend is None else Core(attend, scale)
    return Apply(core, sight(at))


def _layer(
    at: Positions, sizes: tuple[int, int, int, int], weights: Iterable[nn.Parameter], way: str
) -> nn.Module:
    """Build the reference module with these weights and the core of one way."""
    d, h, g, width = sizes
    with torch.device("meta"):
        layer = Attention(parts.Attention(n_heads=h, n_kv_heads=g, head_dim=width), d)
    names = ("q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight")
    with_weights(layer, dict(zip(names, weights, strict=True)))
    if (attend := CORES[way]) is not None:
        layer.add_module("core", Core(attend, layer.scale))
    return OverCache(layer, at, static=attend is not None)


def _expected_layer(
    at: Positions, n_heads: int, weights: tuple[Tensor, ...], inputs: Inputs, b: int, s: int
) -> Tensor:
    x, *cache = inputs
    k, v = (t[b, :, : at.past] for t in cache)
    return reference.attention(x[b], k, v, weights, n_heads, [s])


def _expected_middle(at: Positions, scale: float, inputs: Inputs, place: int, s: int) -> Tensor:
    q, k, v = inputs
    b, head = divmod(place, q.shape[1])
    of_head = b, head // (q.shape[1] // k.shape[1])
    query, keys, values = q[b, head, s : s + 1], k[of_head], v[of_head]
    return reference.attend(query.double(), keys.double(), values.double(), [at.past + s], scale)
