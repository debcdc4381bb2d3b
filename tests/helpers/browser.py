"""A headless browser, where one is installed: what it makes of a page."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from helpers.processes import in_a_group

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SECONDS = 60
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
FOUND = re.compile(r'<pre id="found-by-the-test">(.*?)</pre>', re.DOTALL)


def program() -> str:
    """The browser's program; without one the test is skipped, and says so."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"needs a browser: none of {', '.join(NAMES)} is installed")
    return found


def dom(page: Path, fragment: str = "") -> str:
    """The page's elements after its script ran."""
    with tempfile.TemporaryDirectory() as profile:
        address = f"{page.resolve().as_uri()}{fragment}"
        command = [program(), *FLAGS, f"--user-data-dir={profile}", "--dump-dom", address]
        code, written = in_a_group(command, SECONDS)
    assert code == 0, written
    return written


def evaluated(page: str, script: str, folder: Path, fragment: str = "") -> Any:
    """What `script`, the body of a function, returns in a page: as JSON, in one start of a browser.

    The page's own policy would not let a second script run: it is taken out.
    """
    bare, n = POLICY.subn("", page)
    assert n == 1
    added = (
        "<script>(() => {const pre = document.createElement('pre'); pre.id = 'found-by-the-test';"
        "let found; try { found = (() => {" + script + "})(); } catch (e) "
        "{ found = {error: String(e.stack)}; }"
        "pre.textContent = JSON.stringify(found, (_, x) => typeof x === 'bigint' ? `${x}` : x);"
        "document.body.append(pre);})()</script></body>"
    )
    file = folder / "tested.html"
    file.write_text(bare.replace("</body>", added), encoding="utf-8")
    found = FOUND.search(dom(file, fragment))
    assert found is not None, "the page's script did not run to its end"
    return json.loads(unescape(found[1]))
