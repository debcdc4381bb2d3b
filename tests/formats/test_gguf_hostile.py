"""GGUF files from a stranger: cut short, with claims that are not so, or not GGUF at all."""

from __future__ import annotations

import os
import random
import re
import struct
from pathlib import Path

import pytest
from helpers.command_line import refused
from helpers.gguf_files import tensors_of, written

from metacount.errors import InputError
from metacount.formats.gguf import read_header


def text(raw: bytes) -> bytes:
    return struct.pack("<Q", len(raw)) + raw


def file_of(
    *,
    tensors: bytes = b"",
    n_tensors: int = 0,
    keys: bytes = b"",
    n_keys: int = 0,
    version: int = 3,
) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_keys) + keys + tensors


def key(name: bytes, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def tensor(name: bytes, sizes: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return (
        text(name)
        + struct.pack("<I", len(sizes))
        + struct.pack(f"<{len(sizes)}Q", *sizes)
        + struct.pack("<IQ", kind, offset)
    )


BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is no GGUF file: it begins with b''"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"),
    "version 1": (file_of(version=1), "is of version 1; versions 2 and 3 are read"),
    "big endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "is big endian"),
    "many keys": (file_of(n_keys=2**60), "claims 1152921504606846976 keys; at most 16384"),
    "a key less": (file_of(n_keys=1), "is cut short: at byte 24 it claims 8 more"),
    "long name": (file_of(n_keys=1, keys=struct.pack("<Q", 2**62)), "a name has 1 to 256 bytes"),
    "binary name": (file_of(n_keys=1, keys=text(b"\xff\xfe")), "must be printable text"),
    "twice": (file_of(n_keys=2, keys=key(b"a", 0, b"\1") * 2), "a is given twice"),
    "other type": (file_of(n_keys=1, keys=key(b"a", 13, b"\1")), "is of type 13, which is none"),
    "long text": (file_of(n_keys=1, keys=key(b"a", 8, struct.pack("<Q", 2**61))), "is cut short"),
    "odd alignment": (
        file_of(n_keys=1, keys=key(b"general.alignment", 4, struct.pack("<I", 33))),
        "general.alignment must be a power of two: got 33",
    ),
    "huge sizes": (file_of(n_tensors=1, tensors=tensor(b"a", (2**40, 2**40))), "sizes that no"),
    "no size": (file_of(n_tensors=1, tensors=tensor(b"a", (0, 4))), "sizes that no tensor has"),
    "half a block": (file_of(n_tensors=1, tensors=tensor(b"a", (33,), 2)), "rows of 33 values"),
    "same tensor": (file_of(n_tensors=2, tensors=tensor(b"a", (1,)) * 2), "tensor a is given tw"),
    "no values": (file_of(n_tensors=1, tensors=tensor(b"a", (64,))), "is cut short: tensor a ends"),
    "odd place": (file_of(n_tensors=1, tensors=tensor(b"a", (1,), 0, 8)), "is not aligned"),
    "on each other": (
        file_of(n_tensors=2, tensors=tensor(b"a", (64,)) + tensor(b"b", (64,))) + b"\0" * 4096,
        "tensor b begins at byte 0 and overlaps",
    ),
    "no architecture": (file_of(), "general.architecture None is not one that is read"),
    "other architecture": (
        file_of(n_keys=1, keys=key(b"general.architecture", 8, text(b"qwen4"))),
        "'qwen4' is not one that is read; did you mean qwen",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_one_line_and_no_more(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    content, message = BAD[name]
    file = tmp_path / "bad.gguf"
    file.write_bytes(content)
    assert message in refused(capsys, "count", str(file))


def test_every_cut_is_told(tmp_path: Path) -> None:
    whole = Path(written(tmp_path / "a.gguf", "llama", tensors=tensors_of({})[:4])).read_bytes()
    file = tmp_path / "cut.gguf"
    for length in [*range(0, 3000, 11), *range(3000, len(whole), 2003)]:
        file.write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"is cut short|is no GGUF file"):
            read_header(str(file))


def test_whatever_is_changed_ends_in_a_header_or_a_line(tmp_path: Path) -> None:
    whole = Path(written(tmp_path / "a.gguf", "llama", tensors=tensors_of({})[:4])).read_bytes()
    file, chance, read = tmp_path / "changed.gguf", random.Random(1), 0
    for _ in range(400):
        changed = bytearray(whole[:6000])
        for _ in range(chance.choice((1, 1, 3))):
            changed[chance.randrange(len(changed))] = chance.choice((0, 1, 8, 9, 127, 255))
        file.write_bytes(bytes(changed) + whole[6000:])
        try:
            read += bool(read_header(str(file)).tensors)
        except InputError as error:
            assert "\n" not in str(error)
    assert 0 < read < 400


def test_what_is_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe, folder = tmp_path / "pipe.gguf", tmp_path / "folder.gguf"
    os.mkfifo(pipe)
    folder.mkdir()
    assert "is not a regular file" in refused(capsys, "count", str(pipe))
    assert "this folder holds no config.json" in refused(capsys, "count", str(folder))
    assert "no such file" in refused(capsys, "count", str(tmp_path / "gone.gguf"))


def test_without_the_library_the_remedy_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "a.gguf", "llama")
    monkeypatch.setitem(__import__("sys").modules, "gguf.constants", None)
    with pytest.raises(InputError, match=re.escape("pip install 'metacount[gguf]'")):
        read_header(path)
