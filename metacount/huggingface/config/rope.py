"""RoPE of a config as fields of the spec, with transformers' defaults and precedences."""

from __future__ import annotations

import math

from metacount.errors import SpecError, shown_name, shown_value
from metacount.huggingface.config.keys import Keys, positive, words
from metacount.spec.position import RopeScaling

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeGuard

    from metacount.files import Json

    Needed = dict[str, tuple[str, Callable[[Any], bool]]]

TRAINED = "original_max_position_embeddings"
AXES = ("mrope_section", "mrope_interleaved")  # of positions in images; text has one axis
# Kinds of RoPE scaling. They change angles, some also the scale of the scores; never a count.
ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "longrope", "su", "llama3")
PROPORTIONAL = "proportional"  # of types that have an object for each kind of layer
ROPE_DETAILS = words(
    "rope_type type rope_theta partial_rotary_factor factor low_freq_factor high_freq_factor "
    "original_max_position_embeddings max_position_embeddings beta_fast beta_slow mscale "
    "mscale_all_dim attention_factor short_factor long_factor short_mscale long_mscale truncate "
    "llama_4_scaling_beta"
)


def _is_real(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float)  # true and false among them, as in Python


def _are_real(value: object) -> TypeGuard[list[float]]:
    return isinstance(value, list) and all(map(_is_real, value))


# What transformers computes the angles of a scaled RoPE with, by its type: in words, and as a test.
REAL = ("a number", _is_real)
NOT_ZERO = ("a number other than 0", lambda value: _is_real(value) and value != 0)
ABOVE_0 = ("a number above 0", lambda value: _is_real(value) and value > 0)
NEITHER_0_NOR_1 = ("a number, neither 0 nor 1", lambda v: _is_real(v) and v not in (0, 1))
ABOVE_0_NOT_1 = ("a number above 0, not 1", lambda v: _is_real(v) and v > 0 and v != 1)
REAL_OR_NULL = ("a number or null", lambda value: value is None or _is_real(value))
ABOVE_0_OR_NULL = ("a number above 0, or null", lambda value: not value or ABOVE_0[1](value))
NUMBERS = ("a list of numbers", lambda value: isinstance(value, dict) or _are_real(value))
MISSING: object = object()
NEEDED: dict[str, Needed] = {
    "linear": {"factor": REAL},
    "dynamic": {"factor": REAL},
    "llama3": {
        "factor": REAL,
        "low_freq_factor": NOT_ZERO,
        "high_freq_factor": NOT_ZERO,
        TRAINED: REAL,
    },
    "yarn": {
        "factor": REAL_OR_NULL,
        "beta_fast": ABOVE_0_OR_NULL,
        "beta_slow": ABOVE_0_OR_NULL,
        TRAINED: ABOVE_0,
    },
    "longrope": {"short_factor": NUMBERS, "long_factor": NUMBERS},
}


def rotation(
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
    parameters = rope_object(keys)
    base = _rope_number(keys, parameters, "rope_theta", theta)
    fields: Json = {
        "position": "rope",
        "rope_style": style,
        "rope_theta": base,
        "rope_scaling": scaling_of(keys, parameters),
    }
    if partial in keys.defaults:
        factor = _rope_number(keys, parameters, "partial_rotary_factor", partial)
        fields |= rotary(keys, head_dim, factor, rounds_up)
    else:
        keys.fixed("partial_rotary_factor", 1.0)
        _check_whole(keys, parameters)
    _check_numbers(keys, parameters, base, fields.get("rotary_dim") or head_dim)
    return fields


def _check_whole(keys: Keys, parameters: Json) -> None:
    if (share := parameters.get("partial_rotary_factor")) not in (1.0, None):
        keys.unmapped("partial_rotary_factor", share, "this family rotates whole heads")


def rotary(keys: Keys, head_dim: int, factor: float, rounds_up: bool) -> Json:
    """Compute `rotary_dim` for a share of the head; None when it is all of it."""
    if factor > 1:
        raise SpecError("partial_rotary_factor", "must be at most 1", factor, "choose 0 to 1")
    above, below = factor.as_integer_ratio()
    # a half or a quarter in whole numbers: a head_dim that is a letter stays one
    width = head_dim * above // below if below <= 64 else int(head_dim * factor)
    if width < 2:
        rule = f"leaves {width} of head_dim = {head_dim}"
        raise SpecError("partial_rotary_factor", rule, factor, "choose a larger one")
    if width % 2 and width < head_dim and rounds_up:
        # the angles are still those of the odd width
        width += 1
        keys.differs(f"transformers rotates {width} values with the angles of {width - 1}")
    return {"rotary_dim": None if width == head_dim else width}


def rope_by_layer_type(
    keys: Keys, pattern: str, *, old_global: str, old_local: str, scaled: tuple[str, ...]
) -> Json:
    """Read RoPE of another base or scaling in windowed layers (Gemma 3, ModernBERT), those with an
    L in `pattern`.

    `scaled`: the kinds of layer that an old config's one `rope_scaling` is for.
    """
    parameters, scaling = keys.given("rope_parameters"), keys.given("rope_scaling")
    parameters = (
        {}
        if parameters is None
        else _checked_object(keys, "rope_parameters", parameters, flat=False)
    )
    scaling = {} if scaling is None else _checked_object(keys, "rope_scaling", scaling, flat=True)
    bases, scalings = {}, {}
    letters = (("full_attention", "G", old_global), ("sliding_attention", "L", old_local))
    for kind, letter, old in letters:
        inner = parameters.get(kind)
        inner = {} if inner is None else _checked_object(keys, "rope_parameters", inner, flat=True)
        inner = {**inner, **scaling} if kind in scaled else inner
        _check_whole(keys, inner)
        bases[kind] = _rope_number(keys, inner, "rope_theta", old)
        scalings[kind] = scaling_of(keys, inner, nested=True)
        if letter in pattern:
            _check_numbers(keys, inner, bases[kind], None)
    full, local = "full_attention", "sliding_attention"
    fields = {"position": "rope", "rope_theta": bases[full], "rope_scaling": scalings[full]}
    if "L" in pattern and (bases[full] != bases[local] or scalings[full] != scalings[local]):
        fields["rope_theta_windowed"] = bases[local]
        fields["rope_scaling_windowed"] = scalings[local]
    return fields


def rope_of_kinds(keys: Keys, fields: Json, kinds: dict[str, tuple[float, float]]) -> Json:
    """Read RoPE of another base, share of a head and scaling in windowed layers, from an object for
    each kind in `rope_parameters` alone; `kinds` has the base and the share of each by default.

    The window, and the heads of layers that have one, are known by now.
    """
    parameters = keys.given("rope_parameters")
    given = (
        None
        if parameters is None
        else _checked_object(keys, "rope_parameters", parameters, flat=False)
    )
    read: list[Json] = []
    letters = fields.get("window_pattern", "G")
    for letter, (kind, (base, share)) in zip("GL", kinds.items(), strict=True):
        if letter not in letters:
            continue
        if given is not None and kind not in given:
            rule = f"must have an object for {kind}"
            raise SpecError("rope_parameters", rule, given, "give it")
        inner = {} if given is None else given[kind]
        inner = _checked_object(
            keys, "rope_parameters", inner, flat=True, types=(*ROPE_TYPES, PROPORTIONAL)
        )
        if given is not None and "rope_theta" not in inner:
            raise SpecError("rope_parameters", f"must have rope_theta for {kind}", inner, "give it")
        head_dim = fields["head_dim"] if letter == "G" else fields.get("head_dim_windowed")
        head_dim = fields["head_dim"] if head_dim is None else head_dim
        share = positive("partial_rotary_factor", inner.get("partial_rotary_factor", share))
        share = 1.0 if kind_of(inner) == PROPORTIONAL else share  # which turns some of all pairs
        read.append(
            {
                "rope_theta": positive("rope_theta", inner.get("rope_theta", base)),
                "rope_scaling": scaling_of(keys, inner, nested=True),
                "width": rotary(keys, head_dim, share, True)["rotary_dim"] or head_dim,
                "head_dim": head_dim,
            }
        )
    full, near = read[0], read[-1]
    turned: Json = {"position": "rope", "rope_style": "half", "rope_theta": full["rope_theta"]}
    turned |= {"rope_scaling": full["rope_scaling"]}
    turned["rotary_dim"] = None if full["width"] == full["head_dim"] else full["width"]
    alike = near["head_dim"] if turned["rotary_dim"] is None else turned["rotary_dim"]
    names = ("rope_theta", "rope_scaling")
    if near["width"] != alike or any(near[name] != full[name] for name in names):
        turned |= {f"{name}_windowed": near[name] for name in names}
        turned["rotary_dim_windowed"] = None if near["width"] == alike else near["width"]
    return turned


# DeepSeek-V4's kinds of RoPE: of layers with a window alone, and of those with entries.
MAIN, COMPRESSED = "main", "compress"
STATIC_TYPES = ("default", "linear", "yarn", "llama3")  # whose angles no length changes


def rope_of_entries(keys: Keys, head_dim: int, pattern: str) -> Json:
    """Read RoPE of layers with compressed entries, and its base in those with a window alone (an L
    in `pattern`): from an object for each, or from one that is for the former.

    YaRN's factor on queries and keys is 1 where a single object does not say.
    """
    scaling, parameters = keys.given("rope_scaling"), keys.given("rope_parameters")
    name, given = ("rope_scaling", scaling) if scaling else ("rope_parameters", parameters or {})
    if not isinstance(given, dict):
        raise SpecError(name, "must be an object", given, "remove it")
    share, old = keys.given("partial_rotary_factor"), keys.given("qk_rope_head_dim")
    if share is None:
        share = 64 / 512 if old is None else keys.size("qk_rope_head_dim") / head_dim
    bases = {MAIN: keys.number("rope_theta"), COMPRESSED: keys.number("compress_rope_theta")}
    if isinstance(given.get(MAIN), dict) and isinstance(given.get(COMPRESSED), dict):
        objects = {kind: given[kind] for kind in bases}
        shares = {kind: objects[kind].get("partial_rotary_factor", 1.0) for kind in bases}
        bases |= {kind: of["rope_theta"] for kind, of in objects.items() if "rope_theta" in of}
    else:
        single = {key: value for key, value in given.items() if key != "rope_theta"}
        if kind_of(single) == "yarn":
            single = {"attention_factor": 1.0, **single}
        objects, shares = {MAIN: {}, COMPRESSED: single}, dict.fromkeys(bases, share)
    used = {MAIN: "L" in pattern, COMPRESSED: bool({*pattern} & {*"SH"})}
    kinds = [kind for kind in (COMPRESSED, MAIN) if used[kind]]
    read: list[Json] = []
    for kind in kinds:
        of = _checked_object(keys, name, objects[kind], flat=True, types=STATIC_TYPES)
        width = rotary(keys, head_dim, positive("partial_rotary_factor", shares[kind]), True)
        base = positive("rope_theta", bases[kind])
        _check_numbers(keys, of, base, width["rotary_dim"] or head_dim)
        scaled = scaling_of(keys, of, nested=True)
        read.append({"rope_theta": base, "rope_scaling": scaled, **width})
    first, last = read[0], read[-1]
    if first["rotary_dim"] != last["rotary_dim"]:
        keys.unmapped("rope_parameters", given, "give both kinds one partial_rotary_factor")
    turned: Json = {"position": "rope", "rope_style": "interleaved", **first}
    if first != last:
        turned |= {f"{field}_windowed": last[field] for field in ("rope_theta", "rope_scaling")}
    return turned


def rope_object(keys: Keys) -> Json:
    """Read what the config says of RoPE; the older key goes before the newer."""
    scaling, parameters = keys.given("rope_scaling"), keys.given("rope_parameters")
    name = "rope_scaling" if scaling else "rope_parameters"
    value = scaling or parameters
    return {} if value is None else _checked_object(keys, name, value, flat=True)


def _checked_object(
    keys: Keys, name: str, value: object, *, flat: bool, types: tuple[str, ...] = ROPE_TYPES
) -> Json:
    if not isinstance(value, dict):
        raise SpecError(name, "must be an object", value, "remove it")
    known = ROPE_DETAILS if flat else frozenset(["full_attention", "sliding_attention"])
    for key in value:
        if key not in known:
            keys.unmapped(name, {key: value[key]}, f"remove {shown_name(key)}")
    if not isinstance(value.get("rope_type", ""), str):
        keys.unmapped(name, {"rope_type": value["rope_type"]}, "remove rope_type")
    kind = value.get("rope_type") or value.get("type") or "default"
    if kind not in types:
        keys.unmapped(name, {"rope_type": kind}, f"choose one of {', '.join(types)}")
    return value


def _rope_number(keys: Keys, parameters: Json, name: str, outside: str) -> float:
    outer = keys.number(outside)
    return positive(name, parameters.get(name, outer))


def scaling_of(keys: Keys, parameters: Json, *, nested: bool = False) -> RopeScaling | None:
    """Read the scaling that a checked `rope_parameters` or `rope_scaling` object asks for.

    `nested`: the object is one of several, by kind of layer. A scaling that cannot be read changes
    no count: it is left out, and the config's module is not one to load weights into.
    """
    kind = kind_of(parameters)
    if kind == "default":
        return None
    try:
        return RopeScaling(kind=kind, **_details(keys, kind, parameters, nested))
    except SpecError as error:
        keys.differs(f"RoPE scaling of type {kind} is not in the spec, for {error}")
        return None


def _check_numbers(keys: Keys, parameters: Json, base: float, width: int | None) -> None:
    """Note what transformers cannot compute the angles of `width` rotated values with."""
    kind = kind_of(parameters)
    limit = keys.data.get("max_position_embeddings", 1)  # or transformers' default, a number
    outside, inside = (
        keys.data.get(TRAINED, keys.defaults.get(TRAINED)),
        parameters.get(TRAINED, limit),
    )
    values = {"factor": MISSING, **parameters, TRAINED: inside if outside is None else outside}
    needed = dict(NEEDED.get(kind, {}))
    if kind == "yarn":
        values["rope_theta"] = base
        needed["rope_theta"] = ("other than 1", lambda theta: theta != 1)
        needed |= _of_scale(parameters, dict.fromkeys(("mscale", "mscale_all_dim"), REAL))
    if kind == "dynamic" and width == 2:
        keys.refused.append("RoPE of type dynamic must rotate more than 2 values: got 2")
    if kind == "longrope":
        factors, pairs = parameters.get("short_factor"), ((width or 0) + 1) // 2
        if pairs > 1 and _are_real(factors) and len(factors) not in (1, pairs):
            rule = f"one number, or one for each of {pairs} pairs"
            keys.refused.append(f"short_factor of RoPE must be {rule}: got {len(factors)}")
        values["factor"] = factor = parameters.get("factor")
        if parameters.get("attention_factor") is None:  # sqrt(1 + ln(factor) / ln(trained))
            needed["factor"] = REAL_OR_NULL
            if factor is None:
                needed[TRAINED] = NEITHER_0_NOR_1
            elif _is_real(factor) and factor > 1:
                needed[TRAINED] = ABOVE_0_NOT_1
    for name, (rule, holds) in needed.items():
        value = values.get(name)
        if value is MISSING:
            keys.refused.append(f"{name} of RoPE of type {kind} is missing")
        elif not holds(value):
            keys.refused.append(f"{name} of RoPE must be {rule}: got {shown_value(value)}")


def _of_scale(parameters: Json, needed: Needed) -> Needed:
    """Return what YaRN's scale needs, where it is computed by both of its weights."""
    factor = parameters.get("factor")
    computed = _is_real(factor) and factor > 1 and parameters.get("attention_factor") is None
    return needed if computed and all(map(parameters.get, needed)) else {}


def kind_of(parameters: Json) -> str:
    """Name the type of scaling; "su" is longrope's old name."""
    kind = str(parameters.get("rope_type") or parameters.get("type") or "default")
    return {"su": "longrope"}.get(kind, kind)


def _details(keys: Keys, kind: str, parameters: Json, nested: bool) -> Json:
    if kind == "linear":
        return {"factor": parameters.get("factor")}
    if kind == PROPORTIONAL:
        share = parameters.get("partial_rotary_factor", 1.0)
        return {"share": share, "factor": parameters.get("factor")}
    if kind == "dynamic":
        return {"factor": parameters.get("factor"), "n_trained": _limit(keys)}
    trained = _trained(keys, parameters)
    if kind == "llama3":
        names = ("factor", "low_freq_factor", "high_freq_factor")
        return {"n_trained": trained, **{name: parameters.get(name) for name in names}}
    factor = parameters.get("factor")
    if factor is None:
        factor = positive("max_position_embeddings", _limit(keys)) / positive(TRAINED, trained)
    if kind == "longrope":
        short, long = (
            tuple(value) if isinstance(value, list) else value
            for value in (parameters.get("short_factor"), parameters.get("long_factor"))
        )
        factors = {"n_trained": trained, "short_factors": short, "long_factors": long}
        return {**factors, "attention_factor": _longrope_attention(parameters, factor, trained)}
    # of several objects transformers reads no truncate
    truncate = True if nested else parameters.get("truncate", True)
    return {
        "factor": factor,
        "n_trained": trained,
        "beta_fast": parameters.get("beta_fast") or 32.0,
        "beta_slow": parameters.get("beta_slow") or 1.0,
        "truncate": truncate,
        "attention_factor": _yarn_attention(parameters, factor),
    }


def _limit(keys: Keys) -> object:
    limit = keys.data.get("max_position_embeddings")
    if limit is None:
        raise SpecError("max_position_embeddings", "is needed", None, "give it")
    return limit


def _trained(keys: Keys, parameters: Json) -> object:
    """Read the number of trained positions:
    a key beside the object goes before the one in it (Phi-3).
    """
    outer = keys.data.get(TRAINED, keys.defaults.get(TRAINED))
    inside = parameters.get(TRAINED)
    return outer if outer is not None else _limit(keys) if inside is None else inside


def yarn_scale(factor: float, weight: float = 1.0) -> float:
    """Compute 0.1·weight·ln(factor) + 1: Peng et al. 2023, arXiv:2309.00071, eq.
    22, and DeepSeek's code.

    >>> round(yarn_scale(40.0), 6)  # 0.1·3.688879 + 1
    1.368888
    """
    return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0


def _yarn_attention(parameters: Json, factor: object) -> object:
    """Compute YaRN's factor on queries and keys: what is given, else by `mscale` and
    `mscale_all_dim`, else eq. 22.
    """
    given, all_dim = parameters.get("attention_factor"), parameters.get("mscale_all_dim")
    if given is not None:
        return given
    scale = positive("factor", factor)
    if parameters.get("mscale") and all_dim:
        own = yarn_scale(scale, positive("mscale", parameters["mscale"]))
        return own / yarn_scale(scale, positive("mscale_all_dim", all_dim))
    return yarn_scale(scale)


def _longrope_attention(parameters: Json, factor: object, trained: object) -> object:
    """Compute longrope's factor: what is given,
    else sqrt(1 + ln(factor)/ln(trained)), as in Phi-3's code.
    """
    given = parameters.get("attention_factor")
    if given is not None:
        return given
    times, length = positive("factor", factor), positive(TRAINED, trained)
    return math.sqrt(1 + math.log(times) / math.log(length)) if min(times, length) > 1 else 1.0


def latent_scale(keys: Keys, parameters: Json, width: int) -> float | None:
    """Compute DeepSeek's scale of scores:
    the usual one times yarn_scale(factor, mscale_all_dim)².
    """
    if kind_of(parameters) == "default" or not parameters.get("mscale_all_dim"):
        return None
    try:
        all_dim = positive("mscale_all_dim", parameters["mscale_all_dim"])
        scale = yarn_scale(positive("factor", parameters.get("factor")), all_dim)
    except SpecError as error:
        keys.differs(f"the scale of scores by mscale_all_dim is not in the spec, for {error}")
        return None
    return float(scale**2 / width**0.5)
