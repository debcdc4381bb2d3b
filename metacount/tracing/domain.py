"""The sizes for which a traced form holds: what the code asked and what not all sizes fulfil."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

import sympy
from sympy.polys.rings import PolyElement, PolyRing

from metacount.frozen import frozen
from metacount.tracing.symbols import (
    SMALLEST,
    NotTraced,
    Sizes,
    always,
    divides,
    in_one_chunk,
    known_counts,
    unread,
)

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable


# Letters that are most often small go down first: of B·S ≥ 2 one may be 1, not both.
FIRST = (
    "B",
    "top_k",
    "num_experts_per_tok",
    "n_shared_experts",
    "n_kv_heads",
    "num_key_value_heads",
)

COUNT = "count"  # of chunks: 1 or more wherever there are tokens


def smallest(
    relations: Iterable[sympy.Rel], quotients: dict[sympy.Expr, sympy.Expr]
) -> dict[sympy.Symbol, int]:
    """Find the least number of each letter for which `relations`,
    true from `SMALLEST` on, stay true.

    `quotients` has x -> y·q where y divides x; q is a letter, too. A letter without a relation is
    left out: nothing was asked of it.

    >>> B, S = sympy.symbols("B S", integer=True, positive=True)
    >>> smallest([sympy.Ne(B, 1, evaluate=False), sympy.Gt(B * S, 3)], {})
    {B: 2, S: 2}
    """
    pairs = tuple(quotients.items())
    asked = [a for relation in dict.fromkeys(relations) if (a := _asked(relation, pairs)).letters]
    letters = {s for relation in asked for s in relation.letters}
    ordered = sorted(letters, key=lambda s: (s.name not in FIRST, str(s)))
    least = {letter: 1 if letter.name == COUNT else SMALLEST for letter in ordered}
    hard = [relation for relation in asked if not relation.holds(dict.fromkeys(letters, 1))]
    for letter in ordered:
        about = [relation for relation in hard if letter in relation.letters]
        for number in range(1, least[letter]):
            if all(relation.holds({**least, letter: number}) for relation in about):
                least[letter] = number
                break
    return least


@lru_cache(maxsize=4096)
def _asked(relation: sympy.Rel, pairs: tuple[tuple[sympy.Expr, sympy.Expr], ...]) -> _Asked:
    return _Asked.of(relation, dict(pairs))


class _Asked:
    """One relation: expressions of which one must be positive where it is to hold."""

    def __init__(self, positive: list[sympy.Expr]) -> None:
        self._known: dict[tuple[int, ...], bool] = {}
        self.letters = sorted(set().union(*(e.free_symbols for e in positive)), key=str)
        self._positive = [for_arithmetic(expr, self.letters) for expr in positive]

    @classmethod
    def of(cls, relation: sympy.Rel, quotients: dict[sympy.Expr, sympy.Expr]) -> _Asked:
        """Read a relation between whole numbers, all of them at least 1."""
        if isinstance(relation, sympy.Eq):
            return cls([])  # of expressions that are the same
        counts = {
            n: sympy.Dummy(COUNT, integer=True, positive=True)
            for n in relation.atoms(sympy.ceiling)
        }
        difference = sympy.together((relation.lhs - relation.rhs).xreplace(counts).subs(quotients))
        above, below = difference.as_numer_denom()
        more = sympy.expand(above * below)
        if isinstance(relation, sympy.Ge):
            return cls([more + 1])
        if isinstance(relation, sympy.Le):
            return cls([1 - more])
        if isinstance(relation, sympy.Ne):
            return cls([more, -more])
        return cls([more if isinstance(relation, sympy.Gt) else -more])

    def holds(self, least: dict[sympy.Symbol, int]) -> bool:
        """Tell whether the relation can be shown wherever no letter is below its least number: by
        the signs of coefficients in what a letter has above that.
        """
        key = tuple(least[s] for s in self.letters)
        if key not in self._known:
            at = {s: least[s] for s in self.letters}
            self._known[key] = any(sign_above(expr, at) == 2 for expr in self._positive)
        return self._known[key]


def for_arithmetic(expr: sympy.Expr, letters: list[sympy.Symbol]) -> PolyElement | sympy.Expr:
    """Convert a polynomial to a form that expands faster; leave other expressions."""
    try:
        return PolyRing(letters, sympy.QQ).from_expr(expr) if letters else expr
    except ValueError:
        return expr


def sign_above(expr: PolyElement | sympy.Expr, least: dict[sympy.Symbol, int]) -> int:
    """Return 2 if positive wherever no letter is below its least number,
    1 if not negative, 0 if not shown.

    By the signs of coefficients in what a letter has above that.
    """
    if isinstance(expr, PolyElement):
        above = expr.compose(
            [(s, s + n) for s, n in zip(expr.ring.gens, least.values(), strict=True)]
        )
        constant = above.const()
    else:  # floor(1/(s + 2)) is 0
        try:
            above = sympy.Poly(expr.xreplace({s: s + n for s, n in least.items()}), *least)
        except sympy.PolynomialError:
            return 0
        constant = above.TC()
    if any(c < 0 for c in above.coeffs()):
        return 0
    return 2 if constant > 0 else 1


def in_domain(
    asked: tuple[sympy.Basic, ...], numbers: dict[sympy.Symbol, int], own: dict[sympy.Symbol, int]
) -> bool:
    """Tell whether numbers for letters fulfil conditions;
    `own` are those that the form was read at.

    What was not read in SymPy's words is taken to hold for the very same numbers alone.
    """
    for condition in asked:
        letters = condition.free_symbols
        if isinstance(condition, unread):
            if any(numbers[s] != own[s] for s in letters if s in own):
                return False
            continue
        at = {s: sympy.Integer(numbers[s]) for s in letters}
        if isinstance(condition, divides):
            below, above = (arg.xreplace(at).doit() for arg in condition.args)
            if not (above / below).is_integer:
                return False
            continue
        left, right = (side.xreplace(at).doit() for side in (condition.lhs, condition.rhs))
        if not condition.func(left, right):
            return False
    return True


def in_words(condition: sympy.Basic, write: Callable[[sympy.Expr], str]) -> str:
    """Write one condition as a person says it; `write` prints an expression."""
    if isinstance(condition, divides):
        below, above = condition.args
        if below == 2 and above.is_Symbol:
            return f"{write(above)} is even"
        return f"{write(below)} divides {write(above)}"
    if isinstance(condition, unread):
        return str(condition.args[0])
    signs = {"==": "=", "!=": "≠", ">=": "≥", "<=": "≤", ">": ">", "<": "<"}
    return f"{write(condition.lhs)} {signs[condition.rel_op]} {write(condition.rhs)}"


LARGEST = 2**60
TURNED = {sympy.Ge: sympy.Le, sympy.Gt: sympy.Lt, sympy.Le: sympy.Ge, sympy.Lt: sympy.Gt}


@frozen
class Asked:
    """What code asked of its sizes: `conditions` that not all sizes from 3 fulfil, and for the
    others how small sizes may be (`least`, 1 where nothing was asked); `ratios` is that of how
    many times one size is another."""

    conditions: tuple[sympy.Basic, ...]
    least: dict[sympy.Symbol, int]
    ratios: tuple[sympy.Basic, ...]


def asked_of(sizes: Sizes) -> Asked:
    """Collect relations between sizes, in SymPy,
    each true at the hints and not true of all sizes from 3.

    Left out is that sizes differ which need not: torch asks that of many pairs, for their strides.
    A quotient of sizes means that the division is exact, which is then a condition of its own.
    """
    asked, not_read = _read(sizes)
    # what an attempt that was given up asked is not true at the hints of the one that stands
    # what was asked before a size became a number is asked of the number
    known = {letter: sympy.Integer(n) for letter, n in sizes.constants.items()}
    asked = dict.fromkeys(c.xreplace(known) for c in asked)
    now = dict.fromkeys(c.xreplace(known) for c in sizes.conditions)
    exact = [
        c for c in now if isinstance(c, divides) and sizes.value(c.args[1] / c.args[0]).is_integer
    ]
    others = [c for c in now if isinstance(c, sympy.Rel)]
    quotients = _quotients(exact)
    relations: dict[sympy.Basic, None] = dict.fromkeys(_minimal(exact))
    for letter, number in sizes.constants.items():
        relations[sympy.Eq(letter, number, evaluate=False)] = None
    for relation in sizes.equalities:
        if sizes.holds(relation) and relation.lhs != relation.rhs:
            relations[relation] = None
    single = (r for condition in asked for r in _single(condition, sizes, quotients))
    from_three = _kept(dict.fromkeys((*others, *single)), sizes, quotients, relations)
    counts = known_counts(relations)
    if counts:
        relations_at = [r if isinstance(r, sympy.Eq) else r.xreplace(counts) for r in relations]
        relations = dict.fromkeys(_minimal([r for r in relations_at if isinstance(r, divides)]))
        relations |= dict.fromkeys(
            r for r in relations_at if isinstance(r, sympy.Rel) and not _always(r, quotients)
        )
    # a size that is another one is not twice it
    equal = {frozenset(r.args) for r in relations if isinstance(r, sympy.Eq)}
    quotients = {x: y for x, y in quotients.items() if {x, y / _times(y)} not in equal}
    least = smallest(from_three, quotients)
    return Asked(
        conditions=(*_without_ends(list(_strongest(list(relations)))), *not_read),
        least={letter: n for letter, n in least.items() if not isinstance(letter, sympy.Dummy)},
        ratios=tuple(
            sympy.Ge(x, y, evaluate=False)
            for x, q in quotients.items()
            if (n := least.get(_times(q), 1)) > 1 and (y := n * q / _times(q))
        ),
    )


def _read(sizes: Sizes) -> tuple[dict[sympy.Basic, None], dict[sympy.Basic, None]]:
    """Read what torch guards, in letters; and what of it cannot be read so."""
    asked: dict[sympy.Basic, None] = {}
    not_read: dict[sympy.Basic, None] = {}
    for guard in sizes.env.guards:
        try:
            asked[sizes.plain(sizes.env.replace(guard.expr))] = None
        except NotTraced:
            not_read[sizes.unread(guard.expr)] = None
    return asked, not_read


def _kept(
    relations: Iterable[sympy.Rel],
    sizes: Sizes,
    quotients: dict[sympy.Expr, sympy.Expr],
    kept: dict[sympy.Basic, None],
) -> list[sympy.Basic]:
    """Add to `kept` what not all sizes from 3 fulfil; return what they do."""
    from_three: list[sympy.Basic] = []
    for relation in relations:
        pair = relation.lhs.is_Symbol and relation.rhs.is_Symbol
        may_be_equal = isinstance(relation, sympy.Ne) and not pair
        # the widest that a machine can count
        beyond = any(number > LARGEST for number in relation.atoms(sympy.Integer))
        if not may_be_equal and (beyond or not sizes.holds(relation)):
            continue
        if _always(relation, quotients):
            from_three.append(relation)
        elif not may_be_equal:
            tidy = in_one_chunk(_tidy(relation))
            if tidy.reversed not in kept and not always(tidy):
                kept[tidy] = None
    return from_three


def _times(quotient: sympy.Expr) -> sympy.Expr:
    """Return q of a quotient y·q."""
    return next(s for s in quotient.free_symbols if isinstance(s, sympy.Dummy))


def _without_ends(relations: list[sympy.Basic]) -> Iterator[sympy.Basic]:
    """Write a ≤ b and a ≠ b as a < b."""
    apart = {frozenset(r.args) for r in relations if isinstance(r, sympy.Ne)}
    ordered = {
        frozenset(r.args)
        for r in relations
        if isinstance(r, sympy.Le | sympy.Ge | sympy.Lt | sympy.Gt)
    }
    for relation in relations:
        pair = frozenset(relation.args)
        if isinstance(relation, sympy.Ne) and pair in ordered:
            continue
        if pair in apart and isinstance(relation, sympy.Le | sympy.Ge):
            strict = sympy.Lt if isinstance(relation, sympy.Le) else sympy.Gt
            relation = strict(relation.lhs, relation.rhs, evaluate=False)
        yield relation


def _strongest(relations: list[sympy.Basic]) -> Iterator[sympy.Basic]:
    """Drop the inequalities that another one says as well: S + 1 ≥ w beside S ≥ w."""
    least: dict[sympy.Expr, sympy.Expr] = {}
    rest = {id(r): _constant_apart(r) for r in relations}
    for number, form in filter(None, rest.values()):
        least[form] = min(least.get(form, number), number)
    for relation in relations:
        bounds = rest[id(relation)]
        if bounds is None:
            yield relation
        elif least.get(bounds[1]) == bounds[0]:
            del least[bounds[1]]  # once
            yield relation


def _constant_apart(relation: sympy.Basic) -> tuple[sympy.Expr, sympy.Expr] | None:
    """Return (c, x) of an inequality c + x ≥ 0 between whole numbers."""
    if isinstance(relation, sympy.Ge | sympy.Gt):
        difference = relation.lhs - relation.rhs
    elif isinstance(relation, sympy.Le | sympy.Lt):
        difference = relation.rhs - relation.lhs
    else:
        return None
    number, form = sympy.expand(difference).as_coeff_Add()
    return number - (1 if isinstance(relation, sympy.Gt | sympy.Lt) else 0), form


def is_below(x: sympy.Expr, y: sympy.Expr, domain: Iterable[sympy.Basic]) -> bool:
    """Tell whether a domain says, in one of its conditions, that x < y."""
    asked = filter(None, map(_constant_apart, domain))
    return any(number <= -1 and sympy.expand(y - x - form) == 0 for number, form in asked)


def is_at_most(x: sympy.Expr, y: sympy.Expr, domain: Iterable[sympy.Basic]) -> bool:
    """Tell whether a domain says, in one of its conditions, that x <= y."""
    for relation in domain:
        if isinstance(relation, sympy.Ge | sympy.Le | sympy.Gt | sympy.Lt):
            is_more = isinstance(relation, sympy.Ge | sympy.Gt)
            more = relation.lhs - relation.rhs if is_more else relation.rhs - relation.lhs
            if sympy.expand(more - (y - x)) == 0:
                return True
    return False


def _minimal(exact: list[sympy.Basic]) -> list[sympy.Basic]:
    """Drop the conditions that follow from others."""
    minimal = list(exact)
    for condition in exact:
        rest = [c for c in minimal if c is not condition]
        quotient = (condition.args[1] / condition.args[0]).subs(_quotients(rest))
        if sympy.cancel(quotient).is_integer:
            minimal = rest
    return minimal


def _quotients(exact: list[sympy.Basic]) -> dict[sympy.Expr, sympy.Expr]:
    """Map x to y·q for conditions that a size or number y divides a size x."""
    quotients: dict[sympy.Expr, sympy.Expr] = {}
    for condition in exact:
        below, above = condition.args
        free = (
            above.is_Symbol and above not in quotients and not below.free_symbols & set(quotients)
        )
        if free and above not in below.free_symbols:
            quotients[above] = below * _how_many(above, below)
    return quotients


@lru_cache(maxsize=1024)
def _how_many(above: sympy.Expr, below: sympy.Expr) -> sympy.Expr:
    """Return the letter for above/below, one for all of a trace's questions."""
    return sympy.Dummy("q", integer=True, positive=True)


def _always(relation: sympy.Rel, quotients: dict[sympy.Expr, sympy.Expr]) -> bool:
    """Tell whether a relation can be shown of all sizes from 3; False where nothing is shown."""
    return _shown(relation, tuple(quotients.items()))


@lru_cache(maxsize=4096)
def _shown(relation: sympy.Rel, pairs: tuple[tuple[sympy.Expr, sympy.Expr], ...]) -> bool:
    quotients = dict(pairs)
    # a number of chunks is 1 or more
    counts = {
        n: sympy.Dummy("n", integer=True, positive=True) + 1 - SMALLEST
        for n in relation.atoms(sympy.ceiling)
    }
    try:
        difference = sympy.together((relation.lhs - relation.rhs).xreplace(counts).subs(quotients))
        above, below = difference.as_numer_denom()
        if isinstance(relation, sympy.Eq):
            return bool(sympy.expand(above) == 0)
        up, down = _positive(above * below), _positive(-above * below)
    except (sympy.PolynomialError, AttributeError, TypeError):
        return False
    strict_up, strict_down = up == 2, down == 2
    if isinstance(relation, sympy.Gt | sympy.Ge):
        return strict_up or (isinstance(relation, sympy.Ge) and up == 1)
    if isinstance(relation, sympy.Lt | sympy.Le):
        return strict_down or (isinstance(relation, sympy.Le) and down == 1)
    return strict_up or strict_down


def _positive(expr: sympy.Expr) -> int:
    """Return 2 if positive for all sizes, 1 if not negative, 0 if not shown."""
    letters = sorted(expr.free_symbols, key=str)
    if not letters:
        return 2 if expr > 0 else int(expr == 0)
    return sign_above(for_arithmetic(expr, letters), dict.fromkeys(letters, SMALLEST))


def _single(
    asked: sympy.Basic, sizes: Sizes, quotients: dict[sympy.Expr, sympy.Expr]
) -> Iterator[sympy.Basic]:
    """Yield the relations of what was asked; of alternatives, one that holds at the hints."""
    if isinstance(asked, sympy.And):
        for argument in asked.args:
            yield from _single(argument, sizes, quotients)
    elif isinstance(asked, sympy.Or):
        relations = [argument for argument in asked.args if isinstance(argument, sympy.Rel)]
        if not any(_always(argument, quotients) for argument in relations):
            yield from [argument for argument in relations if sizes.holds(argument)][:1]
    elif isinstance(asked, sympy.Rel):
        yield asked


def _tidy(relation: sympy.Rel) -> sympy.Rel:
    """Bring terms where they are positive, without common factors: 128·h = 128·k is h = k."""
    above = sympy.together(relation.lhs - relation.rhs).as_numer_denom()[0]
    factors = sympy.factor_list(above)
    rest = [base for base, _ in factors[1] if len(base.as_ordered_terms()) > 1]
    if len(rest) != 1 or not all(base.is_positive for base, _ in factors[1] if base not in rest):
        return relation
    kind = relation.func if factors[0] > 0 else TURNED.get(relation.func, relation.func)
    terms = rest[0].as_ordered_terms()
    left = sympy.Add(*(t for t in terms if not t.could_extract_minus_sign()))
    right = sympy.expand(left - rest[0])
    return kind(left, right, evaluate=False)
