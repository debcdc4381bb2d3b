"""Attention followed by hand, norms and where a block has them, positions."""

from __future__ import annotations

import math
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from metacount.flow.run import flow_of
from metacount.measure.ours import measure_params
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
from metacount.modules.build import build
from metacount.modules.position import alibi_slopes, speeds
from metacount.spec import ModelSpec, Request
from metacount.spec.attention import Attention as AttentionPart
from metacount.spec.attention import LatentAttention as LatentPart
from metacount.teaching.counts import rotary_width, theta_of
from metacount.teaching.experiments.modules import (
    HEADS,
    ROUNDING,
    each_same,
    largest,
    made,
    normal,
    norms_of,
    placed,
    rotated_score,
    same,
    seeded,
    sinusoid_by_hand,
    small,
    unequal,
)
from metacount.teaching.texts import Values, matrix, shown, vector
from metacount.verify.subject import subject_in_hand

if TYPE_CHECKING:
    from collections.abc import Sequence

    from metacount.modules.model import Stack

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


def softmax_places() -> Values:
    """Find which modules of a dense model and of two mixtures run a softmax."""
    experts = {"n_experts": 4, "top_k": 2, "d_ff_expert": 8}
    latent = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4}
    latent |= {"v_head_dim": 4, "d_ff": 16, "n_dense_layers": 1, "n_groups": 2, "top_groups": 1}
    specs = {
        "a dense model (LLaMA)": small("llama-7b", d_ff=16, **HEADS),
        "a softmax router (Mixtral)": small("mixtral-8x7b", **experts, **HEADS),
        "a sigmoid router (DeepSeek-V3)": small("deepseek-v3", **experts, **latent),
    }
    runs = []
    for name, spec in specs.items():
        model, counts = build(spec), Counter[str]()
        flow = flow_of(subject_in_hand(model, name, Request()), decode=False)
        steps = [(step, step.times) for step in flow.steps]
        for step, times in steps:
            steps += [(each, times * each.times) for each in step.inside]
            if "_softmax" in step.operators:
                counts[type(model.get_submodule(step.path)).__name__] += times
        places = [f"{place} {n}" for place, n in sorted(counts.items())]
        attends, in_router = "ScaledDotProduct" in counts, "Router" in counts
        row = {"model": name, "places": places, "attends": attends, "in_router": in_router}
        runs.append({**row, "holds": attends and len(counts) == 1})
    return {
        "runs": runs,
        "in_router": any(run["in_router"] for run in runs),
        "at_output": not all(run["attends"] for run in runs),
    }


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


def divisors() -> Values:
    """Lay RMSNorm beside division by the root of the mean, and of the sum, of the squares."""
    d = 16
    x = normal(1, d)
    y, squares = RMSNorm(d, eps=EPS).double()(x).detach(), x.square()
    ways: dict[str, dict[str, float | bool]] = {}
    for name, divisor in {"mean": squares.mean(), "sum": squares.sum()}.items():
        divided = x / (divisor + EPS).sqrt()
        way = {"by": float(divisor), "length": float(divided.norm()), "first": float(divided[0, 0])}
        off = unequal(y, divided)
        ways[name] = {**way, "off": off, "fits": off < ROUNDING}
    first = {"x_0": float(x[0, 0]), "y_0": float(y[0, 0])}
    return {"d": d, "eps": EPS, "length": float(y.norm()), **first, **ways}


def layernorm_roles(scale: str, shift: str) -> Values:
    """Find what a LayerNorm multiplies with and what it adds, its weight or its bias.

    `weight` is what starts at one and is called gamma, `bias` what starts at zero: beta.
    """
    d = 16
    x, norm = normal(3, d), LayerNorm(d, bias=True, eps=EPS).double()
    vectors = {name: parameter.detach() for name, parameter in norm.named_parameters()}
    fresh, before = norm(x).detach(), {name: vector.clone() for name, vector in vectors.items()}
    for seed, each in enumerate(vectors.values()):
        each.copy_(normal(d, seed=seed + 1))
    y = norm(x).detach()
    torchs = nn.functional.layer_norm(x, (d,), vectors["weight"], vectors["bias"], EPS)
    plain = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + EPS).sqrt()
    off = {
        a: unequal(y, plain * vectors[a] + vectors[b])
        for a, b in (("weight", "bias"), ("bias", "weight"))
    }
    fits = [name for name, by in off.items() if by < ROUNDING]
    at_start = plain * before[scale] + before[shift]
    return {
        "d": d,
        "eps": EPS,
        "as_stated": scale in fits and shift != scale,
        "scale": fits[0] if fits else "",
        "off": off[scale],
        "ways": [{"scale": name, "off": by} for name, by in off.items()],
        "off_torch": unequal(y, torchs),
        "weight_starts": float(before["weight"].mean()),
        "bias_starts": float(before["bias"].mean()),
        "stated_starts": largest(at_start),
        "module_starts": largest(fresh),
        "constant_at_start": largest(at_start - at_start.mean()) < ROUNDING,
        "at_start": float(at_start.mean()),
    }


# norms that the formula of a sublayer names, the formula, and what it could be taken for
FORMULAS = {
    "deep": (1, "LayerNorm(α·x + Sublayer(x))", ("post",)),
    "sandwich": (2, "x + Norm(Sublayer(Norm(x)))", ()),
    "pre": (1, "x + Sublayer(Norm(x))", ("post",)),
    "post": (1, "Norm(x + Sublayer(x))", ("pre",)),
}


def block_norms(placement: str, stated: str) -> Values:
    """Lay a block whose norms stand somewhere beside the formula that is stated of it."""
    norm = {"norm": "layernorm", "norm_bias": True, "norm_placement": placement}
    spec = small("llama-7b", **HEADS, d_ff=16, **norm)
    block = made(spec).last_stack.blocks[0]
    x, sees = normal(1, 5, spec.d_model), Visibility(n_queries=5, n_keys=5)
    alpha = (2 * spec.n_layers) ** 0.25  # of the stated formula, DeepNet's
    n_named, _, others = FORMULAS[stated]
    norms = norms_of(block)
    with torch.no_grad():
        for n, each in enumerate(norms):
            for p, parameter in enumerate(each.parameters()):
                parameter.add_(normal(*parameter.shape, seed=2 * n + p) / 4)
        y = block(x, sees)
        off = unequal(y, placed(stated, block, x, alpha))
        apart = {name: unequal(y, placed(name, block, x)) for name in others}
    return {
        "d": spec.d_model,
        "off": off,
        "as_formula": off < ROUNDING,
        "n_stated": 2 * n_named,
        "deep": stated == "deep",
        "others": [{"formula": FORMULAS[name][1], "off": by} for name, by in apart.items()],
        "n_norms": len(norms),
        "blocks": spec.n_layers,
        "alpha": alpha,
        "others_differ": all(by > ROUNDING for by in apart.values()),
        **{f"off_{name}": by for name, by in apart.items()},
    }


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
    terms = {f"{a}_{b}": term(kinds[a][0], kinds[b][1]) for a in kinds for b in kinds}
    score = term(contents[0] + places[0], contents[1] + places[1])
    return {**terms, "score": same(sum(terms.values()), score, "terms of a score")}


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
        terms = {"a": float(q @ k), "b": float(q @ r), "c": float(u @ k), "d": float(v @ r)}
        places = torch.arange(i + 1)
        run = relative(layer.q_proj(x).unsqueeze(1), places, places)[0, 0, i, j]
    same(terms["b"] + terms["d"], float(run), "Transformer-XL's terms")
    return {**terms, "sum": sum(terms.values())}


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
    turns = angles(spec)
    last = len(turns) - 1
    return [
        {"i": i, "angle": turns[i], "back": f"{2 * math.pi / turns[i]:,.1f}"}
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


def position_params(position: str) -> Values:
    """Measure what each kind of position adds to the parameters of a model."""
    counts = {}
    for kind in ("none", "alibi", "rope", "sinusoidal", "learned"):
        sizes = {"d_ff": 16, "position": kind, "n_positions": 50 if kind == "learned" else None}
        counts[kind] = measure_params(build(small("llama-7b", **HEADS, **sizes))).params
    added = {kind: n - counts["none"] for kind, n in counts.items()}
    kinds = [{"kind": kind, "n": n, "more": f"{added[kind]:+,}"} for kind, n in counts.items()]
    own = {"without": counts["none"], "with_them": counts[position], "added": added[position]}
    return {**own, "kinds": kinds, **added}


def shifted_scores() -> Values:
    """Compute scores of rotated vectors at some distances, both positions moved equally far."""
    head_dim, shifts = 16, (0, 1, 10, 1000, 100_000)
    q, k = normal(1, 1, 1, head_dim), normal(1, 1, 1, head_dim, seed=1)
    scores = {
        distance: [rotated_score(q, k, j + distance, j) for j in shifts] for distance in (0, 3, 7)
    }
    spread = max(max(each) - min(each) for each in scores.values())
    means = [each[0] for each in scores.values()]
    between = max(means) - min(means)
    single = [rotated_score(q.float(), k.float(), j + 3, j) for j in shifts]
    coarse = max(single) - min(single)
    return {
        # angles of up to 100,000 have an absolute rounding error of 1e-11 in float64
        "of_distance": spread < 1e-9 and between > 1e-3,
        "farthest": max(shifts),
        "spread": spread,
        "between": between,
        "width": head_dim,
        "shifts": ", ".join(f"{j:,}" for j in shifts),
        "distances": [
            {"distance": distance, "scores": ", ".join(f"{s:.9f}" for s in each)}
            for distance, each in scores.items()
        ],
        "single": ", ".join(f"{s:.6f}" for s in single),
        "coarse": coarse,
        "grows": coarse > spread,
    }


def sinusoid_tables(style: str) -> Values:
    """Lay the table of positions in both of its styles beside sin and cos of pos/10000^(2i/d)."""
    d, positions = 16, (0, 1, 2, 50, 1000)
    at, half = torch.tensor(positions), torch.arange(d // 2, dtype=torch.float64)
    stated = torch.tensor(sinusoid_by_hand(positions, d), dtype=torch.float64)
    tables = {name: sinusoid(at, d, style=name) for name in ("alternating", "halves")}
    off = {name: unequal(table, stated) for name, table in tables.items()}
    # the same waves, all sines before all cosines; and those of the other style, by its formula
    moved = unequal(tables["halves"], torch.cat((stated[:, 0::2], stated[:, 1::2]), dim=-1))
    angles = at[:, None] / 10000 ** (half / (d // 2 - 1))
    own = unequal(tables["halves"], torch.cat((angles.sin(), angles.cos()), dim=-1))
    return {
        "n": len(positions),
        "farthest": positions[-1],
        "d": d,
        "by": off[style],
        "equal": off[style] < ROUNDING,  # sin of 1,000 radians has a rounding error of 1e-13
        "rows": [
            {"p": p, "values": ", ".join(f"{v:.6f}" for v in row[:4])}
            for p, row in zip(positions, tables["alternating"].tolist(), strict=True)
        ],
        "off": off,
        "own": own,
        "halves_differ": moved > ROUNDING,
        "halves_own": own < ROUNDING,
        "moved": moved,
    }
