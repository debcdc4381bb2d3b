"""The headers of a checkpoint on the Hugging Face hub, by range requests; weights stay there."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

from metacount.errors import InputError, shown
from metacount.huggingface.checkpoint.header import (
    INDEX,
    MAX_INDEX_BYTES,
    SINGLE,
    StoredTensor,
    header_length,
    parse_header,
    parse_index,
)
from metacount.huggingface.checkpoint.witness import (
    CheckpointReport,
    check_n_tensors,
    join,
    read_checkpoint,
)
from metacount.huggingface.hub import Answer, Repository

FIRST_BYTES = 2**17  # nearly every header is shorter, so one request is enough
N_THREADS = 8


def read_repository(
    repo_id: str,
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    endpoint: str | None = None,
    cache_dir: str | None = None,
) -> CheckpointReport:
    """Read the checkpoint of a repository:
    from the local cache if it is whole there, else the hub's.

    `endpoint` is HF_ENDPOINT's unless it is given.
    """
    repository = Repository(repo_id, revision=revision, token=token, endpoint=endpoint)
    cached = cached_checkpoint(repo_id, revision=revision, cache_dir=cache_dir)
    if cached is not None:
        return read_checkpoint(cached)
    first = repository.read_start(SINGLE, FIRST_BYTES, may_miss=True)
    if first is not None:
        return join(_source(repository), None, [_header(repository, SINGLE, first)])
    content = repository.read_file(INDEX, MAX_INDEX_BYTES)
    if content is None:
        raise InputError(
            f"{shown(repo_id)}: has no {SINGLE} and no {INDEX}; only safetensors are read"
        )
    where = repository.where(INDEX)
    index = parse_index(content, where)
    headers: list[list[StoredTensor]] = []
    with ThreadPoolExecutor(N_THREADS) as pool:
        try:
            files = sorted(set(index.files.values()))
            for header in pool.map(lambda file: _header(repository, file), files):
                headers.append(header)
                check_n_tensors(headers, where)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return join(_source(repository), index, headers)


def cached_checkpoint(
    repo_id: str, *, revision: str | None = None, cache_dir: str | None = None
) -> str | None:
    """Find the path of the checkpoint's first file in the hub's cache,
    if all its files are there.
    """
    from huggingface_hub import try_to_load_from_cache

    def find(file: str) -> str | None:
        found = try_to_load_from_cache(repo_id, file, cache_dir=cache_dir, revision=revision)
        return found if isinstance(found, str) else None

    single = find(SINGLE)
    if single is not None:
        return single
    index = find(INDEX)
    if index is None:
        return None
    from metacount.huggingface.checkpoint.header import read_local_index

    files = set(read_local_index(index).files.values())
    folder = os.path.dirname(index)
    return index if all(os.path.exists(os.path.join(folder, file)) for file in files) else None


def _source(repository: Repository) -> str:
    at = f"@{repository.revision}" if repository.revision else ""
    return shown(f"{repository.repo_id}{at}")


def _header(repository: Repository, file: str, answer: Answer | None = None) -> list[StoredTensor]:
    where = repository.where(file)
    answer = answer or repository.read_start(file, FIRST_BYTES)
    assert answer is not None  # only a file that may be missing gives None
    length = header_length(answer.content, answer.size, where)
    if len(answer.content) < 8 + length:
        answer = repository.read_start(file, 8 + length)
        assert answer is not None
    if len(answer.content) < 8 + length:
        raise InputError(
            f"{where}: the server sent {len(answer.content)} bytes of the "
            f"header's {8 + length}; try again"
        )
    data_size = None if answer.size is None else answer.size - 8 - length
    text = answer.content[8 : 8 + length]
    return parse_header(text, where, file=file, data_size=data_size)
