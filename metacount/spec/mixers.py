"""Mixers that keep a state of fixed size in place of a cache of keys and values.

State spaces (Mamba, Mamba-2), linear attention (gated DeltaNet, Kimi delta attention, lightning
attention, mLSTM), linear recurrence (RG-LRU) and short convolution.
"""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.frozen import fields, frozen
from metacount.spec.field import (
    MAX_TOKENS,
    at_most,
    check_number,
    choice,
    divides,
    flag,
    number,
    part,
    record,
    size,
)

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json


@part
class NoRecurrent:
    """No layer has a state: attention alone."""

    word = "none"


@part
class Recurrent:
    """What every mixer with a state has."""

    conv_kernel: int = size("conv_kernel", most=2**16)


@part
class StateSpace(Recurrent):
    """What both have: a state for each channel, a convolution before it, projections around it."""

    state_dim: int = size("ssm_state_dim")
    conv_bias: bool = flag("ssm_conv_bias", default=True)
    in_bias: bool = flag("ssm_in_bias", default=False)
    out_bias: bool = flag("ssm_out_bias", default=False)
    norm_eps: float | None = number("ssm_norm_eps", default=None)


@part
class Mamba(StateSpace):
    """Mamba: every channel and value of the state has a decay of its own."""

    word = "mamba"

    d_ssm: int = size("d_ssm")
    dt_rank: int = size("dt_rank")
    norms: str = choice("ssm_inner_norms", "none", "affine", "plain", default="none")


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
            check_number(f"ssm_scales.{name}", value)

    def to_dict(self) -> Json:
        """Return every field, in order."""
        return {name: getattr(self, name) for name in fields(Scales)}


@part
class Mamba2(StateSpace):
    """Mamba-2: heads with one decay each, run in chunks; groups of heads share B and C."""

    word = "mamba2"

    n_heads: int = size("n_ssm_heads")
    head_dim: int = size("ssm_head_dim")
    n_groups: int = size("n_ssm_groups")
    chunk_size: int = size("ssm_chunk_size", least=2, most=MAX_TOKENS)
    norm: str = choice("ssm_norm", "gated", "before_gate", "none", default="gated")
    dt_min: float | None = number("ssm_dt_min", default=None)
    dt_max: float | None = number("ssm_dt_max", default=None)

    scales: Scales | None = record("ssm_scales", Scales, default=None)

    def check(self) -> None:
        """Raise `SpecError` unless the heads fall into groups and a step is left."""
        at_most("n_ssm_groups", self.n_groups, "n_ssm_heads", self.n_heads)
        divides("n_ssm_groups", self.n_groups, "n_ssm_heads", self.n_heads)
        if self.state_dim < 2:
            # over one value torch's einsum multiplies element by element: no matrix product is left
            rule = "must be at least 2 in Mamba-2"
            raise SpecError("ssm_state_dim", rule, self.state_dim, "choose 2 or more")
        if self.dt_min is not None and self.dt_max is not None and self.dt_min > self.dt_max:
            rule = f"must be at most ssm_dt_max = {self.dt_max}"
            raise SpecError("ssm_dt_min", rule, self.dt_min, "choose a smaller one")


@part
class LinearAttention:
    """What all of them have: chunks that are run as matrix products, and a norm of the output."""

    chunk_size: int = size("linear_chunk_size", most=MAX_TOKENS)
    norm_eps: float | None = number("linear_norm_eps", default=None)


@part
class OneCountOfHeads(LinearAttention):
    """Linear attention with as many heads of keys as of values."""

    n_heads: int = size("n_linear_heads")


@part
class LinearHeads(OneCountOfHeads):
    """Linear attention whose keys and values have as many heads, of one width."""

    head_dim: int = size("linear_head_dim")


@part
class TwoWidths:
    """Keys and values of linear attention, each of a width of its own."""

    k_head_dim: int = size("linear_k_head_dim")
    v_head_dim: int = size("linear_v_head_dim")


@part
class GroupedHeads(LinearAttention):
    """Groups of value heads share the queries and keys of one key head."""

    n_k_heads: int = size("n_linear_k_heads")
    n_v_heads: int = size("n_linear_v_heads")

    def check(self) -> None:
        """Raise `SpecError` unless the value heads fall into groups."""
        at_most("n_linear_k_heads", self.n_k_heads, "n_linear_v_heads", self.n_v_heads)
        divides("n_linear_k_heads", self.n_k_heads, "n_linear_v_heads", self.n_v_heads)


@part
class GatedDelta(TwoWidths, GroupedHeads, Recurrent):
    """Gated DeltaNet, with its convolution."""

    word = "gated_delta"

    negative: bool = flag("linear_negative_eigenvalues", default=False)


@part
class KimiDelta(LinearHeads, Recurrent):
    """Kimi delta attention; the ranks of its two gates are the width of a head."""

    word = "kimi_delta"


@part
class Lightning(LinearHeads):
    """Lightning attention: no convolution, no learned decay."""

    word = "lightning"


@part
class MLstm(TwoWidths, OneCountOfHeads):
    """An mLSTM: a matrix memory for each head, two exponential gates, a normaliser."""

    word = "mlstm"

    gate_softcap: float = number("mlstm_gate_softcap", default=15.0)
    divisor_eps: float = number("mlstm_divisor_eps", default=1e-6)

    def check(self) -> None:
        """Raise `SpecError` for chunks of one position: one is a step of the recurrence."""
        if self.chunk_size == 1:
            rule = "must be at least 2 in an mLSTM"
            raise SpecError("linear_chunk_size", rule, 1, "choose 2 or more")


@part
class RgLru(Recurrent):
    """A real-gated linear recurrence, one value a channel, beside a gating branch."""

    word = "rg_lru"

    lru_width: int = size("lru_width")
    n_lru_blocks: int = size("n_lru_blocks")
    activation: str = choice(
        "lru_activation", "gelu_tanh", "gelu", "silu", "relu", default="gelu_tanh"
    )

    def check(self) -> None:
        """Raise `SpecError` unless the channels fall into blocks."""
        divides("n_lru_blocks", self.n_lru_blocks, "lru_width", self.lru_width)


@part
class ShortConv(Recurrent):
    """A causal convolution of each channel between two gates; its only state is its inputs."""

    word = "short_conv"

    conv_bias: bool = flag("short_conv_bias", default=False)


# In the order in which they are listed.
RECURRENT: tuple[type, ...] = (
    *(NoRecurrent, GatedDelta, KimiDelta, Lightning, Mamba, Mamba2, MLstm, ShortConv, RgLru),
)
