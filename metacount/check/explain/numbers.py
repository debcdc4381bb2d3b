"""The mistakes of a function that takes numbers only: what fits at every size that was tried."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor
from typing import TYPE_CHECKING

from metacount.algebra.exact import plain, value_at
from metacount.algebra.monomials import Space, Table, less
from metacount.check.explain.changes import ONE_LAYER, Changes
from metacount.check.explain.factors import FACTORS, factor_words
from metacount.check.explain.mistakes import Library, Mistake, parts_of
from metacount.check.explain.sizes import KINDS, NO_SEQ_LEN, RARE, RATIOS, WIDTHS
from metacount.check.explain.story import OR
from metacount.check.given.vocabulary import LETTERS, numbers_of
from metacount.check.judgement import Term
from metacount.check.parts.params import Letters
from metacount.check.trials import alike
from metacount.check.truth import count_of
from metacount.errors import SpecError
from metacount.textbook.closed_form import EXPLAINED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from metacount.check.given.call import Answer
    from metacount.check.trials import Case
    from metacount.check.truth import Truth
    from metacount.spec import ModelSpec

UNKNOWN = "not accounted for: no part of the model explains this"
UNTOLD = "not accounted for: no mistakes are known by name of this quantity"
FEWEST = 8  # sizes at which a mistake must fit before it is named
MOST = 16
MULTIPLES = [2**n for n in range(3, 13)]  # that widths are rounded up to

Values = tuple[Fraction, ...]


def explain_numbers(case: Case, answer: Answer, truth: Truth) -> tuple[Term, ...]:
    """Explain the difference as mistakes that fit at all sizes tried;
    as one unknown term otherwise.

    Two mistakes are named where nothing else fits; an accident would have to hold at every size.
    """
    difference = answer.value - truth.value
    unknown = (Term(expr=None, value=difference, words=UNKNOWN, known=False),)
    if truth.quantity not in EXPLAINED:
        return (Term(expr=None, value=difference, words=UNTOLD, known=False),)
    equal = [one for one in answer.cases if _alike(case[0], one[0][0])]
    for others in (answer.cases, equal):
        tried = [(case, answer.value), *others[:MOST]]
        if len(tried) > FEWEST and (terms := _terms(tried, truth)):
            return terms
    return unknown


def _alike(spec: ModelSpec, other: ModelSpec) -> bool:
    try:
        return alike(spec, other) == other
    except SpecError:
        return False


def _terms(tried: list[tuple[Case, Fraction]], truth: Truth) -> tuple[Term, ...]:
    """Explain the difference at all of these sizes; nothing where no mistake is known for it."""
    cases = [case for case, _ in tried]
    ours = [count_of(*case, truth.quantity) for case in cases]
    wanted = tuple(Fraction(value - n) for (_, value), n in zip(tried, ours, strict=True))
    off_by = {value / n for (_, value), n in zip(tried, ours, strict=True)} if all(ours) else set()
    factor = off_by.pop() if len(off_by) == 1 else None
    if factor in FACTORS:
        words = factor_words(factor, [], truth.quantity)
        return (Term(expr=None, value=wanted[0], words=words),)
    letters = Letters(truth.spec, truth.workload)
    parts = parts_of(letters, truth.quantity)
    exprs = [plain(part.expr) for part in parts]
    exprs += [plain(expr) for part in parts for _, expr in part.variants]
    space = Space([*exprs, *numbers_of(*cases[0])])
    at = [space.values(numbers_of(*case)) for case in cases]
    library = Library(letters, truth.quantity, parts, space)
    index: dict[Values, tuple[str, float]] = {}
    known = [
        (mistake.words, mistake.cost, tuple(space.value(mistake.adds, values) for values in at))
        for mistake in (*library.known, *_swapped(library, space))
    ]
    known += _sizes(library, space, wanted, at)
    known += _layers(truth, cases)
    for words, cost, adds in sorted(known, key=lambda one: one[1]):
        first, least = index.setdefault(adds, (words, cost))
        if first != words and cost <= least and OR not in first:
            index[adds] = first + OR + words, least
    terms = [
        Term(
            expr=None,
            value=adds[0],
            words="nothing at these sizes: " * (not adds[0]) + index[adds][0],
        )
        for adds in _told(wanted, index)
    ]
    if not terms and factor is not None:
        terms = [Term(expr=None, value=wanted[0], words=factor_words(factor, [], truth.quantity))]
    return tuple(sorted(terms, key=lambda term: -abs(term.value)))


def _told(wanted: Values, index: dict[Values, tuple[str, float]]) -> tuple[Values, ...]:
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
    cost = min(sum(index[adds][1] for adds in pair) for pair in several)
    best = [pair for pair in several if sum(index[adds][1] for adds in pair) == cost]
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


def _sizes(
    library: Library, space: Space, wanted: Values, at: list[list[Fraction]]
) -> Iterator[tuple[str, float, Values]]:
    """Yield what would make the difference at every size, in one size's place.

    That is a number, the size and one more or less, or a multiple of the residual width.
    """
    whole = [("", library.whole, 0.0)]
    scopes = [(f"{scope.name}: ", scope.table, 0.05 + scope.cost) for scope in library.scopes]
    d_model = [values[space.place[LETTERS["d_model"]]] for values in at]
    for name, letter in LETTERS.items():
        i = space.place.get(letter)
        if i is None:
            continue
        sizes = [values[i] for values in at]
        for words, table, cost in [*whole, *scopes]:
            linear = {key: value for key, value in table.items() if key[i]}
            if not linear or any(key[i] != 1 for key in linear):
                continue
            rest: Table = {(*key[:i], 0, *key[i + 1 :]): value for key, value in linear.items()}
            below = [space.value(rest, values) for values in at]
            if not all(below):
                continue
            meant = [size + one / n for size, one, n in zip(sizes, wanted, below, strict=True)]
            steps = {number - size for number, size in zip(meant, sizes, strict=True)}
            number = meant[0]
            if {*meant} == {number} and number.denominator == 1 and number > 0:
                text = f"{number} stands where {name} = {sizes[0]} belongs"
                if number == 1:
                    text = NO_SEQ_LEN if name == "seq_len" else f"not multiplied by {name}"
                yield words + text, 0.3 + cost, wanted
            elif len(steps) == 1 and abs(step := steps.pop()) == 1:
                sign = "+" if step > 0 else "-"
                yield f"{words}{name} {sign} 1 in place of {name}", 0.3 + cost, wanted
            elif name in WIDTHS and name != "d_model" and (rule := _rule(meant, d_model)):
                yield f"{words}{rule} in place of {name}", 0.3 + cost, wanted


def _rule(widths: list[Fraction], d_model: list[Fraction]) -> str:
    """Say how widths follow from d_model, as people make them; nothing where they do not."""
    both = [*zip(widths, d_model, strict=True)]
    for ratio in (RATIOS | RARE) - {1}:
        text = f"{ratio}·d_model"
        if all(width == ratio * d for width, d in both):
            return text
        for word, whole in (("floor", floor), ("ceil", ceil)):
            if all(width == whole(ratio * d) for width, d in both):
                return f"{word}({text})"
        for n in MULTIPLES:
            if all(width == n * ceil(ratio * d / n) for width, d in both):
                return f"{text} rounded up to a multiple of {n}"
            if all(width == n * ceil(Fraction(floor(ratio * d), n)) for width, d in both):
                return f"floor({text}) rounded up to a multiple of {n}"
    return ""


def _layers(truth: Truth, cases: list[Case]) -> Iterator[tuple[str, float, Values]]:
    """Yield what one layer more or less adds, of all and of the dense ones: a loop's usual slip."""
    for name, words in ONE_LAYER.items():
        for step, text in zip((1, -1), words, strict=True):
            other = truth.expr.xreplace({LETTERS[name]: LETTERS[name] + step})
            if other != truth.expr:
                adds = other - truth.expr
                yield text, 0.0, tuple(value_at(adds, numbers_of(*case)) for case in cases)
