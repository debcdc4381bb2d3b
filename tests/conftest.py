"""Settings for every test; loads nothing heavy."""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from helpers.processor_time import ProcessorTime
from helpers.release import DAY, is_of_the_day, not_today
from hypothesis import settings

# The same terminal, language and threads wherever the tests run; a test of others sets them.
for name in ("LC_ALL", "LC_MESSAGES", "LANG", "NO_COLOR", "FORCE_COLOR"):
    os.environ.pop(name, None)
os.environ.update(COLUMNS="100", TERM="xterm", OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

settings.register_profile("repeatable", derandomize=True, database=None, deadline=None)
settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run the tests in another order")
    parser.addoption("--times", metavar="FILE", help="write the processor time of each test")


def pytest_configure(config: pytest.Config) -> None:
    """Let what is collected pile up: nearly all of it lives to the end. Agree on the day."""
    # registered: hooks that stand here are not called for the docstrings of the package
    config.pluginmanager.register(ProcessorTime())
    gc.disable()
    # of a run in the background, a shell has Ctrl-C ignored, by all that tests start as well
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.setdefault(DAY, date.today().isoformat())


def pytest_report_header() -> str:
    return f"{DAY}={os.environ[DAY]}: with it, other days try the same cases"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose and order the tests; mark those that need no torch.

    Of what `make release` tries, some is tried today; `make release` tries all of it.
    """
    expression = config.option.markexpr
    if "not release" in expression and "daily" not in expression:
        for item in items:
            if is_of_the_day(item.nodeid):
                item.own_markers[:] = [mark for mark in item.own_markers if mark.name != "release"]
        left_out = [*not_today(items)]
    else:
        left_out = [item for item in items if item.get_closest_marker("daily")]
    for item in left_out:
        item.add_marker("release")
    if (seed := config.getoption("--shuffle")) is not None:
        random.Random(seed).shuffle(items)
    if "fast" in expression:
        from fast import fast_files

        files = {*fast_files()}
        for item in items:
            if item.path in files:
                item.add_marker("fast")


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Where only fast tests are asked for, torch must not have been loaded."""
    if "fast" in item.config.getoption("-m") and "torch" in sys.modules:
        pytest.fail("a test that is marked fast has loaded torch", pytrace=False)


def pytest_collection_finish() -> None:
    """Nothing that lives to the end is looked through when garbage is collected: see below."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def old_objects_are_not_looked_through() -> Iterator[None]:
    """After each test, what torch has a million of by then; the code collects on purpose."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Asks the command line: see `Ask`."""
    from helpers.command_line import Ask

    return Ask(capsys, monkeypatch)


@pytest.fixture
def eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    """A file that describes the miniature `TINY`."""
    from helpers.miniatures import TINY

    file = tmp_path / "tiny.json"
    file.write_text(json.dumps(TINY))
    return str(file)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Any]:
    """A hub on loopback; it serves the files of its `folder`."""
    from helpers.hub_server import serving

    with serving(tmp_path) as server:
        yield server


@pytest.fixture(scope="session")
def audits() -> Any:
    """Every formula of the audit at every model of the catalog, once for all tests."""
    from metacount.audit.judge import audit

    return audit()
