"""Data files of this package: tables, a row a line."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable

PACKAGE = os.path.dirname(os.path.abspath(__file__))


def read_of_package(file: str) -> bytes:
    """Read a data file of this package, from a folder or an archive, with line ends of Unix."""
    read: Callable[[str], bytes] = getattr(__spec__.loader, "get_data")  # noqa: B009
    data = read(os.path.join(PACKAGE, *file.split("/")))
    return data.replace(b"\r\n", b"\n") if b"\r" in data else data


def table_of_package(file: str) -> dict[str, list[str]]:
    """Read a table of this package: the first column of each row, and what stands in the others.

    What is empty at the end of a row is left out.
    """
    rows = (line.split("\t") for line in read_of_package(file).decode().splitlines()[1:])
    return {name: rest for name, *rest in rows}
