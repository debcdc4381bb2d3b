"""The header of a GGUF file, read as a stranger's data: its keys, and every tensor's shape.

Why not the library's reader: it follows any length that a file claims, multiplies sizes in 64 bits
that wrap, and takes seconds over a vocabulary. What types there are, and how many values and bytes
a block of each has, is the library's to say; the tests hold the answers here against its reader.

A file is: GGUF, version, number of tensors, number of keys; the keys; each tensor's name, sizes,
type and place; the values. All numbers are little endian.
"""

from __future__ import annotations

import math
import os
import re
import struct

from metacount.errors import InputError, shown
from metacount.files import check_no_pointer, open_regular
from metacount.frozen import frozen

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from typing import Any, BinaryIO

    from metacount.files import Json

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_HEADER_BYTES = 2**27  # a vocabulary of 256,000 pieces with its merges takes about 2^24
MAX_TENSORS = 2**17
MAX_KEYS = 2**14
MAX_ITEMS = 2**21  # texts of all lists together; numbers are passed over at once
MAX_NAME = 256
MAX_KEPT = 4096  # characters of a text, or items of a list of numbers, that are kept
MAX_DEPTH = 4  # of lists in lists
MAX_DIMS = 4  # of ggml's tensors
MAX_VALUES = 2**48
MAX_PARTS = 2**10
SPLIT_COUNT = "split.count"
ALIGNMENT = 32

TEXT, LIST = 8, 9
# By the format's number of a type, how struct reads one.
NUMBERS = {**dict(enumerate("BbHhIif?")), 10: "Q", 11: "q", 12: "d"}


@frozen
class Listed:
    """A list of which only the length is kept."""

    length: int


@frozen
class GgufTensor:
    """One tensor: `shape` as PyTorch has it, rows last; `block` values take `size` bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    block: int
    size: int

    @property
    def n_values(self) -> int:
        """All its values."""
        return math.prod(self.shape)

    @property
    def n_bytes(self) -> int:
        """Its bytes in the file."""
        return self.n_values // self.block * self.size


@frozen
class Header:
    """What a GGUF file says of itself. A text that is too long to be kept is None."""

    keys: Json
    tensors: tuple[GgufTensor, ...]


def read_header(path: str) -> Header:
    """Read the header of a file on disk, with those of its other parts; no value is read."""
    header = _read_one(path)
    count = header.keys.get(SPLIT_COUNT, 1)
    if count == 1:
        return header
    folder, name = os.path.split(path)
    found = re.fullmatch(r"(.+)-(\d{5})-of-(\d{5})\.gguf", name)
    if type(count) is not int or not 1 < count <= MAX_PARTS or found is None:
        rule = f"is a part of {shown(repr(count))}, and not called NAME-00001-of-0000N.gguf"
        raise InputError(f"{shown(path)}: {rule}; join the parts with gguf-split --merge")
    parts = [f"{found[1]}-{i:05}-of-{count:05}.gguf" for i in range(1, count + 1)]
    headers = [_read_one(os.path.join(folder, part)) for part in parts]
    tensors = {tensor.name: tensor for each in headers for tensor in each.tensors}
    if len(tensors) < sum(len(each.tensors) for each in headers):
        raise InputError(f"{shown(path)}: two of its {count} parts hold a tensor of one name")
    keys = {k: v for k, v in headers[0].keys.items() if not k.startswith("split.")}
    return Header(keys=keys, tensors=tuple(tensors.values()))


def _read_one(path: str) -> Header:
    with open_regular(path, "GGUF") as file:
        return _header(_Reader(file, os.fstat(file.fileno()).st_size, shown(path)))


class _Reader:
    """A file that is read forward, never beyond its end and never without end."""

    def __init__(self, file: BinaryIO, size: int, where: str) -> None:
        self.file, self.size, self.where = file, size, where
        self.at = self.items = 0

    def wrong(self, fault: str) -> InputError:
        return InputError(f"{self.where}: {fault}; fetch or convert it again")

    def take(self, n_bytes: int) -> bytes:
        self._check(n_bytes)
        found = self.file.read(n_bytes)
        if len(found) < n_bytes:
            raise self.wrong("became shorter while it was read")
        self.at += n_bytes
        return found

    def skip(self, n_bytes: int) -> None:
        self._check(n_bytes)
        self.file.seek(n_bytes, os.SEEK_CUR)
        self.at += n_bytes

    def _check(self, n_bytes: int) -> None:
        if n_bytes > (rest := self.size - self.at):
            claim = f"at byte {self.at} it claims {n_bytes} more, the file has {rest}"
            raise self.wrong(f"is cut short: {claim}")
        if self.at + n_bytes > MAX_HEADER_BYTES:
            raise self.wrong(f"its header is longer than {MAX_HEADER_BYTES} bytes; no model's is")

    def number(self, kind: int) -> Any:
        letter = "<" + NUMBERS[kind]
        found = struct.unpack(letter, self.take(struct.calcsize(letter)))[0]
        return _as_written(found) if letter == "<f" else found

    def name(self) -> str:
        length = self.number(10)
        if not 0 < length <= MAX_NAME:
            raise self.wrong(f"a name has 1 to {MAX_NAME} bytes: at byte {self.at} it has {length}")
        raw = self.take(length)
        try:
            name = raw.decode("utf-8")
        except UnicodeDecodeError:
            name = ""
        if not name.isprintable() or not name:
            raise self.wrong(f"a name must be printable text: got {shown(repr(raw))}")
        return name

    def value(self, kind: int, depth: int = 0) -> object:
        """Read a value; of a long text or list no more than that it is there."""
        if kind in NUMBERS:
            return self.number(kind)
        if kind == TEXT:
            return self._text()
        if kind != LIST:
            raise self.wrong(f"a value at byte {self.at} is of type {kind}, which is none")
        if depth == MAX_DEPTH:
            raise self.wrong(f"lists at byte {self.at} are nested deeper than {MAX_DEPTH}")
        inner, length = self.number(4), self.number(10)
        if inner in NUMBERS:
            letter = NUMBERS[inner]
            width = struct.calcsize("<" + letter)
            if length > MAX_KEPT:
                self.skip(length * width)
                return Listed(length=length)
            return list(struct.unpack(f"<{length}{letter}", self.take(length * width)))
        self.items += length
        if self.items > MAX_ITEMS:
            raise self.wrong(f"its lists have more than {MAX_ITEMS} items")
        for _ in range(length):
            self.value(inner, depth + 1)
        return Listed(length=length)

    def _text(self) -> str | None:
        length = self.number(10)
        if length > MAX_KEPT:
            self.skip(length)
            return None
        return self.take(length).decode("utf-8", errors="replace")


def _as_written(number: float) -> float:
    """Return the shortest decimal that 32 bits keep as this number:
    1e-05 for 9.999999747378752e-06.

    >>> _as_written(struct.unpack("<f", struct.pack("<f", 1e-5))[0])
    1e-05
    """
    for digits in range(1, 10):
        short = float(f"{number:.{digits}g}")
        if struct.pack("<f", short) == struct.pack("<f", number):
            return short
    return number


def _header(reader: _Reader) -> Header:
    start = reader.take(min(8, reader.size))
    check_no_pointer(start, reader.where)
    if start[:4] != MAGIC:
        begins = f"it begins with {shown(repr(start[:4]))}, not with {MAGIC!r}"
        raise InputError(f"{reader.where}: is no GGUF file: {begins}")
    if len(start) < 8:
        raise reader.wrong(f"is cut short: it has {len(start)} bytes")
    version = struct.unpack("<I", start[4:])[0]
    if version not in VERSIONS:
        fault = "is big endian" if version % 65536 == 0 else f"is of version {version}"
        read = f"versions {' and '.join(map(str, VERSIONS))} are read, little endian"
        raise InputError(f"{reader.where}: {fault}; {read}; convert it again")
    n_tensors, n_keys = reader.number(10), reader.number(10)
    for n, most, what in ((n_tensors, MAX_TENSORS, "tensors"), (n_keys, MAX_KEYS, "keys")):
        if n > most:
            raise reader.wrong(f"claims {n} {what}; at most {most} are read")
    keys: Json = {}
    for _ in range(n_keys):
        name = reader.name()
        if name in keys:
            raise reader.wrong(f"{shown(name)} is given twice")
        keys[name] = reader.value(reader.number(4))
    found = keys.get("general.alignment", ALIGNMENT)
    if type(found) is not int or not 0 < found <= 2**20 or found & (found - 1):
        raise reader.wrong(f"general.alignment must be a power of two: got {shown(repr(found))}")
    return Header(keys=keys, tensors=_tensors(reader, n_tensors, found))


def _tensors(reader: _Reader, n_tensors: int, alignment: int) -> tuple[GgufTensor, ...]:
    types = _types()
    found: dict[str, GgufTensor] = {}
    places: list[tuple[int, int, str]] = []
    for _ in range(n_tensors):
        name = reader.name()
        here = f"tensor {shown(name)}"
        if name in found:
            raise reader.wrong(f"{here} is given twice")
        n_dims = reader.number(4)
        if n_dims > MAX_DIMS:
            raise reader.wrong(f"{here} has {n_dims} dimensions; ggml has at most {MAX_DIMS}")
        sizes = [reader.number(10) for _ in range(n_dims)]
        kind, offset = reader.number(4), reader.number(10)
        if kind not in types:
            rule = f"is of type {kind}, which the installed gguf does not know"
            raise InputError(f"{reader.where}: {here} {rule}; install a newer one")
        dtype, block, size = types[kind]
        n_values = 1
        for one in sizes:
            n_values *= one
            if not 0 < one <= MAX_VALUES or n_values > MAX_VALUES:
                raise reader.wrong(f"{here} has sizes that no tensor has: {shown(sizes)}")
        if sizes and sizes[0] % block:
            rows = f"has rows of {sizes[0]} values, {dtype} has blocks of {block}"
            raise reader.wrong(f"{here} {rows}")
        shape = tuple(reversed(sizes))
        found[name] = GgufTensor(name=name, dtype=dtype, shape=shape, block=block, size=size)
        places.append((offset, offset + n_values // block * size, name))
    start, at = -(-reader.at // alignment) * alignment, 0
    for begin, end, name in sorted(places):
        if begin % alignment or begin < at:
            fault = "overlaps the one before it" if begin < at else "is not aligned"
            raise reader.wrong(f"tensor {shown(name)} begins at byte {begin} and {fault}")
        at = end
        if start + end > reader.size:
            ends = f"ends at byte {start + end}, the file has {reader.size}"
            raise reader.wrong(f"is cut short: tensor {shown(name)} {ends}")
    return tuple(found.values())


def _types() -> dict[int, tuple[str, int, int]]:
    """Return the name of each of ggml's types, with the values and bytes of a block."""
    try:
        from gguf.constants import GGML_QUANT_SIZES
    except ImportError:
        fault = "a GGUF file is read with the library gguf, which is not installed"
        raise InputError(f"{fault}; pip install 'metacount[gguf]'") from None
    return {int(kind): (kind.name, block, size) for kind, (block, size) in GGML_QUANT_SIZES.items()}
