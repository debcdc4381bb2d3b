"""Measures the processor time of each test, in all processes, and prints the slowest files."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest


class ProcessorTime:
    """A plugin: seconds of this process and of the children that it has waited for."""

    def __init__(self) -> None:
        self.of_test: Counter[str] = Counter()
        self.of_workers: list[float] = []
        self.last = _seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Any:
        self.last = _seconds()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Any:
        """Each report, which travels from a worker, says what was used since the one before."""
        report, now = (yield), _seconds()
        report.processor_seconds = now - self.last
        self.last = now
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        # a worker that crashed says nothing
        self.of_test[report.nodeid] += getattr(report, "processor_seconds", 0)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.of_workers.append(getattr(node, "workeroutput", {}).get("processor_seconds", 0))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["processor_seconds"] = _seconds()

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        files: Counter[str] = Counter()
        for test, seconds in self.of_test.items():
            files[test.partition("::")[0]] += seconds
        total = sum(self.of_workers) + sum(os.times()[:2]) if self.of_workers else _seconds()
        terminalreporter.section(f"{total / 60:.1f} minutes of processor time, most of it in")
        for file, seconds in files.most_common(10):
            terminalreporter.line(f"{seconds:7.1f} s  {file}")
        if table := config.getoption("--times"):
            Path(table).write_text(
                "".join(f"{s:.2f}\t{test}\n" for test, s in self.of_test.most_common())
            )


def _seconds() -> float:
    return sum(os.times()[:4])
