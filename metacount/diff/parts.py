"""The parts of a model, each with what the formulas count of it: what `diff` lays side by side.

>>> from metacount.catalog import entry
>>> from metacount.spec import Workload
>>> for part in parts(entry("mixtral-8x7b").spec(), Workload(seq_len=128)):
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

from metacount.formulas import ends, model, pieces
from metacount.formulas.block import STORED
from metacount.formulas.dim import Dim
from metacount.formulas.pieces import BLOCK, Piece, generic, merged, nominal_pieces
from metacount.formulas.tape import CROSS_PAIRS, Product, Weight
from metacount.frozen import frozen
from metacount.spec import ModelSpec, Workload
from metacount.spec.attention import Attention, LatentAttention, NoAttention
from metacount.spec.ffn import Mixture
from metacount.spec.stack import SHARING
from metacount.textbook.count import QUANTITIES as COUNTS
from metacount.textbook.count import run_sizes
from metacount.units import activated, heads, latent_heads

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable

QUANTITIES = ("params", "active_params", "matmul_flops", "kv_cache_bytes")
ENDS = ("embedding", "positions", "head", "pooler")  # of the model, not of a stack of it
BESIDE, AROUND = "beside the branches", "around the blocks"
OF_EACH_BLOCK = ("altup.", "laurel.", "per_layer_input.")
OF_NO_BLOCK = ("copies.", "per_layer_inputs.")


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
    made = _Parts(spec, structure or spec, run)
    found = [*made.ends_before()]
    for name in ("encoder", "decoder"):
        if getattr(spec, name) is not None:
            found += made.of_stack(name)
    return (*found, *made.ends_after())


class _Parts:
    """Makes the parts of one model and one workload."""

    def __init__(self, spec: ModelSpec, structure: ModelSpec, run: Workload) -> None:
        self.spec, self.plain = spec, structure
        sizes = run_sizes(structure, run)
        forward: dict[str, Dim] = {
            name: sizes[name] for name in ("batch_size", "seq_len", "source_len")
        }
        self.sums = sums_of(spec, model.forward_run(spec, **forward))
        self.caches = COUNTS["kv_cache_bytes"](spec, sizes)
        tokens = sizes["batch_size"] * sizes["seq_len"]
        self.index_cache = tokens * sizes["bytes_per_value"] * model.index_cache_values(spec)

    def ends_before(self) -> list[Part]:
        """List the tables that tokens and positions are looked up in."""
        plain, found = self.plain, []
        if plain.embedding is not None:
            found.append(self._part("embedding", "table", table_described(plain), "embedding"))
        if plain.position != "none":
            word = plain.position
            rows = f", {plain.n_positions} rows" if plain.n_positions else ""
            found.append(self._part("positions", word, word + rows, "positions"))
        return found

    def of_stack(self, name: str) -> list[Part]:
        """List what the blocks of a stack are made of, and its norms."""
        plain, found = self.plain, []
        last, norms = plain.last_stack, plain.last_stack.norms
        mixer, like, shared = last.attention, last.feed_forward, last.shared
        attends = attention_described(plain)
        kind = "mla" if isinstance(mixer, LatentAttention) else "heads"
        act = made = width = ""
        if like is not None:
            act = activated(like.activation, like.swish_beta, gated=like.gated)
            made = "gated" if like.gated else "plain"
            width = f"m = {like.d_ff} = {times_d(like.d_ff, plain)}" if like.d_ff else ""
        # without keys of a block indexer, which is a part of its own
        cache = self.caches["self-attention"] - self.index_cache
        cache = 0 if name == "encoder" and plain.has_encoder else cache

        def add(part_name: str, kind: str, described: str, fields: str, cache: Dim = 0) -> None:
            found.append(self._part(part_name, kind, described, fields, stack=name, cache=cache))

        if not isinstance(mixer, NoAttention) and shared is None:
            add("attention", kind, attends, "decoder.attention", cache)
        if plain.has_encoder and name == "decoder":
            add(
                "cross-attention",
                "heads",
                attends,
                "decoder.attention",
                self.caches["cross-attention"],
            )
        index = getattr(mixer, "indexer", None)
        if index is not None and (name, "indexer") in self.sums:
            said = (
                f"{index.n_heads} heads, {index.top_blocks} blocks of {index.block_len} positions"
            )
            add("indexer", "blocks", said, "decoder.attention.indexer", self.index_cache)
        if shared is not None:
            own = "" if shared.adapter_rank is None else f", adapters of rank {shared.adapter_rank}"
            fields = "decoder.attention decoder.feed_forward decoder.shared.n_blocks"
            add("shared blocks", "shared", f"{attends}, {act}, {width}", fields, cache)
            fields = "decoder.shared decoder.mixer_pattern"
            add("uses of shared blocks", "shared", f"a linear layer{own}", fields)
        if last.recurrent.word != "none":
            word = last.recurrent.word
            fields = "decoder.recurrent decoder.mixer_pattern"
            add("recurrent mixer", word, word.replace("_", " "), fields)
        if like is not None and like.d_ff is not None and shared is None:
            add("feed-forward", made, f"{act}, {width}", "decoder.feed_forward")
        if last.mixture is not None:
            fields = "decoder.mixture decoder.feed_forward.activation decoder.feed_forward.gated"
            add("mixture", f"{made} mixture", mixture_described(last.mixture, act), fields)
        if (name, "borrowing attention") in self.sums:
            said = f"{attends}, keys and values of earlier layers"
            add("borrowing attention", "heads", said, "decoder.attention.n_kv_shared_layers")
        if like is not None and like.second is not None:
            said = f"{act}, m_2 = {like.second} = {times_d(like.second, plain)}"
            fields = "decoder.feed_forward.second decoder.feed_forward.second_pattern"
            add("second feed-forward", made, said, fields)
        self._streams(add, name)
        fields = "decoder.norms embedding.norm decoder.attention.qk_norm"
        add("norms", norms.kind, f"{norms.kind}, {norms.placement}", fields)
        return found

    def _streams(self, add: Callable[..., None], name: str) -> None:
        """List AltUp, LAuReL and each layer's own embedding:
        in every block, and before and after them.
        """
        last = self.plain.last_stack
        has = {
            "AltUp": last.altup and f"AltUp of {last.altup.n_inputs} copies",
            "LAuReL": last.laurel and f"LAuReL of rank {last.laurel.rank}",
            "embeddings": last.layer_inputs and f"a layer's embedding of {last.layer_inputs.width}",
        }
        if (name, BESIDE) in self.sums:
            said = ", ".join(words for words in has.values() if words)
            fields = "decoder.altup decoder.laurel decoder.layer_inputs.width"
            add(BESIDE, "around", said, fields)
        if (name, AROUND) in self.sums:
            said = ", ".join(words for key, words in has.items() if words and key != "LAuReL")
            add(AROUND, "around", said, "decoder.layer_inputs.vocab_size")

    def ends_after(self) -> list[Part]:
        """List the head with what stands before it, and the pooler."""
        plain, found = self.plain, []
        if plain.head is not None and plain.embedding is not None:
            said = table_described(plain)
            said += ", the token table" if plain.head.tied else ""
            found.append(self._part("head", "head", said, "head"))
        if plain.pooler:
            found.append(self._part("pooler", "pooler", "tanh(dense(first token))", "pooler"))
        return found

    def _part(
        self,
        name: str,
        kind: str,
        described: str,
        fields: str,
        *,
        stack: str = "",
        cache: Dim = 0,
    ) -> Part:
        found = self.sums.get((stack, name), Sum())
        is_one = not stack or name == "norms"  # an end, and all norms of a stack, are one part each
        return Part(
            name=name,
            stack=stack,
            kind=kind,
            described=described,
            copies=1 if is_one else found.copies,
            one=found.params if is_one else found.one,
            values={
                "params": found.params,
                "active_params": found.active,
                "matmul_flops": found.flops,
                "kv_cache_bytes": cache,
            },
            fields=tuple(fields.split()),
        )


def sums_of(spec: ModelSpec, run: dict[str, Dim]) -> dict[tuple[str, str], Sum]:
    """Sum a model's tensors and products by stack and by part."""
    found: dict[tuple[str, str], list[tuple[Dim, Weight | Product]]] = {}
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
            key = ("" if name in ENDS else stack, name)
            found.setdefault(key, []).append((piece.times, _generic(piece, term)))
    return {key: _sum(spec, merged(terms), run) for key, terms in found.items()}


def _generic(piece: Piece, term: Weight | Product) -> Weight | Product:
    return generic(term) if piece.place == BLOCK and isinstance(term, Weight) else term


def _sum(spec: ModelSpec, terms: list[tuple[Dim, Weight | Product]], run: dict[str, Dim]) -> Sum:
    """Sum the terms of one part, which as many blocks have."""
    shared = spec.last_stack.shared
    weights = [
        (shared.n_blocks if shared is not None and one.name.startswith(STORED) else n, one)
        for n, one in terms
        if isinstance(one, Weight)
    ]
    return Sum(
        copies=weights[0][0] if weights else 0,
        one=sum(one.params for _, one in weights),
        params=sum(n * one.params for n, one in weights),
        active=sum(n * one.active for n, one in weights),
        flops=sum(n * one.flops(run) for n, one in terms),
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
        said = latent_heads(mixer.n_heads, mixer.kv_lora_rank, mixer.qk_rope_head_dim)
    elif isinstance(mixer, Attention):
        said = heads(mixer.n_heads, mixer.n_kv_heads)
    else:
        return "none"
    if mixer.window is None:
        return said
    near = pieces.windowed_layers(spec.last_stack.n_layers, spec.last_stack.seen)
    return f"{said}, window {mixer.window.size} in {near} layers"


def mixture_described(mixture: Mixture, activation: str) -> str:
    """Describe how many experts of which width a token gets."""
    said = f"{mixture.top_k} of {mixture.n_experts} experts of width {mixture.d_ff}, {activation}"
    if mixture.shared is not None:
        said += f", {mixture.shared.n_experts} shared"
    if mixture.latent is not None:
        said += f", in a latent of {mixture.latent}"
    if mixture.zero is not None:
        said += f", {mixture.zero.n_experts} zero experts"
        said += " with rows that nobody reads" if mixture.zero.rows else ""
    return said


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
