"""One forward whose backward comes later: its sizes, its widths in bytes, what it keeps."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.formulas.dim import Dim
from metacount.frozen import frozen
from metacount.spec import ModelSpec
from metacount.spec.attention import Attention
from metacount.spec.ffn import FeedForward
from metacount.spec.mla import LatentAttention

INDEX = 8  # bytes of a token id, a position or any other index
FLAG = 1  # bytes of a bool
FLOAT32 = 4
FLOAT64 = 8

EAGER, FLASH, SDPA = "eager", "flash", "sdpa"
ATTENTIONS = (EAGER, FLASH, SDPA)
MATH = "math"  # sdpa where torch's CPU has no kernel: both products written out
WRITTEN = (EAGER, MATH)
NONE, FULL, SELECTIVE = "none", "full", "selective"
CHECKPOINTINGS = (NONE, FULL, SELECTIVE)


@frozen
class Kept:
    """A storage that the backward needs: `values` of `width` bytes, `times` of them.

    `role` is that of the operation that keeps it. `gradients` names those that need it, each of a
    tensor of activations or of a weight: without all of them it is not kept (of `()` nobody says).
    """

    role: str
    name: str
    values: Dim
    width: int
    times: Dim = 1
    gradients: tuple[str, ...] = ()

    @property
    def bytes(self) -> Dim:
        """Bytes of all of them."""
        return self.times * self.values * self.width


@frozen
class Widths:
    """Bytes of an activation and of what is computed in float32 at least.

    >>> Widths(value=2).wide, Widths(value=2).copies, Widths(value=8).wide
    (4, True, 8)
    """

    value: int

    def __post_init__(self) -> None:
        if self.value not in (2, 4, 8):
            raise SpecError(
                "dtype",
                "has no formula for what a backward keeps",
                self.value,
                "choose bf16, fp16, fp32 or fp64",
            )

    @property
    def wide(self) -> int:
        """Bytes of a value in float32, or in float64 where the activations are."""
        return max(FLOAT32, self.value)

    @property
    def copies(self) -> bool:
        """Whether going to float32 makes another tensor."""
        return self.value < FLOAT32


@frozen
class Attending:
    """Who attends to whom in one forward: sequences, queries and keys of each, and how.

    `attention` is `eager`, written out, or one fused kernel: `flash` of CUDA, `sdpa` of the CPU,
    which is `math` where that has none for it. In a `ring`, ranks that have parts of the same
    sequences exchange keys and values.
    """

    batch_size: Dim
    n_queries: Dim
    n_keys: Dim
    widths: Widths
    attention: str = EAGER
    ring: bool = False

    @property
    def tokens(self) -> Dim:
        """Queries of all sequences."""
        return self.batch_size * self.n_queries

    @property
    def source_tokens(self) -> Dim:
        """Keys of all sequences."""
        return self.batch_size * self.n_keys

    def term(
        self,
        name: str,
        values: Dim,
        *,
        role: str = "attention",
        width: int = 0,
        gradients: tuple[str, ...] = (),
    ) -> Kept:
        """Build the term of a tensor that is kept, of activations unless a width is given."""
        width = width or self.widths.value
        return Kept(role=role, name=name, values=values, width=width, gradients=gradients)


@frozen
class Pass:
    """One forward with a loss: its sizes, bytes of an activation, kind of attention, checkpoints.

    An encoder-decoder reads `source_len` tokens of each sequence (None: `seq_len`). In a `ring`,
    `seq_len` are those of one rank.
    """

    batch_size: Dim
    seq_len: Dim
    source_len: Dim | None = None
    bytes_per_value: int = 2
    attention: str = EAGER
    checkpointing: str = NONE
    ring: bool = False

    def __post_init__(self) -> None:
        for name, value, known in (
            ("attention", self.attention, ATTENTIONS),
            ("checkpointing", self.checkpointing, CHECKPOINTINGS),
        ):
            if value not in known:
                raise SpecError(name, "has no formula", value, f"choose {' or '.join(known)}")

    @property
    def source(self) -> Dim:
        """Tokens that an encoder reads."""
        return self.seq_len if self.source_len is None else self.source_len

    @property
    def widths(self) -> Widths:
        """Bytes of an activation, and of what is computed in float32."""
        return Widths(value=self.bytes_per_value)

    def attending(self, n_queries: Dim, n_keys: Dim) -> Attending:
        """Describe an attention of this forward, of n_queries queries to n_keys keys."""
        return Attending(
            batch_size=self.batch_size,
            n_queries=n_queries,
            n_keys=n_keys,
            widths=self.widths,
            attention=self.attention,
            ring=self.ring,
        )


def attention_of(spec: ModelSpec) -> Attention | LatentAttention | None:
    """Return the attention of the layers that have one; None in a model without.

    >>> from metacount.catalog import entry
    >>> attention_of(entry("jamba-1.5-mini").spec()).n_heads
    32
    >>> attention_of(entry("mamba-2.8b").spec())
    """
    mixer = spec.last_stack.attention
    return mixer if isinstance(mixer, Attention | LatentAttention) else None


def dense_of(spec: ModelSpec) -> FeedForward:
    """Return the form of every feed-forward; raise `SpecError` where there is none."""
    part = spec.last_stack.feed_forward
    if part is None:
        raise SpecError(
            "activation", "has no formula: no layer has a feed-forward", None, "set activation"
        )
    return part
