"""RoPE scaling of a config as a part of the spec, with transformers' defaults and precedences."""

from __future__ import annotations

import math

from ..position_parts import RopeScaling
from ..rules import SpecError
from .config_keys import Keys, is_number

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from typing import Any


def scaling_of(keys: Keys, found: dict[str, Any], *, nested: bool = False) -> RopeScaling | None:
    """The scaling that a checked `rope_parameters` or `rope_scaling` object asks for.

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


def kind_of(found: dict[str, Any]) -> str:
    """The type of scaling; "su" is longrope's old name."""
    kind = str(found.get("rope_type") or found.get("type") or "default")
    return {"su": "longrope"}.get(kind, kind)


def _details(keys: Keys, kind: str, found: dict[str, Any], nested: bool) -> dict[str, Any]:
    if kind == "linear":
        return {"factor": found.get("factor")}
    if kind == "dynamic":
        return {"factor": found.get("factor"), "n_trained": _limit(keys)}
    trained = _trained(keys, found)
    if kind == "llama3":
        names = ("factor", "low_freq_factor", "high_freq_factor")
        return {"n_trained": trained, **{name: found.get(name) for name in names}}
    factor = found.get("factor")
    if factor is None and is_number(_limit(keys)) and trained:
        factor = _limit(keys) / trained
    if kind == "longrope":
        short, long = (_tuple(found.get(f"{name}_factor")) for name in ("short", "long"))
        attention = _longrope_attention(found, factor, trained)
        return {"n_trained": trained, "short_factors": short, "long_factors": long,
                "attention_factor": attention}  # fmt: skip
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


def _limit(keys: Keys) -> Any:
    limit = keys.data.get("max_position_embeddings")
    if limit is None:
        raise SpecError("max_position_embeddings", "is needed", None, "give it")
    return limit


def _trained(keys: Keys, found: dict[str, Any]) -> Any:
    """A key beside the object goes before the one in it (Phi-3)."""
    beside = keys.defaults.get("original_max_position_embeddings")
    beside = keys.data.get("original_max_position_embeddings", beside)
    inside = found.get("original_max_position_embeddings")
    return beside if beside is not None else _limit(keys) if inside is None else inside


def yarn_scale(factor: float, weight: float = 1.0) -> float:
    """0.1·weight·ln(factor) + 1: Peng et al. 2023, arXiv:2309.00071, eq. 22, and DeepSeek's code.

    >>> round(yarn_scale(40.0), 6)  # 0.1·3.688879 + 1
    1.368888
    """
    return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0


def _yarn_attention(found: dict[str, Any], factor: object) -> Any:
    """On queries and keys: what is given, else by `mscale` and `mscale_all_dim`, else eq. 22."""
    given, m, all_dim = (found.get(k) for k in ("attention_factor", "mscale", "mscale_all_dim"))
    if given is not None or not is_number(factor):
        return 1.0 if given is None else given
    scale = float(factor)  # type: ignore[arg-type]
    if is_number(m) and is_number(all_dim) and m and all_dim:
        return yarn_scale(scale, m) / yarn_scale(scale, all_dim)
    return yarn_scale(scale)


def _longrope_attention(found: dict[str, Any], factor: object, trained: object) -> Any:
    """sqrt(1 + ln(factor)/ln(trained)): Ding et al. 2024, arXiv:2402.13753, section 3.2 code."""
    given = found.get("attention_factor")
    if given is not None:
        return given
    if not is_number(factor) or not is_number(trained) or factor <= 1 or trained <= 1:  # type: ignore[operator]
        return 1.0
    return math.sqrt(1 + math.log(factor) / math.log(trained))  # type: ignore[arg-type]


def _tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def latent_scale(keys: Keys, found: dict[str, Any], width: int) -> float | None:
    """DeepSeek's scale of scores: the usual one times yarn_scale(factor, mscale_all_dim)²."""
    all_dim, factor = found.get("mscale_all_dim"), found.get("factor")
    if kind_of(found) == "default" or not all_dim:
        return None
    if not is_number(all_dim) or not is_number(factor):
        keys.differs("mscale_all_dim without a factor")
        return None
    return float(width**-0.5 * yarn_scale(float(factor), float(all_dim)) ** 2)
