"""Both sides as functions of sizes, and their comparison: in letters, or at many sizes."""

from __future__ import annotations

import random
import re
from contextlib import suppress
from fractions import Fraction
from itertools import combinations
from typing import TYPE_CHECKING

import sympy

from metacount.algebra.exact import is_zero, value_at
from metacount.algebra.limits import passed
from metacount.algebra.text import Node, Number, at, crossings, in_letters, literals, simplest
from metacount.check.judgement import HERE, TRIED, UNTRIED
from metacount.check.names import BYTES_LETTER, LETTERS, NAMES, numbers_of
from metacount.check.sizes import Case, Gap, alike, random_cases, shrunk, sizes_of
from metacount.errors import InputError, SpecError, printable
from metacount.figures import FIGURES
from metacount.spec import ModelSpec, Workload
from metacount.spec.legend import WORKLOAD_TERMS
from metacount.textbook.closed_form import COUNTS, closed_form, named_layers, readable
from metacount.textbook.count import run_sizes
from metacount.textbook.training import holds_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from metacount.files import Json

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
    relations = [*_calls(difference, numbers), *_equals(letters, numbers)][:MOST_RELATIONS]
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
        now = value_at(call, numbers)
        for arg in call.args:
            if value_at(arg, numbers) == now:
                sign = "≤" if isinstance(call, sympy.Min) else "≥"
                others = " and ".join(named(other) for other in call.args if other != arg)
                yield f"{named(arg)} {sign} {others}", call, arg
    for call in sorted(difference.atoms(sympy.floor, sympy.ceiling), key=str):
        above, below = call.args[0].as_numer_denom()
        now = value_at(call, numbers)
        if isinstance(call, sympy.floor) and now == 0 <= value_at(call.args[0], numbers):
            yield f"{named(above)} < {named(below)}", call, sympy.Integer(0)
        if isinstance(call, sympy.ceiling) and now == 1:
            yield f"{named(above)} ≤ {named(below)}", call, sympy.Integer(1)
        if value_at(call.args[0], numbers) == value_at(call, numbers):
            _, below = call.args[0].as_numer_denom()
            if below.is_Integer or below.is_Symbol:
                yield f"{named(call.args[0])} is whole", call, call.args[0]


def _equals(letters: list[sympy.Expr], numbers: Mapping[sympy.Expr, int]) -> Iterator[Relation]:
    """Yield what sizes are equal to: products, others, multiples of others, numbers."""
    heads, width, d = LETTERS["n_heads"], LETTERS["head_dim"], LETTERS["d_model"]
    if d in letters and width in numbers and numbers[heads] * numbers[width] == numbers[d]:
        yield f"{named(heads * width)} = {named(d)}", d, heads * width
    for a, b in combinations(letters, 2):
        if numbers[a] == numbers[b]:
            yield f"{named(a)} = {named(b)}", a, b
        for large, small in ((a, b), (b, a)):
            if numbers[small] > 8 and numbers[large] in [n * numbers[small] for n in RATIOS]:
                n = numbers[large] // numbers[small]
                yield f"{named(large)} = {named(n * small)}", large, n * small
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

    def rules(self) -> dict[sympy.Expr, tuple[str, sympy.Expr]]:
        """Return what the spec's rules say of sizes: what a letter is a multiple of, in words, and
        a product in its place, as h = h_kv·g.
        """
        spec, even = self.spec, ""
        if spec.attention == "mla":
            even = "qk_rope_head_dim"
        elif spec.position == "rope":
            even = "head_dim" if spec.rotary_dim is None else "rotary_dim"
        rules = {LETTERS[even]: ("2", sympy.Integer(2))} if even else {}
        for size, part in (("n_heads", "n_kv_heads"), ("n_experts", "n_groups")):
            if getattr(spec, size) and getattr(spec, part):
                rules[LETTERS[size]] = part, LETTERS[part]
        return {
            letter: (words, part * sympy.Dummy(f"{letter} / {words}", integer=True, positive=True))
            for letter, (words, part) in rules.items()
        }


RUN = {*(LETTERS[term.name] for term in WORKLOAD_TERMS), BYTES_LETTER}


def of_the_run(quantity: str, used: set[sympy.Expr]) -> bool:
    """Tell whether a count, or a formula that uses these letters, depends on what is run."""
    return bool(FIGURES[quantity.partition(":")[0]].run or used & RUN)


class Theirs:
    """A formula that was read: its tree, and the expression that each name stands for."""

    def __init__(self, tree: Node, names: Mapping[str, sympy.Expr]) -> None:
        self.tree, self.names = tree, names
        self.literals = literals(tree)
        self.used = {a for expr in names.values() for a in expr.free_symbols}

    def value(self, case: Case) -> Fraction:
        """Evaluate the formula exactly at the sizes of `case`."""
        return Fraction(at(self.tree, self._numbers(case, {})))

    def _numbers(self, case: Case, changes: Mapping[str, int]) -> dict[str, Number]:
        numbers = numbers_of(*case)
        for name, size in changes.items():
            numbers[LETTERS[name]] = size
            if name == "seq_len":
                numbers[LETTERS["kv_len"]] = size
        return {name: simplest(value_at(expr, numbers)) for name, expr in self.names.items()}

    def gaps(self) -> list[Gap]:
        """Return the differences whose sign decides what min, max, // and % come to."""

        def gap(a: Node, b: Node) -> Gap:
            def value(case: Case, changes: dict[str, int]) -> Fraction:
                numbers = self._numbers(case, changes)
                return Fraction(at(a, numbers) - at(b, numbers))

            words = {step.word for node in (a, b) for step in node.steps() if step.kind == "name"}
            sizes = {NAMES[letter.name] for w in words for letter in self.names[w].free_symbols}
            ours = {"seq_len" if name == "kv_len" else name for name in sizes}
            return Gap(tuple(sorted(ours)), value)

        return [gap(a, b) for a, b in crossings(self.tree)]


class Evidence:
    """What is known of a formula, or a function, by numbers: its value at the model's sizes; where
    that is right, how it compares at others; where it is wrong, its values at small ones (`cases`).

    Of so many `planned` others some were `compared`, and at some it `raised` an error or gave an
    `inexact` float. `differs` is where the two differ, made small; `fixed` the sizes at which alone
    it gave an answer, though others were tried; `late` says that the time ran out. `text` is what a
    function makes of letters, and `unsure` why letters, though they agree, do not decide.
    """

    def __init__(self, value: Fraction, notes: list[str]) -> None:
        self.value, self.notes = value, notes
        self.text: str | None = None
        self.unsure: str | None = None
        self.cases: list[tuple[Case, Fraction]] = []
        self.planned = self.compared = self.raised = self.inexact = 0
        self.is_compared = self.late = False
        self.differs: tuple[Case, Fraction] | None = None
        self.fixed: dict[str, int] = {}

    @property
    def is_sure(self) -> bool:
        """Whether all that was planned was compared, and nothing makes letters unsure."""
        return self.is_compared and self.compared == self.planned and self.unsure is None

    @property
    def verdict(self) -> str:
        """The verdict on what is right at the model's sizes."""
        if self.differs is not None or (self.fixed and self.compared):
            return HERE
        return TRIED if self.compared else UNTRIED

    @property
    def condition(self) -> str | None:
        """Where it is right, if it gives an error elsewhere."""
        if not self.fixed or not self.compared:
            return None
        sizes = " and ".join(f"{name} = {size}" for name, size in self.fixed.items())
        return f"{sizes} (it gives an error at all others that were tried)"

    def undecided(self) -> list[str]:
        """Say why equal numbers are not called equal for all sizes."""
        return [] if self.unsure is None else [f"not decided for all sizes: {self.unsure}"]

    def not_compared(self) -> list[str]:
        """Say what of the planned comparison was not done, and why."""
        done = self.compared + self.raised + self.inexact
        where = f"of {done} other sizes"
        notes = {
            f"at {self.raised} {where} the formula gives an error": self.raised,
            f"at {self.inexact} {where} it gives a float beyond 2^53, which cannot be "
            "compared": self.inexact,
            f"the time ran out: {self.planned} other sizes were planned, {done} tried; "
            "--timeout gives it more": self.late,
        }
        return [note for note, holds in notes.items() if holds]

    def try_others(
        self,
        others: Iterable[Case],
        value: Callable[[Case], Fraction | None],
        case: Case,
        quantity: str,
        late: Callable[[], bool],
    ) -> list[tuple[Case, Fraction]]:
        """Compare up to the first difference or until `late`; return what `value` gave."""
        others = [_comparable(other, case, quantity) for other in others]
        self.planned, self.is_compared = len(others), True
        given_at: list[tuple[Case, Fraction]] = []
        tried, answered = list[dict[str, int]](), list[dict[str, int]]()
        for other in others:
            if late():
                self.late = True
                break
            tried.append(sizes_of(other))
            try:
                given = value(other)
            except (InputError, ZeroDivisionError):
                self.raised += 1
                continue
            answered.append(tried[-1])
            if given is None:
                self.inexact += 1
                continue
            self.compared += 1
            given_at.append((other, given))
            if given != count_of(*other, quantity):
                self.differs = _smallest(other, given, value, quantity)
                return given_at
        if self.raised:
            self.fixed = {
                name: size
                for name, size in sizes_of(case).items()
                if any(sizes.get(name, size) != size for sizes in tried)
                and all(sizes.get(name, size) == size for sizes in answered)
            }
        return given_at

    def to_data(self) -> Json:
        """Convert it to what a process can send to another."""
        data: Json = {**vars(self), "value": str(self.value)}
        cases = [self.differs] if self.differs is not None else self.cases
        data["cases"] = [[*(side.to_dict() for side in case), str(n)] for case, n in cases]
        return {**data, "differs": self.differs is not None}

    @classmethod
    def from_data(cls, data: Json, like: ModelSpec) -> Evidence:
        """Read what `to_data` gave, of models of the structure of `like`."""
        evidence = cls(Fraction(data["value"]), [printable(note) for note in data["notes"]])
        for name in vars(evidence).keys() - {"value", "notes"}:
            setattr(evidence, name, data[name])
        # unchecked, as it was sent: it may have sizes that no rule of ours allows
        evidence.cases = [
            ((like.substituted(**spec), Workload(**workload)), Fraction(value))
            for spec, workload, value in data["cases"]
        ]
        evidence.differs = evidence.cases.pop() if data["differs"] else None
        return evidence


def _comparable(other: Case, case: Case, quantity: str) -> Case:
    """Return `other` in the dtype of `case`, where the quantity is of one dtype."""
    if not holds_dtype(quantity):
        return other
    return other[0], Workload(**{**other[1].to_dict(), "dtype": case[1].dtype})


SMALL_CASES = 60  # small sizes at which a wrong formula is evaluated, to find the mistake


def small_cases(
    case: Case,
    value: Callable[[Case], Fraction | None],
    late: Callable[[], bool],
    used: set[sympy.Symbol],
) -> list[tuple[Case, Fraction]]:
    """Evaluate a wrong formula at small sizes, from which the mistake may be told.

    What of a run it does not use stays as it is: a number may stand for it. In every second case
    those sizes are equal that are equal in the model.
    """
    fixed = {"batch_size": LETTERS["batch_size"], "dtype": BYTES_LETTER}
    run = {name: getattr(case[1], name) for name, letter in fixed.items() if letter not in used}
    if not used & {LETTERS["seq_len"], LETTERS["kv_len"]}:
        run["seq_len"] = case[1].seq_len
    cases: list[tuple[Case, Fraction]] = []
    for i, (spec, workload) in enumerate(random_cases(*case, SMALL_CASES)):
        if late():
            break
        with suppress(InputError, SpecError, ZeroDivisionError):
            spec = alike(case[0], spec) if i % 2 else spec
            other = spec, Workload(**{**workload.to_dict(), **run})
            if (given := value(other)) is not None:
                cases.append((other, given))
    return cases


TO_SHRINK = 1  # seconds for making a counterexample small


def _smallest(
    case: Case, given: Fraction, value: Callable[[Case], Fraction | None], quantity: str
) -> tuple[Case, Fraction]:
    late = passed(TO_SHRINK)
    last = case, given

    def differs(other: Case) -> bool:
        nonlocal last
        if late() or other != _comparable(other, case, quantity):
            return False
        with suppress(InputError, ZeroDivisionError):
            now = value(other)
            if now is not None and now != count_of(*other, quantity):
                last = other, now
                return True
        return False

    shrunk(case, differs)
    return last
