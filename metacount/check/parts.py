"""The parts that a count is the sum of, each in letters and with a name for people.

They are the formulas' own terms; what is added here are names, and the other ways in which people
count a part.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import sympy

from metacount.check.names import BYTES_LETTER, LETTERS
from metacount.formulas import masks, model, pieces
from metacount.formulas.ends import OF_MODEL
from metacount.formulas.pieces import counted_weights, nominal_pieces
from metacount.formulas.tape import (
    CROSS_PAIRS,
    OF_PAIRS,
    PAIRS,
    SOURCE,
    SOURCE_PAIRS,
    WINDOWED_PAIRS,
)
from metacount.frozen import frozen
from metacount.spec.field import altered

if TYPE_CHECKING:
    from collections.abc import Iterator

    from metacount.formulas.tape import Product, Weight
    from metacount.spec import ModelSpec, Workload

ATTENTION, FEED_FORWARD, BIASES, NORMS, BETWEEN_POSITIONS, RECURRENT, CROSS, ENDS = (
    "the attention projections",
    "the feed-forward",
    "all biases",
    "all norms",
    "the products between positions",
    "the recurrent mixers",
    "the cross-attention projections",
    "ends",
)
AROUND_BRANCHES = "AltUp, LAuReL and the layer's embedding"
TRANSFORM, POOLER = "the transform before the head", "the pooler with its bias"
NORMS_OF_BLOCKS = ("norms of the blocks", "norms' biases in the blocks")
# Parts of one name that are as many of one size; others of one name are added up.
COUNTED = ("matrices of the routed experts", "matrices of the shared experts")
# A tensor's path as a pattern; what it is called, with \1 for what stands in brackets; its group.
NAMES: tuple[tuple[str, str, str], ...] = (
    (r"embed_tokens.weight", "embedding", ENDS),
    (r"embed_types.weight", "token-type table", ENDS),
    (r"embed_proj.weight", "projection of the embedding", ENDS),
    (r"embed_proj.bias", "bias of the embedding's projection", ENDS),
    (r"embed_queries.weight", "query table", ENDS),
    (r"embed_positions.weight", "position table", ""),
    (r"relative_bias\..*", "relative position biases", ""),
    (r"self_attn.relative\..*", "relative positions", ""),
    (r"lm_head.weight", "output head", ENDS),
    (r"lm_head.bias", "bias of the head", ENDS),
    (r"head_transform.dense.weight", "transform before the head", TRANSFORM),
    (r"head_transform.dense.bias", "bias of the transform before the head", TRANSFORM),
    (r"head_transform.norm\..*", "norm before the head", TRANSFORM),
    (r"pooler.dense.weight", "pooler", POOLER),
    (r"pooler.dense.bias", "bias of the pooler", POOLER),
    (r"norm.weight", "final norm", NORMS),
    (r"norm.bias", "final norm's bias", NORMS),
    (r"embed_norm.weight", "norm after the embedding", NORMS),
    (r"embed_norm.bias", "norm's bias after the embedding", NORMS),
    (r"layernorm.weight", NORMS_OF_BLOCKS[0], NORMS),
    (r"layernorm.bias", NORMS_OF_BLOCKS[1], NORMS),
    (r"self_attn.[qk]_norm\..*", "QK-norm", NORMS),
    (r"self_attn.q_a_layernorm.weight", "norm of the query latent", NORMS),
    (r"self_attn.kv_a_layernorm.weight", "norm of the key-value latent", NORMS),
    (r"self_attn.core.sinks", "attention sinks", BIASES),
    (r"self_attn.kv_a_proj_with_mqa.weight", "kv_a_proj", ATTENTION),
    (r"self_attn.g_proj.weight", "gate of each head", ATTENTION),
    (r"self_attn.(\w+_proj).weight", r"\1", ATTENTION),
    (r"self_attn.indexer.([qk]_proj).weight", r"index \1", ""),
    (r"self_attn.indexer.([qk]_norm).weight", "norms of the index", NORMS),
    (r"self_attn.(\w+?)_proj(_with_mqa)?.bias", r"\1 bias", BIASES),
    (r"shared_use.linear.weight", "linear layers behind shared blocks", ""),
    (r"shared_use.adapters.(\w+).(\w+)_proj.weight", r"adapters on \1, \2", ""),
    (r"per_layer_inputs.embed_tokens.weight", "table of each layer's own embeddings", ENDS),
    (r"per_layer_inputs.model_projection.weight", "projection to each layer's embedding", ENDS),
    (r"per_layer_inputs.projection_norm.weight", "norm of each layer's embedding", NORMS),
    (r"copies.projections.weight", "projections to copies of the stream", ENDS),
    (r"copies.unembed_projections.weight", "projections of copies before the head", ENDS),
    (
        r"(?:altup.router|laurel.post_laurel|per_layer_input.?)_?norm.weight",
        "norms of AltUp, LAuReL and the layer's embedding",
        NORMS,
    ),
    (r"per_layer_input.(gate|projection).weight", r"\1 of the layer's embedding", AROUND_BRANCHES),
    (r"altup.(\w+).weight", r"AltUp \1", AROUND_BRANCHES),
    (r"altup.correct_output_scale", "AltUp's scale", AROUND_BRANCHES),
    (r"laurel.(linear_left|linear_right).weight", r"LAuReL \1", AROUND_BRANCHES),
    (r"cross_attn.(\w+_proj).weight", r"cross-attention \1", CROSS),
    (r"cross_attn.(\w+)_proj.bias", r"cross-attention \1 bias", BIASES),
    (r"mlp.(\w+_proj).weight", r"FFN \1", FEED_FORWARD),
    (r"mlp.\w+_proj.bias", "FFN biases", BIASES),
    (r"mlp.act_fn.alpha_\w", "learned numbers of xIELU", BIASES),
    (r"(?:mlp|moe).gate.proj.weight", "router", FEED_FORWARD),
    (r"(?:mlp|moe).gate.proj.bias", "router bias", BIASES),
    (r"moe.gate.(?:per_expert_)?scale", "scales of the router", BIASES),
    (r"(?:mlp|moe).gate.e_score_correction_bias", "biases for the choice of experts", BIASES),
    (r"(?:mlp|moe).experts.\w+_proj_bias", "experts' biases", BIASES),
    (r"(?:mlp|moe).experts.\w+_proj", "matrices of the routed experts", FEED_FORWARD),
    (r"(?:mlp|moe).shared_experts.\w+_proj.weight", "matrices of the shared experts", FEED_FORWARD),
    (r"(?:mlp|moe).shared_experts.\w+_proj.bias", "shared experts' biases", BIASES),
    (r"(?:mlp|moe).fc(\d)_latent_proj.weight", r"latent of the experts, \1", FEED_FORWARD),
    (r"(?:mlp|moe).fc\d_latent_proj.bias", "biases of the experts' latent", BIASES),
    (r"(?:mlp|moe).shared_expert_gate.weight", "gate of the shared experts", FEED_FORWARD),
)
# Of a mixer with a state, by what a tensor is: no name is better known than its own.
OF_A_MIXER = r"^(mamba|linear_attn|conv)\.(forget_gate\.)?"
OF_MIXERS = ((r".*norm\w*\.(weight|bias)", NORMS), (r".*bias", BIASES), (r".*", RECURRENT))


class Tensor(NamedTuple):
    """A tensor of a stack, `word`, as people call it: how many blocks have it, and of how many."""

    weight: Weight
    word: str
    text: str
    group: str
    n: sympy.Expr
    n_layers: sympy.Expr

    @property
    def fused(self) -> bool:
        """Whether it is two matrices in one."""
        return "gate_up_proj" in self.weight.name


def called(name: str) -> tuple[str, str]:
    """Name a tensor as people call it, with the group that it belongs to.

    >>> called("mlp.up_proj.weight")
    ('FFN up_proj', 'the feed-forward')
    """
    for pattern, text, group in NAMES:
        if match := re.fullmatch(pattern, name):
            return match.expand(text), group
    group = next(group for pattern, group in OF_MIXERS if re.fullmatch(pattern, name))
    return re.sub(OF_A_MIXER, "", name).removesuffix(".weight"), group


@frozen
class Part:
    """One part: its name, its share of the count, and other ways in which it is often counted.

    There are `count` of it, each `expr`. Parts of one `group` are often left out together.
    """

    name: str
    expr: sympy.Expr
    count: int = 1
    group: str = ""
    variants: tuple[tuple[str, sympy.Expr], ...] = ()

    @property
    def total(self) -> sympy.Expr:
        """All of it."""
        return self.count * self.expr


EVERY = "MoE is counted in every layer, the dense ones too"
DENSE_EVERYWHERE = "the dense FFN is counted in every layer"
ROUTER_OF_ACTIVE = "the router is counted for the active experts only"


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
        self.pieces = nominal_pieces(self.of)

    def tensors(self, *, multiplied: bool = False) -> Iterator[Tensor]:
        """Yield every tensor; if `multiplied`, as often as tokens are multiplied with it."""
        known: set[str] = set()
        for each in self.of.stacks:
            of_encoder = self.of.has_encoder and each is not self.of.decoder
            stack = ("encoder: " if of_encoder else "decoder: ") if self.of.has_encoder else ""
            pieces = [piece for piece in self.pieces if piece.of_encoder == of_encoder]
            for n, weight in counted_weights(self.of, pieces):
                of_model = weight.name.startswith(OF_MODEL)
                if of_model and weight.name in known:  # the encoder has it too
                    continue
                known.add(weight.name)
                if weight.uses is not None:
                    n = weight.uses if multiplied else weight.times
                    weight = altered(weight, times=1)
                text, group = called(weight.name)
                word = "" if of_model or weight.name.startswith("cross_attn") else stack
                yield Tensor(weight, word, text, group, n, each.n_layers)


def parameter_parts(letters: Letters, *, active: bool) -> list[Part]:
    """List every part of `params`, or of `active_params`."""
    tensors = letters.tensors()
    return merged([part for each in tensors for part in _shares(letters, each, active=active)])


def merged(parts: list[Part]) -> list[Part]:
    """Merge the parts of one name into one: so many of it, or added up."""
    by_name: dict[str, Part] = {}
    for part in parts:
        other = by_name.get(part.name)
        if other is None:
            by_name[part.name] = part
        elif part.name.endswith(COUNTED) and other.expr == part.expr:
            by_name[part.name] = altered(other, count=other.count + part.count)
        else:
            total = other.total + part.total
            by_name[part.name] = altered(other, expr=total, count=1, group=part.group)
    return [part for part in by_name.values() if part.expr != 0]


def _shares(letters: Letters, tensor: Tensor, *, active: bool) -> Iterator[Part]:
    weight, n, count = tensor.weight, tensor.n, 1
    each = weight.active if active else weight.params
    if tensor.text.endswith("routed experts") and tensor.fused:
        each, count = sympy.sympify(each) / 2, 2  # gate and up in one tensor
    if tensor.text.endswith(NORMS_OF_BLOCKS):
        per_block = sympy.simplify(sympy.sympify(n) / tensor.n_layers)
        if per_block.is_Integer:
            n, count = tensor.n_layers, int(per_block)
    name, group = tensor.word + tensor.text, "" if tensor.group == ENDS else tensor.group
    if not weight.split:
        variants, expr = (*_variants(letters, tensor, active),), sympy.sympify(n * each)
        yield Part(name=name, expr=expr, count=count, group=group, variants=variants)
    for what, size in weight.split:
        yield Part(name=f"{name} ({what})", expr=sympy.sympify(n * size), group=group)


def _variants(letters: Letters, tensor: Tensor, active: bool) -> Iterator[tuple[str, sympy.Expr]]:
    o, text, weight, n, n_layers = letters.of, tensor.text, tensor.weight, tensor.n, tensor.n_layers
    if text == "QK-norm" and o.qk_norm == "head":
        yield "QK-norm counted as d_model", 2 * n * o.d_model
    if text == "QK-norm" and o.qk_norm == "full":
        yield "QK-norm counted for one head, not for all", 2 * n * o.head_dim
    if tensor.group != FEED_FORWARD or not o.is_moe:
        return
    size, used = weight.size, weight.times
    if text.startswith("FFN "):
        yield DENSE_EVERYWHERE, n_layers * size
    elif text == "router":
        yield ROUTER_OF_ACTIVE, n * o.d_model * o.top_k
    elif text == "matrices of the routed experts":
        size /= 2 if tensor.fused else 1
        if active:
            used = weight.used
            yield "all experts are counted, not the active ones only", n * size * weight.times
        else:
            yield "the experts are counted for the active ones only", n * size * weight.used
        size *= used
    elif text != "matrices of the shared experts":
        return
    if not text.startswith("FFN ") and sympy.expand(n_layers - n) != 0:  # some are dense
        yield EVERY, n_layers * size


def some_of(n: int, count: int, names: list[str]) -> str:
    """Name `n` of `count` parts of one size; first the stack that they share."""
    where, colon, _ = names[0].rpartition(": ")
    if not all(name.startswith(where + colon) for name in names):
        where = colon = ""
    bare = [name.removeprefix(where + colon) for name in names]
    if n == count:
        return where + colon + listed(bare)
    word = ("one", "two", "three", "four")[n - 1]
    what = f"{word} of {listed(bare)}" if len(bare) > 1 else f"{word} of the {count} {bare[0]}"
    return where + colon + what


def listed(names: list[str]) -> str:
    """Write names as a list, a first word that all share said once.

    >>> listed(["FFN gate_proj", "FFN up_proj", "FFN down_proj"])
    'FFN gate_proj, up_proj and down_proj'
    """
    first = names[0].partition(" ")[0] + " "
    shared = first if len(names) > 1 and all(name.startswith(first) for name in names) else ""
    rest = [name.removeprefix(shared) for name in names]
    text = rest[0] if len(rest) == 1 else f"{', '.join(rest[:-1])} and {rest[-1]}"
    return shared + text


CAUSAL = "attention is counted over the causal pairs only"
WORDS = {
    PAIRS: "",
    WINDOWED_PAIRS: "windowed ",
    CROSS_PAIRS: "cross-attention ",
    SOURCE_PAIRS: "encoder: ",
}


def flop_parts(letters: Letters, quantity: str) -> list[Part]:
    """List every part of `matmul_flops`, `causal_matmul_flops` or `decode_matmul_flops`."""
    o, decode = letters.of, quantity == "decode_matmul_flops"
    run = _run(letters, quantity)
    parts = []
    for tensor in letters.tensors(multiplied=True):
        if tensor.weight.rows:
            tokens = 2 * run[SOURCE if tensor.word == "encoder: " else tensor.weight.rows]
            for part in _shares(letters, tensor, active=True):
                variants = tuple((words, tokens * expr) for words, expr in part.variants)
                parts.append(altered(part, expr=tokens * part.expr, variants=variants))
    for product in model.products(o, decode=decode):
        if product.per in OF_PAIRS:
            parts.append(_between(letters, quantity, product, run))
        else:
            name = "output head" if product.role == "head" else product.name
            parts.append(Part(name=name, expr=product.flops(run)))
    return merged(parts)


def _run(letters: Letters, quantity: str) -> dict[str, sympy.Expr]:
    o = letters.of
    if quantity == "decode_matmul_flops":
        return model.decode_run(
            o, batch_size=letters.batch, kv_len=letters.kv_len, source_len=letters.source
        )
    pairs = None
    if quantity == "causal_matmul_flops":
        pairs = model.kept_pairs(o, letters.seq, letters.prefix)
    return model.forward_run(
        o, batch_size=letters.batch, seq_len=letters.seq, source_len=letters.source, pairs=pairs
    )


def _between(letters: Letters, quantity: str, product: Product, run: dict[str, sympy.Expr]) -> Part:
    """Make the part of a product between positions; other pairs are its variants."""
    each = 2 * product.times * product.width  # 2 FLOPs per multiply-add
    other = {
        words: letters.batch * each * pairs
        for words, pairs in _other_pairs(letters, quantity, product.per, run)
    }
    named = product.name if product.name.startswith("projection") else f"attention {product.name}"
    return Part(
        name=WORDS[product.per] + named,
        expr=each * run[product.per],
        group=BETWEEN_POSITIONS,
        variants=tuple(other.items()),
    )


def _other_pairs(
    letters: Letters, quantity: str, per: str, run: dict[str, sympy.Expr]
) -> Iterator[tuple[str, sympy.Expr]]:
    """Yield other ways to count the pairs of one sequence."""
    o, s = letters.of, letters.seq
    if per in (CROSS_PAIRS, SOURCE_PAIRS):
        return
    half = masks.causal_pairs(s)
    if quantity == "decode_matmul_flops":
        if per == WINDOWED_PAIRS:
            yield "the window is ignored", letters.kv_len
    elif quantity == "matmul_flops":
        yield CAUSAL, half
        yield "attention is halved for the mask", s * s / 2
    else:
        yield "attention is counted over all pairs, masked ones too", s * s
        if run[per] != letters.batch * half:
            yield "attention is counted over all causal pairs, without its window or prefix", half
        if o.kind != "encoder":
            yield (
                "attention is halved for the mask; the diagonal makes it a little more",
                s * s / 2,
            )
            yield "attention is counted without the diagonal of the mask", s * (s - 1) / 2


def cache_parts(letters: Letters) -> list[Part]:
    """List every part of `kv_cache_bytes`."""
    o = letters.of
    if o.kind == "encoder":
        return []
    windowed, full = (sympy.sympify(n) for n in pieces.attention_layers(o))
    window = o.last_stack.attention.window
    size = None if window is None else window.size
    near = masks.cached_positions(letters.seq, size)
    cached = model.cached_tensors(o)
    n_indexed, n_sharing = (
        count(o, o.n_layers) for count in (pieces.indexed_layers, pieces.sharing_layers)
    )
    of_index = model.cached_tensors(o, indexed=bool(n_indexed != 0))[len(cached) :]
    if n_sharing != 0:  # of MLA, whose index's keys stand last
        n_indexed, of_index, cached = full - n_sharing, cached[-1:], cached[:-1]
    # label, tensors, layers that keep them, positions of each
    kinds = [("windowed layers: ", model.cached_tensors(o, windowed=True), windowed, near)]
    kinds.append(("global layers: " if windowed != 0 else "", cached, full, letters.seq))
    kinds.append(("", of_index, n_indexed, letters.seq))
    if o.has_encoder:
        kinds.append(("cross-attention ", cached, o.n_layers, letters.source))
    parts = []
    for label, tensors, n_layers, positions in kinds:
        for tensor in tensors if n_layers != 0 else ():
            each = letters.batch * BYTES_LETTER * n_layers * tensor.size
            variants = {}
            if label == "windowed layers: ":
                seen = masks.attended_positions(letters.seq, size)
                variants["the window is ignored"] = each * letters.seq
                variants["a window of w positions is kept, not w - 1"] = each * seen
            name, of = label + tensor.name, (*variants.items(),)
            parts.append(Part(name=name, expr=each * positions, variants=of))
    return parts


def state_parts(letters: Letters) -> list[Part]:
    """List every part of `state_bytes`."""
    by_part = model.state_bytes_by_part(
        letters.of, batch_size=letters.batch, bytes_per_value=BYTES_LETTER
    )
    return [Part(name=f"{name} state", expr=expr) for name, expr in by_part.items()]


def parts_of(letters: Letters, quantity: str) -> list[Part]:
    """List every part of a quantity; together they sum to it."""
    if quantity == "kv_cache_bytes":
        return cache_parts(letters)
    if quantity == "state_bytes":
        return state_parts(letters)
    if quantity in ("params", "active_params"):
        return parameter_parts(letters, active=quantity == "active_params")
    return flop_parts(letters, quantity)
