"""What one rank of a mesh holds of each tensor: cut by tensor or expert parallelism, then by ZeRO.

>>> from metacount.spec import ModelSpec
>>> mixtral = ModelSpec(
...     kind="decoder", d_model=4096, n_layers=32, vocab_size=32000, n_heads=32, n_kv_heads=8,
...     head_dim=128, activation="silu", gated=True, n_experts=8, top_k=2, d_ff_expert=14336,
...     norm="rmsnorm", position="rope")
>>> cuts = block_cuts(mixtral, moe=True)
>>> sum(whole_values(cut) for cut in cuts)  # a block of Mixtral 8x7B
1451270144
>>> mine = Rank(tp=4, ep=8, shard=64, copies=32)
>>> sum(cut_values(cut, mine) for cut in cuts), sum(shard_values(cut, mine) for cut in cuts)
(186687488, 5673088)
"""

from __future__ import annotations

from metacount.formulas.dim import Dim, smaller
from metacount.formulas.ends import table_width
from metacount.formulas.norm import norms_per_block
from metacount.formulas.terms import product
from metacount.frozen import frozen
from metacount.spec import ModelSpec
from metacount.spec.attention import Attention
from metacount.spec.ffn import FeedForward
from metacount.spec.mla import LatentAttention
from metacount.spec.moe import Mixture
from metacount.spec.position import Learned, TransformerXL


@frozen
class Cut:
    """A stored tensor: its role, its shape, and the axis that a rank has a part of.

    `axis` None: whole on every rank. `parts` tensors stand one after another along the axis, each
    cut for itself. `top_k`: the tensor is of all experts, of which a token uses so many.
    """

    role: str
    shape: tuple[Dim, ...]
    axis: int | None = None
    parts: int = 1
    top_k: Dim | None = None


@frozen
class Rank:
    """The degrees that matter to a tensor, and the indices of one rank in them.

    `shard` ranks hold the same part of a dense tensor, `copies` the same experts: ZeRO spreads each
    over these. With `ep` 1, experts are cut by `tp` like everything else.
    """

    tp: Dim = 1
    ep: Dim = 1
    shard: Dim = 1
    copies: Dim = 1
    tp_index: Dim = 0
    shard_index: Dim = 0
    copy_index: Dim = 0


def piece(size: Dim, degree: Dim, index: Dim) -> Dim:
    """Values that rank `index` of `degree` has of `size`: pieces of ⌈size / degree⌉, then the rest.

    max(0, min(c, size - index·c)) with c = ⌈size / degree⌉

    Returns: a count; the last ranks may have fewer, or none.
    Source: `torch.chunk`, by which torch's DTensor and FSDP2 cut.

    >>> [piece(10, 4, index) for index in range(4)], [piece(2, 4, index) for index in range(4)]
    ([3, 3, 3, 1], [1, 1, 0, 0])
    """
    each = -(-size // degree)
    mine = smaller(each, size - index * each)
    return mine - smaller(mine, 0)


def cut_shape(cut: Cut, rank: Rank) -> tuple[Dim, ...]:
    """The shape of a rank's part: whole experts with `ep`, else a piece of the axis.

    Returns: a shape.
    Source: Shoeybi et al. 2019, arXiv:1909.08053, sec. 3 (columns and rows); Lepikhin et al. 2020,
    arXiv:2006.16668, sec. 3.1 (experts).

    >>> cut_shape(Cut(role="ffn", shape=(11008, 4096), axis=0), Rank(tp=8))  # LLaMA-7B
    (1376, 4096)
    """
    sizes = list(cut.shape)
    if cut.top_k is not None and rank.ep != 1:
        sizes[0] = piece(sizes[0], rank.ep, 0)  # `ep` divides the experts
    elif cut.axis is not None:
        one = sizes[cut.axis] // cut.parts
        sizes[cut.axis] = cut.parts * piece(one, rank.tp, rank.tp_index)
    return tuple(sizes)


def whole_values(cut: Cut) -> Dim:
    """Values of the tensor on one device.

    >>> whole_values(Cut(role="ffn", shape=(11008, 4096), axis=0))  # LLaMA-7B
    45088768
    """
    return product(cut.shape)


def cut_values(cut: Cut, rank: Rank) -> Dim:
    """Values of a rank's part before ZeRO.

    Source: `cut_shape`.

    >>> cut_values(Cut(role="ffn", shape=(11008, 4096), axis=0), Rank(tp=8))  # LLaMA-7B
    5636096
    """
    return product(cut_shape(cut, rank))


def active_values(cut: Cut, rank: Rank) -> Dim:
    """Values of a rank's part that one token uses at most: of its experts, top_k.

    Source: `cut_shape`.

    >>> active_values(Cut(role="moe", shape=(8, 28672, 4096), top_k=2), Rank(ep=8))  # Mixtral
    117440512
    """
    shape = cut_shape(cut, rank)
    if cut.top_k is None:
        return product(shape)
    return smaller(cut.top_k, shape[0]) * product(shape[1:])


def shard_values(cut: Cut, rank: Rank) -> Dim:
    """Values that ZeRO leaves on a rank: a piece of the first axis of its part.

    Of a tensor of fewer experts than copies it is the second axis, where the copies divide that.

    Source: Rajbhandari et al. 2019, arXiv:1910.02054, sec. 5 (who holds what); FSDP2's `fully_shard`
    (by rows); torchtitan, which gives it the second axis of few experts.

    >>> shard_values(Cut(role="norm", shape=(4096,)), Rank(shard=512))
    8
    >>> shard_values(Cut(role="moe", shape=(8, 28672, 4096), top_k=2), Rank(ep=8, copies=32))
    3670016
    """
    sizes, axis, (degree, index) = *_spread_axis(cut, rank), _spread(cut, rank)
    sizes[axis] = piece(sizes[axis], degree, index)
    return product(sizes)


def gathered_values(cut: Cut, rank: Rank) -> Dim:
    """Values that move when the ranks give each other their shards: made a multiple of them.

    Source: `shard_values`; FSDP2 pads each tensor to shards of equal size.

    >>> gathered_values(Cut(role="norm", shape=(4096,)), Rank(shard=3))
    4098
    """
    sizes, axis, (degree, _) = *_spread_axis(cut, rank), _spread(cut, rank)
    sizes[axis] = degree * -(-sizes[axis] // degree)
    return product(sizes)


def _spread_axis(cut: Cut, rank: Rank) -> tuple[list[Dim], int]:
    sizes = list(cut_shape(cut, rank))
    if not is_expert(cut, rank) or not all(isinstance(n, int) for n in (*sizes, rank.copies)):
        return sizes, 0
    return sizes, int(sizes[0] < rank.copies and sizes[1] % rank.copies == 0)


def is_expert(cut: Cut, rank: Rank) -> bool:
    """Whether a tensor is spread over the ranks that hold the same experts.

    >>> is_expert(Cut(role="moe", shape=(8, 28672, 4096), top_k=2), Rank(ep=8))
    True
    """
    return cut.top_k is not None and rank.ep != 1


def _spread(cut: Cut, rank: Rank) -> tuple[Dim, Dim]:
    if is_expert(cut, rank):
        return rank.copies, rank.copy_index
    return rank.shard, rank.shard_index


def block_cuts(spec: ModelSpec, *, moe: bool, first: bool = False) -> list[Cut]:
    """Every tensor of one block; the first block may lack a norm.

    Returns: tensors; their values add up to `block.block_params`.
    Source: the functions of each kind.
    """
    stack = spec.last_stack
    norms = norms_per_block(stack.norms.placement) - (first and not stack.norms.first)
    found = norms * norm_cuts(spec, spec.d_model)
    found += attention_cuts(spec)
    if moe:
        assert stack.mixture is not None  # who asks has asked whether a layer is MoE
        return found + mixture_cuts(stack.mixture, spec.d_model, stack.feed_forward)
    dense = stack.feed_forward
    return found + feed_forward_cuts("ffn", spec.d_model, dense.d_ff, dense)


def norm_cuts(spec: ModelSpec, width: Dim) -> list[Cut]:
    """The weights of one norm, whole on every rank.

    Source: `norm.norm_params`.
    """
    norms = spec.last_stack.norms
    return (norms.affine + norms.bias) * [Cut(role="norm", shape=(width,))]


def attention_cuts(spec: ModelSpec) -> list[Cut]:
    """The tensors of one self-attention: to heads by columns, from heads by rows.

    Source: Shoeybi et al. 2019, arXiv:1909.08053, sec. 3; of MLA, only what makes heads is cut.
    """
    mixer, d = spec.last_stack.attention, spec.d_model
    if isinstance(mixer, LatentAttention):
        return _latent_cuts(mixer, d)
    query, key = mixer.n_heads * mixer.head_dim, mixer.n_kv_heads * mixer.head_dim
    found = []
    for width, bias in ((query, mixer.q_bias), (key, mixer.k_bias), (key, mixer.v_bias)):
        found += _linear("attention", width, d, bias=bias, axis=0)
    found += _linear("attention", d, query, bias=mixer.o_bias, axis=1)
    norms = {"head": 1, "layernorm": 2}.get(mixer.qk_norm, 0)
    found += 2 * norms * [Cut(role="norm", shape=(mixer.head_dim,))]
    if mixer.qk_norm == "full":
        found += [Cut(role="norm", shape=(width,)) for width in (query, key)]
    if mixer.sinks:
        found.append(Cut(role="attention", shape=(mixer.n_heads,), axis=0))
    if isinstance(spec.positions, TransformerXL):
        found += 2 * [Cut(role="position", shape=(mixer.n_heads, mixer.head_dim))]
        found.append(Cut(role="position", shape=(query, d)))
    return found


def _latent_cuts(mixer: LatentAttention, d_model: Dim) -> list[Cut]:
    h, rank = mixer.n_heads, mixer.kv_lora_rank
    query = h * (mixer.qk_nope_head_dim + mixer.qk_rope_head_dim)
    source = d_model
    found = [Cut(role="norm", shape=(rank,))]
    if mixer.q_lora_rank is not None:
        source = mixer.q_lora_rank
        found += _linear("attention", source, d_model, bias=mixer.bias)
        found.append(Cut(role="norm", shape=(source,)))
    found += _linear("attention", query, source, axis=0)
    found += _linear("attention", rank + mixer.qk_rope_head_dim, d_model, bias=mixer.bias)
    expanded = h * (mixer.qk_nope_head_dim + mixer.v_head_dim)
    found += _linear("attention", expanded, rank, axis=0)
    return found + _linear("attention", d_model, h * mixer.v_head_dim, bias=mixer.bias, axis=1)


def feed_forward_cuts(role: str, d_model: Dim, width: Dim, like: FeedForward) -> list[Cut]:
    """The tensors of a feed-forward: up (and gate) by columns, down by rows.

    Source: Shoeybi et al. 2019, arXiv:1909.08053, sec. 3, eq. 2.
    """
    up = (2 if like.gated else 1) * _linear(role, width, d_model, bias=like.bias, axis=0)
    return up + _linear(role, d_model, width, bias=like.bias, axis=1)


def mixture_cuts(part: Mixture, d_model: Dim, like: FeedForward) -> list[Cut]:
    """The tensors of a MoE layer: the router whole, experts spread or cut, shared ones cut.

    Source: `feed_forward_cuts`, inside of each expert.
    """
    n, k, width = part.n_experts, part.top_k, part.d_ff
    up = 2 if like.gated else 1
    found = _linear("moe", n, d_model, bias=part.router_bias)
    found.append(Cut(role="moe", shape=(n, up * width, d_model), axis=1, parts=up, top_k=k))
    found.append(Cut(role="moe", shape=(n, d_model, width), axis=2, top_k=k))
    if part.bias:
        found += [Cut(role="moe", shape=(n, each), top_k=k) for each in (up * width, d_model)]
    if part.shared is not None:
        one = part.d_ff if part.shared.d_ff is None else part.shared.d_ff
        found += feed_forward_cuts("moe", d_model, part.shared.n_experts * one, like)
        if part.shared.gate:
            found += _linear("moe", 1, d_model)
    return found


def embedding_cuts(spec: ModelSpec) -> list[Cut]:
    """The tensors before the first block: the token table by rows of the vocabulary, others whole.

    The token table is the first.

    Source: Shoeybi et al. 2019, arXiv:1909.08053, sec. 3 (vocabulary); `ends.end_params`.
    """
    tables, positions, width = spec.embedding, spec.positions, table_width(spec)
    assert tables is not None  # a mesh's first stage reads tokens
    found = [Cut(role="embedding", shape=(tables.vocab_size, width), axis=0)]
    if tables.n_token_types:
        found.append(Cut(role="embedding", shape=(tables.n_token_types, width)))
    if isinstance(positions, Learned):
        found.append(Cut(role="position", shape=(positions.n_positions, width)))
        if positions.n_query_positions:
            found.append(Cut(role="position", shape=(positions.n_query_positions, spec.d_model)))
    found += norm_cuts(spec, width) if tables.norm else []
    if tables.width is not None:
        found += _linear("embedding", spec.d_model, width, bias=True)
    return found


def head_cuts(spec: ModelSpec, *, tied: bool) -> list[Cut]:
    """The tensors after the last block; `tied`: the head's matrix is the token table of this rank.

    Source: Shoeybi et al. 2019, arXiv:1909.08053, sec. 3 (head by columns); `ends.end_params`.
    """
    head, d, width = spec.head, spec.d_model, table_width(spec)
    found = norm_cuts(spec, d) if spec.last_stack.norms.final else []
    if head is not None and spec.embedding is not None:
        if head.transform is not None:
            found += _linear("head", width, d, bias=head.transform.bias)
            found += norm_cuts(spec, width)
        out = _linear("head", spec.embedding.vocab_size, width, bias=head.bias, axis=0)
        found += out[1:] if tied else out
    if spec.pooler:
        found += _linear("other", d, d, bias=True)
    return found


def _linear(
    role: str, d_out: Dim, d_in: Dim, *, bias: bool = False, axis: int | None = None
) -> list[Cut]:
    """A matrix by columns (axis 0, of what comes out), by rows (axis 1), or whole; and its bias.

    By rows, the bias is whole: it is added once, after the sum.
    """
    found = [Cut(role=role, shape=(d_out, d_in), axis=axis)]
    if bias:
        found.append(Cut(role=role, shape=(d_out,), axis=0 if axis == 0 else None))
    return found
