"""The small readers that the rows of model types are made of.

A part reads some keys, given the fields of the spec so far, and returns more fields. A function of
these two is a part, a call in a row makes one, and a name in capitals is one that is made, or
several in a tuple.
"""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.huggingface.config.keys import Keys
from metacount.huggingface.config.rope import (
    latent_scale,
    rope_by_layer_type,
    rope_object,
    rotation,
)

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from metacount.files import Json
    from metacount.huggingface.config.row import Part

FULL_OR_SLIDING = ("full_attention", "sliding_attention")
TORCH_EPS = 1e-5  # where a family's LayerNorm takes torch's default
OFFSET = 2  # rows of a position table before the first position (fairseq's padding)
LATENT_EPS = 1e-6  # of the norms over the latents, whatever rms_norm_eps says


def divided(name: str, width: int, n_heads: int) -> int:
    """Compute the width of one head where heads share the model's width."""
    if width % n_heads:
        raise SpecError(
            name,
            f"must divide the width {width}: {width} % {n_heads} = {width % n_heads}",
            n_heads,
            f"choose a divisor of {width}",
        )
    return width // n_heads


def nullable_size(keys: Keys, name: str) -> int | None:
    """Read a size that may be null only where transformers' own default is."""
    return keys.optional_size(name) if keys.defaults[name] is None else keys.size(name)


def trunk(keys: Keys, layers: str = "num_hidden_layers") -> Json:
    """Read what every decoder has: its width, its layers, its tables."""
    return {
        "kind": "decoder",
        "d_model": keys.size("hidden_size"),
        "n_layers": keys.layers(layers),
        "vocab_size": keys.size("vocab_size"),
        "tie_embeddings": keys.flag("tie_word_embeddings"),
    }


def sizes(keys: Keys, _: Json) -> Json:
    """Read sizes under LLaMA's names;
    `head_dim` and `num_key_value_heads` where the family has them.

    Without `head_dim`, heads share the width; a family that has the key lets a remainder fall.
    """
    d_model, n_heads = keys.size("hidden_size"), keys.size("num_attention_heads")
    if "head_dim" not in keys.defaults:
        head_dim = divided("num_attention_heads", d_model, n_heads)
    else:
        given = nullable_size(keys, "head_dim")
        head_dim = max(1, d_model // n_heads) if given is None else given
    n_kv_heads = None
    if "num_key_value_heads" in keys.defaults:
        n_kv_heads = nullable_size(keys, "num_key_value_heads")
    return {
        **trunk(keys),
        "n_heads": n_heads,
        "n_kv_heads": n_heads if n_kv_heads is None else n_kv_heads,
        "head_dim": head_dim,
    }


def biases(qkv: bool, o: bool) -> Json:
    """Set the same bias rule for queries, keys and values, and one for the output."""
    return {"q_bias": qkv, "k_bias": qkv, "v_bias": qkv, "o_bias": o}


def indices(name: str, value: object) -> list[int]:
    """Check that a key's value is a list of whole numbers."""
    if not isinstance(value, list) or any(type(i) is not int for i in value):
        raise SpecError(name, "must be a list of whole numbers", value, "remove it")
    return value


def shortest_period(letters: str) -> str:
    """Find the shortest text that, repeated, gives `letters` (the last repetition may be cut).

    >>> shortest_period("LLGLLGL"), shortest_period("LLLL"), shortest_period("LLG")
    ('LLG', 'L', 'LLG')
    """
    # Knuth-Morris-Pratt: the longest border of every prefix, in linear time
    border = [0] * len(letters)
    for i in range(1, len(letters)):
        length = border[i - 1]
        while length and letters[i] != letters[length]:
            length = border[length - 1]
        border[i] = length + (letters[i] == letters[length])
    return letters[: len(letters) - border[-1]]


# What older configs call a kind of layer, and transformers reads as the newer name.
RENAMED_LAYERS = {
    "attention": "full_attention",
    "mamba": "linear_attention",
    "deepseek_sparse_attention": "indexed_attention",
}


def named_layers(keys: Keys) -> Any:
    """Read `layer_types` with today's names of the kinds; None when it is left out."""
    types = keys.given("layer_types")
    if not isinstance(types, list):
        return types
    return [RENAMED_LAYERS.get(t, t) if isinstance(t, str) else t for t in types]


def layer_types(keys: Keys, n_layers: int, default: list[str], allowed: tuple[str, ...]) -> str:
    """Write one letter a layer: L where `layer_types` has `allowed[1]`,
    G where it has `allowed[0]`.
    """
    types = named_layers(keys)
    types = default if types is None else types
    if not isinstance(types, list):
        raise SpecError("layer_types", "must be a list", types, "remove it")
    if len(types) != n_layers:
        raise SpecError(
            "layer_types", f"must have one item a layer: {n_layers}", len(types), "remove it"
        )
    for item in types:
        if item not in allowed:
            keys.unmapped("layer_types", item, f"choose {' or '.join(allowed)}")
    return "".join("GL"[allowed.index(item)] for item in types)


def windows(letters: str, window: int | None, *, kind: str = "sliding") -> Json:
    """Build the spec's window fields; nothing when no layer is windowed."""
    if "L" not in letters:
        return {}
    return {"window": window, "window_kind": kind, "window_pattern": shortest_period(letters)}


def nope_every(keys: Keys, name: str, rotates: list[bool]) -> Json:
    """Express as an interval which layers go without RoPE."""
    if all(rotates):
        return {}
    first = rotates.index(False) + 1
    if first == 1 and not any(rotates):
        return {"nope_every": 1}
    if any(on == ((i + 1) % first == 0) for i, on in enumerate(rotates)):
        keys.unmapped(
            name, [int(on) for on in rotates], "the layers without RoPE must be every n-th one"
        )
    return {"nope_every": first}


# ---- parts ----


def always(**fields: Any) -> Part:
    """Set fields that every config of the type has."""
    return lambda keys, _: fields


def size(field: str, key: str, *, lowest: int = 1) -> Part:
    """Read a field that is a whole number."""
    return lambda keys, _: {field: keys.size(key, lowest=lowest)}


def number(field: str, key: str) -> Part:
    """Read a field that is a positive number."""
    return lambda keys, _: {field: keys.number(key)}


def optional_number(field: str, key: str, *, null: float | None = None) -> Part:
    """Read a field that is a positive number, or `null` where its key is null."""

    def part(keys: Keys, _: Json) -> Json:
        value = keys.optional_number(key)
        return {field: null if value is None else value}

    return part


def flag(field: str, key: str, *, off: Any = False, on: Any = True) -> Part:
    """Read a field that is one of two values, by a key that is true or false."""
    return lambda keys, _: {field: on if keys.flag(key) else off}


def only(*, why: str = "", **allowed: object) -> Part:
    """Check keys that must have one value, or one of a tuple of them."""

    def part(keys: Keys, _: Json) -> Json:
        for name, values in allowed.items():
            keys.only(name, *(values if isinstance(values, tuple) else (values,)), why=why)
        return {}

    return part


def fixed(**allowed: object) -> Part:
    """Check keys that transformers computes or takes for granted, where they are written down."""

    def part(keys: Keys, _: Json) -> Json:
        for name, value in allowed.items():
            keys.fixed(name, value)
        return {}

    return part


def differs(what: str) -> Part:
    """Note what transformers computes and no spec says."""

    def part(keys: Keys, _: Json) -> Json:
        keys.differs(what)
        return {}

    return part


def activation(*, gated: bool, key: str = "hidden_act") -> Part:
    """Read the activation of a feed-forward of three matrices (gated) or of two."""
    return lambda keys, _: keys.activation(key, gated=gated)


def bias(qkv: str | bool, *, o: str | bool | None = None, ffn: str = "") -> Part:
    """Read the biases of attention by the keys that switch them: the output's as the others',
    unless `o` says so; and those of the feed-forward by `ffn`.
    """

    def part(keys: Keys, _: Json) -> Json:
        first = keys.flag(qkv) if isinstance(qkv, str) else qkv
        last = first if o is None else keys.flag(o) if isinstance(o, str) else o
        return {**biases(first, last), **({"ffn_bias": keys.flag(ffn)} if ffn else {})}

    return part


def rms_norm(eps: str = "rms_norm_eps", **fields: Any) -> Part:
    """Read an RMSNorm, by the key of its epsilon."""
    return lambda keys, _: {"norm": "rmsnorm", "norm_eps": keys.number(eps), **fields}


def layer_norm(eps: str | float, **fields: Any) -> Part:
    """Read a LayerNorm with weight and bias, by the key of its epsilon or with a fixed one."""

    def part(keys: Keys, _: Json) -> Json:
        value = keys.number(eps) if isinstance(eps, str) else eps
        return {"norm": "layernorm", "norm_bias": True, "norm_eps": value, **fields}

    return part


def rope(
    *,
    style: str = "half",
    theta: str = "rope_theta",
    partial: str = "partial_rotary_factor",
    rounds_up: bool = True,
) -> Part:
    """Read RoPE of one kind for all layers."""
    return lambda keys, fields: rotation(
        keys, fields["head_dim"], style=style, theta=theta, partial=partial, rounds_up=rounds_up
    )


def rope_by_kind(old_local: str = "rope_local_base_freq", scaled: tuple[str, ...] = ()) -> Part:
    """Read RoPE of another base or scaling in windowed layers, which are known by now."""
    return lambda keys, fields: rope_by_layer_type(
        keys, "window" in fields, old_global="rope_theta", old_local=old_local, scaled=scaled
    )


def rope_unless_given(**parameters: Any) -> Part:
    """Take these parameters of RoPE where a config has none."""

    def part(keys: Keys, _: Json) -> Json:
        if not keys.data.get("rope_scaling") and keys.data.get("rope_parameters") is None:
            keys.data["rope_parameters"] = dict(parameters)
        return {}

    return part


def all_windows(keys: Keys, _: Json) -> Json:
    """Read `sliding_window`, where it is not null, as the window of every layer."""
    window = keys.optional_size("sliding_window")
    return {} if window is None else windows("L", window)


def checked_windows(keys: Keys, letters: str, window: int | None) -> Json:
    """Build the window's fields; `layer_types` that ask for a window need one."""
    if "L" in letters and window is None:
        keys.unmapped("layer_types", "sliding_attention", "set sliding_window and use it")
    return windows(letters, window)


def letters_where(keys: Keys, fields: Json, windowed: Callable[[int], bool]) -> str:
    """Write L for a layer with a window: those that `layer_types`, or else `windowed`, names."""
    n_layers = fields["n_layers"]
    default = [FULL_OR_SLIDING[windowed(i)] for i in range(n_layers)]
    return layer_types(keys, n_layers, default, FULL_OR_SLIDING)


def windows_where(windowed: Callable[[int], bool]) -> Part:
    """Read a window in the layers that `layer_types`, or else `windowed`, names."""

    def part(keys: Keys, fields: Json) -> Json:
        letters = letters_where(keys, fields, windowed)
        return checked_windows(keys, letters, keys.optional_size("sliding_window"))

    return part


def windows_from(switch: str = "use_sliding_window", *, lowest: int = 0) -> Part:
    """Apply Qwen's rule: where `switch` is on (or there is none), a window from layer
    `max_window_layers` on, or where `layer_types` has one.
    """

    def part(keys: Keys, fields: Json) -> Json:
        first = keys.size("max_window_layers", lowest=0)
        window = keys.optional_size("sliding_window", lowest=lowest)
        if switch and not keys.flag(switch):
            window = None
        letters = letters_where(keys, fields, lambda i: window is not None and i >= first)
        return checked_windows(keys, letters, window)

    return part


def scales(keys: Keys, _: Json) -> Json:
    """Read Granite's four multipliers; its logits are divided, ours multiplied."""
    return {
        "attention_scale": keys.number("attention_multiplier"),
        "embedding_scale": keys.number("embedding_multiplier"),
        "residual_scale": keys.number("residual_multiplier"),
        "logit_scale": 1 / keys.number("logits_scaling"),
    }


def latents(keys: Keys) -> Json:
    """Read the sizes of MLA, which has as many keys and values as queries."""
    n_heads, eps = keys.size("num_attention_heads"), keys.number("rms_norm_eps")
    keys.only("num_key_value_heads", None, n_heads, why="every head has a key and a value")
    return {
        "attention": "mla",
        "n_heads": n_heads,
        "q_lora_rank": keys.optional_size("q_lora_rank"),
        "kv_lora_rank": keys.size("kv_lora_rank"),
        "qk_nope_head_dim": keys.size("qk_nope_head_dim"),
        "qk_rope_head_dim": keys.size("qk_rope_head_dim"),
        "mla_bias": keys.flag("attention_bias"),
        "latent_norm_eps": None if eps == LATENT_EPS else LATENT_EPS,
    }


def latent(
    *,
    interleaved: bool | str = False,
    layers: str = "num_hidden_layers",
    width: str = "intermediate_size",
) -> Part:
    """Read sizes, MLA, gated FFN and RMSNorm; `layers` and `width` are the keys of these sizes.

    Rotated values are interleaved, or in halves; `interleaved` may be the key that says so.
    """

    def part(keys: Keys, _: Json) -> Json:
        pairs = keys.flag(interleaved) if isinstance(interleaved, str) else interleaved
        found = latents(keys)
        rope_dim, nope_dim = found["qk_rope_head_dim"], found["qk_nope_head_dim"]
        if keys.given("head_dim") is not None:
            keys.size("head_dim")  # written by transformers, and read for RoPE alone
        turned = rotation(keys, rope_dim, style="interleaved" if pairs else "half")
        return {
            **trunk(keys, layers),
            **found,
            "attention_scale": latent_scale(keys, rope_object(keys), nope_dim + rope_dim),
            "d_ff": keys.size(width),
            **GATED(keys, {}),
            **RMS(keys, {}),
            **turned,
        }

    return part


D_FF = size("d_ff", "intermediate_size")
GATED, UNGATED = activation(gated=True), activation(gated=False)
RMS = rms_norm()
BLOCK = (sizes, D_FF, GATED, RMS)  # of LLaMA
ROPE = rope()
BIAS = bias("attention_bias")
FFN_BIAS = flag("ffn_bias", "mlp_bias")
HEAD_NORM = always(qk_norm="head")
POST_NORM = always(norm_placement="post_branch", qk_norm="full")  # of OLMo 2
V_HEAD = size("v_head_dim", "v_head_dim")
