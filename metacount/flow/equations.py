"""What each statement of our modules computes, in one line: shown only where its operators ran.

A row of `equations.tsv` is found by the class of a module, the name that a statement binds
(`return`; nothing for a module told as one step) and the operators that ran, views and copies
apart: all of the third column must have run, and none beside them and the fourth. ` | ` stands
between choices.
An equation may name attributes of the module, `{last}` (the width of the first input, which is
filled in once letters are known) and what `WORDS` writes; an empty one is not shown. What no row
fits is shown by its operators.

The recurrence of a scan is told as one step where it runs as one; where it runs in chunks, each of
its products is a step. The state is the one that a chunk or a step begins with.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from torch import nn

from metacount.flow.steps import Seen
from metacount.modules.linear import Linear
from metacount.modules.model import EmbeddingProjection, OutputHead
from metacount.modules.moe import Router
from metacount.package import read_of_package
from metacount.units import factor

# Names of projections: what they give, and the index of their matrix.
PROJECTIONS = {f"{name}_proj": (name, name) for name in ("q", "k", "v", "gate", "up", "g", "r")}
PROJECTIONS |= {"o_proj": ("y", "o"), "out_proj": ("y", "o"), "down_proj": ("y", "down")}
PROJECTIONS |= {"q_a_proj": ("c_q", "DQ"), "q_b_proj": ("q", "UQ"), "lm_head": ("logits", "head")}
PROJECTIONS |= {"kv_a_proj_with_mqa": ("[c, k_r]", "DKV"), "kv_b_proj": ("[k_n, v]", "UKV")}
PRODUCTS = frozenset(["mm", "bmm", "addmm", "mv", "addmv"])
BIASED = frozenset(["addmm", "addmv", "add"])
NORMED = "(x − mean(x)) / √(var(x) + ε)"
# Of torch's own modules: the operator that must have run, and what it computes.
OF_TORCH: dict[type[nn.Module], tuple[str, str]] = {
    nn.Embedding: ("embedding", "y = row x of the table"),
    nn.LayerNorm: ("native_layer_norm", f"y = {NORMED} · w"),
    nn.GroupNorm: ("native_group_norm", f"y = {NORMED} · w"),
    nn.Conv1d: ("convolution", "y = x ∗ W"),
    nn.Conv2d: ("convolution", "y = x ∗ W"),
}
ELEMENTWISE = frozenset(
    ["SiLU", "GELU", "ReLU", "Tanh", "Sigmoid", "Softplus", "Hardswish", "ReLU6", "Mish"]
)


def linear(seen: Seen) -> str | None:
    """Write the equation `q = x·W_qᵀ + b`, with the bias where one was added."""
    if not PRODUCTS & set(seen.operators) or set(seen.operators) - PRODUCTS - {"add"}:
        return None
    gives, index = PROJECTIONS.get(seen.name, ("y", ""))
    biased = not BIASED.isdisjoint(seen.operators)
    return f"{gives} = x·W{'_' + index if index else ''}ᵀ{' + b' if biased else ''}"


def of_torch(seen: Seen) -> str | None:
    """Write the equation of a module of torch's own; None for any other."""
    module, kind = seen.module, type(seen.module)
    if seen.gives:
        return None
    if kind is nn.Linear:
        return linear(seen)
    if kind in OF_TORCH:
        operator, text = OF_TORCH[kind]
        if seen.operators != (operator,):
            return None
        plain = text if getattr(module, "weight", None) is not None else text.removesuffix(" · w")
        return f"{plain} + b" if getattr(module, "bias", None) is not None else plain
    torchs = kind.__module__.startswith("torch.nn.") and kind.__name__ in ELEMENTWISE
    return f"y = {kind.__name__.lower()}(x)" if torchs and len(seen.operators) == 1 else None


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


def _bias(seen: Seen) -> str:
    return "" if seen.module.bias is None else " + b"


def _gated_norm(seen: Seen) -> str:
    module = seen.module
    parts = "" if module.n_groups == 1 else f" of each of {module.n_groups} groups"
    if module.before_gate:
        return f"y = x / √(mean(x²) + ε){parts} · w · silu(z)"
    return f"x = x · silu(z), y = x / √(mean(x²) + ε){parts} · w"


def _clamped(seen: Seen) -> str:
    low, high = seen.module.steps
    below = [] if low is None else [f"at least {low:g}"]
    above = [] if high is None else [f"at most {high:g}"]
    return f"Δ {', '.join(below + above)}"


def _scores(seen: Seen) -> str:
    """Write the scale of the scores, which is a root only if it is of the heads' width."""
    scale = seen.module.scale
    if scale == seen.inputs[0][-1] ** -0.5:
        return " / √{last}"
    return "" if scale == 1 else f" · {scale:.4g}"


def _activated(seen: Seen) -> str:
    module = seen.module
    word: str = module.activation
    if word == "silu" and module.swish_beta != 1.0:
        return f"x·sigmoid({module.swish_beta:g}·x)"
    return {"gelu_tanh": "gelu", "relu2": "relu²", "sigmoid": "σ"}.get(word, word)


def _applied(word: str, name: str) -> str:
    return word.replace("x", name) if "x·" in word else f"{word}({name})"


def _hidden(seen: Seen) -> str:
    """Write what a feed-forward, or one of experts, gives to its last matrix."""
    word = _activated(seen)
    if not getattr(seen.module, "gated", type(seen.module).__name__ == "GatedFeedForward"):
        return _applied(word, "up")
    if word == "clamped_swiglu":
        return "(up + 1)·gate·sigmoid(1.702·gate), both within ±7"
    return "gate · up" if word == "identity" else f"{_applied(word, 'gate')} · up"


def _residual(seen: Seen) -> str:
    """Write a residual's equation: it adds the last sublayer, or its norm, or else y."""
    module = seen.module
    names = (name for name in reversed(seen.before) if not name or name in SUBLAYERS)
    last = SUBLAYERS.get(next(names, ""), "y")
    normed = seen.before[-1:] and seen.before[-1] and seen.before[-1] not in SUBLAYERS
    added = f"norm({last})" if normed else last
    x = "norm(x)" if module.adds_to_normed else "x"
    return f"x = {factor(module.alpha)}{x} + {factor(module.residual_scale)}{added}"


def _both_branches(seen: Seen) -> str:
    scale = factor(seen.module.residual_scale)
    both = f"{scale}(attn + ffn)" if scale else "attn + ffn"
    return f"x = {factor(seen.module.alpha)}x + {both}"


def _with_positions(seen: Seen) -> str:
    """Write the equation of what is added to x: experts of the layer before, or the table."""
    if any(name.startswith("layers.") for name in seen.before):
        return "x = x + moe of the layer before"
    if len(seen.inputs) > 1:
        return "x = x + p"
    offset: int = seen.module.spec.positions.offset
    return f"row = position + {offset}" if offset else ""


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
    scale = seen.module.routed_scale
    return "" if scale == 1.0 else f"weights = {scale:g}·weights"


# What stands in braces in an equation, beside attributes of the module.
WORDS: dict[str, Callable[[Seen], Any]] = {
    "module": lambda seen: seen.module,
    "last": lambda seen: "{last}",
    "weight": _weight,
    "bias": _bias,
    "gated_norm": _gated_norm,
    "clamped": _clamped,
    "scores": _scores,
    "activated": _activated,
    "hidden": _hidden,
    "inputs": lambda seen: "[gate, up]" if seen.module.gated else "up",
    "residual": _residual,
    "both_branches": _both_branches,
    "with_positions": _with_positions,
    "embedding_scale": _embedding_scale,
    "logit_scale": _logit_scale,
    "routed": _routed,
    "short": lambda seen: "y = C · y" if "conv" in seen.before else "x = B · x",
}


class _Words(dict[str, Any]):
    """Writes a word of what was seen when it is asked for."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self._seen = seen

    def __missing__(self, name: str) -> Any:
        return WORDS[name](self._seen)


# A class whose statements are those of another.
SAME_ROWS = {"BorrowingAttention": "Attention"}


class Row(NamedTuple):
    """One equation, and what must have run for it."""

    module: str
    binds: str
    ran: frozenset[str]
    beside: frozenset[str]
    equation: str


@cache
def rows() -> dict[tuple[str, str], list[Row]]:
    """Read the table of equations, by module and what a statement binds."""
    by_class: dict[tuple[str, str], list[Row]] = {}
    for line in read_of_package("flow/equations.tsv").decode().splitlines()[1:]:
        modules, binds, choices, parallel, equation = line.split("\t")
        for module in modules.split(" | "):
            for ran in choices.split(" | "):
                needed = frozenset(ran.split())
                row = Row(module, binds, needed, needed.union(parallel.split()), equation)
                by_class.setdefault((module, binds), []).append(row)
    return by_class


def row_of(seen: Seen) -> Row | None:
    """Find the row whose operators ran, and no others."""
    ran, name = set(seen.operators), type(seen.module).__name__
    named = rows().get((SAME_ROWS.get(name, name), seen.gives), ())
    return next((row for row in named if row.ran <= ran <= row.beside), None)


LINEAR = (Linear, OutputHead, EmbeddingProjection)


def explain(seen: Seen) -> str | None:
    """Write the equation of what ran in one of our modules; None where no row fits."""
    if type(seen.module) in LINEAR and not seen.gives:
        text = linear(seen)
        of_router = text is not None and isinstance(seen.holder, Router)
        return text.replace("y = x·W", "logits = x·W_r") if text and of_router else text
    row = row_of(seen)
    return None if row is None else row.equation.format_map(_Words(seen))
