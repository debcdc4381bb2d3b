"""Attention: scores, mask and softmax followed by hand, and MLA's two ways to multiply."""

from __future__ import annotations

import math
from functools import cache

import torch

from metacount.modules import LatentAttention, ScaledDotProduct, Visibility
from metacount.spec.attention import LatentAttention as LatentPart
from metacount.teaching.experiments.modules import each_same, normal, same, seeded
from metacount.teaching.texts import matrix, shown, vector

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
        made = LatentAttention(part, d).double()
    x, sees = normal(1, 6, d), Visibility(n_queries=6, n_keys=6)
    with torch.no_grad():
        apart = (made(x, sees) - made(x, sees, absorbed=True)).abs().max()
    return same(0.0, float(apart), "absorbed MLA")
