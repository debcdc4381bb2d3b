"""The header of a safetensors file and a sharded checkpoint's index, read as a stranger's data.

Why not a library's reader: safetensors keeps the last of two tensors of one name, needs the whole
file and bounds no memory; huggingface_hub checks neither shapes nor offsets. Here each tensor is
read on its own, from at most 32 MiB of text, and the tests hold the answers against safetensors'.

A file is: 8 bytes, the header's length n (little endian); n bytes of JSON; the values.
"""

from __future__ import annotations

import math
import sys
from typing import NamedTuple

from metacount.errors import InputError, shown
from metacount.huggingface.checkpoint.text import JsonCursor, RegularFile

MAX_HEADER_BYTES = 2**25  # 32 MiB are 200,000 tensors and more; the format's own limit is 10^8
MAX_INDEX_BYTES = 2**26
MAX_TENSORS = 2**19  # of a whole checkpoint; the largest known has about 210,000
MAX_FILES = 2**12
MAX_BYTES = 2**63 - 1

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

# Bits of one value, by the format's name of the type.
DTYPE_BITS = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "U16": 16,
    "I16": 16,
    "U32": 32,
    "I32": 32,
    "U64": 64,
    "I64": 64,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "F16": 16,
    "BF16": 16,
    "F32": 32,
    "F64": 64,
    "C64": 64,
}

Shape = tuple[int, ...]


class StoredTensor(NamedTuple):
    """One tensor that a file holds; `block`: values and bytes of one block, where it has any."""

    name: str
    dtype: str
    shape: Shape
    file: str
    block: tuple[int, int] | None = None

    @property
    def n_values(self) -> int:
        """Values of `dtype`; a packed format keeps several logical values in one."""
        return math.prod(self.shape)

    @property
    def n_bytes(self) -> int:
        """Bytes in the file; the header was refused if they are no whole number."""
        if self.block is not None:
            return self.n_values // self.block[0] * self.block[1]
        return self.n_values * DTYPE_BITS[self.dtype] // 8


class Index(NamedTuple):
    """What `model.safetensors.index.json` claims; the headers may say otherwise."""

    files: dict[str, str]  # by tensor
    total_size: int | None


def header_length(start: bytes, size: int | None, where: str) -> int:
    """Read how many bytes the JSON header has,
    from the first eight bytes of a file of `size` bytes.
    """
    if len(start) < 8:
        raise InputError(
            f"{where}: is cut short: has {len(start)} bytes, a safetensors file has "
            "8 and a header; fetch it again"
        )
    if start.startswith(b"version "):
        raise InputError(
            f"{where}: is a Git LFS pointer, not the file; fetch it with `git lfs pull`"
        )
    length = int.from_bytes(start[:8], "little")
    if size is not None and length > size - 8:
        raise InputError(
            f"{where}: is cut short or no safetensors file: the header claims "
            f"{length} bytes, the file has {size - 8} after the first 8; "
            "fetch it again"
        )
    if length > MAX_HEADER_BYTES:
        raise InputError(
            f"{where}: the header claims {length} bytes; at most {MAX_HEADER_BYTES} "
            "are read; split the checkpoint into shards"
        )
    if length < 2:
        raise InputError(f"{where}: the header has {length} bytes; the shortest is {{}}")
    return length


def parse_header(
    text: bytes, where: str, *, file: str, data_size: int | None
) -> list[StoredTensor]:
    """Read the tensors of a header, whose values fill `data_size` bytes without gap or overlap."""
    cursor = JsonCursor(text, where)
    tensors: dict[str, StoredTensor] = {}
    spans: list[tuple[int, int, str]] = []
    shapes: dict[Shape, Shape] = {}  # layers repeat their shapes: each is kept once
    had_metadata = False
    for name in cursor.members():
        if name == "__metadata__":
            if had_metadata:
                raise InputError(f"{where}: __metadata__ is given twice; write the file again")
            had_metadata = True
            cursor.skip_texts()
            continue
        here = f"{where}: tensor {shown(name)}"
        if name in tensors:
            raise InputError(f"{here}: is given twice; write the file again")
        if len(tensors) == MAX_TENSORS:
            raise InputError(f"{where}: has more than {MAX_TENSORS} tensors; split it into shards")
        dtype, shape, begin, end = _entry(cursor.value(), here)
        shape = shapes.setdefault(shape, shape)
        tensors[name] = StoredTensor(name, dtype, shape, file)
        spans.append((begin, end, name))
    cursor.finish()
    _check_spans(spans, data_size, where)
    return list(tensors.values())


def parse_index(text: bytes, where: str) -> Index:
    """Read which file holds which tensor, and the claimed total size."""
    cursor = JsonCursor(text, where)
    files: dict[str, str] | None = None
    total_size = None
    seen: set[str] = set()
    for key in cursor.members():
        if key in seen:
            raise InputError(f"{where}: {shown(key)} is given twice; leave one out")
        seen.add(key)
        if key == "weight_map":
            files = _weight_map(cursor, where)
        elif key == "metadata":
            total_size = _total_size(cursor.value(), where)
        else:
            cursor.value()
    cursor.finish()
    if files is None:
        raise InputError(
            f"{where}: has no weight_map, which says the file of each tensor; "
            f"give a folder whose index is complete"
        )
    return Index(files, total_size)


def read_local_header(path: str, file: str) -> list[StoredTensor]:
    """Read the tensors in a file on disk from its header; no value is read."""
    where = shown(path)
    with RegularFile(path) as stream:
        length = header_length(stream.read(8), stream.size, where)
        text = stream.read(length)
        if len(text) < length:
            raise InputError(f"{where}: became shorter while it was read; try again")
        return parse_header(text, where, file=file, data_size=stream.size - 8 - length)


def read_local_index(path: str) -> Index:
    """Read the index on disk."""
    where = shown(path)
    with RegularFile(path) as stream:
        if stream.size > MAX_INDEX_BYTES:
            raise InputError(
                f"{where}: has {stream.size} bytes; an index has at most {MAX_INDEX_BYTES}"
            )
        return parse_index(stream.read(MAX_INDEX_BYTES), where)


def _is_size(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_BYTES


def _entry(found: object, here: str) -> tuple[str, Shape, int, int]:
    """Read the type, shape and place of one tensor, each checked against the others."""
    if not isinstance(found, dict) or set(found) != {"dtype", "shape", "data_offsets"}:
        raise InputError(
            f"{here}: must have dtype, shape and data_offsets, and nothing else; "
            "write the file again"
        )
    dtype, shape, offsets = found["dtype"], found["shape"], found["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise InputError(
            f"{here}: dtype {shown(repr(dtype))} is not one of safetensors' types: "
            f"{', '.join(DTYPE_BITS)}"
        )
    if not isinstance(shape, list) or not all(_is_size(n) for n in shape):
        raise InputError(
            f"{here}: shape must be a list of sizes: got {shown(repr(shape))}; write the file again"
        )
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_size, offsets)):
        raise InputError(
            f"{here}: data_offsets must be [begin, end]: got "
            f"{shown(repr(offsets))}; write the file again"
        )
    begin, end = offsets
    n_bits = math.prod(shape) * DTYPE_BITS[dtype]
    if n_bits != 8 * (end - begin):
        raise InputError(
            f"{here}: {dtype} {shown(shape)} takes {shown(n_bits)} bits, "
            f"its offsets {begin} to {end} hold {8 * (end - begin)}; "
            "write the file again"
        )
    return sys.intern(dtype), tuple(shape), begin, end


def _check_spans(spans: list[tuple[int, int, str]], data_size: int | None, where: str) -> None:
    """Check that the tensors cover the values one after the other, to the last byte."""
    at = 0
    for begin, end, name in sorted(spans):
        if begin != at:
            fault = "overlaps the tensor before it" if begin < at else "leaves a gap before it"
            raise InputError(
                f"{where}: tensor {shown(name)}: begins at byte {begin}, {fault}, "
                f"which ends at {at}; write the file again"
            )
        at = end
    if data_size is not None and at != data_size:
        raise InputError(
            f"{where}: the tensors take {at} bytes, the file holds {data_size}; "
            f"{'fetch it again' if at > data_size else 'write it again'}"
        )


def _weight_map(cursor: JsonCursor, where: str) -> dict[str, str]:
    files: dict[str, str] = {}
    kept: dict[str, str] = {}  # each file's name once
    for name in cursor.members():
        if name in files:
            raise InputError(f"{where}: tensor {shown(name)}: is given twice; leave one out")
        if len(files) == MAX_TENSORS:
            raise InputError(f"{where}: names more than {MAX_TENSORS} tensors; no model has them")
        file = cursor.name()
        if file not in kept:
            _check_file(file, where)
            if len(kept) == MAX_FILES:
                raise InputError(f"{where}: names more than {MAX_FILES} files; join the shards")
        files[name] = kept.setdefault(file, file)
    return files


def _check_file(file: str, where: str) -> None:
    """Check that a file is named from the folder of its index, and lies in it."""
    steps = file.split("/")
    if "\\" in file or ":" in file or any(step in ("", ".", "..") for step in steps):
        raise InputError(
            f"{where}: names the file {shown(repr(file))}, which is not in the folder "
            "of the index; name files without .. and without a root"
        )
    if not file.endswith(".safetensors"):
        raise InputError(
            f"{where}: names the file {shown(repr(file))}, which is no .safetensors; "
            "only those are read"
        )


def _total_size(metadata: object, where: str) -> int | None:
    if metadata is None:
        return None
    if not isinstance(metadata, dict):
        raise InputError(f"{where}: metadata must be an object: got {shown(repr(metadata))}")
    size = metadata.get("total_size")
    if isinstance(size, float) and size.is_integer():
        size = int(size)  # some writers put 1234.0
    if size is not None and not _is_size(size):
        raise InputError(
            f"{where}: metadata.total_size must be a number of bytes: got "
            f"{shown(repr(size))}; leave it out"
        )
    return size
