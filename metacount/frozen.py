"""Frozen keyword-only classes without the cost of importing `dataclasses`.

`dataclasses` loads `inspect`, `ast`, `dis` and `tokenize`, and compiles every method: for the spec
alone that takes as long as starting Python. The command line must answer before that. What is
read on its way (spec, catalog, count) is declared with `frozen`; type checkers see a dataclass.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar
    from typing import dataclass_transform as dataclass_transform

    T = TypeVar("T")
else:

    def dataclass_transform(**_: object) -> Callable[[type], type]:
        return lambda cls: cls


REQUIRED = object()


@dataclass_transform(kw_only_default=True, frozen_default=True)
def frozen(cls: type[T]) -> type[T]:
    """Make the annotated names of `cls` keyword-only fields that cannot change.

    A field with no default must be given. `__post_init__` runs last, if there is one.

    >>> @frozen
    ... class Point:
    ...     x: int
    ...     y: int = 0
    >>> Point(x=3)
    Point(x=3, y=0)
    >>> Point(x=3) == Point(x=3, y=0), Point(x=3) == Point(x=4)
    (True, False)
    """
    defaults = {name: cls.__dict__.get(name, REQUIRED) for name in cls.__annotations__}
    required = frozenset(name for name, default in defaults.items() if default is REQUIRED)
    post_init: Callable[[object], None] | None = getattr(cls, "__post_init__", None)

    def init(self: object, **values: object) -> None:
        made = self.__dict__
        made.update(defaults)
        made.update(values)
        if len(made) != len(defaults) or not required <= values.keys():
            missing = [name for name in defaults if name in required and name not in values]
            unknown = [name for name in values if name not in defaults]
            wrong = f"misses {', '.join(missing)}" if missing else f"has no {', '.join(unknown)}"
            wrong += "" if missing else f"; it takes {', '.join(defaults)}"
            raise TypeError(f"{cls.__name__}() {wrong}")
        if post_init is not None:
            post_init(self)

    def items(self: object) -> tuple[object, ...]:
        return tuple(self.__dict__[name] for name in defaults)

    def equal(self: object, other: object) -> bool:
        return items(self) == items(other) if type(other) is cls else NotImplemented

    def show(self: object) -> str:
        return f"{cls.__name__}({', '.join(f'{k}={self.__dict__[k]!r}' for k in defaults)})"

    def refuse(self: object, name: str, value: object = None) -> None:
        raise AttributeError(f"{cls.__name__} is frozen: {name} cannot change")

    methods = {
        "__fields__": defaults,
        "__init__": init,
        "__eq__": equal,
        "__hash__": lambda self: hash(items(self)),
        "__repr__": show,
        "__setattr__": refuse,
        "__delattr__": refuse,
    }
    for name, method in methods.items():
        setattr(cls, name, method)
    return cls


def fields(cls: type) -> dict[str, object]:
    """Return the names and defaults of a frozen class, in order;
    `REQUIRED` where there is no default.
    """
    return dict(vars(cls)["__fields__"])
