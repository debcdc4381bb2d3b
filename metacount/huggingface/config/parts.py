"""What many families share: sizes, RoPE, which layers see a window, which have experts."""

from __future__ import annotations

from metacount.errors import SpecError, shown_name
from metacount.huggingface.config.keys import Keys, is_number, words
from metacount.huggingface.config.rope import scaling_of

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from typing import Any

    from metacount.files import Json

# Kinds of RoPE scaling. They change angles, some also the scale of the scores; never a count.
ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "longrope", "su", "llama3")
ROPE_DETAILS = words(
    "rope_type type rope_theta partial_rotary_factor factor low_freq_factor high_freq_factor "
    "original_max_position_embeddings max_position_embeddings beta_fast beta_slow mscale "
    "mscale_all_dim attention_factor short_factor long_factor short_mscale long_mscale truncate "
    "llama_4_scaling_beta"
)


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


def sizes(keys: Keys) -> Json:
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
        "kind": "decoder",
        "d_model": d_model,
        "n_layers": keys.layers("num_hidden_layers"),
        "vocab_size": keys.size("vocab_size"),
        "n_heads": n_heads,
        "n_kv_heads": n_heads if n_kv_heads is None else n_kv_heads,
        "head_dim": head_dim,
        "tie_embeddings": keys.flag("tie_word_embeddings"),
    }


def biases(qkv: bool, o: bool) -> Json:
    """Set the same bias rule for queries, keys and values, and one for the output."""
    return {"q_bias": qkv, "k_bias": qkv, "v_bias": qkv, "o_bias": o}


def rope(
    keys: Keys,
    head_dim: int,
    *,
    style: str = "half",
    theta: str = "rope_theta",
    partial: str = "partial_rotary_factor",
    rounds_up: bool = True,
) -> Json:
    """Read RoPE of one kind for all layers: its parameters stand in an object or beside it.

    An odd rotated width is rounded up by most modules; others (`rounds_up` False) cannot run it.
    """
    found = rope_object(keys)
    base = _rope_number(keys, found, "rope_theta", theta)
    fields: Json = {
        "position": "rope",
        "rope_style": style,
        "rope_theta": base,
        "rope_scaling": scaling_of(keys, found),
    }
    if partial in keys.defaults:
        factor = _rope_number(keys, found, "partial_rotary_factor", partial)
        fields |= rotary(keys, head_dim, factor, rounds_up)
    else:
        keys.fixed("partial_rotary_factor", 1.0)
        if found.get("partial_rotary_factor", 1.0) not in (1.0, None):
            keys.unmapped(
                "partial_rotary_factor",
                found["partial_rotary_factor"],
                "this family rotates whole heads",
            )
    return fields


def rotary(keys: Keys, head_dim: int, factor: float, rounds_up: bool) -> Json:
    """Compute `rotary_dim` for a share of the head; None when it is all of it."""
    if factor > 1:
        raise SpecError("partial_rotary_factor", "must be at most 1", factor, "choose 0 to 1")
    above, below = factor.as_integer_ratio()
    # a half or a quarter in whole numbers: a head_dim that is a letter stays one
    width = head_dim * above // below if below <= 64 else int(head_dim * factor)
    if width < 2:
        raise SpecError(
            "partial_rotary_factor",
            f"leaves {width} of head_dim = {head_dim}",
            factor,
            "choose a larger one",
        )
    if width % 2 and width < head_dim and rounds_up:
        # the angles are still those of the odd width
        width += 1
        keys.differs(f"transformers rotates {width} values with the angles of {width - 1}")
    return {"rotary_dim": None if width == head_dim else width}


def rope_by_layer_type(
    keys: Keys, windowed: bool, *, old_global: str, old_local: str, scaled: tuple[str, ...]
) -> Json:
    """Read RoPE of another base or scaling in windowed layers (Gemma 3, ModernBERT).

    `scaled`: the kinds of layer that an old config's one `rope_scaling` is for.
    """
    found, scaling = keys.given("rope_parameters"), keys.given("rope_scaling")
    found = {} if found is None else _checked_object(keys, "rope_parameters", found, flat=False)
    scaling = {} if scaling is None else _checked_object(keys, "rope_scaling", scaling, flat=True)
    bases, scalings = {}, {}
    for kind, old in (("full_attention", old_global), ("sliding_attention", old_local)):
        inner = found.get(kind)
        inner = {} if inner is None else _checked_object(keys, "rope_parameters", inner, flat=True)
        inner = {**inner, **scaling} if kind in scaled else inner
        if inner.get("partial_rotary_factor", 1.0) != 1.0:
            keys.unmapped(
                "partial_rotary_factor",
                inner["partial_rotary_factor"],
                "this family rotates whole heads",
            )
        bases[kind] = _rope_number(keys, inner, "rope_theta", old)
        scalings[kind] = scaling_of(keys, inner, nested=True)
    full, local = "full_attention", "sliding_attention"
    fields = {"position": "rope", "rope_theta": bases[full], "rope_scaling": scalings[full]}
    if windowed and (bases[full] != bases[local] or scalings[full] != scalings[local]):
        fields |= {
            "rope_theta_windowed": bases[local],
            "rope_scaling_windowed": scalings[local],
        }
    return fields


def rope_object(keys: Keys) -> Json:
    """Read what the config says of RoPE; the older key goes before the newer."""
    scaling, found = keys.given("rope_scaling"), keys.given("rope_parameters")
    name = "rope_scaling" if scaling else "rope_parameters"
    value = scaling or found
    return {} if value is None else _checked_object(keys, name, value, flat=True)


def _checked_object(keys: Keys, name: str, value: object, *, flat: bool) -> Json:
    if not isinstance(value, dict):
        raise SpecError(name, "must be an object", value, "remove it")
    known = ROPE_DETAILS if flat else frozenset(["full_attention", "sliding_attention"])
    for key in value:
        if key not in known:
            keys.unmapped(name, {key: value[key]}, f"remove {shown_name(key)}")
    if not isinstance(value.get("rope_type", ""), str):
        keys.unmapped(name, {"rope_type": value["rope_type"]}, "remove rope_type")
    kind = value.get("rope_type") or value.get("type") or "default"
    if kind not in ROPE_TYPES:
        keys.unmapped(name, {"rope_type": kind}, f"choose one of {', '.join(ROPE_TYPES)}")
    return value


def _rope_number(keys: Keys, found: Json, name: str, outside: str) -> float:
    """Read a number from the object when it stands there,
    else from the key beside it, else the default.
    """
    beside = keys.number(outside)
    value = found.get(name, beside)
    if not is_number(value) or not 0 < value < 1e12:
        raise SpecError(name, "must be a positive number", value, "choose one below 1e12")
    return float(value)


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


def moe_layout(
    keys: Keys, name: str, stacks: list[list[bool]], *, first: int = 0, every: int = 1
) -> Json | None:
    """Find `n_dense_layers`, `moe_every`,
    `moe_offset` of the layers with experts; None without any.

    `first` and `every` are tried before others, so that a regular config keeps its own numbers.
    """
    if not any(map(any, stacks)):
        return None
    for n_dense, step, offset in [(first, every, 0), *_guesses(stacks)]:
        if all(
            on == (i >= n_dense and (i + 1 - offset) % step == 0)
            for stack in stacks
            for i, on in enumerate(stack)
        ):
            shift = {"moe_offset": offset} if offset else {}
            return {"n_dense_layers": n_dense, "moe_every": step, **shift}
    layers = [[i for i, on in enumerate(stack) if on] for stack in stacks]
    keys.unmapped(name, layers, "layers with experts must be every n-th one, after the dense ones")


def _guesses(stacks: list[list[bool]]) -> list[tuple[int, int, int]]:
    guesses = []
    for stack in stacks:
        found = [i for i, on in enumerate(stack) if on]
        if len(found) > 1:
            step = found[1] - found[0]
            guesses += [(0, step, 0), (found[0], step, 0), (0, step, (found[0] + 1) % step)]
        elif found:
            guesses += [(found[0], 1, 0), (0, found[0] + 1, 0)]
    return guesses
