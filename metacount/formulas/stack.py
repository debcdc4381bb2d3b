"""One stack of blocks: how many of each kind, and all their tensors and products.

>>> from metacount.spec import ModelSpec
>>> bert = ModelSpec(
...     kind="encoder", d_model=768, n_layers=12, vocab_size=30522, tie_embeddings=True,
...     n_heads=12, n_kv_heads=12, head_dim=64, q_bias=True, k_bias=True, v_bias=True, o_bias=True,
...     d_ff=3072, activation="gelu", gated=False, ffn_bias=True, norm="layernorm", norm_bias=True,
...     norm_placement="post", embedding_norm=True, final_norm=False, position="learned",
...     n_positions=512)
>>> stacks(bert), moe_layers(bert, 12), attention_layers(bert)
([(12, False)], 0, (0, 12))
>>> from metacount.formulas.terms import by_role
>>> by_role(stack_weights(bert, 12, cross=False), lambda weight: weight.params)
{'norm': 38400, 'position': 393216, 'attention': 28348416, 'ffn': 56669184}
"""

from __future__ import annotations

from metacount.formulas import around, attention, ends, indexed, moe, norm, sublayers
from metacount.formulas.dim import Dim, is_zero, smaller
from metacount.formulas.recurrent import mixer_of
from metacount.formulas.terms import (
    SOURCE,
    SOURCE_PAIRS,
    TOKENS,
    WINDOWED_PAIRS,
    WINDOWED_POSITIONS,
    Product,
    Weight,
)
from metacount.spec import ModelSpec
from metacount.spec.attention import Attention, NoAttention
from metacount.spec.stack import (
    BESIDE,
    SHARING,
    WITH_ATTENTION,
    WITH_DENSE,
    WITH_EXPERTS,
    WITH_FFN,
    WITH_STATE,
)

OF_ENCODER = {TOKENS: SOURCE}  # an encoder beside a decoder multiplies its source's tokens


def stacks(spec: ModelSpec) -> list[tuple[Dim, bool]]:
    """List each stack of the model: how many blocks it has, and whether with cross-attention."""
    cross = spec.has_encoder
    return [(each.n_layers, cross and each is spec.decoder) for each in spec.stacks]


def moe_layers(spec: ModelSpec, n_layers: Dim) -> Dim:
    """Count the MoE blocks in a stack of n_layers.

    Source: `moe.moe_layers`; where a pattern names them, `attention.lettered_layers`.
    """
    mixture = spec.last_stack.mixture
    if mixture is None:
        return 0
    if spec.last_stack.names_experts:
        return attention.lettered_layers(n_layers, spec.last_stack.ffn_pattern, WITH_EXPERTS)
    dense: Dim = mixture.n_dense_layers
    if spec.has_encoder:
        dense = smaller(dense, n_layers)  # one of two stacks may have fewer layers
    return moe.moe_layers(
        n_layers,
        n_dense_layers=dense,
        moe_every=mixture.every,
        moe_offset=mixture.offset,
    )


def dense_layers(spec: ModelSpec, n_layers: Dim) -> Dim:
    """Count the blocks with a dense feed-forward in a stack of n_layers.

    Source: those that are not MoE; where a pattern names them, `attention.lettered_layers`, with
    the blocks that have experts beside it.
    """
    pattern = spec.last_stack.ffn_pattern
    if set(pattern) == {"F"}:
        return n_layers - moe_layers(spec, n_layers)
    return attention.lettered_layers(n_layers, pattern, WITH_DENSE)


def layers_of_both(spec: ModelSpec, n_layers: Dim) -> Dim:
    """Count the blocks with experts beside a dense feed-forward in a stack of n_layers.

    Source: `attention.lettered_layers`.
    """
    return attention.lettered_layers(n_layers, spec.last_stack.ffn_pattern, BESIDE)


def attention_layers(spec: ModelSpec) -> tuple[Dim, Dim]:
    """Count the (decoder) stack's blocks that see a window only, and those that see everything.

    Source: `attention.lettered_layers`.
    """
    last = spec.last_stack
    with_any = attention.lettered_layers(last.n_layers, last.mixer_pattern, WITH_ATTENTION)
    windowed = attention.windowed_layers(last.n_layers, last.seen)
    return windowed, with_any - windowed


def borrowing_layers(spec: ModelSpec) -> Dim:
    """Count the blocks whose attention reads keys and values of an earlier block: the last ones.

    Source: Gemma 3n's released code, its num_kv_shared_layers; Brandon et al. 2024,
    arXiv:2405.12981, sec. 3 (attention across layers).
    """
    mixer = spec.last_stack.attention
    return mixer.n_kv_shared_layers if isinstance(mixer, Attention) else 0


def caching_layers(spec: ModelSpec) -> tuple[Dim, Dim]:
    """Count the blocks that keep keys and values: windowed ones, and those that see everything.

    All blocks with attention but the last `borrowing_layers`.

    Source: `attention_layers`, `attention.windowed_layers`.
    """
    windowed, full = attention_layers(spec)
    n_borrowing, last = borrowing_layers(spec), spec.last_stack
    if is_zero(n_borrowing):
        return windowed, full
    n_making = last.n_layers - n_borrowing  # of layers that borrow, all have attention
    near = attention.windowed_layers(n_making, last.seen)
    return near, n_making - near


def recurrent_layers(spec: ModelSpec) -> Dim:
    """Count the blocks whose mixer keeps a state.

    Source: `attention.lettered_layers`.
    """
    last = spec.last_stack
    return attention.lettered_layers(last.n_layers, last.mixer_pattern, WITH_STATE)


def stack_weights(spec: ModelSpec, n_layers: Dim, *, cross: bool) -> tuple[Weight, ...]:
    """List the tensors of one stack, with the norms and position tables that belong to it.

    `cross`: its blocks have cross-attention.
    Source: `sublayers`, `ends.stack_end_weights`.
    """
    beside = spec.has_encoder and not cross
    rows = OF_ENCODER if beside else None
    blocks = in_blocks(spec, n_layers, cross=cross)
    whole = [(1, ends.stack_end_weights(spec)), (1, shared_weights(spec, n_layers)), *blocks]
    return tuple(weight.repeated(n, rows=rows) for n, weights in whole for weight in weights)


def shared_weights(spec: ModelSpec, n_layers: Dim) -> tuple[Weight, ...]:
    """List the tensors of all stored blocks; each multiplies in every layer that uses its block.

    Source: `sublayers.shared_block_weights`; the uses, `attention.lettered_layers`.
    """
    last = spec.last_stack
    if last.shared is None:
        return ()
    uses = attention.lettered_layers(n_layers, last.mixer_pattern, SHARING)
    return tuple(
        one.shared(last.shared.n_blocks, uses) for one in sublayers.shared_block_weights(spec)
    )


def in_blocks(
    spec: ModelSpec, n_layers: Dim, *, cross: bool
) -> list[tuple[Dim, tuple[Weight, ...]]]:
    """List the parts of one stack's blocks: how many there are of each, and the tensors of one.

    Source: as `stack_weights`.
    """
    last = spec.last_stack
    n_attending = attention.lettered_layers(n_layers, last.mixer_pattern, WITH_ATTENTION)
    n_keeping = attention.lettered_layers(n_layers, last.mixer_pattern, WITH_STATE)
    each: list[tuple[Dim, tuple[Weight, ...]]] = []
    if last.shared is not None:  # whose attention and feed-forward are stored apart
        each.append((n_attending, sublayers.shared_use_weights(spec)))
    elif not isinstance(last.attention, NoAttention):
        n_borrowing = borrowing_layers(spec)
        each.append((n_attending - n_borrowing, sublayers.attention_weights(spec)))
        each.append((n_borrowing, sublayers.attention_weights(spec, borrows=True)))
    each.append((indexed.indexed_layers(spec, n_layers), indexed.index_weights(spec)))
    each.append((n_keeping, sublayers.recurrent_weights(spec)))
    if cross:
        each.append((n_layers, sublayers.cross_attention_weights(spec)))
    each += _of_widths(spec, n_layers)
    if last.mixture is not None:
        each.append((moe_layers(spec, n_layers), sublayers.mixture_weights(spec)))
    one = sublayers.width_norm_weights(spec)
    each += [(n, one) for n in _block_norms(spec, n_layers, cross)]
    return [*each, (n_layers, around.around_weights(spec))]


def _of_widths(spec: ModelSpec, n_layers: Dim) -> list[tuple[Dim, tuple[Weight, ...]]]:
    """List the dense feed-forwards of the first width, and of the second: number and tensors."""
    part, n_dense = spec.last_stack.feed_forward, dense_layers(spec, n_layers)
    if part is None or part.second is None:
        return [(n_dense, sublayers.dense_weights(spec))]
    n_second = attention.lettered_layers(n_layers, part.second_pattern, "W")
    return [
        (n_dense - n_second, sublayers.dense_weights(spec)),
        (n_second, sublayers.dense_weights(spec, second=True)),
    ]


def _block_norms(spec: ModelSpec, n_layers: Dim, cross: bool) -> tuple[Dim, ...]:
    """Count all blocks' norms of the residual stream: one number, or mixers' and feed-forwards'."""
    last = spec.last_stack
    if last.uniform:
        whole = n_layers * norm.norms_per_block(last.norms.placement, cross=cross)
        # the first block has every norm but one where `first` is False (ModernBERT)
        return (whole - int(not last.norms.first),)
    # a sublayer has as many norms wherever it is
    one = norm.norms_per_block(last.norms.placement, ffn=False)
    mixers = attention.lettered_layers(n_layers, last.mixer_pattern, WITH_ATTENTION + WITH_STATE)
    feeding = attention.lettered_layers(n_layers, last.ffn_pattern, WITH_FFN)
    return one * mixers, one * feeding


def stack_products(
    spec: ModelSpec, n_layers: Dim, *, cross: bool, decode: bool
) -> tuple[Product, ...]:
    """List the products of activations of one stack; `decode` absorbs MLA and scans step by step.

    Source: `sublayers.attention_products`, `sublayers.cross_attention_products`, the mixer's own.
    """
    if spec.has_encoder and not cross:
        own = sublayers.attention_products(spec, absorbed=decode, pairs=SOURCE_PAIRS)
        return tuple(one.repeated(n_layers) for one in own)
    each: list[tuple[Dim, tuple[Product, ...]]] = []
    last = spec.last_stack
    windowed, full = attention_layers(spec)
    if last.attention.window is not None:
        near = {"pairs": WINDOWED_PAIRS, "positions": WINDOWED_POSITIONS}
        each.append((windowed, sublayers.attention_products(spec, absorbed=decode, **near)))
    if not isinstance(last.attention, NoAttention):
        each.append((full, sublayers.attention_products(spec, absorbed=decode)))
    each.append((indexed.indexed_layers(spec, n_layers), indexed.index_products(spec)))
    part = last.recurrent
    mixer = mixer_of(part)
    if mixer is not None:
        scan = mixer.decode_products(part) if decode else mixer.products(part)
        each.append((recurrent_layers(spec), scan))
    if cross:
        each.append((n_layers, sublayers.cross_attention_products(spec)))
    each.append((n_layers, around.around_products(spec)))
    return tuple(one.repeated(n) for n, products in each for one in products)
