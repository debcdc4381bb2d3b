"""Feed-forward blocks: GELU at 4·d against SwiGLU at several widths, each in several ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

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
    Variant,
    missing_package,
    rows_of,
    rows_to_check,
    weight,
    with_weights,
    work_of,
)
from metacount.bench.rows import BACKWARD, BOTH, FORWARD
from metacount.formulas.sublayers import ffn_matmul_flops
from metacount.modules.ffn import FeedForward, GatedFeedForward
from metacount.spec import ModelSpec
from metacount.spec import ffn as parts

if TYPE_CHECKING:
    from metacount.bench.case import Output, Reference

# widths whose time is laid beside GELU's, in shares of the rule's
EQUAL_TIME_SHARES = (0.8, 0.9, 1.0, 1.1, 1.2)
EQUAL_TIME_MARK = "@"  # in the name of a variant that is there to find the width of equal time
COMPILED, AUTOTUNED = "default", "max-autotune-no-cudagraphs"  # modes of torch.compile
UNITS = 8  # hidden units whose weights' gradients are compared
MOST_SET_BYTES = 2**28  # one set of hidden values this large leaves nothing of itself in a cache


def multiple_of(d_model: int) -> int:
    """Return the number that a gated width is made a multiple of: d/16, at most 256."""
    return min(256, max(1, d_model // 16))


def rule_width(d_model: int) -> int:
    """Compute the width at which SwiGLU has the parameters of two matrices of width 4·d: 8·d/3.

    Rounded up to a multiple of d/16, at most of 256: LLaMA-7B's 11008 and LLaMA-13B's 13824, which
    is 1.25 % more than 8·d/3.

    >>> [rule_width(d) for d in (512, 1024, 4096, 5120, 16384)]
    [1376, 2752, 11008, 13824, 43776]
    """
    multiple = multiple_of(d_model)
    return multiple * -(-(8 * d_model) // (3 * multiple))


def widths(spec: ModelSpec) -> dict[str, int]:
    """Name the width of each SwiGLU: the rule's, 4·d, the model's own and its experts' width.

    `swiglu-own` is the width of the model's dense layers, `swiglu-expert` of one expert; either is
    left out where another has it.
    """
    own = {"swiglu-own": spec.d_ff, "swiglu-expert": spec.d_ff_expert if spec.is_moe else None}
    return gated_widths(spec.d_model, own if spec.gated else {})


def gated_widths(d_model: int, own: dict[str, int | None]) -> dict[str, int]:
    """Return the two widths that follow from d, and those of `own` that differ from them."""
    named = {"swiglu": rule_width(d_model), "swiglu-4d": 4 * d_model}
    for name, width in own.items():
        if width is not None and width not in named.values():
            named[name] = width
    return named


def near_widths(d_model: int) -> dict[str, int]:
    """Choose widths around the rule's, for `--equal-time`: swiglu@N.

    >>> near_widths(4096)
    {'swiglu@8704': 8704, 'swiglu@9984': 9984, 'swiglu@12032': 12032, 'swiglu@13312': 13312}
    """
    multiple, rule = multiple_of(d_model), rule_width(d_model)
    near = [multiple * max(1, round(share * rule / multiple)) for share in EQUAL_TIME_SHARES]
    return {f"swiglu@{width}": width for width in dict.fromkeys(near) if width != rule}


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


@dataclass(frozen=True, kw_only=True)
class Extras:
    """What is timed beside the variants that every device has."""

    peers: bool = False  # other people's kernels
    autotune: bool = False  # the compiler's search among kernels
    parts: bool = False  # each product and the activation alone
    equal_time: bool = False  # widths around the one that takes GELU's time
    directions: tuple[str, ...] = (FORWARD,)

    @property
    def timed(self) -> tuple[str, ...]:
        """The directions that are run: a backward alone is what both take less the forward."""
        wanted = set(self.directions)
        if BACKWARD in wanted:
            wanted |= {FORWARD, BOTH}
        return tuple(direction for direction in (FORWARD, BOTH) if direction in wanted)


PLAIN = Extras()


def case(model: str, spec: ModelSpec, n_tokens: int, dtype: str, extras: Extras = PLAIN) -> Case:
    """Make a case of the feed-forward block of `spec`'s width, over `n_tokens` tokens."""
    return sized(model, spec.d_model, widths(spec), n_tokens, dtype, extras)


def sized(
    label: str, d: int, gated: dict[str, int], n_tokens: int, dtype: str, extras: Extras = PLAIN
) -> Case:
    """Make a case of the block of width `d`, SwiGLU at the widths of `gated`."""
    if extras.equal_time:
        gated = gated | {k: w for k, w in near_widths(d).items() if w not in gated.values()}
    value_bytes = DTYPES[dtype].itemsize
    params = 2 * d * 4 * d + sum(3 * d * m for m in gated.values())
    widest = max(4 * d, *gated.values())
    set_bytes = n_tokens * d * value_bytes
    # the hidden layer twice for the gate, once more for their product
    working = 4 * n_tokens * widest * value_bytes + 4 * set_bytes
    if BOTH in extras.timed:  # what the backward keeps and makes of it, and the gradients
        working = 2 * working + 3 * d * widest * value_bytes + set_bytes
    if extras.parts:  # their own inputs: up to three sets of hidden values of each width
        hidden = [3 * n_tokens * m * value_bytes for m in (4 * d, *gated.values())]
        working += sum(3 * min(n_bytes, MOST_SET_BYTES) for n_bytes in hidden)
    return Case(
        topic="ffn",
        model=label,
        dtype=dtype,
        sizes={"d_model": d, "gelu_d_ff": 4 * d}
        | {f"{name.replace('-', '_')}_d_ff": width for name, width in gated.items()},
        workload={"tokens": n_tokens},
        rows=n_tokens,
        checked_rows=128,
        needs_bytes=params * value_bytes + working,
        set_bytes=set_bytes * (2 if BOTH in extras.timed else 1),
        build=partial(_build, d, gated, n_tokens, DTYPES[dtype], extras),
    )


# the suffix of a row's name: a module, and the mode it is compiled in
Ways = dict[str, tuple[nn.Module, str | None]]


def _build(
    d: int,
    gated: dict[str, int],
    n_tokens: int,
    dtype: torch.dtype,
    extras: Extras,
    device: torch.device,
    n_sets: int,
) -> list[Variant]:
    draw = partial(torch.randn, n_tokens, d, device=device, dtype=dtype)
    inputs: list[Inputs] = [(draw(),) for _ in range(n_sets)]
    both: list[Inputs] = [(x, draw()) for (x,) in inputs] if BOTH in extras.timed else []
    up, down = weight((4 * d, d), device, dtype), weight((d, 4 * d), device, dtype)
    with torch.device("meta"):
        plain = FeedForward(parts.FeedForward(d_ff=4 * d, activation="gelu", gated=False), d)
    with_weights(plain, {"up_proj.weight": up, "down_proj.weight": down})
    ways: Ways = {"": (plain, None), "-compiled": (plain, COMPILED)}
    if extras.autotune:
        ways["-autotuned"] = plain, AUTOTUNED
    sets = {FORWARD: inputs, BOTH: both}
    variants = [*_block("gelu", ways, (up, down), sets, extras)]
    alone = [*_parts("gelu", up, down, inputs)] if extras.parts else []
    for name, m in gated.items():
        gate_up, down = weight((2 * m, d), device, dtype), weight((d, m), device, dtype)
        halves = (nn.Parameter(half, requires_grad=False) for half in gate_up.chunk(2))
        weights = (*halves, down)
        near = EQUAL_TIME_MARK in name
        ways = _gated_ways(gate_up, weights, PLAIN if near else extras)
        ways = {"": ways[""]} if near else ways
        variants += _block(name, ways, weights, sets, extras)
        if extras.parts and not near:
            alone += _parts(name, gate_up, down, inputs)
    return variants + (alone if FORWARD in extras.timed else [])


def _gated_ways(gate_up_XD: nn.Parameter, weights: Sequence[nn.Parameter], extras: Extras) -> Ways:
    """Build SwiGLU with three matrices and with two, over the same memory."""
    d, m = weights[-1].shape
    with torch.device("meta"):
        three = GatedFeedForward(parts.FeedForward(d_ff=m, activation="silu", gated=True), d)
    names = ("gate_proj.weight", "up_proj.weight", "down_proj.weight")
    with_weights(three, dict(zip(names, weights, strict=True)))
    two = Joined(gate_up_XD, weights[-1])
    ways: Ways = {"": (three, None), "-joined": (two, None), "-joined-compiled": (two, COMPILED)}
    if extras.autotune:
        ways["-joined-autotuned"] = two, AUTOTUNED
    if extras.peers:
        ways["-liger"] = LigerGated(gate_up_XD, weights[-1]), None
        ways["-triton"] = Joined(gate_up_XD, weights[-1], triton_silu_mul), None
    return ways


def _block(
    name: str,
    ways: Ways,
    weights: Sequence[nn.Parameter],
    sets: dict[str, list[Inputs]],
    extras: Extras,
) -> Iterator[Variant]:
    """Yield each way of a block in each direction.

    Forward and backward read and write everything twice: weights and their gradients, the input and
    the output's gradient, the output and the input's gradient. Each product of the forward has two
    in the backward, one for what it multiplied and one for its weights.
    """
    d, m = weights[-1].shape
    gated, expected = len(weights) == 3, partial(_expected, weights)
    for way, (module, compiled) in ways.items():
        for direction in extras.timed:
            both, x = direction == BOTH, sets[direction][0][0]
            flops = int(ffn_matmul_flops(len(x), d, m, gated=gated))
            moved = (*weights, x, x)
            missing = missing_package(way)
            if both and way == "-triton":
                missing = missing or "its kernel has no backward"
            pick = partial(pick_gradients, joined=isinstance(module, Joined))
            yield Variant(
                name=name + way,
                module=ForwardBackward(module) if both else module,
                compiled=compiled,
                missing=missing,
                foreign=way in PACKAGES,
                direction=direction,
                baseline=name + way == "gelu",
                d_ff=m if gated and way == "" and not both else None,
                work=work_of(3 * flops, *moved, *moved) if both else work_of(flops, *moved),
                reference=expected,
                inputs=sets[direction],
                pick=pick if both else rows_of,
            )


def _expected(weights: Sequence[Tensor], inputs: Inputs, rows: list[int]) -> Expected:
    """Compute rows of the output and, given its gradient, all that `pick_gradients` picks."""
    units = rows_to_check(weights[-1].shape[-1], UNITS)
    if len(inputs) == 1:
        return (reference.ffn(inputs[0][rows], *weights),)
    return reference.ffn_gradients(inputs[0], inputs[1], weights, rows, units)


def _parts(
    name: str, first_XD: nn.Parameter, down_DM: nn.Parameter, inputs: list[Inputs]
) -> Iterator[Variant]:
    """Yield each product and the activation alone, over hidden values: where the time goes."""
    wide, m, n = len(first_XD), down_DM.shape[1], len(inputs[0][0])
    gated = wide != m
    large = n * wide * down_DM.itemsize >= MOST_SET_BYTES
    hidden: list[Inputs] = [
        (torch.randn(n, wide, device=down_DM.device, dtype=down_DM.dtype),)
        for _ in inputs[: 1 if large else 3]
    ]
    narrow: list[Inputs] = [(x[:, :m].contiguous(),) for (x,) in hidden] if gated else hidden

    def product(weight_YX: Tensor, given: Inputs, rows: list[int]) -> Expected:
        return (given[0][rows].double() @ weight_YX.double().T,)

    def activation(given: Inputs, rows: list[int]) -> Expected:
        x = given[0][rows].double()
        gate, up = x.chunk(2, dim=-1) if gated else (x, None)
        return (reference.gelu(x) if up is None else reference.silu(gate) * up,)

    names = (":gate_up" if gated else ":up", ":activation", ":down")
    steps: tuple[tuple[Reference, nn.Module, list[Inputs], int], ...] = (
        (partial(product, first_XD), Apply(F.linear, first_XD), inputs, wide),
        (activation, Apply(silu_mul if gated else F.gelu), hidden, m),
        (partial(product, down_DM), Apply(F.linear, down_DM), narrow, len(down_DM)),
    )
    for part, (expected, module, sets, out) in zip(names, steps, strict=True):
        matrix = list(module.parameters())
        yield Variant(
            name=name + part,
            module=module,
            part=True,
            reference=expected,
            inputs=sets,
            work=work_of(
                2 * n * sum(w.numel() for w in matrix),  # 2 FLOPs per multiply-add
                *matrix,
                sets[0][0],
                more=n * out * down_DM.itemsize,
            ),
        )
