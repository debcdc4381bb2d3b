"""A difference as mistakes that together make it, exactly; what is left is said to be left."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from metacount.frozen import frozen
from metacount.judge.condition import named
from metacount.judge.exact import plain, value_at
from metacount.judge.judgement import Term
from metacount.judge.mistakes import KNOWN, SOME, Mistake, factor_words, mistakes, parts_of
from metacount.judge.monomials import NotMonomials, Space, Table, key_of, less, times, within
from metacount.judge.parts import Letters
from metacount.judge.truth import Truth, count_of
from metacount.judge.vocabulary import BYTES_LETTER, LETTERS, numbers_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from metacount.judge.call import Answer
    from metacount.judge.monomials import Key, Monomial
    from metacount.judge.trials import Case

UNKNOWN = "no part of the model accounts for this"
OR = ", or "  # two mistakes that add the same: nobody can tell which was made
MOST_STEPS = 12  # mistakes of one formula
MOST_AT_ONCE = 3  # mistakes that are looked for together
MOST_PAIRS = 40_000
MOST_CASES = 12  # sizes at which a mistake must fit
NUMBERS = [Fraction(n) for n in ("2", "1/2", "3", "3/2", "4", "6", "1/3", "1/4", "1/6")]
UNITS = ("batch_size", "seq_len", "kv_len", "n_layers")


@frozen
class Story:
    """Mistakes that together make a difference, and what they leave of it."""

    told: tuple[Mistake, ...]
    rest: Table

    @property
    def cost(self) -> tuple[int, int, int]:
        """Small is better: nothing left, few mistakes, likely ones."""
        return len(self.rest), len(self.told), sum(mistake.rank for mistake in self.told)


def explain(
    theirs: Any, difference: Any, truth: Truth, numbers: Mapping[Any, int]
) -> tuple[Term, ...]:
    """`difference`, theirs less ours, as terms that sum to it, the largest first."""
    letters = Letters(truth.spec, truth.workload)
    parts = parts_of(letters, truth.quantity)
    ours = plain(truth.expr)
    theirs = plain(theirs)
    exprs = [theirs, ours, *(part.expr for part in parts)]
    exprs += [expr for part in parts for _, expr in part.variants]
    space = Space([*map(plain, exprs), *numbers])
    try:
        table, truths = space.table(theirs), space.table(ours)
    except NotMonomials:
        return _terms(Story(told=(), rest={}), difference, truth, space, numbers)
    known = mistakes(letters, truth.quantity, parts, space)
    direct = _story(less(table, truths), known)
    factor = _factor(table, truths, space)
    if factor is not None and direct.cost[:2] > (0, 1):
        number, powers = factor
        undone = times(table, 1 / number, tuple(-n for n in powers))
        story = _story(less(undone, truths), known)
        if (story.cost[0], story.cost[1] + 1) < direct.cost[:2]:
            letters_of = [(a, n) for a, n in zip(space.letters, powers, strict=True) if n]
            words = factor_words(number, letters_of, truth.quantity)
            whole = Mistake(words=words, adds=less(table, undone), rank=0)
            direct = Story(told=(whole, *story.told), rest=story.rest)
    if direct.rest:
        related = _related(table, truths, known, space, numbers)
        if related is not None and related[0].cost[0] < direct.cost[0]:
            return _terms(related[0], difference, truth, space, numbers, related[1])
    return _terms(direct, difference, truth, space, numbers)


def _terms(
    story: Story,
    difference: Any,
    truth: Truth,
    space: Space,
    numbers: Mapping[Any, int],
    relation: str | None = None,
) -> tuple[Term, ...]:
    terms = []
    left = difference
    for mistake in story.told:
        expr = space.expr(mistake.adds if mistake.raw is None else mistake.raw)
        left = left - expr
        terms.append(
            Term(expr=truth.shown(expr), value=value_at(expr, numbers), words=mistake.words)
        )
    terms.sort(key=lambda term: -abs(term.value))
    left = plain(left)
    if left == 0:
        return tuple(terms)
    value, shown = value_at(left, numbers), truth.shown(left)
    if relation is not None and value == 0:
        words = f"nothing at these sizes, as {relation}"
        return (*terms, Term(expr=shown, value=value, words=words))
    return (*terms, Term(expr=shown, value=value, words=UNKNOWN, known=False))


def _story(target: Table, known: list[Mistake]) -> Story:
    """The fewest mistakes that add up to `target`, or as many as take something off it whole."""
    told: list[Mistake] = []
    rest = target
    for _ in range(MOST_STEPS):
        if not rest:
            break
        near = [m for m in known if not rest.keys().isdisjoint(m.adds)]
        exact = _exactly(rest, near)
        if exact:
            told, rest = [*told, *exact], {}
            break
        step = _best_step(rest, near)
        if step is None:
            break
        told.append(step)
        rest = less(rest, step.adds)
    return Story(told=tuple(told), rest=rest)


def _exactly(target: Table, near: list[Mistake]) -> tuple[Mistake, ...]:
    """One, two or three mistakes that make `target` exactly, the likeliest."""
    index: dict[Key, Mistake] = {}
    for mistake in near:
        key = key_of(mistake.adds)
        first = index.setdefault(key, mistake)
        if first is not mistake and first.rank > KNOWN and mistake.rank <= SOME:
            words = first.words if OR in first.words else first.words + OR + mistake.words
            index[key] = Mistake(words=words, adds=first.adds, rank=first.rank, raw=first.raw)
    one = index.get(key_of(target))
    if one is not None:
        return (one,)
    distinct = list(index.values())
    longest = max((len(mistake.adds) for mistake in distinct), default=0)
    if len(target) > MOST_AT_ONCE * longest:
        return ()  # too much for three
    pairs = [(a, index[rest]) for a in distinct
             if (rest := key_of(less(target, a.adds))) in index]  # fmt: skip
    if pairs:
        return min(pairs, key=lambda pair: (pair[0].rank + pair[1].rank, max(p.rank for p in pair)))
    likely = [mistake for mistake in distinct if mistake.rank <= SOME]
    triples = []
    looked = 0
    for i, a in enumerate(likely):
        after = less(target, a.adds)
        if len(after) > 2 * longest:
            continue
        for b in likely[i + 1 :]:
            if len(after) - len(b.adds) > longest:
                continue
            looked += 1
            if looked > MOST_PAIRS:
                break
            third = index.get(key_of(less(after, b.adds)))
            if third is not None:
                triples.append((a, b, third))
    return min(triples, key=lambda found: sum(m.rank for m in found)) if triples else ()


def _best_step(target: Table, near: list[Mistake]) -> Mistake | None:
    """The likely mistake within `target` that takes most of its monomials off."""
    best, most = None, (0, 0, 0)
    for mistake in near:
        if mistake.rank > SOME or not within(mistake.adds, target):
            continue
        gone = sum(target[key] == value for key, value in mistake.adds.items())
        score = (gone, -mistake.rank, len(mistake.adds))
        if gone and score > most:
            best, most = mistake, score
    return best


def _factor(theirs: Table, ours: Table, space: Space) -> tuple[Fraction, Monomial] | None:
    """A number and a monomial that theirs has more than ours, where most of its terms say so."""
    units = {space.place[LETTERS[name]] for name in UNITS if LETTERS[name] in space.place}
    units |= {space.place[BYTES_LETTER]} if BYTES_LETTER in space.place else set()
    votes: Counter[tuple[Fraction, Monomial]] = Counter()
    one = (Fraction(1), (0,) * len(space.letters))
    for mine, value in ours.items():
        for other, theirs_value in theirs.items():
            powers = tuple(a - b for a, b in zip(other, mine, strict=True))
            ratio = theirs_value / value
            in_units = all(not n or i in units for i, n in enumerate(powers))
            if in_units and (ratio == 1 or ratio in NUMBERS):
                votes[ratio, powers] += 1
    if not votes:
        return None
    best = max(votes, key=lambda found: (votes[found], -sum(map(abs, found[1])), found[0]))
    return best if best != one and votes[best] > votes[one] else None


def _related(
    theirs: Table,
    ours: Table,
    known: list[Mistake],
    space: Space,
    numbers: Mapping[Any, int],
) -> tuple[Story, str] | None:
    """The story told with sizes that are equal at the model taken as equal."""
    found: list[tuple[str, Any, Monomial, Fraction]] = []
    d, heads, width, kv, ff = (
        LETTERS[name] for name in ("d_model", "n_heads", "head_dim", "n_kv_heads", "d_ff")
    )
    for letter in (LETTERS["batch_size"], BYTES_LETTER):
        # a formula without this letter may mean it as it is here
        powers = space.monomial({})
        missing = not any(key[space.place[letter]] for key in theirs)
        if powers is not None and missing and any(key[space.place[letter]] for key in ours):
            n = numbers[letter]
            found.append((f"{named(letter)} = {n}", letter, powers, Fraction(n)))
    if width in numbers and numbers[heads] * numbers[width] == numbers[d]:
        powers = space.monomial({d: 1, heads: -1})
        if powers is not None:
            found.append((f"{named(heads * width)} = {named(d)}", width, powers, Fraction(1)))
    if kv in numbers and numbers[heads] == numbers[kv]:
        powers = space.monomial({heads: 1})
        if powers is not None:
            found.append((f"{named(kv)} = {named(heads)}", kv, powers, Fraction(1)))
    if ff in numbers and numbers[ff] % numbers[d] == 0:
        powers, n = space.monomial({d: 1}), numbers[ff] // numbers[d]
        if powers is not None:
            found.append((f"{named(ff)} = {named(n * d)}", ff, powers, Fraction(n)))
    best: tuple[Story, str] | None = None
    for n in range(1, len(found) + 1):
        relations = found[:n]
        again = []
        for mistake in known:
            adds = _taken(mistake.adds, relations, space)
            if adds:
                again.append(Mistake(words=mistake.words, adds=adds, rank=mistake.rank,
                                     raw=mistake.adds))  # fmt: skip
        told = _story(_taken(less(theirs, ours), relations, space), again)
        words = ", ".join(words for words, _, _, _ in relations)
        if best is None or told.cost < best[0].cost:
            best = told, words
    return best


def _taken(
    table: Table, relations: list[tuple[str, Any, Monomial, Fraction]], space: Space
) -> Table:
    for _, letter, powers, factor in relations:
        i = space.place[letter]
        scaled = {key: value * factor ** key[i] for key, value in table.items()}
        table = space.swapped(scaled, letter, powers)
    return table


def explain_numbers(case: Case, answer: Answer, truth: Truth) -> tuple[Term, ...]:
    """The same for a function that takes numbers only: mistakes that fit at all sizes tried."""
    letters = Letters(truth.spec, truth.workload)
    parts = parts_of(letters, truth.quantity)
    exprs = [part.expr for part in parts] + [e for part in parts for _, e in part.variants]
    numbers = numbers_of(*case)
    space = Space([*map(plain, exprs), *numbers])
    tried = [(case, answer.value), *answer.cases[:MOST_CASES]]
    wanted: Table = {(i,): Fraction(value - count_of(*other, truth.quantity))
              for i, (other, value) in enumerate(tried)}  # fmt: skip
    target = {key: value for key, value in wanted.items() if value}
    difference = answer.value - truth.value
    unknown = Term(expr=None, value=difference, words=UNKNOWN, known=False)
    ratios = {value / count_of(*other, truth.quantity) for other, value in tried}
    if len(ratios) == 1:
        words = factor_words(ratios.pop(), [], truth.quantity)
        return (Term(expr=None, value=difference, words=words),)
    at = [numbers_of(*other) for other, _ in tried]
    known = []
    for mistake in mistakes(letters, truth.quantity, parts, space):
        adds: Table = {
            (i,): value for i, n in enumerate(at) if (value := space.value(mistake.adds, n))
        }
        known.append(Mistake(words=mistake.words, adds=adds, rank=mistake.rank))
    told = _exactly(target, [mistake for mistake in known if mistake.adds])
    if len(tried) < 3 or not told:
        return (unknown,)
    here = [(mistake.adds.get((0,), Fraction(0)), mistake.words) for mistake in told]
    return tuple(Term(expr=None, value=value, words=words)
                 for value, words in sorted(here, key=lambda one: -abs(one[0])))  # fmt: skip
