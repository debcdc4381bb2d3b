"""What a command returns, and how it is written: as a report, as JSON, as a table."""

from __future__ import annotations

import signal
import sys

from metacount import __version__
from metacount.errors import InputError, SpecError
from metacount.frozen import frozen

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Generator, Sequence
    from types import FrameType
    from typing import Any

    from metacount.cli.report import Grid, Report
    from metacount.given import Model, OwnModule, TransformersOnly
    from metacount.spec import Workload

APART = "metacount.own_module"  # what runs in a process of its own
SCHEMA = 1  # of --json; higher when a key changes its meaning


@frozen
class Answer:
    """What a command found: plain data for --json, a report for people, one table for programs.

    Each is made when it is asked for. Without a `table`, those of the report are written. `model`
    and `workload` stand in the JSON where the data does not name them.
    """

    report: Callable[[], Report]
    data: Callable[[], object] | None = None
    table: Callable[[], Grid] | None = None
    code: int = 0
    model: Model | TransformersOnly | OwnModule | None = None
    workload: Workload | None = None

    def written(self, args: argparse.Namespace) -> tuple[str, int]:
        """Write it in the format that the options ask for; the exit code."""
        if getattr(args, "json", False) and self.data is not None:
            return json_text(enveloped(self.data(), self.model, self.workload)), self.code
        from metacount.cli import report

        if name := getattr(args, "table", None):
            tables = [self.table()] if self.table is not None else report.grids(self.report())
            return "\n".join(map(report.WRITERS[name], tables)), self.code
        return report.in_text(self.report()), self.code


@frozen
class Pieces:
    """Text that is written as it comes, or whole; the exit code, or what knows it at the end."""

    text: str | Generator[str, None, None]
    code: int | Callable[[], int] = 0

    def written(
        self, _: argparse.Namespace
    ) -> tuple[str | Generator[str, None, None], int | Callable[[], int]]:
        """Return both as they are."""
        return self.text, self.code


def figures_table(data: dict[str, Any]) -> Grid:
    """Tabulate the figures among plain data: whole numbers by their names."""
    from metacount.cli.report import Grid

    rows = [(name, n) for name, n in data.items() if type(n) is int]
    return Grid(heads=("figure", "value"), rows=rows, align="<>")


# Older keys for things that are not counted.
NOT_COUNTED = ("not_counted", "missing", "left_out", "uncovered", "warnings")


def enveloped(
    data: Any,
    model: Model | TransformersOnly | OwnModule | None = None,
    workload: Workload | None = None,
) -> Any:
    """Put the envelope that all commands share around an answer, or around each of several."""
    if isinstance(data, list):
        return [enveloped(each, model, workload) for each in data]
    missing: Any = next((data[name] for name in NOT_COUNTED if data.get(name)), [])
    if isinstance(missing, dict):
        missing = [f"{name}: {why}" for name, why in missing.items()]
    head = {
        "metacount": __version__,
        "schema": SCHEMA,
        "model": None if model is None else model.id,
        "changes": getattr(model, "changes", {}),
        "workload": None if workload is None else workload.to_dict(),
    }
    return {**head, **data, "not_counted": list(missing), "notes": list(data.get("notes", []))}


def json_text(data: object) -> str:
    """Write data as the JSON that a command prints."""
    import json

    # where stdout knows no ×, its escape must be JSON's own: Python's would be no JSON
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    plain = not encoding.lower().startswith("utf")
    return json.dumps(data, indent=2, ensure_ascii=plain) + "\n"


def run_apart(args: argparse.Namespace, arguments: Sequence[str]) -> tuple[str, int]:
    """Run a command on a module of somebody's own in a process of its own, with the limits of
    `check`; return what it writes, and its exit code.
    """
    import json
    from importlib.util import find_spec

    from metacount.check.given.process import answer_of
    from metacount.cli.report import columns, is_terminal

    for library in ("torch", "sympy"):  # the process would end without an answer
        if find_spec(library) is None:
            raise ModuleNotFoundError(name=library)
    job = {
        "arguments": list(arguments),
        "name": ", ".join(args.modules),
        "seconds": args.timeout,
        "columns": columns(),
        "terminal": is_terminal(),
        "encoding": getattr(sys.stdout, "encoding", None) or "utf-8",
    }
    answer = answer_of(json.dumps(job), str(job["name"]), args.timeout, APART)
    if "field" in answer:
        raise SpecError(*(answer[name] for name in ("field", "rule", "value", "remedy")))
    if "error" in answer:
        raise InputError(answer["error"])
    return str(answer["text"]), int(answer["code"])


def prepare_for_torch() -> None:
    """Stop garbage collection, in vain among torch's million objects, and transformers' advice."""
    import gc
    import os

    gc.disable()
    # transformers' own advice is for people who run a model, not for those who count it
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


def write_pieces(pieces: Generator[str, None, None]) -> None:
    """Write each piece as it comes to stdout; one that is begun is written whole.

    A Ctrl-C meanwhile reaches `pieces` as a `KeyboardInterrupt` where it yielded, after what it
    yielded is out; what it yields then is written as well. A second one ends at once: the reader
    of a pipe may never take what is written.
    """
    from metacount.cli.progress import clear

    piece = next(pieces, None)
    while piece is not None:
        clear()
        interrupted = _written_under_interrupt(piece)
        try:
            piece = pieces.throw(KeyboardInterrupt) if interrupted else next(pieces)
        except StopIteration:
            return


def _written_under_interrupt(piece: str) -> bool:
    """Write a piece; return whether somebody pressed Ctrl-C meanwhile."""
    pressed: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)

    try:
        before = signal.signal(signal.SIGINT, note)
    except ValueError:  # not the main thread, where no interrupt arrives
        sys.stdout.write(piece)
        return False
    try:
        sys.stdout.write(piece)
    finally:
        signal.signal(signal.SIGINT, before)
    return bool(pressed)
