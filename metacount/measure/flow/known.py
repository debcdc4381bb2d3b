"""Equations of torch's own small modules, shown where the operators that ran are theirs."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from metacount.measure.flow.step import Seen

# Names of projections: what they give, and the index of their matrix.
PROJECTIONS = {
    "q_proj": ("q", "q"),
    "k_proj": ("k", "k"),
    "v_proj": ("v", "v"),
    "o_proj": ("y", "o"),
    "out_proj": ("y", "o"),
    "gate_proj": ("gate", "gate"),
    "up_proj": ("up", "up"),
    "down_proj": ("y", "down"),
    "lm_head": ("logits", "head"),
    "q_a_proj": ("c_q", "DQ"),
    "q_b_proj": ("q", "UQ"),
    "kv_a_proj_with_mqa": ("[c, k_r]", "DKV"),
    "kv_b_proj": ("[k_n, v]", "UKV"),
    "r_proj": ("r", "r"),
}
PRODUCTS = frozenset(["mm", "bmm", "addmm", "mv", "addmv"])
BIASED = frozenset(["addmm", "addmv", "add"])
ELEMENTWISE: dict[str, str] = {
    "SiLU": "silu",
    "GELU": "gelu",
    "ReLU": "relu",
    "Tanh": "tanh",
    "Sigmoid": "sigmoid",
    "Softplus": "softplus",
    "Hardswish": "hardswish",
    "ReLU6": "relu6",
    "Mish": "mish",
}
NORMED = "(x − mean(x)) / √(var(x) + ε)"


def linear(seen: Seen) -> str | None:
    """Write the equation `q = x·W_qᵀ + b`, with the bias where one was added."""
    if not PRODUCTS & set(seen.operators) or set(seen.operators) - PRODUCTS - {"add"}:
        return None
    gives, index = PROJECTIONS.get(seen.name, ("y", ""))
    biased = not BIASED.isdisjoint(seen.operators)
    return f"{gives} = x·W{'_' + index if index else ''}ᵀ{' + b' if biased else ''}"


def _affine(seen: Seen, plain: str) -> str:
    module = seen.module
    scaled = f"{plain} · w" if getattr(module, "weight", None) is not None else plain
    return f"{scaled} + b" if getattr(module, "bias", None) is not None else scaled


def _ran(name: str, text: Callable[[Seen], str]) -> Callable[[Seen], str | None]:
    return lambda seen: text(seen) if seen.operators == (name,) else None


KNOWN: dict[type[nn.Module], Callable[[Seen], str | None]] = {
    nn.Linear: linear,
    nn.Embedding: _ran("embedding", lambda _: "y = row x of the table"),
    nn.LayerNorm: _ran("native_layer_norm", lambda seen: _affine(seen, f"y = {NORMED}")),
    nn.GroupNorm: _ran("native_group_norm", lambda seen: _affine(seen, f"y = {NORMED}")),
    nn.Conv1d: _ran("convolution", lambda seen: _affine(seen, "y = x ∗ W").replace(" · w", "")),
    nn.Conv2d: _ran("convolution", lambda seen: _affine(seen, "y = x ∗ W").replace(" · w", "")),
}


def of_torch(seen: Seen) -> str | None:
    """Write the equation of a module of torch's own; None for any other."""
    found = KNOWN.get(type(seen.module)) if not seen.gives else None
    if found is not None:
        return found(seen)
    word = ELEMENTWISE.get(type(seen.module).__name__)
    if word and not seen.gives and isinstance(seen.module, nn.Module) and len(seen.operators) == 1:
        return f"y = {word}(x)" if type(seen.module).__module__.startswith("torch.nn.") else None
    return None
