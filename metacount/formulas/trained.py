"""The tensors that a training step updates, each with its shape: what optimizers depend on."""

from __future__ import annotations

from metacount.formulas.covered import check_structure
from metacount.formulas.dim import Dim, is_zero, when
from metacount.formulas.forward import dense_of, mixer_of
from metacount.formulas.norm import norms_per_block
from metacount.formulas.terms import TOKENS, Weight
from metacount.frozen import frozen
from metacount.spec import ModelSpec
from metacount.spec.attention import Attention
from metacount.spec.ffn import FeedForward
from metacount.spec.mla import LatentAttention
from metacount.spec.moe import Mixture
from metacount.spec.norm import Norms
from metacount.spec.position import Learned, RelativeBuckets, TransformerXL

HEAD = "lm_head"


@frozen
class Trained:
    """Tensors of a model, those `inner` to its blocks apart from its `ends`."""

    inner: list[Weight]
    ends: list[Weight]

    @property
    def all(self) -> list[Weight]:
        """Both."""
        return [*self.inner, *self.ends]


def trained_tensors(spec: ModelSpec) -> Trained:
    """Name every tensor that the loss has a gradient of: all parameters but a pooler's.

    A matrix that tokens are multiplied with has `rows`; tied ones stand once.

    Returns: tensors with shapes; their values sum to the model's parameters, less a pooler's.
    Source: the shapes in the docstrings of `attention`, `mla`, `ffn`, `moe`, `norm`, `position`.

    >>> from metacount.catalog import entry
    >>> sum(weight.params for weight in trained_tensors(entry("llama-7b").spec()).all)
    6738415616
    """
    check_structure(spec)
    inner: list[Weight] = []
    ends = _end_tensors(spec)
    for part in spec.stacks:
        n_layers, cross = part.n_layers, spec.has_encoder and part is spec.decoder
        mixture = part.mixture
        n_routed = 0 if mixture is None else mixture.law.count(n_layers)
        inner += _times(n_layers, attention_tensors(spec, mixer_of(spec)))
        if cross:
            inner += _times(n_layers, _cross_tensors(spec))
        n_norms = n_layers * norms_per_block(part.norms.placement, cross=cross)
        inner += _times(
            n_norms - when(not part.norms.first, 1), norm_tensors(part.norms, spec.d_model)
        )
        if mixture is not None:
            inner += _times(n_routed, moe_tensors(spec.d_model, mixture, dense_of(spec)))
        if dense_of(spec).d_ff is not None:
            dense = ffn_tensors(spec.d_model, dense_of(spec).d_ff, dense_of(spec))
            inner += _times(n_layers - n_routed, dense)
        ends += _stack_tensors(spec, part.norms)
    return Trained(inner=inner, ends=ends)


def _times(times: Dim, weights: list[Weight]) -> list[Weight]:
    if is_zero(times):
        return []
    return [
        Weight(role=w.role, name=w.name, shape=w.shape, times=times * w.times, rows=w.rows)
        for w in weights
    ]


def _linear(role: str, name: str, out: Dim, into: Dim, bias: bool) -> list[Weight]:
    """A matrix [out, into] and maybe a bias [out]."""
    weight = Weight(role=role, name=name, shape=(out, into), rows=TOKENS)
    return [weight, Weight(role=role, name=f"{name}.bias", shape=(out,))] if bias else [weight]


def norm_tensors(norms: Norms, width: Dim) -> list[Weight]:
    """Name the tensors of one norm."""
    if not norms.affine:
        return []
    return [Weight(role="norm", name="norm", shape=(width,), times=1 + norms.bias)]


def attention_tensors(spec: ModelSpec, part: Attention | LatentAttention) -> list[Weight]:
    """Name the tensors of the self-attention of one block, its norms included."""
    d = spec.d_model
    if isinstance(part, LatentAttention):
        return _latent_tensors(d, part)
    width, kv_width = part.n_heads * part.head_dim, part.n_kv_heads * part.head_dim
    found = _projections(d, part)
    if part.qk_norm in ("head", "full", "layernorm"):
        times = 2 if part.qk_norm == "layernorm" else 1
        widths = (width, kv_width) if part.qk_norm == "full" else (part.head_dim,) * 2
        found += [Weight(role="norm", name="qk_norm", shape=(w,), times=times) for w in widths]
    if part.sinks:
        found.append(Weight(role="attention", name="sinks", shape=(part.n_heads,)))
    if isinstance(spec.positions, TransformerXL):
        found += _linear("position", "r_proj", width, d, False)
        biases = (part.n_heads, part.head_dim)
        found.append(
            Weight(role="position", name="content and position bias", shape=biases, times=2)
        )
    return found


def _projections(d: Dim, part: Attention) -> list[Weight]:
    width, kv_width = part.n_heads * part.head_dim, part.n_kv_heads * part.head_dim
    return [
        *_linear("attention", "q_proj", width, d, part.q_bias),
        *_linear("attention", "k_proj", kv_width, d, part.k_bias),
        *_linear("attention", "v_proj", kv_width, d, part.v_bias),
        *_linear("attention", "o_proj", d, width, part.o_bias),
    ]


def _cross_tensors(spec: ModelSpec) -> list[Weight]:
    part = mixer_of(spec)
    assert isinstance(part, Attention)  # a cross-attention is none of a latent
    return _projections(spec.d_model, part)


def _latent_tensors(d: Dim, part: LatentAttention) -> list[Weight]:
    h, rank, q_rank = part.n_heads, part.kv_lora_rank, part.q_lora_rank
    q_width = h * (part.qk_nope_head_dim + part.qk_rope_head_dim)
    if q_rank is None:
        found = _linear("attention", "q_proj", q_width, d, False)
    else:
        found = _linear("attention", "q_a_proj", q_rank, d, part.bias)
        found += _linear("attention", "q_b_proj", q_width, q_rank, False)
        found.append(Weight(role="norm", name="q_a_layernorm", shape=(q_rank,)))
    kv_a = rank + part.qk_rope_head_dim
    found += _linear("attention", "kv_a_proj_with_mqa", kv_a, d, part.bias)
    found.append(Weight(role="norm", name="kv_a_layernorm", shape=(rank,)))
    expanded = h * (part.qk_nope_head_dim + part.v_head_dim)
    found += _linear("attention", "kv_b_proj", expanded, rank, False)
    return found + _linear("attention", "o_proj", d, h * part.v_head_dim, part.bias)


def ffn_tensors(d: Dim, d_ff: Dim, part: FeedForward, role: str = "ffn") -> list[Weight]:
    """Name the tensors of one feed-forward of two matrices or three."""
    gate = _linear(role, "gate_proj", d_ff, d, part.bias) if part.gated else []
    up = _linear(role, "up_proj", d_ff, d, part.bias)
    return [*gate, *up, *_linear(role, "down_proj", d, d_ff, part.bias)]


def moe_tensors(d: Dim, part: Mixture, like: FeedForward) -> list[Weight]:
    """Name the tensors of one layer of experts, which lie in one tensor [E, out, in] each."""
    n, m = part.n_experts, part.d_ff
    wide = 2 * m if like.gated else m
    found = _linear("moe", "proj", n, d, part.router_bias)
    for name, shape in (("experts up", (n, wide, d)), ("experts down", (n, d, m))):
        found.append(Weight(role="moe", name=name, shape=shape))
        if part.bias:
            found.append(Weight(role="moe", name=f"{name} bias", shape=shape[:2]))
    shared = part.shared
    if shared is not None:
        width = shared.n_experts * (m if shared.d_ff is None else shared.d_ff)
        found += ffn_tensors(d, width, like, "moe")
        if shared.gate:
            found += _linear("moe", "shared_expert_gate", 1, d, False)
    return found


def _stack_tensors(spec: ModelSpec, norms: Norms) -> list[Weight]:
    """What one stack has beside its blocks."""
    tables, positions, d = spec.embedding, spec.positions, spec.d_model
    width = d if tables is None or tables.width is None else tables.width
    found: list[Weight] = []
    if isinstance(positions, Learned):
        rows = (positions.n_positions, width)
        found.append(Weight(role="position", name="embed_positions", shape=rows))
        if positions.n_query_positions:
            rows = (positions.n_query_positions, d)
            found.append(Weight(role="position", name="embed_queries", shape=rows))
    if isinstance(positions, RelativeBuckets):
        shape = (positions.n_buckets, mixer_of(spec).n_heads)
        found.append(Weight(role="position", name="relative_attention_bias", shape=shape))
    if tables is not None and tables.norm:
        found += norm_tensors(norms, width)
    if tables is not None and tables.width is not None:
        found += _linear("embedding", "embed_proj", d, tables.width, True)
    return found + (norm_tensors(norms, d) if norms.final else [])


def _end_tensors(spec: ModelSpec) -> list[Weight]:
    """The tables and the head of a model."""
    tables, head, d = spec.embedding, spec.head, spec.d_model
    if tables is None:
        return []
    width = d if tables.width is None else tables.width
    vocabulary = (tables.vocab_size, width)
    found = [Weight(role="embedding", name="embed_tokens", shape=vocabulary)]
    if tables.n_token_types:
        types = (tables.n_token_types, width)
        found.append(Weight(role="embedding", name="embed_types", shape=types))
    if head is None:
        return found
    if not head.tied:
        found.append(Weight(role="head", name=HEAD, shape=vocabulary, rows=TOKENS))
    if head.bias:
        found.append(Weight(role="head", name=f"{HEAD}.bias", shape=vocabulary[:1]))
    if head.transform is not None:
        found += _linear("head", "dense", width, d, head.transform.bias)
        found += norm_tensors(spec.last_stack.norms, width)
    return found
