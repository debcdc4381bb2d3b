"""What teachers of this material say, each statement shown by one command.

`statements.json` has a row for each: where it is from, its number there, the statement, the command
and what its output must show. Commands run in this folder; {tmp} is a folder for what they write.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from helpers.release import daily, one_in

from metacount.cli import main

HERE = Path(__file__).parent
ROWS: list[dict[str, Any]] = json.loads((HERE / "statements.json").read_text("utf-8"))
# How many statements each source makes; what is mere opinion is not counted.
SOURCES = {"dialogue": 59, "slides": 29, "swiglu": 14, "qwen3": 27, "gpt": 23}


def plain(text: str) -> str:
    """A text on one line, without the lines of a tree."""
    return re.sub(r"[\s│├└─]+", " ", text)


class Shown:
    """The output of every command, each run once."""

    def __init__(self, tmp: Path) -> None:
        self.tmp = tmp
        self.run = lru_cache(maxsize=None)(self._run)

    def _run(self, command: str) -> tuple[int, str]:
        out = io.StringIO()
        words = [word.format(tmp=self.tmp) for word in shlex.split(command)]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            code = main(words)
        return code, plain(out.getvalue())


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    return Shown(tmp_path_factory.mktemp("teaching"))


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(HERE)


@daily(15)
@pytest.mark.parametrize("row", one_in(2, ROWS), ids=lambda row: f"{row['source']}-{row['number']}")
def test_the_command_shows_it(row: dict[str, Any], shown: Shown) -> None:
    code, text = shown.run(row["command"])
    assert code == row.get("exit", 0)
    missing = [words for words in row["shows"] if words not in text]
    assert missing == [], text[:2000]
    assert row["shows"]
    if "makes" in row:
        made = shown.tmp / row["makes"]
        assert made.stat().st_size > 1000
        assert all(words in made.read_text("utf-8") for words in row["drawn"])


def test_every_statement_has_a_row() -> None:
    assert Counter(row["source"] for row in ROWS) == SOURCES
    assert len({(row["source"], row["number"]) for row in ROWS}) == len(ROWS) == 152
