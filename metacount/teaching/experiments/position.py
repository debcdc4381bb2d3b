"""Positions: tables, sinusoids, relative terms, rotations and slopes."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from metacount.modules import Attention, apply_rope, sinusoid
from metacount.modules.position import alibi_slopes, speeds
from metacount.spec.attention import Attention as AttentionPart
from metacount.teaching.counts import rotary_width, theta_of
from metacount.teaching.experiments.modules import (
    each_same,
    normal,
    rotated_score,
    same,
    seeded,
    sinusoid_by_hand,
)
from metacount.teaching.texts import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from metacount.spec import ModelSpec

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
        made = Attention(part, d, relative=True).double()
    relative = made.relative
    assert relative is not None
    with torch.no_grad():
        relative.content_bias.copy_(normal(1, head_dim, seed=5))
        relative.position_bias.copy_(normal(1, head_dim, seed=6))
        x = normal(1, i + 1, d, seed=7)
        q, k = made.q_proj(x)[0, i], made.k_proj(x)[0, j]
        r = relative.r_proj(sinusoid(torch.tensor([i - j]), d))[0]
        u, v = relative.content_bias[0], relative.position_bias[0]
        found = {"a": float(q @ k), "b": float(q @ r), "c": float(u @ k), "d": float(v @ r)}
        places = torch.arange(i + 1)
        run = relative(made.q_proj(x).unsqueeze(1), places, places)[0, 0, i, j]
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
