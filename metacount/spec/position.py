"""How a model knows positions: a class for each way, and what becomes of RoPE at far positions."""

from __future__ import annotations

from metacount.errors import SpecError, nearest, shown_name
from metacount.frozen import REQUIRED, fields, frozen
from metacount.spec.attention import Law
from metacount.spec.field import (
    MAX_LAYERS,
    MAX_TOKENS,
    MAX_VOCAB,
    below,
    check_flag,
    check_int,
    check_number,
    choice,
    number,
    part,
    record,
    size,
    where,
)

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json


# What each kind of scaling needs, and what else it may have.
SCALINGS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "linear": (("factor",), ()),
    "dynamic": (("factor", "n_trained"), ()),
    "llama3": (("factor", "n_trained", "low_freq_factor", "high_freq_factor"), ()),
    "yarn": (("factor", "n_trained"), ("beta_fast", "beta_slow", "truncate", "attention_factor")),
    "proportional": (("share",), ("factor",)),
    "longrope": (("n_trained", "short_factors", "long_factors"), ("attention_factor",)),
}


@frozen
class RopeScaling:
    """How the angles of RoPE change beyond the `n_trained` positions a model was first trained on.

    The formulas of the kinds, with their sources, stand in `modules/position.py`.
    """

    kind: str
    factor: float | None = None
    n_trained: int | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True  # the ramp of yarn starts and ends at whole dimensions
    short_factors: tuple[float, ...] | None = None  # one for each pair of rotated values
    long_factors: tuple[float, ...] | None = None
    share: float | None = None  # of the pairs that turn, the fast ones
    attention_factor: float = 1.0  # on queries and keys alike, so squared in the scores

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in SCALINGS:
            remedy = f"choose one of {', '.join(SCALINGS)}"
            raise SpecError("rope_scaling.kind", "is unknown", self.kind, remedy)
        needed, optional = SCALINGS[self.kind]
        for name, default in fields(RopeScaling).items():
            value = getattr(self, name)
            if name in needed and value is None:
                rule = f"is needed by {self.kind}"
                raise SpecError(f"rope_scaling.{name}", rule, None, f"give {name}")
            if name not in ("kind", *needed, *optional) and value != default:
                rule = f"has no meaning with {self.kind}"
                raise SpecError(f"rope_scaling.{name}", rule, value, "leave it out")
            _check_value("rope_scaling", name, value)
        if (self.high_freq_factor or 0) < (self.low_freq_factor or 0):
            rule = f"must be at least low_freq_factor = {self.low_freq_factor}"
            remedy = "raise it"
            raise SpecError("rope_scaling.high_freq_factor", rule, self.high_freq_factor, remedy)
        if self.factor is not None and self.factor < 1:
            raise SpecError("rope_scaling.factor", "must be at least 1", self.factor, "raise it")

    def to_dict(self) -> Json:
        """Return what is not left at its default, as plain data."""
        data = {
            name: getattr(self, name)
            for name, default in fields(RopeScaling).items()
            if getattr(self, name) != default
        }
        return {name: list(v) if isinstance(v, tuple) else v for name, v in data.items()}


@frozen
class QueryGrowth:
    """Queries at position p are multiplied by 1 + weight·ln(1 + floor((p + shift) / step)).

    Scalable softmax, arXiv:2501.19399, as Llama 4 has it in its layers without RoPE (`nope_only`,
    shift 1) and Ministral 3 in all (shift 0).
    """

    weight: float
    step: float
    shift: int = 0
    nope_only: bool = False

    def __post_init__(self) -> None:
        check_number("query_growth.weight", self.weight)
        check_number("query_growth.step", self.step)
        check_int("query_growth.shift", self.shift, 0, 1)
        check_flag("query_growth.nope_only", self.nope_only)

    def to_dict(self) -> Json:
        """Return every field, in order."""
        return {name: getattr(self, name) for name in fields(QueryGrowth)}


def record_from(name: str, made: type, value: object) -> object:
    """Make the record that field `name` holds from an object of a file; None and records stay."""
    if value is None or type(value) is made:
        return value
    if not isinstance(value, dict):
        raise SpecError(name, "must be an object", value, f"leave {name} out")
    known = fields(made)
    for key in value:
        if key not in known:
            remedy = nearest(str(key), known, f"choose among {', '.join(known)}")
            rule = "is not one of its fields"
            raise SpecError(f"{name}.{shown_name(key)}", rule, value[key], remedy)
    for key, default in known.items():
        if default is REQUIRED and key not in value:
            raise SpecError(f"{name}.{key}", "is missing", None, f"give {key}")
    return made(**{k: tuple(v) if isinstance(v, list) else v for k, v in value.items()})


def _check_value(part: str, name: str, value: object) -> None:
    name = f"{part}.{name}"
    if value is None or name == "rope_scaling.kind":
        return
    if name.endswith("truncate"):
        check_flag(name, value)
    elif name.endswith("n_trained"):
        check_int(name, value, 1, MAX_TOKENS)
    elif name.endswith("_factors") and not isinstance(value, tuple):
        raise SpecError(name, "must be a list of numbers", value, "give one for each pair")
    else:
        for number in value if isinstance(value, tuple) else (value,):
            check_number(name, number)


@part
class NoPositions:
    """Nothing says which token comes first but the mask."""

    word = "none"


@part
class Offset:
    """What is counted from a position other than 0."""

    offset: int = size("position_offset", default=0, least=0, most=MAX_VOCAB)


@part
class Learned(Offset):
    """A table of positions in each stack; OPT's begins two rows late."""

    word = "learned"
    needed = "by a learned position table"

    n_positions: int = size("n_positions", most=MAX_VOCAB)
    n_query_positions: int = size("n_query_positions", default=0, least=0, most=MAX_VOCAB)

    def check(self) -> None:
        """Raise `SpecError` for a table that ends before its first position."""
        below("position_offset", self.offset, "n_positions", self.n_positions)


@part
class Sinusoidal(Offset):
    """Sines and cosines added to the embedding."""

    word = "sinusoidal"

    style: str = choice("sinusoid_style", "alternating", "halves", default="alternating")


@part
class Rotation:
    """RoPE of the windowed layers, where it differs (Gemma 3)."""

    theta: float = number("rope_theta_windowed", default=None)
    rotary_dim: int | None = size("rotary_dim_windowed", default=None)
    scaling: RopeScaling | None = record("rope_scaling_windowed", RopeScaling, default=None)


@part
class Rope:
    """Queries and keys are rotated; `rotary_dim` None: all of a head."""

    word = "rope"

    rotary_dim: int | None = size("rotary_dim", default=None)
    theta: float = number("rope_theta", default=10000.0)
    windowed: Rotation | None = where(
        "rope_theta_windowed", Rotation, remedy="give both, or neither", default=None
    )
    style: str = choice("rope_style", "half", "interleaved", default="half")
    nope_every: int | None = size("nope_every", default=None, most=MAX_LAYERS)
    scaling: RopeScaling | None = record("rope_scaling", RopeScaling, default=None)
    growth: QueryGrowth | None = record("query_growth", QueryGrowth, default=None)

    @property
    def law(self) -> Law:
        """Which layers rotate."""
        return Law() if self.nope_every is None else Law(every=self.nope_every, but=True)

    def width_of(self, windowed: bool, head_dim: int) -> int:
        """Count the values that are rotated of a head of a layer that sees a window, or all."""
        own = self.windowed.rotary_dim if windowed and self.windowed is not None else None
        width = self.rotary_dim if own is None else own
        return head_dim if width is None else width

    def of_layer(self, windowed: bool) -> tuple[float, RopeScaling | None]:
        """Return the theta and scaling of a layer that sees a window only, or everything."""
        if windowed and self.windowed is not None:
            return self.windowed.theta, self.windowed.scaling
        return self.theta, self.scaling


@part
class Alibi:
    """A bias that grows with the distance, another for each head."""

    word = "alibi"

    scale: float = number("alibi_scale", default=1.0)


@part
class RelativeBuckets:
    """T5's learned bias for each bucket of distances and each head."""

    word = "t5"
    needed = "by T5's relative buckets"

    n_buckets: int = size("n_buckets")
    max_distance: int = size("max_distance")

    def check(self) -> None:
        """Raise `SpecError` for buckets that cannot be halved twice, or that reach nowhere."""
        if self.n_buckets % 4 or self.n_buckets < 4:
            raise SpecError("n_buckets", "must be a multiple of 4", self.n_buckets, "choose 32")
        if self.max_distance <= self.n_buckets:
            rule = "must be larger than n_buckets"
            raise SpecError("max_distance", rule, self.max_distance, "choose 128")


@part
class TransformerXL:
    """Projected sinusoids of every distance, scored against the queries."""

    word = "transformer_xl"


POSITIONS = (NoPositions, Learned, Sinusoidal, Rope, Alibi, RelativeBuckets, TransformerXL)
