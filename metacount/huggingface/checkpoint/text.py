"""Somebody else's file and JSON, read piece by piece: bounded time and memory, one line of error.

`[{},{},…` takes twenty times its length once parsed as a whole; a piece at a time it takes nothing.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import stat
from collections.abc import Iterator
from typing import Self

from metacount.errors import InputError, shown
from metacount.files import STRICT_JSON, NotStrict

MAX_PIECE = 2**16  # bytes of one value: a tensor's entry, or an index's metadata
MAX_NAME = 1000  # characters


class RegularFile:
    """A regular file, opened so that a FIFO or a device can neither wait nor answer."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.size = 0
        self._file = -1

    def __enter__(self) -> Self:
        where = shown(self.path)
        try:
            self._regular(os.stat(self.path).st_mode, where)
            # what was a file a moment ago may be a FIFO now: open without waiting, look again
            flags = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
            self._file = os.open(self.path, os.O_RDONLY | flags)
            found = os.fstat(self._file)
            self._regular(found.st_mode, where)
            self.size = found.st_size
        except FileNotFoundError:
            self.__exit__()
            raise InputError(f"{where}: no such file; the checkpoint is not complete") from None
        except InputError:
            self.__exit__()
            raise
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            self.__exit__()
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise InputError(f"{where}: cannot be read: {reason}") from None
        return self

    def __exit__(self, *_: object) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def read(self, n: int) -> bytes:
        """Read the next n bytes, fewer only at the end of the file."""
        parts, missing = [], min(n, self.size)
        try:
            while missing > 0 and (part := os.read(self._file, missing)):
                parts.append(part)
                missing -= len(part)
        except OSError as error:
            raise InputError(f"{shown(self.path)}: cannot be read: {error.strerror}") from None
        return b"".join(parts)

    @staticmethod
    def _regular(mode: int, where: str) -> None:
        if stat.S_ISDIR(mode):
            raise InputError(f"{where}: is a folder; a safetensors file is wanted")
        if not stat.S_ISREG(mode):
            raise InputError(f"{where}: is not a regular file; give a folder of files")


_SPACE = rb"[ \t\n\r]*+"
_TEXT = rb'"(?:[^"\\\x00-\x1f]++|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*+"'
_NAME = re.compile(_TEXT)
_PAIR = _TEXT + _SPACE + rb":" + _SPACE + _TEXT + _SPACE
_OPEN = re.compile(_SPACE + rb"\{" + _SPACE)
_MEMBER = re.compile(rb"(" + _TEXT + rb")" + _SPACE + rb":" + _SPACE)
_NEXT = re.compile(_SPACE + rb"([,}])" + _SPACE)
_FLAT = re.compile(rb"\{(?:[^{}\"]++|" + _TEXT + rb")*+\}|[^{}\[\],\s\"]++|" + _TEXT)
_TEXTS = re.compile(
    rb"null|\{" + _SPACE + rb"(?:" + _PAIR + rb"(?:," + _SPACE + _PAIR + rb")*+)?+\}"
)
_TOKEN = re.compile(rb"[{}\[\]]|" + _TEXT)


class JsonCursor:
    """A place in the text of a JSON object, which is never parsed as a whole.

    `json` reads each piece. Its hooks cannot do the rest: they are called once a value is parsed.
    """

    def __init__(self, text: bytes, where: str) -> None:
        self.text, self.where, self.at = text, where, 0
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            for start in range(0, len(text), 2**20):
                decoder.decode(text[start : start + 2**20])
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            raise self.wrong("it is no text in UTF-8") from None

    def wrong(self, what: str) -> InputError:
        """Build the error of a text that is not the JSON that safetensors writes."""
        return InputError(
            f"{self.where}: is not the JSON that safetensors writes: {what}; "
            "fetch or write it again"
        )

    def members(self) -> Iterator[str]:
        """Yield each name of the object that starts here;
        the caller takes the value before going on.
        """
        opened = _OPEN.match(self.text, self.at)
        if opened is None:
            raise self.wrong(f"a JSON object {{...}} must start at byte {self.at}")
        self.at = opened.end()
        if self.text[self.at : self.at + 1] == b"}":
            self.at += 1
            return
        while True:
            member = _MEMBER.match(self.text, self.at)
            if member is None:
                raise self.wrong(f'"name": must stand at byte {self.at}')
            self.at = member.end()
            yield self._name(member[1])
            following = _NEXT.match(self.text, self.at)
            if following is None:
                raise self.wrong(f"a comma or }} must stand at byte {self.at}")
            if following[1] == b"}":
                self.at = following.end(1)
                return
            self.at = following.end()

    def value(self) -> object:
        """Read the value that starts here, if it is short."""
        flat = _FLAT.match(self.text, self.at)
        end = flat.end() if flat is not None else self._end_of_nested()
        if end - self.at > MAX_PIECE:
            raise self.wrong(f"the value at byte {self.at} is longer than {MAX_PIECE} bytes")
        piece = self.text[self.at : end].decode("utf-8")
        try:
            found = STRICT_JSON.decode(piece)
        except RecursionError:
            raise self.wrong(f"the value at byte {self.at} is nested too deeply") from None
        except (json.JSONDecodeError, NotStrict) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else error.fact
            raise self.wrong(f"the value at byte {self.at}: {shown(reason)}") from None
        self.at = end
        return found

    def name(self) -> str:
        """Read the text that starts here."""
        text = _NAME.match(self.text, self.at)
        if text is None:
            raise self.wrong(f"a text must stand at byte {self.at}")
        self.at = text.end()
        return self._name(text[0])

    def skip_texts(self) -> None:
        """Pass over an object of texts, which are notes of whoever wrote the file."""
        texts = _TEXTS.match(self.text, self.at)
        if texts is None:
            raise self.wrong(f"__metadata__ at byte {self.at} must hold texts alone")
        self.at = texts.end()

    def finish(self) -> None:
        """Check that nothing but space follows: the format pads with it."""
        if self.text[self.at :].strip(b" \t\n\r"):
            raise self.wrong(f"something follows the end of the object at byte {self.at}")

    def _name(self, raw: bytes) -> str:
        name: str = json.loads(raw) if b"\\" in raw else raw[1:-1].decode("utf-8")
        if not name.isprintable() or not 0 < len(name) <= MAX_NAME:
            raise self.wrong(
                f"a name has 1 to {MAX_NAME} printable characters: got {shown(repr(name))}"
            )
        return name

    def _end_of_nested(self) -> int:
        depth = 0
        for token in _TOKEN.finditer(self.text, self.at, self.at + MAX_PIECE):
            first = token[0][:1]
            depth += (first in b"{[") - (first in b"}]")
            if depth <= 0 and first != b'"':
                return token.end()
        raise self.wrong(f"the value at byte {self.at} has no end within {MAX_PIECE} bytes")
