"""Explains a difference: the smallest set of mistakes that together make it, to the last term."""

from __future__ import annotations

from contextlib import suppress
from fractions import Fraction
from math import ceil, floor
from typing import TYPE_CHECKING

import sympy

from metacount.algebra.exact import (
    Key,
    NotMonomials,
    Space,
    Table,
    is_zero,
    key_of,
    less,
    plain,
    plus,
    value_at,
)
from metacount.check.changes import (
    COPIES,
    FACTORS,
    GROUPS,
    RATIOS,
    WIDTHS,
    Changes,
    factor_words,
    factors,
)
from metacount.check.comparison import RUN, Truth, count_of
from metacount.check.judgement import Term
from metacount.check.mistakes import SCOPED, Edit, ModelTerms, Scope
from metacount.check.names import LETTERS, numbers_of
from metacount.check.parts import Letters, parts_of
from metacount.check.readings import Formula
from metacount.check.sizes import alike
from metacount.errors import SpecError
from metacount.frozen import frozen
from metacount.spec.field import altered
from metacount.textbook.closed_form import EXPLAINED, readable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from metacount.check.call import Answer
    from metacount.check.changes import Change
    from metacount.check.readings import Meanings, Reading
    from metacount.check.sizes import Case
    from metacount.spec import ModelSpec

LEFT_OUT = " left out"
OR = ", or "  # two mistakes that add the same: nobody can tell which was made
MOST_ALTERNATIVES = 3
MOST_STEPS = 4_000  # tables looked at
CLOSE = 0.05  # explanations as likely as each other
AGAINST = 1.5  # for two mistakes that undo each other in part
UNDOES = {Fraction(1, 2): COPIES[0], Fraction(2): COPIES[2]}  # of a part, what a factor did to it
SAME = 0.12  # mistakes that add the same, where one is little less likely
TWO = 1.7  # two mistakes in place of one change: with less between them, both are named


class Search:
    """The edits that may be combined, and the cheapest combination for a difference."""

    def __init__(self, edits: Iterable[Edit], room: Mapping[str, int]) -> None:
        self.room = room
        self.by_adds: dict[Key, Edit] = {}
        for edit in sorted(edits, key=lambda edit: edit.cost):
            key = key_of(edit.adds)
            first = self.by_adds.setdefault(key, edit)
            # beside what everybody gets wrong, an unlikelier mistake is not worth a word
            near = SAME if first.cost or edit.words.endswith(LEFT_OUT) else 0.0
            if first is not edit and edit.cost <= first.cost + near:
                self.by_adds[key] = _either(first, edit)
        self.by_key: dict[object, list[Edit]] = {}
        for edit in self.by_adds.values():
            for monomial in edit.adds:
                self.by_key.setdefault(monomial, []).append(edit)
        self.longest = max((len(edit.adds) for edit in self.by_adds.values()), default=0)

    def cheapest(
        self, difference: Table, below: float, most: int
    ) -> tuple[float, tuple[Edit, ...]] | None:
        """Find the cheapest set of edits that add up to `difference`, and what it costs,
        if it costs less than `below`.
        """
        self.best, self.steps = below, 0
        self.sets: list[tuple[float, tuple[Edit, ...]]] = []
        for n in range(1, most + 1):
            if n >= self.best:
                break
            self._add(difference, n, (), 0.0)
        return min(self.sets, key=lambda edits: edits[0], default=None)

    def _add(self, left: Table, n: int, edits: tuple[Edit, ...], cost: float) -> None:
        if n == 1:
            last = self.by_adds.get(key_of(left))
            near = [] if last is None else [last]
        elif len(left) > n * self.longest:
            return
        else:
            # the monomial that the fewest edits touch: one of them must be made
            near = min((self.by_key.get(monomial, []) for monomial in left), key=len, default=[])
        for edit in near:
            self.steps += n > 1
            dearest = self.best + CLOSE - (n - 1)
            after = cost + 1 + edit.cost
            if self.steps > MOST_STEPS or after > dearest or not fits((*edits, edit), self.room):
                continue
            rest = less(left, edit.adds)
            if n > 1 and (not rest or (n > 2 and len(rest) >= len(left))):
                continue
            after += AGAINST * any(against(edit, other) for other in edits)
            if after > dearest:
                continue
            if n > 1:
                self._add(rest, n - 1, (*edits, edit), after)
            else:
                self.best = min(self.best, after)
                self.sets.append((after, (*edits, edit)))


def against(a: Edit, b: Edit) -> bool:
    """Tell whether one edit takes away what the other adds:
    left out although it is plainly there.
    """
    undone = {key for key, value in a.adds.items() if b.adds.get(key, 0) * value < 0}
    return bool(undone) and undone in (a.adds.keys(), b.adds.keys())


def fits(edits: tuple[Edit, ...], room: Mapping[str, int]) -> bool:
    """Tell whether no part is changed more often than it is there."""
    left = dict(room)
    for edit in edits:
        for part, count in edit.uses:
            left[part] -= count
    return all(count >= 0 for count in left.values())


def _either(a: Edit, b: Edit) -> Edit:
    words = a.words.replace(":", "")
    if b.words.replace(":", "") in words or a.words.count(OR) + 1 >= MOST_ALTERNATIVES:
        return a
    return altered(a, words=a.words + OR + b.words)


def same(a: Table, b: Table) -> int:
    """Count the monomials that two tables have in common."""
    return sum(b.get(key) == value for key, value in a.items())


MOST_MONOMIALS = 40  # of a difference: with more, no list of mistakes is an explanation
MOST_SEARCHES = 40  # over readings and changes of everything, so that no formula takes long
MOST_EVERYWHERE, WIDTH = 3, 5  # changes of the whole count at once; of them, followed further
DEAREST = 6.2
MOST_MISTAKES = 5


@frozen
class Explanation:
    """Under one reading: mistakes in parts, then changes of everything."""

    reading: Reading
    everywhere: tuple[Change, ...]
    edits: tuple[Edit, ...]
    cost: float


class Explainer:
    """The cheapest explanation so far, over readings and changes of the whole count."""

    def __init__(self, model_terms: ModelTerms, changes: Changes) -> None:
        self.model_terms, self.changes, self.space = model_terms, changes, model_terms.space
        self.best: Explanation | None = None
        self.seen: set[tuple[Key, Key]] = set()
        self.searches = 0

    @property
    def dearest(self) -> float:
        return DEAREST if self.best is None else self.best.cost

    def look(self, reading: Reading) -> None:
        """Look for a cheaper explanation under this reading."""
        ours = reading.taken(self.model_terms.total)
        if ours is None or len(less(reading.theirs, ours)) > MOST_MONOMIALS:
            return
        key = key_of(reading.theirs), key_of(ours)
        late = self.searches > MOST_SEARCHES or reading.cost + 1 >= self.dearest
        if late or key in self.seen:
            return
        self.seen.add(key)
        level: list[tuple[tuple[Change, ...], Table, float]] = [((), ours, reading.cost)]
        tried: set[Key] = set()
        for depth in range(MOST_EVERYWHERE + 1):
            following: list[tuple[tuple[Change, ...], Table, float]] = []
            for everywhere, table, cost in level:
                nearer = not everywhere or same(reading.theirs, table)
                if nearer and cost + (not everywhere) < self.dearest:
                    self._search(reading, everywhere, table, cost)
                if depth < MOST_EVERYWHERE:
                    following += self._further(reading, everywhere, table, cost, tried)
            following.sort(key=lambda state: (len(less(reading.theirs, state[1])), state[2]))
            level = following[: WIDTH - depth]

    def _further(
        self,
        reading: Reading,
        everywhere: tuple[Change, ...],
        table: Table,
        cost: float,
        tried: set[Key],
    ) -> Iterator[tuple[tuple[Change, ...], Table, float]]:
        difference, theirs = less(reading.theirs, table), reading.theirs
        differing, alike = len(difference), same(theirs, table)
        # of sizes of the run that are not among the letters of theirs, numbers may stand for two
        run = {
            i
            for i, letter in enumerate(self.space.letters)
            if letter in RUN and all(key[i] for key in table) and not any(k[i] for k in theirs)
        }
        numbers = self.changes.numbers(reading.numbers) if run else ()
        for change in (
            *self.changes.between(table, difference, reading.numbers),
            *factors(self.space, theirs, table, self.model_terms.quantity),
            *(change for change in numbers if change.place in run),
        ):
            after = cost + 1 + change.cost
            if change.words in COPIES or after >= self.dearest or change in everywhere:
                continue
            changed = change.of(table)
            if changed is None:
                continue
            nearer = len(less(theirs, changed)) < differing and same(theirs, changed) > alike
            if (nearer or change.place in run) and (key := key_of(changed)) not in tried:
                tried.add(key)
                yield (*everywhere, change), changed, after

    def _search(
        self, reading: Reading, everywhere: tuple[Change, ...], table: Table, cost: float
    ) -> None:
        difference, edits = less(reading.theirs, table), tuple[Edit, ...]()
        self.searches += 1
        if self.searches > MOST_SEARCHES:
            return
        if difference:
            search = Search(self._edits(reading, everywhere, difference), self.model_terms.room)
            most = MOST_MISTAKES - len(everywhere)
            cheapest = search.cheapest(difference, self.dearest - cost, most)
            if cheapest is None:
                return
            cost, edits = cost + cheapest[0], cheapest[1]
        if cost < self.dearest:
            self.best = Explanation(reading=reading, everywhere=everywhere, edits=edits, cost=cost)

    def _edits(
        self, reading: Reading, everywhere: tuple[Change, ...], difference: Table
    ) -> Iterator[Edit]:
        """Yield the mistakes that matter to a difference, as what was changed everywhere left them.

        Of parts, they are the known ones, and changes of sizes.
        """

        def changed(table: Table | None) -> Table | None:
            for change in everywhere:
                table = None if table is None else change.of(table)
            return table

        scales = [change.by.get(self.space.one) for change in everywhere if change.of_all]
        undone = [UNDOES[factor] for factor in scales if factor in UNDOES]
        for edit in self.model_terms.known:
            true = reading.taken(edit.adds)
            if true and (adds := changed(true)):
                cost = edit.cost + AGAINST * any(edit.words.endswith(words) for words in undone)
                yield altered(edit, adds=adds, true=true, cost=cost)
                if not scales and adds != true and min(true.values()) > 0:
                    # what is counted too much may have been written as it is
                    yield altered(edit, adds=true, true=true, cost=cost + SCOPED, late=True)
        places = {change.place for change in everywhere if change.place is not None}
        for scope in self.model_terms.scopes:
            before = reading.taken(scope.table)
            tables = [(before, changed(before))]
            if before != scope.table and not everywhere:  # of sizes that are equal here
                tables.append((scope.table, scope.table))
            for was, now in tables:
                if was is None or now is None:
                    continue
                for change in self.changes.between(now, difference, reading.numbers):
                    if change.place in places or (len(scope.uses) == 1 and change.words in COPIES):
                        continue  # what was changed everywhere is not changed back
                    after = change.of(now)
                    adds = None if after is None else reading.taken(less(after, now))
                    if not adds or all(difference.get(k) != n for k, n in adds.items()):
                        continue
                    after_true = after if was is now else change.of(was)
                    if after_true is None:
                        continue
                    if true := reading.taken(less(after_true, was)):
                        yield Edit(
                            words=f"{scope.name}: {change.words}",
                            adds=adds,
                            true=true,
                            cost=change.cost + SCOPED + scope.more(change.words),
                            uses=scope.uses,
                            change=True,
                        )

    def instead(self, reading: Reading, change: Change | Edit, table: Table) -> str:
        """Name two mistakes that add what one change adds, where they are little less likely."""
        words = change.words.rpartition(": ")[2]  # of two halves it is no other mistake
        edits = [edit for edit in self._edits(reading, (), table) if words not in edit.words]
        index = Search(edits, self.model_terms.room).by_adds
        best, text = change.cost + TWO, ""
        for key, edit in index.items():
            other = index.get(key_of(less(table, edit.adds)))
            if other is None or other is edit or key == key_of(table):
                continue
            cost = 1 + edit.cost + other.cost
            cost += AGAINST * (not reading.relations and against(edit, other))
            if cost < best and fits((edit, other), self.model_terms.room):
                best = cost
                both = (f"({e.words})" if OR in e.words else e.words for e in (edit, other))
                text = OR + " and ".join(both)
        return text


UNKNOWN = "not accounted for: no part of the model explains this"
UNTOLD = "not accounted for: no mistakes are known by name of this quantity"


def explain(
    theirs: sympy.Expr,
    difference: sympy.Expr,
    truth: Truth,
    numbers: Mapping[sympy.Expr, int],
    text: str | None = None,
    meanings: Meanings | None = None,
) -> tuple[Term, ...]:
    """Explain `difference`, theirs less ours, as terms that sum to it, the largest first.

    A step in which each product of the forward has two in the backward is explained by a third of
    it, as a forward is.
    """
    if truth.quantity == "train_matmul_flops":
        forward = Truth(truth.spec, truth.workload, "matmul_flops")
        if is_zero(plain(truth.expr - 3 * forward.expr)):
            return tuple(
                altered(term, expr=term.expr and readable(3 * term.expr), value=3 * term.value)
                for term in explain(plain(theirs / 3), plain(difference / 3), forward, numbers)
            )
    parts: list[tuple[sympy.Expr, str]] = []
    words, left = "", difference
    if truth.quantity in EXPLAINED:
        with suppress(NotMonomials):
            parts, words = _parts(theirs, truth, numbers, text, meanings)
    terms = []
    for expr, what in parts:
        left = left - expr
        terms.append(Term(expr=truth.shown(expr), value=value_at(expr, numbers), words=what))
    terms.sort(key=lambda term: -abs(term.value))
    if (left := plain(left)) != 0:
        value, unknown = value_at(left, numbers), UNKNOWN
        if truth.quantity not in EXPLAINED:
            unknown = UNTOLD
        elif value == 0:
            unknown = f"nothing at these sizes, as {words}"
        shown = truth.shown(left)
        terms.append(Term(expr=shown, value=value, words=unknown, known=value == 0))
    return tuple(terms)


def _parts(
    theirs: sympy.Expr,
    truth: Truth,
    numbers: Mapping[sympy.Expr, int],
    text: str | None,
    meanings: Meanings | None,
) -> tuple[list[tuple[sympy.Expr, str]], str]:
    """Return what each mistake adds, in words, and what was taken as equal."""
    formula = Formula(theirs, numbers, text, meanings)
    marks = [formula.expr, *formula.values]
    model_terms = _terms_of_model(truth, [plain(formula.expr), plain(truth.expr), *marks, *numbers])
    space = model_terms.space
    sizes = {**numbers, **formula.values}
    as_numbers = plain(formula.expr.xreplace(formula.values))
    sums = formula.expr.atoms(sympy.Add)
    changes = Changes(space, sizes, space.table(as_numbers), model_terms.total, sums)
    explainer = Explainer(model_terms, changes)
    for reading in formula.readings(model_terms.total, space):
        explainer.look(reading)
    best = explainer.best
    if best is None:
        return [], ""
    now, parts = best.reading.taken(space.table(plain(truth.expr))) or {}, []
    steps: list[Edit | Change] = [edit for edit in best.edits if not edit.late]
    steps += [*best.everywhere, *(edit for edit in best.edits if edit.late)]
    for step in steps:
        if isinstance(step, Edit):
            table, plainly = step.true or step.adds, not step.change
        else:
            after = step.of(now) or {}
            table, plainly = less(after, now), step.of_all or not step.cost
        now = plus(now, table)
        other = "" if plainly else explainer.instead(best.reading, step, table)
        parts.append((space.expr(table), step.words + other))
    words = ", ".join(best.reading.words)
    return (parts, words) if now == best.reading.theirs else ([], words)


def _terms_of_model(truth: Truth, exprs: Iterable[sympy.Expr]) -> ModelTerms:
    """Return the known mistakes of a count, in a space that has the letters of `exprs` too."""
    letters = Letters(truth.spec, truth.workload)
    parts = parts_of(letters, truth.quantity)
    counted = [part.expr for part in parts]
    counted += [expr for part in parts for _, expr in part.variants]
    return ModelTerms(letters, truth.quantity, parts, Space([*map(plain, counted), *exprs]))


FEWEST, MOST = 8, 16  # sizes at which a mistake must fit before it is named; that are looked at
MULTIPLES = [2**n for n in range(3, 13)]  # that widths are rounded up to

Values = tuple[Fraction, ...]


def explain_numbers(case: Case, answer: Answer, truth: Truth) -> tuple[Term, ...]:
    """Explain the difference as mistakes that fit at all sizes tried; else as one unknown term.

    Two mistakes are named where nothing else fits; an accident would have to hold at every size.
    """
    words = UNKNOWN if truth.quantity in EXPLAINED else UNTOLD
    equal = [other for other in answer.cases if _alike(case[0], other[0][0])]
    for others in (answer.cases, equal) if truth.quantity in EXPLAINED else ():
        tried = [(case, answer.value), *others[:MOST]]
        if len(tried) > FEWEST and (terms := _terms_at(tried, truth)):
            return terms
    return (Term(expr=None, value=answer.value - truth.value, words=words, known=False),)


def _alike(spec: ModelSpec, other: ModelSpec) -> bool:
    try:
        return alike(spec, other) == other
    except SpecError:
        return False


def _terms_at(tried: list[tuple[Case, Fraction]], truth: Truth) -> tuple[Term, ...]:
    """Explain the difference at all of these sizes; nothing where no mistake is known for it."""
    ours = [count_of(*case, truth.quantity) for case, _ in tried]
    wanted = tuple(value - n for (_, value), n in zip(tried, ours, strict=True))
    ratios = {value / n for (_, value), n in zip(tried, ours, strict=True)} if all(ours) else set()
    factor = ratios.pop() if len(ratios) == 1 else None
    if factor in FACTORS:
        words = factor_words(factor, [], truth.quantity)
        return (Term(expr=None, value=wanted[0], words=words),)
    numbers = numbers_of(*tried[0][0])
    model_terms = _terms_of_model(truth, numbers)
    space = model_terms.space
    at = [space.values(numbers_of(*case)) for case, _ in tried]
    changes = Changes(space, numbers, {}, model_terms.total)
    usual = [c for c in changes.usual if all(abs(n) == 1 for n in c.by.values())]
    edits = [*model_terms.known]
    for scope in (Scope(name="", table=model_terms.total, uses=()), *model_terms.scopes):
        for change in (*usual, *changes.numbers(())):
            if scope.name and change.cost > GROUPS:
                continue
            after = change.of(scope.table)
            if after in (None, scope.table):
                continue
            words = f"{scope.name}: {change.words}".removeprefix(": ")
            cost = change.cost + (SCOPED + scope.more(change.words)) * bool(scope.name)
            edits.append(Edit(words=words, adds=less(after or {}, scope.table), cost=cost))
    costs: dict[Values, tuple[float, str]] = {}
    values = [
        (edit.cost, edit.words, tuple(space.value(edit.adds, sizes) for sizes in at))
        for edit in edits
    ]
    values += [(cost, words, wanted) for cost, words in _sizes(model_terms, wanted, at)]
    for cost, words, adds in sorted(values, key=lambda value: value[0]):
        least, first = costs.setdefault(adds, (cost, words))
        if words != first and cost <= least and OR not in first:
            costs[adds] = least, first + OR + words
    terms = [
        Term(
            expr=None,
            value=adds[0],
            words="nothing at these sizes: " * (not adds[0]) + costs[adds][1],
        )
        for adds in _fitting(wanted, {adds: cost for adds, (cost, _) in costs.items()})
    ]
    if not terms and factor is not None:
        terms = [Term(expr=None, value=wanted[0], words=factor_words(factor, [], truth.quantity))]
    return tuple(sorted(terms, key=lambda term: -abs(term.value)))


def _fitting(wanted: Values, costs: Mapping[Values, float]) -> tuple[Values, ...]:
    """Find one mistake, or the only likeliest two, that make the difference at every size."""
    if wanted in costs:
        return (wanted,)
    pairs = {}
    for adds in costs:
        rest = tuple(map(Fraction.__sub__, wanted, adds))
        if rest in costs and rest != adds and any(rest) and any(adds):
            pairs[frozenset((adds, rest))] = costs[adds] + costs[rest]
    least = min(pairs.values(), default=0.0)
    best = [pair for pair, cost in pairs.items() if cost == least]
    return tuple(best[0]) if len(best) == 1 else ()


def _sizes(
    model_terms: ModelTerms, wanted: Values, at: list[list[Fraction]]
) -> Iterator[tuple[float, str]]:
    """Yield what would make the difference at every size, in one size's place.

    That is a number, or a multiple of the residual width.
    """
    space = model_terms.space
    d_model = [values[space.place[LETTERS["d_model"]]] for values in at]
    scopes = [("", model_terms.total, 0.0)]
    scopes += [(f"{s.name}: ", s.table, SCOPED + s.cost) for s in model_terms.scopes]
    for name, letter in LETTERS.items():
        i = space.place.get(letter, -1)
        for words, table, cost in scopes if i >= 0 else ():
            linear = {key: value for key, value in table.items() if key[i]}
            rest: Table = {(*key[:i], 0, *key[i + 1 :]): value for key, value in linear.items()}
            below = [space.value(rest, values) for values in at]
            if not all(below) or any(key[i] != 1 for key in linear):
                continue
            meant = [values[i] + n / b for values, n, b in zip(at, wanted, below, strict=True)]
            number, size = meant[0], at[0][i]
            if {*meant} == {number} and number.denominator == 1 and number > 1:
                yield 0.3 + cost, f"{words}{number} stands where {name} = {size} belongs"
            elif name in WIDTHS and name != "d_model" and (rule := _rule(meant, d_model)):
                yield 0.3 + cost, f"{words}{rule} in place of {name}"


def _rule(widths: list[Fraction], d_model: list[Fraction]) -> str:
    """Say how widths follow from d_model, as people make them; nothing where they do not."""
    for ratio in RATIOS:
        exact = [ratio * d for d in d_model]
        rules = {
            f"{ratio}·d_model": exact,
            f"floor({ratio}·d_model)": [*map(floor, exact)],
            f"ceil({ratio}·d_model)": [*map(ceil, exact)],
        }
        for n in MULTIPLES:
            multiple = f"rounded up to a multiple of {n}"
            rules[f"{ratio}·d_model {multiple}"] = [n * ceil(size / n) for size in exact]
            rules[f"floor({ratio}·d_model) {multiple}"] = [
                n * ceil(Fraction(floor(size), n)) for size in exact
            ]
        for rule, sizes in rules.items():
            if widths == sizes:
                return rule
    return ""
