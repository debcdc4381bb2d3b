"""One formula beside our count at one model, term by term, with numbers to recompute by hand."""

from __future__ import annotations

import re
from fractions import Fraction

from metacount.audit.judge import judged
from metacount.audit.names import Absent, Place, reference
from metacount.audit.record import FLOPS
from metacount.audit.restated import both, place_of, there, value_of
from metacount.formulas import model
from metacount.frozen import frozen
from metacount.spec import Workload

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Iterator

    from metacount.audit.judge import Found
    from metacount.audit.names import Names
    from metacount.audit.record import Formula, Term
    from metacount.audit.restated import Case
    from metacount.files import Json
    from metacount.spec import ModelSpec

NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
CALLS = ("min", "max", "floor", "ceil")
SMALLER = 3.0  # seconds for making a counterexample small


@frozen
class Line:
    """A term: in words, as text, with numbers in place of its names, and its value."""

    of: str
    text: str
    numbers: str
    value: Fraction


@frozen
class Detail:
    """Theirs and ours at one model and length, what they miss, and a small counterexample.

    `ours` are the amounts of the convention, `parts` what each is made of, by role.
    `small` has the sizes of the smallest valid model of the structure, found going down from this
    one, at which the two still differ, and what each gives there.
    """

    formula: Formula
    found: Found
    theirs: tuple[Line, ...]
    ours: tuple[Line, ...]
    parts: tuple[Line, ...]
    misses: tuple[Line, ...]
    unaccounted: Fraction
    small: tuple[dict[str, int], Fraction, Fraction] | None


def detail(formula: Formula, spec: ModelSpec, id: str, seq_len: int) -> Detail:
    """Lay `formula` beside our count at one model and one length."""
    found = judged(formula, spec, id, (seq_len,))
    case = spec, Workload(batch_size=1, seq_len=found.seq_len)
    place = place_of(case)
    theirs = lines_of(formula.terms, place, whole=True)
    misses = tuple(line for line in lines_of(formula.misses, place) if line.value)
    difference = sum((line.value for line in theirs), Fraction(0))
    ours: tuple[Line, ...] = ()
    if formula.convention is not None and found.ours:
        amounts = reference(place, formula.kind)
        used = dict.fromkeys(NAME.findall(formula.convention))
        ours = tuple(_line(letter, letter, amounts) for letter in used)
        difference -= found.ours
    return Detail(
        formula=formula,
        found=found,
        theirs=theirs,
        ours=ours,
        parts=tuple(_parts(formula, place, [line.of for line in ours])),
        misses=misses,
        unaccounted=difference - sum((line.value for line in misses), Fraction(0)),
        small=_small(formula, case) if difference and ours else None,
    )


def lines_of(terms: tuple[Term, ...], place: Place, *, whole: bool = False) -> tuple[Line, ...]:
    """Return the terms that a model has, each with its value.

    What asks for something that the model does not have is left out, or, with `whole`, all is.
    """
    found = []
    for term in there(terms, place.spec):
        try:
            found.append(_line(term.of, term.text, place))
        except (Absent, ZeroDivisionError):
            if whole:
                return ()
    return tuple(found)


def _line(of: str, text: str, names: Names) -> Line:
    return Line(of=of, text=text, numbers=with_numbers(text, names), value=value_of(text, names))


def _parts(formula: Formula, place: Place, letters: list[str]) -> Iterator[Line]:
    """Yield what an amount is made of, by role: products with weights, and parameters."""
    spec, run = place.spec, {"batch_size": place.batch_size, "seq_len": place.seq_len}
    by_letter: dict[str, Json] = {}
    if "W" in letters:
        weights = dict(model.matmul_flops_by_role(spec, **run))
        weights["attention"] -= place.amounts.pairs
        by_letter["W"] = weights
    if "P" in letters:
        by_letter["P"] = model.active_params_by_role(spec)
    if "Q" in letters:
        by_letter["Q"] = model.params_by_role(spec)
    # a convention of FLOPs takes parameters once for every token
    tokens = place.batch_size * place.seq_len if formula.kind in FLOPS else 1
    for letter, roles in by_letter.items():
        times = 1 if letter == "W" else tokens
        for role, value in roles.items():
            if value:
                exact = Fraction(times * value)
                yield Line(of=f"{letter}, {role}", text="", numbers="", value=exact)


def with_numbers(text: str, names: Names) -> str:
    """Put a number for every name into a text of the data.

    >>> with_numbers("6*d_model*min(a, 2)", {"d_model": 64, "a": 3})
    '6*64*min(3, 2)'
    """
    return NAME.sub(lambda m: m[0] if m[0] in CALLS else str(names[m[0]]), text)


def _small(formula: Formula, case: Case) -> tuple[dict[str, int], Fraction, Fraction] | None:
    """Return the smallest sizes found at which theirs and ours differ."""
    from metacount.algebra.limits import passed
    from metacount.check.trials import free_sizes, shrunk

    late = passed(SMALLER)
    run = case[1]
    scope = _in_scope(formula, case)

    def differs(other: Case) -> bool:
        if late() or _in_scope(formula, other) is not scope or other[1].dtype != run.dtype:
            return False
        try:
            theirs, ours = both(formula, other)
        except (Absent, ValueError, ZeroDivisionError):
            return False
        return theirs != ours

    if not differs(case):
        return None
    spec, run = shrunk(case, differs)
    theirs, ours = both(formula, (spec, run))
    sizes = {name: int(getattr(spec, name)) for name in free_sizes(spec)}
    return {**sizes, "batch_size": run.batch_size, "seq_len": run.seq_len}, theirs, ours


def _in_scope(formula: Formula, case: Case) -> bool:
    from metacount.audit.restated import holds

    return holds(formula.scope, case[0])


__all__ = ["Detail", "Line", "detail", "lines_of"]
