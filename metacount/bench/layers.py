"""The layers that are timed, as cases of variants: feed-forward, attention, MLA, experts, norms.

Bytes that must move are every weight that is used, the input, the output and, with a KV cache,
what is read from it and written to it, each once. What lies between two operators of a layer is
not among them: a fused kernel can keep it on the chip.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metacount.bench import reference
from metacount.bench.case import DTYPES, Case, Expected, Inputs, Variant, rows_of, rows_to_check
from metacount.bench.rows import BACKWARD, BOTH, FORWARD, Work
from metacount.formulas.masks import causal_pairs
from metacount.formulas.sublayers import (
    attention_pair_flops,
    attention_projection_flops,
    ffn_matmul_flops,
    latent_norm_params,
    mla_matmul_flops,
    mla_params,
    moe_matmul_flops,
)
from metacount.frozen import frozen
from metacount.measure.torch_private import grouped_product
from metacount.modules.attention import Attention, ScaledDotProduct, Visibility
from metacount.modules.cache import LayerCache
from metacount.modules.ffn import FeedForward, GatedFeedForward
from metacount.modules.mla import LatentAttention
from metacount.modules.moe import Experts
from metacount.modules.norm import LayerNorm, RMSNorm, at_least_float32
from metacount.spec import ModelSpec
from metacount.spec import attention as attention_parts
from metacount.spec import ffn as ffn_parts

if TYPE_CHECKING:
    from metacount.bench.case import Output, Reference
    from metacount.files import Json

Module = TypeVar("Module", bound=nn.Module)

# way: the module it needs, and the package that holds it
PACKAGES = {
    "-liger": ("liger_kernel", "liger-kernel"),
    "-triton": ("triton", "triton"),
    "-fa3": (
        "flash_attn_interface",
        "git+https://github.com/Dao-AILab/flash-attention#subdirectory=hopper",
    ),
}


def missing_package(way: str) -> str | None:
    """Say what to install for a way to run; None where it is here, or needs nothing."""
    module, package = PACKAGES.get(way, ("", ""))
    return f"pip install {package}" if module and find_spec(module) is None else None


def weight(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> nn.Parameter:
    """Draw random values that keep the size of what they multiply: a matrix of variance 1 / (last
    axis), the weight of a norm around 1, so that leaving it out shows.
    """
    drawn = torch.randn(shape, device=device, dtype=dtype)
    drawn = 1 + drawn / 4 if len(shape) == 1 else drawn.mul_(shape[-1] ** -0.5)
    return nn.Parameter(drawn, requires_grad=False)


def with_weights(module: Module, weights: Mapping[str, nn.Parameter]) -> Module:
    """Give a module, built on meta, these parameters by their paths; return it."""
    for path, values in weights.items():
        owner, _, name = path.rpartition(".")
        setattr(module.get_submodule(owner), name, values)
    return module


class Apply(nn.Module):
    """A function of the inputs and of what is given here, weights for example."""

    def __init__(self, function: Callable[..., Any], *given: object) -> None:
        super().__init__()
        self.function, self.given = function, given
        self.weights = nn.ParameterList(x for x in given if isinstance(x, nn.Parameter))

    def forward(self, *inputs: Tensor) -> Tensor:
        """Call the function."""
        y: Tensor = self.function(*inputs, *self.given)
        return y


def work_of(flops: int, *moved: Tensor, needed: int | None = None, more: int = 0) -> Work:
    """Count the work of so many FLOPs (`needed`: all of them), these tensors and `more` bytes."""
    return Work(
        matmul_flops=flops,
        needed_flops=flops if needed is None else needed,
        moved_bytes=sum(t.nbytes for t in moved) + more,
    )


# Feed-forward: GELU at 4·d against SwiGLU at several widths

UNITS = 8  # hidden units whose weights' gradients are compared


def rule_width(d_model: int) -> int:
    """Compute the width at which SwiGLU has the parameters of two matrices of width 4·d: 8·d/3.

    Rounded up to a multiple of d/16, at most of 256: LLaMA-7B's 11008 and LLaMA-13B's 13824, which
    is 1.25 % more than 8·d/3.

    >>> [rule_width(d) for d in (512, 1024, 4096, 5120, 16384)]
    [1376, 2752, 11008, 13824, 43776]
    """
    multiple = min(256, max(1, d_model // 16))
    return multiple * -(-(8 * d_model) // (3 * multiple))


def gated_widths(d_model: int, own: dict[str, int | None]) -> dict[str, int]:
    """Return the two widths that follow from d, and those of `own` that differ from them."""
    named = {"swiglu": rule_width(d_model), "swiglu-4d": 4 * d_model}
    for name, width in own.items():
        if width is not None and width not in named.values():
            named[name] = width
    return named


def widths(spec: ModelSpec) -> dict[str, int]:
    """Name the width of each SwiGLU: the rule's, 4·d, the model's own and its experts' width.

    `swiglu-own` is the width of the model's dense layers, `swiglu-expert` of one expert; either is
    left out where another has it.
    """
    own = {"swiglu-own": spec.d_ff, "swiglu-expert": spec.d_ff_expert if spec.is_moe else None}
    return gated_widths(spec.d_model, own if spec.gated else {})


def silu_mul(x_NX: Tensor) -> Tensor:
    """Multiply silu of the first half by the second: [N, 2·M] -> [N, M]."""
    gate, up = x_NX.chunk(2, dim=-1)
    return F.silu(gate) * up


def triton_silu_mul(x_NX: Tensor) -> Tensor:
    """Compute the same in one Triton kernel that reads the joined product as it lies."""
    from metacount.bench import triton_silu

    return triton_silu.silu_mul(x_NX)


class Joined(nn.Module):
    """SwiGLU with gate and up in one matrix [2·M, D], gate first: two products instead of three."""

    def __init__(
        self,
        gate_up_XD: nn.Parameter,
        down_DM: nn.Parameter,
        activation: Callable[[Tensor], Tensor] = silu_mul,
    ) -> None:
        super().__init__()
        self.gate_up, self.down, self.activation = gate_up_XD, down_DM, activation

    def forward(self, x_ND: Tensor) -> Tensor:
        """Compute SwiGLU by two products: [N, D] -> [N, D]."""
        return F.linear(self.activation(F.linear(x_ND, self.gate_up)), self.down)


class LigerGated(Joined):
    """Liger-Kernel's silu·up; it takes the halves as matrices of their own, so two products."""

    def __init__(self, gate_up_XD: nn.Parameter, down_DM: nn.Parameter) -> None:
        super().__init__(gate_up_XD, down_DM)
        if missing_package("-liger") is None:
            import_module("liger_kernel.ops.swiglu")  # runs operators: before they are counted

    def forward(self, x_ND: Tensor) -> Tensor:
        """Compute SwiGLU with Liger-Kernel's silu·up: [N, D] -> [N, D]."""
        from liger_kernel.ops.swiglu import LigerSiLUMulFunction

        gate, up = (F.linear(x_ND, half) for half in self.gate_up.chunk(2))
        y_ND: Tensor = F.linear(LigerSiLUMulFunction.apply(gate, up), self.down)
        return y_ND


class ForwardBackward(nn.Module):
    """A layer's output and the gradients of its input and weights, for a given output gradient."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.weights = list(layer.parameters())
        for parameter in self.weights:
            parameter.requires_grad_(True)

    def forward(self, x_ND: Tensor, grad_ND: Tensor) -> tuple[Tensor, ...]:
        """Compute the output, the input's gradient and each weight's from [N, D] and [N, D]."""
        with torch.enable_grad():
            x = x_ND.detach().requires_grad_(True)
            y = self.layer(x)
            grads = torch.autograd.grad(y, (x, *self.weights), grad_ND)
        return (y.detach(), *grads)


def pick_gradients(out: Output, rows: list[int], *, joined: bool) -> Expected:
    """Pick rows of output and input gradient, then some hidden units of each weight's gradient,
    `down` last; of `joined` ones the halves.
    """
    y, dx, *first, down = out
    units = rows_to_check(down.shape[-1], UNITS)
    if joined:
        first = [half for grad in first for half in grad.chunk(2)]
    return [y[rows], dx[rows], *(grad[units] for grad in first), down[:, units].T]


def ffn_case(
    label: str,
    d: int,
    gated: dict[str, int],
    n_tokens: int,
    dtype: str,
    *,
    peers: bool = False,
    directions: Sequence[str] = (FORWARD,),
) -> Case:
    """Make a case of a block of width `d`: GELU at 4·d, and SwiGLU at the widths of `gated`.

    With `peers` in other people's kernels too. A backward alone is what forward and backward take
    less the forward, so that both are timed for it.
    """
    timed = [way for way in (FORWARD, BOTH) if way in directions or BACKWARD in directions]
    every, value_bytes = {"gelu": 4 * d, **gated}, DTYPES[dtype].itemsize
    widest, params = max(every.values()), 2 * d * 4 * d + sum(3 * d * m for m in gated.values())
    set_bytes = n_tokens * d * value_bytes
    # the hidden layer twice for the gate, once more for their product
    working = 4 * n_tokens * widest * value_bytes + 4 * set_bytes
    if BOTH in timed:  # what the backward keeps and makes of it, and the gradients
        working = 2 * working + 3 * d * widest * value_bytes + set_bytes

    def build(device: torch.device, n_sets: int) -> list[Variant]:
        draw = partial(torch.randn, n_tokens, d, device=device, dtype=DTYPES[dtype])
        sets: dict[str, list[Inputs]] = {FORWARD: [(draw(),) for _ in range(n_sets)]}
        if BOTH in timed:
            sets[BOTH] = [(x, draw()) for (x,) in sets[FORWARD]]
        return [
            variant
            for name, m in every.items()
            for variant in _blocks(name, (d, m), sets, timed, peers=peers and name != "gelu")
        ]

    return Case(
        topic="ffn",
        model=label,
        dtype=dtype,
        sizes={"d_model": d} | {f"{k.replace('-', '_')}_d_ff": m for k, m in every.items()},
        workload={"tokens": n_tokens},
        rows=n_tokens,
        checked_rows=128,
        needs_bytes=params * value_bytes + working,
        set_bytes=set_bytes * (2 if BOTH in timed else 1),
        build=build,
    )


def _blocks(
    name: str,
    sizes: tuple[int, int],
    sets: dict[str, list[Inputs]],
    timed: Sequence[str],
    *,
    peers: bool,
) -> list[Variant]:
    """Build a block in each way and direction, over the same memory.

    Forward and backward read and write everything twice: weights and their gradients, the input and
    the output's gradient, the output and the input's gradient. Each product of the forward has two
    in the backward, one for what it multiplied and one for its weights.
    """
    (d, m), gated, x = sizes, name != "gelu", sets[timed[0]][0][0]
    first, down = (weight(s, x.device, x.dtype) for s in (((1 + gated) * m, d), (d, m)))
    halves = first.chunk(2) if gated else (first,)
    weights = (*(nn.Parameter(half, requires_grad=False) for half in halves), down)
    part = ffn_parts.FeedForward(d_ff=m, activation="silu" if gated else "gelu", gated=gated)
    with torch.device("meta"):
        plain = GatedFeedForward(part, d) if gated else FeedForward(part, d)
    names = ("gate_proj.weight", "up_proj.weight", "down_proj.weight")[-len(weights) :]
    with_weights(plain, dict(zip(names, weights, strict=True)))
    ways: dict[str, nn.Module] = {"": plain, "-compiled": plain}
    if gated:
        two = Joined(first, down)
        ways = {"": plain, "-joined": two, "-joined-compiled": two}
    if peers:
        ways["-liger"] = LigerGated(first, down)
        ways["-triton"] = Joined(first, down, triton_silu_mul)

    def expected(inputs: Inputs, rows: list[int]) -> Expected:
        if len(inputs) == 1:
            return (reference.ffn(inputs[0][rows], *weights),)
        units = rows_to_check(m, UNITS)
        return reference.ffn_gradients(inputs[0], inputs[1], weights, rows, units)

    flops, moved = int(ffn_matmul_flops(len(x), d, m, gated=gated)), (*weights, x, x)
    variants = []
    for way, module in ways.items():
        for direction in timed:
            both, missing = direction == BOTH, missing_package(way)
            if both and way == "-triton":
                missing = missing or "its kernel has no backward"
            pick = partial(pick_gradients, joined=isinstance(module, Joined))
            variants.append(
                Variant(
                    name=name + way,
                    module=ForwardBackward(module) if both else module,
                    compiled=way.endswith("-compiled"),
                    missing=missing,
                    foreign=way in PACKAGES,
                    direction=direction,
                    baseline=name + way == "gelu",
                    work=work_of(3 * flops, *moved, *moved) if both else work_of(flops, *moved),
                    reference=expected,
                    inputs=sets[direction],
                    pick=pick if both else rows_of,
                )
            )
    return variants


# Attention, over a cache: as many key/value heads as query heads, fewer, and one. A layer with its
# projections, or only what lies between them: at one sequence a decode's time is that of the
# projections' weights; without them the cache alone counts, so that kernels and head layouts can be
# compared, and with what others measured.


@frozen
class Positions:
    """`batch_size` sequences of `seq_len` new tokens that attend to `kv_len` positions, causally.

    Prefill has kv_len = seq_len, decode seq_len = 1.
    """

    batch_size: int
    seq_len: int
    kv_len: int

    @property
    def past(self) -> int:
        """Positions before the new tokens."""
        return self.kv_len - self.seq_len

    @property
    def n_tokens(self) -> int:
        """New tokens in all sequences."""
        return self.batch_size * self.seq_len

    @property
    def all_pairs(self) -> int:
        """Pairs of a query and a position, the mask ignored."""
        return self.batch_size * self.seq_len * self.kv_len

    @property
    def kept_pairs(self) -> int:
        """Pairs that the causal mask keeps: all, less the triangle ahead of the new tokens."""
        ahead = causal_pairs(self.seq_len) - self.seq_len
        return int(self.batch_size * (self.seq_len * self.kv_len - ahead))

    @property
    def sight(self) -> Visibility:
        """What each new token sees: the past and, causally, the new ones."""
        return Visibility(n_queries=self.seq_len, n_keys=self.kv_len, query_start=self.past)

    @property
    def workload(self) -> dict[str, int | str]:
        """The positions under their public names, with the phase."""
        phase = "decode" if self.seq_len == 1 and self.kv_len > 1 else "prefill"
        sizes = {name: getattr(self, name) for name in ("batch_size", "seq_len", "kv_len")}
        return {"phase": phase, **sizes}


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
        self.layer, self.at, self.static, self.absorbed = layer, at, static, absorbed

    def forward(self, x_BSD: Tensor, *cache: Tensor) -> Tensor:
        """Run the layer over the cache: [B, S, D] and the cache -> [B, S, D]."""
        past = self.at.past
        held = StaticCache(cache, past) if self.static else LayerCache()
        if past and not self.static:
            held.tensors = tuple(t[..., :past, :] for t in cache)
            held.length = past
        how = {"absorbed": True} if self.absorbed else {}
        y_BSD: Tensor = self.layer(x_BSD, self.at.sight, cache=held, **how)
        return y_BSD


def by_row(n: int, compute: Callable[[Inputs, int, int], Tensor]) -> Reference:
    """Make a reference that computes row by row; row i is of place i % n in sequence i // n."""

    def expected(inputs: Inputs, rows: list[int]) -> Expected:
        return (torch.cat([compute(inputs, *divmod(row, n)) for row in rows]),)

    return expected


def kv_heads(spec: ModelSpec) -> dict[str, int]:
    """Choose the key/value heads of each kind; for GQA the model's, or one per four query heads."""
    h, own = spec.n_heads, spec.n_kv_heads or spec.n_heads
    grouped = own if 1 < own < h else h // 4 if h % 4 == 0 and h > 4 else None
    return {"mha": h} | ({"gqa": grouped} if grouped else {}) | {"mqa": 1}


def attention_case(
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

    def build(device: torch.device, n_sets: int) -> list[Variant]:
        draw = partial(torch.randn, device=device, dtype=DTYPES[dtype])
        shape = (at.batch_size, h, at.seq_len, width) if core else (at.batch_size, at.seq_len, d)
        given = [draw(shape) for _ in range(n_sets)]
        return [
            variant
            for kind, g in kinds.items()
            for kv in ((at.batch_size, g, at.kv_len, width),)
            for variant in _heads(
                kind,
                at,
                (None if core else d, h, g, width),
                [(x, draw(kv), draw(kv)) for x in given],
                ways,
            )
        ]

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
        build=build,
    )


def _heads(
    kind: str,
    at: Positions,
    sizes: tuple[int | None, int, int, int],
    inputs: list[Inputs],
    ways: Sequence[str],
) -> list[Variant]:
    (d, h, g, width), x = sizes, inputs[0][0]
    scale, products = width**-0.5, 0
    weights: tuple[nn.Parameter, ...] = ()
    if d is not None:
        shapes = ((h * width, d), (g * width, d), (g * width, d), (d, h * width))
        weights = tuple(weight(shape, x.device, x.dtype) for shape in shapes)
        products = int(attention_projection_flops(at.n_tokens, d, h, g, width))

    def module(way: str) -> nn.Module:
        attend = CORES[way]
        if d is None:
            middle = ScaledDotProduct(scale=scale) if attend is None else Core(attend, scale)
            return Apply(middle, at.sight)
        part = attention_parts.Attention(n_heads=h, n_kv_heads=g, head_dim=width)
        with torch.device("meta"):
            layer = Attention(part, d)
        names = ("q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight")
        with_weights(layer, dict(zip(names, weights, strict=True)))
        if attend is not None:
            layer.add_module("core", Core(attend, layer.scale))
        return OverCache(layer, at, static=attend is not None)

    def of_layer(given: Inputs, b: int, s: int) -> Tensor:
        x, *cache = given
        k, v = (t[b, :, : at.past] for t in cache)
        return reference.attention(x[b], k, v, weights, h, [s])

    def of_middle(given: Inputs, place: int, s: int) -> Tensor:
        q, k, v = given
        b, head = divmod(place, h)
        group = b, head // (h // g)
        query, keys, values = q[b, head, s : s + 1], k[group], v[group]
        seen = [at.past + s]
        return reference.attend(query.double(), keys.double(), values.double(), seen, scale)

    work = work_of(
        products + int(attention_pair_flops(at.all_pairs, h, width)),
        *weights,
        *inputs[0],
        x,
        needed=products + int(attention_pair_flops(at.kept_pairs, h, width)),
    )
    expected = by_row(at.seq_len, of_middle if d is None else of_layer)
    return [
        Variant(
            name=kind + way,
            module=module(way),
            work=work,
            reference=expected,
            inputs=inputs,
            baseline=kind == "mha",
            shows_mask=way == "",
            missing=missing_package(way),
            foreign=way in PACKAGES,
            stand_in=module("-sdpa") if way in PACKAGES else None,
            stand_in_name="scaled_dot_product_attention" if way in PACKAGES else None,
        )
        for way in ways
        # with a key/value head for each query head there is nothing to fold
        if kind != "mha" or way != "-folded"
    ]


# Multi-head latent attention, expanded and absorbed, over its cache of latents

# name: absorbed, and what takes the core's place over a cache that is written in place
MLA_WAYS: dict[str, tuple[bool, Attend | None]] = {
    "expanded": (False, None),
    "expanded-sdpa": (False, sdpa),
    "absorbed": (True, None),
    "absorbed-folded": (True, folded),
}


def mla_case(model: str, spec: ModelSpec, at: Positions, dtype: str) -> Case:
    """Make a case of one MLA layer of `spec`, latent norms and rotary embedding included."""
    names = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    sizes: Json = {name: getattr(spec, name) for name in names}
    d, h, rank, value_bytes = spec.d_model, spec.n_heads, spec.q_lora_rank, DTYPES[dtype].itemsize
    width = sizes["kv_lora_rank"] + sizes["qk_rope_head_dim"]
    cache = at.batch_size * at.kv_len * width
    set_bytes = (at.n_tokens * d + cache) * value_bytes
    params = mla_params(d, h, q_lora_rank=rank, **sizes)
    params += latent_norm_params(rank, sizes["kv_lora_rank"])
    # the plain absorbed form repeats the latent, the expanded one makes keys and values, per head
    repeated = 2 * cache * h * value_bytes

    def layer() -> LatentAttention:
        """Build the module on meta, its softmax scaled by the width of a query head alone."""
        with torch.device("meta"):
            part = attention_parts.LatentAttention(n_heads=h, q_lora_rank=rank, **sizes)
            return LatentAttention(part, d)

    def flops(n_pairs: int, *, absorbed: bool) -> int:
        how = {"q_lora_rank": rank, **sizes, "absorbed": absorbed}
        cached = at.batch_size * at.kv_len
        return int(mla_matmul_flops(at.n_tokens, n_pairs, d, h, n_kv_tokens=cached, **how))

    def build(device: torch.device, n_sets: int) -> list[Variant]:
        draw = partial(torch.randn, device=device, dtype=DTYPES[dtype])
        weights = {
            path: weight(tuple(parameter.shape), device, DTYPES[dtype])
            for path, parameter in layer().named_parameters()
        }
        inputs: list[Inputs] = [
            (draw(at.batch_size, at.seq_len, d), draw(at.batch_size, at.kv_len, width))
            for _ in range(n_sets)
        ]

        def over_cache(attend: Attend | None, *, absorbed: bool) -> nn.Module:
            own = with_weights(layer(), weights)
            if attend is not None:
                own.add_module("core", Core(attend, own.core.scale))
            return OverCache(own, at, static=attend is not None, absorbed=absorbed)

        def expected(given: Inputs, b: int, s: int) -> Tensor:
            plain, (x, past) = layer(), given
            return reference.latent_attention(
                x[b],
                past[b, : at.past],
                {path.removesuffix(".weight"): values for path, values in weights.items()},
                (h, plain.rank, plain.nope, plain.rope, plain.v_head_dim),
                [s],
                theta=plain.rope_theta,
                eps=1e-6,
            )

        by_rows = by_row(at.seq_len, expected)
        return [
            Variant(
                name=name,
                module=over_cache(attend, absorbed=absorbed),
                work=work_of(
                    flops(at.all_pairs, absorbed=absorbed),
                    *weights.values(),
                    *inputs[0],
                    inputs[0][0],
                    needed=flops(at.kept_pairs, absorbed=absorbed),
                ),
                reference=by_rows,
                inputs=inputs,
                baseline=name == "expanded",
                shows_mask=attend is None,
            )
            for name, (absorbed, attend) in MLA_WAYS.items()
        ]

    return Case(
        topic="mla",
        model=model,
        dtype=dtype,
        sizes={"d_model": d, "n_heads": h} | ({"q_lora_rank": rank} if rank else {}) | sizes,
        workload=at.workload,
        rows=at.n_tokens,
        checked_rows=2,
        needs_bytes=int(params) * value_bytes + 3 * set_bytes + repeated + 12 * at.all_pairs * h,
        set_bytes=set_bytes,
        build=build,
    )


# Mixture of experts. Which expert a token goes to is an input, so that balanced and skewed routing
# can be told apart; the router's own product and the weights of the chosen experts are computed.

ROUTINGS = ("balanced", "skewed")


def choose(n_tokens: int, n_experts: int, top_k: int, routing: str) -> Tensor:
    """Choose [N, k] experts, k different ones for each token.

    balanced: no expert gets two tokens more than another. skewed: drawn by Zipf's law, the
    expert of rank r with weight 1/r, without repetition in a token. Ranks are shuffled.
    """
    if routing == "balanced":
        # k consecutive numbers are different experts, since k <= E
        chosen = (torch.arange(n_tokens * top_k) % n_experts).view(n_tokens, top_k)
        chosen = chosen[torch.randperm(n_tokens)]
    else:
        zipf = 1 / torch.arange(1, n_experts + 1, dtype=torch.float64)
        chosen = torch.multinomial(zipf.expand(n_tokens, -1), top_k)
    return torch.randperm(n_experts)[chosen]


def fullest(n_tokens: int, n_experts: int, top_k: int, routing: str) -> int:
    """Estimate the rows of the expert that gets the most, rounded up where chance decides.

    Of skewed routing the expert of rank 1 is drawn first with probability 1 / H(E), and by the
    k-th draw with at most k times as much; no expert gets more than all tokens.

    >>> fullest(16, 4, 2, "balanced"), fullest(16384, 128, 8, "skewed")
    (8, 16384)
    """
    if routing == "balanced":
        return -(-n_tokens * top_k // n_experts)
    harmonic = sum(1 / rank for rank in range(1, n_experts + 1))
    return min(n_tokens, math.ceil(n_tokens * top_k / harmonic))


class Routed(nn.Module):
    """Router weights of the experts that were chosen, then the experts."""

    def __init__(self, router_ED: nn.Parameter, experts: nn.Module) -> None:
        super().__init__()
        self.router, self.experts = router_ED, experts

    def forward(self, x_ND: Tensor, chosen_Nk: Tensor) -> Tensor:
        """Weigh the chosen experts by the router and run them: [N, D] and [N, k] -> [N, D]."""
        logits_NE = F.linear(x_ND, self.router).float()
        weights_Nk = logits_NE.gather(-1, chosen_Nk).softmax(-1)
        y_ND: Tensor = self.experts(x_ND, chosen_Nk, weights_Nk)
        return y_ND


class SortedExperts(nn.Module):
    """Rows sorted by expert, their products by `rows`, and back.

    `rows` takes rows [R, D], the expert of each [R], how many each expert has [E], and the weights
    gate_up [E, 2·M, D] and down [E, D, M]; it returns [R, D].
    """

    def __init__(
        self, gate_up_EXD: nn.Parameter, down_EDM: nn.Parameter, rows: Callable[..., Tensor]
    ) -> None:
        super().__init__()
        self.gate_up, self.down, self.rows = gate_up_EXD, down_EDM, rows

    def forward(self, x_ND: Tensor, chosen_Nk: Tensor, weights_Nk: Tensor) -> Tensor:
        """Run the chosen experts: [N, D], [N, k] and [N, k] -> [N, D]."""
        expert_R, order_R = chosen_Nk.flatten().sort(stable=True)
        token_R = order_R // chosen_Nk.shape[-1]
        # bincount would make the host wait
        counts_E = torch.zeros(len(self.down), dtype=torch.int64, device=x_ND.device)
        counts_E = counts_E.scatter_add(0, expert_R, torch.ones_like(expert_R))
        y_RD = self.rows(x_ND[token_R], expert_R, counts_E, self.gate_up, self.down)
        weight_R1 = weights_Nk.flatten()[order_R].unsqueeze(-1).to(x_ND.dtype)
        return torch.zeros_like(x_ND).index_add(0, token_R, y_RD * weight_R1)


def grouped(
    x_RD: Tensor, _expert_R: Tensor, counts_E: Tensor, gate_up_EXD: Tensor, down_EDM: Tensor
) -> Tensor:
    """Run all experts in one grouped product: every row meets the matrix of its own."""
    ends_E = counts_E.cumsum(0).to(torch.int32)
    hidden_RX = grouped_product()(x_RD, gate_up_EXD.transpose(-1, -2), offs=ends_E)
    return grouped_product()(silu_mul(hidden_RX), down_EDM.transpose(-1, -2), offs=ends_E)


def batched(
    capacity: int,
    x_RD: Tensor,
    expert_R: Tensor,
    counts_E: Tensor,
    gate_up_EXD: Tensor,
    down_EDM: Tensor,
) -> Tensor:
    """Run all experts in one batched product, each padded to `capacity` rows, known beforehand."""
    n_experts = len(down_EDM)
    first_E = counts_E.cumsum(0) - counts_E
    place_R = torch.arange(len(x_RD), device=x_RD.device) - first_E[expert_R]
    slot_R = expert_R * capacity + place_R
    padded = x_RD.new_zeros(n_experts * capacity, x_RD.shape[-1])
    padded[slot_R] = x_RD
    # [e, c, d] @ [e, d, x] -> [e, c, x]
    hidden = torch.bmm(padded.unflatten(0, (n_experts, -1)), gate_up_EXD.transpose(-1, -2))
    y = torch.bmm(silu_mul(hidden), down_EDM.transpose(-1, -2))
    return y.flatten(0, 1)[slot_R]


def grouped_on_device(device: torch.device, dtype: torch.dtype) -> bool:
    """Tell whether torch's grouped product runs without asking the host for the groups' sizes.

    Its own kernel is for bf16 on compute capability 9 and 10 (not 12); otherwise it loops over the
    experts (torch's GroupedMMUtils.h). A CPU has nothing to wait for.
    """
    if device.type != "cuda":
        return True
    return dtype == torch.bfloat16 and torch.cuda.get_device_capability(device)[0] in (9, 10)


def moe_case(model: str, spec: ModelSpec, n_tokens: int, routing: str, dtype: str) -> Case:
    """Make a case of one layer's routed experts of `spec`, without shared ones; always SwiGLU.

    One product per expert, one batched product, one grouped product, and a dense block.
    """
    d, m, e, k = spec.d_model, spec.d_ff_expert, spec.n_experts, spec.top_k
    assert m is not None and e is not None and k is not None
    value_bytes = DTYPES[dtype].itemsize
    set_bytes = n_tokens * (d * value_bytes + 8 * k)
    rows = e * fullest(n_tokens, e, k, routing)  # batched pads every expert to it
    return Case(
        topic="moe",
        model=model,
        dtype=dtype,
        sizes={"d_model": d, "d_ff_expert": m, "n_experts": e, "top_k": k},
        workload={"tokens": n_tokens, "routing": routing},
        rows=n_tokens,
        checked_rows=32,
        # padded rows in and out, the product for both halves, silu of one, and silu·up
        needs_bytes=value_bytes * (3 * d * m * (e + k) + rows * (2 * d + 4 * m))
        + 4 * set_bytes
        + n_tokens * k * 3 * d * value_bytes,  # rows sorted, and put back
        set_bytes=set_bytes,
        build=partial(_experts, (d, m, e, k), n_tokens, routing, DTYPES[dtype]),
    )


def _experts(
    sizes: tuple[int, int, int, int],
    n_tokens: int,
    routing: str,
    dtype: torch.dtype,
    device: torch.device,
    n_sets: int,
) -> list[Variant]:
    d, m, e, k = sizes
    # every set has the same counts, in another order: one number of FLOPs for all of them
    chosen = choose(n_tokens, e, k, routing)
    inputs: list[Inputs] = []
    for _ in range(n_sets):
        x = torch.randn(n_tokens, d, device=device, dtype=dtype)
        inputs.append((x, chosen[torch.randperm(n_tokens)].to(device)))
    counts = chosen.flatten().bincount(minlength=e)
    capacity = int(counts.max())

    router = weight((e, d), device, dtype)
    gate_up, down = weight((e, 2 * m, d), device, dtype), weight((e, d, m), device, dtype)
    mixture = ffn_parts.Mixture(n_experts=e, top_k=k, d_ff=m)
    with torch.device("meta"):
        loop = Experts(mixture, d, ffn_parts.FeedForward(activation="silu", gated=True))
    with_weights(loop, {"gate_up_proj": gate_up, "down_proj": down})
    dense = Joined(weight((2 * k * m, d), device, dtype), weight((d, k * m), device, dtype))

    flops = int(moe_matmul_flops(n_tokens, d, m, e, k, gated=True))
    padding = int(ffn_matmul_flops(e * capacity - n_tokens * k, d, m, gated=True))
    # only the weights of experts that got a token must be read
    used = int((counts > 0).sum()) * (gate_up[0].nbytes + down[0].nbytes)
    x = inputs[0][0]
    moved = (router, *inputs[0], x)

    def routed(given: Inputs, rows: list[int]) -> Expected:
        return (reference.moe(given[0][rows], given[1][rows], router, gate_up, down),)

    def without_router(given: Inputs, rows: list[int]) -> Expected:
        halves = dense.gate_up.chunk(2)
        return (reference.ffn(given[0][rows], *halves, dense.down),)

    by_router = partial(Variant, inputs=inputs, reference=routed)
    work = work_of(flops, *moved, more=used)
    return [
        Variant(
            name="dense",
            module=Apply(lambda x_ND, _chosen_Nk, block: block(x_ND), dense),
            work=work_of(
                int(ffn_matmul_flops(n_tokens, d, k * m, gated=True)), *dense.parameters(), x, x
            ),
            reference=without_router,
            inputs=inputs,
            baseline=True,
        ),
        by_router(name="loop", module=Routed(router, loop), work=work, reads_back=True),
        by_router(
            name="batched",
            module=Routed(router, SortedExperts(gate_up, down, partial(batched, capacity))),
            work=work_of(flops + padding, *moved, needed=flops, more=used),
        ),
        by_router(
            name="grouped",
            module=Routed(router, SortedExperts(gate_up, down, grouped)),
            work=work,
            reads_back=not grouped_on_device(device, dtype),
        ),
    ]


# RMSNorm and LayerNorm: written out, torch's own, and compiled

EPS = 1e-5


def norm_case(model: str, spec: ModelSpec, n_tokens: int, dtype: str) -> Case:
    """Make a case of the norms of `spec`'s width over `n_tokens` tokens."""
    d, set_bytes = spec.d_model, n_tokens * spec.d_model * DTYPES[dtype].itemsize

    def build(device: torch.device, n_sets: int) -> list[Variant]:
        scale, shift = (weight((d,), device, DTYPES[dtype]) for _ in range(2))
        draw = partial(torch.randn, n_tokens, d, device=device, dtype=DTYPES[dtype])
        inputs: list[Inputs] = [(draw(),) for _ in range(n_sets)]
        with torch.device("meta"):
            rms, layer = RMSNorm(d, eps=EPS), LayerNorm(d, bias=True, eps=EPS)
        kinds = {
            "rmsnorm": (
                with_weights(rms, {"weight": scale}),
                Apply(lambda x, w: F.rms_norm(x, (d,), w, EPS), scale),
                lambda given, rows: (reference.rms_norm(given[0][rows], scale, EPS),),
            ),
            "layernorm": (
                with_weights(layer, {"weight": scale, "bias": shift}),
                Apply(lambda x, w, b: F.layer_norm(x, (d,), w, b, EPS), scale, shift),
                lambda given, rows: (reference.layer_norm(given[0][rows], scale, shift, EPS),),
            ),
        }
        return [
            Variant(
                name=kind + way,
                module=module,
                compiled=way == "-compiled",
                baseline=kind + way == "rmsnorm",
                # no matrix product; weights, every value in and every value out
                work=work_of(0, *module.parameters(), inputs[0][0], inputs[0][0]),
                reference=expected,
                inputs=inputs,
            )
            for kind, (written_out, torchs, expected) in kinds.items()
            for way, module in (("", written_out), ("-torch", torchs), ("-compiled", written_out))
        ]

    return Case(
        topic="norm",
        model=model,
        dtype=dtype,
        sizes={"d_model": d},
        workload={"tokens": n_tokens},
        rows=n_tokens,
        checked_rows=128,
        # float32 copies: widened, centred, squared, scaled
        needs_bytes=5 * set_bytes + 16 * n_tokens * d,
        set_bytes=set_bytes,
        build=build,
    )
