"""What a model is and what it runs: frozen classes, nothing computed. Their rules: `rules.py`.

Formulas and modules both read a `ModelSpec`, never each other.
"""

from __future__ import annotations

from metacount.errors import SpecError, nearest, shown_name
from metacount.frozen import REQUIRED, fields, frozen
from metacount.position_parts import PARTS, QueryGrowth, RopeScaling, check_parts, part_from
from metacount.rules import check_model, check_workload

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from typing import Any


SEQ_LEN = 2048  # tokens of a sequence, where nobody says and the model can run them


@frozen
class ModelSpec:
    """A transformer language model: sizes and structure, nothing measured.

    Sizes are ints; `substituted` gives the same structure with symbols or arrays in their place.
    A field that has no meaning for the model stays `None` (or False, or 0); setting it is an error.
    """

    # what kind of model, and its two ends
    kind: str
    d_model: int
    n_layers: int  # blocks of the only stack, or of the decoder
    n_encoder_layers: int = 0
    vocab_size: int | None  # None: the body alone, without embedding and head
    tie_embeddings: bool = False
    has_head: bool = True
    head_bias: bool = False
    n_token_types: int = 0
    d_embedding: int | None = None  # width of all tables, with a projection to d_model (ELECTRA)
    head_transform: bool = False  # dense, activation, norm before the head (BERT's masked LM)
    head_transform_bias: bool = False
    embedding_norm: bool = False  # a norm right after the embedding (BLOOM, BERT)
    pooler: bool = False  # dense d -> d with bias and tanh over the first token (BERT)
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float | None = None

    # attention
    attention: str = "gqa"
    n_heads: int
    n_kv_heads: int | None = None
    head_dim: int | None = None
    q_bias: bool = False
    k_bias: bool = False
    v_bias: bool = False
    o_bias: bool = False
    qk_norm: str = "none"  # head: RMSNorm over head_dim; full: over all heads; l2: no weights
    attention_sinks: bool = False  # one learned logit per query head in the softmax's denominator
    attention_scale: float | None = None  # None: 1/sqrt(width of a query head)
    attention_softcap: float | None = None
    window: int | None = None  # positions a windowed layer sees, itself included
    window_kind: str = "sliding"
    window_pattern: str = "L"  # repeated over the layers: L windowed, G global
    # multi-head latent attention (attention = "mla")
    q_lora_rank: int | None = None  # None: queries are not compressed
    kv_lora_rank: int | None = None
    qk_nope_head_dim: int | None = None
    qk_rope_head_dim: int | None = None
    v_head_dim: int | None = None
    mla_bias: bool = False  # on q_a, kv_a and o
    latent_norm_eps: float | None = None  # of the norms over the latents; None: norm_eps

    # feed-forward
    d_ff: int | None = None  # of the dense layers
    activation: str
    gated: bool
    ffn_bias: bool = False
    swish_beta: float = 1.0

    # mixture of experts
    n_experts: int | None = None
    top_k: int | None = None
    d_ff_expert: int | None = None
    n_dense_layers: int = 0
    moe_every: int = 1  # after the dense layers, layer i is MoE when moe_every divides
    moe_offset: int = 0  # i + 1 - moe_offset
    n_shared_experts: int = 0
    d_ff_shared: int | None = None  # of one shared expert; None: d_ff_expert
    shared_expert_gate: bool = False
    router: str = "softmax"
    router_bias: bool = False
    selection_bias: bool = False  # a buffer of n_experts values, added for the choice only
    n_groups: int | None = None
    top_groups: int | None = None
    group_score: str = "top2_sum"
    routed_scale: float = 1.0
    mixer_jitter: float | None = None  # SparseMixer's choice, one expert after another (Phi-MoE)
    router_scales_input: bool = False  # the weight multiplies what goes in, not what comes out
    expert_bias: bool = False

    # norms
    norm: str
    norm_bias: bool = False
    norm_affine: bool = True
    norm_unit_offset: bool = False  # the stored weight is w - 1 (Gemma)
    norm_placement: str = "pre"
    norm_eps: float = 1e-5
    final_norm: bool = True
    first_norm: bool = True  # False: the first block's attention has no norm before it (ModernBERT)

    # positions
    position: str
    n_positions: int | None = None  # rows of a learned table, as stored
    position_offset: int = 0  # rows of a learned table before the first position (OPT: 2)
    n_query_positions: int = 0  # rows of a second table that is the query of the last layer (PanGu)
    rotary_dim: int | None = None  # None: all of head_dim
    rope_theta: float = 10000.0
    rope_theta_windowed: float | None = None  # of windowed layers, where it differs (Gemma 3)
    rope_style: str = "half"
    nope_every: int | None = None  # layer i has no RoPE when nope_every divides i + 1
    rope_scaling: RopeScaling | None = None
    rope_scaling_windowed: RopeScaling | None = None  # of layers that have rope_theta_windowed
    query_growth: QueryGrowth | None = None  # far queries grow (Llama 4, Ministral 3)
    alibi_scale: float = 1.0  # factor on ALiBi's bias (Falcon)
    sinusoid_style: str = "alternating"
    n_buckets: int | None = None  # T5 relative buckets
    max_distance: int | None = None

    def __post_init__(self) -> None:
        check_parts(self)
        check_model(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ModelSpec:
        """Build from plain data; an unknown or missing field is a `SpecError` that names it."""
        names = fields(cls)
        for key, value in data.items():
            if key not in names:
                remedy = nearest(str(key), names, "see `metacount models --fields`")
                raise SpecError(shown_name(key), "is not a field of a model", value, remedy)
        for name, default in names.items():
            if default is REQUIRED and name not in data:
                raise SpecError(name, "is missing", None, f"set {name}")
        parts = {name: part_from(name, data[name]) for name in PARTS if name in data}
        return cls(**{**data, **parts})

    def replace(self, **changes: Any) -> ModelSpec:
        """The same model with other values, checked like a new one."""
        try:
            return self.from_dict({**self.to_dict(), **changes})
        except SpecError as error:
            defaults = fields(type(self))
            raise error.reworded(
                unset=lambda name: f"pass {name}={defaults[name]!r}",
                give=lambda name: f"pass {name} as well",
            ) from None

    def substituted(self, **values: Any) -> Any:
        """The same structure with symbols or arrays for sizes. Unchecked: rules need numbers."""
        other = object.__new__(type(self))
        for name in fields(type(self)):
            value = values[name] if name in values else getattr(self, name)
            object.__setattr__(other, name, value)
        return other

    def to_dict(self) -> dict[str, Any]:
        """Every field, in order; parts as plain data."""
        data = {name: getattr(self, name) for name in fields(type(self))}
        return {**data, **{name: data[name].to_dict() for name in PARTS if data[name] is not None}}

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
        return self.n_experts is not None

    def is_moe_layer(self, index: int) -> bool:
        """Whether block `index` (from 0, in either stack) routes to experts."""
        in_step = (index + 1 - self.moe_offset) % self.moe_every == 0
        return self.is_moe and index >= self.n_dense_layers and in_step

    def is_windowed_layer(self, index: int) -> bool:
        """Whether block `index` sees a window only."""
        pattern = self.window_pattern
        return self.window is not None and pattern[index % len(pattern)] == "L"

    def has_rope_layer(self, index: int) -> bool:
        """Whether block `index` rotates its queries and keys."""
        if self.position != "rope":
            return False
        return self.nope_every is None or (index + 1) % self.nope_every != 0


@frozen
class Workload:
    """What is run: `batch_size` sequences of `seq_len` tokens in `dtype`.

    An encoder-decoder reads `source_len` tokens (None: `seq_len`) and writes `seq_len`.
    A prefix-decoder sees its first `prefix_len` tokens in both directions.
    """

    batch_size: int = 1
    seq_len: int = SEQ_LEN
    dtype: str = "bf16"
    source_len: int | None = None
    prefix_len: int = 0

    def __post_init__(self) -> None:
        check_workload(self)

    def to_dict(self) -> dict[str, Any]:
        """Every field, in order."""
        return {name: getattr(self, name) for name in fields(type(self))}

    @property
    def encoder_len(self) -> int:
        """Tokens that an encoder-decoder's encoder reads."""
        return self.seq_len if self.source_len is None else self.source_len


@frozen
class Request:
    """What somebody asks to be run: a `Workload` whose length may be left to the model."""

    batch_size: int = 1
    seq_len: int | None = None
    dtype: str = "bf16"
    source_len: int | None = None
    prefix_len: int = 0

    def __post_init__(self) -> None:
        self.within(None)

    def within(self, longest: int | None) -> Workload:
        """The workload for a model that can run `longest` tokens (None: any number).

        A length that was asked for stays, whatever the model can run.

        >>> Request().within(512).seq_len, Request().within(8192).seq_len
        (512, 2048)
        >>> Request(seq_len=600).within(512).seq_len
        600
        """
        n = min(SEQ_LEN, longest or SEQ_LEN) if self.seq_len is None else self.seq_len
        return Workload(
            batch_size=self.batch_size,
            seq_len=n,
            dtype=self.dtype,
            source_len=self.source_len,
            prefix_len=self.prefix_len,
        )
