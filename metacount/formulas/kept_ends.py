"""What a backward keeps of the ends of a model: the look-ups, the head, the loss."""

from __future__ import annotations

from metacount.formulas.dim import Dim
from metacount.formulas.forward import INDEX, Kept, Pass, dense_of
from metacount.formulas.kept import activation_kept, norm_kept
from metacount.spec import ModelSpec
from metacount.spec.position import Learned, RelativeBuckets


def table_terms(spec: ModelSpec, run: Pass, n: Dim) -> list[Kept]:
    """List what the look-ups before a stack of blocks keep, and what makes hidden states of them.

    8 bytes a token id, a token type, a position; of T5's buckets 8 for each pair of positions

    Returns: terms.
    Source: `kept.norm_kept`.

    >>> from metacount.catalog import entry
    >>> from metacount.formulas.kept import bytes_of
    >>> bytes_of(table_terms(entry("gpt2").spec(), Pass(batch_size=1, seq_len=1024), 1024))
    16384
    """
    tables, positions, norms = spec.embedding, spec.positions, spec.last_stack.norms
    assert tables is not None
    tokens, widths = run.batch_size * n, run.widths

    def term(role: str, name: str, values: Dim, width: int, gradient: str) -> Kept:
        return Kept(role=role, name=name, values=values, width=width, gradients=(gradient,))

    kept = [term("embedding", "token ids", tokens, INDEX, "embed_tokens")]
    if tables.n_token_types:
        kept.append(term("embedding", "token types", tokens, INDEX, "embed_types"))
    if isinstance(positions, Learned):
        kept.append(term("position", "positions", n, INDEX, "embed_positions"))
        if positions.n_query_positions:
            kept.append(term("position", "positions of the queries", n, INDEX, "embed_queries"))
    if isinstance(positions, RelativeBuckets):
        kept.append(term("position", "bucket of each distance", n * n, INDEX, "relative_bias"))
    width = spec.d_model if tables.width is None else tables.width
    if tables.norm:
        kept += norm_kept("norm of the embedding", tokens, width, norms, widths)
    if tables.width is not None:
        values = tokens * width
        kept.append(
            term("embedding", "input of the projection", values, widths.value, "embed_proj")
        )
    return kept


def head_terms(spec: ModelSpec, run: Pass) -> list[Kept]:
    """List what is kept from the last block's output to the loss.

    the head's input c·n·d, the log-softmax of all logits w·n·V, 8·n for the targets, and how many
    they are (+ BERT's transform, + c·n·V for a cap on the logits)

    Returns: terms; logits themselves and their float32 copy are needed by nothing after the loss.
    Source: `kept.norm_kept`, `kept.activation_kept`; torch's derivative of the cross-entropy.

    >>> from metacount.catalog import entry
    >>> from metacount.formulas.kept import bytes_of
    >>> bytes_of(head_terms(entry("gpt2").spec(), Pass(batch_size=1, seq_len=1024)))
    207433732
    """
    tables, head, stack = spec.embedding, spec.head, spec.last_stack
    assert tables is not None and head is not None
    tokens, widths = run.batch_size * run.seq_len, run.widths
    width = spec.d_model if tables.width is None else tables.width
    logits = tokens * tables.vocab_size

    def term(name: str, values: Dim, bytes_: int, gradient: str, times: Dim = 1) -> Kept:
        return Kept(
            role="head",
            name=name,
            values=values,
            width=bytes_,
            times=times,
            gradients=(gradient,),
        )

    reads = "lm_head" if head.transform is None else "head_transform"
    kept = [term("input", tokens * spec.d_model, widths.value, reads)]
    if head.transform is not None:
        act = activation_kept(dense_of(spec))
        n_kept = act.argument + act.between + act.result
        kept.append(term("transform", tokens * width, widths.value, "transform", n_kept))
        normed = norm_kept("norm of the transform", tokens, width, stack.norms, widths)
        shared = act.result and not widths.copies and stack.norms.kind == "rmsnorm"
        kept += normed[shared:]  # the norm keeps the activation's result, which kept it already
        kept.append(term("normed transform", tokens * width, widths.value, "lm_head"))
    if head.softcap is not None:
        kept.append(term("tanh of the logits", logits, widths.value, "logits"))
    return [
        *kept,
        term("log-softmax", logits, widths.wide, "logits"),
        term("targets", tokens, INDEX, "logits"),
        term("how many targets", 1, widths.wide, "logits"),
    ]
