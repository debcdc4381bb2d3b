"""What becomes of far positions: scaled RoPE, growing queries.

No count depends on them. Frozen, checked when made; plain data in a model's file.
"""

from __future__ import annotations

from metacount.errors import SpecError, nearest, shown_name
from metacount.frozen import REQUIRED, fields, frozen
from metacount.spec.field import MAX_TOKENS, check_int

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json

# What each kind of scaling needs, and what else it may have.
SCALINGS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "linear": (("factor",), ()),
    "dynamic": (("factor", "n_trained"), ()),
    "llama3": (("factor", "n_trained", "low_freq_factor", "high_freq_factor"), ()),
    "yarn": (("factor", "n_trained"), ("beta_fast", "beta_slow", "truncate", "attention_factor")),
    "longrope": (("n_trained", "short_factors", "long_factors"), ("attention_factor",)),
}


@frozen
class RopeScaling:
    """How the angles of RoPE change beyond the `n_trained` positions a model was first trained on.

    The formulas of the kinds, with their sources, stand in `modules/rope_scaling.py`.
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
    attention_factor: float = 1.0  # on queries and keys alike, so squared in the scores

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in SCALINGS:
            raise SpecError(
                "rope_scaling.kind", "is unknown", self.kind, f"choose one of {', '.join(SCALINGS)}"
            )
        needed, optional = SCALINGS[self.kind]
        for name, default in fields(RopeScaling).items():
            value = getattr(self, name)
            if name in needed and value is None:
                raise SpecError(
                    f"rope_scaling.{name}", f"is needed by {self.kind}", None, f"give {name}"
                )
            if name not in ("kind", *needed, *optional) and value != default:
                raise SpecError(
                    f"rope_scaling.{name}",
                    f"has no meaning with {self.kind}",
                    value,
                    "leave it out",
                )
            _check_value("rope_scaling", name, value)
        if (self.high_freq_factor or 0) < (self.low_freq_factor or 0):
            raise SpecError(
                "rope_scaling.high_freq_factor",
                f"must be at least low_freq_factor = {self.low_freq_factor}",
                self.high_freq_factor,
                "raise it",
            )
        if self.factor is not None and self.factor < 1:
            raise SpecError("rope_scaling.factor", "must be at least 1", self.factor, "raise it")

    def to_dict(self) -> Json:
        """Return what is not left at its default, as plain data."""
        found = {
            name: getattr(self, name)
            for name, default in fields(RopeScaling).items()
            if getattr(self, name) != default
        }
        return {name: list(v) if isinstance(v, tuple) else v for name, v in found.items()}


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
        for name in ("weight", "step"):
            _check_value("query_growth", name, getattr(self, name))
        check_int("query_growth.shift", self.shift, 0, 1)
        if not isinstance(self.nope_only, bool):
            raise SpecError(
                "query_growth.nope_only",
                "must be true or false",
                self.nope_only,
                "choose true or false",
            )

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
            raise SpecError(
                f"{name}.{shown_name(key)}", "is not one of its fields", value[key], remedy
            )
    for key, default in known.items():
        if default is REQUIRED and key not in value:
            raise SpecError(f"{name}.{key}", "is missing", None, f"give {key}")
    return made(**{k: tuple(v) if isinstance(v, list) else v for k, v in value.items()})


def _check_value(part: str, name: str, value: object) -> None:
    name = f"{part}.{name}"
    if value is None or name == "rope_scaling.kind":
        return
    if name.endswith("truncate"):
        if not isinstance(value, bool):
            raise SpecError(name, "must be true or false", value, "choose true or false")
    elif name.endswith("n_trained"):
        check_int(name, value, 1, MAX_TOKENS)
    else:
        for number in value if isinstance(value, tuple) else (value,):
            real = isinstance(number, int | float) and not isinstance(number, bool)
            if not real or not 0 < number < 1e12:
                raise SpecError(name, "must be a positive number", number, "choose one below 1e12")


def check_pairs(name: str, scaling: RopeScaling | None, rotated: int) -> None:
    """Raise `SpecError` for a scaling that does not go with so many rotated values."""
    if scaling is None:
        return
    if scaling.kind == "dynamic" and rotated < 4:
        raise SpecError(
            name, "dynamic needs more than 2 rotated values", rotated, f"leave {name} out"
        )
    for factors in (scaling.short_factors, scaling.long_factors):
        if factors is not None and len(factors) != rotated // 2:
            raise SpecError(
                name,
                f"needs one factor for each of the {rotated // 2} pairs",
                len(factors),
                "give as many",
            )
