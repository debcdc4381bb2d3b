"""Attention followed by hand, norms and where a block has them, positions."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from metacount.modules import (
    Attention,
    LatentAttention,
    LayerNorm,
    RMSNorm,
    ScaledDotProduct,
    Visibility,
    apply_rope,
    sinusoid,
)
from metacount.modules.block import deep_alpha
from metacount.modules.position import alibi_slopes, speeds
from metacount.spec.attention import Attention as AttentionPart
from metacount.spec.attention import LatentAttention as LatentPart
from metacount.teaching.counts import rotary_width, theta_of
from metacount.teaching.experiments.modules import (
    HEADS,
    each_same,
    made,
    normal,
    placed,
    rotated_score,
    same,
    seeded,
    sinusoid_by_hand,
    small,
)
from metacount.teaching.texts import matrix, shown, vector

if TYPE_CHECKING:
    from collections.abc import Sequence

    from metacount.modules.model import Stack
    from metacount.spec import ModelSpec

# the attention that is followed by hand: 4 tokens, heads of 2 values
Q = ((1.0, 0.0), (0.0, 2.0), (1.0, 1.0), (2.0, -1.0))
K = ((1.0, 1.0), (0.0, 1.0), (2.0, 0.0), (1.0, -1.0))
V = ((1.0, 0.0), (0.0, 1.0), (2.0, 2.0), (-1.0, 1.0))


def by_hand() -> dict[str, object]:
    """Return the vectors of the attention that is followed by hand."""
    matrices = {"Q": matrix(Q), "K": matrix(K), "V": matrix(V)}
    return {**matrices, "tokens": len(Q), "width": len(Q[0])}


@cache
def followed() -> dict[str, list[list[float]]]:
    """Compute scores, weights and outputs in plain arithmetic; the outputs are the module's too."""
    n, scale = len(Q), 1 / math.sqrt(len(Q[0]))
    scores = [[scale * sum(a * b for a, b in zip(q, k, strict=True)) for k in K] for q in Q]
    weights = []
    for i, row in enumerate(scores):
        powers = [math.exp(s) if j <= i else 0.0 for j, s in enumerate(row)]
        weights.append([p / sum(powers) for p in powers])
    columns = list(zip(*V, strict=True))
    outputs = [
        [sum(w * v for w, v in zip(row, c, strict=True)) for c in columns] for row in weights
    ]
    core = ScaledDotProduct(scale=scale)
    q, k, v = (torch.tensor([[each]], dtype=torch.float64) for each in (Q, K, V))
    run = core(q, k, v, Visibility(n_queries=n, n_keys=n))[0, 0]
    for hand, ran in zip(outputs, run, strict=True):
        each_same(hand, ran, "attention")
    return {"scores": scores, "weights": weights, "outputs": outputs}


def grid() -> list[list[str]]:
    """List query by query: scores, the masked ones as dashes, then the weights and the output."""
    rows = zip(*followed().values(), strict=True)
    return [
        [
            str(i + 1),
            *(shown(s, "fixed") if j <= i else "–" for j, s in enumerate(scores)),
            *(shown(w, "fixed") for w in weights),
            vector(output, "fixed"),
        ]
        for i, (scores, weights, output) in enumerate(rows)
    ]


@cache
def absorbed_gap() -> float:
    """Measure how far MLA's two ways to multiply are apart, run on the same weights."""
    d = 12
    part = LatentPart(
        n_heads=3,
        q_lora_rank=None,
        kv_lora_rank=5,
        qk_nope_head_dim=4,
        qk_rope_head_dim=2,
        v_head_dim=4,
    )
    with seeded():
        layer = LatentAttention(part, d).double()
    x, sees = normal(1, 6, d), Visibility(n_queries=6, n_keys=6)
    with torch.no_grad():
        apart = (layer(x, sees) - layer(x, sees, absorbed=True)).abs().max()
    return same(0.0, float(apart), "absorbed MLA")


# Norms

X = (3.0, -1.0, 2.0, 0.0)  # the vector that is normed by hand
EPS = 1e-5
EQUATIONS = {
    "post": "x ← Norm(x + f(x))",
    "pre": "x ← x + f(Norm(x))",
    "sandwich": "x ← x + Norm(f(Norm(x)))",
    "post_branch": "x ← x + Norm(f(x))",
    "deep": "x ← Norm(α·x + f(x))",
    "parallel": "x ← x + attn(Norm(x)) + ffn(Norm(x))",
}


def normed() -> dict[str, list[float]]:
    """Compute X and its norms by hand, compared with their modules, each with mean and RMS."""
    d, mean, squares = len(X), sum(X) / len(X), sum(x * x for x in X)
    variance = sum((x - mean) ** 2 for x in X) / d
    layernorm = [(x - mean) / math.sqrt(variance + EPS) for x in X]
    rmsnorm = [x / math.sqrt(squares / d + EPS) for x in X]
    x = torch.tensor(X, dtype=torch.float64)
    vectors = {
        "x": list(X),
        "layernorm": each_same(
            layernorm, LayerNorm(d, bias=True, eps=EPS).double()(x), "LayerNorm"
        ),
        "rmsnorm": each_same(rmsnorm, RMSNorm(d, eps=EPS).double()(x), "RMSNorm"),
        "with_sum": [x / math.sqrt(squares + EPS) for x in X],
    }
    return {
        name: [*values, sum(values) / d, math.sqrt(sum(v * v for v in values) / d)]
        for name, values in vectors.items()
    }


@cache
def _tiny(placement: str, n_layers: int = 2) -> Stack:
    spec = small("llama-7b", **HEADS, d_ff=16, norm_placement=placement, n_layers=n_layers)
    return made(spec).last_stack


@cache
def checked(placement: str) -> str:
    """Return the equation of a placement, which a block that has it was found to compute."""
    stack = _tiny(placement)
    block, x, sees = stack.blocks[0], normal(1, 5, 24), Visibility(n_queries=5, n_keys=5)
    with torch.no_grad():
        for n, parameter in enumerate(block.parameters()):
            if parameter.dim() == 1:
                parameter.add_(normal(*parameter.shape, seed=n) / 4)
        ours = placed(placement, block, x, deep_alpha(stack.spec, False))
        each_same(ours.flatten().tolist(), block(x, sees), placement)
    return EQUATIONS[placement]


def placements() -> list[dict[str, str]]:
    """List each placement with its equation."""
    return [{"name": name, "equation": checked(name)} for name in EQUATIONS]


def stream(placement: str, depths: list[int]) -> list[float]:
    """Measure the RMS of the residual stream after so many blocks, freshly initialised."""
    x, sees, seen = normal(1, 5, 24), Visibility(n_queries=5, n_keys=5), []
    with torch.no_grad():
        for block in _tiny(placement, max(depths)).blocks:
            x = block(x, sees)
            seen.append(float(x.square().mean().sqrt()))
    return [seen[n - 1] for n in depths]


def swapped_at_start() -> float:
    """Compute what a new LayerNorm gives with weight and bias in each other's place."""
    layer = LayerNorm(len(X), bias=True, eps=EPS).double()
    assert layer.weight is not None and layer.bias is not None
    plain = layer(torch.tensor(X, dtype=torch.float64))
    swapped = (plain * layer.bias + layer.weight).detach()
    return each_same([float(swapped[0])] * len(X), swapped, "weight and bias swapped")[0]


# Positions

BASE = 10000  # of the sinusoids


def base() -> int:
    """Return the base of the sinusoids."""
    return BASE


@cache
def sinusoids(width: int, n_places: int) -> list[list[float]]:
    """Compute rows of the sinusoidal table, by the formula and from the module."""
    places = range(n_places)
    hands = sinusoid_by_hand(places, width, BASE)
    run = sinusoid(torch.tensor(places), width)
    return [each_same(hand, row, "sinusoid") for hand, row in zip(hands, run, strict=True)]


@cache
def four_terms(i: int, j: int) -> dict[str, float]:
    """Split a score of tokens with added positions into the terms that sum to it."""
    width = 4
    query, key = normal(width, width, seed=1), normal(width, width, seed=2)
    contents = normal(width, seed=3), normal(width, seed=4)
    places = tuple(sinusoid(torch.tensor([i, j]), width))

    def term(a: Tensor, b: Tensor) -> float:
        return float((a @ query) @ (b @ key))

    kinds = {"content": contents, "position": places}
    found = {f"{a}_{b}": term(kinds[a][0], kinds[b][1]) for a in kinds for b in kinds}
    whole = term(contents[0] + places[0], contents[1] + places[1])
    return {**found, "score": same(sum(found.values()), whole, "terms of a score")}


@cache
def relative_terms(i: int, j: int) -> dict[str, float]:
    """Compute Transformer-XL's terms of one score; those with positions are also the module's."""
    d, head_dim = 6, 4
    with seeded():
        part = AttentionPart(n_heads=1, n_kv_heads=1, head_dim=head_dim)
        layer = Attention(part, d, relative=True).double()
    relative = layer.relative
    assert relative is not None
    with torch.no_grad():
        relative.content_bias.copy_(normal(1, head_dim, seed=5))
        relative.position_bias.copy_(normal(1, head_dim, seed=6))
        x = normal(1, i + 1, d, seed=7)
        q, k = layer.q_proj(x)[0, i], layer.k_proj(x)[0, j]
        r = relative.r_proj(sinusoid(torch.tensor([i - j]), d))[0]
        u, v = relative.content_bias[0], relative.position_bias[0]
        found = {"a": float(q @ k), "b": float(q @ r), "c": float(u @ k), "d": float(v @ r)}
        places = torch.arange(i + 1)
        run = relative(layer.q_proj(x).unsqueeze(1), places, places)[0, 0, i, j]
    same(found["b"] + found["d"], float(run), "Transformer-XL's terms")
    return {**found, "sum": sum(found.values())}


def angles(spec: ModelSpec) -> list[float]:
    """Compute each pair's angle per position as the module has it: base^(-2·i/width), scaled."""
    width, theta = rotary_width(spec), theta_of(spec, BASE)
    cpu, double = torch.device("cpu"), torch.float64
    run = speeds(width, theta, spec.rope_scaling, 0, device=cpu, dtype=double)
    if spec.rope_scaling is None:
        return each_same((theta ** (-2 * i / width) for i in range(width // 2)), run, "angle")
    scaled: list[float] = run.tolist()
    return scaled


def wavelengths(spec: ModelSpec) -> list[dict[str, object]]:
    """List some pairs of columns: how far one position turns them, after how many they are back."""
    found = angles(spec)
    last = len(found) - 1
    return [
        {"i": i, "angle": found[i], "back": f"{2 * math.pi / found[i]:,.1f}"}
        for i in sorted({0, 1, last // 2, last})
    ]


def rope_equation(spec: ModelSpec) -> str:
    """Write the angle of each pair, with the model's base and width."""
    width = rotary_width(spec)
    return f"θ_i = {int(theta_of(spec, BASE))}^(−2i/{width}),  i = 0 … {width // 2 - 1}"


def rotation(spec: ModelSpec, place: int) -> str:
    """Write the matrix that turns the second pair at a position, as the module turns it."""
    width, scaling = rotary_width(spec), spec.rope_scaling
    factor = 1.0 if scaling is None else scaling.attention_factor
    angle = place * angles(spec)[1]
    cos, sin = factor * math.cos(angle), factor * math.sin(angle)
    for start, hand in (((1.0, 0.0), (cos, sin)), ((0.0, 1.0), (-sin, cos))):
        x = torch.zeros(1, 1, 1, width, dtype=torch.float64)
        x[..., 2:4] = torch.tensor(start)
        turned = apply_rope(
            x,
            torch.tensor([place]),
            rotary_dim=width,
            theta=theta_of(spec, BASE),
            style="interleaved",
            scaling=scaling,
        )
        each_same(hand, turned[0, 0, 0, 2:4], "rotation")
    rows = ((cos, -sin), (sin, cos))
    return "\n".join("  ".join(f"{shown(v, 'four'):>8}" for v in row) for row in rows)


def score_at(spec: ModelSpec, i: int, j: int) -> float:
    """Compute the score of one rotated query at position i with one rotated key at j."""
    width = rotary_width(spec)
    q, k = normal(1, 1, 1, width), normal(1, 1, 1, width, seed=1)
    return rotated_score(q, k, i, j, theta_of(spec, BASE), spec.rope_scaling)


def slopes(n_heads: int) -> list[float]:
    """Compute ALiBi's slopes; for a power of two by hand as well."""
    run = alibi_slopes(n_heads)
    if n_heads & (n_heads - 1) == 0:
        hand = (2 ** (-8 * (i + 1) / n_heads) for i in range(n_heads))
        return each_same(hand, torch.tensor(run, dtype=torch.float64), "slope")
    return run


def slope_rows(n_heads: int, distances: Sequence[int]) -> list[list[float]]:
    """List slope and bias at some distances, head by head."""
    return [[slope, *(0.0 - slope * back for back in distances)] for slope in slopes(n_heads)]


def equations(n_heads: int) -> dict[str, str]:
    """Write the equations of the sinusoids and of ALiBi, whose numbers are those that are run."""
    return {
        "sine": f"PE(pos, 2i)     = sin(pos / {BASE}^(2i/d))",
        "cosine": f"PE(pos, 2i + 1) = cos(pos / {BASE}^(2i/d))",
        "slope": (
            f"score(i, j) = q_i·k_j/√h_d − m·(i − j),  m = 2^(−8·n/{n_heads}) for head n = 1 … "
            f"{n_heads}"
        ),
    }
