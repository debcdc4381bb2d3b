"""A hub on loopback that serves the files of a folder, with ranges, or misbehaves when told to."""

from __future__ import annotations

import re
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(BaseHTTPRequestHandler):
    """`/org/name/resolve/REVISION/FILE`, as the hub answers it."""

    server: Any

    def do_GET(self) -> None:
        found = re.fullmatch(r"/org/name/resolve/([^/]+)/(.+)", self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.asked.append((self.path, headers))
        if found is None or found[1] not in ("main", COMMIT):
            return self.answer(404, b"", {"X-Error-Code": "RepoNotFound"})
        path = self.server.folder / found[2]
        behaviour = self.server.behaviour
        if not path.exists():
            return self.answer(404, b"Entry not found", {"X-Error-Code": "EntryNotFound"})
        content = path.read_bytes()
        if behaviour == "no range":
            return self.answer(200, content, {"X-Repo-Commit": COMMIT})
        if "range" not in headers:
            more = {"X-Repo-Commit": COMMIT, "ETag": f'"{zlib.crc32(content)}"'}
            return self.answer(200, content, more)
        first, last = re.fullmatch(r"bytes=(\d+)-(\d+)", headers["range"]).groups()  # type: ignore[union-attr]
        part = content[int(first) : int(last) + 1]
        size = {"small": 60, "large": 10**9}.get(behaviour, len(content))
        more = {"Content-Range": f"bytes {first}-{int(first) + len(part) - 1}/{size}"}
        if behaviour == "short":
            part = part[:20]
        return self.answer(206, part, {"X-Repo-Commit": COMMIT, **more})

    do_HEAD = do_GET

    def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        try:
            self.wfile.write(body)
        except OSError:  # who asked has heard enough
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(tmp_path: Path) -> Iterator[Any]:
    """A hub that serves `tmp_path`/served; what it was asked for is in `asked`."""
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.daemon_threads = True
    server.folder = tmp_path / "served"
    server.folder.mkdir()
    server.behaviour, server.asked = None, []
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    server.cache = tmp_path / "cache"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()
