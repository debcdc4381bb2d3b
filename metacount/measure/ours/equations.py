"""What each statement of our modules computes, in one line: shown only where its operators ran.

A row is found by the class, the name that the statement binds (`return`; nothing for a module told
as one step) and the operators that ran, views and copies apart: all of the first must have run, and
none beside them and the second. What no row fits is shown by its operators.
"""

from __future__ import annotations

from metacount.measure.flow.known import linear
from metacount.measure.flow.step import HIDDEN, Row, Seen
from metacount.measure.ours.equations_of_mixers import MIXERS, SAME_ROWS, TURNS
from metacount.modules.attention import Attention, ScaledDotProduct
from metacount.modules.block import Block
from metacount.modules.ends import (
    EmbeddingProjection,
    HeadTransform,
    OutputHead,
    Pooler,
    PositionTable,
    TokenEmbedding,
    TypeTable,
)
from metacount.modules.ffn import FeedForward, GatedFeedForward
from metacount.modules.linear import Linear, Table
from metacount.modules.mla import LatentAttention
from metacount.modules.model import Model, Stack
from metacount.modules.moe import Experts, MixtureOfExperts, Router
from metacount.modules.norm import LayerNorm, RMSNorm
from metacount.modules.position import RelativeBias, RelativeProjection, RelativeScores
from metacount.notation import factor

ROTATES = "pow mul cos sin sub add"  # beside cat or stack
# What an equation of a residual calls each sublayer.
SUBLAYERS = {
    "self_attn": "attn",
    "cross_attn": "cross",
    "mlp": "ffn",
    "mamba": "mamba",
    "linear_attn": "attn",
    "mlstm_layer": "mlstm",
    "conv": "conv",
    "temporal_block": "recurrence",
}


def _weight(seen: Seen) -> str:
    module = seen.module
    if module.weight is None:
        return ""
    return " · (1 + w)" if getattr(module, "unit_offset", False) else " · w"


def _rms(seen: Seen) -> str:
    return f"y = x / √(mean(x²) + ε){_weight(seen)}"


def _layer_norm(seen: Seen) -> str:
    module = seen.module
    bias = "" if module.bias is None else " + b"
    return f"y = (x − mean(x)) / √(var(x) + ε){_weight(seen)}{bias}"


def _scores(seen: Seen) -> str:
    """Write the equation of the scores; the scale is a root only if it is of the heads' width."""
    module = seen.module
    width = seen.inputs[0][-1]
    if module.scale == width**-0.5:
        return "scores = q·kᵀ / √{last}"
    return "scores = q·kᵀ" if module.scale == 1 else f"scores = q·kᵀ · {module.scale:.4g}"


def _capped(name: str, value: float) -> str:
    return f"{name} = {value:g}·tanh({name} / {value:g})"


def _activated(seen: Seen) -> str:
    module = seen.module
    word: str = module.activation
    if word == "silu" and module.swish_beta != 1.0:
        return f"x·sigmoid({module.swish_beta:g}·x)"
    return {"gelu_tanh": "gelu", "relu2": "relu²", "sigmoid": "σ"}.get(word, word)


def _ffn(seen: Seen) -> str:
    word = _activated(seen)
    return f"hidden = {word.replace('x', 'up') if 'x·' in word else f'{word}(up)'}"


def _gated(seen: Seen) -> str:
    word = _activated(seen)
    if word == "clamped_swiglu":
        return "hidden = (up + 1)·gate·sigmoid(1.702·gate), both within ±7"
    if word == "identity":
        return "hidden = gate · up"
    acted = word.replace("x", "gate") if "x·" in word else f"{word}(gate)"
    return f"hidden = {acted} · up"


def _residual(seen: Seen) -> str:
    """Write a residual's equation: it adds the last sublayer, or its norm, or else y."""
    module = seen.module
    last = next(
        (
            SUBLAYERS.get(name, "y")
            for name in reversed(seen.before)
            if not name or name in SUBLAYERS
        ),
        "y",
    )
    normed = seen.before[-1:] and seen.before[-1] and seen.before[-1] not in SUBLAYERS
    added = f"norm({last})" if normed else last
    x = "norm(x)" if module.adds_to_normed else "x"
    return f"x = {factor(module.alpha)}{x} + {factor(module.residual_scale)}{added}"


def _both_branches(seen: Seen) -> str:
    scale = factor(seen.module.residual_scale)
    return f"x = {factor(seen.module.alpha)}x + " + (
        f"{scale}(attn + ffn)" if scale else "attn + ffn"
    )


def _with_positions(seen: Seen) -> str:
    """Write the equation of what is added to x: experts of the layer before, or the table."""
    if any(name.startswith("layers.") for name in seen.before):
        return "x = x + moe of the layer before"
    if len(seen.inputs) > 1:
        return "x = x + p"
    offset: int = seen.module.spec.positions.offset
    return f"row = position + {offset}" if offset else HIDDEN


def _embedding_scale(seen: Seen) -> str:
    scale: float = seen.module.spec.embedding.scale
    root = scale == seen.inputs[0][-1] ** 0.5
    return "x = √{last} · x" if root else f"x = {scale:.4g}·x"


def _logit_scale(seen: Seen) -> str:
    spec = seen.module.spec
    if spec.head.scale == spec.d_model**-0.5:
        return "logits = logits / √d"
    return f"logits = {spec.head.scale:.4g}·logits"


def _routed(seen: Seen) -> str:
    module = seen.module
    return HIDDEN if module.routed_scale == 1.0 else f"weights = {module.routed_scale:g}·weights"


def _rows_of(name: str) -> str:
    return f"{name} of each row: a token, once for each of its experts"


def _rope(module: type, gives: str, name: str) -> list[Row]:
    text = f"{name} = RoPE({name}, position)"
    return [Row(module, gives, f"{ROTATES} {join}", text, TURNS) for join in ("cat", "stack cat")]


ROWS: tuple[Row, ...] = (
    Row(RMSNorm, "", "pow mean add rsqrt", _rms, "mul"),
    Row(LayerNorm, "", "mean sub pow add rsqrt mul", _layer_norm),
    Row(TokenEmbedding, "", "embedding", "x = E[token]"),
    Row(TypeTable, "", "embedding", "t = E_type[type]"),
    Row(PositionTable, "", "embedding", "p = P[position]"),
    Row(Table, "", "embedding", "one value for each bucket and head"),
    # the two products of attention
    Row(ScaledDotProduct, "q", "", HIDDEN),
    Row(ScaledDotProduct, "scores", "bmm mul", _scores),
    Row(ScaledDotProduct, "scores", "div tanh mul", lambda s: _capped("scores", s.module.softcap)),
    Row(ScaledDotProduct, "scores", "add", "scores = scores + bias"),
    Row(ScaledDotProduct, "scores", "masked_fill bitwise_not",
        "scores = −∞ where the query must not see the key",
        "le ge lt sub bitwise_and bitwise_or floor_divide eq abs"),
    Row(ScaledDotProduct, "scores", "", HIDDEN),
    Row(ScaledDotProduct, "weights", "_softmax", "weights = softmax(scores)"),
    Row(ScaledDotProduct, "weights", "cat _softmax",
        "weights = softmax([scores, sink]), sink left out"),
    Row(ScaledDotProduct, "weights", "", HIDDEN),
    Row(ScaledDotProduct, "return", "bmm", "out = weights·v"),
    *(Row(Attention, n, "", f"{n} split into heads") for n in "qkv"),
    *_rope(Attention, "q", "q"), *_rope(Attention, "k", "k"),
    *(Row(Attention, n, "pow mean add rsqrt mul", f"{n} = {n} / √(mean({n}²) + ε)") for n in "qk"),
    Row(Attention, "k, v", "cat", "k, v = [cached k, k], [cached v, v]"),
    Row(Attention, "q", "add div floor log1p mul", "q = q·(1 + a·ln(1 + ⌊position / step⌋))"),
    Row(Attention, "q", "add", "q = q + u"),
    Row(Attention, "bias", "mul", "bias = bias · scale"),
    Row(Attention, "y_BSW", "", "heads joined"),
    # latent attention
    Row(LatentAttention, "q_BHSn, q_BHSP", "", "q = [q_n, q_r] of each head"),
    *_rope(LatentAttention, "q_BHSP", "q_r"),
    Row(LatentAttention, "latent_BSC, k_BSP", "", "[c, k_r]: the latent and the key to rotate"),
    *_rope(LatentAttention, "rotated_BSP", "k_r"),
    Row(LatentAttention, "kept_BTc", "cat", "kept = [norm(c), k_r]: all that a cache keeps"),
    Row(LatentAttention, "", f"{ROTATES} cat", "k_I = RoPE(k_I, position)", TURNS),
    Row(LatentAttention, "kept", "cat", "kept = [cached, kept]"),
    Row(LatentAttention, "y_BHSU", "cat", "q = [q_n, q_r], k = [k_n, k_r of all heads]"),
    Row(LatentAttention, "y_BHSU", "bmm cat", "q = [q_n·W_UK, q_r]: into the latent"),
    Row(LatentAttention, "y_BHSU", "bmm", "out = out·W_UV: out of the latent"),
    Row(LatentAttention, "y_BHSU", "", HIDDEN),
    Row(LatentAttention, "return", "", "heads joined"),
    # positions
    Row(RelativeBias, "bias_STH",
        "sub lt where", "bucket of the distance",
        "abs neg clamp clamp_min div log mul add gt le zeros_like minimum clamp_max floor_divide"),
    Row(RelativeBias, "return", "", HIDDEN),
    Row(RelativeProjection, "table", "pow div sin cos", "sines and cosines of each distance",
        "stack cat mul constant_pad_nd reciprocal"),
    Row(RelativeProjection, "r_HTK", "", "r split into heads"),
    Row(RelativeProjection, "distance_ST", "sub clamp", "distance = position − key's position"),
    Row(RelativeProjection, "q", "add", "q = q + v"),
    Row(RelativeScores, "", "bmm gather", "q·rᵀ, the column of each distance"),
    # feed-forward and experts
    *(Row(FeedForward, "hidden_BSM", ran, _ffn)
      for ran in ("relu", "gelu", "silu", "relu pow", "sigmoid", "mul sigmoid")),
    *(Row(GatedFeedForward, "hidden_BSM", ran, _gated)
      for ran in ("mul", "relu mul", "gelu mul", "silu mul", "relu pow mul", "sigmoid mul",
                  "clamp mul sigmoid add")),
    Row(Router, "logits_NE", "", HIDDEN),
    Row(Router, "probs_NE", "_softmax", "scores = softmax over all experts"),
    Row(Router, "probs_NE", "sigmoid", "scores = sigmoid of each expert"),
    Row(Router, "chosen_Nk, weights_Nk",
        "max sub abs maximum div gt masked_fill _softmax gather scatter cat",
        "the k best, one after another (SparseMixer)"),
    Row(Router, "for_choice", "add", "for the choice: scores + selection bias"),
    Row(Router, "chosen_Nk", "topk", "top-k: the k best experts of each token"),
    Row(Router, "chosen_Nk", "topk sum scatter masked_fill bitwise_not",
        "top-k: the k best experts of the G_k best groups"),
    Row(Router, "weights_Nk", "gather _softmax", "weights = softmax of the k chosen logits"),
    Row(Router, "weights_Nk", "gather", "weights = scores of the k chosen"),
    Row(Router, "weights_Nk", "sum div", "weights = weights / their sum"),
    Row(Router, "weights_Nk", "mul", _routed),
    Row(Router, "return", "mul", _routed),
    Row(Experts, "expert_R, order", "sort", "rows sorted by expert, k of them a token"),
    Row(Experts, "token_R", "floor_divide", HIDDEN),
    Row(Experts, "weight_R1", "index", _rows_of("weight")),
    Row(Experts, "x_RD", "index", _rows_of("x")),
    Row(Experts, "x_RD", "index mul", "x of each row, times its weight"),
    *(Row(Experts, "hidden", ran, lambda s: "[gate, up] = x·W of the row's expert"
          if s.module.gated else "up = x·W of the row's expert", "add") for ran in ("index bmm",)),
    Row(Experts, "gate_RM, up_RM", "", HIDDEN),
    *(Row(Experts, "hidden", ran, lambda s: _gated(s) if s.module.gated else _ffn(s))
      for ran in ("mul", "relu mul", "gelu mul", "silu mul", "relu pow mul", "sigmoid mul", "relu",
                  "gelu", "silu", "relu pow", "sigmoid",
                  "clamp mul sigmoid add")),
    Row(Experts, "y_RD", "index bmm", "y = hidden·W_down of the row's expert", "add"),
    Row(Experts, "y_RD", "mul", "y = weight · y"),
    Row(Experts, "return", "index_add", "y of each token: the sum over its k experts"),
    Row(MixtureOfExperts, "x_ND", "", "the tokens of all sequences in one list"),
    Row(MixtureOfExperts, "shared_ND", "sigmoid mul", "shared = sigmoid(gate) · shared"),
    Row(MixtureOfExperts, "y_ND", "add", "y = routed + shared"),
    Row(MixtureOfExperts, "return", "", "sequences again"),
    # blocks, stacks and ends
    *(Row(Block, "x_BSD", ran, _residual) for ran in ("add", "mul add")),
    Row(Block, "return", "add mul", _both_branches),
    Row(Stack, "x_BSD", "add", _with_positions),
    Row(Stack, "x_BSD", "pow div sin cos add", "x = x + sines and cosines of the position",
        "stack cat mul constant_pad_nd reciprocal"),
    Row(Stack, "query_BSD", "", "the query of the last layer: a position"),
    Row(Stack, "biases[windowed]", "sub abs neg mul", "bias = −slope of the head · distance"),
    Row(Model, "hidden_BSD", "mul", _embedding_scale),
    Row(Model, "hidden_BSD", "add", "x = x + t"),
    Row(Model, "return", "mul", _logit_scale),
    Row(Model, "return", "div tanh mul",
        lambda s: _capped("logits", s.module.spec.head.softcap)),
    *(Row(HeadTransform, "y", ran, lambda s: f"h = {_activated(s)}(y)")
      for ran in ("gelu", "relu", "silu")),
    Row(Pooler, "return", "", "the first token of each sequence"),
    Row(Pooler, "return", "tanh", "pooled = tanh(y)"),
    *MIXERS,
)  # fmt: skip

_BY_PLACE: dict[tuple[type, str], list[Row]] = {}
for _row in ROWS:
    _BY_PLACE.setdefault((_row.module, _row.gives), []).append(_row)

LINEAR = (Linear, OutputHead, EmbeddingProjection)


def row_of(seen: Seen) -> Row | None:
    """Find the row whose operators ran, and no others."""
    ran, kind = set(seen.operators), SAME_ROWS.get(type(seen.module), type(seen.module))
    for row in _BY_PLACE.get((kind, seen.gives), ()):
        needed = set(row.ran.split())
        if needed <= ran <= needed | set(row.beside.split()):
            return row
    return None


def explain(seen: Seen) -> str | None:
    """Write the equation of what ran in one of our modules; None where no row fits."""
    if type(seen.module) in LINEAR and not seen.gives:
        if isinstance(seen.holder, Router):
            text = linear(seen)
            return text and text.replace("y = x·W", "logits = x·W_r")
        return linear(seen)
    row = row_of(seen)
    if row is None:
        return None
    return row.text if isinstance(row.text, str) else row.text(seen)
