"""Attention with as many key/value heads as query heads, with fewer, and with one; over a cache.

A layer with its projections, or only what lies between them: at one sequence a decode's time is
that of the projections' weights; without them the cache alone counts, so that kernels and head
layouts can be compared, and with what others measured. Kernels of other projects are optional
variants, called as their own examples call them; none shows an operator that a counter could
price, so FLOPs are counted on a stand-in of the same shapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metacount.bench import reference
from metacount.bench.case import (
    DTYPES,
    Built,
    Case,
    Inputs,
    Reference,
    Variant,
    missing_package,
    weight,
)
from metacount.bench.work import Positions, attention_core_work, attention_work
from metacount.modules.attention import Attention, ScaledDotProduct, Visibility
from metacount.modules.cache import LayerCache
from metacount.modules.norm import at_least_float32
from metacount.spec import ModelSpec
from metacount.spec import attention as parts

WAYS = ("", "-folded", "-sdpa")
BACKENDS = {
    "-cudnn": "CUDNN_ATTENTION",
    "-flash": "FLASH_ATTENTION",
    "-efficient": "EFFICIENT_ATTENTION",
    "-math": "MATH",
}
PAGE = 64  # positions of a page of FlashMLA's cache
LATENT = (512, 64)  # the only widths FlashMLA has: latent and rotated key


class FusedCore(nn.Module):
    """torch's scaled_dot_product_attention: the kernel it chooses on the device, or one by name."""

    def __init__(self, scale: float, backend: str | None = None) -> None:
        super().__init__()
        self.scale, self.backend = scale, backend

    def forward(
        self,
        q_BHSK: Tensor,
        k_BGTK: Tensor,
        v_BGTU: Tensor,
        sees: Visibility,
        _bias: Tensor | None = None,
    ) -> Tensor:
        """Attend causally from the first position on, or with one query to all: -> [B, H, S, U]."""
        with _only(self.backend):
            return F.scaled_dot_product_attention(
                q_BHSK,
                k_BGTK,
                v_BGTU,
                is_causal=sees.n_queries > 1,
                scale=self.scale,
                enable_gqa=q_BHSK.shape[1] != k_BGTK.shape[1],
            )


def _only(backend: str | None) -> AbstractContextManager[None]:
    """Let torch choose among its kernels in the block, or make it take this one."""
    if backend is None:
        return nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    found: AbstractContextManager[None] = sdpa_kernel(getattr(SDPBackend, BACKENDS[backend]))
    return found


class FoldedCore(nn.Module):
    """The written-out products, with the queries of a group as rows of one matrix.

    A key head is then read once for its whole group; broadcasting would copy it for each query.
    """

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(
        self,
        q_BHSK: Tensor,
        k_BGTK: Tensor,
        v_BGTU: Tensor,
        sees: Visibility,
        _bias: Tensor | None = None,
    ) -> Tensor:
        """Compute attention with the queries of a group as rows of one matrix: -> [B, H, S, U]."""
        n_groups, n_queries = k_BGTK.shape[1], q_BHSK.shape[2]
        q_BGXK = q_BHSK.unflatten(1, (n_groups, -1)).flatten(2, 3)
        # [b, g, r·s, k] @ [b, g, k, t] -> [b, g, r·s, t]
        scores = at_least_float32(q_BGXK @ k_BGTK.transpose(-1, -2) * self.scale)
        if n_queries > 1:
            hidden_ST = ~sees.keep(scores.device)
            scores = scores.unflatten(2, (-1, n_queries)).masked_fill(hidden_ST, -math.inf)
            scores = scores.flatten(2, 3)
        # [b, g, r·s, t] @ [b, g, t, u] -> [b, g, r·s, u]
        y_BGXU: Tensor = scores.softmax(-1).to(v_BGTU.dtype) @ v_BGTU
        y_BHSU: Tensor = y_BGXU.unflatten(2, (-1, n_queries)).flatten(1, 2)
        return y_BHSU


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
        self.past, self.sees = at.kv_len - at.seq_len, sight(at)

    def forward(self, x_BSD: Tensor, *cache: Tensor) -> Tensor:
        """Run the layer over the cache: [B, S, D] and the cache -> [B, S, D]."""
        held = StaticCache(cache, self.past) if self.static else self._growing(cache)
        how = {"absorbed": True} if self.absorbed else {}
        y_BSD: Tensor = self.layer(x_BSD, self.sees, cache=held, **how)
        return y_BSD

    def _growing(self, cache: tuple[Tensor, ...]) -> LayerCache:
        held = LayerCache()
        if self.past:
            held.tensors = tuple(t[..., : self.past, :] for t in cache)
            held.length = self.past
        return held


def sight(at: Positions) -> Visibility:
    """Return what each new token sees: the past and, causally, the new ones."""
    past = at.kv_len - at.seq_len
    return Visibility(n_queries=at.seq_len, n_keys=at.kv_len, query_start=past)


class _Core(nn.Module):
    """A core that knows the factor on its scores."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale


class FlashAttention3(_Core):
    """flash_attn_interface.flash_attn_func, which takes [B, S, H, K]."""

    def forward(
        self, q_BHSK: Tensor, k_BGTK: Tensor, v_BGTU: Tensor, sees: Visibility, _bias: object = None
    ) -> Tensor:
        """Compute attention with FlashAttention-3: -> [B, H, S, U]."""
        from flash_attn_interface import (
            flash_attn_func,
        )

        q, k, v = (t.transpose(1, 2) for t in (q_BHSK, k_BGTK, v_BGTU))
        out = flash_attn_func(q, k, v, softmax_scale=self.scale, causal=sees.n_queries > 1)
        y_BSHU: Tensor = out[0] if isinstance(out, tuple) else out
        return y_BSHU.transpose(1, 2)


class FlashInfer(_Core):
    """flashinfer's kernels for one sequence, prefill or decode, [G, T, K] for keys and values."""

    def forward(
        self, q_BHSK: Tensor, k_BGTK: Tensor, v_BGTU: Tensor, sees: Visibility, _bias: object = None
    ) -> Tensor:
        """Compute attention of one sequence with FlashInfer: -> [B, H, S, U]."""
        import flashinfer

        if len(q_BHSK) != 1:
            raise RuntimeError("flashinfer's single-sequence kernels take one sequence only")
        q_SHK, k, v = q_BHSK[0].transpose(0, 1), k_BGTK[0], v_BGTU[0]
        if sees.n_queries == 1:
            y = flashinfer.single_decode_with_kv_cache(
                q_SHK[0].contiguous(), k, v, kv_layout="HND", sm_scale=self.scale
            )[None]
        else:
            y = flashinfer.single_prefill_with_kv_cache(
                q_SHK.contiguous(), k, v, causal=True, kv_layout="HND", sm_scale=self.scale
            )
        y_BHSU: Tensor = y.transpose(0, 1)[None]
        return y_BHSU


class FlashMla(_Core):
    """flash_mla_with_kvcache over a cache of latents in pages of 64 positions: decode only."""

    def forward(
        self, q_BHSK: Tensor, k_BGTK: Tensor, v_BGTU: Tensor, sees: Visibility, _bias: object = None
    ) -> Tensor:
        """Attend to latents, which are the keys and, first part, the values: -> [B, H, S, U]."""
        from flash_mla import (
            flash_mla_with_kvcache,
            get_mla_metadata,
        )

        n, heads, queries, width = q_BHSK.shape
        value, kv_len = v_BGTU.shape[-1], k_BGTK.shape[2]
        if (value, width - value) != LATENT or kv_len % PAGE:
            raise RuntimeError(
                f"FlashMLA takes latents of {LATENT[0]} + {LATENT[1]} and whole pages of {PAGE}"
            )
        pages = kv_len // PAGE
        device = q_BHSK.device
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
            softmax_scale=self.scale,
            causal=sees.n_queries > 1,
        )
        y: Tensor = y_BSHU.transpose(1, 2)
        return y


PEERS: dict[str, type[nn.Module]] = {"-fa3": FlashAttention3, "-flashinfer": FlashInfer}
# each kernel of torch by its name, and those of other projects
GPU_WAYS = (*WAYS, *BACKENDS, *PEERS)


def kv_heads(spec: ModelSpec) -> dict[str, int]:
    """Choose the key/value heads of each kind; for GQA the model's, or one per four query heads."""
    h, own = spec.n_heads, spec.n_kv_heads or spec.n_heads
    grouped = own if 1 < own < h else h // 4 if h % 4 == 0 and h > 4 else None
    return {"mha": h} | ({"gqa": grouped} if grouped else {}) | {"mqa": 1}


def variant_names(kinds: dict[str, int], ways: Sequence[str] = WAYS) -> tuple[str, ...]:
    """Name every variant; with a key/value head for each query head there is nothing to fold."""
    return tuple(k + w for k in kinds for w in ways if not (k == "mha" and w == "-folded"))


def baselines(kinds: dict[str, int], ways: Sequence[str] = WAYS) -> tuple[str, ...]:
    """Name the variants with a key/value head for each query head: ratios are to the fastest."""
    return tuple(name for name in variant_names(kinds, ways) if name.startswith("mha"))


def workload(at: Positions) -> dict[str, int | str]:
    """Return the positions under their public names, with the phase."""
    phase = "decode" if at.seq_len == 1 and at.kv_len > 1 else "prefill"
    return {
        "phase": phase,
        "batch_size": at.batch_size,
        "seq_len": at.seq_len,
        "kv_len": at.kv_len,
    }


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
        workload={"part": "core", **workload(at)} if core else workload(at),
        variants=variant_names(kinds, ways),
        baselines=baselines(kinds, ways),
        rows=at.n_tokens * h if core else at.n_tokens,
        checked_rows=16 if core else 4,
        needs_bytes=params * value_bytes + 3 * set_bytes + scores,
        set_bytes=set_bytes,
        build=lambda device, n_sets: _build(
            (None if core else d, h, width), kinds, at, DTYPES[dtype], device, n_sets, ways
        ),
    )


class _Pick(nn.Module):
    """Calls a layer with its own of the caches that all variants are given."""

    def __init__(self, layer: nn.Module, first: int) -> None:
        super().__init__()
        self.layer, self.first = layer, first

    def forward(self, x: Tensor, *caches: Tensor) -> Tensor:
        y: Tensor = self.layer(x, *caches[self.first : self.first + 2])
        return y


class _Middle(nn.Module):
    """A core at fixed positions."""

    def __init__(self, core: nn.Module, at: Positions) -> None:
        super().__init__()
        self.core, self.sees = core, sight(at)

    def forward(self, q_BHSK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor) -> Tensor:
        y_BHSK: Tensor = self.core(q_BHSK, k_BGTK, v_BGTK, self.sees)
        return y_BHSK


def _build(
    sizes: tuple[int | None, int, int],
    kinds: dict[str, int],
    at: Positions,
    dtype: torch.dtype,
    device: torch.device,
    n_sets: int,
    ways: Sequence[str],
) -> Built:
    (d, h, width), variants, size = sizes, [], dtype.itemsize
    for index, (kind, g) in enumerate(kinds.items()):
        if d is None:
            work = attention_core_work(at, h, g, width, value_bytes=size)
            expected = _core_reference(at, 1 + 2 * index, h // g, width**-0.5)
            module = _middles(width**-0.5, at, 2 * index)
        else:
            shapes = ((h * width, d), (g * width, d), (g * width, d), (d, h * width))
            weights = tuple(weight(shape, device, dtype) for shape in shapes)
            work = attention_work(at, d, h, g, width, value_bytes=size)
            expected = _reference(weights, h, at, 1 + 2 * index)
            module = _layers(weights, (d, h, g, width), at, 2 * index)
        for way in ways:
            if kind == "mha" and way == "-folded":
                continue
            peer = way in PEERS
            variants.append(
                Variant(
                    name=kind + way,
                    module=module(way),
                    work=work,
                    reference=expected,
                    shows_mask=way == "",
                    missing=missing_package(way) if peer else None,
                    foreign=peer,
                    stand_in=module("-sdpa") if peer else None,
                    stand_in_name="scaled_dot_product_attention" if peer else "",
                )
            )
    given = (at.batch_size, at.seq_len, d) if d else (at.batch_size, h, at.seq_len, width)
    caches = [(at.batch_size, g, at.kv_len, width) for g in kinds.values() for _ in "kv"]

    def one_set() -> Inputs:
        return tuple(torch.randn(s, device=device, dtype=dtype) for s in (given, *caches))

    return Built(inputs=[one_set() for _ in range(n_sets)], variants=variants)


def _middles(scale: float, at: Positions, first: int) -> Callable[[str], nn.Module]:
    def module(way: str) -> nn.Module:
        core = core_of(way, scale) if way else ScaledDotProduct(scale=scale)
        return _Pick(_Middle(core, at), first)

    return module


def _layers(
    weights: tuple[nn.Parameter, ...], sizes: tuple[int, int, int, int], at: Positions, first: int
) -> Callable[[str], nn.Module]:
    def module(way: str) -> nn.Module:
        return _Pick(OverCache(layer_of(weights, *sizes, way), at, static=way != ""), first)

    return module


def layer_of(
    weights: tuple[nn.Parameter, ...], d: int, h: int, g: int, width: int, way: str
) -> Attention:
    """Build the reference module with these weights and the core of one way."""
    with torch.device("meta"):
        layer = Attention(parts.Attention(n_heads=h, n_kv_heads=g, head_dim=width), d)
    projections = (layer.q_proj, layer.k_proj, layer.v_proj, layer.o_proj)
    for projection, values in zip(projections, weights, strict=True):
        projection.weight = values
    if way:
        layer.add_module("core", core_of(way, layer.scale))  # another module of the same signature
    return layer


def core_of(way: str, scale: float) -> nn.Module:
    """Build the module that computes the middle of attention in one way."""
    if way in PEERS:
        return PEERS[way](scale)
    if way == "-folded":
        return FoldedCore(scale)
    return FusedCore(scale, None if way == "-sdpa" else way)


def _reference(
    weights: tuple[nn.Parameter, ...], n_heads: int, at: Positions, cache: int
) -> Reference:
    q, k, v, o = weights

    def rows_of(inputs: Inputs, rows: list[int]) -> tuple[Tensor]:
        x, past = inputs[0], at.kv_len - at.seq_len
        out = []
        for row in rows:
            b, s = divmod(row, at.seq_len)
            held = [t[b, :, :past] for t in inputs[cache : cache + 2]]
            out.append(reference.attention(x[b], held[0], held[1], (q, k, v, o), n_heads, [s]))
        return (torch.cat(out),)

    return rows_of


def _core_reference(at: Positions, cache: int, group: int, scale: float) -> Reference:
    def rows_of(inputs: Inputs, rows: list[int]) -> tuple[Tensor]:
        q, k, v = inputs[0], inputs[cache], inputs[cache + 1]
        out = []
        for row in rows:
            rest, s = divmod(row, at.seq_len)
            b, head = divmod(rest, q.shape[1])
            position = at.kv_len - at.seq_len + s
            y = reference.attend(
                q[b, head, s : s + 1].double(),
                k[b, head // group].double(),
                v[b, head // group].double(),
                [position],
                scale,
            )
            out.append(y)
        return (torch.cat(out),)

    return rows_of
