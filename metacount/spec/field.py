"""The declaration of a field, said once: name, letter, meaning, unit, limits, choices, default.

A part of a model is a frozen class whose fields are declared with `size`, `choice`, `flag`,
`number`, `pattern` or `record`: what a part has, and what it may be. What a field means, its letter
and unit and what others call it stand in `fields.tsv`, a row each, in the order of files and JSON.
What checks values, `--set`, the list of fields and the legend read both.
"""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.frozen import REQUIRED, dataclass_transform, frozen
from metacount.package import table_of_package

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, TypeVar

    T = TypeVar("T")

# Largest values accepted. A larger one is a typing error, not a model.
MAX_WIDTH = 2**24
MAX_LAYERS = 100_000
MAX_EXPERTS = 2**16
MAX_VOCAB = 2**30
MAX_TOKENS = 2**40

# By name: letter, unit, meaning, and how others call it; what stands last may be missing.
ROWS = table_of_package("spec/fields.tsv")


class Field:
    """One declared field. `name` is unique over all parts: what --set and a model's file say.

    `takes` is whole, number, flag, choice, pattern or object. `default` is what a part has where
    nobody says, `absent` what a model has that has no such part; `lacking` says that there are such
    models, `asked` that they must say so.
    """

    def __init__(self, takes: str, name: str, default: object) -> None:
        self.takes, self.name, self.default = takes, name, default
        self.attribute = name
        self.part: type | None = None  # the class that declares it
        self.letter, self.unit, self.meaning, *elsewhere = ROWS[name]
        self.elsewhere = tuple(" ".join(elsewhere).split())
        self.choices: tuple[str, ...] = ()
        self.least, self.most = 1, MAX_WIDTH
        self.letters: dict[str, str] = {}  # of a pattern: what each of its letters means
        self.example = ""
        self.made: type | None = None  # of an object: its class
        self.optional = default is None
        self.absent = None if default is REQUIRED else default
        self.lacking = self.asked = False

    def check(self, value: object) -> None:
        """Raise `SpecError` unless `value` is one that this field may have."""
        if value is None and self.optional:
            return
        if self.takes == "whole":
            check_int(self.name, value, self.least, self.most)
        elif self.takes == "number":
            check_number(self.name, value)
        elif self.takes == "choice":
            if value not in self.choices:
                rule = "is unknown"
                raise SpecError(self.name, rule, value, f"choose one of {', '.join(self.choices)}")
        elif self.takes == "flag":
            check_flag(self.name, value)
        elif self.takes == "object":
            if type(value) is not self.made:
                raise SpecError(self.name, "must be an object", value, f"leave {self.name} out")
        elif not isinstance(value, str) or not value or set(value) - self.letters.keys():
            words = [f"{letter} ({meaning})" for letter, meaning in self.letters.items()]
            rule = f"must be letters {', '.join(words[:-1])} and {words[-1]}"
            raise SpecError(self.name, rule, value, f"for example {self.example}")


def check_int(name: str, value: object, lowest: int, highest: int) -> None:
    """Raise `SpecError` unless `value` is a whole number between the two."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise SpecError(name, "must be a whole number", value, f"choose {lowest} to {highest}")
    if not lowest <= value <= highest:
        rule = f"must be at least {lowest}" if value < lowest else f"must be at most {highest}"
        raise SpecError(name, rule, value, f"choose {lowest} to {highest}")


def check_number(name: str, value: object) -> None:
    """Raise `SpecError` unless `value` is a positive number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e12:
        raise SpecError(name, "must be a positive number", value, "choose one below 1e12")


def check_flag(name: str, value: object) -> None:
    """Raise `SpecError` unless `value` is true or false."""
    if not isinstance(value, bool):
        raise SpecError(name, "must be true or false", value, "choose true or false")


def at_most(small: str, low: int, large: str, high: int) -> None:
    """Raise `SpecError` unless low <= high, in the names of the two fields."""
    if low > high:
        raise SpecError(small, f"must be at most {large} = {high}", low, f"choose 1 to {high}")


def below(small: str, low: int, large: str, high: int, why: str = "") -> None:
    """Raise `SpecError` unless low < high, in the names of the two fields; `why` is added."""
    if low >= high:
        rule = f"must be below {large} = {high}{why and ': '}{why}"
        raise SpecError(small, rule, low, f"choose 0 to {high - 1}")


def check_plain(fields: Mapping[str, tuple[object, object]], rule: str) -> None:
    """Raise `SpecError` for the first field that has another value than its plain one."""
    for name, (value, plain) in fields.items():
        if value != plain:
            raise SpecError(name, rule, value, f"choose {plain}" if isinstance(plain, str) else "")


def divides(small: str, part_: int, large: str, total: int) -> None:
    """Raise `SpecError` unless the one divides the other; it names the numbers that do."""
    if total % part_:
        divisors = [n for n in range(1, min(total, 4096) + 1) if total % n == 0]
        choices = ", ".join(map(str, divisors[:12])) + (", ..." if len(divisors) > 12 else "")
        rule = f"must divide {large}: {total} % {part_} = {total % part_}"
        raise SpecError(small, rule, part_, f"choose {choices}")


def size(
    name: str,
    *,
    default: object = REQUIRED,
    most: int = MAX_WIDTH,
    least: int = 1,
    asked: bool = False,
) -> Any:
    """Declare a whole number that formulas have a letter for."""
    made = Field("whole", name, default)
    made.most, made.least, made.asked = most, least, asked
    return made


def choice(name: str, *choices: str, default: object = REQUIRED) -> Any:
    """Declare a field that is one of some words."""
    made = Field("choice", name, default)
    made.choices = choices
    return made


def flag(name: str, *, default: object) -> Any:
    """Declare a field that is true or false."""
    return Field("flag", name, default)


def number(name: str, *, default: object) -> Any:
    """Declare a positive number that changes no count."""
    return Field("number", name, default)


def pattern(name: str, letters: str, example: str, *, default: object = REQUIRED) -> Any:
    """Declare letters repeated over layers; `letters` gives each meaning: "L windowed, ..."."""
    made = Field("pattern", name, default)
    made.letters = dict(word.strip().split(" ", 1) for word in letters.split(","))
    made.example = example
    return made


def record(name: str, made: type, *, default: None) -> Any:
    """Declare a whole object of a model's file, or none."""
    field = Field("object", name, default)
    field.made = made
    return field


class Place:
    """Where a part has another part: always one, or one that a switch says.

    `kinds` gives the part's class for each word of the switch; with the one word "" the part is
    there when the field `by` says so, and `without` is what is said of its fields when it is not.
    """

    def __init__(self, kinds: dict[str, type], by: str, without: str, switch: Field | None) -> None:
        self.kinds, self.by, self.without, self.switch = kinds, by, without, switch
        self.remedy = ""


def always(kind: type) -> Any:
    """Declare a part that is always there."""
    return Place({"": kind}, "", "", None)


def where(
    by: str,
    kind: type,
    switch: Field | None = None,
    *,
    default: None,
    without: str = "",
    remedy: str = "",
) -> Any:
    """Declare a part that is there when the field `by` says so: a size that is given, a flag set.

    A flag that says nothing else is `switch`; otherwise the field is one of the part's own. Where
    nobody says, there is none (`default`, which type checkers ask for).
    """
    assert default is None
    made = Place({"": kind}, by, without or f"without {by}", switch)
    made.remedy = remedy
    return made


def one_of(switch: Field, *kinds: type) -> Any:
    """Declare one of several parts, chosen by the word that each class has as its `word`."""
    by_word = {vars(kind)["word"]: kind for kind in kinds}
    switch.choices = tuple(by_word)
    return Place(by_word, switch.name, "", switch)


@dataclass_transform(
    kw_only_default=True,
    frozen_default=True,
    field_specifiers=(size, choice, flag, number, pattern, record, always, where, one_of),
)
def part(cls: type[T]) -> type[T]:
    """Make a frozen class of declared fields and places, those of its bases first.

    Made by a call, a part checks its values, then its own rules (`check`, where it has some).
    """
    declared: dict[str, Field | Place] = {}
    annotations: dict[str, object] = {}
    for base in reversed(cls.__mro__[1:-1]):
        declared |= vars(base).get("__declared__", {})
    declared |= {name: cls.__dict__[name] for name in cls.__annotations__}
    for name, it in declared.items():
        annotations[name] = "object"
        if isinstance(it, Field):
            if it.part is None:
                it.attribute, it.part = name, cls
            default = it.default
        else:
            default = None if it.without else REQUIRED
        if default is REQUIRED:
            if name in cls.__dict__:
                delattr(cls, name)
        else:
            setattr(cls, name, default)
    cls.__annotations__ = annotations
    check: Callable[[object], None] | None = getattr(cls, "check", None)

    def made(self: object) -> None:
        for name, it in declared.items():
            value = self.__dict__[name]
            if isinstance(it, Field):
                it.check(value)
            elif not (value is None and it.without) and type(value) not in it.kinds.values():
                kinds = " or ".join(kind.__name__ for kind in it.kinds.values())
                raise SpecError(name, f"must be a part ({kinds})", value, "give one")
        if check is not None:
            check(self)

    setattr(cls, "__post_init__", made)  # noqa: B010 - mypy knows no such method
    frozen(cls)
    setattr(cls, "__declared__", declared)  # noqa: B010 - likewise
    return cls


def declared(kind: type) -> dict[str, Field | Place]:
    """Return the fields and places of a part's class, by attribute."""
    fields: dict[str, Field | Place] = vars(kind)["__declared__"]
    return fields


def altered(of: T, **values: object) -> T:
    """Copy a part with other values, unchecked: they may be symbols."""
    made = object.__new__(type(of))
    made.__dict__.update(of.__dict__)
    made.__dict__.update(values)
    return made


def short(letters: str) -> str:
    """Shorten a long pattern for a message.

    >>> short("RRRA"), short("R" * 100)
    ('RRRA', 'RRRRRRRRRRRRRRRRRRRRRRRR...')
    """
    return letters if len(letters) <= 24 else letters[:24] + "..."
