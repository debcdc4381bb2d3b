"""What others call what is no size here: switches of a config; and what a config's own keys mean.

A function that asks a config for `attention_bias` must get the model's answer, not its own default.
"""

from __future__ import annotations

from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING

import sympy

from metacount.errors import SpecError
from metacount.huggingface.config.families import family_of, mapped_types
from metacount.spec.legend import SWITCHES

if TYPE_CHECKING:
    from collections.abc import Callable

    from metacount.files import Json
    from metacount.spec import ModelSpec


class Choice(str):
    """A choice that is false where it is none, as a switch of the same name elsewhere is."""

    __slots__ = ()

    def __bool__(self) -> bool:
        """Tell whether the choice is any: neither empty nor "none"."""
        return self not in ("", "none")


def _biased(spec: ModelSpec) -> bool:
    return bool(spec.q_bias or spec.mla_bias)


# What configs call what is structure here. What is a field of ours stands in the legend.
STRUCTURE: dict[str, Callable[[ModelSpec], object]] = {
    **{word: attrgetter(field) for field, words in SWITCHES.items() for word in words},
    **dict.fromkeys(
        ("attention_bias", "attn_bias", "use_attention_bias", "attn_qkv_bias"), _biased
    ),
    **dict.fromkeys(
        ("attention_out_bias", "attention_output_bias", "out_bias", "o_proj_bias"),
        lambda spec: spec.o_bias or spec.mla_bias,
    ),
    **dict.fromkeys(
        ("use_bias", "bias", "add_bias_linear"), lambda spec: _biased(spec) or spec.ffn_bias
    ),
    **dict.fromkeys(
        ("use_qk_norm", "qk_norm", "qk_layernorm", "use_query_key_norm"),
        lambda spec: spec.qk_norm not in ("none", "l2"),
    ),
    **dict.fromkeys(("use_rmsnorm", "rmsnorm", "rms_norm"), lambda spec: spec.norm == "rmsnorm"),
    **dict.fromkeys(("alibi", "use_alibi"), lambda spec: spec.position == "alibi"),
    **dict.fromkeys(("use_rope", "rotary", "use_rotary"), lambda spec: spec.position == "rope"),
    **dict.fromkeys(
        ("parallel_attn", "use_parallel_residual", "parallel_residual"),
        lambda spec: spec.norm_placement in ("parallel", "parallel_two"),
    ),
    **dict.fromkeys(("is_encoder_decoder", "has_encoder"), lambda spec: spec.has_encoder),
    **dict.fromkeys(("is_moe", "use_moe"), lambda spec: spec.is_moe),
    **dict.fromkeys(
        ("use_mla", "is_mla", "multi_latent_attention"), lambda spec: spec.attention == "mla"
    ),
    **dict.fromkeys(
        ("use_sliding_window", "has_sliding_window"), lambda spec: spec.window is not None
    ),
}


def structure_of(spec: ModelSpec, name: str) -> tuple[object] | None:
    """Look up what is structure, under our name or another one; None for an unknown name."""
    if name in STRUCTURE:
        return (STRUCTURE[name](spec),)
    values = spec.to_dict()
    if name in values:
        value = values[name]
        return (Choice(value) if isinstance(value, str) else value,)
    return None


class _Marked(int):
    """A number of a config that remembers how it came from keys, through + - * of numbers."""

    expr: sympy.Expr

    def __new__(cls, value: int, expr: sympy.Expr) -> _Marked:
        """Make the number `value`, which remembers the expression `expr` that it is."""
        made = super().__new__(cls, value)
        made.expr = expr
        return made

    def __add__(self, other: int) -> int:
        return _marked(int(self) + other, self, other, lambda a, b: a + b)

    def __sub__(self, other: int) -> int:
        return _marked(int(self) - other, self, other, lambda a, b: a - b)

    def __mul__(self, other: int) -> int:
        return _marked(int(self) * other, self, other, lambda a, b: a * b)

    __radd__, __rmul__ = __add__, __mul__


def _marked(
    value: int, left: _Marked, right: int, combine: Callable[[sympy.Expr, sympy.Expr], sympy.Expr]
) -> int:
    if isinstance(right, bool) or not isinstance(right, int) or not isinstance(value, int):
        return value
    other = right.expr if isinstance(right, _Marked) else sympy.Integer(right)
    return _Marked(int(value), combine(left.expr, other))


class ConfigKeys:
    """A config with its type's defaults, and what each of its numbers is in the spec.

    What a key means is what the mapping of its model type does with it. `fields` has the fields
    that a key becomes as it is, `made` what follows for a key from a field that is made of it.

    >>> ConfigKeys({"model_type": "deepseek_v3"}).fields["intermediate_size"]
    ('d_ff',)
    >>> ConfigKeys({"model_type": "gpt_oss"}).fields["intermediate_size"]
    ('d_ff_expert',)
    >>> ConfigKeys({"model_type": "opt"}).made["max_position_embeddings"]
    n_positions - 2
    """

    def __init__(self, config: Json) -> None:
        self.whole: Json = dict(config)
        self.fields: dict[str, tuple[str, ...]] = {}
        self.made: dict[str, sympy.Expr] = {}
        model_type = config.get("model_type")
        family = family_of(model_type) if isinstance(model_type, str) else None
        if family is None:
            return
        given = {family.aliases.get(key, key): value for key, value in config.items()}
        self.whole = {**family.defaults, **given}
        spec = _spec(self.whole) or _spec(given)  # some defaults may not be written down
        if spec is not None:
            self._read(spec)
        for alias, key in family.aliases.items():
            for known in (self.whole, self.fields, self.made):
                if key in known:
                    known[alias] = known[key]

    def _read(self, spec: ModelSpec) -> None:
        marked = {n: v.expr for n, v in spec.to_dict().items() if isinstance(v, _Marked)}
        for name, expr in marked.items():
            if expr.is_Symbol:
                self.fields[expr.name] = (*self.fields.get(expr.name, ()), name)
        ours = {sympy.Symbol(key): sympy.Symbol(names[0]) for key, names in self.fields.items()}
        for name, expr in marked.items():
            unknown = expr.free_symbols - ours.keys()
            if len(unknown) == 1:
                (key,) = unknown
                slope = sympy.diff(expr, key)
                if key not in slope.free_symbols:
                    found = (sympy.Symbol(name) - expr.subs(key, 0)) / slope
                    self.made.setdefault(key.name, sympy.expand(found.subs(ours)))


@cache
def _classes() -> dict[str, dict[str, tuple[str, ...]]]:
    return {name: ConfigKeys({"model_type": name}).fields for name in mapped_types()}


def meant_in_classes(key: str, sizes: frozenset[str]) -> tuple[str, str] | None:
    """Return which of `sizes`, those of a model, a config's key is, and a type that has it so.

    Asked are the types that read the key and most of these sizes; None where they do not agree.

    >>> meant_in_classes("intermediate_size", frozenset(["d_ff", "d_ff_expert", "n_groups"]))
    ('d_ff', 'deepseek_v3')
    """
    readers = {name: fields for name, fields in _classes().items() if key in fields}
    missing = {name: len(sizes.difference(*fields.values())) for name, fields in readers.items()}
    nearest = [name for name, n in missing.items() if n == min(missing.values())]
    meanings = {readers[name][key] for name in nearest}
    fields = meanings.pop() if len(meanings) == 1 else ()
    if len(fields) != 1 or fields[0] not in sizes:
        return None
    return fields[0], min(nearest, key=lambda name: len(readers[name]))  # that has least besides


def _spec(config: Json) -> ModelSpec | None:
    """Read the spec of a config, its numbers marked with their keys."""
    from metacount.huggingface.config.to_spec import spec_from_config

    marked = {
        key: _Marked(value, sympy.Symbol(key)) if type(value) is int else value
        for key, value in config.items()
    }
    try:
        return spec_from_config(marked).spec
    except SpecError:
        return None
