"""Sizes that are symbols while somebody's code runs, and what that code asked of them.

torch's `SymInt` carries an expression through Python and through shapes. Where code asks a question
that a symbol cannot answer (a comparison, a division), the answer is that of the number behind the
symbol, its hint; what was asked becomes part of the domain in which the resulting form holds.

Also here: whose error ends a trace, numbers of chunks, pairs that a mask keeps, and what a process
shares that is changed while code is traced.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import logging
import math
import numbers
import os
import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy
import sympy
import torch
import transformers

from metacount import modules
from metacount.errors import SpecError
from metacount.measure.torch_private import (
    any_fan,
    symbolic_shapes,
    symbolic_size,
    symbols_in_products,
    unwatched,
)
from metacount.measure.transformers_private import bias_unstretched, type_check
from metacount.modules.attention import Visibility
from metacount.tensors import ONE_AT_A_TIME

if TYPE_CHECKING:
    from collections.abc import Callable

    Number: TypeAlias = float | torch.SymInt | torch.SymFloat
    Check: TypeAlias = Callable[[str, object, type], None]


# Code that is read, and what it calls: an error with one of these files on its way is theirs.
READ = tuple(
    os.path.dirname(os.path.abspath(str(package.__file__)))
    for package in (transformers, modules, torch.nn)
)


class OurError(RuntimeError):
    """An error in the tracing itself, where `As.strict` asked for it."""


def is_of_that_code(error: BaseException) -> bool:
    """Tell whether an error was raised in code that is only run here, or itself says what is wrong.

    >>> is_of_that_code(NotTraced("a number computed from data")), is_of_that_code(KeyError("S"))
    (True, False)
    """
    if isinstance(error, NotTraced | SpecError):
        return True
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename.startswith(READ):
            return True
        frame = frame.tb_next
    return error.__cause__ is not None and is_of_that_code(error.__cause__)


SMALLEST = 3  # torch's code asks of every size, and of S - 1, whether it is 0 or 1


class NotTraced(RuntimeError):
    """What the code does with a size has no closed form here; the message says what it is."""


class NeedsLength(NotTraced):
    """The code goes through the tokens one by one, or in so many pieces."""


class WrongHint(NotTraced):
    """Another number behind S may do where this one did not."""


def symbol(name: str) -> sympy.Symbol:
    """Make the SymPy symbol of one size: a positive whole number."""
    return sympy.Symbol(name, integer=True, positive=True)


class Sizes:
    """The symbolic sizes of one build, by name, and the numbers they stand for."""

    def __init__(self) -> None:
        self.env, self.mode = symbolic_shapes()
        self.hints: dict[sympy.Symbol, int] = {}
        self._letters: dict[sympy.Symbol, sympy.Symbol] = {}
        self._plain: dict[sympy.Basic, sympy.Basic] = {}
        self.conditions: dict[sympy.Basic, None] = {}
        self.stay_numbers: frozenset[str] = frozenset()  # names that get no symbol

    def new(self, name: str, hint: int) -> int | torch.SymInt:
        """Make a size of that name that is `hint` wherever code must know a number."""
        if name in self.stay_numbers:
            return hint
        raw, made = symbolic_size(self.env, name, hint)
        letter = symbol(name)
        self._letters[raw] = letter
        self.hints[letter] = hint
        return made

    def of_run(self, seq_len: int) -> None:
        """Take the number behind S of an earlier run again: what that run asked is true there."""
        if self.hints.get(symbol("S"), seq_len) != seq_len:
            self.hints[symbol("S")] = seq_len
            self._plain.clear()

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Give tensors symbolic sizes and no data in the block."""
        with symbols_as_numbers(), self.mode, symbols_in_products():
            yield

    def expr(self, size: int | torch.SymInt) -> sympy.Expr:
        """Write a size as a SymPy expression in the names of sizes.

        Floors of quotients that are exact at the hints become quotients, under a condition.
        """
        if not isinstance(size, torch.SymInt):
            return sympy.Integer(size)
        return sympy.expand(self.plain(self.env.replace(size.node.expr)))

    @property
    def constants(self) -> dict[sympy.Symbol, int]:
        """Sizes that the code turned into numbers."""
        constants = {}
        for raw, letter in self._letters.items():
            now = self.env.replace(raw)
            if now.is_Integer:
                constants[letter] = int(now)
        return constants

    @property
    def equalities(self) -> list[sympy.Rel]:
        """Sizes that the code made equal to others: each as a relation."""
        relations = []
        for raw, letter in self._letters.items():
            now = self.env.replace(raw)
            if now != raw and not now.is_Integer:
                relations.append(sympy.Eq(letter, self.plain(now), evaluate=False))
        return relations

    def value(self, expr: sympy.Basic) -> sympy.Basic:
        """Evaluate an expression at the hints, exactly."""
        return expr.xreplace({s: sympy.Integer(self.hints[s]) for s in expr.free_symbols})

    def holds(self, relation: sympy.Rel) -> bool:
        """Tell whether a relation of plain expressions is true at the hints."""
        return bool(self.value(relation))

    def plain(self, raw: sympy.Basic) -> sympy.Basic:
        """Write torch's expression in SymPy's words, under `conditions` where it was cut."""
        if raw not in self._plain:
            self._plain[raw] = self._made_plain(raw)
        return self._plain[raw]

    def unread(self, raw: sympy.Basic) -> unread:
        """Write what was asked in torch's words, where SymPy has none."""
        named = raw.xreplace(self._letters)
        letters = sorted(named.free_symbols & set(self.hints), key=str)
        return unread(sympy.Symbol(str(named)), *letters)

    def _made_plain(self, raw: sympy.Basic) -> sympy.Basic:
        if raw in self._letters:
            return self._letters[raw]
        if not raw.args:
            if raw.is_Symbol:
                raise NotTraced(f"a number computed from data ({raw}) decides about a size")
            # 0.5 of a head is a half
            return sympy.nsimplify(raw, rational=True) if raw.is_Float else raw
        kind = type(raw).__name__
        args = [self.plain(arg) for arg in raw.args]
        if kind in ("FloorDiv", "CleanDiv"):
            return self._quotient(args)
        if kind in ("ToFloat", "Identity"):
            return args[0]
        if kind in ("IntTrueDiv", "FloatTrueDiv"):
            return args[0] / args[1]
        if kind in ("TruncToInt", "FloorToInt"):
            return self._quotient(list(args[0].as_numer_denom()))
        if kind in ("Mod", "PythonMod"):
            return self._remainder(*args)
        if kind in ("Max", "Min"):
            return self._extreme(kind, args)
        if isinstance(raw, sympy.Not):
            return sympy.to_nnf(sympy.Not(args[0]))
        if isinstance(raw, sympy.Add | sympy.Mul | sympy.Pow | sympy.Rel | sympy.And | sympy.Or):
            return raw.func(*args)
        raise NotTraced(f"{kind} of sizes: {str(raw)[:80]}")

    def _quotient(self, args: list[sympy.Expr]) -> sympy.Expr:
        above, below = args
        quotient = sympy.cancel(above / below)
        if quotient.is_integer:
            return quotient
        if self.value(above) % self.value(below) == 0:
            self.conditions[divides(below, above)] = None
            return quotient
        extra, rest = above.as_coeff_Add()
        if below.is_Integer and 0 < extra < below and self.value(rest) % below == 0:
            # (x + 1)//2 of an even x
            self.conditions[divides(below, rest)] = None
            return rest / below
        quotient = sympy.cancel(rest / below)
        if quotient.is_integer and -SMALLEST <= extra < 0:
            return quotient - 1  # (3·x - 1)//x
        return sympy.floor(above / below)

    def _remainder(self, above: sympy.Expr, below: sympy.Expr) -> sympy.Expr:
        quotient = sympy.cancel(above / below)
        if quotient.is_integer:
            return sympy.Integer(0)
        if self.value(above) % self.value(below) == 0:
            self.conditions[divides(below, above)] = None
            return sympy.Integer(0)
        if not above.free_symbols:
            return sympy.Mod(above, below)
        quotient = sympy.floor(sympy.expand(above / below)).replace(
            lambda e: isinstance(e, sympy.floor) and e.args[0].could_extract_minus_sign(),
            lambda e: -sympy.ceiling(-e.args[0]),
        )
        return sympy.expand(above - below * quotient)

    def _extreme(self, kind: str, args: list[sympy.Expr]) -> sympy.Expr:
        best = (max if kind == "Max" else min)(args, key=self.value)
        for other in args:
            if other is not best:
                relation = sympy.Ge(best, other) if kind == "Max" else sympy.Le(best, other)
                self.conditions[relation] = None
        return best


class unread(sympy.Function):
    """A condition in torch's own words: the first argument; the sizes in it follow."""


class divides(sympy.Function):
    """The condition that the first divides the second."""

    nargs = 2


def known_counts(domain: Iterable[sympy.Basic]) -> dict[sympy.Expr, sympy.Expr]:
    """Find numbers for ⌈S/c⌉: 1 where a domain says S ≤ c, n where it says ⌈S/c⌉ = n."""
    counts = {}
    for relation in domain:
        if not isinstance(relation, sympy.Rel):
            continue
        left, right = relation.args
        if isinstance(relation, sympy.Eq) and isinstance(left, sympy.ceiling) and right.is_Integer:
            counts[left] = right
        size = right.is_Symbol or right.is_Integer
        if isinstance(relation, sympy.Le | sympy.Lt) and left.is_Symbol and size:
            counts[sympy.ceiling(left / right)] = sympy.Integer(1)
    return counts


def in_one_chunk(relation: sympy.Rel) -> sympy.Rel:
    """Write ⌈S/c⌉ = 1 as S ≤ c."""
    if isinstance(relation, sympy.Eq) and isinstance(relation.lhs, sympy.ceiling):
        above, below = relation.lhs.args[0].as_numer_denom()
        if relation.rhs == 1:
            return sympy.Le(above, below, evaluate=False)
    return relation


def always(relation: sympy.Basic) -> bool:
    """Tell whether a relation only says that x, rounded up, is not below x: S ≤ c·⌈S/c⌉."""
    if not isinstance(relation, sympy.Le | sympy.Ge):
        return False
    more = sympy.Dummy("more", nonnegative=True)
    difference = sympy.expand(
        (relation.gts - relation.lts).replace(sympy.ceiling, lambda x: x + more)
    )
    return bool(difference.is_nonnegative)


SIZES = ("n_queries", "n_keys", "window", "prefix_len")
LARGEST = 25  # rows of a mask that is laid out, and twice the numbers that stand for a size
LARGEST_NUMBER = 512  # of those: masks grow with their square
POINTS = 80
DRAWS = 4000
HELD_OUT = 6  # at the least; as many as there are points


def kept_pairs(sees: Visibility, sizes: Sizes) -> sympy.Expr:
    """Count the pairs that the mask keeps, in the letters of its sizes. Raises `NotTraced`.

    On which side of the window the lengths are, that a window halves evenly, that chunks fit in:
    what the polynomial needs of that becomes a condition. Both axes must begin at 0.
    """
    if any(sizes.value(sizes.expr(start)) != 0 for start in (sees.query_start, sees.key_start)):
        raise NotTraced("the mask begins in the middle of a sequence")
    exprs = {
        name: sizes.expr(getattr(sees, name)) for name in SIZES if getattr(sees, name) is not None
    }
    letters = sorted(set().union(*(e.free_symbols for e in exprs.values())), key=str)
    largest = LARGEST + 2 * max((int(e) for e in exprs.values() if e.is_Integer), default=0)
    if largest > LARGEST + 2 * LARGEST_NUMBER:
        raise NotTraced(f"masks for a size of {(largest - LARGEST) // 2} are too large to lay out")
    if sees.kind == "bidirectional" and "window" in exprs:
        _must_be_even(exprs["window"], sizes)
    marks = _marks(sees.kind, exprs)
    chunked = sees.chunked and "window" in exprs
    chunks = (exprs["n_keys"] / exprs["window"]) if chunked else sympy.Integer(1)
    for kept_marks, fits in ([], False), (marks, False), (marks, True):
        if fits and not sizes.value(chunks).is_integer:
            continue
        order = _order([sizes.value(mark) for mark in kept_marks])
        every = (
            p
            for p in _points(letters, exprs, kept_marks, order, largest)
            if not fits or _at(chunks, letters, p).is_integer
        )
        form = _solved(sees, exprs, letters, list(itertools.islice(every, POINTS)))
        if form is None:
            continue
        for longer, shorter in itertools.permutations(kept_marks, 2):
            if sizes.holds(sympy.Ge(longer, shorter)) and (longer - shorter).free_symbols:
                sizes.conditions[sympy.Ge(longer, shorter)] = None
        if fits:
            sizes.conditions[divides(exprs["window"], exprs["n_keys"])] = None
        return form
    raise WrongHint("the pairs that the mask keeps are no polynomial of its sizes")


def _at(expr: sympy.Expr, letters: list[sympy.Symbol], point: tuple[int, ...]) -> sympy.Expr:
    return expr.xreplace(dict(zip(letters, map(sympy.Integer, point), strict=True)))


def _must_be_even(window: sympy.Expr, sizes: Sizes) -> None:
    if not window.free_symbols:
        return  # a number is rounded once and for all
    if sizes.value(window) % 2:
        raise NotTraced("a window to both sides of an odd width rounds down")
    sizes.conditions[divides(sympy.Integer(2), window)] = None


def _marks(kind: str, exprs: dict[str, sympy.Expr]) -> list[sympy.Expr]:
    """List where the form of the count changes: lengths, how far a window reaches, the prefix."""
    marks = [exprs["n_queries"], exprs["n_keys"]]
    if "window" in exprs:
        window = exprs["window"]
        half = window // 2 if window.is_Integer else window / 2
        marks.append(half + 1 if kind == "bidirectional" else window)
    if exprs["prefix_len"] != 0:
        marks.append(exprs["prefix_len"])
    return list(dict.fromkeys(marks))


def _points(
    letters: list[sympy.Symbol],
    exprs: dict[str, sympy.Expr],
    marks: list[sympy.Expr],
    order: tuple[int, ...],
    largest: int,
) -> Iterator[tuple[int, ...]]:
    """Draw numbers for the letters for which the marks stand in the same order as at the hints."""
    draw = random.Random(str(exprs))
    seen = set()
    for _ in range(DRAWS):
        numbers = tuple(draw.randrange(2, largest) for _ in letters)
        at = dict(zip(letters, map(sympy.Integer, numbers), strict=True))
        values = [mark.xreplace(at) for mark in (*marks, *exprs.values())]
        fits = all(value.is_Integer and value >= 0 for value in values)
        if numbers not in seen and fits and _order(values[: len(marks)]) == order:
            seen.add(numbers)
            yield numbers


def _order(values: list[sympy.Expr]) -> tuple[int, ...]:
    numbers = [int(value) for value in values]
    return tuple((a > b) - (a < b) for a, b in itertools.combinations(numbers, 2))


def _solved(
    sees: Visibility,
    exprs: dict[str, sympy.Expr],
    letters: list[sympy.Symbol],
    points: list[tuple[int, ...]],
) -> sympy.Expr | None:
    """Find the polynomial through some points that the others confirm; None if none."""

    def counted(point: tuple[int, ...]) -> int:
        numbers: dict[str, Any] = {n: int(_at(e, letters, point)) for n, e in exprs.items()}
        with unwatched():
            mask = dataclasses.replace(sees, query_start=0, key_start=0, **numbers)
            return int(mask.keep(torch.device("cpu")).sum())

    terms = [
        sympy.Mul(*(x**p for x, p in zip(letters, powers, strict=True)))
        for powers in itertools.product(range(3), repeat=len(letters))
        if sum(powers) <= 2
    ]
    used: list[tuple[int, ...]] = []
    rows: list[list[sympy.Expr]] = []
    for point in points:
        row = [_at(term, letters, point) for term in terms]
        if sympy.Matrix([*rows, row]).rank() > len(rows):
            rows.append(row)
            used.append(point)
        if len(rows) == len(terms):
            break
    held_out = [p for p in points if p not in used]
    if len(rows) < len(terms) or len(held_out) < HELD_OUT:
        return None
    solution = sympy.Matrix(rows).LUsolve(sympy.Matrix([counted(p) for p in used]))
    form = sympy.expand(sum(c * t for c, t in zip(solution, terms, strict=True)))
    return form if all(_at(form, letters, p) == counted(p) for p in held_out) else None


K = TypeVar("K")

SYMBOLIC = (torch.SymInt, torch.SymFloat)
ROPE = "transformers.modeling_rope_utils"
OURS = "metacount.modules."


class _Whole(type):
    """`int` for code that is traced: a symbol is one, and stays one."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, int | torch.SymInt)

    def __call__(cls, *args: Any, **kwargs: Any) -> int | torch.SymInt:
        if args and isinstance(args[0], SYMBOLIC):
            number: torch.SymInt = torch.sym_int(args[0])
            return number
        return int(*args, **kwargs)


class _TracedInt(metaclass=_Whole):
    pass


def _number(value: Number) -> float:
    """Return the number behind a symbol, without adding a condition to the domain."""
    return value.node.hint if isinstance(value, SYMBOLIC) else value


class _Math(ModuleType):
    """`math` for code that is traced: roots and logarithms of sizes are numbers.

    They scale values and are no sizes. Where one becomes a size after all, the form is wrong at
    other sizes, which is found out there.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(math, name)

    def sqrt(self, x: Number) -> float:
        return math.sqrt(_number(x))

    def log(self, x: Number, *base: Number) -> float:
        return math.log(_number(x), *map(_number, base))

    def log2(self, x: Number) -> float:
        return math.log2(_number(x))


class _RopeMath(_Math):
    """In the making of rotary tables, whose widths are given, nothing that is rounded is a size."""

    def floor(self, x: Number) -> int:
        return math.floor(_number(x))

    def ceil(self, x: Number) -> int:
        return math.ceil(_number(x))


class _Numpy(ModuleType):
    """NumPy for code that is traced: roots of sizes are numbers, as in `_Math`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(numpy, name)

    def sqrt(self, x: Number) -> object:
        return numpy.sqrt(_number(x))


@contextmanager
def symbols_as_numbers() -> Iterator[None]:
    """Let a symbol pass for a whole number to torch and the library, in the block."""
    with ONE_AT_A_TIME, any_fan(), ExitStack() as undone:
        # torch.nn asks whether a size is an Integral
        numbers.Integral.register(torch.SymInt)
        # what torch logs of a failed attempt comes back as an exception
        undone.callback(logging.disable, logging.root.manager.disable)
        logging.disable(logging.CRITICAL)
        # some code copies its config: a copied symbol would belong to another environment
        copied: dict[object, object] = vars(copy)["_deepcopy_dispatch"]
        undone.enter_context(_put(copied, torch.SymInt, lambda size, _memo: size))
        yield


@contextmanager
def with_symbols(chosen: type) -> Iterator[None]:
    """Let `int(a / b)`, `isinstance(a, int)`,
    `math.sqrt(a)` in a class's files take symbols until the block ends.

    These files are those of transformers' models, or of our reference modules.

    So do the fields of strict configs. A tied head's bias is not stretched to the vocabulary's
    length, which is its own: that asks for numbers.
    """
    files = {c.__module__ for c in chosen.__mro__ if ".models." in c.__module__}
    own = {name for name in sys.modules if name.startswith(OURS)}
    files |= own if chosen.__module__ in own else {ROPE}
    with ONE_AT_A_TIME, ExitStack() as undone:
        for name in sorted(files):
            space = vars(sys.modules[name])
            undone.enter_context(_put(space, "int", _TracedInt))
            if space.get("math") is math:
                made = (_RopeMath if name == ROPE else _Math)("math")
                undone.enter_context(_put(space, "math", made))
            if space.get("np") is numpy:
                undone.enter_context(_put(space, "np", _Numpy("numpy")))
        if (check := type_check()) is not None:
            space, name, plain = check
            undone.enter_context(_put(space, name, _or_symbol(plain)))
        undone.enter_context(bias_unstretched(chosen))
        yield


@contextmanager
def _put(space: dict[K, object], name: K, value: object) -> Iterator[None]:
    """Put another value under a name, for a while."""
    had, before = name in space, space.get(name)
    space[name] = value
    try:
        yield
    finally:
        if had:
            space[name] = before
        else:
            del space[name]


def _or_symbol(validate: Check) -> Check:
    def check(name: str, value: object, expected: type) -> None:
        if not (expected is int and isinstance(value, torch.SymInt)):
            validate(name, value, expected)

    return check
