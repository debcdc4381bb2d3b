"""Positions: tables, sinusoids, relative terms, rotations and slopes, each executed."""

from __future__ import annotations

import math
from functools import cache

import torch

from metacount.formulas import sublayers
from metacount.modules import Attention, apply_rope, sinusoid
from metacount.modules.position import alibi_slopes, speeds
from metacount.spec import FIELDS, SEQ_LEN
from metacount.spec.attention import Attention as AttentionPart
from metacount.spec.position import Rope
from metacount.teaching.experiments import normal, rotated_score, sinusoid_by_hand
from metacount.teaching.page import after, allowed, rows, same
from metacount.teaching.parts import models
from metacount.teaching.texts import shown

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.spec import ModelSpec
    from metacount.teaching.page import Here, Rows, Values

SUCH_AS = ("llama-7b", "gpt2", "bloom-176b", "gopher-280b", "t5-small")
NEEDS = "attention"
BASE = 10000  # of the sinusoids
SMALL, PLACES = 6, (0, 1, 2, 3)  # width and positions of the table of sinusoids
QUERY, KEY = 7, 4  # query and key positions of the terms of a score
PLACE = 3  # the position that a pair is rotated to
PAIRS = ((5, 2), (105, 102), (10_005, 10_002), (5, 4), (5, 5))
SLOPED = 8  # heads whose slopes are all shown
BACK = (0, 1, 2, 3)  # distances of a row of ALiBi's bias
T5_BUCKETS = 32
LEFT_BEHIND = (
    "rotary_dim",
    "rope_theta",
    "rope_theta_windowed",
    "rope_style",
    "nope_every",
    "rope_scaling",
    "rope_scaling_windowed",
    "query_growth",
    "alibi_scale",
    "sinusoid_style",
    "n_positions",
    "position_offset",
    "n_query_positions",
)


def fits(spec: ModelSpec) -> bool:
    """Tell whether a model has attention, to which positions mean something."""
    return bool(spec.attention != "none")


def kinds(here: Here) -> Rows:
    """List each kind of position: where it acts, what it adds to this model,
    how many models have it.
    """
    spec = here.spec
    rows_of_table = spec.longest or SEQ_LEN
    head_dim = spec.head_dim or spec.v_head_dim
    added = {
        "learned": sublayers.learned_table_params(rows_of_table, spec.d_model),
        "sinusoidal": 0,
        "t5": sublayers.t5_bias_params(spec.n_buckets or T5_BUCKETS, spec.n_heads),
        "transformer_xl": spec.n_layers
        * sublayers.transformer_xl_params(spec.d_model, spec.n_heads, head_dim),
        "rope": 0,
        "alibi": 0,
    }
    return rows(
        (kind, here.say(f"acts: {kind}"), params, _users(kind)) for kind, params in added.items()
    )


@cache
def _users(kind: str) -> int:
    return sum(spec.position == kind for _, spec in models())


@cache
def sinusoids() -> Rows:
    """Compute rows of the sinusoidal table, by the formula and from the module."""
    run = sinusoid(torch.tensor(PLACES), SMALL)
    found = []
    hands = sinusoid_by_hand(PLACES, SMALL, BASE)
    for place, hand, row in zip(PLACES, hands, run.tolist(), strict=True):
        found.append(
            (
                str(place),
                *(shown(same(h, r, "sinusoid"), "four") for h, r in zip(hand, row, strict=True)),
            )
        )
    return found


@cache
def four_terms() -> dict[str, float]:
    """Split a score of tokens with added positions into the terms that sum to it."""
    width = 4
    query, key = normal(width, width, seed=1), normal(width, width, seed=2)
    tokens = {"i": normal(width, seed=3), "j": normal(width, seed=4)}
    table = sinusoid(torch.tensor([QUERY, KEY]), width)
    places = {"i": table[0], "j": table[1]}

    def term(a: torch.Tensor, b: torch.Tensor) -> float:
        return float((a @ query) @ (b @ key))

    found = {
        "content, content": term(tokens["i"], tokens["j"]),
        "content, position": term(tokens["i"], places["j"]),
        "position, content": term(places["i"], tokens["j"]),
        "position, position": term(places["i"], places["j"]),
    }
    whole = term(tokens["i"] + places["i"], tokens["j"] + places["j"])
    same(sum(found.values()), whole, "terms of a score")
    return {**found, "score": whole}


@cache
def relative_terms() -> dict[str, float]:
    """Compute Transformer-XL's terms of one score; those with positions are also the module's."""
    d, head_dim = 6, 4
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        part = AttentionPart(n_heads=1, n_kv_heads=1, head_dim=head_dim)
        made = Attention(part, d, relative=True).double()
    relative = made.relative
    assert relative is not None
    with torch.no_grad():
        relative.content_bias.copy_(normal(1, head_dim, seed=5))
        relative.position_bias.copy_(normal(1, head_dim, seed=6))
        x = normal(1, QUERY + 1, d, seed=7)
        q = made.q_proj(x)[0, QUERY]
        k = made.k_proj(x)[0, KEY]
        r = relative.r_proj(sinusoid(torch.tensor([QUERY - KEY]), d))[0]
        u, v = relative.content_bias[0], relative.position_bias[0]
        found = {"(a)": float(q @ k), "(b)": float(q @ r), "(c)": float(u @ k), "(d)": float(v @ r)}
        places = torch.arange(QUERY + 1)
        run = relative(made.q_proj(x).unsqueeze(1), places, places)[0, 0, QUERY, KEY]
    same(found["(b)"] + found["(d)"], float(run), "Transformer-XL's terms")
    return {**found, "sum": sum(found.values())}


def rope_of(spec: ModelSpec) -> tuple[int, float]:
    """Return the width that is rotated and the base:
    the model's, or the paper's for a model without RoPE.
    """
    whole = spec.qk_rope_head_dim or spec.rotary_dim or spec.head_dim
    theta = spec.positions.theta if isinstance(spec.positions, Rope) else float(BASE)
    return whole, theta


def rope_equation(spec: ModelSpec) -> str:
    """Write the angle of each pair, with the model's base and width."""
    width, theta = rope_of(spec)
    return f"θ_i = {int(theta)}^(−2i/{width}),  i = 0 … {width // 2 - 1}"


def angles(spec: ModelSpec) -> list[float]:
    """Compute each pair's angle per position as the module has it: base^(-2·i/width), scaled."""
    width, theta = rope_of(spec)
    cpu, double = torch.device("cpu"), torch.float64
    run: list[float] = speeds(width, theta, spec.rope_scaling, 0, device=cpu, dtype=double).tolist()
    if spec.rope_scaling is None:
        for i, angle in enumerate(run):
            same(theta ** (-2 * i / width), angle, "angle")
    return run


def wavelengths(here: Here) -> Rows:
    """List some pairs of columns: how far one position turns them, after how many they are back."""
    found = angles(here.spec)
    last = len(found) - 1
    chosen = sorted({0, 1, last // 2, last})
    return [(str(i), shown(found[i]), f"{2 * math.pi / found[i]:,.1f}") for i in chosen]


def rotation(here: Here) -> str:
    """Write the matrix that turns the second pair at a position, as the module turns it."""
    width, theta = rope_of(here.spec)
    scaling = here.spec.rope_scaling
    factor = 1.0 if scaling is None else scaling.attention_factor
    angle = PLACE * angles(here.spec)[1]
    cos, sin = factor * math.cos(angle), factor * math.sin(angle)
    for start, hand in (((1.0, 0.0), (cos, sin)), ((0.0, 1.0), (-sin, cos))):
        x = torch.zeros(1, 1, 1, width, dtype=torch.float64)
        x[..., 2:4] = torch.tensor(start)
        turned = apply_rope(
            x,
            torch.tensor([PLACE]),
            rotary_dim=width,
            theta=theta,
            style="interleaved",
            scaling=scaling,
        )
        for by_hand, run in zip(hand, turned[0, 0, 0, 2:4].tolist(), strict=True):
            same(by_hand, run, "rotation")
    rows_ = ((cos, -sin), (sin, cos))
    return "\n".join("  ".join(f"{shown(v, 'four'):>8}" for v in row) for row in rows_)


def scores(here: Here) -> Rows:
    """Compute scores of one rotated query with one rotated key at several pairs of positions."""
    width, theta = rope_of(here.spec)
    q, k = normal(1, 1, 1, width), normal(1, 1, 1, width, seed=1)
    found = []
    for i, j in PAIRS:
        score = rotated_score(q, k, i, j, theta, here.spec.rope_scaling)
        found.append((i, j, i - j, f"{score:.6f}"))
    return rows(found)


def slopes(n_heads: int) -> list[float]:
    """Compute ALiBi's slopes; for a power of two by hand as well."""
    run = alibi_slopes(n_heads)
    if n_heads & (n_heads - 1) == 0:
        hand = [2 ** (-8 * (i + 1) / n_heads) for i in range(n_heads)]
        return [same(h, r, "slope") for h, r in zip(hand, run, strict=True)]
    return run


def slope_rows(here: Here) -> Rows:
    """List slope and bias at some distances, head by head."""
    found = []
    for head, slope in enumerate(slopes(SLOPED), start=1):
        found.append((str(head), shown(slope), *(shown(0.0 - slope * back) for back in BACK)))
    return found


def _terms(found: dict[str, float], here: Here) -> list[tuple[str, str]]:
    named = {"(a)": "(a) q·k", "(b)": "(b) q·r", "(c)": "(c) u·k", "(d)": "(d) v·r"}
    return [
        (named.get(name) or here.say(name), shown(value, "four")) for name, value in found.items()
    ]


def changed(spec: ModelSpec) -> dict[str, object]:
    """Return the fields to change for another kind of position;
    none where only the model's own fits.
    """
    tied = spec.position in ("t5", "transformer_xl") or spec.qk_norm == "l2"
    if spec.kv_lora_rank is not None or tied:
        return {}
    new: dict[str, object] = {"position": "learned", "n_positions": SEQ_LEN}
    if spec.position == "learned":
        new = {"position": "rope"}
    # what belonged to the old kind goes back to what a model without it has
    for name in LEFT_BEHIND:
        if name not in new and getattr(spec, name) != FIELDS[name].absent:
            new[name] = FIELDS[name].absent
    return allowed(spec, new)


VALUES: Values = {
    "kinds": kinds,
    "table_rows": lambda here: here.spec.longest or SEQ_LEN,
    "kind": lambda here: here.spec.position,
    "sine": lambda here: f"PE(pos, 2i)     = sin(pos / {BASE}^(2i/d))",
    "cosine": lambda here: f"PE(pos, 2i + 1) = cos(pos / {BASE}^(2i/d))",
    "sinusoids": lambda here: sinusoids(),
    "small": SMALL,
    "i": QUERY,
    "j": KEY,
    "four_terms": lambda here: _terms(four_terms(), here),
    "relative_terms": lambda here: _terms(relative_terms(), here),
    "rotary": lambda here: rope_of(here.spec)[0],
    "theta": lambda here: int(rope_of(here.spec)[1]),
    "rope": lambda here: isinstance(here.spec.positions, Rope),
    "scaled": lambda here: here.spec.rope_scaling is not None,
    "scaling": lambda here: here.spec.rope_scaling.kind,
    "grown": lambda here: (
        here.spec.rope_scaling is not None and here.spec.rope_scaling.attention_factor != 1
    ),
    "attention_factor": lambda here: here.spec.rope_scaling.attention_factor,
    "windowed_theta": lambda here: int(here.spec.rope_theta_windowed or 0),
    "without": lambda here: here.spec.nope_every is not None,
    "partial": lambda here: (
        isinstance(here.spec.positions, Rope)
        and rope_of(here.spec)[0] != (here.spec.head_dim or rope_of(here.spec)[0])
    ),
    "rope_equation": lambda here: rope_equation(here.spec),
    "wavelengths": wavelengths,
    "place": PLACE,
    "rotation": rotation,
    "scores": scores,
    "slopes": slope_rows,
    "first_slope": lambda here: slopes(here.spec.n_heads)[0],
    "last_slope": lambda here: min(slopes(here.spec.n_heads)),
    "slope_equation": lambda here: (
        f"score(i, j) = q_i·k_j/√h_d − m·(i − j),  m = 2^(−8·n/{SLOPED}) for head n = 1 … {SLOPED}"
    ),
    "back_0": BACK[0],
    "back_1": BACK[1],
    "back_2": BACK[2],
    "back_3": BACK[3],
    "can_change": lambda here: bool(changed(here.spec)),
    "answer": lambda here: after(here.spec, changed(here.spec)),
}
