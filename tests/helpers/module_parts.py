"""Modules from the names of their sizes: what a test does not say is as the parts have it."""

from __future__ import annotations

from typing import Any

from metacount.modules import Attention, MixtureOfExperts, Router
from metacount.spec import attention, ffn
from metacount.spec.field import altered, declared
from metacount.spec.position import Rope
from metacount.spec.stack import Norms

NORMS = {"norm_eps": "eps", "norm_unit_offset": "unit_offset"}
ROPE = {
    "rotary_dim": "rotary_dim",
    "rope_theta": "theta",
    "rope_style": "style",
    "rope_scaling": "scaling",
}


def taken(options: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """The options of some names, out of `options`, under the names of a part."""
    return {names[name]: options.pop(name) for name in names if name in options}


def part_of(kind: Any, options: dict[str, Any]) -> Any:
    """A part of the options that it declares, out of `options`."""
    return kind(**{name: options.pop(name) for name in declared(kind) if name in options})


def make_attention(d_model: int, **options: Any) -> Attention:
    """An attention; it rotates where something of RoPE is said."""
    norms = Norms(kind="rmsnorm", **taken(options, NORMS))
    turns = taken(options, ROPE)
    part = part_of(attention.Attention, options)
    return Attention(part, d_model, norms=norms, rope=Rope(**turns) if turns else None, **options)


def mixture(**options: Any) -> ffn.Mixture:
    """A mixture of experts; groups where they are said, `scoring` is the router's."""
    if "scoring" in options:
        options["router"] = options.pop("scoring")
    groups = {"n_groups": "n_groups", "top_groups": "top_groups", "group_score": "score"}
    found = taken(options, groups)
    return ffn.Mixture(**{"d_ff": 3, **options, "groups": ffn.Groups(**found) if found else None})


def make_router(d_model: int, **options: Any) -> Router:
    """A router; `bias` is its own."""
    options = {"router_bias" if name == "bias" else name: value for name, value in options.items()}
    return Router(mixture(**options), d_model)


def like(**options: Any) -> ffn.FeedForward:
    """A feed-forward that is made so, whether or not a model would have it."""
    return altered(ffn.FeedForward(gated=True, activation="silu"), **options)


def make_mixture(d_model: int, *, made: dict[str, Any], **options: Any) -> MixtureOfExperts:
    """A mixture whose experts and shared experts are made as `made` says."""
    return MixtureOfExperts(mixture(**options), d_model, like(**made))
