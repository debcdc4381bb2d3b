"""What a model is: a tree of frozen parts. Nothing is computed here.

Formulas and modules both read a `ModelSpec`, never each other.
"""

from __future__ import annotations

from metacount.errors import SpecError, nearest, shown_name
from metacount.frozen import REQUIRED
from metacount.spec.attention import Attention, Window
from metacount.spec.embedding import Embedding, Head
from metacount.spec.ffn import FeedForward
from metacount.spec.field import (
    MAX_LAYERS,
    Field,
    always,
    choice,
    declared,
    flag,
    number,
    one_of,
    part,
    size,
    where,
)
from metacount.spec.mla import LatentAttention
from metacount.spec.moe import Mixture
from metacount.spec.norm import Norms
from metacount.spec.position import POSITIONS, Rope
from metacount.spec.rope_scaling import record_from
from metacount.spec.rules import check_goes_with, check_model
from metacount.spec.tree import (
    assembled,
    fields_of,
    flat_place,
    flattened,
    paths_below,
    placed,
    refuse,
)

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from typing import Any


@part
class Stack:
    """Layers that are made alike, but for what a law says of each."""

    n_layers: int = size(
        "n_layers", "N", "blocks of the only stack, or of the decoder", "blocks",
        "num_hidden_layers n_layer num_layers block_count decoder_layers num_decoder_layers",
        most=MAX_LAYERS)  # fmt: skip
    residual_scale: float = number(
        "residual_scale", "factor on what each sublayer adds", default=1.0
    )
    attention: Attention | LatentAttention = one_of(
        choice("attention", "key/value heads, or multi-head latent attention", default="gqa"),
        Attention, LatentAttention)  # fmt: skip
    feed_forward: FeedForward = always(FeedForward)
    mixture: Mixture | None = where("n_experts", Mixture, "without n_experts", default=None)
    norms: Norms = always(Norms)


@part
class Encoder(Stack):
    """The stack beside a decoder; made like it."""

    n_layers: int = size(
        "n_encoder_layers", "N_e", "blocks of the encoder", "blocks",
        "encoder_layers num_encoder_layers num_layers", default=0, least=0,
        most=MAX_LAYERS)  # fmt: skip


KINDS: dict[str, dict[str, type[Stack]]] = {
    "decoder": {"decoder": Stack},
    "encoder": {"encoder": Stack},
    "prefix-decoder": {"decoder": Stack},
    "encoder-decoder": {"encoder": Encoder, "decoder": Stack},
}

# The order of flat names in files and in JSON; a name that is not here comes after these.
ORDER = (
    "kind", "d_model", "n_layers", "n_encoder_layers", "vocab_size", "tie_embeddings", "has_head",
    "head_bias", "n_token_types", "d_embedding", "head_transform", "head_transform_bias",
    "embedding_norm", "pooler", "embedding_scale", "residual_scale", "logit_scale",
    "logit_softcap", "attention", "n_heads", "n_kv_heads", "head_dim", "q_bias", "k_bias",
    "v_bias", "o_bias", "qk_norm", "attention_sinks", "attention_scale", "attention_softcap",
    "window", "window_kind", "window_pattern", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim",
    "qk_rope_head_dim", "v_head_dim", "mla_bias", "latent_norm_eps", "d_ff", "activation",
    "gated", "ffn_bias", "swish_beta", "n_experts", "top_k", "d_ff_expert", "n_dense_layers",
    "moe_every", "moe_offset", "n_shared_experts", "d_ff_shared", "shared_expert_gate", "router",
    "router_bias", "selection_bias", "n_groups", "top_groups", "group_score", "routed_scale",
    "mixer_jitter", "router_scales_input", "expert_bias", "norm", "norm_bias", "norm_affine",
    "norm_unit_offset", "norm_placement", "norm_eps", "final_norm", "first_norm", "position",
    "n_positions", "position_offset", "n_query_positions", "rotary_dim", "rope_theta",
    "rope_theta_windowed", "rope_style", "nope_every", "rope_scaling", "rope_scaling_windowed",
    "query_growth", "alibi_scale", "sinusoid_style", "n_buckets", "max_distance",
)  # fmt: skip

ROOT: dict[str, Any] = {
    "kind": choice("kind", "the stacks a model has and what its tokens see", *KINDS),
    "d_model": size(
        "d_model", "d", "residual width", "values",
        "hidden_size n_embd dim hidden_dim model_dim embed_dim embedding_length n_embed"),
    "embedding": where("vocab_size", Embedding, "without vocab_size", default=None),
    "head": where("has_head", Head, "without a head",
                  flag("has_head", "an output head over the vocabulary", default=True),
                  default=None),
    "pooler": flag("pooler", "a dense layer with tanh over the first token (BERT)", default=False),
    "positions": one_of(choice("position", "how the model knows positions"), *POSITIONS),
}  # fmt: skip


class ModelSpec:
    """A transformer language model: sizes and structure, nothing measured.

    Made of parts, or of flat names (`n_kv_heads` for `decoder.attention.n_kv_heads`), which can
    be read as well. Sizes are ints; `substituted` gives the same structure with symbols or arrays
    in their place. A flat name of a part that the model does not have is `None` (or False, or 0);
    setting it is an error.

    `embedding` None: the body alone, without embedding and head.
    """

    __declared__ = ROOT

    if TYPE_CHECKING:
        kind: str
        d_model: Any
        embedding: Embedding | None
        head: Head | None
        pooler: bool
        encoder: Stack | None
        decoder: Stack | None
        positions: Any

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, **values: Any) -> None:
        flat = _flat_of(values) if PARTS & values.keys() else values
        missing = [name for name in REQUIRED_NAMES if name not in flat]
        unknown = [name for name in flat if name not in FIELDS]
        if missing or unknown:
            wrong = f"misses {', '.join(missing)}" if missing else f"has no {', '.join(unknown)}"
            raise TypeError(f"ModelSpec() {wrong}")
        filled = {**DEFAULTS, **flat}
        for name, value in filled.items():
            field = FIELDS[name]
            if not (value is None and field.lacking):
                field.check(value)
        self._fill(filled, checked=True)
        check_model(self)

    def _fill(self, flat: dict[str, Any], *, checked: bool) -> None:
        made: dict[str, Any] = {"encoder": None, "decoder": None}
        stacks = KINDS[flat["kind"]]
        if Encoder not in stacks.values():
            mine = tuple(name for name in FIELDS if name != "n_encoder_layers")
            refuse(Encoder, flat, mine, f"in a model of kind {flat['kind']}")
        for name, kind in stacks.items():
            made[name] = assembled(kind, flat, "", checked=checked)
            if checked:
                check_goes_with(made[name], flat["kind"], flat["position"])
        for name, it in ROOT.items():
            if not isinstance(it, Field):
                made[name] = placed(it, flat, checked=checked)
        self.__dict__.update(flat)
        self.__dict__.update(made)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ModelSpec:
        """Build from plain data; an unknown or missing field is a `SpecError` that names it."""
        for key, value in data.items():
            if key not in FIELDS:
                remedy = nearest(str(key), FIELDS, "see `metacount models --fields`")
                raise SpecError(shown_name(key), "is not a field of a model", value, remedy)
        for name in REQUIRED_NAMES:
            if name not in data:
                raise SpecError(name, "is missing", None, f"set {name}")
        made = {name: record_from(name, kind, data[name])
                for name, kind in RECORDS.items() if name in data}  # fmt: skip
        return cls(**{**data, **made})

    def replace(self, **changes: Any) -> ModelSpec:
        """The same model with other values of flat names, checked like a new one."""
        try:
            return self.from_dict({**self.to_dict(), **changes})
        except SpecError as error:
            raise error.reworded(
                unset=lambda name: f"pass {name}={FIELDS[name].absent!r}",
                give=lambda name: f"pass {name} as well",
            ) from None

    def substituted(self, **values: Any) -> ModelSpec:
        """The same structure with symbols or arrays for sizes. Unchecked: rules need numbers."""
        other = object.__new__(type(self))
        other._fill({name: values[name] if name in values else self.__dict__[name]
                     for name in FIELDS}, checked=False)  # fmt: skip
        return other

    def to_dict(self) -> dict[str, Any]:
        """Every flat name, in order; records as plain data."""
        data = {name: self.__dict__[name] for name in FIELDS}
        for name in RECORDS:
            if data[name] is not None:
                data[name] = data[name].to_dict()
        return data

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"ModelSpec is frozen: {name} cannot change")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"ModelSpec is frozen: {name} cannot change")

    def _items(self) -> tuple[Any, ...]:
        return tuple(self.__dict__[name] for name in FIELDS)

    def __eq__(self, other: object) -> bool:
        return self._items() == other._items() if type(other) is ModelSpec else NotImplemented

    def __hash__(self) -> int:
        return hash(self._items())

    def __repr__(self) -> str:
        return f"ModelSpec({', '.join(f'{name}={self.__dict__[name]!r}' for name in FIELDS)})"

    def paths(self) -> dict[str, str]:
        """The flat name at every path that leads to a field of a model like this one."""
        found = dict(paths_below(ROOT, self.__dict__))
        for name, kind in KINDS[self.kind].items():
            found |= dict(paths_below(declared(kind), self.__dict__, f"{name}."))
        return {path: field.name for path, field in found.items()}

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """The encoder, where there is one, and the decoder."""
        return tuple(stack for stack in (self.encoder, self.decoder) if stack is not None)

    @property
    def last_stack(self) -> Stack:
        """The stack that the head reads: the decoder, or the only one that an encoder has."""
        return self.stacks[-1]

    @property
    def has_encoder(self) -> bool:
        """True for an encoder-decoder."""
        return self.kind == "encoder-decoder"

    @property
    def longest(self) -> int | None:
        """Tokens that its table of positions has room for; None where nothing limits them."""
        return None if self.n_positions is None else self.n_positions - self.position_offset

    @property
    def is_moe(self) -> bool:
        """True when at least the spec names experts."""
        return self.last_stack.mixture is not None

    def is_moe_layer(self, index: int) -> bool:
        """Whether block `index` (from 0, in either stack) routes to experts."""
        mixture = self.last_stack.mixture
        return mixture is not None and mixture.law.holds(index)

    def is_windowed_layer(self, index: int) -> bool:
        """Whether block `index` sees a window only."""
        window: Window | None = self.last_stack.attention.window
        return window is not None and window.law.holds(index)

    def has_rope_layer(self, index: int) -> bool:
        """Whether block `index` rotates its queries and keys."""
        return isinstance(self.positions, Rope) and self.positions.law.holds(index)


def _flat_of(values: dict[str, Any]) -> dict[str, Any]:
    """Flat names out of parts; what is no part is a flat name already."""
    flat = {name: value for name, value in values.items() if name not in PARTS}
    for name in sorted(PARTS & values.keys()):
        found = values[name]
        if name in ROOT:
            flat_place(ROOT[name], found, flat)
        elif found is not None:
            flattened(type(found), found, flat)
    return flat


def _fields() -> tuple[dict[str, Field], dict[str, str]]:
    """Every flat name's field, in order, and the path of each in a model with a decoder."""
    root = type("Root", (), {"__declared__": ROOT})
    found = {field.name: (path, field) for path, field in fields_of(Stack, "decoder.")}
    found["n_encoder_layers"] = ("encoder.n_layers", declared(Encoder)["n_layers"])
    found |= {field.name: (path, field) for path, field in fields_of(root)}
    names = [*(name for name in ORDER if name in found), *(n for n in found if n not in ORDER)]
    return {name: found[name][1] for name in names}, {name: found[name][0] for name in names}


FIELDS, PATHS = _fields()
PARTS = {"embedding", "head", "positions", "encoder", "decoder"}
REQUIRED_NAMES = tuple(
    name
    for name, field in FIELDS.items()
    if field.asked or (field.default is REQUIRED and not field.lacking)
)
DEFAULTS = {name: field.absent for name, field in FIELDS.items()}
RECORDS = {name: field.made for name, field in FIELDS.items() if field.made is not None}
CHOICES = {name: field.choices for name, field in FIELDS.items() if field.choices}
LIMITS = {name: field.most for name, field in FIELDS.items() if field.takes == "whole"}
NUMBERS = tuple(name for name, field in FIELDS.items() if field.takes == "number")
