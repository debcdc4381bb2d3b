"""The modules' mathematics a second time: lists of floats, loops and `math`, no tensor operation.

Only weights are read from a module (with `tolist`); none of its methods is called.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Row = list[float]
Rows = list[Row]
Sees = Callable[[int, int], bool]  # (query index, key index)


def randomised(module: Any, seed: int = 7) -> Any:
    """`module` in float64, every parameter and stored buffer random: none is left at 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    module.double().eval()
    with torch.no_grad():
        for tensor in module.state_dict().values():
            tensor.copy_(0.4 * torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype))
    return module


def assert_near(actual: Tensor, expected: Any, relative: float = 1e-12) -> None:
    """Same shape, float64, and the largest difference at most `relative` of the largest value."""
    expected = torch.as_tensor(expected, dtype=torch.float64)
    assert actual.dtype == torch.float64
    assert actual.shape == expected.shape
    largest = expected.abs().max().item()
    assert 1e-3 < largest < 1e9, "values that would compare equal whatever happened"
    assert (actual - expected).abs().max().item() <= relative * max(1.0, largest)


def dot(a: Row, b: Row) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def add(*rows: Row) -> Row:
    return [math.fsum(values) for values in zip(*rows, strict=True)]


def times(row: Row, factor: float) -> Row:
    return [factor * x for x in row]


def matrix(rows: Rows, row: Row, bias: Row | None = None) -> Row:
    """rows @ row + bias."""
    y = [dot(weights, row) for weights in rows]
    return y if bias is None else add(y, bias)


def linear(layer: nn.Linear, row: Row) -> Row:
    bias = None if layer.bias is None else layer.bias.tolist()
    return matrix(layer.weight.tolist(), row, bias)


def parts(row: Row, width: int) -> Rows:
    """`row` cut into pieces of `width`."""
    assert len(row) % width == 0
    return [row[i : i + width] for i in range(0, len(row), width)]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def silu(x: float) -> float:
    return x * sigmoid(x)


def softmax(row: Row) -> Row:
    total = math.fsum(math.exp(x - max(row)) for x in row)
    return [math.exp(x - max(row)) / total for x in row]


# ---- norms


def rms_norm(row: Row, eps: float, weight: Row | None = None, offset: float = 0.0) -> Row:
    size = math.sqrt(math.fsum(x * x for x in row) / len(row) + eps)
    weight = [1.0 - offset] * len(row) if weight is None else weight
    return [x / size * (w + offset) for x, w in zip(row, weight, strict=True)]


def layer_norm(row: Row, eps: float, weight: Row | None = None, bias: Row | None = None) -> Row:
    mean = math.fsum(row) / len(row)
    variance = math.fsum((x - mean) ** 2 for x in row) / len(row)
    y = [(x - mean) / math.sqrt(variance + eps) for x in row]
    if weight is not None:
        y = [a * w for a, w in zip(y, weight, strict=True)]
    return y if bias is None else add(y, bias)


def norm(module: Any, row: Row) -> Row:
    weight = None if module.weight is None else module.weight.tolist()
    if type(module).__name__ == "RMSNorm":
        return rms_norm(row, module.eps, weight, 1.0 if module.unit_offset and weight else 0.0)
    bias = None if module.bias is None else module.bias.tolist()
    return layer_norm(row, module.eps, weight, bias)


# ---- feed-forward

SCALAR: dict[str, Callable[[float], float]] = {
    "relu": lambda x: x if x > 0 else 0.0,
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: (
        x * 0.5 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    ),
    "silu": lambda x: x * sigmoid(x),
    "relu2": lambda x: x * x if x > 0 else 0.0,
    "sigmoid": sigmoid,
    "identity": lambda x: x,
}


def gated(gate: float, up: float, name: str, beta: float = 1.0) -> float:
    if name == "clamped_swiglu":
        gate, up = min(gate, 7.0), min(max(up, -7.0), 7.0)
        return gate * sigmoid(1.702 * gate) * (up + 1)
    return up * (gate * sigmoid(beta * gate) if name == "silu" else SCALAR[name](gate))


def ffn(module: Any, row: Row) -> Row:
    name, beta = module.activation, module.swish_beta
    up = linear(module.up_proj, row)
    if hasattr(module, "gate_proj"):
        gates = linear(module.gate_proj, row)
        pairs = zip(gates, up, strict=True)
        return linear(module.down_proj, [gated(g, u, name, beta) for g, u in pairs])
    if name == "silu":
        return linear(module.down_proj, [u * sigmoid(beta * u) for u in up])
    return linear(module.down_proj, [SCALAR[name](u) for u in up])


# ---- mixture of experts


def route(router: Any, row: Row) -> dict[int, float]:
    """{expert: weight} of one token."""
    logits = linear(router.proj, row)
    soft = router.scoring in ("softmax", "softmax_renorm", "topk_softmax")
    scores = softmax(logits) if soft else [sigmoid(x) for x in logits]
    rank = list(scores)
    if router.e_score_correction_bias is not None:
        rank = add(rank, router.e_score_correction_bias.tolist())
    experts = list(range(len(rank)))
    if router.groups:
        size = len(rank) // router.groups.n_groups
        groups = [experts[i : i + size] for i in range(0, len(rank), size)]
        best_of = 1 if router.groups.score == "max" else 2
        worth = [sum(sorted((rank[e] for e in group), reverse=True)[:best_of]) for group in groups]
        kept = sorted(range(len(groups)), key=lambda g: -worth[g])[: router.groups.top_groups]
        experts = [e for g in kept for e in groups[g]]
    chosen = sorted(experts, key=lambda e: -rank[e])[: router.top_k]
    if router.scoring == "topk_softmax":
        weights = softmax([logits[e] for e in chosen])
    else:
        weights = [scores[e] for e in chosen]
        if router.scoring.endswith("_renorm"):
            weights = [w / sum(weights) for w in weights]
    return {e: w * router.routed_scale for e, w in zip(chosen, weights, strict=True)}


def expert(experts: Any, index: int, row: Row) -> Row:
    """One expert of the fused tensors on one token; a zero expert gives it back."""
    if index >= len(experts.down_proj):
        return row

    def product(name: str, x: Row) -> Row:
        bias = getattr(experts, f"{name}_bias")
        weight = getattr(experts, name)[index].tolist()
        return matrix(weight, x, None if bias is None else bias[index].tolist())

    if not experts.gated:
        hidden = [SCALAR[experts.activation](u) for u in product("up_proj", row)]
        return product("down_proj", hidden)
    both = product("gate_up_proj", row)
    gates, ups = both[: len(both) // 2], both[len(both) // 2 :]
    how, pairs = (experts.activation, experts.swish_beta), zip(gates, ups, strict=True)
    return product("down_proj", [gated(g, u, *how) for g, u in pairs])


def moe(module: Any, row: Row) -> Row:
    chosen = route(module.gate, row)
    y = add(*(times(expert(module.experts, e, row), w) for e, w in chosen.items()))
    if module.shared_experts is None:
        return y
    share = 1.0
    if module.shared_expert_gate is not None:
        share = sigmoid(linear(module.shared_expert_gate, row)[0])
    return add(y, times(ffn(module.shared_experts, row), share))


# ---- positions


def rope(row: Row, position: int, rotary_dim: int, theta: float, style: str) -> Row:
    """Each pair is a complex number, multiplied by e^(i·angle)."""
    out = list(row)
    for i in range(rotary_dim // 2):
        a, b = (i, i + rotary_dim // 2) if style == "half" else (2 * i, 2 * i + 1)
        turned = complex(row[a], row[b]) * cmath.exp(1j * position * theta ** (-2 * i / rotary_dim))
        out[a], out[b] = turned.real, turned.imag
    return out


def sinusoid(position: int, width: int) -> Row:
    angles = [position / 10000 ** (column // 2 * 2 / width) for column in range(width)]
    return [math.cos(a) if c % 2 else math.sin(a) for c, a in enumerate(angles)]


def t5_bucket(offset: int, n_buckets: int, max_distance: int, both_sides: bool) -> int:
    """In integers alone: the log bucket is the largest j with (D/e)^j <= (d/e)^(n-e)."""
    first, distance = 0, max(-offset, 0)
    if both_sides:
        n_buckets //= 2
        first, distance = (n_buckets if offset > 0 else 0), abs(offset)
    exact = n_buckets // 2
    if distance < exact:
        return first + distance
    n_log, j = n_buckets - exact, 0
    while j + 1 < n_log and max_distance ** (j + 1) * exact**n_log <= distance**n_log * exact ** (
        j + 1
    ):
        j += 1
    return first + exact + j


# ---- attention


def weighted(
    score: Callable[[int, int, int], float],
    values: list[Rows],
    n_heads: int,
    n_queries: int,
    sees: Sees,
    sinks: Row | None = None,
) -> Rows:
    """score(h, s, t), values [G][T][U] -> [S][H·U]; a key that is not seen does not exist."""
    out: Rows = []
    for s in range(n_queries):
        row: Row = []
        for h in range(n_heads):
            of_head = values[h * len(values) // n_heads]
            seen = [t for t in range(len(of_head)) if sees(s, t)]
            logits = [score(h, s, t) for t in seen] + ([] if sinks is None else [sinks[h]])
            shares = softmax(logits)[: len(seen)]
            row += add(*(times(of_head[t], p) for t, p in zip(seen, shares, strict=True)))
        out.append(row)
    return out


def attention(
    module: Any,
    rows: Rows,
    sees: Sees,
    *,
    source: Rows | None = None,
    query_rows: Rows | None = None,
    bias: Callable[[int, int, int], float] | None = None,
) -> Rows:
    """`Attention` on one sequence that starts at position 0, without Transformer-XL's part."""
    width, n_heads = module.head_dim, module.q_proj.out_features // module.head_dim

    def heads(projection: nn.Linear, inputs: Rows, normed: Any, turns: bool) -> list[Rows]:
        made = []
        for position, x in enumerate(inputs):
            y = linear(projection, x)
            if module.qk_norm == "full" and normed is not None:
                y = norm(normed, y)
            split = parts(y, width)
            if module.qk_norm in ("head", "layernorm") and normed is not None:
                split = [norm(normed, head) for head in split]
            if turns and source is None and module.rotary_dim is not None:
                how = (module.rotary_dim, module.rope_theta, module.rope_style)
                split = [rope(head, position, *how) for head in split]
            if turns and module.qk_norm == "l2":
                split = [rms_norm(head, module.norm_eps) for head in split]
            made.append(split)
        return [[split[h] for split in made] for h in range(len(made[0]))]

    made_of = rows if source is None else source
    q = heads(module.q_proj, query_rows or rows, module.q_norm, True)
    k = heads(module.k_proj, made_of, module.k_norm, True)
    v = heads(module.v_proj, made_of, None, False)

    def score(h: int, s: int, t: int) -> float:
        x = dot(q[h][s], k[h * len(k) // n_heads][t]) * module.scale
        if module.core.softcap is not None:
            x = module.core.softcap * math.tanh(x / module.core.softcap)
        return x if bias is None else x + bias(h, s, t)

    sinks = None if module.core.sinks is None else module.core.sinks.tolist()
    mixed = weighted(score, v, n_heads, len(rows), sees, sinks)
    return [linear(module.o_proj, row) for row in mixed]
