"""What one rank keeps of its part of a model: for a backward, and of sequences that it serves."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.formulas.attention import cached_positions
from metacount.formulas.block import kv_cache_values
from metacount.formulas.caches import state_bytes
from metacount.formulas.dim import Dim
from metacount.formulas.forward import EAGER, FLASH, SDPA, SELECTIVE, Kept, Pass, dense_of
from metacount.formulas.indexed import index_cache
from metacount.formulas.kept import norm_kept
from metacount.formulas.kept_ends import head_terms
from metacount.formulas.kept_model import block_terms, check_covered, repeated
from metacount.formulas.kept_moe import rows_kept
from metacount.formulas.sharding import Rank, kept_spec, piece
from metacount.formulas.stack import recurrent_layers
from metacount.spec import ModelSpec
from metacount.spec.mla import LatentAttention
from metacount.spec.stack import WITH_ATTENTION, WITH_EXPERTS, WITH_STATE


def block_kept(
    spec: ModelSpec,
    run: Pass,
    rank: Rank,
    *,
    rotated: bool,
    mixer: str = "A",
    ffn: str = "F",
    first_norm: bool = True,
) -> list[Kept]:
    """List what one block keeps on a rank: as much as a block of the rank's sizes.

    With `ep` above 1 the rank's rows R = k·⌈n / tp⌉ go to the experts' ranks, and as many come.
    The first block of some models lacks its first norm. `mixer` and `ffn` are the block's letters
    in the patterns of its stack.

    Returns: terms; where each expert is chosen equally often.
    Source: `kept_model.block_terms`, `sharding.kept_spec`, `kept_moe.rows_kept`.

    >>> from metacount.catalog import entry
    >>> from metacount.formulas.kept import bytes_of
    >>> run, llama = Pass(batch_size=1, seq_len=2048), entry("llama-7b").spec()
    >>> bytes_of(block_kept(llama, run, Rank(tp=8), rotated=True))
    305676288
    """
    mine, n = kept_spec(spec, rank), run.seq_len
    kept = block_terms(mine, run, n, rotated=rotated, mixer=mixer, ffn=ffn)
    tokens, mixture = run.batch_size * n, mine.last_stack.mixture
    if ffn in WITH_EXPERTS and rank.ep != 1:
        assert mixture is not None
        rows = mixture.top_k * piece(tokens, rank.tp, rank.tp_index)
        kept = [term for term in kept if not term.name.startswith("experts: ")]
        kept += rows_kept(rows, spec.d_model, mixture, dense_of(mine), run.widths, sent=True)
    if not first_norm:
        missing = norm_kept("norm", tokens, spec.d_model, spec.last_stack.norms, run.widths)
        kept += [repeated(term, -1) for term in missing]
    return kept


def check_rank_covered(spec: ModelSpec, run: Pass) -> None:
    """Raise `SpecError` where what a rank keeps has no formula."""
    if run.attention == SDPA:
        raise SpecError("attention", "has no formula", SDPA, f"choose {EAGER} or {FLASH}")
    if run.checkpointing == SELECTIVE:
        rule = "has no formula of what a rank keeps"
        raise SpecError("checkpointing", rule, SELECTIVE, "choose none or full")
    check_covered(spec, run)


def last_kept(spec: ModelSpec, run: Pass) -> list[Kept]:
    """List what is kept after the last block, logits of the whole vocabulary being on every rank.

    Source: `kept.norm_kept`, `kept_ends.head_terms`.
    """
    stack = spec.last_stack
    tokens = run.batch_size * run.seq_len
    kept = head_terms(spec, run)
    if stack.norms.final:
        kept = norm_kept("last norm", tokens, spec.d_model, stack.norms, run.widths) + kept
    return kept


def cached_bytes(
    spec: ModelSpec,
    run: Pass,
    rank: Rank,
    *,
    mixer: str = "A",
    window: Dim | None = None,
    indexed: bool = False,
) -> Dim:
    """Count the bytes of keys and values that one block keeps on a rank; all heads share MLA's.

    `mixer` is its letter in the pattern of its stack; `window` what it sees at most; `indexed`: it
    has a block indexer, whose keys every rank keeps.

    Returns: bytes; none without attention.
    Source: `block.kv_cache_values`, `indexed.index_cache`, `attention.cached_positions`.

    >>> from metacount.catalog import entry
    >>> run, llama = Pass(batch_size=1, seq_len=2048), entry("llama-7b").spec()
    >>> cached_bytes(llama, run, Rank(tp=8))
    4194304
    """
    if mixer not in WITH_ATTENTION:
        return 0
    shared = isinstance(spec.last_stack.attention, LatentAttention)
    values = kv_cache_values(spec) // (1 if shared else rank.tp)
    if indexed:
        values += sum(tensor.size for tensor in index_cache(spec))
    kept = cached_positions(run.seq_len, window)
    return run.batch_size * kept * values * run.bytes_per_value


def block_state_bytes(spec: ModelSpec, run: Pass, *, mixer: str) -> Dim:
    """Count the bytes that the mixer of one block keeps between tokens, on a rank that has it.

    Returns: bytes; none without a state.
    Source: `caches.state_bytes`, of blocks that are all alike.

    >>> from metacount.catalog import entry
    >>> run, jamba = Pass(batch_size=1, seq_len=2048), entry("jamba-1.5-mini").spec()
    >>> 28 * block_state_bytes(jamba, run, mixer="R"), block_state_bytes(jamba, run, mixer="A")
    (16515072, 0)
    """
    if mixer not in WITH_STATE:
        return 0
    whole = state_bytes(spec, batch_size=run.batch_size, bytes_per_value=run.bytes_per_value)
    return whole // recurrent_layers(spec)
