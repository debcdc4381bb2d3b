"""GGUF files by the library's writer: read as its reader does, compared with transformers."""

from __future__ import annotations

import struct
from math import prod
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType, GGUFReader
from helpers.command_line import refused
from helpers.gguf_files import ARCHITECTURES, D, M, large, tensors_of, written
from helpers.release import daily

from metacount import catalog
from metacount.api import count
from metacount.cli import main
from metacount.errors import InputError
from metacount.formats.gguf import ARCHITECTURES as READ
from metacount.formats.gguf import Listed, read_header
from metacount.huggingface.checkpoint.conversion import read_gguf
from metacount.resolve import find_model
from metacount.spec import Workload
from metacount.verify.compare import Verification, verify_model

WORKLOAD = Workload(seq_len=7)
Q8 = GGMLQuantizationType.Q8_0


def verified(path: str) -> Verification:
    return verify_model(find_model(path), WORKLOAD)


@daily(8)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_four_witnesses_agree(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / "small.gguf", name, kind=Q8)
    found = verified(path)
    names = ["formula", "reference", "transformers", "checkpoint"]
    assert [w.name for w in found.witnesses] == names
    assert found.differences == ()
    stored = sum(prod(shape) for _, shape in tensors_of(ARCHITECTURES[name]))
    assert [w.figures["params"] for w in found.witnesses] == [stored] * 4
    counted = count(path)
    assert counted.stored_bytes == sum(int(t.n_bytes) for t in GGUFReader(path).tensors)
    assert any("of all tensors of the GGUF file, in " in note for note in counted.notes)
    assert set(ARCHITECTURES) == set(READ)


@daily(3)
@pytest.mark.parametrize(
    "changes", [{"experts": True}, {"tied": True}, {"experts": True, "tied": True}]
)
def test_llamas_other_layouts_agree(tmp_path: Path, changes: dict[str, Any]) -> None:
    found = verified(written(tmp_path / "small.gguf", "llama", changes))
    assert found.differences == ()
    assert len(found.witnesses) == 4
    assert "per expert" not in found.witnesses[3].detail


def test_biases_of_llama_are_told_by_the_tensors(tmp_path: Path) -> None:
    more = [
        (f"blk.{n}.{x}.bias", (D if x in ("attn_q", "attn_output") else D // 3,))
        for n in range(3)
        for x in ("attn_q", "attn_k", "attn_v", "attn_output")
    ]
    path = written(tmp_path / "a.gguf", "llama", tensors=[*tensors_of({}), *more])
    assert find_model(path).spec.o_bias
    assert verified(path).differences == ()
    half = [*tensors_of({}), *(t for t in more if "output" not in t[0])]
    path = written(tmp_path / "b.gguf", "llama", tensors=half)
    with pytest.raises(InputError, match="attn_k"):
        find_model(path)


def test_a_file_of_real_sizes_is_the_catalogs_model(tmp_path: Path) -> None:
    sizes = {"d": 4096, "m": 11008, "kv": 4096, "layers": 32, "heads": 32}
    path = large(tmp_path / "llama-7b.gguf", sizes, context=2048, vocab=32000)
    assert find_model(path).spec == catalog.entry("llama-7b").spec()
    report, _ = read_gguf(path)
    assert report.n_values == 6_738_415_616
    # 18 bytes for 32 values, and four a value of the norms
    norms = 65 * 4096
    assert report.n_bytes == (6_738_415_616 - norms) // 32 * 18 + 4 * norms


@pytest.mark.parametrize("kind", [GGMLQuantizationType.F32, Q8, GGMLQuantizationType.Q5_1])
def test_the_header_is_what_the_library_reads(tmp_path: Path, kind: GGMLQuantizationType) -> None:
    path = written(tmp_path / "a.gguf", "qwen3moe", kind=kind, more={"general.author": "nobody"})
    mine, theirs = read_header(path), GGUFReader(path)
    assert [(t.name, t.dtype, list(t.shape)) for t in mine.tensors] == [
        (t.name, t.tensor_type.name, t.shape.tolist()[::-1]) for t in theirs.tensors
    ]
    assert [t.n_bytes for t in mine.tensors] == [t.n_bytes for t in theirs.tensors]
    said = {key: f.contents() for key, f in theirs.fields.items() if not key.startswith("GGUF.")}
    assert mine.keys.keys() == said.keys()
    for key, value in mine.keys.items():
        if isinstance(value, Listed):
            assert value.length == len(said[key])
        elif isinstance(value, float):
            assert struct.pack("<f", value) == struct.pack("<f", said[key])
        else:
            assert value == said[key]
    assert mine.keys["qwen3moe.attention.layer_norm_rms_epsilon"] == 1e-5


def test_tables_of_rope_are_no_parameters(tmp_path: Path) -> None:
    tensors = [*tensors_of({}), ("rope_freqs.weight", (8,))]
    found = verified(written(tmp_path / "a.gguf", "llama", tensors=tensors))
    assert found.differences == ()
    assert "+8 values of 1 inv_freq buffer" in found.witnesses[3].detail
    assert any("RoPE's factors are a tensor of the file" in note for note in found.notes)


def test_a_tensor_that_is_missing_or_of_another_shape_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = [t for t in tensors_of({}) if t[0] != "blk.1.ffn_up.weight"]
    path = written(tmp_path / "a.gguf", "llama", tensors=tensors)
    assert main(["verify", path, "--seq", "7"]) == 1
    out = capsys.readouterr().out
    assert "model.layers.1.mlp.up_proj.weight: in the module, not in the checkpoint" in out
    tensors = [
        (n, (M + 32, D)) if n == "blk.1.ffn_up.weight" else (n, s) for n, s in tensors_of({})
    ]
    path = written(tmp_path / "b.gguf", "llama", tensors=tensors)
    assert verified(path).differences[-1] == (
        "checkpoint: model.layers.1.mlp.up_proj.weight: [192, 96] in the checkpoint, [160, 96] in "
        "the module"
    )


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"llama.attention.sliding_window": 5}, "llama.attention.sliding_window"),
        ({"llama.vocab_size": 102}, "llama.vocab_size"),
        ({"llama.rope.dimension_count": 8}, "rope.dimension_count"),
        (
            {"llama.attention.value_length": 8, "llama.attention.key_length": 16},
            "value_length differs from key_length",
        ),
        ({"other.block_count": 3}, "other.block_count"),
        ({"split.count": 3}, "is a part of 3"),
    ],
)
def test_a_key_that_may_change_the_model_is_named(
    tmp_path: Path, more: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "a.gguf", "llama", more=more)
    with pytest.raises(InputError, match=message):
        find_model(path)
    assert message.partition(".*")[0] in refused(capsys, "count", path)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ([*tensors_of({}), ("blk.0.attn_q_norm.weight", (16,))], "blk.0.attn_q_norm.weight"),
        ([*tensors_of({}), ("blk.3.ffn_up.weight", (M, D))], "block_count"),
        ([t for t in tensors_of({}) if "embd" not in t[0]], "token_embd.weight must be there"),
        ([("token_embd.weight", (101, 64)), *tensors_of({})[1:]], "embedding_length = 96"),
    ],
)
def test_a_tensor_that_may_change_the_model_is_named(
    tmp_path: Path, tensors: list[tuple[str, tuple[int, ...]]], message: str
) -> None:
    path = written(tmp_path / "a.gguf", "llama", tensors=tensors)
    with pytest.raises(InputError, match=message or None):
        find_model(path)


def test_scaling_of_rope(tmp_path: Path) -> None:
    none = {"llama.rope.scaling.type": "none"}
    assert find_model(written(tmp_path / "a.gguf", "llama", more=none)).spec.rope_scaling is None
    linear = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4}
    spec = find_model(written(tmp_path / "b.gguf", "llama", more=linear)).spec
    assert (spec.rope_scaling.kind, spec.rope_scaling.factor) == ("linear", 4.0)
    yarn = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4}
    model = find_model(written(tmp_path / "c.gguf", "llama", more=yarn))
    assert any("scaling is not taken over" in note for note in model.notes)
