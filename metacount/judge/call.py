"""Calling somebody's function: with letters, which decides for all sizes, and with numbers.

This runs where the function runs: in a process of its own for a file, else in the caller's.
"""

from __future__ import annotations

import inspect
import math
import operator
import time
import types
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import sympy

from metacount.judge.bounded import MAX_BITS
from metacount.judge.exact import value_at
from metacount.judge.text import parse
from metacount.judge.trials import random_cases, shrunk
from metacount.judge.truth import count_of
from metacount.judge.vocabulary import Vocabulary, numbers_of
from metacount.resolve import InputError, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from metacount.judge.trials import Case

TRIALS = 200
MOST_SECONDS = 3  # for the other sizes, and again to make a counterexample small
EXACT_FLOATS = 2**53  # a float holds every whole number up to here
LARGEST = 2**MAX_BITS
OBJECTS = ("config", "cfg", "spec", "args", "hparams", "model_config")
# Names that others give to what is structure here, not a size.
FLAGS = {"tie_word_embeddings": "tie_embeddings", "tied_embeddings": "tie_embeddings",
         "tie_embedding": "tie_embeddings", "tied": "tie_embeddings"}  # fmt: skip


class Answer:
    """What a function gave: an expression where it took letters, and numbers at many sizes."""

    def __init__(self, value: Fraction, notes: list[str]) -> None:
        self.text: str | None = None
        self.value, self.notes = value, notes
        self.cases: list[tuple[Case, Fraction]] = []
        self.small: tuple[Case, Fraction] | None = None  # where it differs, if anywhere


def ask(function: Callable[..., Any], case: Case, words: Vocabulary, name: str) -> Answer:
    """Call `function` with letters, at the model's sizes and at others; `name` is for messages."""
    arguments = Arguments(function, words, name)
    notes = arguments.notes
    value = _number(_called(function, arguments.at(case), name), name, notes)
    answer = Answer(value, notes)
    expr = _in_letters(function, arguments, words, notes)
    raised = 0
    until = time.monotonic() + MOST_SECONDS
    for other in random_cases(*case, TRIALS):
        if time.monotonic() > until:
            break
        try:
            given = _number(function(**arguments.at(other)), name, notes)
        except Exception:  # it may assert what holds for its own model only
            raised += 1
            continue
        answer.cases.append((other, given))
    if raised:
        tried = raised + len(answer.cases)
        notes.append(f"at {raised} of {tried} other sizes the function raised an error")
    if expr is not None and all(
        value_at(expr, numbers_of(*other)) == given
        for other, given in [(case, value), *answer.cases]
    ):
        # letters and numbers went the same way through its branches
        answer.text = str(expr)
        return answer

    until = time.monotonic() + MOST_SECONDS

    def differs(other: Case) -> bool:
        if time.monotonic() > until:
            return False
        try:
            given = _number(function(**arguments.at(other)), name, [])
        except Exception:
            return False
        return given != count_of(*other, words.quantity)

    for other, given in answer.cases:
        if given != count_of(*other, words.quantity):
            small = shrunk(other, differs)
            answer.small = small, _number(function(**arguments.at(small)), name, [])
            break
    return answer


class Arguments:
    """The arguments of a function, named in anybody's spelling, as sizes of a model."""

    def __init__(self, function: Callable[..., Any], words: Vocabulary, name: str) -> None:
        self.words, self.notes = words, list[str]()
        self.fixed: dict[str, Any] = {}
        self.object: str | None = None
        try:
            parameters = inspect.signature(function).parameters
        except (TypeError, ValueError):
            raise InputError(f"{name}: its arguments cannot be seen; write it in Python") from None
        wanted = []
        for argument in parameters.values():
            optional = argument.default is not argument.empty
            if argument.kind in (argument.VAR_KEYWORD, argument.VAR_POSITIONAL):
                continue
            if argument.kind is argument.POSITIONAL_ONLY:
                raise InputError(f"{name}: {argument.name} can only be given by position; "
                                 "leave the / out")  # fmt: skip
            if argument.name in OBJECTS and not optional:
                if self.object is not None:
                    raise InputError(f"{name}: takes two objects, {self.object} and "
                                     f"{argument.name}; one is enough")  # fmt: skip
                self.object = argument.name
            elif words.knows(argument.name):
                wanted.append((argument.name, optional, argument.default))
            elif (flag := _flag(words, argument.name)) is not None:
                self.fixed[argument.name] = flag[0]
            elif optional:
                self.notes.append(f"{argument.name} keeps its default, {shown(argument.default)}")
            else:
                self._unknown(argument.name, name)
        self.sizes = self._sizes(wanted, name)

    def _unknown(self, argument: str, name: str) -> None:
        try:
            self.words.meanings([argument])
        except InputError as error:
            raise InputError(f"{name}: the argument {error}") from None

    def _sizes(self, wanted: list[tuple[str, bool, Any]], name: str) -> dict[str, Any]:
        found, names = {}, [argument for argument, _, _ in wanted]
        for argument, optional, default in wanted:
            try:
                # all names together: what one of them means may settle another
                found[argument] = self.words.meanings([*names])[argument]
            except InputError:
                try:
                    found[argument] = self.words.meanings([argument])[argument]
                except InputError as error:
                    if not optional:
                        raise InputError(f"{name}: the argument {error}") from None
                    self.notes.append(f"{argument} keeps its default, {shown(default)}")
        return found

    def in_letters(self) -> dict[str, Any]:
        """Arguments that are letters."""
        return self._arguments(lambda expr: expr)

    def at(self, case: Case) -> dict[str, Any]:
        """Arguments that are the numbers of `case`."""
        numbers = numbers_of(*case)
        return self._arguments(lambda expr: int(value_at(expr, numbers)))

    def _arguments(self, of: Callable[[Any], Any]) -> dict[str, Any]:
        given = {argument: of(expr) for argument, expr in self.sizes.items()}
        given.update(self.fixed)
        if self.object is not None:
            given[self.object] = Sizes(self.words, of)
        return given


def _flag(words: Vocabulary, name: str) -> tuple[Any] | None:
    """The value of what is structure: a field of the spec, or a key of the model's own config."""
    values = words.spec.to_dict()
    ours = FLAGS.get(name, name)
    if ours in values:
        return (values[ours],)
    return (words.config[name],) if name in words.config else None


class Sizes:
    """A model's sizes as attributes and as items, under any spelling."""

    def __init__(self, words: Vocabulary, of: Callable[[Any], Any]) -> None:
        self.__dict__.update(_words=words, _of=of)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(error.args[0]) from None

    def __getitem__(self, name: str) -> Any:
        words: Vocabulary = self.__dict__["_words"]
        if not words.knows(name) and (flag := _flag(words, name)) is not None:
            return flag[0]
        try:
            return self.__dict__["_of"](words.meanings([name])[name])
        except InputError as error:
            raise KeyError(str(error)) from None

    def __contains__(self, name: str) -> bool:
        return hasattr(self, name)

    def __iter__(self) -> Iterator[str]:
        raise TypeError("its sizes have many spellings: ask for one by name")

    def get(self, name: str, default: Any = None) -> Any:
        """The size, or `default` where the model has none."""
        return getattr(self, name, default)


def _called(function: Callable[..., Any], arguments: dict[str, Any], name: str) -> Any:
    try:
        return function(**arguments)
    except MemoryError:
        raise InputError(f"{name}: ran out of memory") from None
    except Exception as error:
        said = error.args[0] if isinstance(error, KeyError) and error.args else error
        raise InputError(f"{name}: raised {type(error).__name__} at the sizes of the model: "
                         f"{shown(said)}") from None  # fmt: skip
    except SystemExit:
        raise InputError(f"{name}: ended the process; return a number instead") from None


def _number(value: Any, name: str, notes: list[str]) -> Fraction:
    """What a function returned, exactly."""
    if isinstance(value, int | Fraction) and abs(value) > LARGEST:
        raise InputError(
            f"{name}: returned a number of more than {MAX_BITS} bits; that is no count"
        )
    if isinstance(value, bool) or value is None:
        raise InputError(f"{name}: returned {value}; return a number")
    if isinstance(value, Fraction):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InputError(f"{name}: returned {value}; return a whole number")
        note = "the function returns floats; they are exact for whole numbers up to 2^53 only"
        if note not in notes:
            notes.append(note)
        return Fraction(value)
    if isinstance(value, sympy.Rational):
        return Fraction(int(value.p), int(value.q))
    try:
        return Fraction(operator.index(value))
    except TypeError:
        raise InputError(f"{name}: returned a {type(value).__name__}; return a number") from None


def _in_letters(
    function: Callable[..., Any], arguments: Arguments, words: Vocabulary, notes: list[str]
) -> Any:
    """The expression that the function gives for letters; None where it needs numbers."""
    try:
        result = sympy.sympify(_taking_letters(function)(**arguments.in_letters()), strict=True)
        read = _without_floats(result)
        if read is None:
            return None
        expr, said = parse(str(read), words.meanings)
    except Exception:  # int(), math.ceil, a comparison: none of them takes letters
        return None
    notes += said
    return expr


def _taking_letters(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function with a min and a max that take letters; the builtin ones cannot."""
    if not isinstance(function, types.FunctionType):
        return function
    known = {"min": _either(min, sympy.Min), "max": _either(max, sympy.Max)}
    copy = types.FunctionType(
        function.__code__,
        {**known, **function.__globals__},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _either(plain: Callable[..., Any], symbolic: Any) -> Callable[..., Any]:
    def choose(*values: Any, **options: Any) -> Any:
        letters = not options and any(isinstance(value, sympy.Basic) for value in values)
        return symbolic(*values) if letters and len(values) > 1 else plain(*values, **options)

    return choose


def _without_floats(expr: Any) -> Any:
    """Floats as the fractions they were meant as: 2.6666666666666665 is 8/3. None where unclear."""
    meant = {}
    for number in expr.atoms(sympy.Float):
        fraction = Fraction(float(number)).limit_denominator(1000)
        if float(fraction) != float(number):
            return None
        meant[number] = sympy.Rational(fraction.numerator, fraction.denominator)
    return expr.xreplace(meant)
