"""A config from servers that lie: one line each, in bounded time and memory."""

from __future__ import annotations

import gzip
import itertools
import re
import socket
import threading
import time
import tracemalloc
from pathlib import Path

import pytest
from helpers import one_line
from helpers.hub_server import COMMIT

from metacount import __version__
from metacount.errors import InputError
from metacount.huggingface import hub

constants = pytest.importorskip("huggingface_hub.constants")

CONFIG = b'{"model_type": "gpt2"}'
MIB = 2**20


Answer = tuple[bytes | float, ...]  # the first once, the others again and again; seconds to wait


class Liar:
    """A server that reads a request and writes the bytes of one kind of answer."""

    def __init__(self, answer: Answer) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.answer, self.asked = answer, b""
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.speak, args=(connection,), daemon=True).start()

    def speak(self, connection: socket.socket) -> None:
        with connection:
            request = b""
            try:
                while b"\r\n\r\n" not in request:
                    request += connection.recv(2**16)
                self.asked = request
                head, *pieces = self.answer
                for piece in itertools.chain([head], itertools.cycle(pieces)):
                    if isinstance(piece, bytes):
                        connection.sendall(piece.replace(b"PORT", str(self.port).encode()))
                    else:
                        time.sleep(piece)
            except OSError:  # who asked has heard enough
                pass


def says(status: str, *headers: str, body: bytes = b"", length: int | None = None) -> bytes:
    n = len(body) if length is None else length
    lines = [f"HTTP/1.1 {status}", *headers, "Connection: close"]
    lines += [f"Content-Length: {n}"] if n >= 0 else []
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def code(status: str, name: str) -> bytes:
    return says(status, f"X-Error-Code: {name}", body=b"{}")


MUCH = b"x" * 2**16
CHUNKED = "Transfer-Encoding: chunked"
PART = f"Content-Range: bytes 0-{len(CONFIG) - 1}/"
TO_ITSELF = "Location: http://127.0.0.1:PORT/again"

# What a server says to every request, and what we say of it.
LIES: dict[str, tuple[bytes | Answer, str]] = {
    "401": (says("401 No"), r"asks who you are \(401\); log in"),
    "401 gated": (code("401 No", "GatedRepo"), r"behind terms \(401\); accept them"),
    "403": (says("403 No"), r"refuses access \(403\); ask for it"),
    "404": (says("404 No"), "the repository has no config.json; give the path"),
    "404 repository": (code("404 No", "RepoNotFound"), r"knows no such repository, .* \(404\)"),
    "404 revision": (code("404 No", "RevisionNotFound"), r"knows no such revision of it \(404\)"),
    "416": (says("416 No"), r"has no such bytes \(416\)"),
    "429": (says("429 No", "Retry-After: 9999999"), r"too many requests \(429\); wait a while"),
    "500": (says("500 Bad"), r"the hub fails \(500\); try again later"),
    "redirect to itself": (says("302 Go", TO_ITSELF), "redirects more than 5 times; check HF_END"),
    "redirect to nowhere": (says("301 Go"), "redirects to nowhere"),
    "redirect to a file": (says("302 Go", "Location: file:///etc/passwd"), "to file:///etc/passwd"),
    "redirect to no port": (says("302 Go", "Location: http://127.0.0.1:9/"), "cannot be reached"),
    "endless": ((says("200 OK", length=-1), MUCH), "is too long; at most 16777216 bytes"),
    "endless chunks": (
        (says("200 OK", CHUNKED, length=-1), b"10000\r\n" + MUCH + b"\r\n"),
        "is too long",
    ),
    "much claimed of a part": (says("206 OK", PART + str(10**12), body=CONFIG), "is too long"),
    "drips": ((says("200 OK", length=10**6), b" ", 0.1), "is too slow: .* bytes in 1 s"),
    "goes on with 100": (
        (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", 0.1),
        "is too slow: 0 bytes",
    ),
    "silent after the headers": (
        (says("200 OK", length=100), 9.0),
        r"says nothing for 0 s \(ReadTimeout\)",
    ),
    "hangs up": (b"", "breaks off or is no HTTP"),
    "headers without end": ((b"HTTP/1.1 200 OK\r\n", b"X: " + MUCH), "breaks off or is no H"),
    "hangs up in the body": (says("200 OK", body=CONFIG, length=100), "breaks off or is no HTTP"),
    "chunk is no number": (says("200 OK", CHUNKED, body=b"zz\r\n", length=-1), "breaks off"),
    "part of a longer whole": (
        says("206 OK", PART + "100", body=CONFIG),
        r"sent 22 bytes of 100; try again later",
    ),
    "gzip bomb": (
        says("200 OK", "Content-Encoding: gzip", body=gzip.compress(bytes(100 * MIB))),
        "sends compressed bytes, which were not asked for",
    ),
    "a page": (says("200 OK", body=b"<html>log in</html>"), "config.json: is not JSON: line 1"),
    "no text": (says("200 OK", body=b"\xff\xfe\0"), "is not text in UTF-8"),
    "a list": (says("200 OK", body=b"[]"), "must be a JSON object"),
}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(hub, "WAIT", 0.01)
    monkeypatch.setattr(hub, "TIMEOUT", 0.4)
    monkeypatch.setattr(hub, "PATIENCE", 1.0)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))


def answered(answer: bytes | Answer, monkeypatch: pytest.MonkeyPatch) -> Liar:
    liar = Liar((answer,) if isinstance(answer, bytes) else answer)
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{liar.port}")
    monkeypatch.setattr(
        constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        constants.ENDPOINT + "/{repo_id}/resolve/{revision}/{filename}",
    )
    return liar


@pytest.mark.parametrize("kind", LIES)
def test_a_server_that_lies(kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answer, message = LIES[kind]
    liar = answered(answer, monkeypatch)
    tracemalloc.start()
    start = time.monotonic()
    try:
        with pytest.raises(InputError, match=message) as caught:
            hub.read_config("org/name")
        seconds, (_, peak) = time.monotonic() - start, tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        liar.listener.close()
    one_line(caught.value)
    assert seconds < 30
    assert peak < 32 * MIB
    assert not (tmp_path / "cache").exists()  # nothing of a lie is kept


def test_a_config_is_kept_and_asked_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from huggingface_hub import hf_hub_download

    liar = answered(says("200 OK", f"X-Repo-Commit: {COMMIT}", body=CONFIG), monkeypatch)
    assert hub.read_config("org/name") == {"model_type": "gpt2"}
    agent = re.search(rb"User-Agent: ([^\r]*)", liar.asked)
    assert agent is not None
    assert agent[1].decode() == f"metacount/{__version__}"
    assert b"\r\nAccept-Encoding: identity\r\n" in liar.asked
    liar.listener.close()
    assert hub.read_config("org/name") == {"model_type": "gpt2"}
    # others find it there too
    cache = str(tmp_path / "cache")
    path = hf_hub_download("org/name", "config.json", cache_dir=cache, local_files_only=True)
    assert Path(path).read_bytes() == CONFIG


def test_a_config_of_no_commit_is_not_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    liar = answered(says("200 OK", "X-Repo-Commit: ../../x", body=CONFIG), monkeypatch)
    assert hub.read_config("org/name") == {"model_type": "gpt2"}
    liar.listener.close()
    assert not (tmp_path / "cache").exists()


def test_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    liar = answered(says("200 OK", f"X-Repo-Commit: {COMMIT}", body=CONFIG), monkeypatch)
    with pytest.raises(InputError, match=r"cache .* cannot be written: Not a directory; set HF_H"):
        hub.read_config("org/name")
    liar.listener.close()


def test_a_token_is_told_to_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    other = Liar((says("200 OK", body=CONFIG),))
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    elsewhere = f"Location: http://127.0.0.1:{other.port}/config.json"
    liar = answered(says("302 Go", elsewhere), monkeypatch)
    assert hub.read_config("org/name") == {"model_type": "gpt2"}
    assert b"hf_secret" in liar.asked
    assert b"Range: bytes=0-" in other.asked
    assert b"hf_secret" not in other.asked
    liar.listener.close()
    other.listener.close()
