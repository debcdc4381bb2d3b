"""Weights counted by their headers alone: safetensors, an index, GGUF in parts and of any kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter
from helpers.command_line import refused, run, run_json
from helpers.gguf_files import ARCHITECTURES, keys_of, tensors_of, written
from helpers.header_files import written as safetensors_written
from hypothesis import given
from hypothesis import strategies as st

from metacount.errors import InputError
from metacount.formats.gguf import read_header
from metacount.huggingface.checkpoint.totals import group_of, totals_of

Capsys = pytest.CaptureFixture[str]
HEADER = {
    "model.embed_tokens.weight": {"dtype": "BF16", "shape": [7, 8], "data_offsets": [0, 112]},
    "model.layers.0.mlp.up.weight": {"dtype": "F32", "shape": [3, 8], "data_offsets": [112, 208]},
    "lm_head.weight": {"dtype": "BF16", "shape": [7, 8], "data_offsets": [208, 320]},
}


def test_a_safetensors_file(tmp_path: Path, capsys: Capsys) -> None:
    path = safetensors_written(tmp_path / "a.safetensors", HEADER, bytes(320))
    data = run_json(capsys, "count", path, "--json")
    # 2 * 7 * 8 + 3 * 8 values; 2 bytes of each of the first, 4 of the others
    assert (data["params"], data["stored_bytes"], data["source"]) == (136, 320, "header")
    assert data["by_dtype"]["BF16"] == {"tensors": 2, "values": 112, "bytes": 224}
    assert data["by_group"]["ffn"]["bytes"] == 96
    text = run(capsys, "count", path)
    assert "not known from headers: active parameters, FLOPs and caches" in text
    # a folder without a config is as good
    (tmp_path / "a.safetensors").rename(tmp_path / "model.safetensors")
    assert run_json(capsys, "count", str(tmp_path), "--json")["params"] == 136


def test_packed_values_are_unpacked_where_the_header_says_how(tmp_path: Path) -> None:
    header = {
        "x.mlp.experts.gate_up_proj_blocks": {
            "dtype": "U8", "shape": [2, 3, 4, 16], "data_offsets": [0, 384]
        },
        "x.mlp.experts.gate_up_proj_scales": {
            "dtype": "U8", "shape": [2, 3, 4], "data_offsets": [384, 408]
        },
    }  # fmt: skip
    found = totals_of(safetensors_written(tmp_path / "a.safetensors", header, bytes(408)))
    assert found is not None
    assert (found.params, found.stored_bytes) == (2 * 3 * 4 * 16 * 2, 408)
    assert "1 weights in MXFP4" in found.notes


@pytest.mark.parametrize(
    ("metadata", "params", "n_bytes"),
    [
        ({"total_size": 24, "total_parameters": 12}, 12, 24),
        ({"total_size": 24}, None, 24),
        ({}, None, None),
    ],
)
def test_an_index_without_its_shards(
    tmp_path: Path,
    capsys: Capsys,
    metadata: dict[str, Any],
    params: int | None,
    n_bytes: int | None,
) -> None:
    file = tmp_path / "model.safetensors.index.json"
    names = {"a.mlp.weight": "m-1-of-2.safetensors", "b.norm.weight": "m-2-of-2.safetensors"}
    file.write_text(json.dumps({"metadata": metadata, "weight_map": names}))
    data = run_json(capsys, "count", str(file), "--json")
    assert (data["params"], data["stored_bytes"]) == (params, n_bytes)
    assert data["by_group"] == {"ffn": {"tensors": 1}, "norm": {"tensors": 1}}
    assert "without its 2 shards" in data["notes"][0]


def parts_of(tmp_path: Path, n: int = 3) -> list[Path]:
    """A llama in parts, as gguf-split writes them: the keys are in the first."""

    it, paths = ARCHITECTURES["llama"], []
    tensors = tensors_of(it)
    for i in range(n):
        path = tmp_path / f"m-{i + 1:05}-of-{n:05}.gguf"
        writer = GGUFWriter(path, "llama")
        if i == 0:
            keys_of(writer, it)
        writer.add_uint16("split.no", i)
        writer.add_uint16("split.count", n)
        writer.add_int32("split.tensors.count", len(tensors))
        for name, shape in tensors[i::n]:
            writer.add_tensor(name, np.zeros(shape, dtype=np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        paths.append(path)
    return paths


def test_a_gguf_in_parts_is_one(tmp_path: Path, capsys: Capsys) -> None:
    whole = run_json(capsys, "count", written(tmp_path / "whole.gguf", "llama"), "--json")
    first, *others = parts_of(tmp_path)
    for part in (first, *others):
        assert run_json(capsys, "count", str(part), "--json")["params"] == whole["params"]
    others[0].unlink()
    assert "m-00002-of-00003.gguf: no such file" in refused(capsys, "count", str(first))
    moved = first.rename(tmp_path / "first.gguf")
    with pytest.raises(InputError, match="not called NAME-00001-of"):
        read_header(str(moved))


def test_a_gguf_of_any_architecture(tmp_path: Path, capsys: Capsys) -> None:
    path = written(tmp_path / "a.gguf", "llama")
    raw = Path(path).read_bytes()
    Path(path).write_bytes(raw.replace(b"llama", b"qwarx"))
    data = run_json(capsys, "count", path, "--json")
    theirs = GGUFReader(path).tensors
    assert data["params"] == sum(int(t.n_elements) for t in theirs)
    assert data["stored_bytes"] == sum(int(t.n_bytes) for t in theirs)
    assert "architecture 'qwarx', which is not read" in data["notes"][0]
    # of one that is read, a key that is not understood stays an error
    Path(path).write_bytes(raw.replace(b"llama.block_count", b"llama.block_caunt"))
    assert "block_c" in refused(capsys, "count", path)


@given(st.text(max_size=50))
def test_every_name_has_a_group(name: str) -> None:
    assert group_of(name)
    assert totals_of(f"/nowhere/{name.replace(chr(0), '')}") is None
