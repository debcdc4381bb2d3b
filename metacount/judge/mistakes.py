"""Mistakes that people make when they count, each with what it adds to the count.

A part left out or counted twice, a size in another one's place, the whole counted in other units:
made from the model's own parts, so that every model has its own list.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import sympy

from metacount.frozen import frozen
from metacount.judge.condition import named
from metacount.judge.extras import LIKELY, extras
from metacount.judge.kept import cache_parts
from metacount.judge.monomials import NotMonomials, Table, less, times
from metacount.judge.parts import Letters, Part, parameter_parts
from metacount.judge.products import flop_parts
from metacount.judge.vocabulary import BYTES_LETTER, LETTERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from metacount.judge.monomials import Space

# How likely a mistake is, where two explain the same: small is likely.
KNOWN, LEFT_OUT, EXTRA, SOME, SWAP, ODD_SWAP = range(6)
MOST_COPIES = 4

WIDTHS = ("d_model", "head_dim", "d_ff", "d_ff_expert", "d_ff_shared", "q_lora_rank",
          "kv_lora_rank",
          "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "d_embedding")  # fmt: skip
KINDS: tuple[tuple[str, ...], ...] = (
    WIDTHS,
    ("n_heads", "n_kv_heads"),
    ("n_experts", "top_k", "n_shared_experts"),
    ("n_layers", "n_dense_layers", "n_encoder_layers"),
    ("seq_len", "kv_len", "source_len", "window"),
    ("vocab_size", "n_positions"),
)


@frozen
class Mistake:
    """A mistake in words, what it adds, and how likely it is beside others that add the same.

    `raw` is what it adds before sizes that are equal at the model were taken as one.
    """

    words: str
    adds: Table
    rank: int
    raw: Table | None = None


def parts_of(letters: Letters, quantity: str) -> list[Part]:
    """Every part of a quantity; they sum to it."""
    if quantity == "kv_cache_bytes":
        return cache_parts(letters)
    if quantity in ("params", "active_params"):
        return parameter_parts(letters, active=quantity == "active_params")
    return flop_parts(letters, quantity)


def mistakes(letters: Letters, quantity: str, parts: list[Part], space: Space) -> list[Mistake]:
    """The mistakes that are worth trying, the likely ones first."""
    found: list[Mistake] = []
    found += _variants(parts, space)
    units = [*_merged(parts)]
    for names, expr, count in units:
        found += _left_out_or_twice(names, space.table(expr), count)
    groups = [*_groups(parts)]
    for name, expr in groups:
        found.append(Mistake(words=f"{name} left out", adds=times(space.table(expr), Fraction(-1)),
                             rank=LEFT_OUT))  # fmt: skip
    for words, expr in extras(letters, quantity, parts):
        try:
            rank = KNOWN if words in LIKELY else EXTRA
            found.append(Mistake(words=words, adds=space.table(expr), rank=rank))
        except NotMonomials:
            continue  # a letter that neither side has
    whole = sympy.Add(*(part.total for part in parts))
    swapped = [("", whole, SWAP), *((name, expr, SWAP) for name, expr in groups)]
    swapped += [(_some(count, count, names), count * expr, SWAP) for names, expr, count in units]
    swapped += [(_some(1, count, names), expr, ODD_SWAP)
                for names, expr, count in units if count > 1]  # fmt: skip
    for name, expr in [("", whole), *groups]:
        found += _one_layer_off(name, space.table(expr), space)
    for name, expr, rank in swapped:
        found += _swaps(name, space.table(expr), space, rank)
    return sorted((m for m in found if m.adds), key=lambda m: m.rank)


def _one_layer_off(name: str, table: Table, space: Space) -> Iterator[Mistake]:
    letter = LETTERS["n_layers"]
    if letter not in space.place:
        return
    i = space.place[letter]
    one = {(*key[:i], 0, *key[i + 1 :]): value for key, value in table.items() if key[i] == 1}
    for words, sign in (("one layer too many", 1), ("one layer too few", -1)):
        yield Mistake(words=f"{name}: {words}" if name else words,
                      adds=times(one, Fraction(sign)), rank=ODD_SWAP)  # fmt: skip


def _variants(parts: list[Part], space: Space) -> Iterator[Mistake]:
    together: dict[str, Table] = {}
    for part in parts:
        for words, expr in part.variants:
            try:
                adds = less(space.table(part.count * expr), space.table(part.total))
            except NotMonomials:
                continue  # a letter that neither side has
            together[words] = less(together.get(words, {}), times(adds, Fraction(-1)))
    for words, adds in together.items():
        yield Mistake(words=words, adds=adds, rank=KNOWN)


def _merged(parts: list[Part]) -> Iterator[tuple[list[str], Any, int]]:
    """Parts of one size together: nobody can tell which of them is meant."""
    sizes: dict[Any, tuple[list[str], int]] = {}
    for part in parts:
        names, count = sizes.get(part.expr, ([], 0))
        sizes[part.expr] = ([*names, part.name], count + part.count)
    for expr, (names, count) in sizes.items():
        yield names, expr, count


def _groups(parts: list[Part]) -> Iterator[tuple[str, Any]]:
    for group in dict.fromkeys(part.group for part in parts if part.group):
        members = [part for part in parts if part.group == group]
        if len({part.expr for part in members}) > 1:
            yield group, sympy.Add(*(part.total for part in members))


def _left_out_or_twice(names: list[str], one: Table, count: int) -> Iterator[Mistake]:
    for n in range(1, min(count, MOST_COPIES) + 1):
        what, rank = _some(n, count, names), LEFT_OUT if n == count else SOME
        yield Mistake(words=f"{what} left out", adds=times(one, Fraction(-n)), rank=rank)
        yield Mistake(words=f"{what} counted twice", adds=times(one, Fraction(n)), rank=rank)
    if count == 1:
        yield Mistake(words=f"{names[0]} counted three times", adds=times(one, Fraction(2)),
                      rank=SOME)  # fmt: skip
        yield Mistake(words=f"{names[0]}: only half counted",
                      adds=times(one, Fraction(-1, 2)), rank=ODD_SWAP)  # fmt: skip


def _some(n: int, count: int, names: list[str]) -> str:
    """`n` of `count` parts of one size; the stack or kind of layer they share said first."""
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
    """Names as a list, a first word that all share said once.

    >>> listed(["FFN gate_proj", "FFN up_proj", "FFN down_proj"])
    'FFN gate_proj, up_proj and down_proj'
    """
    first = names[0].partition(" ")[0] + " "
    shared = first if len(names) > 1 and all(name.startswith(first) for name in names) else ""
    rest = [name.removeprefix(shared) for name in names]
    text = rest[0] if len(rest) == 1 else f"{', '.join(rest[:-1])} and {rest[-1]}"
    return shared + text


def _swaps(name: str, table: Table, space: Space, rank: int) -> Iterator[Mistake]:
    for kind in KINDS:
        for ours in kind:
            letter = LETTERS[ours]
            if letter not in space.place or not any(k[space.place[letter]] for k in table):
                continue
            for other, powers in _others(ours, kind):
                monomial = space.monomial(powers)
                if monomial is None:
                    continue
                adds = less(space.swapped(table, letter, monomial), table)
                yield Mistake(words=_swap_words(name, ours, other), adds=adds, rank=rank)


def _others(ours: str, kind: tuple[str, ...]) -> Iterator[tuple[str, dict[Any, int]]]:
    for other in kind:
        if other != ours:
            yield other, {LETTERS[other]: 1}
    heads, width, d = LETTERS["n_heads"], LETTERS["head_dim"], LETTERS["d_model"]
    if ours == "head_dim":
        yield "d_model / n_heads", {d: 1, heads: -1}
    if ours == "v_head_dim":
        yield "d_model / n_heads", {d: 1, heads: -1}
    if ours == "d_model":
        yield "n_heads·head_dim", {heads: 1, width: 1}
    yield "1", {}


def _swap_words(name: str, ours: str, other: str) -> str:
    where = f"{name}: " if name else ""
    if other == "1":
        return f"{where}not multiplied by {ours}"
    if (ours, other) == ("n_kv_heads", "n_heads"):
        return f"{where}n_heads in place of n_kv_heads (multi-head, not grouped-query attention)"
    return f"{where}{other} in place of {ours}"


def factor_words(factor: Fraction, powers: list[tuple[Any, int]], quantity: str) -> str:
    """What it usually means when a whole count is off by a factor."""
    said = [_number_words(factor, quantity)] if factor != 1 else []
    missing = [named(letter) for letter, n in powers if n < 0 and letter != BYTES_LETTER]
    extra = [named(letter) for letter, n in powers if n > 0 and letter != BYTES_LETTER]
    for letter, n in powers:
        if letter == BYTES_LETTER:
            said.append("values, not bytes" if n < 0 else "multiplied by the bytes of a value")
    if missing:
        said.append(f"not multiplied by {listed(missing)}")
    if extra:
        said.append(f"multiplied by {listed(extra)} once too often")
    return ", ".join(said)


def _number_words(factor: Fraction, quantity: str) -> str:
    large = factor if factor > 1 else 1 / factor
    text = f"a factor of {large}"
    flops = quantity.endswith("_flops")
    words = {
        Fraction(1, 2): "multiply-adds, not FLOPs",
        Fraction(3): "a forward and a backward, not the forward alone",
        Fraction(4): "forward, recomputation and backward, not the forward alone",
        Fraction(3, 2): "multiply-adds of a forward and a backward",
        Fraction(2): "FLOPs counted twice",
    }
    if flops and factor in words:
        return f"{text}: {words[factor]}"
    if quantity == "kv_cache_bytes":
        said = {Fraction(1, 2): "keys or values only, or values of one byte, or not bytes",
                Fraction(2): "keys and values counted twice, or the bytes of a value"}  # fmt: skip
        if factor in said:
            return f"{text}: {said[factor]}"
    return f"{text} too {'much' if factor > 1 else 'little'}"
