"""Mamba-2: state space duality, heads that share a decay."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.frozen import fields, frozen
from metacount.spec.attention import at_most, divides
from metacount.spec.field import MAX_TOKENS, choice, number, part, record, size
from metacount.spec.mamba import StateSpace

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json


@frozen
class Scales:
    """Factors on what the projection into a Mamba-2 mixer gives, and on what leaves the mixer."""

    gate: float = 1.0
    x: float = 1.0
    b: float = 1.0
    c: float = 1.0
    step: float = 1.0
    out: float = 1.0

    def __post_init__(self) -> None:
        for name, value in self.to_dict().items():
            real = isinstance(value, int | float) and not isinstance(value, bool)
            if not real or not 0 < value < 1e12:
                raise SpecError(
                    f"ssm_scales.{name}",
                    "must be a positive number",
                    value,
                    "choose one below 1e12",
                )

    def to_dict(self) -> Json:
        """Return every field, in order."""
        return {name: getattr(self, name) for name in fields(Scales)}


@part
class Mamba2(StateSpace):
    """Mamba-2: heads with one decay each, run in chunks; groups of heads share B and C."""

    word = "mamba2"

    n_heads: int = size(
        "n_ssm_heads",
        "h_s",
        "heads of a Mamba-2 mixer",
        "heads",
        "mamba_n_heads mamba_num_heads n_mamba_heads",
    )
    head_dim: int = size(
        "ssm_head_dim",
        "p_s",
        "channels of one of its heads",
        "channels",
        "mamba_d_head mamba_head_dim mamba_headdim",
    )
    n_groups: int = size(
        "n_ssm_groups",
        "g_s",
        "groups of its heads, each with one B and C",
        "groups",
        "mamba_n_groups mamba_ngroups",
    )
    chunk_size: int = size(
        "ssm_chunk_size",
        "c_s",
        "positions that its scan takes at once",
        "positions",
        "mamba_chunk_size",
        least=2,
        most=MAX_TOKENS,
    )
    norm: str = choice(
        "ssm_norm",
        "RMSNorm of each group, after the gate or before it; or the gate alone",
        "gated",
        "before_gate",
        "none",
        default="gated",
    )
    dt_min: float | None = number("ssm_dt_min", "smallest step, after softplus", default=None)
    dt_max: float | None = number("ssm_dt_max", "largest step, after softplus", default=None)

    scales: Scales | None = record(
        "ssm_scales",
        "factors on gate, x, b, c and step where they are made, and on its output",
        Scales,
        default=None,
    )

    def check(self) -> None:
        """Raise `SpecError` unless the heads fall into groups and a step is left."""
        at_most("n_ssm_groups", self.n_groups, "n_ssm_heads", self.n_heads)
        divides("n_ssm_groups", self.n_groups, "n_ssm_heads", self.n_heads)
        if self.state_dim < 2:
            # over one value torch's einsum multiplies element by element: no matrix product is left
            raise SpecError(
                "ssm_state_dim", "must be at least 2 in Mamba-2", self.state_dim, "choose 2 or more"
            )
        if self.dt_min is not None and self.dt_max is not None and self.dt_min > self.dt_max:
            raise SpecError(
                "ssm_dt_min",
                f"must be at most ssm_dt_max = {self.dt_max}",
                self.dt_min,
                "choose a smaller one",
            )
