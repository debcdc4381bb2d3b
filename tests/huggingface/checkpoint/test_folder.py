"""The folder of a checkpoint: its index is believed in nothing, and no link leads out of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers import one_line
from helpers.header_files import U8, written

from metacount.errors import InputError
from metacount.huggingface.checkpoint import header as checkpoint_header
from metacount.huggingface.checkpoint.witness import read_checkpoint

INDEX_NAME = "model.safetensors.index.json"


def folder_with(tmp_path: Path, index: object) -> str:
    written(tmp_path / "one.safetensors", {"a": U8}, b"xxx")
    written(tmp_path / "two.safetensors", {"b": U8}, b"xxx")
    text = index if isinstance(index, bytes) else json.dumps(index).encode()
    (tmp_path / INDEX_NAME).write_bytes(text)
    return str(tmp_path)


MAP = {"a": "one.safetensors", "b": "two.safetensors"}
REFUSED_INDEXES = [
    ({"metadata": {}}, "has no weight_map"),
    ({"weight_map": []}, "must name a file for each tensor"),
    ({"weight_map": {"a": 1}}, "must name a file for each tensor"),
    ({"weight_map": {**MAP, "c": "one.safetensors"}}, "names tensor c in one.safetensors, which"),
    ({"weight_map": {**MAP, "c": "six.safetensors"}}, "six.safetensors: no such file"),
    ({"weight_map": {**MAP, "a": "two.safetensors", "b": "one.safetensors"}}, "it is in one.safe"),
    ({"weight_map": {"a": "../one.safetensors"}}, "which is not in the folder of the index"),
    ({"weight_map": {"a": "/etc/one.safetensors"}}, "which is not in the folder of the index"),
    ({"weight_map": {"a": "C:one.safetensors"}}, "which is not in the folder of the index"),
    ({"weight_map": {"a": "passwd"}}, "which is no .safetensors"),
    ({"weight_map": MAP, "metadata": {"total_size": -1}}, "total_size must be a number of bytes"),
    ({"weight_map": MAP, "metadata": {"total_size": "9"}}, "total_size must be a number of bytes"),
    ({"weight_map": MAP, "metadata": []}, "metadata must be an object"),
    (b'{"metadata":{"total_size":1e999},"weight_map":{}}', "total_size must be a number"),
    (b'{"weight_map":{"a":"one.safetensors","a":"one.safetensors"}}', "a is given twice"),
    ({"weight_map": {}}, "holds no tensor"),
]


@pytest.mark.parametrize(("index", "message"), REFUSED_INDEXES)
def test_refused_indexes(index: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read_checkpoint(folder_with(tmp_path, index))
    one_line(caught.value)


def test_an_honest_index_and_a_lying_total(tmp_path: Path) -> None:
    other = {"nested": [{"}": '"'}], "weight_map": MAP}
    right = read_checkpoint(folder_with(tmp_path, {"metadata": {"total_size": 6.0}, **other}))
    assert (right.total_size, right.n_bytes, right.total_size_agrees) == (6, 6, True)
    assert right.total_size_text() == "total_size 6 bytes = 6 values"
    wrong = read_checkpoint(folder_with(tmp_path, {"metadata": {"total_size": 7}, **other}))
    assert wrong.total_size_agrees is False
    assert wrong.total_size_text() == "total_size 7 bytes, but the files hold 6"
    silent = read_checkpoint(folder_with(tmp_path, other))
    assert (silent.total_size_agrees, silent.total_size_text()) == (True, None)


def test_a_tensor_in_two_files_or_in_no_index(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, {"weight_map": MAP})
    for name in "ac":
        both = {name: U8, "b": {**U8, "data_offsets": [3, 6]}}
        written(tmp_path / "two.safetensors", both, b"xxxxxx")
        if name == "c":
            assert read_checkpoint(folder).not_indexed == ("c",)
        else:
            with pytest.raises(InputError, match=r"one\.safetensors"):
                read_checkpoint(folder)


def test_links_out_of_the_folder(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    written(tmp_path / "secret.safetensors", {"a": U8}, b"xxx")
    (inside / "model.safetensors").symlink_to(tmp_path / "secret.safetensors")
    with pytest.raises(InputError):
        read_checkpoint(str(inside))
    (inside / "model.safetensors").unlink()
    (inside / "model.safetensors").symlink_to("model.safetensors")  # to itself
    with pytest.raises(InputError, match=r"Too many levels|no such file"):
        read_checkpoint(str(inside))
    (inside / "model.safetensors").unlink()
    written(inside / "real.safetensors", {"a": U8}, b"xxx")
    (inside / "model.safetensors").symlink_to("real.safetensors")
    assert read_checkpoint(str(inside)).n_values == 3


def test_the_hub_s_cache_is_made_of_links(tmp_path: Path) -> None:
    repository = tmp_path / "models--org--name"
    snapshot = repository / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    written(repository / "blobs" / "f00", {"a": U8}, b"xxx")
    (snapshot / "model.safetensors").symlink_to("../../blobs/f00")
    assert read_checkpoint(str(snapshot)).n_values == 3


def test_folders_without_weights(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"model\.safetensors"):
        read_checkpoint(str(tmp_path))
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(InputError, match="pytorch_model"):
        read_checkpoint(str(tmp_path))
    with pytest.raises(InputError, match="no such file"):
        read_checkpoint(str(tmp_path / "nowhere"))


def test_an_index_at_its_limits_and_one_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = folder_with(tmp_path, {"weight_map": MAP})
    size = (tmp_path / INDEX_NAME).stat().st_size
    limits = [
        ("MAX_INDEX_BYTES", size, f"has {size} bytes; an index has at most {size - 1}"),
        ("MAX_TENSORS", 2, "names more than 1 tensors"),
        ("MAX_FILES", 2, "names more than 1 files"),
    ]
    for name, most, message in limits:
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint_header, name, most)
            assert len(read_checkpoint(folder).tensors) == 2
            patch.setattr(checkpoint_header, name, most - 1)
            with pytest.raises(InputError, match=message):
                read_checkpoint(folder)
