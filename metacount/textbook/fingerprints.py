"""Fingerprints of source files: whether what was proven is still what runs.

A file has two: of its bytes, which is quick, and of its code without comments and docstrings, which
is asked only where the bytes differ (another Python may write that code otherwise: then a change of
a comment counts as one of code). Where there are no sources (a compiled install), nothing can be
said.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SIZE = 8  # bytes: an accident is told, an adversary could change the record as well

_loader: object = globals().get("__loader__")
_changed: dict[tuple[object, ...], bool] = {}


def source_of(file: str) -> bytes | None:
    """Read the bytes of a file of this package,
    from a folder or an archive; None where it has none.
    """
    read = getattr(_loader, "get_data", None)
    try:
        found: bytes | None = (
            None if read is None else read(os.path.join(PACKAGE, *file.split("/")))
        )
    except OSError:
        return None
    return found


def unix_lines(source: bytes) -> bytes:
    """Convert line ends to those of a checkout on Unix."""
    return source.replace(b"\r\n", b"\n") if b"\r" in source else source


def of_bytes(source: bytes) -> str:
    """Compute the fingerprint of bytes.

    >>> of_bytes(b"x = 1")
    '59705646f73aad2b'
    """
    from _blake2 import blake2b  # without loading OpenSSL

    text: str = blake2b(unix_lines(source), digest_size=SIZE).hexdigest()
    return text


def of_code(source: bytes) -> str:
    """Compute the fingerprint of what a source does: of its tree without docstrings.

    >>> of_code(b"def f():\\n    'says'\\n    return 1") == of_code(b"def f(): return 1  # one")
    True
    >>> of_code(b"def f(): return 1") == of_code(b"def f(): return 2")
    False
    """
    import ast

    tree = ast.parse(source)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            continue
        if ast.get_docstring(node) is not None:
            del node.body[0]
    return of_bytes(ast.dump(tree).encode())


def fingerprint(file: str) -> dict[str, str]:
    """Compute both fingerprints of a file of this package."""
    source = source_of(file)
    assert source is not None  # records are made from a checkout
    return {"bytes": of_bytes(source), "code": of_code(source)}


def changed(
    files: Iterable[str],
    recorded: dict[str, dict[str, str]],
    read: Callable[[str], bytes | None] = source_of,
) -> str | None:
    """Find the first of `files` that is not what was recorded; None where all are.

    A file whose source is not there counts as changed: nobody can say that it is not.
    """
    for file in files:
        source, known = read(file), recorded.get(file)
        if source is None or known is None:
            return file
        if of_bytes(source) == known["bytes"]:
            continue
        try:
            if of_code(source) == known["code"]:
                continue
        except (SyntaxError, ValueError):
            return file
        return file
    return None


def has_changed(file: str, recorded: dict[str, dict[str, str]]) -> bool:
    """Tell whether `changed` names a file,
    which is read once in a process that counts many models.
    """
    asked = (file, recorded[file]["bytes"], changed.__defaults__)  # by another reader, anew
    if asked not in _changed:
        _changed[asked] = changed([file], recorded) is not None
    return _changed[asked]
