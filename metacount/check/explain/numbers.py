"""The mistakes of a function that takes numbers only: what fits at every size that was tried."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from metacount.algebra.exact import plain
from metacount.algebra.monomials import Space, Table, less, times
from metacount.check.explain.changes import Changes
from metacount.check.explain.factors import factor_words
from metacount.check.explain.mistakes import Library, Mistake, parts_of
from metacount.check.explain.sizes import KINDS
from metacount.check.explain.story import OR
from metacount.check.given.vocabulary import LETTERS, numbers_of
from metacount.check.judgement import Term
from metacount.check.parts.params import Letters
from metacount.check.truth import count_of
from metacount.textbook.training import TRAINING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import sympy

    from metacount.check.given.call import Answer
    from metacount.check.trials import Case
    from metacount.check.truth import Truth

UNKNOWN = "not accounted for: no part of the model explains this"
UNTOLD = "not accounted for: the known mistakes are those of a forward"
FEWEST = 8  # sizes at which a mistake must fit before it is named
MOST = 16

Values = tuple[Fraction, ...]


def explain_numbers(case: Case, answer: Answer, truth: Truth) -> tuple[Term, ...]:
    """Explain the difference as mistakes that fit at all sizes tried;
    as one unknown term otherwise.

    Two mistakes are named where nothing else fits; an accident would have to hold at every size.
    """
    difference = answer.value - truth.value
    unknown = (Term(expr=None, value=difference, words=UNKNOWN, known=False),)
    if truth.quantity in TRAINING:
        return (Term(expr=None, value=difference, words=UNTOLD, known=False),)
    tried = [(case, answer.value), *answer.cases[:MOST]]
    if len(tried) <= FEWEST:
        return unknown
    ours = [count_of(*other, truth.quantity) for other, _ in tried]
    wanted = tuple(Fraction(value - n) for (_, value), n in zip(tried, ours, strict=True))
    if all(ours):
        ratios = {value / n for (_, value), n in zip(tried, ours, strict=True)}
        if len(ratios) == 1:
            words = factor_words(ratios.pop(), [], truth.quantity)
            return (Term(expr=None, value=difference, words=words),)
    letters = Letters(truth.spec, truth.workload)
    parts = parts_of(letters, truth.quantity)
    exprs = [plain(part.expr) for part in parts]
    exprs += [plain(expr) for part in parts for _, expr in part.variants]
    space = Space([*exprs, *numbers_of(*case)])
    at = [space.values(numbers_of(*other)) for other, _ in tried]
    library = Library(letters, truth.quantity, parts, space)
    index: dict[Values, Mistake] = {}
    known = [*library.known, *_swapped(library, space), *_numbers(library, space, wanted, at)]
    for mistake in sorted(known, key=lambda one: one.cost):
        adds = tuple(space.value(mistake.adds, values) for values in at)
        first = index.setdefault(adds, mistake)
        if first is not mistake and mistake.cost <= first.cost and OR not in first.words:
            words = first.words + OR + mistake.words
            index[adds] = Mistake(words=words, adds=first.adds, cost=first.cost)
    told = _told(wanted, index)
    if not told:
        return unknown
    terms = [Term(expr=None, value=adds[0], words=index[adds].words) for adds in told]
    return tuple(sorted(terms, key=lambda term: -abs(term.value)))


def _told(wanted: Values, index: dict[Values, Mistake]) -> tuple[Values, ...]:
    """Find one mistake, or the only likeliest two, that make the difference at every size."""
    if wanted in index:
        return (wanted,)
    pairs = set()
    for adds in index:
        rest = tuple(map(Fraction.__sub__, wanted, adds))
        if rest in index and any(rest) and any(adds):
            pairs.add(frozenset((adds, rest)))
    several = [tuple(pair) for pair in pairs if len(pair) > 1]
    if not several:
        return ()
    cost = min(sum(index[adds].cost for adds in pair) for pair in several)
    best = [pair for pair in several if sum(index[adds].cost for adds in pair) == cost]
    return best[0] if len(best) == 1 else ()


def _swapped(library: Library, space: Space) -> Iterator[Mistake]:
    """Yield the mistakes of one size in another's place, in a part or in all."""
    changes = Changes(space, dict.fromkeys(space.letters, 1), None)
    whole = [("", library.whole, 0.0)]
    scopes = [(f"{scope.name}: ", scope.table, 0.05 + scope.cost) for scope in library.scopes]
    for kind in KINDS:
        for name in kind:
            for other in kind:
                a, b = LETTERS[name], LETTERS[other]
                if a == b or a not in space.place or b not in space.place:
                    continue
                by: Table = space.table(b)
                change = changes.letter(space.place[a], next(iter(by)))
                for words, table, cost in [*whole, *scopes]:
                    after = None if change is None else change.of(table)
                    if after is not None and change is not None and after != table:
                        yield Mistake(
                            words=words + change.words,
                            adds=less(after, table),
                            cost=change.cost + cost,
                        )


def _numbers(
    library: Library, space: Space, wanted: Values, at: list[list[Fraction]]
) -> Iterator[Mistake]:
    """Yield mistakes of one number in a size's place
    that would make the difference at every size.
    """
    whole = [("", library.whole, 0.0)]
    scopes = [(f"{scope.name}: ", scope.table, 0.05 + scope.cost) for scope in library.scopes]
    for letter in LETTERS.values():
        i = space.place.get(letter)
        if i is None:
            continue
        for words, table, cost in [*whole, *scopes]:
            linear = {key: value for key, value in table.items() if key[i]}
            if not linear or any(key[i] != 1 for key in linear):
                continue
            rest: Table = {(*key[:i], 0, *key[i + 1 :]): value for key, value in linear.items()}
            below = [space.value(rest, values) for values in at]
            if not all(below):
                continue
            numbers = {
                values[i] + one / n for values, one, n in zip(at, wanted, below, strict=True)
            }
            if len(numbers) == 1 and (number := numbers.pop()).denominator == 1 and number > 0:
                adds = less(times(rest, number), linear)
                name = _name(letter)
                yield Mistake(
                    words=f"{words}{number} stands where {name} = {at[0][i]} belongs",
                    adds=adds,
                    cost=0.3 + cost,
                )


def _name(letter: sympy.Expr) -> str:
    return next(name for name, other in LETTERS.items() if other == letter)
