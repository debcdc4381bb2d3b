"""What may have been done to a count: to a size everywhere or in one part, another size or a number
for it, one more or less, left out of a product, a factor; and the mistakes that people make.

A part left out or counted twice, another way of counting it, what the model does not have: made
from the model's own parts, so that every model has its own list.
"""

from __future__ import annotations

from contextlib import suppress
from fractions import Fraction
from typing import TYPE_CHECKING

import sympy

from metacount.algebra.exact import (
    Monomial,
    NotMonomials,
    Space,
    Table,
    plain,
    plus,
    substituted,
    times,
)
from metacount.check.comparison import named
from metacount.check.names import BYTES_LETTER, LETTERS, NAMES
from metacount.check.parts import (
    ATTENTION,
    BIASES,
    FEED_FORWARD,
    NORMS,
    NORMS_OF_BLOCKS,
    Letters,
    Part,
    listed,
    parameter_parts,
    parts_of,
    some_of,
)
from metacount.formulas import pieces, sublayers
from metacount.frozen import frozen
from metacount.spec.field import altered

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from metacount.spec import ModelSpec, Workload

    Extra = tuple[str, sympy.Expr]  # words, and what they add

# How much less likely than a known mistake.
LIKELY, GROUPS, POSSIBLE, ODD = 0.0, 0.15, 0.2, 0.6
SOME, EXTRA, SMALL, HALF = 0.1, 0.2, 0.25, 0.35
ALL_OF_IT = -0.01  # all of a group at once, rather than as many small ones
AS_WRITTEN = 0.3  # less, where the sum stands in the formula


@frozen
class Change:
    """One thing done to a table: in words, how unlikely, and what is put for which product.

    A product that is none (`old` has no letter) stands for everything.
    """

    words: str
    cost: float
    old: Monomial
    by: Table

    @property
    def of_all(self) -> bool:
        """Whether all of a table is multiplied, whatever is in it."""
        return not any(self.old)

    @property
    def place(self) -> int | None:
        """The letter that something else is put for, where it is one alone."""
        return self.old.index(1) if sum(self.old) == 1 else None

    @property
    def moves(self) -> set[Monomial]:
        """How the powers of a product with the change differ from those without."""
        moves = {tuple(map(int.__sub__, key, self.old)) for key in self.by}
        if self.place is not None and len(self.by) == 1:
            moves |= {tuple(2 * n for n in move) for move in moves}  # of a size squared
        return moves if len(moves) < 2 else {move for move in moves if any(move)}

    def of(self, table: Table) -> Table | None:
        """Return the table with the change made."""
        if (place := self.place) is not None:
            if any(key[place] < 0 for key in table):  # it stands there by what is equal to it
                return None
            return substituted(table, place, self.by)
        changed: Table = {}
        for key, value in table.items():
            fits = all(a >= b for a, b in zip(key, self.old, strict=True) if b)
            rest = tuple(map(int.__sub__, key, self.old)) if fits else key
            for new, factor in (times(self.by, value, rest) if fits else {key: value}).items():
                changed[new] = changed[new] + factor if new in changed else factor
        return {key: value for key, value in changed.items() if value}


WIDTHS = (
    "d_model",
    "head_dim",
    "d_ff",
    "d_ff_expert",
    "d_ff_shared",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "d_embedding",
)
WHOLE_WIDTHS = ("d_model", "d_ff", "d_ff_expert")  # of which others are a multiple
EXPERTS = ("n_experts", "top_k", "n_shared_experts")
REPEATED = (*EXPERTS, "n_heads", "n_layers", "batch_size", "seq_len", "kv_len", "bytes_per_value")
KINDS: tuple[tuple[str, ...], ...] = (
    WIDTHS,
    ("n_heads", "n_kv_heads"),
    EXPERTS,
    ("n_layers", "n_dense_layers", "n_encoder_layers"),
    ("seq_len", "kv_len", "source_len", "window"),
    ("vocab_size", "n_positions"),
)
HEAD_WIDTHS = ("head_dim", "v_head_dim", "qk_nope_head_dim")  # d_model/n_heads, for some
# Products that people write one number or the width for.
PAIRS = (
    ("n_heads", "head_dim"),
    ("n_kv_heads", "head_dim"),
    ("batch_size", "bytes_per_value"),
    ("batch_size", "seq_len"),
)
NEAR, FAR = 4, 64  # times as large or as small: still a number for the same size; hardly
# Of a width: 4·d and 8/3·d are usual, 19/6·d is an accident.
RATIOS = {Fraction(ratio): POSSIBLE for ratio in ("2", "3", "4", "8/3")}
RATIOS |= {Fraction(r): ODD for r in ("5", "8", "2/3", "4/3", "16/3", "3/2", "5/2", "7/2")}
NO_SEQ_LEN = "not multiplied by seq_len (counted for one token)"
MULTI_HEAD = "multi-head, not grouped-query attention"
# A layer more or less than there are, of all and of the dense ones.
ONE_LAYER = {
    name: (f"one {word} too few", f"one {word} too many")
    for name, word in (("n_layers", "layer"), ("n_dense_layers", "dense layer"))
}
COPIES = ("counted twice", "counted three times", "only half counted")


class Changes:
    """The changes of a model's sizes, by how they move the powers of a product.

    `sums` are those that stand in the formula, before it was multiplied out.
    """

    def __init__(
        self,
        model_terms: ModelTerms,
        numbers: Mapping[sympy.Expr, int],
        theirs: Table,
        sums: Iterable[sympy.Expr] = (),
    ) -> None:
        self.space, ours = model_terms.space, model_terms.total
        self.quantity, space = model_terms.quantity, self.space
        self.sums = set()  # a letter and the number that is added to it in the formula: (N + 1)·d
        for number, rest in (total.as_coeff_Add() for total in sums):
            factor, letter = rest.as_coeff_Mul()
            self.sums.add((letter, number / factor))
        self.sizes = space.values(numbers)
        self.names = {
            i: NAMES[letter.name]
            for i, letter in enumerate(space.letters)
            if letter.is_Symbol and letter.name in NAMES
        }
        self.place = {name: i for i, name in self.names.items()}
        self.usual = [change for i in self.names for change in self._others(i, theirs, ours)]
        self.usual += [change for i in self.names for change in self._steps(i, ours)]
        self.usual += [*self._products()]
        copies = zip(COPIES, ("2", "3", "1/2"), (POSSIBLE, ODD, POSSIBLE), strict=True)
        for words, n, cost in copies:
            by = {space.one: Fraction(n)}
            self.usual.append(Change(words=words, cost=cost, old=space.one, by=by))
        self.by_move: dict[Iterable[int], dict[Monomial, list[Change]]] = {}

    def between(self, table: Table, target: Table, written: frozenset[int]) -> Iterator[Change]:
        """Yield the changes that make of a product of `table` one of `target`.

        `written` are the numbers of the formula that were read as no size.
        """
        if written not in self.by_move:
            index = self.by_move[written] = {}
            for change in (*self.usual, *self.numbers(written)):
                for move in change.moves or [self.space.one]:
                    index.setdefault(move, []).append(change)
        index = self.by_move[written]
        moves = {tuple(map(int.__sub__, t, key)) for t in target for key in table}
        return iter({id(c): c for move in moves for c in index.get(move, ())}.values())

    def _power(self, *powers: tuple[int, int]) -> Monomial:
        return tuple(sum(n for j, n in powers if j == i) for i in range(len(self.space.one)))

    def _others(self, i: int, theirs: Table, ours: Table) -> Iterator[Change]:
        """Yield the other sizes that may stand for one, and what is made of them."""
        name, letter, unit = self.names[i], self._power((i, 1)), Fraction(1)

        def instead(by: Table, cost: float, note: str = "") -> Change:
            words = f"{self.text(by)} in place of {name}{note}"
            cost += ODD * (self.space.value(by, self.sizes) == self.sizes[i])
            return Change(words=words, cost=cost, old=letter, by=by)

        kind = next((kind for kind in KINDS if name in kind), ())
        for other in kind:
            if other == name or (j := self.place.get(other)) is None:
                continue
            by = self._power((j, 1))
            note = f" ({MULTI_HEAD})" if name == "n_kv_heads" else ""
            # rather the one table twice, and not the other
            yield instead({by: unit}, POSSIBLE if name == "n_positions" else LIKELY, note)
            if other in WHOLE_WIDTHS:
                yield from (instead({by: ratio}, cost) for ratio, cost in RATIOS.items())
            if kind is EXPERTS:
                yield instead({letter: unit, by: -unit}, POSSIBLE)
                yield instead({letter: unit, by: unit}, POSSIBLE)
        if name in HEAD_WIDTHS and {"d_model", "n_heads"} <= self.place.keys():
            quotient = self._power((self.place["d_model"], 1), (self.place["n_heads"], -1))
            yield instead({quotient: unit}, POSSIBLE)
        if name in WIDTHS and name != "d_model":
            yield from (instead(by, POSSIBLE) for by in self._calls(i, theirs, ours))

    def _steps(self, i: int, ours: Table) -> Iterator[Change]:
        """Yield a size with some more or less, left out of a product, or once too often in it."""
        name, letter = self.names[i], self._power((i, 1))
        none, itself = self.space.one, {letter: Fraction(1)}
        for n in (1, -1, 2, -2, 3, -3, 4, -4):
            is_written = (self.space.letters[i], n) in self.sums
            if name in (*WIDTHS, "batch_size", "bytes_per_value"):
                break
            if abs(n) > 2 and not is_written:
                continue
            # a row of the vocabulary more is as much as a norm more, which is likelier
            likely = abs(n) == 1 and name not in ("vocab_size", "n_positions", "n_dense_layers")
            cost = POSSIBLE if likely else ODD
            cost -= AS_WRITTEN * is_written
            by = {**itself, none: Fraction(n)}
            words = f"{self.text(by)} in place of {name}"
            if name in ONE_LAYER and abs(n) == 1:
                words = ONE_LAYER[name][n > 0]
            yield Change(words=words, cost=cost, old=letter, by=by)
        if name == "n_dense_layers":
            words = "n_layers in place of n_layers - n_dense_layers (in the dense layers too)"
            yield Change(words=words, cost=POSSIBLE, old=letter, by={})
        if name == "d_model" or any(key[i] > 1 for key in ours):
            words = f"not multiplied by {name} ({name} in place of {name}²)"
            yield Change(words=words, cost=POSSIBLE, old=self._power((i, 2)), by=itself)
        if name in REPEATED:
            words = f"multiplied by {name} once too often"
            yield Change(words=words, cost=ODD, old=none, by=itself)

    def _calls(self, i: int, theirs: Table, ours: Table) -> Iterator[Table]:
        """Yield the multiples of a floor, ceiling, min or max of theirs that may be a width."""
        for j, letter in enumerate(self.space.letters):
            if letter.is_Symbol or any(key[j] for key in ours):
                continue
            for key, value in theirs.items():
                old = tuple(n + (k == i) - (k == j) for k, n in enumerate(key))
                if key[j] == 1 and old in ours:
                    by = {self._power((j, 1)): value / ours[old]}
                    size = self.space.value(by, self.sizes)
                    if 0 < self.sizes[i] / NEAR <= size <= self.sizes[i] * NEAR:
                        yield by

    def _pairs(self) -> Iterator[tuple[str, Monomial, str]]:
        """Yield the products that are written as one: their first name, powers, text."""
        for pair in PAIRS:
            if all(name in self.place for name in pair):
                old = self._power(*((self.place[name], 1) for name in pair))
                yield pair[0], old, self.text({old: Fraction(1)})

    def _products(self) -> Iterator[Change]:
        d = self.place.get("d_model")
        for first, old, text in self._pairs():
            if d is not None and first != "batch_size":
                by = {self._power((d, 1)): Fraction(1)}
                words, cost = f"d_model in place of {text}", POSSIBLE
                if first == "n_kv_heads":
                    words = f"d_model, for n_heads·head_dim, in place of {text} ({MULTI_HEAD})"
                    cost = GROUPS
                yield Change(words=words, cost=cost, old=old, by=by)

    def numbers(self, written: Iterable[int]) -> Iterator[Change]:
        """Yield the changes that put a number of a formula, or 1, in the place of sizes."""
        for i, name in self.names.items():
            old = self._power((i, 1))
            for number in sorted({1, *written, *((2,) if name in EXPERTS else ())}):
                if change := self._number(name, self.sizes[i], number, old):
                    yield change
        for _, old, text in self._pairs():
            value = self.space.value({old: Fraction(1)}, self.sizes)
            for number in sorted(written):
                if number > 2 and value / NEAR <= number <= value * NEAR:
                    yield Change(
                        words=f"{number} stands where {text} = {value} belongs",
                        cost=ODD + GROUPS * (number != value),
                        old=old,
                        by={self.space.one: Fraction(number)},
                    )

    def _number(self, name: str, size: Fraction, number: int, old: Monomial) -> Change | None:
        cost, words = POSSIBLE, f"{number} stands where {name} = {size} belongs"
        if number == size:
            words = f"nothing at these sizes, as {name} = {size}"
        elif number == 1:
            words = NO_SEQ_LEN if name == "seq_len" else f"not multiplied by {name}"
            if name == "bytes_per_value":
                words, cost = "values, not bytes", LIKELY
                if size == 2 and self.quantity == "kv_cache_bytes" and "n_kv_heads" in self.place:
                    words += ", or keys or values only"
        elif (off := max(number / size, size / number)) > NEAR:
            cost = ODD
            if off > FAR:
                return None
        return Change(words=words, cost=cost, old=old, by={self.space.one: Fraction(number)})

    def text(self, table: Table) -> str:
        """Write a table in our names."""
        return named(self.space.expr(table))


# Of a whole count: multiply-adds, a backward too, units of 2^10, 2^20 and 2^30 bytes.
FACTORS = {Fraction(n) for n in (2, 3, 4, 6, "1/2", "3/2", "1/3", "1/4", "1/6")}
BINARY = {Fraction(1, 2**power) for power in (10, 20, 30)}
FACTORS |= BINARY
UNITS = ("batch_size", "seq_len", "kv_len", "n_layers", "bytes_per_value")
FLOPS = {
    Fraction(1, 2): "multiply-adds, not FLOPs",
    Fraction(3): "a forward and a backward, not the forward alone",
    Fraction(4): "forward, recomputation and backward, not the forward alone",
    Fraction(3, 2): "multiply-adds of a forward and a backward",
    Fraction(2): "FLOPs counted twice",
}
CACHE = {
    Fraction(1, 2): "keys or values only, or values of one byte, or not bytes",
    Fraction(2): "keys and values counted twice, or the bytes of a value",
}


def factors(space: Space, theirs: Table, ours: Table, quantity: str) -> Iterator[Change]:
    """Yield the factors, of a number and units, by which a monomial of theirs differs from ours."""
    units = {i for i, a in enumerate(space.letters) if a.is_Symbol and NAMES.get(a.name) in UNITS}
    cache, seen = quantity == "kv_cache_bytes", set()
    for mine, value in ours.items():
        for other, theirs_value in theirs.items():
            powers, number = tuple(map(int.__sub__, other, mine)), theirs_value / value
            places = {i for i, n in enumerate(powers) if n}
            usual = number == 1 if places else number in FACTORS
            if (number == 1 and not places) or (number, powers) in seen:
                continue
            seen.add((number, powers))
            if places <= units and (usual or (cache and number in BINARY)):
                letters = [(a, n) for a, n in zip(space.letters, powers, strict=True) if n]
                words = factor_words(number, letters, quantity)
                vague = cache and words.startswith("a factor") and ":" not in words
                yield Change(
                    words=words,
                    cost=0.15 + 0.2 * len(letters) + vague,
                    old=space.one,
                    by={powers: number},
                )


def factor_words(factor: Fraction, powers: list[tuple[sympy.Expr, int]], quantity: str) -> str:
    """Say what it usually means when a whole count is off by a factor."""
    words = [_number_words(factor, quantity)] if factor != 1 else []
    names = {
        sign: [named(a) for a, n in powers if n * sign > 0 and a != BYTES_LETTER]
        for sign in (1, -1)
    }
    if bytes_power := dict(powers).get(BYTES_LETTER):
        words += ["values, not bytes" if bytes_power < 0 else "multiplied by the bytes of a value"]
    if missing := names[-1]:
        words += [NO_SEQ_LEN if missing == ["seq_len"] else f"not multiplied by {listed(missing)}"]
    if names[1]:
        words.append(f"multiplied by {listed(names[1])} once too often")
    return ", ".join(words)


def _number_words(factor: Fraction, quantity: str) -> str:
    text = f"a factor of {max(factor, 1 / factor)}"
    meant = {}
    if quantity.endswith("_flops"):
        meant = FLOPS
    elif quantity == "kv_cache_bytes":
        for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
            if factor == Fraction(1, 2**power):
                return f"{unit}, not bytes"
        meant = CACHE
    if factor in meant:
        return f"{text}: {meant[factor]}"
    return text + (" too much" if factor > 1 else " too little")


TIED = "embedding counted twice; the output head shares it"
LOOKED_UP = "embedding counted as a matrix product; it is looked up"
TOO_MANY, TOO_FEW = (f"one expert too {word} in each MoE layer" for word in ("many", "few"))
GPT2_BLOCKS = (
    "blocks counted as GPT-2's, 12·d_model² each (multi-head attention, two matrices of the FFN, "
    "4·d_model in place of d_ff)"
)
POSITIONS = "seq_len in place of n_positions"
EXTRA_COSTS = {**dict.fromkeys((TIED, LOOKED_UP, TOO_MANY, TOO_FEW), LIKELY), POSITIONS: HALF}
SOFTMAX = (1, 2, 3, 4, 5)  # FLOPs of a score, as papers count them


def extras(letters: Letters, quantity: str, parts: list[Part]) -> Iterator[Extra]:
    """Yield what is often counted in a quantity that does not hold it: words, and what it adds."""
    o = letters.of
    if quantity == "kv_cache_bytes":
        yield from _extra_cache(letters, parts)
    elif quantity not in ("params", "active_params"):
        yield from _extra_products(letters, quantity)
    else:
        yield from _extra_parameters(letters, parts)
        if o.position == "learned":
            yield POSITIONS, (letters.seq - o.n_positions) * o.d_model


def _extra_parameters(letters: Letters, parts: list[Part]) -> Iterator[Extra]:
    o = letters.of
    absent: list[tuple[object, str, sympy.Expr]] = [
        (o.final_norm, "a final norm", o.d_model),
        (o.embedding_norm, "a norm after the embedding", o.d_model),
        (o.head_bias or o.vocab_size is None, "a bias of the head", o.vocab_size),
        (o.position == "learned", "a position table", letters.seq * o.d_model),
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
    if quantity == "matmul_flops" and letters.of.n_heads:
        scores = letters.batch * letters.of.n_layers * letters.of.n_heads * letters.seq**2
        for n in SOFTMAX:
            yield f"the softmax counted, {n} FLOPs a score; it is no matrix product", n * scores


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
    """A mistake in words, what it adds to a count, how unlikely it is, and which parts it uses."""

    words: str
    adds: Table
    cost: float
    uses: Uses = ()
    true: Table | None = None  # what it adds, where something is changed everywhere besides
    late: bool = False  # what was changed everywhere did not change it
    change: bool = False  # one of counting in another way what is there


class ModelTerms:
    """The known mistakes of one quantity of one model, and what else may have been changed; in a
    space that has the letters of `exprs` too.
    """

    def __init__(
        self, spec: ModelSpec, workload: Workload, quantity: str, exprs: Iterable[sympy.Expr]
    ) -> None:
        letters = Letters(spec, workload)
        parts = parts_of(letters, quantity)
        counted = [part.expr for part in parts]
        counted += [expr for part in parts for _, expr in part.variants]
        self.space, self.quantity = Space([*map(plain, counted), *exprs]), quantity
        self.room: dict[str, int] = {}
        self.total: Table = {}
        self.scopes: list[Scope] = []
        self.known: list[Edit] = []
        self.unit_of: dict[str, str] = {}
        by_size: dict[sympy.Expr, list[Part]] = {}  # nobody can tell which of them is meant
        for part in parts:
            by_size.setdefault(part.expr, []).append(part)
        for expr, alike in by_size.items():
            self._unit(alike, expr, sum(part.count for part in alike))
        for name, members in _groups(letters, parts).items():
            self._group(name, members)
        self._variants(parts)
        for words, expr in extras(letters, quantity, parts):
            self._add(words, expr, EXTRA_COSTS.get(words, EXTRA))
        if letters.of.attention == "mla" and quantity != "kv_cache_bytes":
            self._other_attention(letters, parts)
        if spec.attention == "gqa" and (spec.gated or spec.d_ff != 4 * spec.d_model):
            self._other_blocks(letters, parts)
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
                edit = Edit(words=words, adds=table, cost=cost, uses=self._uses(parts))
                self.known.append(altered(edit, change=change))

    def _uses(self, parts: Iterable[Part]) -> Uses:
        uses: dict[str, int] = {}
        for part in parts:
            unit = self.unit_of[part.name]
            uses[unit] = uses.get(unit, 0) + part.count
        return (*uses.items(),)

    def _unit(self, parts: list[Part], expr: sympy.Expr, count: int) -> None:
        """Add the mistakes of parts that are of one size, and as many of them as were counted."""
        names = [part.name for part in parts]
        every = SOME if len({part.group for part in parts}) > 1 else LIKELY
        unit, each = some_of(count, count, names), self.space.table(expr)
        self.room[unit] = count
        self.unit_of.update(dict.fromkeys(names, unit))
        self.total = plus(self.total, times(each, Fraction(count)))
        # small tensors are forgotten, seldom counted twice
        twice = SMALL if any("bias" in name or "norm" in name for name in names) else SOME
        for n in range(1, min(count, MOST_COPIES) + 1):
            what, cost = some_of(n, count, names), every if n == count else SOME
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
            self._add(f"{name} left out", -_total(members), ALL_OF_IT, members)
            table = self.space.table(_total(members))
            self.scopes.append(Scope(name=name, table=table, uses=uses))

    def _variants(self, parts: list[Part]) -> None:
        together: dict[str, list[tuple[Part, sympy.Expr]]] = {}
        for part in parts:
            for words, expr in part.variants:
                together.setdefault(words, []).append((part, part.count * expr - part.total))
        for words, changed in together.items():
            adds = sympy.Add(*(expr for _, expr in changed))
            self._add(words, adds, LIKELY, [part for part, _ in changed], change=True)
            alike: dict[sympy.Expr, list[str]] = {}
            for part, expr in changed:
                alike.setdefault(expr, []).append(part.name)
            for expr, names in alike.items():
                for n in range(1, min(len(names), len(changed) - 1) + 1):
                    self._add(f"{some_of(n, len(names), names)}: {words}", n * expr, SOME)

    def _other_attention(self, letters: Letters, parts: list[Part]) -> None:
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
            self._add(words, scale * size - _total(mine), LIKELY, mine)
            if latent:
                words, gone = f"{words}, no norms of the latents", [*mine, *latent]
                self._add(words, scale * size - _total(gone), LIKELY, gone)
        query = [part for part in mine if part.name.startswith(("q_a_proj", "q_b_proj"))]
        if query:
            words = "q_proj counted in place of q_a_proj and q_b_proj (no query latent)"
            gone = [*query, *(part for part in latent if "query" in part.name)]
            for members in (query, gone):
                self._add(words, scale * d * h * key - _total(members), LIKELY, members)

    def _other_blocks(self, letters: Letters, parts: list[Part]) -> None:
        o = letters.of
        mine = [part for part in parts if part.group in (ATTENTION, FEED_FORWARD)]
        output = next((part for part in mine if part.name == "o_proj"), None)
        if output is not None and o.d_ff and not o.is_moe and not o.has_encoder:
            each = output.total / (o.n_heads * o.head_dim) * o.d_model
            self._add(GPT2_BLOCKS, 12 * each - _total(mine), HALF, mine)

    def _mixture(self, letters: Letters, parts: list[Part]) -> None:
        ffn = [part for part in parts if part.group == FEED_FORWARD]
        matrices = [part for part in ffn if part.count > 1]
        matrices += [part for part in ffn if part.count == 1 and "FFN" in part.name][:1]
        if len(matrices) > 1:
            inner = "three" if letters.spec.gated else "two"
            words = f"one of the {inner} matrices of every expert and every FFN left out"
            self._add(words, -sympy.Add(*(part.expr for part in matrices)), SOME)
        o = letters.of
        others = [part for part in parts if "routed experts" not in part.name]
        rest = [part for part in others if "router" not in part.name]
        words = "all of the model counted n_experts times, not the experts alone"
        self._add(words, (o.n_experts - 1) * _total(rest), SOME)
        words = "all of the model counted top_k/n_experts times, not the experts alone"
        self._add(words, (o.top_k / o.n_experts - 1) * _total(others), SOME)


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
