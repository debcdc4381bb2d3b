"""The parts that a count is the sum of, each in letters and with a name for people.

Made with the formulas' own functions where there is one for the part; that the parts sum to the
count is tested for every model of the catalog.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sympy

from metacount.check.given.vocabulary import LETTERS
from metacount.formulas import ends, norm, position, stack
from metacount.frozen import frozen

if TYPE_CHECKING:
    from metacount.spec import ModelSpec, Workload


@frozen
class Part:
    """One part: its name, its share of the count, and other ways in which it is often counted.

    There are `count` of it, each `expr`. Parts of one `group` are often left out together.
    """

    name: str
    expr: Any
    count: int = 1
    group: str = ""
    variants: tuple[tuple[str, Any], ...] = ()

    @property
    def total(self) -> Any:
        """All of it."""
        return self.count * self.expr


ATTENTION, FEED_FORWARD, BIASES, NORMS, PAIRS = (
    "the attention projections",
    "the feed-forward",
    "all biases",
    "all norms",
    "the products between positions",
)


EVERY = "MoE is counted in every layer, the dense ones too"


def _group(name: str, parts: list[Part]) -> list[Part]:
    return [Part(name=p.name, expr=sympy.sympify(p.expr), count=p.count, group=name,
                 variants=p.variants) for p in parts if p.expr != 0]  # fmt: skip


class Letters:
    """A spec with letters for its sizes, and the layer counts that several parts need."""

    def __init__(self, spec: ModelSpec, workload: Workload) -> None:
        self.spec = spec
        sizes = {
            name: letter
            for name, letter in LETTERS.items()
            if getattr(spec, name, None) and (name != "moe_every" or spec.moe_every > 1)
        }
        self.of = spec.substituted(**sizes)
        self.batch, self.seq = LETTERS["batch_size"], LETTERS["seq_len"]
        self.kv_len, self.source = LETTERS["kv_len"], LETTERS["source_len"]
        self.prefix = LETTERS["prefix_len"] if workload.prefix_len else 0
        # of each stack: a word for its parts, its layers, its MoE layers, cross-attention or not
        self.stacks = []
        for n_layers, cross in stack.stacks(self.of):
            word = ("decoder: " if cross else "encoder: ") if spec.has_encoder else ""
            self.stacks.append((word, n_layers, stack.moe_layers(self.of, n_layers), cross))

    @property
    def windowed_and_full(self) -> tuple[Any, Any]:
        """Layers that see a window only, layers that see everything."""
        windowed, full = stack.attention_layers(self.of)
        return sympy.sympify(windowed), sympy.sympify(full)


def matrices(letters: Letters, *, active: bool) -> list[tuple[Part, Any, str]]:
    """Every matrix that tokens are multiplied with: the part, its layers' stack, whose tokens.

    Whose tokens: `self`, `source` (an encoder's, also what cross-attention reads), `head`.
    """
    found: list[tuple[Part, Any, str]] = []
    for word, n_layers, n_moe, cross in letters.stacks:
        tokens = "source" if word.startswith("encoder") else "self"
        for part in _group(ATTENTION, _attention(letters, word, n_layers)):
            found.append((part, n_layers, tokens))
        if cross:
            for part in _group("the cross-attention projections",
                               _gqa(letters, "cross-attention ", n_layers)):  # fmt: skip
                who = "source" if part.name[-6:] in ("k_proj", "v_proj") else "self"
                found.append((part, n_layers, who))
        ffn = _feed_forward(letters, word, n_layers, n_moe, active=active)
        for part in _group(FEED_FORWARD, ffn):
            found.append((part, n_layers, tokens))
    return found


def _attention(letters: Letters, word: str, n: Any) -> list[Part]:
    o = letters.of
    if o.attention == "gqa":
        return _gqa(letters, word, n)
    d, h = o.d_model, o.n_heads
    queries = ("not rotated", o.qk_nope_head_dim), ("rotated", o.qk_rope_head_dim)
    if o.q_lora_rank is None:
        q = [Part(name=f"q_proj ({what})", expr=n * d * h * width) for what, width in queries]
    else:
        q = [
            Part(name="q_a_proj", expr=n * d * o.q_lora_rank),
            *(Part(name=f"q_b_proj ({what})", expr=n * o.q_lora_rank * h * width)
              for what, width in queries),
        ]  # fmt: skip
    return [
        *q,
        Part(name="kv_a_proj (latent)", expr=n * d * o.kv_lora_rank),
        Part(name="kv_a_proj (rotated key)", expr=n * d * o.qk_rope_head_dim),
        Part(name="kv_b_proj (keys)", expr=n * o.kv_lora_rank * h * o.qk_nope_head_dim),
        Part(name="kv_b_proj (values)", expr=n * o.kv_lora_rank * h * o.v_head_dim),
        Part(name="o_proj", expr=n * d * h * o.v_head_dim),
    ]


def _gqa(letters: Letters, word: str, n: Any) -> list[Part]:
    o = letters.of
    q, kv = n * o.d_model * o.n_heads * o.head_dim, n * o.d_model * o.n_kv_heads * o.head_dim
    names = ("q_proj", q), ("k_proj", kv), ("v_proj", kv), ("o_proj", q)
    return [Part(name=word + name, expr=expr) for name, expr in names]


def _feed_forward(
    letters: Letters, word: str, n_layers: Any, n_moe: Any, *, active: bool
) -> list[Part]:
    o, found = letters.of, []
    n_dense = n_layers - n_moe
    names = ("gate_proj", "up_proj", "down_proj") if o.gated else ("up_proj", "down_proj")
    if o.d_ff is not None:
        dense_everywhere = "the dense FFN is counted in every layer"
        for name in names:
            wide = ((dense_everywhere, n_layers * o.d_model * o.d_ff),) if o.is_moe else ()
            dense = n_dense * o.d_model * o.d_ff
            found.append(Part(name=f"{word}FFN {name}", expr=dense, variants=wide))
    if not o.is_moe:
        return found
    d, m, experts = o.d_model, o.d_ff_expert, o.n_experts
    used = o.top_k if active else experts
    only = "the router is counted for the active experts only"
    router = [(only, n_moe * d * o.top_k)]
    everywhere = not is_zero_layers(n_dense)
    if everywhere:
        router.append((EVERY, n_layers * d * experts))
    found.append(Part(name=word + "router", expr=n_moe * d * experts, variants=tuple(router)))
    other = (
        ("all experts are counted, not the active ones only", experts)
        if active
        else ("the experts are counted for the active ones only", o.top_k)
    )
    one = n_moe * d * m
    variants = [(other[0], one * other[1])]
    if everywhere:
        variants.append((EVERY, n_layers * d * m * used))
    found.append(Part(name=word + "matrices of the routed experts", expr=one * used,
                      count=len(names), variants=tuple(variants)))  # fmt: skip
    if letters.spec.n_shared_experts:
        width = o.n_shared_experts * (o.d_ff_expert if o.d_ff_shared is None else o.d_ff_shared)
        shared = n_moe * d * width
        wide = ((EVERY, n_layers * d * width),) if everywhere else ()
        found.append(Part(name=word + "matrices of the shared experts", expr=shared,
                          count=len(names), variants=wide))  # fmt: skip
        if o.shared_expert_gate:
            found.append(Part(name=word + "gate of the shared experts", expr=n_moe * d))
    return found


def is_zero_layers(n: Any) -> bool:
    """Whether a number of layers is 0 by structure."""
    return bool(sympy.expand(n) == 0)


def parameter_parts(letters: Letters, *, active: bool) -> list[Part]:
    """Every part of `params`, or of `active_params`."""
    parts = [*_tables(letters), *(part for part, _, _ in matrices(letters, active=active))]
    for word, n_layers, n_moe, cross in letters.stacks:
        biases = _biases(letters, word, n_layers, n_moe, active=active)
        biases += _biases_of_gqa(letters, "cross-attention ", n_layers) if cross else []
        parts += _group(BIASES, biases)
        parts += _group(NORMS, _norms(letters, word, n_layers, cross=cross))
        parts += _positions(letters, word, n_layers)
    return [part for part in parts if part.expr != 0]


def _tables(letters: Letters) -> list[Part]:
    o = letters.of
    e, table = ends.table_width(o), ends.token_table_params(o)
    own_head = bool(o.has_head and not o.tie_embeddings)
    pairs = [
        ("embedding", table),
        ("token-type table", o.n_token_types * e),
        ("projection of the embedding", e * o.d_model if o.d_embedding is not None else 0),
        ("bias of the embedding's projection", o.d_model if o.d_embedding is not None else 0),
        ("query table", o.n_query_positions * o.d_model),
        ("output head", table if own_head else 0),
        ("bias of the head", o.vocab_size if o.head_bias else 0),
        ("transform before the head", o.d_model * e if o.head_transform else 0),
        ("bias of the transform before the head", e if o.head_transform_bias else 0),
        ("norm before the head", ends.embedding_norm_params(o) if o.head_transform else 0),
        ("pooler", o.d_model * o.d_model if o.pooler else 0),
        ("bias of the pooler", o.d_model if o.pooler else 0),
    ]
    ends_of = {"pooler": "the pooler with its bias", "transform": "the transform before the head"}
    return [Part(name=name, expr=sympy.sympify(expr),
                 group=next((group for word, group in ends_of.items()
                             if word in name or (name == "norm before the head"
                                                 and word == "transform")), ""))
            for name, expr in pairs]  # fmt: skip


def _biases_of_gqa(letters: Letters, word: str, n: Any) -> list[Part]:
    o = letters.of
    q, kv = n * o.n_heads * o.head_dim, n * o.n_kv_heads * o.head_dim
    flags = ("q", o.q_bias, q), ("k", o.k_bias, kv), ("v", o.v_bias, kv), ("o", o.o_bias,
                                                                         n * o.d_model)  # fmt: skip
    return [Part(name=f"{word}{name} bias", expr=expr if flag else sympy.Integer(0))
            for name, flag, expr in flags]  # fmt: skip


def _biases(letters: Letters, word: str, n_layers: Any, n_moe: Any, *, active: bool) -> list[Part]:
    o = letters.of
    found = []
    if o.attention == "mla":
        if o.mla_bias:
            widths = {"q_a": o.q_lora_rank or 0, "o": o.d_model,
                      "kv_a": o.kv_lora_rank + o.qk_rope_head_dim}  # fmt: skip
            found += [Part(name=f"{n} bias", expr=n_layers * w) for n, w in widths.items()]
    else:
        found += _biases_of_gqa(letters, word, n_layers)
        if o.attention_sinks:
            found.append(Part(name=word + "attention sinks", expr=n_layers * o.n_heads))
    inner = 2 if o.gated else 1
    if o.ffn_bias and o.d_ff is not None:
        found.append(Part(name=word + "FFN biases",
                          expr=(n_layers - n_moe) * (inner * o.d_ff + o.d_model)))  # fmt: skip
    if not o.is_moe:
        return found
    if o.router_bias:
        found.append(Part(name=word + "router bias", expr=n_moe * o.n_experts))
    if o.expert_bias:
        used = o.top_k if active else o.n_experts
        found.append(Part(name=word + "experts' biases",
                          expr=n_moe * used * (inner * o.d_ff_expert + o.d_model)))  # fmt: skip
    if o.ffn_bias and letters.spec.n_shared_experts:
        width = o.n_shared_experts * (o.d_ff_expert if o.d_ff_shared is None else o.d_ff_shared)
        found.append(Part(name=word + "shared experts' biases",
                          expr=n_moe * (inner * width + o.d_model)))  # fmt: skip
    return found


def _norms(letters: Letters, word: str, n: Any, *, cross: bool) -> list[Part]:
    o = letters.of
    if o.norm_affine:
        widths = {"weights": o.d_model, "biases": o.d_model if o.norm_bias else 0}
        tables = {"weights": ends.table_width(o), "biases": ends.table_width(o)
                  if o.norm_bias else 0}  # fmt: skip
    else:
        widths = tables = {}
    found = []
    per_block = norm.norms_per_block(o.norm_placement, cross=cross)
    for kind, width in widths.items():
        many = "norms of the blocks" if kind == "weights" else "norms' biases in the blocks"
        one = "norm" if kind == "weights" else "norm's bias"
        if o.first_norm:
            found.append(Part(name=word + many, expr=n * width, count=per_block))
        else:
            found.append(Part(name=word + many, expr=(per_block * n - 1) * width))
        found.append(Part(name=f"{word}final {one}", expr=width if o.final_norm
                          else sympy.Integer(0)))  # fmt: skip
        found.append(Part(name=f"{word}{one} after the embedding", expr=tables[kind]
                          if o.embedding_norm else sympy.Integer(0)))  # fmt: skip
    if o.attention == "mla":
        found.append(Part(name="norm of the key-value latent", expr=n * o.kv_lora_rank))
        if o.q_lora_rank is not None:
            found.append(Part(name="norm of the query latent", expr=n * o.q_lora_rank))
        return [part for part in found if part.expr != 0]
    weights = n * norm.qk_norm_params(o.qk_norm, o.n_heads, o.n_kv_heads, o.head_dim)
    wide = {"head": (("QK-norm counted as d_model", 2 * n * o.d_model),),
            "full": (("QK-norm counted for one head, not for all", 2 * n * o.head_dim),)}.get(
                o.qk_norm, ())  # fmt: skip
    found.append(Part(name=word + "QK-norm", expr=sympy.sympify(weights), variants=wide))
    return [part for part in found if part.expr != 0]


def _positions(letters: Letters, word: str, n: Any) -> list[Part]:
    o = letters.of
    if o.position == "learned":
        table = position.learned_table_params(o.n_positions, ends.table_width(o))
        return [Part(name=word + "position table", expr=table)]
    if o.position == "t5":
        table = position.t5_bias_params(o.n_buckets, o.n_heads)
        return [Part(name=word + "relative position biases", expr=table)]
    if o.position == "transformer_xl":
        one = position.transformer_xl_params(o.d_model, o.n_heads, o.head_dim)
        return [Part(name=word + "relative positions", expr=n * one)]
    return []
