"""The verdict on one formula at one model: by numbers at every length, in letters for all sizes."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

from metacount.algebra.limits import TooLong, limited
from metacount.audit.names import Place, reference
from metacount.audit.record import NO_COUNT
from metacount.audit.restated import Absent, both, holds, missed, there, written
from metacount.check.judgement import EQUAL, HERE, WRONG
from metacount.frozen import frozen
from metacount.spec import Workload

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import sympy

    from metacount.audit.names import Names
    from metacount.audit.record import Formula
    from metacount.spec import ModelSpec

LENGTHS = (2048, 8192, 32768)
NOT_ASKED = "cannot be asked"
SECONDS = 5.0  # for one difference in letters
# what no count depends on
IRRELEVANT = ("norm_eps", "rope_theta", "rope_scaling", "rope_interleaved")


@frozen
class Found:
    """What one formula gives at one model, at the length where it is furthest off.

    `verdict` is `equal` for all sizes of the model's structure, `equal_here` at its sizes, under
    `condition` where one is known, `wrong`, or that it cannot be asked: `condition` then says what
    the model does not have. `accounted` says that the recorded misses are the whole difference at
    every length.
    """

    formula: str
    model: str
    spec: ModelSpec
    in_scope: bool
    verdict: str
    seq_len: int
    theirs: Fraction
    ours: Fraction
    accounted: bool
    condition: str = ""

    @property
    def off(self) -> Fraction:
        """Theirs less ours, as a share of ours."""
        return (self.theirs - self.ours) / self.ours if self.ours else Fraction(0)


def lengths_of(spec: ModelSpec, lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Keep the lengths that a model has positions for; all of its positions where each is longer.

    >>> from metacount.catalog import entry
    >>> lengths_of(entry("gpt2").spec(), LENGTHS)
    (1024,)
    """
    longest = spec.longest
    if longest is None:
        return lengths
    return tuple(n for n in lengths if n <= longest) or (longest,)


def judged(
    formula: Formula,
    spec: ModelSpec,
    model: str,
    lengths: tuple[int, ...] = LENGTHS,
    *,
    outside: bool = True,
) -> Found:
    """Judge `formula` at a model: numbers at every length first, letters where they agree.

    Without `outside`, letters are not asked about a model outside the formula's scope.
    """
    in_scope = holds(formula.scope, spec)
    if not formula.judged:
        return _unasked(formula, spec, model, in_scope, lengths, NO_COUNT)
    worst: Found | None = None
    accounted = True
    for n in lengths_of(spec, lengths):
        case = spec, Workload(batch_size=1, seq_len=n)
        try:
            theirs, ours = both(formula, case)
            accounted = accounted and theirs - ours == missed(formula, case)
        except (Absent, ZeroDivisionError) as error:
            return _unasked(formula, spec, model, in_scope, (n,), str(error))
        one = Found(
            formula=formula.id,
            model=model,
            spec=spec,
            in_scope=in_scope,
            verdict=WRONG,
            seq_len=n,
            theirs=theirs,
            ours=ours,
            accounted=accounted,
        )
        if worst is None or abs(one.off) >= abs(worst.off):
            worst = one
    if worst is None:
        raise ValueError("no length to judge at")
    if worst.theirs != worst.ours:
        return replaced(worst, accounted=accounted)
    verdict, condition = HERE, ""
    if in_scope or outside:
        verdict, condition = in_letters(formula, spec)
    return replaced(worst, accounted=accounted, verdict=verdict, condition=condition)


def _unasked(
    formula: Formula,
    spec: ModelSpec,
    model: str,
    in_scope: bool,
    lengths: tuple[int, ...],
    why: str,
) -> Found:
    """Build the finding for where there is nothing to compare, with the reason."""
    return Found(
        formula=formula.id,
        model=model,
        spec=spec,
        in_scope=in_scope,
        verdict=NOT_ASKED,
        seq_len=lengths_of(spec, lengths)[0],
        theirs=Fraction(0),
        ours=Fraction(0),
        accounted=False,
        condition=why,
    )


def replaced(found: Found, **changes: object) -> Found:
    """Copy `found` with some fields changed."""
    names = Found.__annotations__
    return Found(**{**{name: getattr(found, name) for name in names}, **changes})


def in_letters(formula: Formula, spec: ModelSpec) -> tuple[str, str]:
    """Return `equal` if their count is ours for all sizes, else `equal_here` and the condition."""
    try:
        with limited(SECONDS, computing=True):
            difference = _difference(formula, structure_key(spec), spec)
            return (EQUAL, "") if difference == 0 else (HERE, _condition(difference, spec))
    except TooLong:
        return HERE, f"not decided for all sizes within {SECONDS:g} s"


# theirs less ours of a formula for a structure, and a structure with letters for its sizes
_DIFFERENCES: dict[tuple[Formula, object], sympy.Expr | int] = {}
_PLACES: dict[object, Place] = {}


def _difference(formula: Formula, key: object, spec: ModelSpec) -> sympy.Expr | int:
    """Subtract our count from theirs in letters; the number 0 where it is zero for all sizes."""
    from metacount.algebra.exact import is_zero

    if (formula, key) not in _DIFFERENCES:
        found = difference_in_letters(formula, spec)
        _DIFFERENCES[formula, key] = 0 if is_zero(found) else found
    return _DIFFERENCES[formula, key]


def _condition(difference: sympy.Expr, spec: ModelSpec) -> str:
    from metacount.check.condition import condition
    from metacount.check.given.vocabulary import numbers_of

    numbers = numbers_of(spec, Workload(seq_len=LENGTHS[0]))
    return _multiple(difference, numbers) or condition(difference, numbers) or ""


def _multiple(difference: sympy.Expr, numbers: dict[sympy.Expr, int]) -> str:
    """Say what size must be a multiple of what, where that alone makes a difference zero."""
    import sympy

    from metacount.algebra.exact import is_zero
    from metacount.check.given.vocabulary import NAMES

    for call in sorted(difference.atoms(sympy.floor, sympy.ceiling), key=str):
        below = sympy.denom(sympy.together(call.args[0]))
        for letter in call.free_symbols:
            if not below.is_Integer or numbers.get(letter, 1) % int(below):
                continue
            times = sympy.Dummy("n", integer=True, positive=True)
            if is_zero(difference.xreplace({letter: below * times})):
                return f"{NAMES[letter.name]} is a multiple of {below}"
    return ""


def difference_in_letters(formula: Formula, spec: ModelSpec) -> sympy.Expr:
    """Subtract our count from theirs with a letter for every size of the model and of the run."""
    from sympy import sympify

    from metacount.algebra.bounded import in_letters as multiplied_out
    from metacount.algebra.exact import plain

    place = _place(structure_key(spec), spec)

    def expression(text: str, names: Names) -> sympy.Expr:
        found = written(text)
        sizes = {name: sympify(names[name]) for name in found.names}
        return multiplied_out(found.tree, sizes)[0]

    theirs = sum(expression(term.text, place) for term in there(formula.terms, spec))
    if formula.convention is None:
        raise ValueError(f"{formula.id} has no convention")
    return plain(theirs - expression(formula.convention, reference(place, formula.kind)))


def _place(key: object, spec: ModelSpec) -> Place:
    if key not in _PLACES:
        _PLACES[key] = place_in_letters(spec)
    return _PLACES[key]


def place_in_letters(spec: ModelSpec) -> Place:
    """Build the model's structure with a letter for each size that is no part of the structure."""
    from metacount.check.given.vocabulary import BYTES_LETTER, LETTERS
    from metacount.check.trials import free_sizes

    sizes = {name: LETTERS[name] for name in free_sizes(spec)}
    return Place(spec.substituted(**sizes), LETTERS["batch_size"], LETTERS["seq_len"], BYTES_LETTER)


@cache
def _sizes() -> frozenset[str]:
    from metacount.check.trials import NAMES

    return frozenset(NAMES)


def structure_key(spec: ModelSpec) -> tuple[tuple[str, str], ...]:
    """Key a model by structure, not sizes: of one key, differences in letters are the same."""
    found = []
    for name, value in spec.to_dict().items():
        if name in IRRELEVANT:
            continue
        size = name in _sizes() and bool(value) and (name != "moe_every" or value > 1)
        found.append((name, "a size" if size else repr(value)))
    return tuple(found)
