"""What the backward of a whole model keeps: its blocks, as many as there are of each kind, its ends.

With full checkpointing a block keeps its input and computes the rest again.
"""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.formulas.dim import Dim, is_zero
from metacount.formulas.kept import (
    INDEX,
    Kept,
    Widths,
    activation_kept,
    ffn_kept,
    moe_kept,
    norm_kept,
)
from metacount.formulas.kept_attention import (
    ATTENTIONS,
    EAGER,
    FLASH,
    Attending,
    attention_kept,
    check_fused,
    latent_kept,
    relative_kept,
)
from metacount.frozen import frozen
from metacount.spec import ModelSpec
from metacount.spec.attention import Attention
from metacount.spec.mla import LatentAttention
from metacount.spec.position import Alibi, Learned, RelativeBuckets, Rope, TransformerXL

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.spec.stack import Stack

NONE, FULL = "none", "full"
CHECKPOINTINGS = (NONE, FULL)
NORMS_AFTER = ("post", "deep", "sandwich", "post_branch")  # a norm after each branch
NORMS_BEFORE = ("pre", "sandwich", "parallel_two")  # a norm before each branch


@frozen
class Pass:
    """One forward with a loss: its sizes, bytes of an activation, kind of attention, checkpoints.

    An encoder-decoder reads `source_len` tokens of each sequence (None: `seq_len`).
    """

    batch_size: Dim
    seq_len: Dim
    source_len: Dim | None = None
    bytes_per_value: int = 2
    attention: str = EAGER
    checkpointing: str = NONE

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
        """An attention of so many queries to so many keys."""
        return Attending(
            batch_size=self.batch_size,
            n_queries=n_queries,
            n_keys=n_keys,
            widths=self.widths,
            attention=self.attention,
        )


def kept_terms(spec: ModelSpec, run: Pass) -> list[Kept]:
    """Name every storage that autograd holds between the loss and its backward.

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
    tables, head = spec.embedding, spec.head
    if tables is None or head is None:
        raise SpecError("has_head" if tables else "vocab_size",
                        "has no formula for training: without logits there is no loss", None,
                        "choose a model with an output head")  # fmt: skip
    lengths = [run.source, run.seq_len] if spec.has_encoder else [run.seq_len]
    kept: list[Kept] = []
    for part, n in zip(spec.stacks, lengths, strict=True):
        kept += _table_terms(spec, run, n)
        kept += stack_terms(spec, run, part, n)
    return kept + _head_terms(spec, run)


def _table_terms(spec: ModelSpec, run: Pass, n: Dim) -> list[Kept]:
    """The look-ups before a stack of blocks, and what makes hidden states of them."""
    tables, positions, norms = spec.embedding, spec.positions, spec.last_stack.norms
    assert tables is not None
    tokens, widths = run.batch_size * n, run.widths

    def term(role: str, name: str, values: Dim, width: int) -> Kept:
        return Kept(role=role, name=name, values=values, width=width)

    kept = [term("embedding", "token ids", tokens, INDEX)]
    if tables.n_token_types:
        kept.append(term("embedding", "token types", tokens, INDEX))
    if isinstance(positions, Learned):
        kept.append(term("position", "positions", n, INDEX))
        if positions.n_query_positions:
            kept.append(term("position", "positions of the queries", n, INDEX))
    if isinstance(positions, RelativeBuckets):
        kept.append(term("position", "bucket of each distance", n * n, INDEX))
    width = spec.d_model if tables.width is None else tables.width
    if tables.norm:
        kept += norm_kept("norm of the embedding", tokens, width, norms, widths)
    if tables.width is not None:
        kept.append(term("embedding", "input of the projection", tokens * width, widths.value))
    return kept


def stack_terms(spec: ModelSpec, run: Pass, part: Stack, n: Dim) -> list[Kept]:
    """Name what the blocks of one stack keep, and the norm after them.

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
    if run.checkpointing == FULL:
        kept.append(_of("other", "input of a block", run.batch_size * n * d, widths, layers))
        kept += _handed_to_blocks(spec, run, n)
    else:
        kept += _block_terms(spec, run, n, layers, cross=cross)
    if part.norms.final:
        kept += norm_kept("last norm", run.batch_size * n, d, part.norms, widths)
    return kept


def _of(role: str, name: str, values: Dim, widths: Widths, times: Dim = 1) -> Kept:
    return Kept(role=role, name=name, values=values, width=widths.value, times=times)


def _times(term: Kept, times: Dim) -> Kept:
    return Kept(role=term.role, name=term.name, values=term.values, width=term.width,
                times=times * term.times)  # fmt: skip


def _handed_to_blocks(spec: ModelSpec, run: Pass, n: Dim) -> list[Kept]:
    """What a checkpointed block is given beside its input, which it must keep as well."""
    positions, heads = spec.positions, spec.last_stack.attention.n_heads
    if isinstance(positions, RelativeBuckets):
        return [_of("position", "bias of each pair", heads * n * n, run.widths)]
    if isinstance(positions, Alibi):
        return [Kept(role="position", name="bias of each pair", values=heads * n * n, width=8)]
    if isinstance(positions, Learned) and positions.n_query_positions:
        return [_of("position", "query positions", n * spec.d_model, run.widths)]
    return []


def check_covered(spec: ModelSpec, run: Pass) -> None:
    """Raise `SpecError` for a structure that no formula of training covers."""
    mixer, positions = spec.last_stack.attention, spec.positions
    if not isinstance(mixer, Attention | LatentAttention):
        raise SpecError("attention", "has no formula for training", type(mixer).__name__,
                        "choose gqa or mla")  # fmt: skip
    windowed = mixer.window is not None and set(mixer.window.pattern) != {"L"}
    if windowed and isinstance(positions, RelativeBuckets | Alibi):
        raise SpecError("window_pattern", "has no formula for training with a bias of positions",
                        spec.window_pattern, "leave the window out")  # fmt: skip
    if run.attention == FLASH:
        check_fused(mixer)
        if isinstance(positions, Alibi | RelativeBuckets | TransformerXL):
            raise SpecError("position", "has no formula with fused attention: it adds to scores",
                            spec.position, "choose attention eager")  # fmt: skip


def _block_terms(
    spec: ModelSpec, run: Pass, n: Dim, n_layers: Dim, *, cross: bool
) -> list[Kept]:
    """What all blocks of a stack keep, each part as often as it stands there."""
    mixture, positions, norms = spec.last_stack.mixture, spec.positions, spec.last_stack.norms
    n_routed = 0 if mixture is None else mixture.law.count(n_layers)
    n_rotated = positions.law.count(n_layers) if isinstance(positions, Rope) else 0
    around = around_terms(spec, run, n, cross=cross)
    parts = [
        (n_layers, around),
        (n_rotated, attention_terms(spec, run, n, rotated=True)),
        (n_layers - n_rotated, attention_terms(spec, run, n, rotated=False)),
        (n_routed, feed_forward_terms(spec, run, n, routed=True)),
        (n_layers - n_routed, feed_forward_terms(spec, run, n, routed=False)),
    ]
    kept = [_times(term, times) for times, terms in parts if not is_zero(times) for term in terms]
    if not norms.first:
        missing = norm_kept("norm", run.batch_size * n, spec.d_model, norms, run.widths)
        kept += [_times(term, -1) for term in missing]
    if isinstance(positions, Learned) and positions.n_query_positions:
        values = run.batch_size * n * spec.d_model
        kept.append(_of("attention", "query positions", values, run.widths))
    return kept


def block_terms(
    spec: ModelSpec, run: Pass, n: Dim, *, routed: bool, rotated: bool, cross: bool = False
) -> list[Kept]:
    """Name what one block keeps, `routed` to experts or dense, with `rotated` positions or without.

    Returns: terms; without what a decoder keeps of its encoder once for all its blocks.
    Source: `attention_terms`, `feed_forward_terms`, `around_terms`.

    >>> from metacount.catalog import entry
    >>> from metacount.formulas.kept import bytes_of
    >>> run, llama = Pass(batch_size=1, seq_len=2048), entry("llama-7b").spec()
    >>> bytes_of(block_terms(llama, run, 2048, routed=False, rotated=True))
    1226850304
    """
    return [
        *attention_terms(spec, run, n, rotated=rotated),
        *feed_forward_terms(spec, run, n, routed=routed),
        *around_terms(spec, run, n, cross=cross),
    ]


def feed_forward_terms(spec: ModelSpec, run: Pass, n: Dim, *, routed: bool) -> list[Kept]:
    """Name what the feed-forward of one block keeps behind its input.

    Source: `kept.ffn_kept`, `kept.moe_kept`.
    """
    stack, tokens = spec.last_stack, run.batch_size * n
    dense = stack.feed_forward
    if routed and stack.mixture is not None:
        return moe_kept(tokens, spec.d_model, stack.mixture, dense, run.widths)
    return [] if dense.d_ff is None else ffn_kept(tokens, dense.d_ff, dense, run.widths)


def around_terms(spec: ModelSpec, run: Pass, n: Dim, *, cross: bool) -> list[Kept]:
    """Name what one block keeps beside its self-attention and its feed-forward.

    The inputs of its branches, c·n·d each, its norms, and its cross-attention where it has one. A
    parallel block with one norm has one input for both branches.

    Source: `kept.norm_kept`, `kept_attention.attention_kept`.
    """
    stack, widths, tokens = spec.last_stack, run.widths, run.batch_size * n
    placement, branches, kept = stack.norms.placement, 2 + cross, []
    n_norms = {"parallel": 1, "parallel_two": 2, "sandwich": 2 * branches}.get(placement, branches)
    n_inputs = 1 if placement == "parallel" else branches
    if cross:
        part = stack.attention
        assert isinstance(part, Attention)  # a cross-attention is none of a latent
        kept += attention_kept(run.attending(n, run.source), part, stack.norms)
    kept.append(_of("other", "input of a branch", tokens * spec.d_model, widths, n_inputs))
    one = norm_kept("norm", tokens, spec.d_model, stack.norms, widths)
    kept += [_times(term, n_norms) for term in one]
    if placement == "parallel_two" and not widths.copies and stack.norms.kind == "rmsnorm":
        kept.append(_times(one[0], -1))  # both norms keep the same x
    return kept


def attention_terms(spec: ModelSpec, run: Pass, n: Dim, *, rotated: bool) -> list[Kept]:
    """Name what the self-attention of one block keeps behind its input.

    Source: `kept_attention.attention_kept`, `latent_kept`, `relative_kept`.
    """
    part, norms, positions = spec.last_stack.attention, spec.last_stack.norms, spec.positions
    attending = run.attending(n, n)
    if isinstance(part, LatentAttention):
        return latent_kept(attending, part)
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
    )
    if isinstance(positions, TransformerXL):
        kept += relative_kept(attending, part, spec.d_model)
    return kept


def _head_terms(spec: ModelSpec, run: Pass) -> list[Kept]:
    """From the last block's output to the loss."""
    tables, head, stack = spec.embedding, spec.head, spec.last_stack
    assert tables is not None and head is not None
    tokens, widths = run.batch_size * run.seq_len, run.widths
    width = spec.d_model if tables.width is None else tables.width
    logits = tokens * tables.vocab_size

    def term(name: str, values: Dim, bytes_: int) -> Kept:
        return Kept(role="head", name=name, values=values, width=bytes_)

    kept = [term("input", tokens * spec.d_model, widths.value)]
    if head.transform is not None:
        act = activation_kept(stack.feed_forward)
        n_kept = act.argument + act.between + act.result
        kept.append(_of("head", "transform", tokens * width, widths, n_kept))
        normed = norm_kept("norm of the transform", tokens, width, stack.norms, widths)
        shared = act.result and not widths.copies and stack.norms.kind == "rmsnorm"
        kept += normed[shared:]  # the norm keeps the activation's result, which kept it already
        kept.append(term("normed transform", tokens * width, widths.value))
    if head.softcap is not None:
        kept.append(term("tanh of the logits", logits, widths.value))
    return [
        *kept,
        term("log-softmax", logits, widths.wide),
        term("targets", tokens, INDEX),
        term("how many targets", 1, widths.wide),
    ]
