"""Calling somebody's function: with letters, which may decide for all sizes, and with numbers.

This runs where the function runs: in a process of its own for a file, else in the caller's.
"""

from __future__ import annotations

import math
import operator
import types
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import sympy

from metacount.algebra.limits import TooLong, limited, passed
from metacount.algebra.numeric import MAX_BITS
from metacount.algebra.text import read
from metacount.check.comparison import Theirs, of_the_run, small_cases, tried_at
from metacount.check.given.arguments import Arguments
from metacount.check.given.code import Code
from metacount.check.given.letters import Asked, Letter, Session
from metacount.check.places import places
from metacount.check.truth import count_of
from metacount.errors import InputError, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from metacount.check.comparison import Tried
    from metacount.check.given.vocabulary import Vocabulary
    from metacount.check.trials import Case

FOR_TRIALS = 0.4  # share of the time that other sizes may take
FOR_LETTERS = 0.2
FOR_WORDS = 60  # small sizes at which a wrong function is called, to find the mistake
EXACT_FLOATS = 2**53  # a float holds every whole number up to here
LARGEST = 2**MAX_BITS
FLOATS = "the function returns floats; they are exact for whole numbers up to 2^53 only"


class Answer:
    """What a function gave: an expression where it took letters, and numbers at many sizes.

    `cases` are small sizes, for the words about a wrong function; `tried` is the comparison at
    other sizes of one that is right here.
    """

    def __init__(self, value: Fraction, notes: list[str]) -> None:
        self.text: str | None = None
        self.unsure: str | None = None  # why letters, though they agree, do not decide
        self.value, self.notes = value, notes
        self.cases: list[tuple[Case, Fraction]] = []
        self.tried: Tried | None = None


def ask(
    function: Callable[..., object], case: Case, words: Vocabulary, name: str, *, seconds: float
) -> Answer:
    """Call `function` with letters, at the model's sizes and at others; `name` is for messages."""
    arguments = Arguments(function, words, name)
    answer = Answer(Fraction(0), arguments.notes)
    answer.value = _number(_called(function, arguments.at(case), name), name, answer.notes)
    code = Code(function)
    theirs = _in_letters(function, arguments, code, answer, seconds * FOR_LETTERS)

    def value(other: Case) -> Fraction | None:
        """Return the exact value of the function; None where a float cannot be exact."""
        given = _called(function, arguments.at(other), name)
        found = _number(given, name, answer.notes)
        return None if isinstance(given, float) and abs(found) > EXACT_FLOATS else found

    right = answer.value == count_of(*case, words.quantity)
    if right:
        gaps = () if theirs is None else theirs.gaps()
        others = places(case, code.numbers, gaps, run=of_the_run(words.quantity, arguments.used()))
        late = passed(seconds * FOR_TRIALS)
        answer.tried = tried_at(others, value, case, words.quantity, late)
        values = [(case, answer.value), *answer.tried.answered]
    else:
        late = passed(seconds * FOR_TRIALS)
        answer.cases = small_cases(case, value, FOR_WORDS, late, arguments.used())
        values = [(case, answer.value), *answer.cases]
    if theirs is not None:
        if all(theirs.value(other) == given for other, given in values):
            answer.text = theirs.text
        else:
            answer.unsure = "letters and numbers take different ways through it"
    return answer


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
        said = error.args[0] if isinstance(error, KeyError) and error.args else error
        raise InputError(
            f"{name}: raised {type(error).__name__} at the sizes of the model: {_said(said)}"
        ) from None


def _said(error: object) -> str:
    try:
        return shown(error)
    except BaseException:  # its own __str__ may be anything
        return "an error that cannot be shown"


def _number(value: Any, name: str, notes: list[str]) -> Fraction:
    """Convert what a function returned to a fraction, exactly."""
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
    answer: Answer,
    seconds: float,
) -> Theirs | None:
    """Return what the function makes of letters; None, and why, where numbers must decide."""
    session = Session()
    try:
        with limited(seconds):
            given = _taking_letters(function, session, code)(**arguments.in_letters(session))
            formula = read(session.text(given))
            names = arguments.words.meanings(formula.names)
    except TooLong:
        answer.unsure = f"it takes more than {seconds:g} s with letters for sizes"
        return None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # int(), a comparison, its own check of what it was given
        if not session.asked and not isinstance(error, Asked):
            answer.unsure = f"it raises {type(error).__name__} with letters for sizes"
            return None
    if session.asked:  # also where the function caught what ends the call
        answer.unsure = f"it asks a size {session.asked[0]}"
        return None
    answer.unsure = code.why
    if session.rounds and code.why is None:
        answer.unsure = "it divides, and floats are rounded"
    return Theirs(formula.tree, names, session.text(given))


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
            return session.choose(plain.__name__, values)
        return plain(*values, **options)

    return choose
