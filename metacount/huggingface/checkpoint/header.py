"""The header of a safetensors file and a sharded checkpoint's index, read as a stranger's data.

Why not a library's reader: safetensors keeps the last of two tensors of one name, needs the whole
file and bounds no memory; huggingface_hub checks neither shapes nor offsets. Here is counted how
many values a text of at most 64 MiB can hold before it is parsed, and the tests hold the answers
against safetensors'.

A file is: 8 bytes, the header's length n (little endian); n bytes of JSON; the values.
"""

from __future__ import annotations

import json
import math
import os
import sys
from typing import NamedTuple

from metacount.errors import InputError, shown
from metacount.files import STRICT_JSON, NotStrict, check_no_pointer, open_regular, wrong
from metacount.formats.tensors import DTYPE_BITS, Shape, StoredTensor

MAX_HEADER_BYTES = 2**25  # 32 MiB are 200,000 tensors and more; the format's own limit is 10^8
MAX_INDEX_BYTES = 2**26
MAX_TENSORS = 2**19  # of a whole checkpoint; the largest known has about 210,000
MAX_FILES = 2**12
MAX_BYTES = 2**63 - 1
MAX_ENTRY = 2**11  # bytes of a tensor's entry, on average
MAX_NOTES = 2**20  # bytes of what is no tensor: the notes of whoever wrote the file, and padding
MAX_NAME = 1000  # characters

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


class Index(NamedTuple):
    """What `model.safetensors.index.json` claims; the headers may say otherwise."""

    files: dict[str, str]  # by tensor
    total_size: int | None
    total_parameters: int | None = None


def header_length(start: bytes, size: int | None, where: str) -> int:
    """Read how many bytes the JSON header has,
    from the first eight bytes of a file of `size` bytes.
    """
    again = "fetch it again"
    if len(start) < 8:
        rule = "a safetensors file has 8 and a header"
        raise wrong(where, f"is cut short: has {len(start)} bytes, {rule}", again)
    check_no_pointer(start, where)
    length = int.from_bytes(start[:8], "little")
    if size is not None and length > size - 8:
        claim = f"the header claims {length} bytes, the file has {size - 8} after the first 8"
        raise wrong(where, f"is cut short or no safetensors file: {claim}", again)
    if length > MAX_HEADER_BYTES:
        fault = f"the header claims {length} bytes; at most {MAX_HEADER_BYTES} are read"
        raise wrong(where, fault, "split the checkpoint into shards")
    if length < 2:
        raise InputError(f"{where}: the header has {length} bytes; the shortest is {{}}")
    return length


def _parsed(text: bytes, where: str, most_objects: int, most_values: int) -> dict[str, object]:
    n_objects = text.count(b"{")
    n_values = text.count(b",") + text.count(b"[") + n_objects
    if n_objects > most_objects or n_values > most_values:
        raise wrong(where, f"has more than {MAX_TENSORS} tensors", "no model has them")
    try:
        parsed = STRICT_JSON.decode(text.decode("utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError, NotStrict, RecursionError) as error:
        reason = str(error)
        if isinstance(error, RecursionError):
            reason = "it is nested too deeply"
        elif isinstance(error, UnicodeDecodeError):
            reason = "it is no text in UTF-8"
        fault = f"is not the JSON that safetensors writes: {shown(reason)}"
        raise wrong(where, fault, "fetch or write it again") from None
    if not isinstance(parsed, dict):
        raise wrong(where, "must be a JSON object {...}", "fetch or write it again")
    return parsed


def _check_name(name: str, where: str) -> None:
    if not name.isprintable() or not 0 < len(name) <= MAX_NAME:
        got = shown(repr(name[:MAX_NAME]))
        raise wrong(where, f"a name has 1 to {MAX_NAME} printable characters: got {got}")


def parse_header(
    text: bytes, where: str, *, file: str, data_size: int | None
) -> list[StoredTensor]:
    """Read the tensors of a header, whose values fill `data_size` bytes without gap or overlap."""
    if len(text) > MAX_ENTRY * text.count(b"{") + MAX_NOTES:
        fault = "is not the JSON that safetensors writes: too long for its tensors"
        raise InputError(f"{where}: {fault}")
    entries = _parsed(text, where, MAX_TENSORS + 2, 16 * MAX_TENSORS)
    notes = entries.pop("__metadata__", None)
    if notes is not None and not _are_texts(notes):
        raise wrong(where, "__metadata__ must hold texts alone")
    if len(entries) > MAX_TENSORS:
        raise wrong(where, f"has more than {MAX_TENSORS} tensors", "split it into shards")
    tensors: list[StoredTensor] = []
    spans: list[tuple[int, int, str]] = []
    shapes: dict[Shape, Shape] = {}  # layers repeat their shapes: each is kept once
    for name, value in entries.items():
        _check_name(name, where)
        dtype, shape, begin, end = _entry(value, f"{where}: tensor {shown(name)}")
        tensors.append(StoredTensor(name, dtype, shapes.setdefault(shape, shape), file))
        spans.append((begin, end, name))
    at = 0
    for begin, end, name in sorted(spans):
        if begin != at:
            fault = "overlaps the tensor before it" if begin < at else "leaves a gap before it"
            place = f"begins at byte {begin}, {fault}, which ends at {at}"
            raise wrong(where, f"tensor {shown(name)}: {place}")
        at = end
    if data_size is not None and at != data_size:
        fault = f"the tensors take {at} bytes, the file holds {data_size}"
        raise wrong(where, fault, "fetch it again" if at > data_size else "write it again")
    return tensors


def _are_texts(notes: object) -> bool:
    return isinstance(notes, dict) and all(isinstance(note, str) for note in notes.values())


def _entry(value: object, where: str) -> tuple[str, Shape, int, int]:
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise wrong(where, "must have dtype, shape and data_offsets, and nothing else")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        rule = f"is not one of safetensors' types: {', '.join(DTYPE_BITS)}"
        raise InputError(f"{where}: dtype {shown(repr(dtype))} {rule}")
    if not isinstance(shape, list) or not all(_is_size(n) for n in shape):
        raise wrong(where, f"shape must be a list of sizes: got {shown(repr(shape))}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_size, offsets)):
        raise wrong(where, f"data_offsets must be [begin, end]: got {shown(repr(offsets))}")
    begin, end = offsets
    n_bits = math.prod(shape) * DTYPE_BITS[dtype]
    if n_bits != 8 * (end - begin):
        held = f"its offsets {begin} to {end} hold {8 * (end - begin)}"
        raise wrong(where, f"{dtype} {shown(shape)} takes {shown(n_bits)} bits, {held}")
    return sys.intern(dtype), tuple(shape), begin, end


def _is_size(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_BYTES


def parse_index(text: bytes, where: str) -> Index:
    """Read which file holds which tensor, and the claimed total size."""
    parsed = _parsed(text, where, 2**10, MAX_TENSORS + 2**12)
    files, metadata = parsed.get("weight_map"), parsed.get("metadata")
    if files is None:
        fault = "has no weight_map, which says the file of each tensor"
        raise wrong(where, fault, "give a folder whose index is complete")
    if not isinstance(files, dict) or not _are_texts(files):
        raise wrong(where, "weight_map must name a file for each tensor", "write it again")
    if len(files) > MAX_TENSORS:
        raise wrong(where, f"names more than {MAX_TENSORS} tensors", "no model has them")
    names = dict.fromkeys(files.values())
    if len(names) > MAX_FILES:
        raise wrong(where, f"names more than {MAX_FILES} files", "join the shards")
    for name in files:
        _check_name(name, where)
    for file in names:
        _check_file(file, where)
    if metadata is not None and not isinstance(metadata, dict):
        raise InputError(f"{where}: metadata must be an object: got {shown(repr(metadata))}")
    claims = metadata or {}
    n_params, size = claims.get("total_parameters"), claims.get("total_size")
    if isinstance(size, float) and size.is_integer():
        size = int(size)  # some writers put 1234.0
    if size is not None and not _is_size(size):
        fault = f"metadata.total_size must be a number of bytes: got {shown(repr(size))}"
        raise wrong(where, fault, "leave it out")
    return Index(files, size, n_params if _is_size(n_params) else None)


def _check_file(file: str, where: str) -> None:
    steps, named = file.split("/"), f"names the file {shown(repr(file))}, which is"
    if "\\" in file or ":" in file or any(step in ("", ".", "..") for step in steps):
        remedy = "name files without .. and without a root"
        raise wrong(where, f"{named} not in the folder of the index", remedy)
    if not file.endswith(".safetensors"):
        raise wrong(where, f"{named} no .safetensors", "only those are read")


def read_local_header(path: str, file: str) -> list[StoredTensor]:
    """Read the tensors in a file on disk from its header; no value is read."""
    where = shown(path)
    with open_regular(path, "safetensors") as stream:
        size = os.fstat(stream.fileno()).st_size
        length = header_length(stream.read(min(8, size)), size, where)
        text = stream.read(length)
        if len(text) < length:
            raise wrong(where, "became shorter while it was read", "try again")
        return parse_header(text, where, file=file, data_size=size - 8 - length)


def read_local_index(path: str) -> Index:
    """Read the index on disk."""
    where = shown(path)
    with open_regular(path, "safetensors") as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > MAX_INDEX_BYTES:
            raise InputError(f"{where}: has {size} bytes; an index has at most {MAX_INDEX_BYTES}")
        return parse_index(stream.read(size), where)
