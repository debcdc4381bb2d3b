"""Attention with key/value heads, and what every attention has: heads, a scale, a window."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.spec.field import (
    MAX_LAYERS,
    MAX_TOKENS,
    choice,
    flag,
    number,
    part,
    pattern,
    size,
    where,
)
from metacount.spec.indexer import BlockIndexer
from metacount.spec.law import Law


@part
class Window:
    """Layers that see the last positions only, and which layers these are."""

    size: int = size(
        "window",
        "w",
        "positions that a windowed layer sees, itself included",
        "positions",
        "sliding_window window_size attention_chunk_size sliding_window_size",
        most=MAX_TOKENS,
    )
    kind: str = choice(
        "window_kind",
        "the last positions, or the positions of the same chunk",
        "sliding",
        "chunked",
        default="sliding",
    )
    pattern: str = pattern(
        "window_pattern",
        "L windowed, G global, repeated over the layers: LLLLLG",
        "L windowed, G global",
        "LLLLLG",
        default="L",
    )

    def check(self) -> None:
        """Raise `SpecError` for a window without a position before the query."""
        if self.size < 2:
            raise SpecError(
                "window",
                "must be at least 2 (a token and one before it)",
                self.size,
                f"choose 2 to {MAX_TOKENS}",
            )

    @property
    def law(self) -> Law:
        """Which layers see the window only."""
        return Law(letters=self.pattern)


@part
class NoAttention:
    """No layer has attention: a model of state-space layers alone."""

    word = "none"
    window = None


@part
class Heads:
    """What every attention has."""

    n_heads: int = size(
        "n_heads",
        "h",
        "query heads",
        "heads",
        "num_attention_heads n_head num_heads num_query_heads attention_heads head_count"
        " decoder_attention_heads encoder_attention_heads",
    )
    scale: float | None = number(
        "attention_scale",
        "factor on the scores; none: 1/sqrt of a query head's width",
        default=None,
    )
    softcap: float | None = number(
        "attention_softcap", "bound that a tanh keeps the scores in", default=None
    )
    window: Window | None = where("window", Window, "without a window", default=None)


@part
class Attention(Heads):
    """Queries in groups, each with a key/value head: multi-head, multi-query and between."""

    word = "gqa"

    n_kv_heads: int = size(
        "n_kv_heads",
        "h_kv",
        "key/value heads",
        "heads",
        "num_key_value_heads num_kv_heads n_head_kv kv_n_heads num_query_groups n_query_groups"
        " multi_query_group_num head_count_kv",
    )
    head_dim: int = size(
        "head_dim",
        "h_d",
        "width of one head",
        "values",
        "head_size d_head d_kv d_k kv_channels attention_head_size key_length",
    )
    q_bias: bool = flag("q_bias", "a bias on the query projection", default=False)
    k_bias: bool = flag("k_bias", "a bias on the key projection", default=False)
    v_bias: bool = flag("v_bias", "a bias on the value projection", default=False)
    o_bias: bool = flag("o_bias", "a bias on the output projection", default=False)
    qk_norm: str = choice(
        "qk_norm",
        "RMSNorm of queries and keys: each head, all heads, or without weights (l2)",
        "none",
        "head",
        "full",
        "l2",
        "layernorm",
        default="none",
    )
    out_scale: float = number("attention_out_scale", "factor on what attention adds", default=1.0)
    sinks: bool = flag(
        "attention_sinks",
        "one learned logit per query head in the softmax's denominator",
        default=False,
    )
    output_gate: bool = flag(
        "output_gate",
        "queries bring a gate of their width, whose sigmoid the output is times",
        default=False,
    )
    indexer: BlockIndexer | None = where(
        "index_block_len", BlockIndexer, "without index_block_len", default=None
    )
    v_norm: bool = flag(
        "v_norm", "RMSNorm of each head's values, without weights (Gemma 3n)", default=False
    )
    n_kv_shared_layers: int = size(
        "n_kv_shared_layers",
        "N_kv",
        "last blocks that make no keys and values: they read those of the last block before that"
        " sees as far as they do",
        "blocks",
        "num_kv_shared_layers",
        default=0,
        least=0,
        most=MAX_LAYERS,
    )

    def check(self) -> None:
        """Raise `SpecError` unless the query heads fall into groups, those of an index, too."""
        at_most("n_kv_heads", self.n_kv_heads, "n_heads", self.n_heads)
        divides("n_kv_heads", self.n_kv_heads, "n_heads", self.n_heads)
        index = self.indexer
        if index is not None:
            at_most("index_local_blocks", index.local_blocks, "index_top_blocks", index.top_blocks)
            at_most("n_index_heads", index.n_heads, "n_heads", self.n_heads)
            divides("n_index_heads", index.n_heads, "n_heads", self.n_heads)


def at_most(small: str, low: int, large: str, high: int) -> None:
    """Raise `SpecError` unless low <= high, in the names of the two fields."""
    if low > high:
        raise SpecError(small, f"must be at most {large} = {high}", low, f"choose 1 to {high}")


def divides(small: str, part_: int, large: str, whole: int) -> None:
    """Raise `SpecError` unless the one divides the other; it names the numbers that do."""
    if whole % part_:
        divisors = [n for n in range(1, min(whole, 4096) + 1) if whole % n == 0]
        choices = ", ".join(map(str, divisors[:12])) + (", ..." if len(divisors) > 12 else "")
        raise SpecError(
            small,
            f"must divide {large}: {whole} % {part_} = {whole % part_}",
            part_,
            f"choose {choices}",
        )
