"""What a backward keeps of one rank's part of a model: of a block, and of the ends."""

from __future__ import annotations

from metacount.formulas.dim import Dim
from metacount.formulas.forward import Kept, Pass, dense_of
from metacount.formulas.kept import norm_kept
from metacount.formulas.kept_ends import head_terms, table_terms
from metacount.formulas.kept_model import (
    around_terms,
    attention_terms,
    check_covered,
    feed_forward_terms,
)
from metacount.formulas.kept_moe import rows_kept
from metacount.formulas.sharding import Rank, kept_spec, piece
from metacount.spec import ModelSpec


def block_kept(
    spec: ModelSpec, run: Pass, rank: Rank, *, routed: bool, rotated: bool, first_norm: bool = True
) -> list[Kept]:
    """Name what one block keeps on a rank: as a block of the rank's sizes does.

    With `ep` above 1 the rank's rows R = k·⌈n / tp⌉ go to the experts' ranks, and as many come.
    The first block of some models lacks its first norm.

    Returns: terms; where each expert is chosen equally often.
    Source: `kept_model.block_terms`, `sharding.kept_spec`, `kept_moe.rows_kept`.

    >>> from metacount.catalog import entry
    >>> from metacount.formulas.kept import bytes_of
    >>> run, llama = Pass(batch_size=1, seq_len=2048), entry("llama-7b").spec()
    >>> bytes_of(block_kept(llama, run, Rank(tp=8), routed=False, rotated=True))
    305676288
    """
    check_covered(spec, run)
    mine, n = kept_spec(spec, rank), run.seq_len
    kept = attention_terms(mine, run, n, rotated=rotated)
    kept += around_terms(mine, run, n, cross=False)
    if routed and rank.ep != 1:
        kept += _sent_kept(mine, run, rank)
    else:
        kept += feed_forward_terms(mine, run, n, routed=routed)
    if not first_norm:
        norms, tokens = spec.last_stack.norms, run.batch_size * n
        for term in norm_kept("norm", tokens, spec.d_model, norms, run.widths):
            kept.append(Kept(role=term.role, name=term.name, values=term.values, width=term.width,
                             times=-1))  # fmt: skip
    return kept


def _sent_kept(mine: ModelSpec, run: Pass, rank: Rank) -> list[Kept]:
    """What experts on other ranks keep: the router and the shared experts see every token."""
    mixture, like = mine.last_stack.mixture, dense_of(mine)
    assert mixture is not None  # who asks has experts
    tokens: Dim = run.batch_size * run.seq_len
    whole = feed_forward_terms(mine, run, run.seq_len, routed=True)
    others = [term for term in whole if not term.name.startswith("experts: ")]
    rows = mixture.top_k * piece(tokens, rank.tp, rank.tp_index)
    return others + rows_kept(rows, mine.d_model, mixture, like, run.widths, sent=True)


def first_kept(spec: ModelSpec, run: Pass) -> list[Kept]:
    """Name what the look-ups before the first block keep, which every rank does for all tokens.

    Source: `kept_ends.table_terms`.
    """
    return table_terms(spec, run, run.seq_len)


def last_kept(spec: ModelSpec, run: Pass) -> list[Kept]:
    """Name what is kept after the last block: logits of the whole vocabulary are on every rank.

    Source: `kept.norm_kept`, `kept_ends.head_terms`.
    """
    stack = spec.last_stack
    tokens = run.batch_size * run.seq_len
    kept = head_terms(spec, run)
    if stack.norms.final:
        kept = norm_kept("last norm", tokens, spec.d_model, stack.norms, run.widths) + kept
    return kept
