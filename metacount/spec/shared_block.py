"""Blocks of attention and feed-forward that are stored once and used at many layers (Zamba2)."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.spec.field import MAX_LAYERS, flag, part, size

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    pass


@part
class SharedBlock:
    """Stored blocks, used in turn by the layers of letter S in front of their mixer.

    Each is the stack's attention over hidden state and embedding side by side, and its
    feed-forward. A layer that uses one has adapters of its own and a linear layer of its own.
    """

    n_blocks: int = size(
        "n_shared_blocks",
        "N_s",
        "stored blocks of attention and feed-forward that layers use in turn",
        "blocks",
        "num_mem_blocks",
        most=MAX_LAYERS,
    )
    adapter_rank: int | None = size(
        "adapter_rank",
        "r_a",
        "rank of what each use of a shared block adds to its projections",
        "values",
        "lora_rank",
        default=None,
    )
    attention_adapters: bool = flag(
        "attention_adapters",
        "each use of a shared block adapts queries, keys and values too",
        default=False,
    )

    def check(self) -> None:
        """Raise `SpecError` for adapters of attention without a rank."""
        if self.attention_adapters and self.adapter_rank is None:
            raise SpecError(
                "attention_adapters",
                "has no meaning without adapter_rank",
                True,
                "set adapter_rank, or leave attention_adapters out",
            )
