"""Mistakes that people make when they count, each with what it adds to the count.

A part left out or counted twice, another way of counting it, what the model does not have: made
from the model's own parts, so that every model has its own list.
"""

from __future__ import annotations

from contextlib import suppress
from fractions import Fraction
from typing import TYPE_CHECKING

import sympy

from metacount.algebra.exact import NotMonomials, Table, plus, times
from metacount.check.changes import ONE_LAYER
from metacount.check.comparison import named
from metacount.check.names import BYTES_LETTER, LETTERS
from metacount.check.parts import (
    ATTENTION,
    BIASES,
    FEED_FORWARD,
    NORMS,
    NORMS_OF_BLOCKS,
    Letters,
    Part,
    parameter_parts,
    some_of,
)
from metacount.formulas import pieces, sublayers
from metacount.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from metacount.algebra.exact import Space

    Extra = tuple[str, sympy.Expr]

TIED = "embedding counted twice; the output head shares it"
LOOKED_UP = "embedding counted as a matrix product; it is looked up"
TOO_MANY, TOO_FEW = (f"one expert too {word} in each MoE layer" for word in ("many", "few"))
LIKELY_WORDS = (TIED, LOOKED_UP, TOO_MANY, TOO_FEW)


def extras(letters: Letters, quantity: str, parts: list[Part]) -> Iterator[Extra]:
    """Yield what is often counted in a quantity that does not hold it: words, and what it adds."""
    if quantity in ("params", "active_params"):
        yield from _extra_parameters(letters, parts)
    elif quantity == "kv_cache_bytes":
        yield from _extra_cache(letters, parts)
    else:
        yield from _extra_products(letters, quantity)


def _extra_parameters(letters: Letters, parts: list[Part]) -> Iterator[Extra]:
    o = letters.of
    absent: list[tuple[object, str, sympy.Expr]] = [
        (o.final_norm, "a final norm", o.d_model),
        (o.embedding_norm, "a norm after the embedding", o.d_model),
        (o.head_bias or o.vocab_size is None, "a bias of the head", o.vocab_size),
    ]
    for n in (stack.n_layers for stack in o.stacks):
        n_moe = pieces.moe_layers(o, n)
        if o.attention == "gqa":
            q, kv, d = n * o.n_heads * o.head_dim, n * o.n_kv_heads * o.head_dim, n * o.d_model
            biased = o.q_bias or o.k_bias or o.v_bias
            absent += [
                (biased, "biases on q, k and v", q + 2 * kv),
                (biased or o.o_bias, "biases on q, k, v and o", q + 2 * kv + d),
                (o.o_bias, "a bias on o", d),
                (o.qk_norm != "none", "a QK-norm", 2 * n * o.head_dim),
            ]
        if o.d_ff is not None:
            inner = 2 if o.gated else 1
            biases = (n - n_moe) * (inner * o.d_ff + o.d_model)
            absent.append((o.ffn_bias, "biases of the FFN", biases))
            if not o.gated:
                words = "a third matrix of the FFN counted; it is not gated"
                yield words, (n - n_moe) * o.d_model * o.d_ff
        if o.is_moe:
            rows = n_moe * (o.n_experts + o.n_zero_experts)
            absent.append((o.router_bias, "a bias of the router", rows))
            if letters.spec.selection_bias:
                yield "the selection bias counted; it is a buffer, no parameter", rows
            expert = n_moe * (3 if o.gated else 2) * o.d_model * o.d_ff_expert
            yield TOO_MANY, expert
            yield TOO_FEW, -expert
            if o.n_zero_experts:
                words = "zero experts counted like others; they have no matrices"
                yield words, o.n_zero_experts * expert
                router = n_moe * o.n_zero_experts * o.d_model
                yield "the router's rows for zero experts left out", -router
            if o.n_zero_experts and not o.zero_expert_rows:
                rest = o.n_zero_experts * (expert - n_moe * o.d_model * o.d_ff_expert)
                words = "rows for zero experts counted, which transformers' class stores and "
                yield f"{words}no token reads", rest
    for has, what, size in absent:
        if not has:
            yield f"{what} counted; the model has none", size
    norms = [part.total for part in parts if part.group == NORMS and part.name != "QK-norm"]
    if norms and o.norm_affine and not o.norm_bias:
        yield "norms counted with a bias, or twice; these have no bias", sympy.Add(*norms)
    if o.has_head and o.tie_embeddings:
        yield TIED, sublayers.token_table_params(o)


def _extra_products(letters: Letters, quantity: str) -> Iterator[Extra]:
    tokens = letters.batch * (1 if quantity == "decode_matmul_flops" else letters.seq)
    parameters = parameter_parts(letters, active=True)
    added = {
        "norms": [part for part in parameters if part.group == NORMS],
        "biases": [part for part in parameters if part.group == BIASES],
        NORMS_OF_BLOCKS[0]: [part for part in parameters if part.name == NORMS_OF_BLOCKS[0]],
    }
    for words, members in added.items():
        yield f"{words} counted as if they were matrix products", 2 * tokens * _total(members)
    for part in parameters:
        if part.name in ("embedding", "position table", "token-type table"):
            words = f"{part.name} counted as a matrix product; it is looked up"
            yield words, 2 * tokens * part.total


def _extra_cache(letters: Letters, parts: list[Part]) -> Iterator[Extra]:
    o = letters.of
    if o.attention != "mla":
        return
    scale = letters.batch * letters.seq * BYTES_LETTER * o.n_layers * o.n_heads
    words = "keys and values of all heads counted, not the latent"
    key, value = o.qk_nope_head_dim + o.qk_rope_head_dim, o.v_head_dim
    for width in (key + value, o.qk_nope_head_dim + value, 2 * value, 2 * o.qk_nope_head_dim):
        yield f"{words} (width {named(width)})", scale * width - _total(parts)


Uses = tuple[tuple[str, int], ...]  # so many copies of which part
MOST_COPIES = 4
LAYERS = "all of the layers but the feed-forward"
SCOPED = 0.05  # a change of one part, beside one of everything
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

    def more(self, words: str) -> float:
        """How much less likely a change is in this part: of a layer it is rather one of all."""
        all_layers = self.name != LAYERS and words in ONE_LAYER["n_layers"]
        return self.cost + SMALL * all_layers


@frozen
class Edit:
    """A mistake in words, what it adds to a count, how unlikely it is, and which parts it changes.

    `change` is one of counting what is there in another way.
    """

    words: str
    adds: Table
    cost: float
    uses: Uses = ()
    change: bool = False
    true: Table | None = None  # what it adds, where something is changed everywhere besides
    late: bool = False  # what was changed everywhere did not change it


class ModelTerms:
    """The known mistakes of one quantity of one model, and what else may have been changed."""

    def __init__(self, letters: Letters, quantity: str, parts: list[Part], space: Space) -> None:
        self.space, self.quantity = space, quantity
        self.room: dict[str, int] = {}
        self.total: Table = {}
        self.scopes: list[Scope] = []
        self.known: list[Edit] = []
        self.unit_of: dict[str, str] = {}
        by_size: dict[sympy.Expr, list[Part]] = {}  # nobody can tell which of them is meant
        for part in parts:
            by_size.setdefault(part.expr, []).append(part)
        for expr, alike in by_size.items():
            self._unit([part.name for part in alike], expr, sum(part.count for part in alike))
        for name, members in _groups(letters, parts).items():
            self._group(name, members)
        self._variants(parts)
        for words, expr in extras(letters, quantity, parts):
            self._add(words, expr, KNOWN if words in LIKELY_WORDS else EXTRA)
        if letters.of.attention == "mla" and quantity != "kv_cache_bytes":
            self._other_attention(letters, parts)
        if letters.of.is_moe:
            self._mixture(letters, parts)

    def _add(
        self,
        words: str,
        adds: sympy.Expr,
        cost: float,
        parts: Iterable[Part] = (),
        *,
        change: bool = False,
    ) -> None:
        with suppress(NotMonomials):  # a letter that neither side has
            if table := self.space.table(adds):
                uses = self._uses(parts)
                self.known.append(
                    Edit(words=words, adds=table, cost=cost, uses=uses, change=change)
                )

    def _uses(self, parts: Iterable[Part]) -> Uses:
        """Count the copies of each unit in some parts."""
        uses: dict[str, int] = {}
        for part in parts:
            unit = self.unit_of[part.name]
            uses[unit] = uses.get(unit, 0) + part.count
        return (*uses.items(),)

    def _unit(self, names: list[str], expr: sympy.Expr, count: int) -> None:
        """Add the mistakes of parts that are of one size, and as many of them as were counted."""
        unit, each = some_of(count, count, names), self.space.table(expr)
        self.room[unit] = count
        self.unit_of.update(dict.fromkeys(names, unit))
        self.total = plus(self.total, times(each, Fraction(count)))
        # small tensors are forgotten, seldom counted twice
        twice = SMALL if any("bias" in name or "norm" in name for name in names) else SOME
        for n in range(1, min(count, MOST_COPIES) + 1):
            what, cost = some_of(n, count, names), KNOWN if n == count else SOME
            mistakes = [(" left out", Fraction(-n), cost), (" counted twice", Fraction(n), twice)]
            if n in (1, count):
                mistakes.append((": only half counted", Fraction(-n, 2), HALF))
            uses = ((unit, n),)
            for words, factor, unlikely in mistakes:
                adds = times(each, factor)
                self.known.append(Edit(words=what + words, adds=adds, cost=unlikely, uses=uses))
            cost += ODD if 1 < n < count else 0
            table = times(each, Fraction(n))
            self.scopes.append(Scope(name=what, table=table, uses=uses, cost=cost))

    def _group(self, name: str, members: list[Part]) -> None:
        uses = self._uses(members)
        if len(uses) > 1 or (uses and uses[0][1] < self.room[uses[0][0]]):
            self._add(f"{name} left out", -_total(members), KNOWN, members)
            table = self.space.table(_total(members))
            self.scopes.append(Scope(name=name, table=table, uses=uses))

    def _variants(self, parts: list[Part]) -> None:
        together: dict[str, list[tuple[Part, sympy.Expr]]] = {}
        for part in parts:
            for words, expr in part.variants:
                together.setdefault(words, []).append((part, part.count * expr - part.total))
        for words, changed in together.items():
            adds = sympy.Add(*(expr for _, expr in changed))
            self._add(words, adds, KNOWN, [part for part, _ in changed], change=True)
            alike: dict[sympy.Expr, list[str]] = {}
            for part, expr in changed:
                alike.setdefault(expr, []).append(part.name)
            for expr, names in alike.items():
                for n in range(1, min(len(names), len(changed) - 1) + 1):
                    self._add(f"{some_of(n, len(names), names)}: {words}", n * expr, SOME)

    def _other_attention(self, letters: Letters, parts: list[Part]) -> None:
        """Add the mistakes of counting the attention of a model with latents as if it had none."""
        o = letters.of
        mine = [part for part in parts if part.group == ATTENTION]
        latent = [part for part in parts if "latent" in part.name and part.group != ATTENTION]
        if not mine:
            return
        nope, value = o.qk_nope_head_dim, o.v_head_dim
        scale = mine[-1].total / (o.d_model * o.n_heads * value)  # o_proj's layers, tokens
        key = nope + o.qk_rope_head_dim
        d, h = o.d_model, o.n_heads
        for width in (4 * value, 4 * nope, 4 * key, 2 * key + 2 * value, 4 * d / h):
            size = sympy.expand(d * h * width)
            words = f"multi-head attention is counted, not MLA: q, k, v and o as {named(size)}"
            self._add(words, scale * size - _total(mine), KNOWN, mine)
            if latent:
                words, gone = f"{words}, no norms of the latents", [*mine, *latent]
                self._add(words, scale * size - _total(gone), KNOWN, gone)

    def _mixture(self, letters: Letters, parts: list[Part]) -> None:
        """Add the mistakes over the feed-forward of a mixture of experts as a whole."""
        ffn = [part for part in parts if part.group == FEED_FORWARD]
        matrices = [part for part in ffn if part.count > 1]
        matrices += [part for part in ffn if part.count == 1 and "FFN" in part.name][:1]
        if len(matrices) > 1:
            inner = "three" if letters.spec.gated else "two"
            words = f"one of the {inner} matrices of every expert and every FFN left out"
            self._add(words, -sympy.Add(*(part.expr for part in matrices)), SOME)
        rest = [p for p in parts if "routed experts" not in p.name and "router" not in p.name]
        words = "all of the model counted n_experts times, not the experts alone"
        self._add(words, (letters.of.n_experts - 1) * _total(rest), SOME)


def _groups(letters: Letters, parts: list[Part]) -> dict[str, list[Part]]:
    """List parts that are often left out or changed together."""
    together: dict[str, list[Part]] = {}
    for part in parts:
        if part.group:
            together.setdefault(part.group, []).append(part)
    norms = together.get(NORMS, [])
    biases = [part for part in norms if "norm" in part.name and "bias" in part.name]
    if biases:
        together["all norms' biases"] = biases
        weights = [part for part in norms if "norm" in part.name and part not in biases]
        together["all norms' weights"] = weights
    blocks = [part for part in norms if part.name.endswith(NORMS_OF_BLOCKS)]
    if 1 < len(blocks) < len(norms):
        together["the norms of the blocks"] = blocks
    # matrices that are two parts here: `kv_b_proj (keys)` and `kv_b_proj (values)`
    for part in parts:
        if " (" in part.name:
            together.setdefault(part.name.partition(" (")[0], []).append(part)
    if letters.spec.n_dense_layers:
        layers = LETTERS["n_layers"]
        together[LAYERS] = [p for p in parts if p.group != FEED_FORWARD and p.expr.has(layers)]
    return together


def _total(parts: Sequence[Part]) -> sympy.Expr:
    return sympy.Add(*(part.total for part in parts))
