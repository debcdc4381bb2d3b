"""From flat values to a tree of parts and back: the door of `--set`, files, catalog and JSON.

A flat name belongs to one declaration. A part that a model does not have gives each of its flat
names the value `absent`; another value there is an error that says why it has no meaning.
"""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.frozen import REQUIRED
from metacount.spec.field import Field, Place, declared

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Iterator

    from metacount.files import Json


def fields_of(kind: type, path: str = "", lacking: bool = False) -> Iterator[tuple[str, Field]]:
    """Yield each field below a part's class with its path, also switches; some names come twice.

    A field that a model may do without, since it may do without the part, is marked as `lacking`.
    """
    for attribute, it in declared(kind).items():
        here = f"{path}{attribute}"
        if isinstance(it, Field):
            it.lacking = it.lacking or (lacking and it.default is REQUIRED)
            yield here, it
            continue
        if it.switch is not None:
            yield here, it.switch
        everywhere = set.intersection(*(set(names_of(each)) for each in it.kinds.values()))
        for below in it.kinds.values():
            for path_below, field in fields_of(below, f"{here}.", lacking or bool(it.without)):
                if field.name not in everywhere and field.default is REQUIRED:
                    field.lacking = True
                yield path_below, field


def paths_below(
    place_of: dict[str, Field | Place], flat: Json, path: str = ""
) -> Iterator[tuple[str, Field]]:
    """Yield each path below these places and fields, for the words in `flat`, and its field."""
    for attribute, it in place_of.items():
        here = f"{path}{attribute}"
        if isinstance(it, Field):
            yield here, it
            continue
        if it.switch is not None:
            yield here, it.switch
        kind = it.kinds[""] if "" in it.kinds else it.kinds[flat[it.by]]
        yield from paths_below(declared(kind), flat, f"{here}.")


def assembled(kind: type, flat: Json, needed: str, *, checked: bool) -> object:
    """Make a part of class `kind` from flat values; `checked`: by its rules, else anything goes."""
    values: dict[str, object] = {}
    needed = vars(kind).get("needed", needed)
    for attribute, it in declared(kind).items():
        if isinstance(it, Place):
            values[attribute] = placed(it, flat, checked=checked)
            continue
        value = values[attribute] = flat[it.name]
        if value is None and it.default is REQUIRED:
            raise SpecError(it.name, f"is needed {needed}", None, f"set {it.name}")
    made: object = object.__new__(kind)
    made.__dict__.update(values)
    check = getattr(kind, "check", None)
    if checked and check is not None:
        check(made)
    return made


def placed(place: Place, flat: Json, *, checked: bool) -> object:
    """Make what stands in a place by the flat values: a part, or None where none is said."""
    if not place.by:
        return assembled(place.kinds[""], flat, "", checked=checked)
    chosen = flat[place.by]
    if place.without:
        kind = place.kinds[""]
        if is_there(chosen):
            return assembled(kind, flat, "", checked=checked)
        refuse(kind, flat, (), place.without, place.remedy)
        return None
    made = assembled(place.kinds[chosen], flat, f"by {place.by} {chosen}", checked=checked)
    for word, kind in place.kinds.items():
        if word != chosen:
            mine = names_of(place.kinds[chosen])
            refuse(kind, flat, mine, f"with {place.by} {chosen}", place.remedy)
    return made


def is_there(said: object) -> bool:
    """Tell whether a switch says that its part is there; a symbol says yes."""
    return said is not None and said is not False and not (isinstance(said, int) and said == 0)


_names: dict[type, tuple[str, ...]] = {}


def names_of(kind: type) -> tuple[str, ...]:
    """List the flat names below a part's class."""
    if kind not in _names:
        _names[kind] = tuple(dict.fromkeys(field.name for _, field in fields_of(kind)))
    return _names[kind]


_absent: dict[type, tuple[tuple[str, object], ...]] = {}


def refuse(kind: type, flat: Json, but: tuple[str, ...], why: str, remedy: str = "") -> None:
    """Raise `SpecError` for a value of a part that is not there."""
    if kind not in _absent:
        _absent[kind] = tuple({field.name: field.absent for _, field in fields_of(kind)}.items())
    for name, absent in _absent[kind]:
        value = flat[name]
        plain = isinstance(value, int | float | str)  # arrays and symbols are never equal
        if value is absent or name in but or (plain and value == absent):
            continue
        raise SpecError(
            name,
            f"has no meaning {why}",
            getattr(value, "kind", value),
            remedy or f"leave {name} out",
        )


def flattened(kind: type, value: object, into: Json) -> Json:
    """Add to `into` the flat values of a part and of what is below it, and return `into`."""
    for attribute, it in declared(kind).items():
        one = getattr(value, attribute)
        if isinstance(it, Field):
            _put(into, it.name, one)
        else:
            flat_place(it, one, into)
    return into


def flat_place(place: Place, value: object, into: Json) -> None:
    """Add to `into` what stands in a place: the word of its switch, and the part's own values."""
    if place.switch is not None:
        said = value is not None if place.without else vars(type(value))["word"]
        _put(into, place.switch.name, said)
    if value is not None:
        flattened(type(value), value, into)
    elif place.switch is None:
        for _, field in fields_of(place.kinds[""]):
            if field.name == place.by:
                _put(into, place.by, field.absent)


def _put(into: Json, name: str, value: object) -> None:
    if name in into and into[name] != value:
        raise SpecError(
            name,
            "differs between the encoder and the decoder, which are made alike",
            value,
            f"choose {into[name]!r}",
        )
    into[name] = value
