"""Mistakes that people make when they count, each with what it adds to the count.

A part left out or counted twice, another way of counting it, what the model does not have: made
from the model's own parts, so that every model has its own list.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import sympy

from metacount.algebra.monomials import NotMonomials, Table, less, times
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
    from collections.abc import Iterator

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
    uses: tuple[tuple[str, int], ...]
    cost: float = 0.0


@frozen
class Mistake:
    """A mistake in words, what it adds, how unlikely it is, and what it takes the place of.

    `otherwise` is one of counting a part in another way.
    """

    words: str
    adds: Table
    cost: float
    uses: tuple[tuple[str, int], ...] = ()
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
        unit_of: dict[str, str] = {}
        for names, expr, count in of_one_size(parts):
            unit = some_of(count, count, names)
            self.room[unit] = count
            unit_of.update(dict.fromkeys(names, unit))
            one = space.table(expr)
            self.whole = less(self.whole, times(one, Fraction(-count)))
            self._unit(names, one, count, unit)
        for name, members in groups(parts):
            self._group(name, members, unit_of)
            for words, word in (("all norms' biases", "bias"), ("all norms' weights", "")):
                some = [p for p in members if "norm" in p.name and ("bias" in p.name) == bool(word)]
                if name == NORMS and len(some) not in (0, len(members)):
                    self._group(words, some, unit_of)
            blocks = [p for p in members if "of the blocks" in p.name or "in the blocks" in p.name]
            if name == NORMS and 1 < len(blocks) < len(members):
                self._group("the norms of the blocks", blocks, unit_of)
        for name, members in halves(parts):
            self._group(name, members, unit_of)
        blocks = [part for part in parts if part.group in (ATTENTION, FEED_FORWARD)]
        if len({part.group for part in blocks}) > 1:
            total = sympy.Add(*(part.total for part in blocks))
            units = dict.fromkeys(unit_of[part.name] for part in blocks)
            uses = tuple((unit, self.room[unit]) for unit in units)
            self._add("the matrices of the blocks: only half counted", -total / 2, HALF, uses)
        if letters.spec.n_dense_layers:
            most = [
                part
                for part in parts
                if part.group != FEED_FORWARD and part.expr.has(LETTERS["n_layers"])
            ]
            self._group(LAYERS, most, unit_of)
        self._variants(parts, unit_of)
        for words, expr in extras(letters, quantity, parts):
            self._add(words, expr, KNOWN if words in LIKELY_WORDS else EXTRA)
        self._other_attention(letters, parts, unit_of)
        if letters.of.is_moe:
            self._mixture(letters, parts, unit_of)

    def _add(
        self,
        words: str,
        expr: sympy.Expr,
        cost: float,
        uses: tuple[tuple[str, int], ...] = (),
        *,
        otherwise: bool = False,
    ) -> None:
        try:
            adds = self.space.table(expr)
        except NotMonomials:
            return  # a letter that neither side has
        if adds:
            self.known.append(
                Mistake(words=words, adds=adds, cost=cost, uses=uses, otherwise=otherwise)
            )

    def _unit(self, names: list[str], one: Table, count: int, unit: str) -> None:
        # small tensors are forgotten, seldom counted twice
        twice = SMALL if any("bias" in name or "norm" in name for name in names) else SOME
        for n in range(1, min(count, MOST_COPIES) + 1):
            what, cost = some_of(n, count, names), KNOWN if n == count else SOME
            uses = ((unit, n),)
            self.known.append(
                Mistake(
                    words=f"{what} left out", adds=times(one, Fraction(-n)), cost=cost, uses=uses
                )
            )
            self.known.append(
                Mistake(
                    words=f"{what} counted twice",
                    adds=times(one, Fraction(n)),
                    cost=twice,
                    uses=uses,
                )
            )
            if n in (1, count):
                self.known.append(
                    Mistake(
                        words=f"{what}: only half counted",
                        uses=uses,
                        adds=times(one, Fraction(-n, 2)),
                        cost=HALF,
                    )
                )
            scope = Scope(
                name=what,
                table=times(one, Fraction(n)),
                uses=uses,
                cost=cost + (ODD if 1 < n < count else 0),
            )
            self.scopes.append(scope)

    def _group(self, name: str, members: list[Part], unit_of: dict[str, str]) -> None:
        uses: dict[str, int] = {}
        table: Table = {}
        for part in members:
            uses[unit_of[part.name]] = uses.get(unit_of[part.name], 0) + part.count
            table = less(table, times(self.space.table(part.total), Fraction(-1)))
        items = tuple(uses.items())
        if len(items) > 1 or (items and items[0][1] < self.room[items[0][0]]):
            self.known.append(
                Mistake(
                    words=f"{name} left out",
                    adds=times(table, Fraction(-1)),
                    cost=KNOWN,
                    uses=items,
                )
            )
            self.scopes.append(Scope(name=name, table=table, uses=items))

    def _variants(self, parts: list[Part], unit_of: dict[str, str]) -> None:
        together: dict[str, list[tuple[Part, sympy.Expr]]] = {}
        for part in parts:
            for words, expr in part.variants:
                together.setdefault(words, []).append((part, part.count * expr - part.total))
        for words, changed in together.items():
            uses: dict[str, int] = {}
            for part, _ in changed:
                uses[unit_of[part.name]] = uses.get(unit_of[part.name], 0) + part.count
            self._add(
                words,
                sympy.Add(*(adds for _, adds in changed)),
                KNOWN,
                (*uses.items(),),
                otherwise=True,
            )
            if len(changed) > 1:
                alike: dict[sympy.Expr, list[str]] = {}
                for part, adds in changed:
                    alike.setdefault(adds, []).append(part.name)
                for adds, names in alike.items():
                    for n in range(1, len(names) + 1):
                        if n < len(changed):
                            what = some_of(n, len(names), names)
                            self._add(f"{what}: {words}", n * adds, SOME)

    def _other_attention(
        self, letters: Letters, parts: list[Part], unit_of: dict[str, str]
    ) -> None:
        """Add the mistakes of counting the attention of a model with latents as if it had none."""
        o = letters.of
        mine = [part for part in parts if part.group == ATTENTION]
        latent = [part for part in parts if "latent" in part.name and part.group != ATTENTION]
        if o.attention != "mla" or not mine or self.quantity == "kv_cache_bytes":
            return
        scale = mine[-1].total / (o.d_model * o.n_heads * o.v_head_dim)  # o_proj's layers, tokens
        nope, rope, value = o.qk_nope_head_dim, o.qk_rope_head_dim, o.v_head_dim
        per_head = o.d_model / o.n_heads
        sums = {
            4 * value,
            4 * nope,
            4 * (nope + rope),
            2 * (nope + rope) + 2 * value,
            4 * per_head,
            2 * nope + 2 * value,
        }
        for total in sorted(sums, key=str):
            size = scale * o.d_model * o.n_heads * total
            words = (
                "multi-head attention is counted, not MLA: "
                f"q, k, v and o as {named(sympy.expand(o.d_model * o.n_heads * total))}"
            )
            for more in ([], latent) if latent else ([],):
                gone = [*mine, *more]
                uses: dict[str, int] = {}
                for part in gone:
                    unit = unit_of[part.name]
                    uses[unit] = uses.get(unit, 0) + part.count
                extra = ", no norms of the latents" if more else ""
                self._add(
                    words + extra,
                    size - sympy.Add(*(part.total for part in gone)),
                    KNOWN,
                    (*uses.items(),),
                )

    def _mixture(self, letters: Letters, parts: list[Part], unit_of: dict[str, str]) -> None:
        """Add the mistakes over the feed-forward of a mixture of experts as a whole."""
        o = letters.of
        three = [part for part in parts if part.count > 1 and part.group == FEED_FORWARD]
        dense = [
            part
            for part in parts
            if part.group == FEED_FORWARD and part.count == 1 and "FFN" in part.name
        ]
        if len(three) + len(dense) > 1:
            one = [*(part.expr for part in three), *(part.expr for part in dense[:1])]
            inner = "three" if letters.spec.gated else "two"
            self._add(
                f"one of the {inner} matrices of every expert and every FFN left out",
                -sympy.Add(*one),
                SOME,
            )
        experts = [part for part in parts if "routed experts" in part.name or "router" in part.name]
        rest = sympy.Add(*(part.total for part in parts if part not in experts))
        self._add(
            "all of the model counted n_experts times, not the experts alone",
            (o.n_experts - 1) * rest,
            SOME,
        )
        if dense:
            in_dense = sympy.Add(
                *(
                    next((expr - part.total for words, expr in part.variants if words == EVERY), 0)
                    * part.count
                    for part in parts
                )
            )
            uses = tuple((unit_of[part.name], 1) for part in dense)
            self._add(
                f"{EVERY}, and their own FFN is left out",
                in_dense - sympy.Add(*(part.total for part in dense)),
                KNOWN,
                uses,
            )
