"""Both sides as functions of sizes, and their comparison: in letters, or at many sizes."""

from __future__ import annotations

import random
import re
from fractions import Fraction
from itertools import combinations
from typing import TYPE_CHECKING

import sympy

from metacount.algebra.exact import is_zero, value_at
from metacount.algebra.limits import passed
from metacount.algebra.text import at, crossings, literals
from metacount.check.names import BYTES_LETTER, LETTERS, NAMES, numbers_of
from metacount.check.sizes import Gap, alike, places, random_cases, shrunk, sizes_of
from metacount.errors import InputError, SpecError
from metacount.figures import FIGURES
from metacount.spec import ModelSpec, Workload
from metacount.spec.legend import WORKLOAD_TERMS
from metacount.textbook.closed_form import COUNTS, closed_form, named_layers, readable
from metacount.textbook.count import run_sizes
from metacount.textbook.training import holds_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from metacount.algebra.text import Node, Number
    from metacount.check.sizes import Case

WORD = re.compile(r"[A-Za-z][A-Za-z_0-9]*")  # without the ² of S²

Relation = tuple[str, sympy.Expr, sympy.Expr]  # in words; a letter or call, and what it is equal to

MOST_RELATIONS = 60
AT_ONCE = 4  # relations that may be needed together
RATIOS = (2, 3, 4, 6, 8)


def condition(difference: sympy.Expr, numbers: Mapping[sympy.Expr, int]) -> str | None:
    """Find the fewest relations between the model's sizes under
    which `difference` is 0 for all others.

    None where four of them are not enough.
    """
    letters = sorted(difference.free_symbols, key=str)
    relations = [*_calls(difference, numbers), *_products(letters, numbers)]
    relations += [*_equals(letters, numbers), *_pins(letters, numbers)]
    relations = relations[:MOST_RELATIONS]
    # a difference of zero stays zero at primes that keep the relations
    draw = random.Random(0)
    primes = dict(zip(letters, draw.sample(_PRIMES, len(letters)), strict=True))
    for n in range(1, AT_ONCE + 1):
        for several in combinations(relations, n):
            if _zero_at(difference, several, primes) and _zero(difference, several):
                return " and ".join(words for words, _, _ in several)
    return None


_PRIMES = [p for p in range(101, 800) if all(p % n for n in range(2, 29))]


def _calls(difference: sympy.Expr, numbers: Mapping[sympy.Expr, int]) -> Iterator[Relation]:
    for call in sorted(difference.atoms(sympy.Min, sympy.Max), key=str):
        here = value_at(call, numbers)
        for arg in call.args:
            if value_at(arg, numbers) == here:
                sign = "≤" if isinstance(call, sympy.Min) else "≥"
                others = " and ".join(named(other) for other in call.args if other != arg)
                yield f"{named(arg)} {sign} {others}", call, arg
    for call in sorted(difference.atoms(sympy.floor, sympy.ceiling), key=str):
        above, below = call.args[0].as_numer_denom()
        here = value_at(call, numbers)
        if isinstance(call, sympy.floor) and here == 0 <= value_at(call.args[0], numbers):
            yield f"{named(above)} < {named(below)}", call, sympy.Integer(0)
        if isinstance(call, sympy.ceiling) and here == 1:
            yield f"{named(above)} ≤ {named(below)}", call, sympy.Integer(1)
        if value_at(call.args[0], numbers) == value_at(call, numbers):
            _, below = call.args[0].as_numer_denom()
            if below.is_Integer or below.is_Symbol:
                yield f"{named(call.args[0])} is whole", call, call.args[0]


def _products(letters: list[sympy.Expr], numbers: Mapping[sympy.Expr, int]) -> Iterator[Relation]:
    heads, width, d = LETTERS["n_heads"], LETTERS["head_dim"], LETTERS["d_model"]
    if d in letters and width in numbers and numbers[heads] * numbers[width] == numbers[d]:
        yield f"{named(heads * width)} = {named(d)}", d, heads * width


def _equals(letters: list[sympy.Expr], numbers: Mapping[sympy.Expr, int]) -> Iterator[Relation]:
    for a, b in combinations(letters, 2):
        if numbers[a] == numbers[b]:
            yield f"{named(a)} = {named(b)}", a, b
        for large, small in ((a, b), (b, a)):
            if numbers[small] > 8 and numbers[large] in [n * numbers[small] for n in RATIOS]:
                n = numbers[large] // numbers[small]
                yield f"{named(large)} = {named(n * small)}", large, n * small


def _pins(letters: list[sympy.Expr], numbers: Mapping[sympy.Expr, int]) -> Iterator[Relation]:
    for letter in sorted(letters, key=lambda a: numbers[a]):
        yield f"{named(letter)} = {numbers[letter]}", letter, sympy.Integer(numbers[letter])


def _zero_at(
    difference: sympy.Expr, several: tuple[Relation, ...], primes: dict[sympy.Expr, int]
) -> bool:
    """Check quickly whether the difference is zero at primes. Calls are left to the slow check."""
    if any(not what.is_Symbol for _, what, _ in several):
        return True
    numbers = dict(primes)
    for _ in range(2):
        for _, letter, same in several:
            for other in same.free_symbols - numbers.keys():
                numbers[other] = 97
            numbers[letter] = int(value_at(same, numbers))
    try:
        return value_at(difference, numbers) == 0
    except ZeroDivisionError:
        return False


def _zero(difference: sympy.Expr, several: tuple[Relation, ...]) -> bool:
    expr = difference
    for _ in range(2):
        for _, what, same in several:
            expr = expr.xreplace({what: same})
    if expr.has(sympy.zoo, sympy.nan):
        return False
    return bool(is_zero(expr))


def multiple(difference: sympy.Expr, numbers: Mapping[sympy.Expr, int]) -> str:
    """Say what size must be a multiple of what, where that alone makes a difference zero."""
    for call in sorted(difference.atoms(sympy.floor, sympy.ceiling), key=str):
        below = sympy.denom(sympy.together(call.args[0]))
        for letter in call.free_symbols:
            if not below.is_Integer or numbers.get(letter, 1) % int(below):
                continue
            times = sympy.Dummy("n", integer=True, positive=True)
            if is_zero(difference.xreplace({letter: below * times})):
                return f"{NAMES[letter.name]} is a multiple of {below}"
    return ""


def named(expr: sympy.Expr) -> str:
    """Write an expression with our names in place of the letters.

    >>> named(2 * LETTERS["d_model"] ** 2 + 1)
    '2·d_model² + 1'
    """
    from metacount.algebra.text import in_letters

    return WORD.sub(lambda letter: NAMES.get(letter[0], letter[0]), in_letters(expr))


def count_of(spec: ModelSpec, workload: Workload, quantity: str) -> int:
    """Count the quantity with ints."""
    return int(sum(COUNTS[quantity](spec, run_sizes(spec, workload)).values()))


class Truth:
    """One quantity of one model in letters, its kinds of layers written out in N."""

    def __init__(self, spec: ModelSpec, workload: Workload, quantity: str) -> None:
        self.spec, self.workload, self.quantity = spec, workload, quantity
        form = closed_form(spec, workload, quantity)
        self.value = form.total
        self.folded = {
            floors: letter
            for floors, letter in named_layers(spec, LETTERS["n_layers"]).items()
            if letter.name in form.numbers
        }
        unfolded = {letter: floors for floors, letter in self.folded.items()}
        self.parts = {part: expr.xreplace(unfolded) for part, expr in form.parts.items()}
        self.expr = sympy.Add(*self.parts.values())

    def shown(self, expr: sympy.Expr) -> sympy.Expr:
        """Shorten `expr` as far as it goes, with a letter for the number of layers of a kind."""
        for floors, letter in self.folded.items():
            first, *others = sympy.Add.make_args(floors)
            folded = sympy.expand(expr.xreplace({first: letter - sympy.Add(*others)}))
            if not folded.has(*floors.atoms(sympy.floor)):
                expr = folded
        return readable(expr)

    def names(self, letters: set[sympy.Expr]) -> tuple[str, ...]:
        """Name some letters and those of the count, in the legend's order."""
        used = {letter.name for letter in letters | self.expr.free_symbols}
        return tuple(name for letter, name in NAMES.items() if letter in used)

    def rules(self) -> Mapping[sympy.Expr, sympy.Expr]:
        """Return what the spec's rules say of sizes,
        as a product in a letter's place: h = h_kv·g.
        """
        found = {}
        groups = [("n_heads", "n_kv_heads"), ("n_experts", "n_groups")]
        for whole, part in groups:
            if getattr(self.spec, whole) and getattr(self.spec, part):
                found[LETTERS[whole]] = LETTERS[part] * _positive(f"{whole} / {part}")
        for name, n in self._multiples():
            found[LETTERS[name]] = n * _positive(f"{name} / {n}")
        return found

    def _multiples(self) -> list[tuple[str, int]]:
        spec = self.spec
        if spec.attention == "mla":
            return [("qk_rope_head_dim", 2)]
        found = []
        if spec.position == "rope":
            found.append(("head_dim" if spec.rotary_dim is None else "rotary_dim", 2))
        return found


def _positive(name: str) -> sympy.Expr:
    return sympy.Dummy(name, integer=True, positive=True)


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


# What of a `Tried` one process sends to another as it is.
TRIED_AS_DATA = ("planned", "compared", "raised", "inexact", "late", "fixed")


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
