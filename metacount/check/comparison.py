"""A formula as a function of sizes, and its comparison with the count at many of them."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from metacount.algebra.exact import value_at
from metacount.algebra.limits import passed
from metacount.algebra.numeric import at, crossings, literals
from metacount.check.given.vocabulary import BYTES_LETTER, LETTERS, NAMES, numbers_of
from metacount.check.places import Gap, places
from metacount.check.trials import alike, random_cases, shrunk, sizes_of
from metacount.check.truth import count_of
from metacount.errors import InputError, SpecError
from metacount.figures import FIGURES
from metacount.spec import Workload
from metacount.spec.legend import WORKLOAD_TERMS
from metacount.textbook.training import holds_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import sympy

    from metacount.algebra.numeric import Number
    from metacount.algebra.text import Node
    from metacount.check.trials import Case

TO_SHRINK = 1  # seconds for making a counterexample small


RUN = {*(LETTERS[term.name] for term in WORKLOAD_TERMS), BYTES_LETTER}


def of_the_run(quantity: str, used: set[sympy.Expr]) -> bool:
    """Tell whether a count, or a formula that uses these letters, depends on what is run."""
    return bool(FIGURES[quantity.partition(":")[0]].run or used & RUN)


class Theirs:
    """A formula that was read: its tree, and the expression that each name stands for."""

    def __init__(self, tree: Node, names: Mapping[str, sympy.Expr], text: str) -> None:
        self.tree, self.names, self.text = tree, names, text

    def value(self, case: Case) -> Fraction:
        """Evaluate the formula exactly at the sizes of `case`."""
        return Fraction(at(self.tree, self._numbers(case, {})))

    def _numbers(self, case: Case, changes: Mapping[str, int]) -> dict[str, Number]:
        numbers = numbers_of(*case)
        for name, size in changes.items():
            numbers[LETTERS[name]] = size
            if name == "seq_len":
                numbers[LETTERS["kv_len"]] = size
        return {name: _plain(value_at(expr, numbers)) for name, expr in self.names.items()}

    def literals(self) -> tuple[Fraction, ...]:
        """Return the numbers that stand in the formula."""
        return literals(self.tree)

    def gaps(self) -> list[Gap]:
        """Return the differences whose sign decides what min, max, // and % come to."""
        return [Gap(self._names(a, b), self._gap(a, b)) for a, b in crossings(self.tree)]

    def _names(self, *nodes: Node) -> tuple[str, ...]:
        """Name the sizes in some parts of the formula, in our names."""
        words = {step.word for node in nodes for step in node.steps() if step.kind == "name"}
        letters = {a for word in words for a in self.names[word].free_symbols}
        ours = {NAMES[a.name] for a in letters}
        return tuple(sorted("seq_len" if name == "kv_len" else name for name in ours))

    def places(self, case: Case, quantity: str) -> list[Case]:
        """Choose where to compare the formula with the count, where letters do not decide."""
        used = {a for expr in self.names.values() for a in expr.free_symbols}
        return places(case, self.literals(), self.gaps(), run=of_the_run(quantity, used))

    def _gap(self, a: Node, b: Node) -> Callable[[Case, dict[str, int]], Fraction]:
        def gap(case: Case, changes: dict[str, int]) -> Fraction:
            numbers = self._numbers(case, changes)
            return Fraction(at(a, numbers) - at(b, numbers))

        return gap


def _plain(value: Fraction) -> Number:
    return value.numerator if value.denominator == 1 else value


class Tried:
    """A comparison at other sizes: how many were planned, compared, and refused with an error.

    `small` is where the two differ, made small; `fixed` the sizes at which alone it gave an answer,
    though others were tried; `late` says that the time ran out.
    """

    def __init__(self, planned: int) -> None:
        self.planned, self.compared, self.raised, self.inexact = planned, 0, 0, 0
        self.late = False
        self.small: tuple[Case, Fraction] | None = None
        self.fixed: dict[str, int] = {}
        self.answered: list[tuple[Case, Fraction]] = []

    def notes(self) -> list[str]:
        """Say what of the planned comparison was not done, and why."""
        said = []
        done = self.compared + self.raised + self.inexact
        if self.raised:
            said.append(f"at {self.raised} of {done} other sizes the formula gives an error")
        if self.inexact:
            said.append(
                f"at {self.inexact} of {done} other sizes it gives a float beyond 2^53, "
                "which cannot be compared"
            )
        if self.late:
            said.append(
                f"the time ran out: {self.planned} other sizes were planned, {done} tried; "
                "--timeout gives it more"
            )
        return said

    @property
    def complete(self) -> bool:
        """Whether all that was planned was compared."""
        return self.compared == self.planned


def tried_at(
    others: Iterable[Case],
    value: Callable[[Case], Fraction | None],
    case: Case,
    quantity: str,
    late: Callable[[], bool],
) -> Tried:
    """Compare `value` with the count at `others`, up to the first difference or until `late`."""
    others = [_comparable(other, case, quantity) for other in others]
    found = Tried(len(others))
    seen: dict[str, set[int]] = {}
    given_at: dict[str, set[int]] = {}
    for other in others:
        if late():
            found.late = True
            break
        _add(seen, other)
        try:
            given = value(other)
        except (InputError, ZeroDivisionError):
            found.raised += 1
            continue
        _add(given_at, other)
        if given is None:
            found.inexact += 1
            continue
        found.compared += 1
        found.answered.append((other, given))
        if given != count_of(*other, quantity):
            found.small = _smallest(other, given, value, quantity)
            return found
    if found.raised:
        found.fixed = {
            name: size
            for name, size in sizes_of(case).items()
            if seen.get(name, set()) - {size} and not given_at.get(name, set()) - {size}
        }
    return found


def _comparable(other: Case, case: Case, quantity: str) -> Case:
    """Return `other` in the dtype of `case`, where the quantity is of one dtype."""
    if not holds_dtype(quantity):
        return other
    return other[0], Workload(**{**other[1].to_dict(), "dtype": case[1].dtype})


def small_cases(
    case: Case,
    value: Callable[[Case], Fraction | None],
    most: int,
    late: Callable[[], bool],
    used: set[sympy.Symbol],
) -> list[tuple[Case, Fraction]]:
    """Evaluate a wrong formula at small sizes, from which the mistake may be told.

    What of a run it does not use stays as it is: a number may stand for it. In every second case
    those sizes are equal that are equal in the model.
    """
    kept = {"batch_size": LETTERS["batch_size"], "dtype": BYTES_LETTER}
    run = {name: getattr(case[1], name) for name, letter in kept.items() if letter not in used}
    if not used & {LETTERS["seq_len"], LETTERS["kv_len"]}:
        run["seq_len"] = case[1].seq_len
    found = []
    for i, (spec, workload) in enumerate(random_cases(*case, most)):
        if i % 2:
            try:
                spec = alike(case[0], spec)
            except SpecError:
                continue
        other = spec, Workload(**{**workload.to_dict(), **run})
        if late():
            break
        try:
            given = value(other)
        except (InputError, ZeroDivisionError):
            continue
        if given is not None:
            found.append((other, given))
    return found


def _add(values: dict[str, set[int]], case: Case) -> None:
    for name, size in sizes_of(case).items():
        values.setdefault(name, set()).add(size)


def _smallest(
    case: Case, given: Fraction, value: Callable[[Case], Fraction | None], quantity: str
) -> tuple[Case, Fraction]:
    """Make the case small while the formula is wrong there;
    return it and what the formula gives.
    """
    late = passed(TO_SHRINK)
    last = case, given

    def differs(other: Case) -> bool:
        nonlocal last
        if late() or other != _comparable(other, case, quantity):
            return False
        try:
            found = value(other)
        except (InputError, ZeroDivisionError):
            return False
        if found is None or found == count_of(*other, quantity):
            return False
        last = other, found
        return True

    shrunk(case, differs)
    return last
