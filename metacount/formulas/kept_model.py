"""What the backward of a whole model keeps: its blocks, as many as there are of each, its ends.

With checkpointing a block keeps its input, and the results of its products if that is selective.
"""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.formulas import stack
from metacount.formulas.attention import lettered_layers
from metacount.formulas.covered import check_kept_run
from metacount.formulas.dim import Dim, is_zero
from metacount.formulas.forward import NONE, SELECTIVE, Kept, Pass, Widths, attention_of, dense_of
from metacount.formulas.kept import ffn_kept, norm_kept
from metacount.formulas.kept_attention import attention_kept, latent_kept, several
from metacount.formulas.kept_ends import head_terms, table_terms
from metacount.formulas.kept_masks import (
    handed_to_blocks,
    masks_kept,
    self_attending,
    window_kept,
    windowed_layers,
)
from metacount.formulas.kept_moe import moe_kept
from metacount.formulas.kept_position import relative_kept
from metacount.formulas.kept_recurrent import recurrent_terms
from metacount.formulas.kept_selected import results_terms
from metacount.formulas.kept_shared import shared_use_terms
from metacount.spec import ModelSpec
from metacount.spec.attention import Attention
from metacount.spec.mla import LatentAttention
from metacount.spec.position import Alibi, Learned, RelativeBuckets, Rope, TransformerXL
from metacount.spec.stack import SHARING, WITH_ATTENTION, WITH_DENSE, WITH_EXPERTS, WITH_STATE

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.spec.stack import Stack


def kept_terms(spec: ModelSpec, run: Pass) -> list[Kept]:
    """List every storage that autograd holds between the loss and its backward.

    The stacks, the tables that are looked up, what makes logits of the last block, and the loss:
    cross-entropy of all positions in float32 at least.

    Returns: terms; none of them a parameter.
    Source: the functions of `kept.py` and `kept_attention.py`.

    >>> from metacount.catalog import entry
    >>> from metacount.formulas.kept import bytes_of
    >>> run = Pass(batch_size=1, seq_len=2048)
    >>> bytes_of(kept_terms(entry("llama-7b").spec(), run))
    39605280772
    """
    check_loss(spec)
    lengths = [run.source, run.seq_len] if spec.has_encoder else [run.seq_len]
    kept: list[Kept] = []
    for part, n in zip(spec.stacks, lengths, strict=True):
        kept += table_terms(spec, run, n)
        kept += stack_terms(spec, run, part, n)
    return kept + head_terms(spec, run)


def check_loss(spec: ModelSpec) -> None:
    """Raise `SpecError` for a model without logits."""
    if spec.embedding is None or spec.head is None:
        rule = "has no formula for training: without logits there is no loss"
        name = "has_head" if spec.embedding else "vocab_size"
        raise SpecError(name, rule, getattr(spec, name), "choose a model with an output head")


def stack_terms(spec: ModelSpec, run: Pass, part: Stack, n: Dim) -> list[Kept]:
    """List what the blocks of one stack keep, and the norm after them.

    A decoder with an encoder keeps what the encoder gave, once for all its blocks.

    Returns: terms.
    Source: `block_terms`, as many as there are of each kind.
    """
    check_covered(spec, run)
    cross = spec.has_encoder and part is spec.decoder
    d, widths, layers = spec.d_model, run.widths, part.n_layers
    kept: list[Kept] = []
    if cross:
        memory = run.batch_size * run.source * d
        kept.append(_of("attention", "what the encoder gave", memory, widths))
    if run.checkpointing != NONE:
        kept.append(_of("other", "input of a block", run.batch_size * n * d, widths, layers))
        kept += handed_to_blocks(spec, run, n)
        if run.checkpointing == SELECTIVE:
            kept += results_terms(spec, run, n, layers, cross=cross)
    else:
        kept += blocks_terms(spec, run, n, layers, cross=cross)
    if part.norms.final:
        kept += norm_kept("last norm", run.batch_size * n, d, part.norms, widths)
    return kept


def _of(role: str, name: str, values: Dim, widths: Widths, times: Dim = 1) -> Kept:
    return Kept(role=role, name=name, values=values, width=widths.value, times=times)


def repeated(term: Kept, times: Dim) -> Kept:
    """Multiply the term of a kept storage by `times`.

    >>> repeated(Kept(role="norm", name="scale", values=2048, width=4), 32).bytes
    262144
    """
    return Kept(
        role=term.role,
        name=term.name,
        # a number that multiplies a sum of layers would part the sum, in letters
        values=term.times * term.values,
        width=term.width,
        times=times,
    )


def check_covered(spec: ModelSpec, run: Pass) -> None:
    """Raise `SpecError` for a structure, or a way to run it, whose kept bytes have no formula."""
    check_kept_run(spec, run)
    window = spec.last_stack.attention.window
    windowed = window is not None and set(window.pattern) != {"L"}
    if windowed and isinstance(spec.positions, RelativeBuckets | Alibi):
        raise SpecError(
            "window_pattern",
            "has no formula for training with a bias of positions",
            spec.window_pattern,
            "leave the window out",
        )


def blocks_terms(spec: ModelSpec, run: Pass, n: Dim, n_layers: Dim, *, cross: bool) -> list[Kept]:
    """List what all blocks of a stack keep, each part as often as it stands there."""
    last, positions, norms = spec.last_stack, spec.positions, spec.last_stack.norms
    n_attending, n_keeping, n_mixing = (
        lettered_layers(n_layers, last.mixer_pattern, letters) for letters in ("AP", "RPS", "ARPS")
    )
    n_sharing = lettered_layers(n_layers, last.mixer_pattern, SHARING)
    n_rotated = rotated_layers(spec, n_layers, n_attending)
    n_routed, n_dense = stack.moe_layers(spec, n_layers), stack.dense_layers(spec, n_layers)
    parts: list[tuple[Dim, list[Kept]]] = []
    if last.uniform:
        parts.append((n_layers, around_terms(spec, run, n, cross=cross)))
    else:
        one = around_terms(spec, run, n, cross=False, branches=1)
        # apart, as closed forms have a letter for each of these numbers
        n_both = stack.layers_of_both(spec, n_layers)  # whose branches read one input
        parts += [(n_blocks, one) for n_blocks in (n_mixing, n_routed - n_both, n_dense)]
    if attention_of(spec) is not None:
        parts.append((n_rotated, attention_terms(spec, run, n, rotated=True)))
        parts.append((n_attending - n_rotated, attention_terms(spec, run, n, rotated=False)))
        parts.append((windowed_layers(spec, n_layers), window_kept(spec, run, n)))
    if not is_zero(n_keeping):
        parts.append((n_keeping, recurrent_terms(spec, run, n)))
    if last.shared is not None:
        parts.append((n_sharing, shared_use_terms(spec, run, n)))
    elif last.feed_forward is not None:
        parts.append((n_routed, feed_forward_terms(spec, run, n, routed=True)))
        parts.append((n_dense, feed_forward_terms(spec, run, n, routed=False)))
    kept = [repeated(term, times) for times, terms in parts if not is_zero(times) for term in terms]
    if not norms.first:
        missing = norm_kept("norm", run.batch_size * n, spec.d_model, norms, run.widths)
        kept += [repeated(term, -1) for term in missing]
    if isinstance(positions, Learned) and positions.n_query_positions:
        # one row for all sequences, copied for each where there are more positions than one
        sequences = 1 + several(n) * (run.batch_size - 1)
        values = sequences * n * spec.d_model
        kept.append(_of("attention", "query positions", values, run.widths))
    return kept


def rotated_layers(spec: ModelSpec, n_layers: Dim, n_attending: Dim) -> Dim:
    """Count the blocks whose attention rotates queries and keys, `n_attending` having attention."""
    positions, last = spec.positions, spec.last_stack
    if not isinstance(positions, Rope):
        return 0
    if positions.nope_every is None:
        return n_attending
    if last.uniform:
        return positions.law.count(n_layers)
    if not isinstance(n_layers, int):
        raise SpecError(
            "nope_every",
            "has no formula for training in letters beside a pattern of mixers",
            positions.nope_every,
            "give numbers",
        )
    attending = (i for i in range(n_layers) if last.mixer_of(i) in WITH_ATTENTION)
    return sum(positions.law.holds(i) for i in attending)


def block_terms(
    spec: ModelSpec,
    run: Pass,
    n: Dim,
    *,
    rotated: bool,
    cross: bool = False,
    mixer: str = "A",
    ffn: str = "F",
) -> list[Kept]:
    """List what one block keeps, with `rotated` positions or without, and without a window.

    `mixer` and `ffn` are its letters in the stack's patterns.

    Returns: terms; without what a decoder keeps of its encoder once for all its blocks.
    Source: `attention_terms`, `recurrent_terms`, `feed_forward_terms`, `around_terms`.

    >>> from metacount.catalog import entry
    >>> from metacount.formulas.kept import bytes_of
    >>> run, llama = Pass(batch_size=1, seq_len=2048), entry("llama-7b").spec()
    >>> bytes_of(block_terms(llama, run, 2048, rotated=True))
    1226850304
    """
    check_covered(spec, run)
    kept: list[Kept] = []
    if mixer == SHARING:
        kept += shared_use_terms(spec, run, n)
    elif mixer in WITH_ATTENTION:
        kept += attention_terms(spec, run, n, rotated=rotated)
    if mixer in WITH_STATE:
        kept += recurrent_terms(spec, run, n)
    if ffn in WITH_EXPERTS:
        kept += feed_forward_terms(spec, run, n, routed=True)
    if ffn in WITH_DENSE:
        kept += feed_forward_terms(spec, run, n, routed=False)
    branches = (mixer != "N") + (ffn != "N") + cross
    return kept + around_terms(spec, run, n, cross=cross, branches=branches)


def feed_forward_terms(spec: ModelSpec, run: Pass, n: Dim, *, routed: bool) -> list[Kept]:
    """List what the feed-forward of one block keeps behind its input.

    Source: `kept.ffn_kept`, `kept.moe_kept`.
    """
    mixture, tokens, dense = spec.last_stack.mixture, run.batch_size * n, dense_of(spec)
    if routed and mixture is not None:
        return moe_kept(tokens, spec.d_model, mixture, dense, run.widths)
    return [] if dense.d_ff is None else ffn_kept(tokens, dense.d_ff, dense, run.widths)


def around_terms(
    spec: ModelSpec, run: Pass, n: Dim, *, cross: bool, branches: int | None = None
) -> list[Kept]:
    """List what a block of so many `branches` keeps beside its mixer and its feed-forward.

    The inputs of its branches, c·n·d each, its norms, and its cross-attention where it has one. A
    parallel block with one norm has one input for both branches.

    Source: `kept.norm_kept`, `kept_attention.attention_kept`.
    """
    norms, widths, tokens = spec.last_stack.norms, run.widths, run.batch_size * n
    branches = 2 + cross if branches is None else branches
    placement, kept = norms.placement, []
    n_norms = {"parallel": 1, "sandwich": 2 * branches}.get(placement, branches)
    n_inputs = 1 if placement == "parallel" else branches
    if cross:
        part = attention_of(spec)
        assert isinstance(part, Attention)  # a cross-attention is none of a latent
        kept += attention_kept(run.attending(n, run.source), part, norms)
    kept.append(_of("other", "input of a branch", tokens * spec.d_model, widths, n_inputs))
    one = norm_kept("norm", tokens, spec.d_model, norms, widths)
    kept += [repeated(term, n_norms) for term in one]
    if placement == "parallel_two" and not widths.copies and norms.kind == "rmsnorm":
        kept.append(repeated(one[0], -1))  # both norms keep the same x
    return kept


def attention_terms(
    spec: ModelSpec, run: Pass, n: Dim, *, rotated: bool, biased: bool | None = None
) -> list[Kept]:
    """List what one block's self-attention keeps behind its input, the mask of a window apart.

    `biased`: whether a bias of the scores has a gradient (None: all is trained).

    Source: `kept_attention.attention_kept`, `latent_kept`, `relative_kept`, `kept_masks`.
    """
    part, norms, positions = attention_of(spec), spec.last_stack.norms, spec.positions
    attending = self_attending(spec, run, n, biased=biased)
    masks = masks_kept(spec, attending)
    if isinstance(part, LatentAttention):
        return masks + latent_kept(attending, part, rotated=rotated)
    assert isinstance(part, Attention)  # who asks has asked
    rope = positions if isinstance(positions, Rope) and rotated else None
    growth = positions.growth if isinstance(positions, Rope) else None
    kept = attention_kept(
        attending,
        part,
        norms,
        rope=rope,
        grown=growth is not None and not (growth.nope_only and rotated),
        qk_norm="none" if part.qk_norm == "l2" and rope is None else part.qk_norm,
        sinks=part.sinks,
        gate=part.output_gate,
    )
    if isinstance(positions, TransformerXL):
        kept += relative_kept(attending, part, spec.d_model)
    return kept + masks
