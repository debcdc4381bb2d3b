"""Feed-forward blocks: GELU at 4·d against SwiGLU at several widths, each in several ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metacount.bench import reference
from metacount.bench.case import (
    DTYPES,
    Built,
    Case,
    Expected,
    Inputs,
    Pick,
    Reference,
    Variant,
    missing_package,
    part,
    rows_to_check,
    weight,
)
from metacount.bench.rows import BACKWARD, BOTH, FORWARD
from metacount.bench.work import elementwise_work, ffn_training_work, ffn_work, product_work
from metacount.modules.ffn import FeedForward, GatedFeedForward
from metacount.spec import ModelSpec
from metacount.spec import ffn as parts

if TYPE_CHECKING:
    from metacount.bench.case import Output

# widths whose time is laid beside GELU's, in shares of the rule's
EQUAL_TIME_SHARES = (0.8, 0.9, 1.0, 1.1, 1.2)


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
    found = {"swiglu": rule_width(d_model), "swiglu-4d": 4 * d_model}
    for name, width in own.items():
        if width is not None and width not in found.values():
            found[name] = width
    return found


def near_widths(d_model: int) -> dict[str, int]:
    """Choose widths around the rule's, for `--equal-time`: swiglu@N.

    >>> near_widths(4096)
    {'swiglu@8704': 8704, 'swiglu@9984': 9984, 'swiglu@12032': 12032, 'swiglu@13312': 13312}
    """
    multiple, rule = multiple_of(d_model), rule_width(d_model)
    near = [multiple * max(1, round(share * rule / multiple)) for share in EQUAL_TIME_SHARES]
    return {f"swiglu@{width}": width for width in dict.fromkeys(near) if width != rule}


AUTOTUNED = "max-autotune-no-cudagraphs"  # a mode of torch.compile


class _Joined(nn.Module):
    """The weights of SwiGLU with gate and up in one matrix, gate first."""

    def __init__(self, gate_up_XD: nn.Parameter, down_DM: nn.Parameter) -> None:
        super().__init__()
        self.gate_up, self.down = gate_up_XD, down_DM


class LigerGated(_Joined):
    """Liger-Kernel's silu·up; it takes the halves as matrices of their own, so two products."""

    def __init__(self, gate_up_XD: nn.Parameter, down_DM: nn.Parameter) -> None:
        super().__init__(gate_up_XD, down_DM)
        if (
            missing_package("-liger") is None
        ):  # before anything is counted: the import runs operators
            import_module("liger_kernel.ops.swiglu")

    def forward(self, x_ND: Tensor) -> Tensor:
        """Compute SwiGLU with Liger-Kernel's silu·up: [N, D] -> [N, D]."""
        from liger_kernel.ops.swiglu import LigerSiLUMulFunction

        gate, up = (F.linear(x_ND, half) for half in self.gate_up.chunk(2))
        y_ND: Tensor = F.linear(LigerSiLUMulFunction.apply(gate, up), self.down)
        return y_ND


class TritonGated(_Joined):
    """silu·up in one Triton kernel that reads the joined product as it lies."""

    def forward(self, x_ND: Tensor) -> Tensor:
        """Compute SwiGLU with silu·up in one Triton kernel: [N, D] -> [N, D]."""
        from metacount.bench.triton_silu import silu_mul

        return F.linear(silu_mul(F.linear(x_ND, self.gate_up)), self.down)


FORWARD_ONLY = {"-triton": "its kernel has no backward"}

GATED_PEERS: dict[str, Callable[[nn.Parameter, nn.Parameter], nn.Module]] = {
    "-liger": LigerGated,
    "-triton": TritonGated,
}


UNITS = 8  # hidden units whose weights' gradients are compared


class ForwardBackward(nn.Module):
    """A layer's output and the gradients of its input and weights, for a given output gradient."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.weights = list(layer.parameters())
        for parameter in self.weights:
            parameter.requires_grad_(True)

    def compiled(self, mode: str) -> ForwardBackward:
        """Return another module with the layer under torch.compile, its backward with it."""
        other = ForwardBackward(self.layer)
        layer: object = torch.compile(self.layer, dynamic=False, fullgraph=True, mode=mode)
        assert isinstance(layer, nn.Module)  # as a module's compilation is, whatever its type says
        other.layer = layer
        return other

    def forward(self, x_ND: Tensor, grad_ND: Tensor) -> tuple[Tensor, ...]:
        """Compute the output, the input's gradient and each weight's from [N, D] and [N, D]."""
        with torch.enable_grad():
            x = x_ND.detach().requires_grad_(True)
            y = self.layer(x)
            found = torch.autograd.grad(y, (x, *self.weights), grad_ND)
        return (y.detach(), *found)


def units_of(d_ff: int) -> list[int]:
    """Choose the hidden units that are compared, spread evenly."""
    return rows_to_check(d_ff, UNITS)


def picks(*names: str) -> Pick:
    """Make a pick: rows of output and input gradient, then some units of each weight's gradient.

    `names` are the weights in order: up, gate, down, or gate_up for both in one matrix.
    """

    def pick(out: Output, rows: list[int]) -> Expected:
        y, dx, *weights = out
        units = units_of(weights[-1].shape[-1])
        found = [y[rows], dx[rows]]
        for name, grad in zip(names, weights, strict=True):
            if name == "gate_up":
                gate, up = grad.chunk(2)
                found += [gate[units], up[units]]
            else:
                found.append(grad[:, units].T if name == "down" else grad[units])
        return found

    return pick


def plain_gradients(up_MD: Tensor, down_DM: Tensor) -> Reference:
    """Return the reference of down·gelu(up·x): output and gradients, in float64."""

    def rows_of(inputs: Inputs, rows: list[int]) -> Expected:
        x, grad = (t.double() for t in inputs)
        up, down = up_MD.detach().double(), down_DM.detach().double()
        units = units_of(len(up))
        hidden = x[rows] @ up.T
        d_hidden = (grad[rows] @ down) * reference.gelu_slope(hidden)
        unit_in = x @ up[units].T
        d_unit = (grad @ down[:, units]) * reference.gelu_slope(unit_in)
        return [
            reference.gelu(hidden) @ down.T,
            d_hidden @ up,
            d_unit.T @ x,
            reference.gelu(unit_in).T @ grad,
        ]

    return rows_of


def gated_gradients(gate_MD: Tensor, up_MD: Tensor, down_DM: Tensor) -> Reference:
    """Return the reference of down·(silu(gate·x)·(up·x)): output and gradients, in float64."""

    def rows_of(inputs: Inputs, rows: list[int]) -> Expected:
        x, grad = (t.double() for t in inputs)
        gate, up, down = (w.detach().double() for w in (gate_MD, up_MD, down_DM))
        units = units_of(len(up))

        def inside(
            tokens: list[int] | slice, chosen: list[int] | slice
        ) -> tuple[Tensor, Tensor, Tensor]:
            a, b = x[tokens] @ gate[chosen].T, x[tokens] @ up[chosen].T
            d = grad[tokens] @ down[:, chosen]
            return d * b * reference.silu_slope(a), d * reference.silu(a), reference.silu(a) * b

        every = slice(None)
        d_gate, d_up, hidden = inside(rows, every)
        unit_gate, unit_up, unit_hidden = inside(every, units)
        return [
            hidden @ down.T,
            d_gate @ gate + d_up @ up,
            unit_gate.T @ x,
            unit_up.T @ x,
            unit_hidden.T @ grad,
        ]

    return rows_of


COMPILED = "default"
JOINED, JOINED_COMPILED, JOINED_AUTOTUNED = "-joined", "-joined-compiled", "-joined-autotuned"
WAYS = ("", JOINED, JOINED_COMPILED)
# Each product and the activation alone, over hidden values: where the time of the whole goes.
PLAIN_PARTS = (":up", ":activation", ":down")
GATED_PARTS = (":gate_up", ":activation", ":down")
MOST_SET_BYTES = 2**28  # one set of hidden values this large leaves nothing of itself in a cache


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
        return tuple(one for one in (FORWARD, BOTH) if one in wanted)


PLAIN = Extras()


class JoinedGatedFeedForward(nn.Module):
    """SwiGLU with gate and up in one matrix [2·M, D], gate first: two products instead of three."""

    def __init__(self, gate_up_XD: nn.Parameter, down_DM: nn.Parameter) -> None:
        super().__init__()
        self.gate_up, self.down = gate_up_XD, down_DM

    def forward(self, x_ND: Tensor) -> Tensor:
        """Compute SwiGLU by two products: [N, D] -> [N, D]."""
        gate_NM, up_NM = F.linear(x_ND, self.gate_up).chunk(2, dim=-1)
        return F.linear(F.silu(gate_NM) * up_NM, self.down)


def variant_names(gated: dict[str, int], extras: Extras = PLAIN) -> tuple[str, ...]:
    """Name every variant of the block, the baseline first."""
    names = ["gelu", "gelu-compiled", *(["gelu-autotuned"] if extras.autotune else [])]
    ways = [*WAYS, *([JOINED_AUTOTUNED] if extras.autotune else [])]
    ways += GATED_PEERS if extras.peers else []
    for name in gated:
        names += [name] if "@" in name else [name + way for way in ways]
    if extras.parts and FORWARD in extras.timed:
        names += [f"gelu{one}" for one in PLAIN_PARTS]
        names += [f"{name}{one}" for name in gated if "@" not in name for one in GATED_PARTS]
    return tuple(names)


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
    if extras.parts:
        working += part_bytes(n_tokens, [4 * d, *gated.values()], value_bytes)
    return Case(
        topic="ffn",
        model=label,
        dtype=dtype,
        sizes={"d_model": d, "gelu_d_ff": 4 * d}
        | {f"{name.replace('-', '_')}_d_ff": width for name, width in gated.items()},
        workload={"tokens": n_tokens},
        variants=variant_names(gated, extras),
        rows=n_tokens,
        checked_rows=128,
        needs_bytes=params * value_bytes + working,
        set_bytes=set_bytes * (2 if BOTH in extras.timed else 1),
        build=lambda device, n_sets: _build(
            d, gated, n_tokens, DTYPES[dtype], device, n_sets, extras
        ),
    )


def _build(
    d: int,
    gated: dict[str, int],
    n_tokens: int,
    dtype: torch.dtype,
    device: torch.device,
    n_sets: int,
    extras: Extras,
) -> Built:
    def drawn() -> Tensor:
        return torch.randn(n_tokens, d, device=device, dtype=dtype)

    with torch.device("meta"):
        plain = FeedForward(parts.FeedForward(d_ff=4 * d, activation="gelu", gated=False), d)
    plain.up_proj.weight = weight((4 * d, d), device, dtype)
    plain.down_proj.weight = weight((d, 4 * d), device, dtype)
    inputs: list[Inputs] = [(drawn(),) for _ in range(n_sets)]
    both: list[Inputs] = [(x, drawn()) for (x,) in inputs] if BOTH in extras.timed else []
    variants: list[Variant] = []
    for name, compiled in (
        ("gelu", None),
        ("gelu-compiled", COMPILED),
        ("gelu-autotuned", AUTOTUNED),
    ):
        if compiled != AUTOTUNED or extras.autotune:
            variants += _plain(name, plain, compiled, n_tokens, dtype, extras, both)
    pairs = {name: gated_pair(d, width, device, dtype) for name, width in gated.items()}
    for name, pair in pairs.items():
        variants += _gated(name, *pair, n_tokens, extras, both)
    if extras.parts and FORWARD in extras.timed:
        variants += part_variants(
            plain, {n: p for n, p in pairs.items() if "@" not in n}, n_tokens, device, n_sets
        )
    return Built(inputs=inputs, variants=variants)


def _plain(
    name: str,
    module: FeedForward,
    compiled: str | None,
    n_tokens: int,
    dtype: torch.dtype,
    extras: Extras,
    both: list[Inputs],
) -> Iterator[Variant]:
    m, d = module.up_proj.weight.shape
    if FORWARD in extras.timed:
        yield Variant(
            name=name,
            module=module,
            compiled=compiled,
            reference=_plain_reference(module),
            work=ffn_work(n_tokens, d, m, gated=False, value_bytes=dtype.itemsize),
        )
    if BOTH in extras.timed:
        weights = (module.up_proj.weight, module.down_proj.weight)
        yield Variant(
            name=name,
            module=ForwardBackward(module),
            compiled=compiled,
            direction=BOTH,
            work=ffn_training_work(n_tokens, d, m, gated=False, value_bytes=dtype.itemsize),
            reference=plain_gradients(*weights),
            pick=picks("up", "down"),
            inputs=both,
        )


def _gated(
    name: str,
    separate: GatedFeedForward,
    joined: JoinedGatedFeedForward,
    n_tokens: int,
    extras: Extras,
    both: list[Inputs],
) -> Iterator[Variant]:
    d, m = joined.down.shape
    size = joined.down.dtype.itemsize
    weights = (separate.gate_proj.weight, separate.up_proj.weight, joined.down)
    ways: dict[str, tuple[nn.Module, str | None, str | None]] = {
        "": (separate, None, None),
        JOINED: (joined, None, None),
        JOINED_COMPILED: (joined, COMPILED, None),
    }
    if extras.autotune:
        ways[JOINED_AUTOTUNED] = (joined, AUTOTUNED, None)
    if extras.peers:
        ways |= {
            way: (peer(joined.gate_up, joined.down), None, missing_package(way))
            for way, peer in GATED_PEERS.items()
        }
    if "@" in name:
        ways = {"": ways[""]}
    for way, (module, compiled, lacks) in ways.items():
        three = module is separate
        if FORWARD in extras.timed:
            yield Variant(
                name=name + way,
                module=module,
                compiled=compiled,
                missing=lacks,
                foreign=way in GATED_PEERS,
                reference=_gated_reference(separate),
                d_ff=m if way == "" else None,
                work=ffn_work(n_tokens, d, m, gated=True, value_bytes=size),
            )
        if BOTH in extras.timed:
            yield Variant(
                name=name + way,
                module=ForwardBackward(module),
                compiled=compiled,
                missing=lacks or FORWARD_ONLY.get(way),
                foreign=way in GATED_PEERS,
                direction=BOTH,
                reference=gated_gradients(*weights),
                inputs=both,
                pick=picks("gate", "up", "down") if three else picks("gate_up", "down"),
                work=ffn_training_work(n_tokens, d, m, gated=True, value_bytes=size),
            )


def gated_pair(
    d_model: int, d_ff: int, device: torch.device, dtype: torch.dtype
) -> tuple[GatedFeedForward, JoinedGatedFeedForward]:
    """Build SwiGLU with three matrices and with two, over the same memory."""
    joined = JoinedGatedFeedForward(
        weight((2 * d_ff, d_model), device, dtype), weight((d_model, d_ff), device, dtype)
    )
    with torch.device("meta"):
        separate = GatedFeedForward(
            parts.FeedForward(d_ff=d_ff, activation="silu", gated=True), d_model
        )
    separate.gate_proj.weight = part(joined.gate_up, slice(0, d_ff))
    separate.up_proj.weight = part(joined.gate_up, slice(d_ff, 2 * d_ff))
    separate.down_proj.weight = joined.down
    return separate, joined


def _plain_reference(module: FeedForward) -> Reference:
    def rows_of(inputs: Inputs, rows: list[int]) -> tuple[Tensor]:
        up, down = module.up_proj.weight, module.down_proj.weight
        return (reference.plain_ffn(inputs[0][rows], up, down),)

    return rows_of


def _gated_reference(module: GatedFeedForward) -> Reference:
    def rows_of(inputs: Inputs, rows: list[int]) -> tuple[Tensor]:
        gate, up = module.gate_proj.weight, module.up_proj.weight
        return (reference.swiglu(inputs[0][rows], gate, up, module.down_proj.weight),)

    return rows_of


class Product(nn.Module):
    """x·Wᵀ."""

    def __init__(self, weight_YX: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight_YX.detach(), requires_grad=False)

    def forward(self, x_NX: Tensor) -> Tensor:
        """Multiply x by Wᵀ: [N, X] -> [N, Y]."""
        return F.linear(x_NX, self.weight)


class Gelu(nn.Module):
    """gelu(x), with erf."""

    def forward(self, x_NM: Tensor) -> Tensor:
        """Compute gelu(x), with erf: [N, M] -> [N, M]."""
        return F.gelu(x_NM)


class SiluMul(nn.Module):
    """silu of the first half times the second."""

    def forward(self, x_NX: Tensor) -> Tensor:
        """Multiply silu of the first half by the second: [N, 2·M] -> [N, M]."""
        gate, up = x_NX.chunk(2, dim=-1)
        return F.silu(gate) * up


def part_bytes(n_tokens: int, widths: list[int], value_bytes: int) -> int:
    """Estimate bytes of the parts' own inputs: up to three sets of hidden values of each width."""
    return sum(3 * min(3 * n_tokens * m * value_bytes, MOST_SET_BYTES) for m in widths)


def part_variants(
    plain: FeedForward,
    gated: Mapping[str, tuple[GatedFeedForward, JoinedGatedFeedForward]],
    n_tokens: int,
    device: torch.device,
    n_sets: int,
) -> Iterator[Variant]:
    """Yield the parts of the plain block, then of each gated one."""
    up, down = plain.up_proj.weight, plain.down_proj.weight
    yield from _parts("gelu", PLAIN_PARTS, up, down, Gelu(), n_tokens, device, n_sets)
    for name, (_, joined) in gated.items():
        yield from _parts(
            name, GATED_PARTS, joined.gate_up, joined.down, SiluMul(), n_tokens, device, n_sets
        )


def _parts(
    name: str,
    parts: tuple[str, ...],
    first_XD: Tensor,
    down_DM: Tensor,
    activation: nn.Module,
    n_tokens: int,
    device: torch.device,
    n_sets: int,
) -> Iterator[Variant]:
    (wide, d), m, size = first_XD.shape, down_DM.shape[1], down_DM.dtype.itemsize

    def sets(width: int) -> list[Inputs]:
        large = n_tokens * width * size >= MOST_SET_BYTES
        shape = (n_tokens, width)
        return [
            (torch.randn(shape, device=device, dtype=down_DM.dtype),)
            for _ in range(1 if large else min(3, n_sets))
        ]

    hidden = sets(wide)
    narrow: list[Inputs] = hidden if wide == m else [(x[:, :m].contiguous(),) for (x,) in hidden]
    yield Variant(
        name=name + parts[0],
        module=Product(first_XD),
        part=True,
        reference=_product(first_XD),
        work=product_work(n_tokens, d, wide, value_bytes=size),
    )
    yield Variant(
        name=name + parts[1],
        module=activation,
        part=True,
        inputs=hidden,
        reference=_gelu if wide == m else _silu_mul,
        work=elementwise_work(n_tokens * wide, n_tokens * m, value_bytes=size),
    )
    yield Variant(
        name=name + parts[2],
        module=Product(down_DM),
        part=True,
        inputs=narrow,
        reference=_product(down_DM),
        work=product_work(n_tokens, m, d, value_bytes=size),
    )


def _product(weight_YX: Tensor) -> Reference:
    def rows_of(inputs: Inputs, rows: list[int]) -> tuple[Tensor]:
        return (inputs[0][rows].double() @ weight_YX.double().T,)

    return rows_of


def _gelu(inputs: Inputs, rows: list[int]) -> tuple[Tensor]:
    return (reference.gelu(inputs[0][rows].double()),)


def _silu_mul(inputs: Inputs, rows: list[int]) -> tuple[Tensor]:
    gate, up = inputs[0][rows].double().chunk(2, dim=-1)
    return (reference.silu(gate) * up,)
