"""Attention: scores, mask and softmax executed; MHA, GQA, MQA and MLA with their caches."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

import torch

from metacount.formulas import masks, model, sublayers
from metacount.formulas.tape import params_of
from metacount.modules import LatentAttention, ScaledDotProduct, Visibility
from metacount.spec import DTYPE_BYTES, Request
from metacount.spec.attention import LatentAttention as LatentPart
from metacount.teaching.experiments import normal
from metacount.teaching.page import Exercise, asked, closed, matrix, rows, same
from metacount.teaching.texts import shown
from metacount.teaching.topics.block import vectors_left_out
from metacount.textbook.count import fitted
from metacount.units import gib, share

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable

    import sympy

    from metacount.spec import ModelSpec
    from metacount.teaching.page import Here, Rows, Values

SUCH_AS = ("llama-7b", "llama2-70b", "falcon-180b", "deepseek-v3")
NEEDS = "a decoder with attention in every block and without an indexer"
# the attention that is followed by hand: 4 tokens, heads of 2 values
Q = ((1.0, 0.0), (0.0, 2.0), (1.0, 1.0), (2.0, -1.0))
K = ((1.0, 1.0), (0.0, 1.0), (2.0, 0.0), (1.0, -1.0))
V = ((1.0, 0.0), (0.0, 1.0), (2.0, 2.0), (-1.0, 1.0))
LENGTHS = (512, 2048, 8192, 32768, 131072)
# MLA of a model with heads of h_d, in the proportions of DeepSeek-V2
LATENT, ROTATED = 4, Fraction(1, 2)
GROUP = 4  # query heads for each pair of key and value, at least, where the model has no groups
TILE = 16384  # tokens of the caches that are laid beside each other


def fits(spec: ModelSpec) -> bool:
    """Tell whether every block keeps keys and values: an encoder keeps nothing, a hybrid's few."""
    decodes = spec.kind != "encoder" and spec.attention != "none"
    return bool(decodes and spec.last_stack.uniform and spec.n_index_heads is None)


@cache
def followed() -> dict[str, list[list[float]]]:
    """Compute scores, weights and outputs in plain arithmetic; the outputs are the module's too."""
    scale = 1 / math.sqrt(len(Q[0]))
    scores = [[scale * sum(a * b for a, b in zip(q, k, strict=True)) for k in K] for q in Q]
    weights = []
    for i, row in enumerate(scores):
        powers = [math.exp(s) if j <= i else 0.0 for j, s in enumerate(row)]
        weights.append([p / sum(powers) for p in powers])
    outputs = [
        [sum(w * v[c] for w, v in zip(row, V, strict=True)) for c in range(len(V[0]))]
        for row in weights
    ]
    n = len(Q)
    core = ScaledDotProduct(scale=scale)
    q, k, v = (torch.tensor([[each]], dtype=torch.float64) for each in (Q, K, V))
    run = core(q, k, v, Visibility(n_queries=n, n_keys=n))[0, 0].tolist()
    for hand_row, run_row in zip(outputs, run, strict=True):
        for hand, ran in zip(hand_row, run_row, strict=True):
            same(hand, ran, "attention")
    return {"scores": scores, "weights": weights, "outputs": outputs}


def grid(here: Here) -> Rows:
    """List query by query: scores, the masked ones as dashes, then the weights and the output."""
    found = followed()
    table = []
    for i, (scores, weights, output) in enumerate(
        zip(found["scores"], found["weights"], found["outputs"], strict=True)
    ):
        cells = [shown(s, "fixed") if j <= i else "–" for j, s in enumerate(scores)]
        cells += [shown(w, "fixed") for w in weights]
        table.append((str(i + 1), *cells, f"({', '.join(shown(v, 'fixed') for v in output)})"))
    return table


def head_width(spec: ModelSpec) -> int:
    """Return the width of a head, of its values in MLA."""
    return int(spec.head_dim or spec.v_head_dim)


def whole(spec: ModelSpec) -> int:
    """Count the parameters of a block's attention, with its biases, norms and sinks."""
    return int(params_of(sublayers.attention_tape(spec).weights))


def variants(spec: ModelSpec) -> dict[str, dict[str, int]]:
    """Count parameters and cached values of a block's attention as variants: MHA, GQA, MQA, MLA.

    With the biases, norms and sinks that the model's attention has, where its kind is the model's.
    """
    d, h, width = spec.d_model, spec.n_heads, head_width(spec)
    mla = spec.kv_lora_rank is not None
    groups = {"MHA": h, "MQA": 1}
    own = spec.n_kv_heads
    between = (
        own
        if own and 1 < own < h
        else max((n for n in range(2, h) if h % n == 0 and GROUP * n <= h), default=1)
    )
    if between > 1:
        groups = {"MHA": h, "GQA": between, "MQA": 1}
    found = {
        name: {
            "h_kv": n,
            "params": int(
                sublayers.attention_params(d, h, n, width)
                if mla
                else whole(spec.substituted(n_kv_heads=n))
            ),
            "values": int(sublayers.kv_cache_values(n, width)),
        }
        for name, n in groups.items()
    }
    latent = spec.kv_lora_rank or LATENT * width
    rotated = spec.qk_rope_head_dim or int(ROTATED * width)
    found["MLA"] = {
        "h_kv": 0,
        "params": int(
            whole(spec)
            if mla
            else sublayers.mla_params(
                d,
                h,
                q_lora_rank=spec.q_lora_rank,
                kv_lora_rank=latent,
                qk_nope_head_dim=spec.qk_nope_head_dim or width,
                qk_rope_head_dim=rotated,
                v_head_dim=width,
            )
        ),
        "values": int(sublayers.mla_kv_cache_values(latent, rotated)),
    }
    return found


def beside(here: Here) -> Rows:
    """Compare the variants, at this model's width and depth."""
    spec, found = here.spec, variants(here.spec)
    full = found["MHA"]["values"]
    return rows(
        (
            name,
            each["h_kv"] or "–",
            each["params"],
            each["values"],
            gib(each["values"] * spec.n_layers * TILE * DTYPE_BYTES["bf16"]),
            share(each["values"], full),
        )
        for name, each in found.items()
    )


def lengths(here: Here) -> Rows:
    """Count the FLOPs of one block's attention by length:
    the part with matrices, the part between tokens.
    """
    found = []
    for n in LENGTHS:
        whole = _flops(here.spec, n, n * n)
        matrices = _flops(here.spec, n, 0)
        pairs = whole - matrices
        found.append((n, shown(matrices, "flops"), shown(pairs, "flops"), share(pairs, whole)))
    return rows(found)


def _flops(spec: ModelSpec, n: int, pairs: int) -> int:
    by_role = sublayers.self_attention_flops(
        spec, batch_size=1, n_queries=n, n_keys=n, n_pairs=pairs, absorbed=False
    )
    return int(sum(by_role.values()))


def shapes(here: Here) -> Rows:
    """List every step with its shape in letters and in numbers, for the default workload."""
    spec, run = here.spec, fitted(here.spec, Request())
    sizes = {
        "B": run.batch_size,
        "S": run.seq_len,
        "d": spec.d_model,
        "h": spec.n_heads,
        "h_kv": spec.n_kv_heads or spec.n_heads,
        "h_d": head_width(spec),
        "d_n + d_r": (spec.qk_nope_head_dim or 0) + (spec.qk_rope_head_dim or 0),
        "d_v": spec.v_head_dim,
    }
    mla = spec.kv_lora_rank is not None
    query, value, heads = ("d_n + d_r", "d_v", "h") if mla else ("h_d", "h_d", "h_kv")
    root = f"√({query})" if mla else f"√{query}"
    scale = f"/{root}" if spec.attention_scale is None else f"·{spec.attention_scale:.4g}"
    sink, cap = spec.attention_sinks, spec.attention_softcap
    steps = [
        ("x", ("B", "S", "d")),
        (f"Q = x·W_Qᵀ{' + b_Q' if spec.q_bias else ''}", ("B", "h", "S", query)),
        (f"K = x·W_Kᵀ{' + b_K' if spec.k_bias else ''}", ("B", heads, "S", query)),
        (f"V = x·W_Vᵀ{' + b_V' if spec.v_bias else ''}", ("B", heads, "S", value)),
        ("Q = Norm(Q), K = Norm(K)", ("B", "h", "S", query) if spec.qk_norm != "none" else ()),
        (f"scores = Q·Kᵀ{scale}", ("B", "h", "S", "S")),
        (f"scores = {cap:g}·tanh(scores/{cap:g})" if cap else "", ("B", "h", "S", "S")),
        (f"A = softmax(mask({'[scores, sink]' if sink else 'scores'}))", ("B", "h", "S", "S")),
        ("context = A·V", ("B", "h", "S", value)),
        ("context = context ⊙ σ(gate)" if spec.output_gate else "", ("B", "h", "S", value)),
        (f"y = concat(heads)·W_Oᵀ{' + b_O' if spec.o_bias else ''}", ("B", "S", "d")),
    ]
    return [
        (step, f"[{', '.join(names)}]", str([sizes[name] for name in names]))
        for step, names in steps
        if step and names
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
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = LatentAttention(part, d).double()
    x, sees = normal(1, 6, d), Visibility(n_queries=6, n_keys=6)
    with torch.no_grad():
        apart = (made(x, sees) - made(x, sees, absorbed=True)).abs().max()
    return same(0.0, float(apart), "absorbed MLA")


def own(here: Here) -> int:
    """Count the values that one token of the model leaves in a block's cache."""
    return int(model.kv_cache_values(here.spec))


def _exercise(here: Here) -> Exercise:
    return asked(here.spec, "kv_cache_bytes")


def _single(here: Here) -> Exercise:
    """Make the exercise: the parameters with one key/value head."""
    spec = here.spec
    settings: tuple[str, ...] = ()
    if spec.kv_lora_rank is None and spec.n_kv_heads > 1:
        spec, settings = spec.replace(n_kv_heads=1), ("n_kv_heads=1",)
    return Exercise(formula=closed(spec, "params"), settings=settings)


def _mla(name: str) -> Callable[[Here], int]:
    return lambda here: variants(here.spec)["MLA"][name]


VALUES: Values = {
    "shapes": shapes,
    "grid": grid,
    "Q": matrix(Q),
    "K": matrix(K),
    "V": matrix(V),
    "tokens": len(Q),
    "small_width": len(Q[0]),
    "variants": beside,
    "tile": TILE,
    "n_kv_heads": lambda here: here.spec.n_kv_heads or here.spec.n_heads,
    "group": lambda here: here.spec.n_heads // (here.spec.n_kv_heads or here.spec.n_heads),
    "own": own,
    "own_bytes": lambda here: model.kv_cache_bytes_per_token(
        here.spec, bytes_per_value=DTYPE_BYTES["bf16"]
    ),
    "is_mla": lambda here: here.spec.kv_lora_rank is not None,
    "mla_values": _mla("values"),
    "latent": lambda here: here.spec.kv_lora_rank or LATENT * head_width(here.spec),
    "rotated": lambda here: here.spec.qk_rope_head_dim or int(ROTATED * head_width(here.spec)),
    "mha_values": lambda here: variants(here.spec)["MHA"]["values"],
    "cache_form": lambda here: _written(sublayers.kv_cache_values, "h_kv", "h_d"),
    "mla_form": lambda here: _written(sublayers.mla_kv_cache_values, "d_c", "d_r"),
    "sinks": lambda here: here.spec.attention_sinks,
    "softcap": lambda here: here.spec.attention_softcap,
    "extras": lambda here: (
        whole(here.spec) != sublayers.self_attention_params(vectors_left_out(here.spec))
    ),
    "windowed": lambda here: here.spec.window is not None,
    "kept": lambda here: Fraction(masks.causal_pairs(TILE), TILE**2),
    "gap": lambda here: absorbed_gap(),
    "lengths": lengths,
    "answer": _exercise,
    "answer_single": _single,
}


def _written(formula: Callable[..., sympy.Expr], *letters: str) -> str:
    import sympy

    from metacount.algebra.writing import in_letters

    return in_letters(formula(*map(sympy.Symbol, letters)))
