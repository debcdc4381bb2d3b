"""Every tensor of a model by its path in the reference module."""

from __future__ import annotations

from metacount.formulas import altup, around, ends, indexed, sublayers
from metacount.formulas.dim import is_zero
from metacount.formulas.terms import Weight
from metacount.spec import ModelSpec
from metacount.spec.field import altered
from metacount.spec.stack import SHARING, WITH_ATTENTION, WITH_DENSE, WITH_EXPERTS, WITH_STATE

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Iterator

    from metacount.spec.stack import Stack

ATTENTION, CROSS, FFN = "self_attn", "cross_attn", "mlp"
# The norms before and after each branch of a block, by placement.
PRE = {
    ATTENTION: ("input_layernorm", ""),
    CROSS: ("cross_attention_layernorm", ""),
    FFN: ("post_attention_layernorm", ""),
}
POST = {
    ATTENTION: ("", "self_attention_layernorm"),
    CROSS: ("", "cross_attention_layernorm"),
    FFN: ("", "feedforward_layernorm"),
}
PLACED = {
    "pre": PRE,
    "stream": PRE,
    "post": POST,
    "deep": POST,
    "sandwich": {
        ATTENTION: ("input_layernorm", "post_attention_layernorm"),
        CROSS: ("pre_cross_attention_layernorm", "post_cross_attention_layernorm"),
        FFN: ("pre_feedforward_layernorm", "post_feedforward_layernorm"),
    },
    "post_branch": {
        ATTENTION: ("", "post_attention_layernorm"),
        CROSS: ("", "post_cross_attention_layernorm"),
        FFN: ("", "post_feedforward_layernorm"),
    },
    "parallel": {ATTENTION: ("input_layernorm", ""), FFN: ("", "")},
    "parallel_two": {
        ATTENTION: ("input_layernorm", ""),
        FFN: ("post_attention_layernorm", ""),
    },
}
# What the formulas of a mixer name without its module, and what is a parameter of that itself.
OWNERS = {
    "mamba": "mamba.",
    "mamba2": "mamba.",
    "gated_delta": "linear_attn.",
    "kimi_delta": "linear_attn.",
    "lightning": "linear_attn.",
}
BARE = ("dt_bias", "A_log", "D")
OF_FORGETTING = ("dt_bias", "A_log", "f_a_proj", "f_b_proj")
OF_STACK = ("embed_queries.", "embed_proj.")  # of the ends, but inside the stack
LAYERS, STORED = "layers", "shared_blocks"


def norms_of_block(spec: ModelSpec, index: int, *, cross: bool) -> dict[str, tuple[str, str]]:
    """Name the norms before and after each branch of one block; "" where there is none.

    >>> from metacount.catalog import entry
    >>> norms_of_block(entry("llama-7b").spec(), 0, cross=False)["mlp"]
    ('post_attention_layernorm', '')
    """
    stack, norms = spec.last_stack, spec.last_stack.norms
    mixer, placement = stack.mixer_of(index), norms.placement
    if placement == "hybrid":
        placement = "pre" if mixer == "R" else "post_branch"
    has = {ATTENTION: mixer != "N", CROSS: cross, FFN: stack.ffn_of(index) != "N"}
    found = {branch: names for branch, names in PLACED[placement].items() if has[branch]}
    if index == 0 and not norms.first:
        found[ATTENTION] = ("", found[ATTENTION][1])
    return found


def tensors_of_block(spec: ModelSpec, index: int, *, cross: bool) -> dict[str, Weight]:
    """List every tensor of one block, by its path in the block.

    Source: the functions of `sublayers`.

    >>> from metacount.catalog import entry
    >>> block = tensors_of_block(entry("llama-7b").spec(), 0, cross=False)
    >>> block["self_attn.q_proj.weight"].shape, block["input_layernorm.weight"].shape
    ((4096, 4096), (4096,))
    """
    stack = spec.last_stack
    mixer, ffn = stack.mixer_of(index), stack.ffn_of(index)
    parts: list[tuple[Weight, ...]] = []
    if mixer == SHARING:
        parts.append(sublayers.shared_use_weights(spec))
    elif mixer in WITH_ATTENTION:
        parts.append(sublayers.attention_weights(spec, borrows=stack.borrows(index)))
    if spec.has_index_layer(index):
        parts.append(indexed.index_weights(spec))
    if mixer in WITH_STATE:
        parts.append(tuple(_in_block(spec, w) for w in sublayers.recurrent_weights(spec)))
    if cross:
        parts.append(sublayers.cross_attention_weights(spec))
    if ffn in WITH_EXPERTS:
        parts.append(sublayers.mixture_weights(spec))
    if ffn in WITH_DENSE:
        parts.append(sublayers.dense_weights(spec, second=_is_second(stack, index)))
    parts.append(around.around_weights(spec))
    for names in norms_of_block(spec, index, cross=cross).values():
        parts += [sublayers.width_norm_weights(spec, name) for name in names if name]
    return {w.name: w for part in parts for w in part if not any(is_zero(n) for n in w.shape)}


def _in_block(spec: ModelSpec, weight: Weight) -> Weight:
    """Rename a tensor of a mixer that keeps a state to its path in the block."""
    owner = OWNERS.get(spec.recurrent, "")
    name, inside = weight.name, ""
    if spec.recurrent == "kimi_delta" and name in OF_FORGETTING:
        inside = "forget_gate."
    if "." not in name and name not in BARE:
        name = f"{name}.weight"
    return altered(weight, name=f"{owner}{inside}{name}")


def stack_name(spec: ModelSpec, part: Stack) -> str:
    """Name a stack as the module does: "decoder" or "encoder"."""
    return "decoder" if part is spec.decoder else "encoder"


def blocks(spec: ModelSpec) -> Iterator[tuple[str, Stack, int, bool]]:
    """Yield every block in order: path, stack, number, and whether it has cross-attention."""
    for part in spec.stacks:
        cross = spec.has_encoder and part is spec.decoder
        for index in range(part.n_layers):
            yield f"{stack_name(spec, part)}.{LAYERS}.{index}", part, index, cross


def tensors_by_path(spec: ModelSpec) -> dict[str, Weight]:
    """List every tensor of a model, by its path; a tied one once.

    Experts are one tensor [E, out, in].

    >>> from metacount.catalog import entry
    >>> tensors = tensors_by_path(entry("llama-7b").spec())
    >>> sum(weight.size for weight in tensors.values())
    6738415616
    """
    found: dict[str, Weight] = {}
    last = stack_name(spec, spec.last_stack)
    for weight in ends.end_weights(spec):
        inside = f"{last}." if weight.name.startswith(OF_STACK) else ""
        found[f"{inside}{weight.name}"] = weight
    for part in spec.stacks:
        for weight in ends.stack_end_weights(spec):
            for name in _names(weight):
                found[f"{stack_name(spec, part)}.{name}"] = altered(weight, times=1)
        for number in range(0 if part.shared is None else part.shared.n_blocks):
            for weight in sublayers.shared_block_weights(spec):
                found[f"{stack_name(spec, part)}.{STORED}.{number}.{weight.name}"] = weight
    alike: dict[object, dict[str, Weight]] = {}
    for path, part, index, cross in blocks(spec):
        apart = (cross, index == 0, part.borrows(index), _is_second(part, index))
        kind = (part.mixer_of(index), part.ffn_of(index), spec.has_index_layer(index), apart)
        if kind not in alike:
            alike[kind] = tensors_of_block(spec, index, cross=cross)
        for name, weight in alike[kind].items():
            found[f"{path}.{name}"] = weight
    return {
        path: _stored(weight)
        for path, weight in found.items()
        if not any(is_zero(n) for n in weight.shape)
    }


def _is_second(stack: Stack, index: int) -> bool:
    part = stack.feed_forward
    return part is not None and part.is_second(index)


def _names(weight: Weight) -> list[str]:
    """List a tensor's name, or the names of several that stand in a list."""
    if not weight.name.startswith(f"{altup.OUTSIDE}."):
        return [weight.name]
    name, _, kind = weight.name.rpartition(".")
    return [f"{name}.{number}.{kind}" for number in range(weight.times)]


def _stored(weight: Weight) -> Weight:
    """Return a tensor as a module stores it: experts stacked in one."""
    if weight.used is None:
        return weight
    return altered(weight, shape=(weight.times, *weight.shape), times=1, used=None, rows="")
