"""Parts that are told together: of one size, of one group, two halves of a matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metacount.check.parts.params import Part

if TYPE_CHECKING:
    from collections.abc import Iterator

    import sympy


def merged(parts: list[Part]) -> Iterator[tuple[list[str], sympy.Expr, int]]:
    """Yield the parts of one size together: nobody can tell which of them is meant."""
    sizes: dict[sympy.Expr, tuple[list[str], int]] = {}
    for part in parts:
        names, count = sizes.get(part.expr, ([], 0))
        sizes[part.expr] = ([*names, part.name], count + part.count)
    for expr, (names, count) in sizes.items():
        yield names, expr, count


def groups(parts: list[Part]) -> Iterator[tuple[str, list[Part]]]:
    """Yield parts that are often left out together."""
    for group in dict.fromkeys(part.group for part in parts if part.group):
        yield group, [part for part in parts if part.group == group]


def halves(parts: list[Part]) -> Iterator[tuple[str, list[Part]]]:
    """Yield the matrices that have two parts here: `kv_b_proj (keys)` and `kv_b_proj (values)`."""
    names = [part.name.partition(" (")[0] for part in parts if " (" in part.name]
    for name in dict.fromkeys(names):
        members = [part for part in parts if part.name.partition(" (")[0] == name]
        if len(members) > 1:
            yield name, members


def some_of(n: int, count: int, names: list[str]) -> str:
    """Name `n` of `count` parts of one size;
    the stack or kind of layer they share is said first.
    """
    where, colon, _ = names[0].rpartition(": ")
    if not all(name.startswith(where + colon) for name in names):
        where = colon = ""
    bare = [name.removeprefix(where + colon) for name in names]
    if n == count:
        return where + colon + listed(bare)
    word = ("one", "two", "three", "four")[n - 1]
    what = f"{word} of {listed(bare)}" if len(bare) > 1 else f"{word} of the {count} {bare[0]}"
    return where + colon + what


def listed(names: list[str]) -> str:
    """Write names as a list, a first word that all share said once.

    >>> listed(["FFN gate_proj", "FFN up_proj", "FFN down_proj"])
    'FFN gate_proj, up_proj and down_proj'
    """
    first = names[0].partition(" ")[0] + " "
    shared = first if len(names) > 1 and all(name.startswith(first) for name in names) else ""
    rest = [name.removeprefix(shared) for name in names]
    text = rest[0] if len(rest) == 1 else f"{', '.join(rest[:-1])} and {rest[-1]}"
    return shared + text
