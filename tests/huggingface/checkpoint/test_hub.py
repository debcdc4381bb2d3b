"""The hub, from a server on loopback that serves real files with ranges; and some that do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy
import pytest
from helpers import one_line
from helpers.hub_server import COMMIT
from safetensors.numpy import save_file

from metacount.errors import InputError
from metacount.huggingface import hub as the_hub
from metacount.huggingface.checkpoint import witness as checkpoint
from metacount.huggingface.checkpoint.witness import read_checkpoint, read_repository

constants = pytest.importorskip("huggingface_hub.constants")

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture(autouse=True)
def addressed(monkeypatch: pytest.MonkeyPatch, hub: Any) -> None:
    monkeypatch.setattr(the_hub, "WAIT", 0.01)
    template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(hub.cache))


def serve_one(folder: Path, n: int = 3) -> None:
    tensors = {f"layer.{i}.weight": numpy.zeros((17, 13), numpy.float32) for i in range(n)}
    save_file(tensors, folder / SINGLE)


def serve_shards(folder: Path) -> None:
    weight_map = {}
    for i in range(11):
        file = f"model-{i:05d}-of-00011.safetensors"
        save_file({f"layer.{i}.weight": numpy.zeros((17, 13), numpy.float16)}, folder / file)
        weight_map[f"layer.{i}.weight"] = file
    index = {"metadata": {"total_size": 11 * 17 * 13 * 2}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index))


def test_one_file(hub: Any) -> None:
    serve_one(hub.folder)
    report = read_repository("org/name")
    assert report.tensors == read_checkpoint(str(hub.folder)).tensors
    assert report.source == f"org/name@{COMMIT}"
    ((_, headers),) = hub.asked  # one request is enough
    assert headers["range"] == f"bytes=0-{2**17 - 1}"


def test_a_long_header_takes_a_second_request(hub: Any) -> None:
    serve_one(hub.folder, n=2500)
    assert len(read_repository("org/name").tensors) == 2500
    assert len(hub.asked) == 2
    header = int.from_bytes((hub.folder / SINGLE).read_bytes()[:8], "little")
    assert header > 2**17
    assert hub.asked[1][1]["range"] == f"bytes=0-{header + 7}"


def test_shards_at_one_commit(hub: Any) -> None:
    serve_shards(hub.folder)
    report = read_repository("org/name")
    local = read_checkpoint(str(hub.folder))
    assert (report.tensors, report.files) == (local.tensors, local.files)
    assert report.total_size_agrees and report.n_values == 11 * 17 * 13
    revisions = [path.split("/")[4] for path, _ in hub.asked]
    assert revisions == ["main", "main"] + [COMMIT] * 11


def test_an_index_at_its_limit_and_one_more(hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    serve_shards(hub.folder)
    size = (hub.folder / INDEX).stat().st_size
    monkeypatch.setattr(checkpoint, "MAX_INDEX_BYTES", size)
    assert len(read_repository("org/name").tensors) == 11
    assert hub.asked[1][1]["range"] == f"bytes=0-{size}"  # one more than may be, to see it
    monkeypatch.setattr(checkpoint, "MAX_INDEX_BYTES", size - 1)
    with pytest.raises(InputError, match=INDEX):
        read_repository("org/name")
    hub.behaviour = "no range"  # the length is not said then: what came is counted
    with pytest.raises(InputError, match=INDEX):
        read_repository("org/name")


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ("small", "is cut short or no safetensors file: the header claims"),
        ("large", "the file holds 9"),
        ("short", "the server sent 20 bytes"),
    ],
)
def test_a_server_that_fails(hub: Any, behaviour: object, message: str) -> None:
    serve_one(hub.folder)
    hub.behaviour = behaviour
    with pytest.raises(InputError, match=message) as caught:
        read_repository("org/name")
    one_line(caught.value)


def test_what_is_not_there(hub: Any) -> None:
    for name in ("org/name", "org/other", "a/b/c", "../etc", "a b", "", "x" * 200):
        with pytest.raises(InputError, match="404" if name == "org/other" else None):
            read_repository(name)
    serve_shards(hub.folder)
    (hub.folder / "model-00007-of-00011.safetensors").unlink()
    with pytest.raises(InputError, match=r"model-00007-of-00011\.safetensors"):
        read_repository("org/name")
    n_asked = len(hub.asked)
    (hub.folder / INDEX).write_text('{"weight_map":{"a":"../../../../api/x.safetensors"}}')
    with pytest.raises(InputError, match="not in the folder"):
        read_repository("org/name")
    assert len(hub.asked) == n_asked + 2


def test_the_cache_comes_first(hub: Any) -> None:
    snapshot = hub.cache / "models--org--name" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    refs = hub.cache / "models--org--name" / "refs"
    refs.mkdir()
    (refs / "main").write_text(COMMIT)
    serve_shards(snapshot)
    assert len(read_repository("org/name").tensors) == 11
    assert hub.asked == []
    # not whole in the cache: the hub is asked
    (snapshot / "model-00007-of-00011.safetensors").unlink()
    serve_shards(hub.folder)
    assert len(read_repository("org/name").tensors) == 11
    assert len(hub.asked) == 13
