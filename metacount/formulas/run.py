"""One forward that a tape records: what its words count, its widths in bytes, its attention."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.formulas.dim import Dim
from metacount.formulas.tape import FLOAT32
from metacount.frozen import frozen

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Mapping

EAGER, FLASH, SDPA = "eager", "flash", "sdpa"
ATTENTIONS = (EAGER, FLASH, SDPA)
NONE, FULL, SELECTIVE = "none", "full", "selective"
CHECKPOINTINGS = (NONE, FULL, SELECTIVE)


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


@frozen
class Rank:
    """The degrees that matter to one rank of a mesh, and its indices in them.

    `tp` ranks hold parts of each matrix, `ep` whole experts each; with `ep` 1, experts are cut by
    `tp` like everything else. `cp` ranks hold parts of the same sequences and exchange keys and
    values. `shard` ranks hold the same part of a dense tensor, `copies` the same experts: ZeRO
    spreads each over these.
    """

    tp: Dim = 1
    ep: Dim = 1
    cp: Dim = 1
    shard: Dim = 1
    copies: Dim = 1
    tp_index: Dim = 0
    shard_index: Dim = 0
    copy_index: Dim = 0


ALONE = Rank()


@frozen
class Run:
    """The forward of one stack: `n_queries` positions of each sequence, which see `n_keys`.

    A cross-attention sees `source_len` positions of what an encoder gave.

    `counts` are the numbers behind the words of `terms`: tokens, pairs of positions, chunks, ...
    `value` is the bytes of an activation. `attention` is `eager`, written out, or one fused kernel:
    `flash` of CUDA, `sdpa` of torch's CPU, which is written out where that has none. In a `ring`,
    ranks that have parts of the same sequences exchange keys and values. In a `decode` step one
    token is new: latent attention is absorbed, mixers with a state go one step. On a `rank` of a
    mesh, heads and hidden widths are the rank's own.
    """

    counts: Mapping[str, Dim]
    batch_size: Dim
    n_queries: Dim
    n_keys: Dim
    source_len: Dim = 0
    value: int = 2
    attention: str = EAGER
    ring: bool = False
    decode: bool = False
    rank: Rank = ALONE

    @property
    def wide(self) -> int:
        """Bytes of a value in float32, or in float64 where the activations are."""
        return max(FLOAT32, self.value)
