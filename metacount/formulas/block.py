"""One block: the norms around its branches, its mixer and its feed-forward, run on a tape.

A `Layer` says of one block what distinguishes it from others of its stack, with its parts resolved:
nothing below asks again which sort of layer it is.
"""

from __future__ import annotations

from metacount.formulas import ends
from metacount.formulas.attention import Attending, grouped_attention, latent_attention
from metacount.formulas.compressed import compressed_attention, read_streams, write_streams
from metacount.formulas.feed_forward import feed_forward, mixture
from metacount.formulas.mixers import run_mixer
from metacount.formulas.tape import (
    CROSS_PAIRS,
    PAIRS,
    POSITIONS,
    SOURCE_PAIRS,
    WINDOWED_PAIRS,
    WINDOWED_POSITIONS,
    Tape,
    Tensor,
)
from metacount.frozen import frozen
from metacount.spec import ModelSpec
from metacount.spec.attention import Attention, CompressedAttention, LatentAttention
from metacount.spec.field import altered
from metacount.spec.position import Alibi, Learned, RelativeBuckets, Rope, TransformerXL
from metacount.spec.stack import (
    BESIDE,
    SHARING,
    WITH_ATTENTION,
    WITH_DENSE,
    WITH_EXPERTS,
    WITH_STATE,
)

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.spec.stack import Stack

MIXER, CROSS, FFN = "self_attn", "cross_attn", "mlp"
STORED = "shared_block."  # before the names of weights of a block that many layers use
# The norms before and after each branch of a block, by placement.
PRE = {
    MIXER: ("input_layernorm", ""),
    CROSS: ("cross_attention_layernorm", ""),
    FFN: ("post_attention_layernorm", ""),
}
POST = {
    MIXER: ("", "self_attention_layernorm"),
    CROSS: ("", "cross_attention_layernorm"),
    FFN: ("", "feedforward_layernorm"),
}
PLACED = {
    "pre": PRE,
    "stream": PRE,
    "post": POST,
    "deep": POST,
    "sandwich": {
        MIXER: ("input_layernorm", "post_attention_layernorm"),
        CROSS: ("pre_cross_attention_layernorm", "post_cross_attention_layernorm"),
        FFN: ("pre_feedforward_layernorm", "post_feedforward_layernorm"),
    },
    "post_branch": {
        MIXER: ("", "post_attention_layernorm"),
        CROSS: ("", "post_cross_attention_layernorm"),
        FFN: ("", "post_feedforward_layernorm"),
    },
    "parallel": {MIXER: ("input_layernorm", ""), FFN: ("", "")},
    "parallel_two": {
        MIXER: ("input_layernorm", ""),
        FFN: ("post_attention_layernorm", ""),
    },
}
HYPER = {MIXER: "attn_hc", FFN: "ffn_hc"}  # what reads and writes streams, by branch
NORM_OF_SUM = ("post", "deep")  # the norm stands behind the addition


@frozen
class Layer:
    """What distinguishes a block: its letters in the two patterns, and what its parts do.

    `windowed`: its attention sees a window; `rotated`: positions rotate its queries and keys;
    `indexed`: it has a block indexer; `borrows`: it reads keys and values of an earlier block;
    `shares`: it reads what an earlier block's indexer chose;
    `cross`: it has cross-attention; `second`: its feed-forward has the second width; `first_norm`:
    it has the first norm; `queried`: its queries are those of a table (the last block of PanGu-α);
    `of_encoder`: it is of the encoder beside a decoder; `compression`: its letter in that pattern.
    """

    mixer: str = "A"
    ffn: str = "F"
    windowed: bool = False
    rotated: bool = False
    indexed: bool = False
    borrows: bool = False
    shares: bool = False
    cross: bool = False
    second: bool = False
    first_norm: bool = True
    queried: bool = False
    of_encoder: bool = False
    compression: str = ""


@frozen
class Given:
    """What a block is given beside its input: a bias of scores, what the encoder gave, the stream
    before the first block, the table's rows that are the last block's queries.
    """

    bias: Tensor | None = None
    memory: Tensor | None = None
    first: Tensor | None = None
    queries: Tensor | None = None


def layer_of(spec: ModelSpec, stack: Stack, index: int) -> Layer:
    """Resolve block `index` of a stack, whose sizes are numbers."""
    last, positions = spec.last_stack, spec.positions
    part = last.feed_forward
    return Layer(
        mixer=last.mixer_of(index),
        ffn=last.ffn_of(index),
        windowed=bool(spec.is_windowed_layer(index)),
        rotated=bool(isinstance(positions, Rope) and spec.has_rope_layer(index)),
        indexed=bool(spec.has_index_layer(index)),
        borrows=last.borrows(index),
        shares=spec.shares_index(index),
        cross=spec.has_encoder and stack is spec.decoder,
        second=part is not None and part.is_second(index),
        first_norm=index > 0 or last.norms.first,
        queried=index == stack.n_layers - 1 and has_queries(spec),
        of_encoder=spec.has_encoder and stack is not spec.decoder,
        compression=(
            last.attention.letter_of(index)
            if isinstance(last.attention, CompressedAttention)
            else ""
        ),
    )


def has_queries(spec: ModelSpec) -> bool:
    """Tell whether the last block's queries are rows of a table of their own."""
    positions = spec.positions
    return bool(isinstance(positions, Learned) and positions.n_query_positions)


def norm_names(spec: ModelSpec, layer: Layer, branch: str) -> tuple[str, str]:
    """Name the norms before and after a branch of a block; "" where there is none."""
    placement = spec.last_stack.norms.placement
    if placement == "hybrid":
        placement = "pre" if layer.mixer == "R" else "post_branch"
    before, after = PLACED[placement][branch]
    return ("" if branch == MIXER and not layer.first_norm else before), after


def branches_of(layer: Layer) -> list[str]:
    """Name the branches of a block, in order."""
    has = {MIXER: layer.mixer != "N", CROSS: layer.cross, FFN: layer.ffn != "N"}
    return [name for name, there in has.items() if there]


def is_parallel(spec: ModelSpec) -> bool:
    """Tell whether the branches of a block read one input side by side."""
    return spec.last_stack.norms.placement.startswith("parallel")


def run_block(t: Tape, spec: ModelSpec, layer: Layer, x: Tensor, given: Given) -> Tensor:
    """Run one block on a tape; return the stream behind it."""
    if is_parallel(spec):
        return run_parallel(t, spec, layer, x, given)
    for branch in branches_of(layer):
        x = run_branch(t, spec, layer, branch, x, given)
    return around(t, spec, x)


def run_branch(
    t: Tape, spec: ModelSpec, layer: Layer, branch: str, x: Tensor, given: Given
) -> Tensor:
    """Run one branch of a block with its norms; return the stream behind it.

    pre x + f(norm(x)); post norm(x + f(x)); sandwich x + norm(f(norm(x))); deep norm(α·x + f(x));
    post_branch x + norm(f(x)); stream y + f(y) with y = norm(x)
    """
    stack = spec.last_stack
    norms = stack.norms
    before, after = norm_names(spec, layer, branch)
    read = x
    if stack.hyper is not None:
        read = read_streams(t, stack.hyper, x, HYPER[branch], spec.d_model)
    if branch == MIXER and layer.mixer == SHARING:
        read = run_shared(t, spec, x, given)
    normed = t.norm(read, before, norms) if before else read
    if branch == MIXER:
        y = run_layer_mixer(t, spec, layer, normed, given)
    elif branch == CROSS:
        y = run_cross(t, spec, normed, given)
    else:
        y = run_feed_forward(t, spec, layer, normed, x)
    if stack.hyper is not None:
        return write_streams(t, stack.hyper, x, y)
    x = normed if norms.placement == "stream" else x
    if after and norms.placement not in NORM_OF_SUM:
        y = t.norm(y, after, norms)
    t.role = "other"
    y = t.scale(y, stack.residual_scale)
    weighted = norms.placement == "deep" or stack.residual_weight != 1.0
    x = t.record("weigh", t.like(x)) if weighted else x
    x = t.add(x, y)
    if after and norms.placement in NORM_OF_SUM:
        x = t.norm(x, after, norms)
    if branch == MIXER and stack.laurel is not None:
        x = ends.laurel(t, stack.laurel, x, normed, norms)
    return x


def run_parallel(t: Tape, spec: ModelSpec, layer: Layer, x: Tensor, given: Given) -> Tensor:
    """Run a block whose mixer and feed-forward read one input, by one norm or by two.

    Source: Chowdhery et al. 2022, arXiv:2204.02311, sec. 2 (parallel); GPT-NeoX (two norms).
    """
    stack = spec.last_stack
    norms = stack.norms
    first, second = norm_names(spec, layer, MIXER)[0], norm_names(spec, layer, FFN)[0]
    read = t.norm(x, first, norms)
    second_read = t.norm(x, second, norms) if second else read
    y = run_layer_mixer(t, spec, layer, read, given)
    z = run_feed_forward(t, spec, layer, second_read, x)
    t.role = "other"
    y = t.scale(t.add(y, z), stack.residual_scale)
    x = t.record("weigh", t.like(x)) if stack.residual_weight != 1.0 else x
    return t.add(x, y)


def around(t: Tape, spec: ModelSpec, x: Tensor) -> Tensor:
    """Run what stands around the branches of a block and behind it (Gemma 3n)."""
    stack = spec.last_stack
    if stack.altup is not None:
        ends.altup(t, stack.altup, spec.d_model, stack.norms, scaled=stack.layer_inputs is not None)
    if stack.layer_inputs is not None:
        ends.layer_input(t, stack.layer_inputs, spec.d_model, stack.norms)
    return x


def run_layer_mixer(t: Tape, spec: ModelSpec, layer: Layer, x: Tensor, given: Given) -> Tensor:
    """Run the mixer of a block: attention, one that keeps a state, or the sum of both."""
    y = None
    if layer.mixer in WITH_STATE:
        y = run_mixer(t, spec.last_stack.recurrent, x)
    if layer.mixer not in WITH_ATTENTION or layer.mixer == SHARING:
        assert y is not None  # a block that has a mixer has one of the two
        return y
    attended = run_attention(t, spec, layer, x, given)
    if y is None:
        return attended
    t.role = "other"
    return t.add(y, attended)


def attending(spec: ModelSpec, layer: Layer) -> Attending:
    """Say how the self-attention of a block attends."""
    last, positions = spec.last_stack, spec.positions
    part, window = last.attention_of(layer.windowed), last.attention.window
    chunked = window is not None and window.kind == "chunked"
    mask = ""
    if spec.kind == "prefix-decoder":
        mask = "prefix"
    elif (layer.windowed or chunked) and not isinstance(positions, Alibi):
        mask = "window"
    rotary_dim = growth = None
    if isinstance(positions, Rope):
        growth = positions.growth
        if layer.rotated and isinstance(part, LatentAttention):
            rotary_dim = part.qk_rope_head_dim
        elif layer.rotated and isinstance(part, Attention | CompressedAttention):
            rotary_dim = positions.width_of(layer.windowed, part.head_dim)
    return Attending(
        pairs=SOURCE_PAIRS if layer.of_encoder else WINDOWED_PAIRS if layer.windowed else PAIRS,
        positions=WINDOWED_POSITIONS if layer.windowed else POSITIONS,
        mask=mask,
        relative=isinstance(positions, TransformerXL),
        per_head=isinstance(positions, Alibi | RelativeBuckets | TransformerXL),
        rotary_dim=rotary_dim,
        grown=growth is not None and not (growth.nope_only and layer.rotated),
        indexed=layer.indexed,
        borrows=layer.borrows,
        shares=layer.shares,
        unit_offset=last.norms.unit_offset,
    )


def run_attention(t: Tape, spec: ModelSpec, layer: Layer, x: Tensor, given: Given) -> Tensor:
    """Run the self-attention of a block."""
    part, how = spec.last_stack.attention_of(layer.windowed), attending(spec, layer)
    if isinstance(part, LatentAttention):
        return latent_attention(t, part, x, how)
    if isinstance(part, CompressedAttention):
        return compressed_attention(t, part, x, how, layer.compression)
    assert isinstance(part, Attention)
    asks = given.queries if layer.queried else None
    return grouped_attention(t, part, x, how, bias=given.bias, asks=asks)


def run_cross(t: Tape, spec: ModelSpec, x: Tensor, given: Given) -> Tensor:
    """Run cross-attention: keys and values are made of what the encoder gave.

    The same heads and biases, no positions, QK-norm, sinks and gate.
    """
    part, run = spec.last_stack.attention, t.run
    assert isinstance(part, Attention) and given.memory is not None
    t.run = altered(run, n_keys=run.source_len)
    y = grouped_attention(t, part, x, Attending(pairs=CROSS_PAIRS), source=given.memory)
    t.run = run
    return y


def run_feed_forward(t: Tape, spec: ModelSpec, layer: Layer, x: Tensor, stream: Tensor) -> Tensor:
    """Run the feed-forward of a block: dense, experts in its place, or experts beside it.

    What experts beside it give is added behind the next block (Cai et al. 2024, arXiv:2404.05019);
    where they have norms of their own, between which they read the stream, to what the feed-forward
    gives (Gemma 4's released code).
    """
    stack = spec.last_stack
    part, experts = stack.feed_forward, stack.mixture
    assert part is not None
    y, sums = None, experts is not None and experts.scaled_router
    if layer.ffn in WITH_EXPERTS and not sums:
        assert experts is not None
        y = mixture(t, experts, part, x, name="moe" if layer.ffn == BESIDE else "mlp")
    if layer.ffn in WITH_DENSE and part.d_ff is not None:
        y = feed_forward(t, part, x, part.second if layer.second else part.d_ff)
    assert y is not None
    if not sums or layer.ffn != BESIDE or experts is None:
        return y
    y, norms = t.norm(y, "post_mlp_layernorm", stack.norms), stack.norms
    read = t.norm(stream, "pre_moe_layernorm", norms)
    routed = mixture(t, experts, part, read, name="moe", stream=stream)
    return t.add(y, t.norm(routed, "post_moe_layernorm", norms))


def run_shared(t: Tape, spec: ModelSpec, x: Tensor, given: Given) -> Tensor:
    """Use a block that many layers share: x + linear(mlp(norm(attention(norm([x, x₀]))))).

    It is stored once and reads 2·d values, the stream and the embedding side by side; each use has
    a linear layer [d, d] and adapters of its own.

    Source: Glorioso et al. 2024, arXiv:2411.15242, sec. 2 and fig. 2; arXiv:2405.16712, eq. 6.
    """
    stack = spec.last_stack
    shared, part, dense, norms = stack.shared, stack.attention, stack.feed_forward, stack.norms
    assert shared is not None and isinstance(part, Attention) and dense is not None
    first = x.grad if given.first is None else given.first.grad
    t.role = "other"
    both = t.record("cat", t.like(x, columns=2 * spec.d_model, grad=x.grad or first))
    how = attending(spec, Layer(rotated=isinstance(spec.positions, Rope)))
    if shared.attention_adapters:
        how = altered(how, adapter_rank=shared.adapter_rank)
    t.prefix = STORED
    y = t.norm(both, "input_layernorm", norms)
    y = grouped_attention(t, part, y, how, d_model=spec.d_model)
    y = t.norm(y, "pre_ff_layernorm", norms)
    y = feed_forward(t, dense, y, dense.d_ff, adapter_rank=shared.adapter_rank)
    t.prefix, t.role = "", "other"
    return t.add(x, t.linear(y, "shared_use.linear", spec.d_model))
