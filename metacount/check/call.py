"""Calling somebody's function: with letters, which may decide for all sizes, and with numbers.

This runs where the function runs: in a process of its own for a file, else in the caller's.
"""

from __future__ import annotations

import inspect
import math
import operator
import types
from contextlib import suppress
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import sympy

from metacount.algebra.exact import value_at
from metacount.algebra.limits import TooLong, limited, passed
from metacount.algebra.text import MAX_BITS, read
from metacount.check.comparison import Evidence, Theirs, count_of, of_the_run, small_cases
from metacount.check.letters import Asked, Code, Letter, Session
from metacount.check.names import Vocabulary, numbers_of, structure_of
from metacount.check.sizes import Case, places
from metacount.errors import InputError, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


OBJECTS = ("config", "cfg", "spec", "args", "hparams", "model_config")


class Arguments:
    """The arguments of a function: letters, or the numbers of a case."""

    def __init__(self, function: Callable[..., object], words: Vocabulary, name: str) -> None:
        self.words, self.notes = words, list[str]()
        self.sizes: dict[str, sympy.Expr] = {}
        self.fixed: dict[str, object] = {}
        self.object: str | None = None
        self.known: dict[str, object] = {}  # what names asked of the object mean
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):
            raise InputError(f"{name}: its arguments cannot be seen; write it in Python") from None
        several = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        wanted = [argument for argument in parameters if argument.kind not in several]
        sizes = [argument.name for argument in wanted if words.knows(argument.name)]
        for argument in wanted:
            optional = argument.default is not argument.empty
            if argument.kind is argument.POSITIONAL_ONLY:
                raise InputError(
                    f"{name}: {argument.name} can only be given by position; leave the / out"
                )
            if argument.name in OBJECTS and not optional:
                if self.object is not None:
                    both = f"{self.object} and {argument.name}"
                    raise InputError(f"{name}: takes two objects, {both}; one is enough")
                self.object = argument.name
                continue
            try:
                self._give(argument.name, sizes)
            except InputError as error:
                if not optional:
                    raise InputError(f"{name}: the argument {error}") from None
                self.note(f"{argument.name} keeps its default, {shown(argument.default)}")
        self.notes += words.notes

    def _give(self, argument: str, sizes: list[str]) -> None:
        if argument not in sizes and (value := self.structure(argument)) is not None:
            self.fixed[argument] = value[0]
            return
        with suppress(InputError):
            # all names together: what one of them means may settle another
            if argument in sizes:
                self.sizes[argument] = self.words.meanings(sizes)[argument]
                return
        self.sizes[argument] = self.words.meanings([argument])[argument]

    def structure(self, name: str) -> tuple[object] | None:
        """Look up a value that is not a size: a key of the model's config, or a field of ours."""
        if name in self.words.config and not self.words.knows(name):
            return (self.words.config[name],)
        value = structure_of(self.words.spec, name)
        biases = [b for b in "qkvo" if getattr(self.words.spec, f"{b}_bias")]
        if value is not None and "bias" in name and 0 < len(biases) < 4:
            self.note(
                f"{name} is given as {value[0]}: {self.words.model} has biases on "
                f"{', '.join(biases)} only"
            )
        return value

    def note(self, text: str) -> None:
        """Remember something worth saying, once."""
        if text not in self.notes:
            self.notes.append(text)

    def in_letters(self, session: Session) -> dict[str, object]:
        """Return the arguments as letters; what is fixed by structure is a number."""

        def letter(expr: sympy.Expr) -> int | Letter:
            return int(expr) if expr.is_Integer else session.letter(str(expr))

        return self._arguments(letter)

    def at(self, case: Case) -> dict[str, object]:
        """Return the arguments as the numbers of `case`."""
        numbers = numbers_of(*case)
        return self._arguments(lambda expr: int(value_at(expr, numbers)))

    def _arguments(self, of: Callable[[sympy.Expr], object]) -> dict[str, object]:
        given = {argument: of(expr) for argument, expr in self.sizes.items()}
        given.update(self.fixed)
        if self.object is not None:
            given[self.object] = _object(self, of)
        return given

    def used(self) -> set[sympy.Symbol]:
        """Return the letters of all sizes that the function was given or has asked for."""
        exprs = [*self.sizes.values(), *self.known.values()]
        return {a for expr in exprs for a in getattr(expr, "free_symbols", ())}

    def asked(self, name: str) -> object:
        """Return what the object means by `name`: an expression, or a tuple of a value."""
        if name not in self.known:
            self.known[name] = self._meaning(name)
        return self.known[name]

    def _meaning(self, name: str) -> object:
        is_size = self.words.knows(name)
        if not is_size and (value := self.structure(name)) is not None:
            return value
        try:
            meaning = self.words.meanings([name])[name]
        except InputError as error:
            if not is_size:
                self.note(
                    f"the function asks for {shown(name)}, which is not known here: where it "
                    "has a default of its own, that is taken"
                )
            return error
        for note in self.words.notes:
            self.note(note)
        return meaning


def _object(arguments: Arguments, of: Callable[[sympy.Expr], object]) -> object:
    """Build a config: sizes as attributes and as items, under any spelling.

    What it holds lies in this call's frame, where the function cannot look.
    """

    def size(name: object) -> object:
        if not isinstance(name, str):
            raise KeyError(name)
        meaning = arguments.asked(name)
        if isinstance(meaning, InputError):
            raise KeyError(str(meaning))
        return meaning[0] if isinstance(meaning, tuple) else of(meaning)

    def get(name: object, default: object = None) -> object:
        """Return the size `name`, or `default` where the model has none."""
        try:
            return size(name)
        except KeyError:
            return default

    class Config:
        __slots__ = ()

        def __getattribute__(self, name: str) -> object:
            if name in ("get", "__class__"):
                return get if name == "get" else Config
            try:
                return size(name)
            except KeyError as error:
                raise AttributeError(error.args[0]) from None

        def __getitem__(self, name: str) -> object:
            return size(name)

        def __contains__(self, name: str) -> bool:
            return get(name, size) is not size

        def __iter__(self) -> Iterator[str]:
            raise TypeError("its sizes have many spellings: ask for one by name")

    return Config()


FOR_TRIALS = 0.4  # share of the time that other sizes may take
FOR_LETTERS = 0.2
EXACT_FLOATS = 2**53  # a float holds every whole number up to here
LARGEST = 2**MAX_BITS
FLOATS = "the function returns floats; they are exact for whole numbers up to 2^53 only"


def ask(
    function: Callable[..., object], case: Case, words: Vocabulary, name: str, *, seconds: float
) -> Evidence:
    """Call `function` with letters, at the model's sizes and at others; `name` is for messages."""
    arguments = Arguments(function, words, name)
    notes = arguments.notes
    evidence = Evidence(_number(_called(function, arguments.at(case), name), name, notes), notes)
    code = Code(function)
    theirs = _in_letters(function, arguments, code, evidence, seconds * FOR_LETTERS)

    def value(other: Case) -> Fraction | None:
        """Return the exact value of the function; None where a float cannot be exact."""
        given = _called(function, arguments.at(other), name)
        number = _number(given, name, notes)
        return None if isinstance(given, float) and abs(number) > EXACT_FLOATS else number

    late, used = passed(seconds * FOR_TRIALS), arguments.used()
    if evidence.value == count_of(*case, words.quantity):
        gaps = () if theirs is None else theirs.gaps()
        others = places(case, code.numbers, gaps, run=of_the_run(words.quantity, used))
        values = evidence.try_others(others, value, case, words.quantity, late)
    else:
        values = evidence.cases = small_cases(case, value, late, used)
    values = [(case, evidence.value), *values]
    if theirs is not None and any(theirs.value(other) != given for other, given in values):
        evidence.unsure = "letters and numbers take different ways through it"
        evidence.text = None
    return evidence


def _called(function: Callable[..., object], arguments: dict[str, object], name: str) -> object:
    try:
        return function(**arguments)
    except MemoryError:
        raise InputError(f"{name}: ran out of memory") from None
    except (TooLong, KeyboardInterrupt):  # the limit's, and whoever sits at the keyboard
        raise
    except SystemExit:
        raise InputError(f"{name}: ended the process; return a number instead") from None
    except BaseException as error:
        reason = error.args[0] if isinstance(error, KeyError) and error.args else error
        raise InputError(
            f"{name}: raised {type(error).__name__} at the sizes of the model: {_shown(reason)}"
        ) from None


def _shown(error: object) -> str:
    try:
        return shown(error)
    except BaseException:  # its own __str__ may be anything
        return "an error that cannot be shown"


def _number(value: Any, name: str, notes: list[str]) -> Fraction:
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
        if FLOATS not in notes:
            notes.append(FLOATS)
        return Fraction(value)
    if isinstance(value, sympy.Rational):
        return Fraction(int(value.p), int(value.q))
    try:
        return Fraction(operator.index(value))
    except TypeError:
        raise InputError(f"{name}: returned a {type(value).__name__}; return a number") from None


def _in_letters(
    function: Callable[..., object],
    arguments: Arguments,
    code: Code,
    evidence: Evidence,
    seconds: float,
) -> Theirs | None:
    """Return what the function makes of letters; None, and why, where numbers must decide."""
    session = Session()
    try:
        with limited(seconds):
            given = _taking_letters(function, session, code)(**arguments.in_letters(session))
            text = session.text(given)
            formula = read(text)
            theirs = Theirs(formula.tree, arguments.words.meanings(formula.names))
    except TooLong:
        evidence.unsure = f"it takes more than {seconds:g} s with letters for sizes"
        return None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # int(), a comparison, its own check of what it was given
        if not session.asked and not isinstance(error, Asked):
            evidence.unsure = f"it raises {type(error).__name__} with letters for sizes"
            return None
    if session.asked:  # also where the function caught what ends the call
        evidence.unsure = f"it asks a size {session.asked[0]}"
        return None
    evidence.text, evidence.unsure = text, code.why
    if session.rounds and code.why is None:
        evidence.unsure = "it divides, and floats are rounded"
    return theirs


def _taking_letters(
    function: Callable[..., object], session: Session, code: Code
) -> Callable[..., object]:
    """Copy the function, and all that it calls, with a min and a max that take letters."""
    if not isinstance(function, types.FunctionType):
        return function
    spaces: dict[int, dict[str, object]] = {}
    copies: dict[int, types.FunctionType] = {}
    for each in code.functions:
        space = spaces.setdefault(
            id(each.__globals__),
            {
                "min": _either(min, session),
                "max": _either(max, session),
                **each.__globals__,
            },
        )
        copy = types.FunctionType(
            each.__code__, space, each.__name__, each.__defaults__, each.__closure__
        )
        copy.__kwdefaults__ = each.__kwdefaults__
        copies[id(each)] = copy
    for space in spaces.values():
        for name, value in [*space.items()]:
            if id(value) in copies:
                space[name] = copies[id(value)]
            elif value is min or value is max:
                space[name] = _either(min if value is min else max, session)
    return copies[id(function)]


def _either(plain: Callable[..., object], session: Session) -> Callable[..., object]:
    def choose(*values: object, **options: object) -> object:
        letters = not options and any(type(value) is Letter for value in values)
        if letters and len(values) > 1:
            return session.called(plain.__name__, *values)
        return plain(*values, **options)

    return choose
