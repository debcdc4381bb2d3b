"""Attention: its heads, window and indexers, and the law that says which layers have what."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.frozen import frozen
from metacount.spec.field import (
    MAX_LAYERS,
    MAX_TOKENS,
    altered,
    at_most,
    choice,
    divides,
    flag,
    number,
    part,
    pattern,
    size,
    where,
)

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from typing import Any


@frozen
class Law:
    """Layers from `after` on where `every` divides i + 1 - offset, or whose letter is in `letter`.

    The first n dense: `after`. Every c-th: `every`, shifted by `offset`. Alternating, or listed one
    by one: `letters`, repeated over the layers. `but` turns it round: all layers but those.

    >>> Law(after=1, every=2).sequence(7)
    (False, True, False, True, False, True, False)
    >>> Law(letters="LLG", letter="L").sequence(7)
    (True, True, False, True, True, False, True)
    >>> Law(every=4, but=True).sequence(4), Law(every=4, but=True).count(61)
    ((True, True, True, False), 46)
    """

    after: int = 0
    every: int = 1
    offset: int = 0
    letters: str | None = None
    letter: str = "L"
    but: bool = False

    def holds(self, index: int) -> bool:
        """Tell whether layer `index`, from 0, is of the kind."""
        if self.letters is not None:
            holds = self.letters[index % len(self.letters)] in self.letter
        else:
            holds = bool(index >= self.after and (index + 1 - self.offset) % self.every == 0)
        return holds is not self.but

    def sequence(self, n_layers: int) -> tuple[bool, ...]:
        """Tell of each layer whether it is of the kind."""
        return tuple(self.holds(index) for index in range(n_layers))

    def count(self, n_layers: int) -> int:
        """Count how many of the first `n_layers` are of the kind, without going through them.

        A symbol is taken at its word: `after` is no more than the layers.
        """
        if self.letters is not None:
            period = len(self.letters)
            # letter i falls on the layers i, i + period, ... up to the last
            places = [i for i, letter in enumerate(self.letters) if letter in self.letter]
            count = sum((n_layers - 1 - i) // period + 1 for i in places)
        else:
            numbers = isinstance(n_layers, int) and isinstance(self.after, int)
            leading = min(self.after, n_layers) if numbers else self.after
            # multiples of `every` among i + 1 - offset, up to the last layer, less the leading ones
            count = (n_layers - self.offset) // self.every - (leading - self.offset) // self.every
        return n_layers - count if self.but else count


@part
class IndexHeads:
    """What every indexer has: a few narrow query heads, and one key for all of them."""

    n_heads: int = size("n_index_heads")
    head_dim: int = size("index_head_dim")
    if TYPE_CHECKING:
        pattern: str

    @property
    def law(self) -> Law:
        """Which layers have an indexer of their own."""
        return Law(letters=self.pattern, letter="I")


@part
class Indexer(IndexHeads):
    """DeepSeek-V3.2's, beside MLA; a query attends to the `top_k` positions it scores best.

    Layers of letter S have none, and read what the last layer with one chose (GLM-5.2).
    """

    needed = "by an indexer"

    top_k: int = size("index_top_k", most=MAX_TOKENS)
    pattern: str = pattern(
        "index_sharing", "I its own choice, S that of the last layer of I", "ISSS", default="I"
    )

    def check(self) -> None:
        """Raise `SpecError` for a first layer without a choice."""
        if not self.pattern.startswith("I"):
            rule = "must begin with I: no layer before the first has chosen"
            raise SpecError("index_sharing", rule, self.pattern, "put I first")


@part
class BlockIndexer(IndexHeads):
    """MiniMax-M3's, in the layers that `law` names: a query attends to whole blocks of positions.

    A block scores what its best position scores. Among the `top_blocks` that a query reads are
    always its own and those before it, `local_blocks` in all.
    """

    needed = "by a block indexer"

    block_len: int = size("index_block_len", most=MAX_TOKENS)
    top_blocks: int = size("index_top_blocks", most=MAX_TOKENS)
    local_blocks: int = size("index_local_blocks", most=MAX_TOKENS)
    pattern: str = pattern(
        "index_pattern", "I with a block indexer, G without", "GGGI", default="I"
    )


@part
class Window:
    """Layers that see the last positions only, which layers these are, and their own heads.

    What is None is as in layers that see everything. With `sinks` they alone have some.
    """

    n_heads: int | None = size("n_heads_windowed", default=None)
    n_kv_heads: int | None = size("n_kv_heads_windowed", default=None)
    head_dim: int | None = size("head_dim_windowed", default=None)
    sinks: bool = flag("sinks_windowed", default=False)
    size: int = size("window", most=MAX_TOKENS)
    kind: str = choice("window_kind", "sliding", "chunked", default="sliding")
    pattern: str = pattern("window_pattern", "L windowed, G global", "LLLLLG", default="L")

    def check(self) -> None:
        """Raise `SpecError` for a window without a position before the query."""
        if self.size < 2:
            rule = "must be at least 2 (a token and one before it)"
            raise SpecError("window", rule, self.size, f"choose 2 to {MAX_TOKENS}")

    @property
    def own(self) -> dict[str, Any]:
        """What the attention of these layers has otherwise, by name."""
        names = ("n_heads", "n_kv_heads", "head_dim", "sinks")
        return {n: value for n in names if (value := getattr(self, n)) not in (None, False)}

    @property
    def law(self) -> Law:
        """Which layers see the window only."""
        return Law(letters=self.pattern)


@part
class NoAttention:
    """No layer has attention: a model of state-space layers alone."""

    word = "none"
    window = None


@part
class HeadCount:
    """What every attention has."""

    n_heads: int = size("n_heads")


@part
class HeadWidth:
    """What an attention has whose heads are all alike."""

    head_dim: int = size("head_dim")


@part
class QueryLatent:
    """What an attention has that may make queries from a latent."""

    q_lora_rank: int | None = size("q_lora_rank", default=None)


@part
class Heads(HeadCount):
    """What scores every position that a query may see."""

    scale: float | None = number("attention_scale", default=None)
    softcap: float | None = number("attention_softcap", default=None)
    window: Window | None = where("window", Window, without="without a window", default=None)


@part
class Attention(HeadWidth, Heads):
    """Queries in groups, each with a key/value head: multi-head, multi-query and between."""

    word = "gqa"

    n_kv_heads: int = size("n_kv_heads")
    v_head_dim: int | None = size("value_head_dim", default=None)
    q_bias: bool = flag("q_bias", default=False)
    k_bias: bool = flag("k_bias", default=False)
    v_bias: bool = flag("v_bias", default=False)
    o_bias: bool = flag("o_bias", default=False)
    qk_norm: str = choice("qk_norm", "none", "head", "full", "l2", "layernorm", default="none")
    out_scale: float = number("attention_out_scale", default=1.0)
    sinks: bool = flag("attention_sinks", default=False)
    output_gate: bool = flag("output_gate", default=False)
    head_gate: str = choice("head_gate", "none", "sigmoid", "softplus", default="none")
    indexer: BlockIndexer | None = where("index_block_len", BlockIndexer, default=None)
    v_norm: bool = flag("v_norm", default=False)
    values_of_keys: bool = flag("values_of_keys", default=False)
    n_kv_shared_layers: int = size("n_kv_shared_layers", default=0, least=0, most=MAX_LAYERS)

    @property
    def value_dim(self) -> int:
        """Width of a head's values: as wide as its keys unless said."""
        return self.head_dim if self.v_head_dim is None else self.v_head_dim

    def of_layer(self, windowed: bool) -> Attention:
        """Return the attention of a layer that sees a window only, or everything."""
        if not windowed or self.window is None or not self.differs:
            return self
        return altered(self, **self.window.own, values_of_keys=False)

    @property
    def differs(self) -> bool:
        """Whether layers with a window, where there are some, have other heads than the others."""
        return self.window is not None and (bool(self.window.own) or self.values_of_keys)

    def check(self) -> None:
        """Raise `SpecError` unless the query heads fall into groups, those of an index, too."""
        near = {} if self.window is None else self.window.own
        for windowed in (False, True) if near else (False,):
            each = self.of_layer(windowed)
            kv, all_heads = (
                f"{name}_windowed" if windowed and name in near else name
                for name in ("n_kv_heads", "n_heads")
            )
            at_most(kv, each.n_kv_heads, all_heads, each.n_heads)
            divides(kv, each.n_kv_heads, all_heads, each.n_heads)
        if self.sinks and "sinks" in near:
            rule = "has no meaning beside attention_sinks, which all layers have"
            raise SpecError("sinks_windowed", rule, True, "leave it out")
        if self.values_of_keys and self.v_head_dim is not None:
            rule = "has no meaning with values_of_keys, which makes them as wide as keys"
            raise SpecError("value_head_dim", rule, self.v_head_dim, "leave it out")
        if self.output_gate and self.head_gate != "none":
            rule = "is not defined beside output_gate"
            raise SpecError("head_gate", rule, self.head_gate, "choose none")
        index = self.indexer
        if index is not None:
            at_most("index_local_blocks", index.local_blocks, "index_top_blocks", index.top_blocks)
            at_most("n_index_heads", index.n_heads, "n_heads", self.n_heads)
            divides("n_index_heads", index.n_heads, "n_heads", self.n_heads)


@part
class LatentAttention(QueryLatent, Heads):
    """DeepSeek-V2's attention; `q_lora_rank` None: queries are not compressed."""

    word = "mla"

    kv_lora_rank: int = size("kv_lora_rank")
    qk_nope_head_dim: int = size("qk_nope_head_dim")
    qk_rope_head_dim: int = size("qk_rope_head_dim")
    v_head_dim: int = size("v_head_dim")
    bias: bool = flag("mla_bias", default=False)
    scaled: bool = flag("scaled_latents", default=False)
    indexer: Indexer | None = where("index_top_k", Indexer, default=None)
    norm_eps: float | None = number("latent_norm_eps", default=None)

    def check(self) -> None:
        """Raise `SpecError` unless the rotated part is made of pairs, and an indexer has room."""
        if self.qk_rope_head_dim % 2:
            remedy = f"choose {self.qk_rope_head_dim + 1}"
            raise SpecError("qk_rope_head_dim", "must be even", self.qk_rope_head_dim, remedy)
        if self.indexer is None:
            return
        if self.q_lora_rank is None:
            rule = "is needed by an indexer, which reads the query latent"
            raise SpecError("q_lora_rank", rule, None, "set q_lora_rank, or leave index_top_k out")
        if self.indexer.head_dim < self.qk_rope_head_dim:
            rule = f"must be at least qk_rope_head_dim = {self.qk_rope_head_dim}, which it rotates"
            remedy = f"choose {self.qk_rope_head_dim} or more"
            raise SpecError("index_head_dim", rule, self.indexer.head_dim, remedy)


@part
class CompressedAttention(QueryLatent, HeadWidth, HeadCount):
    """DeepSeek-V4's: one key a token, which is its value, in a window, and entries of many tokens.

    By `pattern` a layer has a window alone, or reads entries of `sparse_ratio` tokens too, of which
    an indexer chooses, or all those of `heavy_ratio`. Queries come from a latent; what heads give
    goes through a matrix of low rank for each of `o_groups` groups. Every head has a sink.
    """

    word = "compressed"
    softcap = None

    o_groups: int = size("o_groups")
    o_lora_rank: int = size("o_lora_rank")
    pattern: str = pattern(
        "compression_pattern", "L window alone, S chosen entries, H all entries", "LLSH"
    )
    sparse_ratio: int | None = size("sparse_ratio", default=None, most=MAX_TOKENS)
    heavy_ratio: int | None = size("heavy_ratio", default=None, most=MAX_TOKENS)
    indexer: Indexer | None = where("index_top_k", Indexer, default=None)
    window: Window | None = where("window", Window, without="without a window", default=None)

    @property
    def q_rank(self) -> int:
        """Width of the latent that queries come from."""
        assert self.q_lora_rank is not None  # checked below
        return self.q_lora_rank

    def letter_of(self, index: int) -> str:
        """Return the letter of layer `index` in `pattern`."""
        return self.pattern[index % len(self.pattern)]

    def ratio_of(self, letter: str) -> int:
        """Count the tokens of an entry of layers of a letter, S or H."""
        ratio = self.sparse_ratio if letter == "S" else self.heavy_ratio
        assert ratio is not None  # checked below
        return ratio

    def of_layer(self, _windowed: bool) -> CompressedAttention:
        """Return the attention of a layer: all have the same heads."""
        return self

    def check(self) -> None:
        """Raise `SpecError` for layers without what they need, and for what no layer reads."""
        divides("o_groups", self.o_groups, "n_heads", self.n_heads)
        if self.q_lora_rank is None:
            rule = "is needed by attention compressed"
            raise SpecError("q_lora_rank", rule, None, "set q_lora_rank")
        top_k = self.indexer and self.indexer.top_k
        of_letter = {"sparse_ratio": "S", "index_top_k": "S", "heavy_ratio": "H"}
        values = (self.sparse_ratio, top_k, self.heavy_ratio)
        for (name, letter), value in zip(of_letter.items(), values, strict=True):
            if value is None and letter in self.pattern:
                rule = f"is needed by {letter} in compression_pattern"
                raise SpecError(name, rule, None, f"set {name}")
            if value is not None and letter not in self.pattern:
                rule = f"has no meaning without {letter} in compression_pattern"
                raise SpecError(name, rule, value, f"leave {name} out")
        if self.indexer is not None and set(self.indexer.pattern) != {"I"}:
            rule = "is not defined with attention compressed"
            raise SpecError("index_sharing", rule, self.indexer.pattern, "leave it out")
        window = self.window
        if window is None:
            raise SpecError("window", "is needed by attention compressed", None, "set window")
        if window.own or window.kind != "sliding" or set(window.pattern) != {"L"}:
            rule = "slides in every layer of attention compressed, whose heads are all alike"
            raise SpecError("window", rule, window.size, "give its size alone")
