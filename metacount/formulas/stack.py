"""One stack of blocks: how many of each kind, and their sum by role.

>>> from metacount.spec import ModelSpec
>>> bert = ModelSpec(
...     kind="encoder", d_model=768, n_layers=12, vocab_size=30522, tie_embeddings=True,
...     n_heads=12, n_kv_heads=12, head_dim=64, q_bias=True, k_bias=True, v_bias=True, o_bias=True,
...     d_ff=3072, activation="gelu", gated=False, ffn_bias=True, norm="layernorm", norm_bias=True,
...     norm_placement="post", embedding_norm=True, final_norm=False, position="learned",
...     n_positions=512)
>>> stacks(bert), moe_layers(bert, 12), attention_layers(bert)
([(12, False)], 0, (0, 12))
>>> stack_params(bert, 12, cross=False, active=False)
{'norm': 38400, 'position': 393216, 'attention': 28348416, 'ffn': 56669184}
>>> stack_flops(bert, 12, [(12, 512, 512 * 512)], batch_size=1, n_queries=512)
{'position': 0, 'attention': 38654705664, 'ffn': 57982058496}
"""

from __future__ import annotations

from metacount.formulas import attention, block, ends, moe, position
from metacount.formulas.dim import Dim
from metacount.spec import ModelSpec
from metacount.spec.position import Learned, RelativeBuckets

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Iterable


def stacks(spec: ModelSpec) -> list[tuple[Dim, bool]]:
    """Each stack of the model: its number of blocks, and whether they have cross-attention."""
    cross = spec.has_encoder
    return [(each.n_layers, cross and each is spec.decoder) for each in spec.stacks]


def moe_layers(spec: ModelSpec, n_layers: Dim) -> Dim:
    """MoE blocks in a stack of n_layers.

    Source: `moe.moe_layers`.
    """
    mixture = spec.last_stack.mixture
    if mixture is None:
        return 0
    return moe.moe_layers(
        n_layers,
        n_dense_layers=mixture.n_dense_layers,
        moe_every=mixture.every,
        moe_offset=mixture.offset,
    )


def attention_layers(spec: ModelSpec) -> tuple[Dim, Dim]:
    """Blocks that see a window only, and blocks that see everything, of the (decoder) stack.

    Source: `attention.windowed_layers`.
    """
    last = spec.last_stack
    if last.attention.window is None:
        return 0, last.n_layers
    windowed = attention.windowed_layers(last.n_layers, last.attention.window.pattern)
    return windowed, last.n_layers - windowed


def stack_params(spec: ModelSpec, n_layers: Dim, *, cross: bool, active: bool) -> dict[str, Dim]:
    """Parameters of one stack by role, with the norms and position tables that belong to it.

    Returns: parameters, exact; with `active`, those that one token uses.
    Source: `block.block_params`, `position.learned_table_params`, `position.t5_bias_params`.
    """
    last, positions = spec.last_stack, spec.positions
    # the first block has every norm but one where `first` is False (ModernBERT)
    n_norms = last.norms.final - (not last.norms.first)
    norms = n_norms * block.width_norm_params(spec)
    if spec.embedding is not None and spec.embedding.norm:
        norms += ends.embedding_norm_params(spec)
    total: dict[str, Dim] = {"norm": norms, "position": 0}
    if isinstance(positions, Learned):
        rows = positions.n_positions
        total["position"] = position.learned_table_params(rows, ends.table_width(spec))
    if isinstance(positions, RelativeBuckets):
        total["position"] = position.t5_bias_params(positions.n_buckets, last.attention.n_heads)
    n_moe = moe_layers(spec, n_layers)
    dense = block.block_params(spec, moe=False, cross=cross)
    add(total, dense, times=n_layers - n_moe)
    if last.mixture is not None:
        add(total, block.block_params(spec, moe=True, cross=cross, active=active), times=n_moe)
    return total


def stack_flops(
    spec: ModelSpec,
    n_layers: Dim,
    attends: Iterable[tuple[Dim, Dim, Dim]],
    *,
    batch_size: Dim,
    n_queries: Dim,
    source_len: Dim | None = None,
    decode: bool = False,
) -> dict[str, Dim]:
    """FLOPs of one stack by role.

    `attends` says per kind of attention layer (windowed, global): how many layers, the positions
    they attend to, the pairs of one sequence. With a source_len every block has a cross-attention
    to so many positions. `decode` takes its keys and values from a cache and absorbs MLA.

    Returns: FLOPs of the forward, exact.
    Source: the functions of `block.py`.
    Not counted: softmax, norms, activations, rotary embedding, routing, biases.
    """
    total: dict[str, Dim] = {}
    for n_attending, n_keys, n_pairs in attends:
        one = block.self_attention_flops(
            spec,
            batch_size=batch_size,
            n_queries=n_queries,
            n_keys=n_keys,
            n_pairs=n_pairs,
            absorbed=decode,
        )
        add(total, one, times=n_attending)
    if source_len is not None:
        one = block.cross_attention_flops(
            spec,
            batch_size=batch_size,
            n_queries=n_queries,
            source_len=source_len,
            cached=decode,
        )
        add(total, one, times=n_layers)
    n_moe = moe_layers(spec, n_layers)
    n_tokens = batch_size * n_queries
    dense = block.feed_forward_flops(spec, n_tokens=n_tokens, moe=False)
    add(total, dense, times=n_layers - n_moe)
    if spec.last_stack.mixture is not None:
        add(total, block.feed_forward_flops(spec, n_tokens=n_tokens, moe=True), times=n_moe)
    return total


def add(total: dict[str, Dim], part: dict[str, Dim], *, times: Dim = 1) -> None:
    """Add `times` copies of `part` to `total`, role by role."""
    for role, count in part.items():
        total[role] = total.get(role, 0) + times * count
