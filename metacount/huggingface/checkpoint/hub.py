"""The headers of a checkpoint on the Hugging Face hub, by range requests; weights stay there.

huggingface_hub gives addresses, token, session and cache; what a server sends is bounded here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

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

if TYPE_CHECKING:
    from collections.abc import Mapping

FIRST_BYTES = 2**17  # nearly every header is shorter, so one request is enough
TIMEOUT = 10.0  # seconds without a byte
DEADLINE = 600.0  # seconds for a repository, however slowly its answers drip
TRIES = 3
WAIT = 0.5  # seconds before the second try, twice that before the third
N_THREADS = 8

MISSING = 404
REMEDY = {
    401: "log in with `hf auth login`, or set HF_TOKEN; a wrong name looks the same",
    403: "ask for access on the repository's page, then set HF_TOKEN",
    404: "check the name of the repository and its revision",
    416: "the file is empty; give another repository",
    429: "too many requests; wait a while",
}


class Answer(NamedTuple):
    """What a server sent: its status, the first bytes, and the length of the whole file."""

    status: int
    content: bytes
    size: int | None
    commit: str | None
    reason: str


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
    _check_id(repo_id)
    cached = cached_checkpoint(repo_id, revision=revision, cache_dir=cache_dir)
    if cached is not None:
        return read_checkpoint(cached)
    return _Repository(repo_id, revision, token, endpoint).read()


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


def _check_id(repo_id: str) -> None:
    from huggingface_hub.errors import HFValidationError

    try:
        _tools().validate_repo_id(repo_id)
    except HFValidationError as error:
        raise InputError(f"{shown(repo_id)}: is not a repository id: {shown(error)}") from None


def _tools() -> Any:
    """Import huggingface_hub's documented helpers, which it does not declare to type checkers."""
    import huggingface_hub.utils

    return huggingface_hub.utils


class _Repository:
    """One repository at one commit: the first answer fixes it for all others."""

    def __init__(
        self,
        repo_id: str,
        revision: str | None,
        token: str | bool | None,
        endpoint: str | None,
    ) -> None:
        self.repo_id, self.revision = repo_id, revision
        self.token, self.endpoint = token, endpoint
        self.until = time.monotonic() + DEADLINE

    def read(self) -> CheckpointReport:
        """Read the repository's headers into a report."""
        answer = self._get(SINGLE, FIRST_BYTES, may_miss=True)
        if answer is not None:
            self._fix(answer)
            return join(self._source(), None, [self._header(SINGLE, answer)])
        answer = self._get(INDEX, MAX_INDEX_BYTES + 1, may_miss=True)
        if answer is None:
            raise InputError(
                f"{shown(self.repo_id)}: has no {SINGLE} and no {INDEX}; only safetensors are read"
            )
        if len(answer.content) > MAX_INDEX_BYTES or (answer.size or 0) > MAX_INDEX_BYTES:
            raise InputError(f"{self._where(INDEX)}: an index has at most {MAX_INDEX_BYTES} bytes")
        self._fix(answer)
        index = parse_index(answer.content, self._where(INDEX))
        headers: list[list[StoredTensor]] = []
        with ThreadPoolExecutor(N_THREADS) as pool:
            try:
                for header in pool.map(self._header, sorted(set(index.files.values()))):
                    headers.append(header)
                    check_n_tensors(headers, self._where(INDEX))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        return join(self._source(), index, headers)

    def _fix(self, answer: Answer) -> None:
        commit = answer.commit or ""
        if len(commit) == 40 and all(c in "0123456789abcdef" for c in commit):
            self.revision = commit

    def _source(self) -> str:
        at = f"@{self.revision}" if self.revision else ""
        return shown(f"{self.repo_id}{at}")

    def _where(self, file: str) -> str:
        return shown(f"{self.repo_id}/{file}")

    def _header(self, file: str, answer: Answer | None = None) -> list[StoredTensor]:
        where = self._where(file)
        answer = answer or self._get(file, FIRST_BYTES)
        assert answer is not None  # only a file that may be missing gives None
        length = header_length(answer.content, answer.size, where)
        if len(answer.content) < 8 + length:
            answer = self._get(file, 8 + length)
            assert answer is not None
        if len(answer.content) < 8 + length:
            raise InputError(
                f"{where}: the server sent {len(answer.content)} bytes of the "
                f"header's {8 + length}; try again"
            )
        data_size = None if answer.size is None else answer.size - 8 - length
        text = answer.content[8 : 8 + length]
        return parse_header(text, where, file=file, data_size=data_size)

    def _get(self, file: str, n: int, *, may_miss: bool = False) -> Answer | None:
        """Fetch the first n bytes of a file; None where it is missing and may be."""
        from huggingface_hub import hf_hub_url

        url = hf_hub_url(self.repo_id, file, revision=self.revision, endpoint=self.endpoint)
        answer = _fetch(url, n, self.token, self._where(file), self.until)
        if answer.status in (200, 206):
            return answer
        if answer.status == MISSING and may_miss and answer.reason in ("", "EntryNotFound"):
            return None
        raise InputError(
            f"{self._where(file)}: the hub answers {answer.status} {shown(answer.reason)}".rstrip()
            + "; "
            + REMEDY.get(answer.status, "try again later")
        )


def _fetch(url: str, n: int, token: str | bool | None, where: str, until: float) -> Answer:
    """Fetch the first n bytes at an address, trying again while the network or the server fails."""
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    # the HTTP library's own base class: which library it is changes with huggingface_hub
    http_error: Any = HfHubHTTPError.__bases__[0]
    problem = ""
    for attempt in range(TRIES):
        time.sleep(attempt * WAIT)
        try:
            answer = _fetch_once(url, n, token, where, until)
        except OfflineModeIsEnabled:
            raise InputError(
                f"{where}: is not in the local cache, and HF_HUB_OFFLINE forbids the "
                "hub; unset it, or fetch the checkpoint first"
            ) from None
        except InputError:
            raise
        except (http_error, OSError, ValueError) as error:
            problem = f"{type(error).__name__}: {error}"
            continue
        if answer.status < 500:
            return answer
        problem = f"the hub answers {answer.status}"
    raise InputError(
        f"{where}: cannot be fetched: {shown(problem)}; check the network, or give a local folder"
    )


def _fetch_once(url: str, n: int, token: str | bool | None, where: str, until: float) -> Answer:
    tools = _tools()
    headers = {
        **tools.build_hf_headers(token=token, library_name="metacount"),
        "Range": f"bytes=0-{n - 1}",
        "Accept-Encoding": "identity",  # a compressed answer could grow without end
    }
    with tools.get_session().stream("GET", url, headers=headers, timeout=TIMEOUT) as response:
        status = response.status_code
        content = b""
        if status in (200, 206):
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise InputError(
                    f"{where}: the server sends compressed bytes, which were not "
                    "asked for; use another endpoint"
                )
            content = _at_most(n, response.iter_raw, until, where)
        return Answer(
            status=status,
            content=content,
            size=_size(response.headers, status),
            commit=_commit(response),
            reason=response.headers.get("X-Error-Code", ""),
        )


def _at_most(n: int, chunks: Callable[[], Iterator[bytes]], until: float, where: str) -> bytes:
    """Read the first n bytes: a server that ignores the range is not listened to any longer."""
    content = bytearray()
    for chunk in chunks():
        content += chunk
        if len(content) >= n:
            break
        if time.monotonic() > until:
            raise InputError(
                f"{where}: the server is too slow: {DEADLINE:.0f} s are over, "
                f"{n - len(content)} bytes missing; try another endpoint"
            )
    return bytes(content[:n])


def _size(headers: Mapping[str, str], status: int) -> int | None:
    """Read the file's length: `Content-Range: bytes 0-99/1234` of a part, or the whole's own."""
    text = headers.get("Content-Length", "")
    if status == 206:
        text = headers.get("Content-Range", "").rpartition("/")[2]
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None


def _commit(response: Any) -> str | None:
    """Find the commit: the hub names it on its own answer; storage behind a redirect does not."""
    for answer in (*response.history, response):
        commit = answer.headers.get("X-Repo-Commit")
        if commit:
            return str(commit)
    return None
