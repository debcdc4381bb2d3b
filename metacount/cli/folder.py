"""The models of a folder: a line of JSON for each, or a table, and what was refused and why."""

from __future__ import annotations

import re
import sys

from metacount import units
from metacount.cli.answer import Pieces, enveloped
from metacount.cli.layout import GAP, columns, width_of
from metacount.cli.progress import say
from metacount.cli.report import Grid, Notes, in_text
from metacount.errors import EXIT_INTERRUPTED, EXIT_WRONG_INPUT, interrupted, shown
from metacount.spec import DTYPE_BYTES, SEQ_LEN

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from metacount.many.folder import Listing, Outcome
    from metacount.spec import Request

SHORTEST_PATH = 20  # a path is cut at its start, down to so many characters
MOST_PASSED = 5  # files that are named
MOST_REASONS = 20  # shown; the JSON has each file's own

HEADS = ("model", "params", "active_params", "kv/token", "matmul_flops")
ALIGN = "<>>>>"


def counted_folder(
    folder: str, request: Request, settings: list[str], jobs: int | None, *, as_json: bool
) -> Pieces:
    """Count every model below a folder; what is counted is written as it comes."""
    from metacount.many.folder import count_folder, list_folder

    listing = list_folder(folder)
    counted = count_folder(listing, request, settings=settings, jobs=jobs)
    view = FolderView(listing, request, counted)
    return Pieces(text=view.json_lines() if as_json else view.text(), code=view.closing)


class FolderView:
    """Takes the outcomes as they come, and knows at the end what became of all."""

    def __init__(
        self, listing: Listing, request: Request, counted: Iterator[list[Outcome]]
    ) -> None:
        self.listing, self.request, self.counted = listing, request, counted
        self.n_counted = self.n_shorter = self.n_text = 0
        self.refused: dict[str, list[tuple[str, str]]] = {}
        self.passed: list[str] = []
        self.in_text = self.interrupted = False

    def json_lines(self) -> Generator[str, None, None]:
        """Yield an object a line, in the paths' order; a refused file has its path and `error`."""
        import json

        encode = json.JSONEncoder(separators=(",", ":")).encode
        try:
            for part in self._parts():
                objects = [
                    {"model": outcome.path, "error": outcome.error}
                    if outcome.error is not None
                    else enveloped({**outcome.data, "model": outcome.path})
                    for outcome in part
                    if not outcome.passed
                ]
                lines = "".join(f"{encode(each)}\n" for each in objects)
                self._book(part)
                yield lines
        except KeyboardInterrupt:
            self.interrupted = True  # what was counted stands there already

    def text(self) -> Generator[str, None, None]:
        """Yield a table of what was counted, with how many were refused and why."""
        self.in_text = True
        rows: list[tuple[str, ...]] = []
        try:
            for part in self._parts():
                rows += [_row(outcome) for outcome in part if outcome.data]
                self._book(part)
        except KeyboardInterrupt:
            self.interrupted = True
        yield in_text([[_grid(rows)] if rows else [], [self._sums()]])

    def closing(self) -> int:
        """Return the exit code, after saying on stderr too what was refused."""
        if self.interrupted:
            interrupted(self._n_seen, len(self.listing.paths), "files")
            return EXIT_INTERRUPTED
        if self.passed and not self.in_text:
            print(f"metacount: passed over {self._no_models()}", file=sys.stderr)
        if not self.n_refused + self.n_counted:
            print("metacount: error: no file of the folder describes a model", file=sys.stderr)
            return EXIT_WRONG_INPUT
        if not self.n_refused:
            return 0
        if not self.in_text:
            print("\n".join(Notes(self._reasons()).lines(columns())), file=sys.stderr)
        some = f"{units.exact(self.n_refused)} of {units.exact(self.n_refused + self.n_counted)}"
        print(f"metacount: error: {some} files refused", file=sys.stderr)
        return EXIT_WRONG_INPUT

    @property
    def _n_seen(self) -> int:
        return self.n_refused + self.n_counted + len(self.passed)

    @property
    def n_refused(self) -> int:
        """Files that were not counted."""
        return sum(map(len, self.refused.values()))

    def _parts(self) -> Iterator[list[Outcome]]:
        done = 0
        for part in self.counted:
            done += len(part)
            say(f"counted {done} of {len(self.listing.paths)} files")
            yield part

    def _book(self, part: list[Outcome]) -> None:
        """Count what is ready to be shown: an interrupt leaves the two alike."""
        for outcome in part:
            if outcome.passed:
                self.passed.append(outcome.path)
            elif outcome.error is None:
                self.n_counted += 1
                self.n_shorter += outcome.data["workload"]["seq_len"] < SEQ_LEN
                self.n_text += "part" in outcome.data
            else:
                # what errors share that differ in their numbers and values only
                kind = re.sub(r"\d+", "#", re.split(": got |: line |: byte ", outcome.error)[0])
                self.refused.setdefault(kind, []).append((outcome.path, outcome.error))

    def _sums(self) -> Notes:
        run, listing = self.request, self.listing
        length = f"seq {SEQ_LEN if run.seq_len is None else run.seq_len}"
        if run.seq_len is None and self.n_shorter:
            length += f" (in {_number(self.n_shorter, 'file')} with fewer positions, all of them)"
        counted = (
            f"{units.exact(self.n_counted)} of {_number(self.n_counted + self.n_refused, 'file')}: "
            f"batch {run.batch_size}, {length}, {run.dtype} ({DTYPE_BYTES[run.dtype]} bytes per "
            "value)"
        )
        notes = [("counted", counted)]
        if self.n_text:
            text = f"of {_number(self.n_text, 'file')} the text part alone: what sees or hears is "
            notes.append(("text", f"{text}measured by `metacount count FILE`"))
        if self.interrupted:
            left = units.exact(len(listing.paths) - self._n_seen)
            notes.append(("stopped", f"by an interrupt, with {left} files to go"))
        passed = []
        if listing.companions:
            what = _number(listing.companions, "file")
            passed.append(f"{what} of tokenizers and the like, which describe no model")
        if self.passed:
            passed.append(self._no_models())
        if listing.links:
            passed.append(f"{_number(listing.links, 'link')} to other folders")
        figures = "kv/token in bytes (KiB = 2^10) over all layers; --json has every figure of each"
        notes += [*self._reasons(), ("passed", "; ".join(passed)), ("figures", figures)]
        return Notes(notes, pad=7)

    def _no_models(self) -> str:
        """Name the files that have none of a model's keys."""
        names = ", ".join(shown(path) for path in self.passed[:MOST_PASSED])
        more = len(self.passed) - MOST_PASSED
        what = f"{_number(len(self.passed), 'file')} without a size of a model: {names}"
        return f"{what} and {units.exact(more)} more" if more > 0 else what

    def _reasons(self) -> list[tuple[str, str]]:
        """Say the most frequent reasons first, each with the first of its files."""
        groups = sorted(self.refused.values(), key=len, reverse=True)
        notes = []
        for (path, error), *more in groups[:MOST_REASONS]:
            others = f", and {_number(len(more), 'file')} more" if more else ""
            notes.append(("refused", f"{shown(path)}{others}: {error}"))
        if left := groups[MOST_REASONS:]:
            n = _number(sum(map(len, left)), "file")
            notes.append(("refused", f"{n} for {len(left)} other reasons"))
        return notes


def _number(n: int, thing: str) -> str:
    return f"{units.exact(n)} {thing}{'' if n == 1 else 's'}"


def _row(outcome: Outcome) -> tuple[str, ...]:
    data = outcome.data
    return (
        shown(outcome.path) + (" (text)" if "part" in data else ""),
        units.exact(data["params"]),
        units.exact(data["active_params"]),
        units.gib(data["kv_cache_bytes_per_token"]),
        units.flops(data["matmul_flops"]),
    )


def _grid(rows: Sequence[tuple[str, ...]]) -> Grid:
    """Tabulate the models; paths are shortened, and the last columns left out to fit the width."""
    routed = any(row[1] != row[2] for row in rows)
    columns_shown = [i for i, head in enumerate(HEADS) if routed or head != "active_params"]
    heads, *body = ([row[i] for i in columns_shown] for row in (HEADS, *rows))
    others = width_of(heads[1:], [row[1:] for row in body])
    room = max(SHORTEST_PATH, columns() - others - len(GAP))
    for row in body:
        if len(row[0]) > room:
            row[0] = "..." + row[0][3 - room :]
    return Grid(heads=heads, rows=body, align=ALIGN[: len(heads)], drops=heads[:1:-1])
