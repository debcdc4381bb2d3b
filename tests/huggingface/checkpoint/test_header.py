"""A header is a stranger's data: the right answer or one clear line, and nothing else."""

from __future__ import annotations

import json
import os
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy
import pytest
from helpers import one_line
from helpers.header_files import U8, written
from helpers.release import one_day_in
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from metacount.errors import InputError
from metacount.formats.tensors import DTYPE_BITS, StoredTensor
from metacount.huggingface.checkpoint.header import parse_header, parse_index, read_local_header
from metacount.huggingface.config.keys import words


def read(path: str) -> dict[str, StoredTensor]:
    return {tensor.name: tensor for tensor in read_local_header(path, "model.safetensors")}


def by_safetensors(path: str) -> dict[str, tuple[str, tuple[int, ...]]] | None:
    """What safetensors' own reader says; None where it refuses."""
    try:
        with safe_open(path, framework="np") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {name: (s.get_dtype(), tuple(s.get_shape())) for name, s in slices.items()}
    except SafetensorError:
        return None


def test_a_real_file(tmp_path: Path) -> None:
    path = str(tmp_path / "model.safetensors")
    tensors = {
        "a.weight": numpy.zeros((3, 5), numpy.float32),
        "b.ids": numpy.zeros((7,), numpy.int64),
        "scalar": numpy.zeros((), numpy.float16),
        "empty": numpy.zeros((0, 11), numpy.uint8),
    }
    save_file(tensors, path, metadata={"format": "pt", "brace": '}{"'})
    found = read(path)
    assert {name: (t.dtype, t.shape) for name, t in found.items()} == by_safetensors(path)
    assert found["a.weight"] == StoredTensor("a.weight", "F32", (3, 5), "model.safetensors")
    assert [found[name].n_values for name in tensors] == [15, 7, 1, 0]
    assert [found[name].n_bytes for name in tensors] == [60, 56, 2, 0]


# As safetensors 0.6 names its types.
NAMES = words(
    "BOOL U8 I8 U16 I16 U32 I32 U64 I64 F4 F6_E2M3 F6_E3M2 F8_E4M3 F8_E5M2 F8_E8M0 F8_E4M3FNUZ "
    "F8_E5M2FNUZ F16 BF16 F32 F64 C64"
)


def test_every_type_has_safetensors_size(tmp_path: Path) -> None:
    assert set(DTYPE_BITS) == NAMES
    for dtype in NAMES:
        n_bytes = 8 * DTYPE_BITS[dtype] // 8
        entry = {"dtype": dtype, "shape": [8], "data_offsets": [0, n_bytes]}
        path = written(tmp_path / "x", {"t": entry}, bytes(n_bytes))
        assert by_safetensors(path) == {"t": (dtype, (8,))}
        assert read(path)["t"].n_bytes == n_bytes


def entry(**changes: Any) -> dict[str, Any]:
    return {"t": {**U8, **changes}}


REFUSED = [
    ("[]", b"xxx", "a JSON object"),
    ("{}x", b"", "Extra data: line 1 column 3"),
    (b'{"\xff":1}', b"", "no text in UTF-8"),
    (b'{"a\\ud800":1}', b"", "printable characters"),
    ({"a" * 1001: U8}, b"xxx", "1 to 1000 printable"),
    ({"t": {"dtype": "U8", "shape": [3]}}, b"xxx", "must have dtype, shape and data_offsets"),
    (entry(more=1), b"xxx", "and nothing else"),
    (entry(dtype="U9"), b"xxx", "'U9' is not one of safetensors' types: BOOL, U8"),
    (entry(shape=[-3]), b"xxx", r"shape must be a list of sizes: got \[-3\]"),
    (entry(shape=[2**63, 0], data_offsets=[0, 0]), b"", "shape must be a list of sizes"),
    (entry(shape=[2**62, 2**62]), b"xxx", "takes .* bits, its offsets 0 to 3 hold 24"),
    (entry(data_offsets=[0]), b"xxx", r"data_offsets must be \[begin, end\]"),
    (entry(data_offsets=[0, 4]), b"xxxx", "U8 .* takes 24 bits, its offsets 0 to 4 hold 32"),
    (entry(data_offsets=[1, 4]), b"xxxx", "leaves a gap before it"),
    ({"a": U8, "b": {**U8, "data_offsets": [1, 4]}}, b"xxxx", "overlaps the tensor before it"),
    ({"a": U8}, b"xx", "take 3 bytes, the file holds 2; fetch it again"),
    ({"a": U8}, b"xxxx", "take 3 bytes, the file holds 4; write it again"),
    (
        b'{"a":%s,"a":%s}' % ((json.dumps(U8).encode(),) * 2),
        b"xxx",
        "safetensors writes: a is given twice",
    ),
    ({"__metadata__": {"a": 1}}, b"", "__metadata__ must hold texts alone"),
    (b'{"a":' + b"[" * 100_000, b"", "nested too deeply|has no end within"),
    (b'{"a":{"dtype":"U8","shape":[' + b"1" * 5000 + b"]}}", b"", "a number of 5000 digits"),
    (b'{"a":NaN}', b"", "NaN is not a number"),
]


@pytest.mark.parametrize(("header", "data", "message"), REFUSED)
def test_refused(header: object, data: bytes, message: str, tmp_path: Path) -> None:
    text = header.encode() if isinstance(header, str) else header
    path = written(tmp_path / "model.safetensors", text, data)
    with pytest.raises(InputError, match=message) as caught:
        read(path)
    line = one_line(caught.value)
    assert "\n" not in line
    assert line.isprintable()
    assert len(line) < 600


@pytest.mark.parametrize(
    "content",
    [
        *(struct.pack("<Q", length) + b"{}" for length in (0, 1, 99, 2**64 - 1)),
        b"1234567",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n",
    ],
)
def test_claims_about_the_length(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    with pytest.raises(
        InputError, match=r"is cut short|claims|Git LFS|is no safetensors"
    ) as caught:
        read(str(file))
    one_line(caught.value)


def test_a_header_too_long_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(struct.pack("<Q", 99_999_999))
    os.truncate(file, 10**8 + 8)  # a sparse file: honest about its length
    with pytest.raises(InputError, match="99999999"):
        read(str(file))


HOSTILE = {  # a start, and what is repeated after it
    "objects": (b'{"a":[', b"{},", 10**7),
    "metadata": (b'{"__metadata__":{', b'"a":"b",', 4 * 10**6),
    "names": (b'{"', b"a", 3 * 10**7),
    "brackets": (b'{"a":', b"[", 3 * 10**7),
}
HOSTILE_INDEX = {
    "files": (b'{"weight_map":{', b'"a":"b",', 8 * 10**6),
    "lists": (b'{"weight_map":', b"[", 6 * 10**7),
    "numbers": (b'{"weight_map":[', b"0,", 3 * 10**7),
    "objects of an index": (b'{"metadata":[', b"{},", 2 * 10**7),
}


@pytest.mark.parametrize("kind", [*HOSTILE, *HOSTILE_INDEX])
def test_nothing_takes_much_memory(kind: str) -> None:
    start, piece, n = {**HOSTILE, **HOSTILE_INDEX}[kind]
    text = start + piece * n
    tracemalloc.start()
    try:
        with pytest.raises(InputError):
            if kind in HOSTILE:
                parse_header(text, "here", file="here", data_size=0)
            else:
                parse_index(text, "here")
        assert tracemalloc.get_traced_memory()[1] < (64 if kind in HOSTILE else 1) * 2**20
    finally:
        tracemalloc.stop()


# A file of three tensors, whose bytes are then changed.
GOOD_HEADER = json.dumps(
    {
        "__metadata__": {"format": "pt"},
        "a.weight": {"dtype": "F32", "shape": [3, 5], "data_offsets": [0, 60]},
        "b.bias": {"dtype": "BF16", "shape": [7], "data_offsets": [60, 74]},
        "c": {"dtype": "I64", "shape": [], "data_offsets": [74, 82]},
    }
).encode()
GOOD = struct.pack("<Q", len(GOOD_HEADER)) + GOOD_HEADER + bytes(82)

PLACE = st.integers(0, 8 + len(GOOD_HEADER) + 4)
PIECES = st.one_of(
    st.binary(max_size=4),
    st.sampled_from(
        [*(bytes([byte]) for byte in b'{}[]",:-0\\ '), b"9" * 30, b"1e9", b"null", b"\\u0000",
         b"\xc3\xa9", b"true", b'"a.weight":', b"{}", b'"dtype":"U8",', b"1.5"]
    ),
)  # fmt: skip
CHANGE = st.tuples(PLACE, st.integers(0, 6), PIECES)


def right_or_refused(path: str) -> None:
    theirs = by_safetensors(path)
    try:
        ours = {name: (tensor.dtype, tensor.shape) for name, tensor in read(path).items()}
    except InputError as error:
        line = str(error)
        assert line.isprintable()
        assert len(line) < 700
        return
    assert ours == theirs


@one_day_in(6)
@settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(CHANGE, min_size=1, max_size=4), st.one_of(st.none(), st.integers(0, len(GOOD))))
def test_changed_bytes(
    tmp_path_factory: pytest.TempPathFactory, changes: list[Any], cut: int | None
) -> None:
    content = bytearray(GOOD)
    for place, n_gone, piece in changes:
        content[place : place + n_gone] = piece
    # the claimed length follows, so that most changes reach the JSON
    if content[:8] == GOOD[:8]:
        content[:8] = struct.pack("<Q", max(0, len(content) - 8 - 82))
    path = tmp_path_factory.getbasetemp() / "changed.safetensors"
    path.write_bytes(bytes(content[:cut]))
    right_or_refused(str(path))
