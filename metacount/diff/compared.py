"""Two models part by part: what was added, taken away, replaced or resized, and what that costs.

>>> from metacount.catalog import entry
>>> llama, mixtral = entry("llama-7b").spec(), entry("mixtral-8x7b").spec()
>>> found = diff(("llama-7b", llama), ("mixtral-8x7b", mixtral), Workload(), Workload())
>>> [(row.name, row.status) for row in found.rows if row.status not in ("same", "changed")]
[('attention', 'resized'), ('feed-forward', 'replaced')]
>>> found.row("feed-forward").forms
('3·d·m', 'E·d·(3·m_e + 1)')
>>> for part in parts(mixtral, Workload(seq_len=128)):
...     print(part.name, part.described, part.values["params"])
embedding [32000, 4096] 131072000
positions rope 0
attention GQA 32/8 1342177280
mixture 2 of 8 experts of width 14336, silu(gate) · up 45098205184
norms rmsnorm, pre 266240
head [32000, 4096] 131072000
"""

from __future__ import annotations

from fractions import Fraction

from metacount.figures import COUNTED, OF_SOME
from metacount.formulas import ends, model, pieces
from metacount.formulas.block import STORED
from metacount.formulas.dim import Dim
from metacount.formulas.pieces import BLOCK, Piece, generic, merged, nominal_pieces
from metacount.formulas.tape import CROSS_PAIRS, Product, Weight
from metacount.frozen import frozen
from metacount.spec import ModelSpec, Workload
from metacount.spec.attention import (
    Attention,
    CompressedAttention,
    LatentAttention,
    NoAttention,
)
from metacount.spec.ffn import Mixture
from metacount.spec.model import FIELDS, PATHS
from metacount.spec.stack import SHARING
from metacount.textbook.count import QUANTITIES as COUNTS
from metacount.textbook.count import count, run_sizes
from metacount.units import activated, heads, latent_heads

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Container, Iterator
    from typing import TypeAlias

    from metacount.files import Json

    Described: TypeAlias = tuple[str, str, str, str]  # name, kind, text, paths of fields

QUANTITIES = ("params", "active_params", "matmul_flops", "kv_cache_bytes")
ENDS = ("embedding", "positions", "head", "pooler")  # of the model, not of a stack of it
BESIDE, AROUND = "beside the branches", "around the blocks"
OF_EACH_BLOCK = ("altup.", "laurel.", "per_layer_input.", "attn_hc.", "ffn_hc.")
OF_NO_BLOCK = ("copies.", "per_layer_inputs.", "hc_head.")


@frozen
class Sum:
    """What one part of a model sums to: how many blocks have it, and the values of one of them."""

    copies: Dim = 0
    one: Dim = 0
    params: Dim = 0
    active: Dim = 0
    flops: Dim = 0


@frozen
class Part:
    """One part of one stack (of none: `stack` is empty), or of all its blocks.

    `copies` blocks have it; `one` is the parameters of one of them. `kind` is a word for how it is
    made: another word is another part in its place. `fields` are paths in the spec whose values
    belong to it.
    """

    name: str
    stack: str
    kind: str
    described: str
    copies: Dim
    one: Dim
    values: dict[str, Dim]
    fields: tuple[str, ...]


def parts(spec: ModelSpec, run: Workload, structure: ModelSpec | None = None) -> tuple[Part, ...]:
    """List the parts of `spec` from the bottom up; their values add up to the model's.

    `structure` is the same spec with numbers for sizes, where `spec` has symbols.
    """
    plain = structure or spec
    sizes = run_sizes(plain, run)
    forward: dict[str, Dim] = {n: sizes[n] for n in ("batch_size", "seq_len", "source_len")}
    sums = sums_of(spec, model.forward_run(spec, **forward))
    caches = COUNTS["kv_cache_bytes"](spec, sizes)
    tokens = sizes["batch_size"] * sizes["seq_len"] * sizes["bytes_per_value"]
    # keys of a block indexer are a part of their own
    index_cache = tokens * model.index_cache_values(spec)
    of_attention = {
        "attention": caches["self-attention"] - index_cache,
        "shared blocks": caches["self-attention"] - index_cache,
        "cross-attention": caches["cross-attention"],
        "indexer": index_cache,
    }
    made = []
    for stack, name, kind, described, fields in _described(plain, {*sums}):
        total = sums.get((stack, name), Sum())
        is_one = not stack or name == "norms"  # an end, and all norms of a stack, are one part each
        keeps = not (stack == "encoder" and plain.has_encoder)
        part = Part(
            name=name,
            stack=stack,
            kind=kind,
            described=described,
            copies=1 if is_one else total.copies,
            one=total.params if is_one else total.one,
            values={
                "params": total.params,
                "active_params": total.active,
                "matmul_flops": total.flops,
                "kv_cache_bytes": of_attention.get(name, 0) if keeps else 0,
            },
            fields=tuple(fields.split()),
        )
        made.append(part)
    return tuple(made)


def _described(plain: ModelSpec, known: Container[tuple[str, str]]) -> Iterator[tuple[str, ...]]:
    if plain.embedding is not None:
        yield "", "embedding", "table", table_described(plain), "embedding"
    if plain.position != "none":
        rows = f", {plain.n_positions} rows" if plain.n_positions else ""
        yield "", "positions", plain.position, plain.position + rows, "positions"
    for stack in ("encoder", "decoder"):
        if getattr(plain, stack) is not None:
            yield from ((stack, *row) for row in _of_stack(plain, stack, known))
    if plain.head is not None and plain.embedding is not None:
        tied = ", the token table" if plain.head.tied else ""
        yield "", "head", "head", table_described(plain) + tied, "head"
    if plain.pooler:
        yield "", "pooler", "pooler", "tanh(dense(first token))", "pooler"


def _of_stack(
    plain: ModelSpec, stack: str, known: Container[tuple[str, str]]
) -> Iterator[Described]:
    """Yield what the blocks of a stack are made of, and its norms; `known` are parts that sum."""
    last = plain.last_stack
    mixer, like, shared = last.attention, last.feed_forward, last.shared
    act = made = ""
    if like is not None:
        act = activated(like.activation, like.swish_beta, gated=like.gated)
        made = "gated" if like.gated else "plain"
    attends = attention_described(plain)
    if not isinstance(mixer, NoAttention) and shared is None:
        kind = "heads" if isinstance(mixer, Attention) else mixer.word
        yield "attention", kind, attends, "decoder.attention"
    if plain.has_encoder and stack == "decoder":
        yield "cross-attention", "heads", attends, "decoder.attention"
    index = getattr(mixer, "indexer", None)
    if index is not None and (stack, "indexer") in known:
        text = f"{index.n_heads} heads, {index.top_blocks} blocks of {index.block_len} positions"
        yield "indexer", "blocks", text, "decoder.attention.indexer"
    if shared is not None:
        width = "" if like is None else _width(like.d_ff, "m", plain)
        fields = "decoder.attention decoder.feed_forward decoder.shared.n_blocks"
        yield "shared blocks", "shared", f"{attends}, {act}, {width}", fields
        own = "" if shared.adapter_rank is None else f", adapters of rank {shared.adapter_rank}"
        fields = "decoder.shared decoder.mixer_pattern"
        yield "uses of shared blocks", "shared", f"a linear layer{own}", fields
    if (word := last.recurrent.word) != "none":
        fields = "decoder.recurrent decoder.mixer_pattern"
        yield "recurrent mixer", word, word.replace("_", " "), fields
    if like is not None and like.d_ff is not None and shared is None:
        text = f"{act}, {_width(like.d_ff, 'm', plain)}"
        yield "feed-forward", made, text, "decoder.feed_forward"
    if last.mixture is not None:
        fields = "decoder.mixture decoder.feed_forward.activation decoder.feed_forward.gated"
        yield "mixture", f"{made} mixture", mixture_described(last.mixture, act), fields
    if (stack, "borrowing attention") in known:
        text = f"{attends}, keys and values of earlier layers"
        yield "borrowing attention", "heads", text, "decoder.attention.n_kv_shared_layers"
    if like is not None and like.second is not None:
        fields = "decoder.feed_forward.second decoder.feed_forward.second_pattern"
        text = f"{act}, {_width(like.second, 'm_2', plain)}"
        yield "second feed-forward", made, text, fields
    yield from (row for row in _streams(plain) if (stack, row[0]) in known)
    fields = "decoder.norms embedding.norm decoder.attention.qk_norm"
    yield "norms", last.norms.kind, f"{last.norms.kind}, {last.norms.placement}", fields


def _streams(plain: ModelSpec) -> Iterator[Described]:
    """Yield AltUp, LAuReL, several streams and each layer's own embedding: in every block, and
    around them.
    """
    last = plain.last_stack
    streams = f"hyper-connections of {last.hyper.n_streams} streams" if last.hyper else ""
    altup = f"AltUp of {last.altup.n_inputs} copies" if last.altup else ""
    laurel = f"LAuReL of rank {last.laurel.rank}" if last.laurel else ""
    inputs = f"a layer's embedding of {last.layer_inputs.width}" if last.layer_inputs else ""
    fields = "decoder.altup decoder.laurel decoder.hyper decoder.layer_inputs.width"
    yield BESIDE, "around", ", ".join(filter(None, (altup, laurel, streams, inputs))), fields
    text = ", ".join(filter(None, (altup, streams, inputs)))
    yield AROUND, "around", text, "decoder.layer_inputs.vocab_size"


def _width(width: int | None, letter: str, plain: ModelSpec) -> str:
    return f"{letter} = {width} = {times_d(width, plain)}" if width else ""


def sums_of(spec: ModelSpec, run: dict[str, Dim]) -> dict[tuple[str, str], Sum]:
    """Sum a model's tensors and products by stack and by part."""
    terms: dict[tuple[str, str], list[tuple[Dim, Weight | Product]]] = {}
    known: set[str] = set()
    for piece in nominal_pieces(spec):
        stack = "encoder" if piece.of_encoder or spec.decoder is None else "decoder"
        both: list[Weight | Product] = [*piece.tape.weights, *piece.tape.products]
        for term in both:
            if piece.place != BLOCK and term.name.startswith(ends.OF_MODEL):
                if term.name in known:  # the encoder has it too
                    continue
                known.add(term.name)
            name = part_of(piece, term)
            if piece.place == BLOCK and isinstance(term, Weight):
                term = generic(term)
            key = ("" if name in ENDS else stack, name)
            terms.setdefault(key, []).append((piece.times, term))
    return {key: _sum(spec, merged(those), run) for key, those in terms.items()}


def _sum(spec: ModelSpec, terms: list[tuple[Dim, Weight | Product]], run: dict[str, Dim]) -> Sum:
    shared = spec.last_stack.shared
    weights = [
        (shared.n_blocks if shared is not None and term.name.startswith(STORED) else n, term)
        for n, term in terms
        if isinstance(term, Weight)
    ]
    return Sum(
        copies=weights[0][0] if weights else 0,
        one=sum(weight.params for _, weight in weights),
        params=sum(n * weight.params for n, weight in weights),
        active=sum(n * weight.active for n, weight in weights),
        flops=sum(n * term.flops(run) for n, term in terms),
    )


def part_of(piece: Piece, term: Weight | Product) -> str:
    """Name the part of a model that a tensor or a product belongs to."""
    name, role = term.name.removeprefix(STORED), term.role
    if name.startswith("head_transform."):
        return "head"
    if role == "norm":
        return "norms"
    if name.startswith(OF_EACH_BLOCK) or (role == "other" and isinstance(term, Product)):
        return BESIDE
    if name.startswith(OF_NO_BLOCK):
        return AROUND
    if name.startswith("shared_use."):
        return "uses of shared blocks"
    if piece.layer.mixer == SHARING:
        return "shared blocks"
    if name.startswith("cross_attn.") or getattr(term, "per", "") == CROSS_PAIRS:
        return "cross-attention"
    if name.startswith(("self_attn.indexer.", "index ")) and piece.layer.indexed:
        return "indexer"
    if role == "attention":
        return "borrowing attention" if piece.layer.borrows else "attention"
    if role == "ffn":
        return "second feed-forward" if piece.layer.second else "feed-forward"
    named = {"position": "positions", "recurrent": "recurrent mixer", "moe": "mixture"}
    return "pooler" if name.startswith("pooler.") else named.get(role, role)


def attention_described(spec: ModelSpec) -> str:
    """Describe how an attention is made, with the window that some of its layers see."""
    mixer = spec.last_stack.attention
    if isinstance(mixer, LatentAttention):
        text = latent_heads(mixer.n_heads, mixer.kv_lora_rank, mixer.qk_rope_head_dim)
    elif isinstance(mixer, Attention):
        text = heads(mixer.n_heads, mixer.n_kv_heads)
    elif isinstance(mixer, CompressedAttention):
        text = f"{mixer.n_heads} heads, one key, compressed entries by {mixer.pattern}"
    else:
        return "none"
    if mixer.window is None:
        return text
    near = pieces.windowed_layers(spec.last_stack.n_layers, spec.last_stack.seen)
    return f"{text}, window {mixer.window.size} in {near} layers"


def mixture_described(mixture: Mixture, activation: str) -> str:
    """Describe how many experts of which width a token gets."""
    text = f"{mixture.top_k} of {mixture.n_experts} experts of width {mixture.d_ff}, {activation}"
    if mixture.shared is not None:
        text += f", {mixture.shared.n_experts} shared"
    if mixture.latent is not None:
        text += f", in a latent of {mixture.latent}"
    if mixture.zero is not None:
        text += f", {mixture.zero.n_experts} zero experts"
        text += " with rows that nobody reads" if mixture.zero.rows else ""
    return text


def table_described(spec: ModelSpec) -> str:
    """Describe the shape of the token table."""
    return f"[{spec.vocab_size}, {ends.table_width(spec)}]"


def times_d(width: int, spec: ModelSpec) -> str:
    """Write a width as a multiple of d, exact or to four digits.

    >>> from metacount.catalog import entry
    >>> times_d(11008, entry("llama-7b").spec()), times_d(3072, entry("gpt2").spec())
    ('2.688·d', '4·d')
    """
    ratio = Fraction(width, spec.d_model)
    return f"{ratio.numerator}·d" if ratio.denominator == 1 else f"{float(ratio):.4g}·d"


# ---- two models side by side

# From most to least. A changed part has the same parameters, and another field.
STATUSES = ("replaced", "added", "removed", "resized", "changed", "same")


@frozen
class Side:
    """One of the two models: its name, what it ran, its figures."""

    name: str
    workload: Workload
    figures: dict[str, int | None]


@frozen
class Row:
    """One part of the one model beside the part of the other that stands in its place.

    `fields` are the values that differ, by field, of both; `forms` the parameters of one block of
    each in letters, empty for a part that is not there.
    """

    name: str
    stack: str
    status: str
    a: Part | None
    b: Part | None
    fields: dict[str, tuple[object, object]]
    forms: tuple[str, str]

    def values(self, quantity: str) -> tuple[int, int]:
        """Return what both models have of a quantity; 0 of a part that is not there."""
        left, other = (0 if part is None else part.values[quantity] for part in (self.a, self.b))
        return left, other


@frozen
class Diff:
    """Two models side by side. `fields` are those that differ and belong to no part."""

    a: Side
    b: Side
    rows: tuple[Row, ...]
    fields: dict[str, tuple[object, object]]
    notes: tuple[str, ...] = ()

    def row(self, name: str) -> Row:
        """Return the first row of a name."""
        return next(row for row in self.rows if row.name == name)

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not self.fields and all(row.status == "same" for row in self.rows)

    def to_dict(self) -> Json:
        """Return plain data: figures and parts with the values of both, difference and ratio."""
        return {
            "models": [self.a.name, self.b.name],
            "workloads": [self.a.workload.to_dict(), self.b.workload.to_dict()],
            "figures": {
                name: compared(a, self.b.figures[name])
                for name, a in self.a.figures.items()
                if name not in OF_SOME or (a, self.b.figures[name]) != (None, None)
            },
            "parts": [
                {
                    "part": row.name,
                    "stack": row.stack or None,
                    "status": row.status,
                    "described": [part and part.described for part in (row.a, row.b)],
                    "copies": [part and part.copies for part in (row.a, row.b)],
                    "one": [part and part.one for part in (row.a, row.b)],
                    "formulas": [form or None for form in row.forms],
                    "fields": {name: list(both) for name, both in row.fields.items()},
                    **{q: compared(*row.values(q)) for q in QUANTITIES},
                }
                for row in self.rows
            ],
            "fields": {name: list(both) for name, both in self.fields.items()},
            "notes": list(self.notes),
        }


def compared(a: int | None, b: int | None) -> Json:
    """Return two values, the second less the first,
    and the second over the first where that is a number.

    >>> compared(4, 6)
    {'a': 4, 'b': 6, 'difference': 2, 'ratio': 1.5}
    """
    if a is None or b is None:
        return {"a": a, "b": b, "difference": None, "ratio": None}
    return {"a": a, "b": b, "difference": b - a, "ratio": b / a if a else None}


def diff(
    a: tuple[str, ModelSpec], b: tuple[str, ModelSpec], run_a: Workload, run_b: Workload
) -> Diff:
    """Lay two models (name and spec) beside each other, each with what it runs."""
    sides = ((a[1], run_a), (b[1], run_b))
    both = [parts(spec, run) for spec, run in sides]
    forms = [_forms(spec, run) for spec, run in sides]
    differing = _differing(a[1], b[1])
    rows = tuple(_row(*line, differing, forms) for line in aligned(*both))
    named = {name for row in rows for name in row.fields}
    owned = {path for model in both for part in model for path in part.fields}
    rest = {
        name: values
        for name, values in differing.items()
        if name not in named and not _belongs(PATHS[name], tuple(owned))
    }
    return Diff(a=side(a[0], a[1], run_a), b=side(b[0], b[1], run_b), rows=rows, fields=rest)


def side(name: str, spec: ModelSpec, run: Workload) -> Side:
    """Count a model's figures under the names of `count`."""
    data = count(spec, run).to_dict()
    absent = dict.fromkeys(OF_SOME)  # None, for nobody counts them; what others lack is 0
    figures = {name: data.get(name, absent.get(name, 0)) for name in COUNTED}
    return Side(name=name, workload=run, figures=figures)


def aligned(
    a: tuple[Part, ...], b: tuple[Part, ...]
) -> list[tuple[str, tuple[Part | None, Part | None]]]:
    """Pair the parts of both that stand in the same place, with the stack where there are several.

    An encoder stands for a decoder where the one model has only this and the other only that; a
    mixture for the feed-forward where the one has no more of it, and the other had no mixture.
    """
    stacks = [list(dict.fromkeys(part.stack for part in model if part.stack)) for model in (a, b)]
    alone = len(stacks[0]) == len(stacks[1]) == 1

    def place(part: Part, others: tuple[Part, ...], mine: tuple[Part, ...]) -> tuple[str, str]:
        name = part.name
        if name == "mixture" and not _has(mine, part, "feed-forward"):
            theirs = [other for other in others if alone or other.stack == part.stack]
            if theirs and not any(other.name == "mixture" for other in theirs):
                name = "feed-forward"
        return ("" if alone else part.stack, name)

    by_place = {place(part, b, a): part for part in a}
    other = {place(part, a, b): part for part in b}
    order = list(by_place if len(by_place) >= len(other) else other)
    for key in (*by_place, *other):
        if key not in order:
            before = list(by_place if key in by_place else other)
            at = before.index(key)
            order.insert(order.index(before[at - 1]) + 1 if at else 0, key)
    return [(key[0], (by_place.get(key), other.get(key))) for key in order]


def _has(model: tuple[Part, ...], part: Part, name: str) -> bool:
    return any(other.stack == part.stack and other.name == name for other in model)


def _row(
    stack: str,
    pair: tuple[Part | None, Part | None],
    differing: dict[str, tuple[object, object]],
    forms: list[dict[tuple[str, str], str]],
) -> Row:
    a, b = pair
    there = [part for part in pair if part is not None]
    first = there[0]
    written = tuple(
        "" if part is None else forms[i][part.stack, part.name] for i, part in enumerate(pair)
    )
    fields: dict[str, tuple[object, object]] = {}
    if a is not None and b is not None:
        paths = a.fields + b.fields
        # of two parts made otherwise, a field that only one of them has says nothing
        fields = {
            name: both
            for name, both in differing.items()
            if _belongs(PATHS[name], paths) and (a.kind == b.kind or None not in both)
        }
    return Row(
        name=next((part.name for part in there if part.name == "feed-forward"), first.name),
        stack=stack,
        status=_status(a, b, fields),
        a=a,
        b=b,
        fields=fields,
        forms=(written[0], written[1]),
    )


def _status(a: Part | None, b: Part | None, fields: dict[str, tuple[object, object]]) -> str:
    if a is None or b is None:
        return "added" if a is None else "removed"
    if a.kind != b.kind:
        return "replaced"
    if a.values["params"] != b.values["params"] or a.copies != b.copies:
        return "resized"
    return "changed" if fields else "same"


def _belongs(path: str, paths: tuple[str, ...]) -> bool:
    return any(path == known or path.startswith(f"{known}.") for known in paths)


def _differing(a: ModelSpec, b: ModelSpec) -> dict[str, tuple[object, object]]:
    left, other = a.to_dict(), b.to_dict()
    return {name: (left[name], other[name]) for name in FIELDS if left[name] != other[name]}


def _forms(spec: ModelSpec, run: Workload) -> dict[tuple[str, str], str]:
    import sympy

    from metacount.algebra.text import in_letters
    from metacount.textbook.closed_form import readable
    from metacount.textbook.rows import in_symbols

    symbolic, _ = in_symbols(spec)
    return {
        (part.stack, part.name): in_letters(readable(sympy.sympify(part.one)))
        for part in parts(symbolic, run, spec)
    }
