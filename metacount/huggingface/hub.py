"""The one way to the Hugging Face hub: files of a repository, bounded in bytes and in time.

huggingface_hub gives addresses, token, session and cache, and hears HF_ENDPOINT and HF_HUB_OFFLINE.
What a server sends is bounded here: it may lie, drip, or never end.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import Future
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple

from metacount import __version__
from metacount.errors import InputError, shown
from metacount.files import CONFIG, MAX_FILE_BYTES, parse_json, read_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from metacount.files import Json

TIMEOUT = 8.0  # seconds without a byte
PATIENCE = 20.0  # seconds for an answer, and more only while bytes come at MIN_SPEED
MIN_SPEED = 2**14  # bytes a second
DEADLINE = 600.0  # seconds for a repository, however many files it has
TRIES = 3
WAIT = 0.5  # seconds before the second try, twice that before the third
MAX_REDIRECTS = 5

REDIRECTS = (301, 302, 303, 307, 308)
LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"
# What a status says, and what to do. Of 404 the hub says in a header what is missing.
STATUSES = {
    401: ("asks who you are", f"{LOG_IN}; a wrong name looks the same"),
    403: ("refuses access", "ask for it on the repository's page, then set HF_TOKEN"),
    404: ("does not have it", "check the name of the repository and its revision"),
    416: ("has no such bytes", "the file is empty; give another repository"),
    429: ("has had too many requests", "wait a while, or log in with `hf auth login`"),
}
GATED = ("has it behind terms", f"accept them on the repository's page, and {LOG_IN}")
NO_REPOSITORY = (
    "knows no such repository, or not for you",
    f"check the name, {LOG_IN}, or give the path of a file",
)
CODES = {
    "GatedRepo": GATED,
    "RepoNotFound": NO_REPOSITORY,
    "RevisionNotFound": ("knows no such revision of it", "check the revision's name"),
}
# The HTTP library's errors by name: which library that is changes between versions of the hub's.
UNREACHED = ("ConnectError", "ConnectTimeout", "ProxyError", "PoolTimeout")
SILENT = ("ReadTimeout", "WriteTimeout")
BROKEN = ("RemoteProtocolError", "ReadError", "WriteError", "CloseError", "LocalProtocolError")


class Answer(NamedTuple):
    """What a server sent: its status, the first bytes, the length of the whole file, the commit."""

    status: int
    content: bytes
    size: int | None
    commit: str | None
    reason: str


class Repository:
    """One repository at one commit: the first answer fixes it for all others."""

    def __init__(self, repo_id: str) -> None:
        from huggingface_hub.errors import HFValidationError

        try:
            _tools().validate_repo_id(repo_id)
        except HFValidationError as error:
            raise InputError(f"{shown(repo_id)}: is no repository id: {shown(error)}") from None
        self.repo_id = repo_id
        self.commit: str | None = None
        self.until = time.monotonic() + DEADLINE

    def where(self, file: str) -> str:
        """Name a file of the repository in a message."""
        return shown(f"{self.repo_id}/{file}")

    def read_file(self, file: str, max_bytes: int) -> bytes | None:
        """Fetch a whole file; None where the repository has none of this name.

        Raises:
            InputError: it is longer than `max_bytes`, cut short, or not to be had.
        """
        answer = self.read_start(file, max_bytes + 1, may_miss=True, entire=True)
        if answer is None:
            return None
        n = len(answer.content)
        if answer.size not in (None, n):
            raise InputError(
                f"{self.where(file)}: the server sent {n} bytes of {answer.size}; try again later"
            )
        return answer.content

    def read_start(
        self, file: str, n: int, *, may_miss: bool = False, entire: bool = False
    ) -> Answer | None:
        """Fetch the first n bytes of a file; None where it is missing and may be.

        With `entire`, a file of n bytes or more is an error.
        """
        from huggingface_hub import hf_hub_url

        url = hf_hub_url(self.repo_id, file, revision=self.commit)
        answer = self._try(partial(_Transfer, url, n, self.where(file), entire))
        if answer.status in (200, 206):
            commit = answer.commit or ""
            if len(commit) == 40 and all(c in "0123456789abcdef" for c in commit):
                self.commit = commit
            return answer
        if answer.status == 404 and may_miss and answer.reason in ("", "EntryNotFound"):
            return None
        problem, remedy = CODES.get(answer.reason) or STATUSES.get(
            answer.status, ("fails" if answer.status >= 500 else "refuses it", "try again later")
        )
        raise InputError(f"{self.where(file)}: the hub {problem} ({answer.status}); {remedy}")

    def _try(self, new: Callable[[], _Transfer]) -> Answer:
        """Fetch, and again while the network or the server fails."""
        from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

        libraries = {HfHubHTTPError.__bases__[0].__module__.partition(".")[0], "httpcore"}
        for attempt in range(TRIES):
            time.sleep(attempt * WAIT)
            transfer = new()
            try:
                answer = self._within_time(transfer)
            except OfflineModeIsEnabled:
                raise InputError(
                    f"{transfer.where}: is not in the local cache, and HF_HUB_OFFLINE forbids "
                    "the hub; unset it, or give the path of a file"
                ) from None
            except InputError:
                raise
            except Exception as error:
                library = type(error).__module__.partition(".")[0]
                if library not in libraries and not isinstance(error, OSError | ValueError):
                    raise
                problem = _said(error)
            else:
                if answer.status < 500 or attempt == TRIES - 1:
                    return answer
        raise InputError(f"{transfer.where}: {problem}")

    def _within_time(self, transfer: _Transfer) -> Answer:
        """Fetch once, in a thread that is left alone when the time is over.

        The HTTP library bounds the time of one read: a server that drips headers is never late.
        """
        start = time.monotonic()
        Thread(target=transfer.run, daemon=True).start()
        while True:
            allowed = start + PATIENCE + len(transfer.content) / MIN_SPEED
            left = min(allowed, self.until) - time.monotonic()
            if left <= 0:
                transfer.abandoned = True
                seconds = time.monotonic() - start
                raise InputError(
                    f"{transfer.where}: the server is too slow: {len(transfer.content)} bytes in "
                    f"{seconds:.0f} s; try again later, or give the path of a file"
                )
            try:
                return transfer.answer.result(left)
            except TimeoutError:
                if transfer.answer.done():  # the server's, not ours
                    raise


class _Transfer:
    """One request and its redirects, in a thread of its own."""

    def __init__(self, url: str, n: int, where: str, entire: bool) -> None:
        self.url, self.n, self.where, self.whole = url, n, where, entire
        self.content = bytearray()
        self.answer: Future[Answer] = Future()
        self.abandoned = False

    def run(self) -> None:
        """Set the answer, or the error."""
        try:
            self.answer.set_result(self._fetch())
        except BaseException as error:  # the thread that waits raises it
            self.answer.set_exception(error)

    def _fetch(self) -> Answer:
        from urllib.parse import urljoin, urlsplit

        from huggingface_hub import constants, get_token

        # not huggingface_hub's own headers: to make them it asks the server, without a limit
        headers = {
            "User-Agent": f"metacount/{__version__}",
            "Range": f"bytes=0-{self.n - 1}",
            "Accept-Encoding": "identity",  # a compressed answer could grow without end
        }
        if not constants.HF_HUB_DISABLE_IMPLICIT_TOKEN and (token := get_token()):
            headers["Authorization"] = f"Bearer {token}"
        url, commit = self.url, None
        # redirects are followed here: the HTTP library would read their bodies, of any length
        how = {"timeout": TIMEOUT, "follow_redirects": False}
        for _ in range(MAX_REDIRECTS + 1):
            with _tools().get_session().stream("GET", url, headers=headers, **how) as response:
                # the hub names the commit on its own answer; storage behind a redirect does not
                commit = commit or response.headers.get("X-Repo-Commit")
                if response.status_code not in REDIRECTS:
                    return self._read(response, commit)
                location = response.headers.get("Location", "")
            try:
                target = urljoin(url, location)
                before, after = urlsplit(url), urlsplit(target)
            except ValueError:
                location = ""
            if not location or after.scheme not in (before.scheme, "https"):
                raise self._lost(f"to {shown(location) or 'nowhere'}")
            if (before.scheme, before.netloc) != (after.scheme, after.netloc):
                headers.pop("Authorization", None)  # nobody else is told the token
            url = target
        raise self._lost(f"more than {MAX_REDIRECTS} times")

    def _lost(self, how: str) -> InputError:
        return InputError(f"{self.where}: the server redirects {how}; check HF_ENDPOINT")

    def _read(self, response: Any, commit: str | None) -> Answer:
        """Read the first n bytes: a server that ignores the range is heard no longer."""
        status, headers = response.status_code, response.headers
        size = _size(headers, status)
        if status in (200, 206):
            if headers.get("Content-Encoding", "identity") != "identity":
                raise InputError(
                    f"{self.where}: the server sends compressed bytes, which were not asked for; "
                    "use another endpoint"
                )
            chunks: Iterator[bytes] = response.iter_raw()
            for chunk in () if self.whole and (size or 0) >= self.n else chunks:
                self.content += chunk[: self.n - len(self.content)]
                if len(self.content) >= self.n or self.abandoned:
                    break
            if self.whole and max(len(self.content), size or 0) >= self.n:
                raise InputError(f"{self.where}: is too long; at most {self.n - 1} bytes are read")
        reason = headers.get("X-Error-Code", "")
        return Answer(status, bytes(self.content), size, commit, reason)


def _tools() -> Any:
    """Import huggingface_hub's documented helpers, which it does not declare to type checkers."""
    import huggingface_hub.utils

    return huggingface_hub.utils


def _said(error: Exception) -> str:
    name = type(error).__name__
    detail = f"{name}: {shown(error)}"
    if name in SILENT:
        return f"the server says nothing for {TIMEOUT:.0f} s ({name}); try again later"
    if name in BROKEN:
        return f"the server's answer breaks off or is no HTTP ({detail}); try again later"
    if name in UNREACHED or isinstance(error, OSError):
        return (
            f"the hub cannot be reached ({detail}); check the network and "
            "HF_ENDPOINT, or give the path of a file"
        )
    return f"the hub's address is wrong ({detail}); check HF_ENDPOINT"


def _size(headers: Mapping[str, str], status: int) -> int | None:
    text = headers.get("Content-Length", "")
    if status == 206:
        text = headers.get("Content-Range", "").rpartition("/")[2]
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None


def read_config(repo_id: str) -> Json:
    """Read a repository's config.json: from the local cache, else from the hub into the cache.

    Raises:
        InputError: one line, when it cannot be had, or is no config.
    """
    from huggingface_hub import try_to_load_from_cache

    repository = Repository(repo_id)
    cached = try_to_load_from_cache(repo_id, CONFIG)
    if isinstance(cached, str):
        return read_json(cached)
    content = repository.read_file(CONFIG, MAX_FILE_BYTES)
    if content is None:
        raise InputError(
            f"{shown(repo_id)}: the repository has no {CONFIG}; give the path of a config"
        )
    data = parse_json(content, repository.where(CONFIG))
    if repository.commit is not None:  # without it nobody would know which config this is
        _keep(repo_id, repository.commit, content)
    return data


def _keep(repo_id: str, commit: str, content: bytes) -> None:
    """Write a config into the hub's cache, in its layout for systems without symbolic links."""
    from huggingface_hub import constants

    from metacount.files import replace_file

    cache = constants.HF_HUB_CACHE
    folder = os.path.join(cache, "models--" + repo_id.replace("/", "--"))
    files = {
        os.path.join(folder, "snapshots", commit, CONFIG): content,
        os.path.join(folder, "refs", "main"): commit.encode(),
    }
    try:
        for file, data in files.items():
            os.makedirs(os.path.dirname(file), exist_ok=True)
            replace_file(file, data)
    except OSError as error:
        raise InputError(
            f"{shown(repo_id)}: the cache {shown(cache)} cannot be written: {error.strerror}; "
            "set HF_HOME to a folder that can"
        ) from None
