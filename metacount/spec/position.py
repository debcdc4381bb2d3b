"""How a model knows positions: a class for each way. Far positions: `rope_scaling.py`."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.spec.field import MAX_LAYERS, MAX_VOCAB, choice, number, part, record, size, where
from metacount.spec.law import Law
from metacount.spec.rope_scaling import QueryGrowth, RopeScaling


@part
class NoPositions:
    """Nothing says which token comes first but the mask."""

    word = "none"


@part
class Offset:
    """What is counted from a position other than 0."""

    offset: int = size(
        "position_offset",
        "P_0",
        "rows of a learned position table before the first position",
        "rows",
        default=0,
        least=0,
        most=MAX_VOCAB,
    )


@part
class Learned(Offset):
    """A table of positions in each stack; OPT's begins two rows late."""

    word = "learned"
    needed = "by a learned position table"

    n_positions: int = size(
        "n_positions",
        "P",
        "rows of a learned position table, as stored",
        "rows",
        "max_position_embeddings n_ctx max_seq_len max_sequence_length context_length"
        " max_target_positions max_source_positions block_size",
        most=MAX_VOCAB,
    )
    n_query_positions: int = size(
        "n_query_positions",
        "P_q",
        "rows of the query table of the last layer",
        "rows",
        default=0,
        least=0,
        most=MAX_VOCAB,
    )

    def check(self) -> None:
        """Raise `SpecError` for a table that ends before its first position."""
        if self.offset >= self.n_positions:
            raise SpecError(
                "position_offset",
                f"must be below n_positions = {self.n_positions}",
                self.offset,
                f"choose 0 to {self.n_positions - 1}",
            )


@part
class Sinusoidal(Offset):
    """Sines and cosines added to the embedding."""

    word = "sinusoidal"

    style: str = choice(
        "sinusoid_style",
        "sines and cosines in turn, or all sines before all cosines",
        "alternating",
        "halves",
        default="alternating",
    )


@part
class Rotation:
    """RoPE of the windowed layers, where it differs (Gemma 3)."""

    theta: float = number(
        "rope_theta_windowed", "rope_theta of the windowed layers; none: the same", default=None
    )
    scaling: RopeScaling | None = record(
        "rope_scaling_windowed",
        "the same of the layers that have rope_theta_windowed",
        RopeScaling,
        default=None,
    )


@part
class Rope:
    """Queries and keys are rotated; `rotary_dim` None: all of a head."""

    word = "rope"

    rotary_dim: int | None = size(
        "rotary_dim",
        "d_rot",
        "values of a head that RoPE rotates",
        "values",
        "rotary_ndims rope_dim",
        default=None,
    )
    theta: float = number("rope_theta", "base of RoPE's wavelengths", default=10000.0)
    windowed: Rotation | None = where(
        "rope_theta_windowed",
        Rotation,
        "without rope_theta_windowed",
        remedy="give both, or neither",
        default=None,
    )
    style: str = choice(
        "rope_style",
        "which values of a head are rotated as a pair",
        "half",
        "interleaved",
        default="half",
    )
    nope_every: int | None = size(
        "nope_every",
        "s_r",
        "one layer without RoPE every so many",
        "blocks",
        "no_rope_layer_interval",
        default=None,
        most=MAX_LAYERS,
    )
    scaling: RopeScaling | None = record(
        "rope_scaling",
        "how RoPE's angles change beyond the trained length (YaRN, Llama 3.1, ...)",
        RopeScaling,
        default=None,
    )
    growth: QueryGrowth | None = record(
        "query_growth",
        "how queries grow with their position (Llama 4, Ministral 3)",
        QueryGrowth,
        default=None,
    )

    @property
    def law(self) -> Law:
        """Which layers rotate."""
        return Law() if self.nope_every is None else Law(every=self.nope_every, but=True)

    def of_layer(self, windowed: bool) -> tuple[float, RopeScaling | None]:
        """Return the theta and scaling of a layer that sees a window only, or everything."""
        if windowed and self.windowed is not None:
            return self.windowed.theta, self.windowed.scaling
        return self.theta, self.scaling


@part
class Alibi:
    """A bias that grows with the distance, another for each head."""

    word = "alibi"

    scale: float = number("alibi_scale", "factor on ALiBi's bias (Falcon)", default=1.0)


@part
class RelativeBuckets:
    """T5's learned bias for each bucket of distances and each head."""

    word = "t5"
    needed = "by T5's relative buckets"

    n_buckets: int = size(
        "n_buckets",
        "b",
        "buckets of T5's relative positions",
        "buckets",
        "relative_attention_num_buckets relative_buckets_count",
    )
    max_distance: int = size(
        "max_distance",
        "b_max",
        "distance from which T5's last bucket holds all",
        "positions",
        "relative_attention_max_distance",
    )

    def check(self) -> None:
        """Raise `SpecError` for buckets that cannot be halved twice, or that reach nowhere."""
        if self.n_buckets % 4 or self.n_buckets < 4:
            raise SpecError("n_buckets", "must be a multiple of 4", self.n_buckets, "choose 32")
        if self.max_distance <= self.n_buckets:
            raise SpecError(
                "max_distance", "must be larger than n_buckets", self.max_distance, "choose 128"
            )


@part
class TransformerXL:
    """Projected sinusoids of every distance, scored against the queries."""

    word = "transformer_xl"


POSITIONS = (NoPositions, Learned, Sinusoidal, Rope, Alibi, RelativeBuckets, TransformerXL)
