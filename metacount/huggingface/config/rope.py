"""RoPE scaling of a config as a part of the spec, with transformers' defaults and precedences."""

from __future__ import annotations

import math

from metacount.errors import SpecError
from metacount.huggingface.config.keys import Keys, is_number
from metacount.spec.position import RopeScaling

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json


TRAINED = "original_max_position_embeddings"


def scaling_of(keys: Keys, found: Json, *, nested: bool = False) -> RopeScaling | None:
    """Read the scaling that a checked `rope_parameters` or `rope_scaling` object asks for.

    `nested`: the object is one of several, by kind of layer. A scaling that cannot be read changes
    no count: it is left out, and the config's module is not one to load weights into.
    """
    kind = kind_of(found)
    if kind == "default":
        return None
    try:
        return RopeScaling(kind=kind, **_details(keys, kind, found, nested))
    except SpecError as error:
        keys.differs(f"RoPE scaling of type {kind} is not in the spec, for {error}")
        return None


def kind_of(found: Json) -> str:
    """Name the type of scaling; "su" is longrope's old name."""
    kind = str(found.get("rope_type") or found.get("type") or "default")
    return {"su": "longrope"}.get(kind, kind)


def _details(keys: Keys, kind: str, found: Json, nested: bool) -> Json:
    if kind == "linear":
        return {"factor": found.get("factor")}
    if kind == "dynamic":
        return {"factor": found.get("factor"), "n_trained": _limit(keys)}
    trained = _trained(keys, found)
    if kind == "llama3":
        names = ("factor", "low_freq_factor", "high_freq_factor")
        return {"n_trained": trained, **{name: found.get(name) for name in names}}
    factor = found.get("factor")
    if factor is None:
        factor = _number("max_position_embeddings", _limit(keys)) / _number(TRAINED, trained)
    if kind == "longrope":
        short, long = (_tuple(found.get(f"{name}_factor")) for name in ("short", "long"))
        attention = _longrope_attention(found, factor, trained)
        return {
            "n_trained": trained,
            "short_factors": short,
            "long_factors": long,
            "attention_factor": attention,
        }
    # of several objects transformers reads no truncate
    truncate = True if nested else found.get("truncate", True)
    return {
        "factor": factor,
        "n_trained": trained,
        "beta_fast": found.get("beta_fast") or 32.0,
        "beta_slow": found.get("beta_slow") or 1.0,
        "truncate": truncate,
        "attention_factor": _yarn_attention(found, factor),
    }


def _limit(keys: Keys) -> object:
    limit = keys.data.get("max_position_embeddings")
    if limit is None:
        raise SpecError("max_position_embeddings", "is needed", None, "give it")
    return limit


def _trained(keys: Keys, found: Json) -> object:
    """Read the number of trained positions:
    a key beside the object goes before the one in it (Phi-3).
    """
    beside = keys.data.get(TRAINED, keys.defaults.get(TRAINED))
    inside = found.get(TRAINED)
    return beside if beside is not None else _limit(keys) if inside is None else inside


def _number(name: str, value: object) -> float:
    if not is_number(value) or not 0 < value < 1e12:
        raise SpecError(name, "must be a positive number", value, "choose one below 1e12")
    return float(value)


def yarn_scale(factor: float, weight: float = 1.0) -> float:
    """Compute 0.1·weight·ln(factor) + 1: Peng et al. 2023, arXiv:2309.00071, eq.
    22, and DeepSeek's code.

    >>> round(yarn_scale(40.0), 6)  # 0.1·3.688879 + 1
    1.368888
    """
    return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0


def _yarn_attention(found: Json, factor: object) -> object:
    """Compute YaRN's factor on queries and keys: what is given, else by `mscale` and
    `mscale_all_dim`, else eq. 22.
    """
    given, all_dim = found.get("attention_factor"), found.get("mscale_all_dim")
    if given is not None:
        return given
    scale = _number("factor", factor)
    if found.get("mscale") and all_dim:
        own = yarn_scale(scale, _number("mscale", found["mscale"]))
        return own / yarn_scale(scale, _number("mscale_all_dim", all_dim))
    return yarn_scale(scale)


def _longrope_attention(found: Json, factor: object, trained: object) -> object:
    """Compute longrope's factor: what is given,
    else sqrt(1 + ln(factor)/ln(trained)), as in Phi-3's code.
    """
    given = found.get("attention_factor")
    if given is not None:
        return given
    times, length = _number("factor", factor), _number(TRAINED, trained)
    return math.sqrt(1 + math.log(times) / math.log(length)) if min(times, length) > 1 else 1.0


def _tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def latent_scale(keys: Keys, found: Json, width: int) -> float | None:
    """Compute DeepSeek's scale of scores:
    the usual one times yarn_scale(factor, mscale_all_dim)².
    """
    if kind_of(found) == "default" or not found.get("mscale_all_dim"):
        return None
    try:
        all_dim = _number("mscale_all_dim", found["mscale_all_dim"])
        scale = yarn_scale(_number("factor", found.get("factor")), all_dim)
    except SpecError as error:
        keys.differs(f"the scale of scores by mscale_all_dim is not in the spec, for {error}")
        return None
    return float(scale**2 / width**0.5)
