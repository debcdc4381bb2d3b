"""The checkpoint as a witness: what is stored, read from headers alone."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from metacount.errors import InputError, shown
from metacount.formats.tensors import StoredTensor
from metacount.frozen import frozen
from metacount.huggingface.checkpoint.compare import BUFFER, Comparison, Extra, said_besides
from metacount.huggingface.checkpoint.header import (
    INDEX,
    MAX_INDEX_BYTES,
    MAX_TENSORS,
    SINGLE,
    Index,
    header_length,
    parse_header,
    parse_index,
    read_local_header,
    read_local_index,
)
from metacount.units import exact

if TYPE_CHECKING:
    from metacount.figures import Witness
    from metacount.huggingface.hub import Answer, Repository

FIRST_BYTES = 2**17  # nearly every header is shorter, so one request is enough
N_THREADS = 8

# Weights in formats that are not read, by file: a pickle runs code, the others are not PyTorch's.
OTHER_WEIGHTS = (
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "tf_model.h5",
    "flax_model.msgpack",
    "consolidated.00.pth",
)


@frozen
class CheckpointReport:
    """Every tensor of a checkpoint by name, type, shape and file."""

    source: str  # a path, or a repository and its commit
    tensors: tuple[StoredTensor, ...]
    files: tuple[str, ...]
    sharded: bool
    total_size: int | None = None  # bytes, as the index claims them
    not_indexed: tuple[str, ...] = ()  # in a file, not in the index; transformers loads them

    @property
    def n_values(self) -> int:
        """All stored values, whatever they are for."""
        return sum(tensor.n_values for tensor in self.tensors)

    @property
    def n_bytes(self) -> int:
        """All bytes of the values, as the headers lay them out."""
        return sum(tensor.n_bytes for tensor in self.tensors)

    @property
    def values_by_dtype(self) -> dict[str, int]:
        """Stored values by safetensors' name of their type, the largest first."""
        counts: dict[str, int] = {}
        for tensor in self.tensors:
            counts[tensor.dtype] = counts.get(tensor.dtype, 0) + tensor.n_values
        return dict(sorted(counts.items(), key=lambda item: -item[1]))

    @property
    def total_size_agrees(self) -> bool:
        """Whether the index's total is what the files hold, or it claims nothing."""
        return self.total_size in (None, self.n_bytes)

    def total_size_text(self) -> str | None:
        """Write what the index's total says, in one line; None where it claims nothing."""
        if self.total_size is None:
            return None
        claim = f"total_size {exact(self.total_size)} bytes"
        if not self.total_size_agrees:
            return f"{claim}, but the files hold {exact(self.n_bytes)}"
        if len(self.values_by_dtype) == 1:
            return f"{claim} = {exact(self.n_values)} values"
        return f"{claim}, as the files hold"


def find_checkpoint(path: str) -> str | None:
    """Find where the checkpoint of a folder, or of a config's folder, starts; None: no weights."""
    folder = path if os.path.isdir(path) else os.path.dirname(path) or "."
    for name in (SINGLE, INDEX):  # transformers looks in this order
        if os.path.lexists(os.path.join(folder, name)):
            return os.path.join(folder, name)
    return None


def read_checkpoint(path: str) -> CheckpointReport:
    """Read the checkpoint in a folder, or a .safetensors file, or an index, on disk."""
    if os.path.isdir(path):
        start = find_checkpoint(path)
        if start is None:
            raise InputError(_no_weights(path))
        return read_checkpoint(start)
    folder, name = os.path.split(path)
    folder = folder or "."
    _check_inside(folder, name)
    if not name.endswith(".json"):
        return join(shown(path), None, [read_local_header(path, name)])
    index = read_local_index(path)
    headers = []
    for file in sorted(set(index.files.values())):
        _check_inside(folder, file)
        headers.append(read_local_header(os.path.join(folder, file), file))
        check_n_tensors(headers, shown(path))
    return join(shown(path), index, headers)


def check_n_tensors(headers: Iterable[list[StoredTensor]], where: str) -> None:
    """Check that the headers together do not hold too many tensors."""
    if (n := sum(map(len, headers))) > MAX_TENSORS:
        raise InputError(f"{where}: the files hold {n} tensors; at most {MAX_TENSORS} are read")


def join(source: str, index: Index | None, headers: list[list[StoredTensor]]) -> CheckpointReport:
    """Join all files in one report; they must hold what the index says."""
    stored: dict[str, StoredTensor] = {}
    for tensor in (tensor for header in headers for tensor in header):
        other = stored.setdefault(tensor.name, tensor)
        if other is not tensor:
            both = f"{shown(other.file)} and {shown(tensor.file)}"
            raise InputError(
                f"{source}: tensor {shown(tensor.name)} is in two files, {both}; leave one out"
            )
    indexed = {} if index is None else index.files
    for name, file in indexed.items():
        if name not in stored:
            raise InputError(
                f"{source}: names tensor {shown(name)} in {shown(file)}, which does "
                "not hold it; fetch the checkpoint again"
            )
        if stored[name].file != file:
            raise InputError(
                f"{source}: names tensor {shown(name)} in {shown(file)}, it is in "
                f"{shown(stored[name].file)}; write the index again"
            )
    if not stored:
        raise InputError(f"{source}: holds no tensor; give the folder of a model's weights")
    return CheckpointReport(
        source=source,
        tensors=tuple(stored.values()),
        files=tuple(sorted({tensor.file for tensor in stored.values()})),
        sharded=index is not None,
        total_size=None if index is None else index.total_size,
        not_indexed=() if index is None else tuple(n for n in stored if n not in indexed),
    )


def _no_weights(path: str) -> str:
    where = shown(path)
    for name in OTHER_WEIGHTS:
        if os.path.lexists(os.path.join(path, name)):
            return (
                f"{where}: has {name}, which is not read, but no {SINGLE} or {INDEX}; "
                "save the model with safetensors"
            )
    return f"{where}: this folder holds no {SINGLE} and no {INDEX}; give a folder of weights"


def _check_inside(folder: str, file: str) -> None:
    """Check that a file leads out of its folder by no link but one of the hub's own cache."""
    home, target = os.path.realpath(folder), os.path.realpath(os.path.join(folder, file))
    homes = [home]
    snapshots, repository = os.path.split(os.path.dirname(home))[::-1]
    if snapshots == "snapshots" and os.path.basename(repository).startswith("models--"):
        # <cache>/models--org--name/snapshots/<commit>: the files lie in one of two blobs folders
        homes += [os.path.join(up, "blobs") for up in (repository, os.path.dirname(repository))]
    if not any(os.path.commonpath([home, target]) == home for home in homes):
        raise InputError(
            f"{shown(os.path.join(folder, file))}: is a link out of its folder, to "
            f"{shown(target)}; give the folder that holds the file"
        )


# ---- on the hub: weights stay there ----


def read_repository(repo_id: str) -> CheckpointReport:
    """Read the headers of a repository's checkpoint: from the local cache if it is whole there,
    else the hub's, by range requests.
    """
    from concurrent.futures import ThreadPoolExecutor

    from metacount.huggingface.hub import Repository

    repository = Repository(repo_id)
    if (cached := cached_checkpoint(repo_id)) is not None:
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


def cached_checkpoint(repo_id: str) -> str | None:
    """Find the path of the checkpoint's first file in the hub's cache, if all its files are
    there.
    """
    from huggingface_hub import try_to_load_from_cache

    paths = {name: try_to_load_from_cache(repo_id, name) for name in (SINGLE, INDEX)}
    single, index = (path if isinstance(path, str) else None for path in paths.values())
    if single is not None or index is None:
        return single
    files = set(read_local_index(index).files.values())
    folder = os.path.dirname(index)
    return index if all(os.path.exists(os.path.join(folder, file)) for file in files) else None


def _source(repository: Repository) -> str:
    at = f"@{repository.commit}" if repository.commit else ""
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


# ---- what is said of it ----


def checkpoint_witness(report: CheckpointReport, comparison: Comparison | None) -> Witness:
    """Say what a checkpoint holds: how many of its values are parameters, and what the others are.

    Without a comparison there is nothing to tell a buffer from a parameter: params is None.
    """
    from metacount.figures import BREAKDOWNS, QUANTITIES, Witness

    figures: dict[str, int | None] = dict.fromkeys(QUANTITIES)
    if comparison is not None:
        prediction = comparison.prediction["params"] or None
        figures |= {"params": comparison.params, "mtp_params": prediction}
    return Witness(
        name="checkpoint",
        figures=figures,
        parts=dict.fromkeys(BREAKDOWNS),
        detail=detail(report, comparison),
    )


def detail(report: CheckpointReport, comparison: Comparison | None) -> str:
    """Describe in one line what is stored.

    >>> tensor = StoredTensor("embed.weight", "BF16", (101, 13), "model.safetensors")
    >>> one = CheckpointReport(
    ...     source="here", tensors=(tensor,), files=("model.safetensors",), sharded=False
    ... )
    >>> detail(one, None)
    '1 file, 1 tensor, bf16'
    """
    n_files = len(report.files)
    files = _n(n_files, "shard" if report.sharded else "file")
    types = ", ".join(dtype.lower() for dtype in report.values_by_dtype)
    texts = [f"{files}, {_n(len(report.tensors), 'tensor')}, {types}"]
    if comparison is not None:
        texts += _said(comparison)
    if report.not_indexed:
        texts.append(f"{_n(len(report.not_indexed), 'tensor')} not in the index")
    if not report.total_size_agrees:
        texts.append(str(report.total_size_text()))
    return "; ".join(texts)


def _said(comparison: Comparison) -> list[str]:
    texts = []
    if comparison.per_expert:
        n_stored = sum(len(weight.sources) for weight in comparison.per_expert)
        texts.append(
            f"{_n(len(comparison.per_expert), 'weight')} stored per expert "
            f"({_n(n_stored, 'tensor')})"
        )
    texts += [f"{_n(n, 'weight')} in {style}" for style, n in comparison.formats.items()]
    by_kind: dict[str, list[Extra]] = {}
    for extra in comparison.extra:
        by_kind.setdefault(extra.kind, []).append(extra)
    for kind, extras in by_kind.items():
        leaves = {extra.name.rpartition(".")[2] for extra in extras}
        # one name is worth saying, a layer's worth of names is not
        what = f"{shown(leaves.pop())} {kind}" if kind == BUFFER and len(leaves) == 1 else kind
        n_values = sum(extra.n_values for extra in extras)
        texts.append(
            f"+{_n(n_values, 'value')} of {_n(sum(extra.n_tensors for extra in extras), what)}"
        )
    faults = (("missing", comparison.missing), ("of another shape", comparison.differs))
    texts += [f"{_n(len(names), 'tensor')} {fault}" for fault, names in faults if names]
    if unread := comparison.not_comparable:
        name, why = next(iter(unread.items()))
        first = f"{shown(name)}: {why}"
        texts.append(f"no opinion: {_n(len(unread), 'tensor')} not comparable, {first}")
    return [*texts, *said_besides(comparison.prediction)]


def _n(n: int, what: str) -> str:
    """Write a number with its noun, in singular or plural.

    >>> _n(1, "file"), _n(2, "shard"), _n(1000, "inv_freq buffer"), _n(2, "tied copy")
    ('1 file', '2 shards', '1,000 inv_freq buffers', '2 tied copies')
    """
    if n == 1:
        return f"1 {what}"
    return f"{exact(n)} {what[:-1] + 'ies' if what.endswith('y') else what + 's'}"
