"""Mistakes that people make when they count, each with what it adds to the count.

A part left out or counted twice, another way of counting it, what the model does not have: made
from the model's own parts, so that every model has its own list.
"""

from __future__ import annotations

from contextlib import suppress
from fractions import Fraction
from typing import TYPE_CHECKING

import sympy

from metacount.algebra.monomials import NotMonomials, Table, plus, times
from metacount.check.comparison import named
from metacount.check.names import BYTES_LETTER, LETTERS
from metacount.check.parts import (
    ATTENTION,
    BIASES,
    EVERY,
    FEED_FORWARD,
    NORMS,
    NORMS_OF_BLOCKS,
    Letters,
    Part,
    cache_parts,
    flop_parts,
    groups,
    halves,
    of_one_size,
    parameter_parts,
    some_of,
    state_parts,
)
from metacount.formulas import pieces, sublayers
from metacount.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from metacount.algebra.monomials import Space

TIED = "embedding counted twice; the output head shares it"
LOOKED_UP = "embedding counted as a matrix product; it is looked up"
TOO_MANY, TOO_FEW = (f"one expert too {word} in each MoE layer" for word in ("many", "few"))
LIKELY_WORDS = (TIED, LOOKED_UP, TOO_MANY, TOO_FEW)


def extras(letters: Letters, quantity: str, parts: list[Part]) -> Iterator[tuple[str, sympy.Expr]]:
    """Yield what is often counted in a quantity that does not hold it: words, and what it adds."""
    if quantity in ("params", "active_params"):
        yield from _extra_parameters(letters, parts)
    elif quantity == "kv_cache_bytes":
        yield from _extra_cache(letters, parts)
    else:
        yield from _extra_products(letters, quantity)


def _extra_parameters(letters: Letters, parts: list[Part]) -> Iterator[tuple[str, sympy.Expr]]:
    o = letters.of
    none = "counted; the model has none"
    for n in (stack.n_layers for stack in o.stacks):
        n_moe = pieces.moe_layers(o, n)
        if o.attention == "gqa":
            q, kv, d = n * o.n_heads * o.head_dim, n * o.n_kv_heads * o.head_dim, n * o.d_model
            if not (o.q_bias or o.k_bias or o.v_bias):
                yield f"biases on q, k and v {none}", q + 2 * kv
                if not o.o_bias:
                    yield f"biases on q, k, v and o {none}", q + 2 * kv + d
            for name, flag, size in (
                ("q", o.q_bias, q),
                ("k", o.k_bias, kv),
                ("v", o.v_bias, kv),
                ("o", o.o_bias, d),
            ):
                if not flag:
                    yield f"a bias on {name} {none}", size
            if o.qk_norm == "none":
                yield f"a QK-norm {none}", 2 * n * o.head_dim
        if o.d_ff is not None:
            dense = n - n_moe
            if not o.ffn_bias:
                inner = 2 if o.gated else 1
                yield f"biases of the FFN {none}", dense * (inner * o.d_ff + o.d_model)
            if not o.gated:
                yield (
                    "a third matrix of the FFN counted; it is not gated",
                    dense * o.d_model * o.d_ff,
                )
        if o.is_moe:
            if letters.spec.selection_bias:
                yield (
                    "the selection bias counted; it is a buffer, no parameter",
                    n_moe * (o.n_experts + o.n_zero_experts),
                )
            one = n_moe * (3 if o.gated else 2) * o.d_model * o.d_ff_expert
            yield TOO_MANY, one
            yield TOO_FEW, -one
            yield from _of_zero_experts(letters, n_moe)
            if not o.router_bias:
                yield f"a bias of the router {none}", n_moe * (o.n_experts + o.n_zero_experts)
    norms = [part.total for part in parts if part.group == NORMS and part.name != "QK-norm"]
    if norms and o.norm_affine and not o.norm_bias:
        yield "norms counted with a bias, or twice; these have no bias", sympy.Add(*norms)
    if not o.final_norm:
        yield f"a final norm {none}", o.d_model
    if not o.embedding_norm:
        yield f"a norm after the embedding {none}", o.d_model
    if o.has_head and o.tie_embeddings:
        yield TIED, sublayers.token_table_params(o)
    if o.vocab_size is not None and not o.head_bias:
        yield f"a bias of the head {none}", o.vocab_size


def _of_zero_experts(letters: Letters, n_moe: sympy.Expr) -> Iterator[tuple[str, sympy.Expr]]:
    o = letters.of
    if not o.n_zero_experts:
        return
    rows = n_moe * o.n_zero_experts * o.d_model
    matrices = 3 if o.gated else 2
    yield "zero experts counted like others; they have no matrices", matrices * rows * o.d_ff_expert
    if not o.zero_expert_rows:
        yield (
            "rows for zero experts counted, which transformers' class stores and no token reads",
            (matrices - 1) * rows * o.d_ff_expert,
        )
    yield "the router's rows for zero experts left out", -rows


def _extra_products(letters: Letters, quantity: str) -> Iterator[tuple[str, sympy.Expr]]:
    tokens = letters.batch * (1 if quantity == "decode_matmul_flops" else letters.seq)
    parameters = parameter_parts(letters, active=True)
    for group, words in ((NORMS, "norms"), (BIASES, "biases")):
        total = sympy.Add(*(part.total for part in parameters if part.group == group))
        yield f"{words} counted as if they were matrix products", 2 * tokens * total
    blocks = sympy.Add(*(part.total for part in parameters if part.name == NORMS_OF_BLOCKS[0]))
    yield f"{NORMS_OF_BLOCKS[0]} counted as if they were matrix products", 2 * tokens * blocks
    for part in parameters:
        if part.name in ("embedding", "position table", "token-type table"):
            yield (
                f"{part.name} counted as a matrix product; it is looked up",
                2 * tokens * part.total,
            )


def _extra_cache(letters: Letters, parts: list[Part]) -> Iterator[tuple[str, sympy.Expr]]:
    o = letters.of
    if o.attention != "mla":
        return
    whole = sympy.Add(*(part.total for part in parts))
    scale = letters.batch * letters.seq * BYTES_LETTER * o.n_layers * o.n_heads
    words = "keys and values of all heads counted, not the latent"
    key, value = o.qk_nope_head_dim + o.qk_rope_head_dim, o.v_head_dim
    for width in (key + value, o.qk_nope_head_dim + value, 2 * value, 2 * o.qk_nope_head_dim):
        yield f"{words} (width {named(width)})", scale * width - whole


Uses = tuple[tuple[str, int], ...]  # so many copies of which part
MOST_COPIES = 4
LAYERS = "all of the layers but the feed-forward"
# How much less likely than a known mistake.
KNOWN, SOME, EXTRA, SMALL, HALF, ODD = 0.0, 0.1, 0.2, 0.25, 0.35, 0.6


@frozen
class Scope:
    """Some of a count that may be changed as one: its name, its size, and which parts it is.

    `uses` says how many copies of which part, so that nothing is changed twice.
    """

    name: str
    table: Table
    uses: Uses
    cost: float = 0.0


@frozen
class Mistake:
    """A mistake in words, what it adds, how unlikely it is, and what it takes the place of.

    `otherwise` is one of counting a part in another way.
    """

    words: str
    adds: Table
    cost: float
    uses: Uses = ()
    otherwise: bool = False


def parts_of(letters: Letters, quantity: str) -> list[Part]:
    """List every part of a quantity; together they sum to it."""
    if quantity == "kv_cache_bytes":
        return cache_parts(letters)
    if quantity == "state_bytes":
        return state_parts(letters)
    if quantity in ("params", "active_params"):
        return parameter_parts(letters, active=quantity == "active_params")
    return flop_parts(letters, quantity)


class Library:
    """The known mistakes of one quantity of one model, and what else may have been changed."""

    def __init__(self, letters: Letters, quantity: str, parts: list[Part], space: Space) -> None:
        self.space, self.quantity = space, quantity
        self.room: dict[str, int] = {}
        self.whole: Table = {}
        self.scopes: list[Scope] = []
        self.known: list[Mistake] = []
        self.unit_of: dict[str, str] = {}
        for names, expr, count in of_one_size(parts):
            unit = some_of(count, count, names)
            self.room[unit] = count
            self.unit_of.update(dict.fromkeys(names, unit))
            one = space.table(expr)
            self.whole = plus(self.whole, times(one, Fraction(count)))
            self._unit(names, one, count, unit)
        for name, members in groups(parts):
            self._group(name, members)
            if name == NORMS:
                self._norms(members)
        for name, members in halves(parts):
            self._group(name, members)
        blocks = [part for part in parts if part.group in (ATTENTION, FEED_FORWARD)]
        if len({part.group for part in blocks}) > 1:
            words = "the matrices of the blocks: only half counted"
            self._add(words, -_total(blocks) / 2, HALF, dict(self._uses(blocks, all_of_it=True)))
        if letters.spec.n_dense_layers:
            layers = LETTERS["n_layers"]
            most = [p for p in parts if p.group != FEED_FORWARD and p.expr.has(layers)]
            self._group(LAYERS, most)
        self._variants(parts)
        for words, expr in extras(letters, quantity, parts):
            self._add(words, expr, KNOWN if words in LIKELY_WORDS else EXTRA)
        if letters.of.attention == "mla" and quantity != "kv_cache_bytes":
            self._other_attention(letters, parts)
        if letters.of.is_moe:
            self._mixture(letters, parts)

    def _know(
        self, words: str, adds: Table, cost: float, uses: Uses = (), *, otherwise: bool = False
    ) -> None:
        if adds:
            one = Mistake(words=words, adds=adds, cost=cost, uses=uses, otherwise=otherwise)
            self.known.append(one)

    def _add(
        self,
        words: str,
        expr: sympy.Expr,
        cost: float,
        uses: Mapping[str, int] | None = None,
        *,
        otherwise: bool = False,
    ) -> None:
        with suppress(NotMonomials):  # a letter that neither side has
            adds = self.space.table(expr)
            self._know(words, adds, cost, (*(uses or {}).items(),), otherwise=otherwise)

    def _uses(self, parts: Iterable[Part], *, all_of_it: bool = False) -> Uses:
        """Count the copies of each unit in some parts."""
        uses: dict[str, int] = {}
        for part in parts:
            unit = self.unit_of[part.name]
            uses[unit] = self.room[unit] if all_of_it else uses.get(unit, 0) + part.count
        return (*uses.items(),)

    def _unit(self, names: list[str], one: Table, count: int, unit: str) -> None:
        # small tensors are forgotten, seldom counted twice
        twice = SMALL if any("bias" in name or "norm" in name for name in names) else SOME
        for n in range(1, min(count, MOST_COPIES) + 1):
            what, cost = some_of(n, count, names), KNOWN if n == count else SOME
            uses, table = ((unit, n),), times(one, Fraction(n))
            self._know(f"{what} left out", times(table, Fraction(-1)), cost, uses)
            self._know(f"{what} counted twice", table, twice, uses)
            if n in (1, count):
                half = times(table, Fraction(-1, 2))
                self._know(f"{what}: only half counted", half, HALF, uses)
            cost += ODD if 1 < n < count else 0
            self.scopes.append(Scope(name=what, table=table, uses=uses, cost=cost))

    def _group(self, name: str, members: list[Part]) -> None:
        uses = self._uses(members)
        table: Table = {}
        for part in members:
            table = plus(table, self.space.table(part.total))
        if len(uses) > 1 or (uses and uses[0][1] < self.room[uses[0][0]]):
            self._know(f"{name} left out", times(table, Fraction(-1)), KNOWN, uses)
            self.scopes.append(Scope(name=name, table=table, uses=uses))

    def _norms(self, members: list[Part]) -> None:
        """Add the norms' weights, their biases and those of the blocks as groups of their own."""
        for words, biased in (("all norms' biases", True), ("all norms' weights", False)):
            some = [p for p in members if "norm" in p.name and ("bias" in p.name) is biased]
            if len(some) not in (0, len(members)):
                self._group(words, some)
        blocks = [p for p in members if "of the blocks" in p.name or "in the blocks" in p.name]
        if 1 < len(blocks) < len(members):
            self._group("the norms of the blocks", blocks)

    def _variants(self, parts: list[Part]) -> None:
        together: dict[str, list[tuple[Part, sympy.Expr]]] = {}
        for part in parts:
            for words, expr in part.variants:
                together.setdefault(words, []).append((part, part.count * expr - part.total))
        for words, changed in together.items():
            whole = sympy.Add(*(adds for _, adds in changed))
            self._add(words, whole, KNOWN, dict(self._uses(p for p, _ in changed)), otherwise=True)
            alike: dict[sympy.Expr, list[str]] = {}
            for part, adds in changed:
                alike.setdefault(adds, []).append(part.name)
            for adds, names in alike.items():
                for n in range(1, min(len(names), len(changed) - 1) + 1):
                    self._add(f"{some_of(n, len(names), names)}: {words}", n * adds, SOME)

    def _other_attention(self, letters: Letters, parts: list[Part]) -> None:
        """Add the mistakes of counting the attention of a model with latents as if it had none."""
        o = letters.of
        mine = [part for part in parts if part.group == ATTENTION]
        latent = [part for part in parts if "latent" in part.name and part.group != ATTENTION]
        if not mine:
            return
        scale = mine[-1].total / (o.d_model * o.n_heads * o.v_head_dim)  # o_proj's layers, tokens
        nope, rope, value = o.qk_nope_head_dim, o.qk_rope_head_dim, o.v_head_dim
        sums = {
            4 * value,
            4 * nope,
            4 * (nope + rope),
            2 * (nope + rope) + 2 * value,
            4 * o.d_model / o.n_heads,
            2 * nope + 2 * value,
        }
        for total in sorted(sums, key=str):
            size = o.d_model * o.n_heads * total
            words = (
                "multi-head attention is counted, not MLA: "
                f"q, k, v and o as {named(sympy.expand(size))}"
            )
            for more in ([], latent) if latent else ([],):
                gone = [*mine, *more]
                extra = ", no norms of the latents" if more else ""
                adds = scale * size - _total(gone)
                self._add(words + extra, adds, KNOWN, dict(self._uses(gone)))

    def _mixture(self, letters: Letters, parts: list[Part]) -> None:
        """Add the mistakes over the feed-forward of a mixture of experts as a whole."""
        o = letters.of
        ffn = [part for part in parts if part.group == FEED_FORWARD]
        three = [part for part in ffn if part.count > 1]
        dense = [part for part in ffn if part.count == 1 and "FFN" in part.name]
        if len(three) + len(dense) > 1:
            inner = "three" if letters.spec.gated else "two"
            words = f"one of the {inner} matrices of every expert and every FFN left out"
            self._add(words, -sympy.Add(*(part.expr for part in (*three, *dense[:1]))), SOME)
        experts = [part for part in parts if "routed experts" in part.name or "router" in part.name]
        rest = _total(part for part in parts if part not in experts)
        words = "all of the model counted n_experts times, not the experts alone"
        self._add(words, (o.n_experts - 1) * rest, SOME)
        if dense:
            in_dense = sum(
                next((expr - part.total for words, expr in part.variants if words == EVERY), 0)
                * part.count
                for part in parts
            )
            uses = dict(self._uses(dense))
            words = f"{EVERY}, and their own FFN is left out"
            self._add(words, in_dense - _total(dense), KNOWN, uses)


def _total(parts: Iterable[Part]) -> sympy.Expr:
    return sympy.Add(*(part.total for part in parts))
