"""`metacount count --folder`: every model below a folder, counted in parallel processes, no torch.

A line of JSON for each, or a table, and what was refused and why. A file that cannot be counted is
an outcome with the reason, in its place among the others.
"""

from __future__ import annotations

import os
import re
import sys

from metacount import units
from metacount.cli.answer import Pieces, enveloped
from metacount.cli.layout import GAP, columns, width_of
from metacount.cli.progress import say
from metacount.cli.report import Grid, Notes, in_text
from metacount.errors import (
    EXIT_INTERRUPTED,
    EXIT_WRONG_INPUT,
    InputError,
    NoModel,
    SpecError,
    interrupted,
    printable,
    shown,
)
from metacount.frozen import frozen
from metacount.resolve import TransformersOnly, find_in_file
from metacount.spec import DTYPE_BYTES, SEQ_LEN

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from metacount.files import Json
    from metacount.spec import Request, Workload

ENDING = ".json"
FILES_AT_ONCE = 200  # that a process takes, of which each is a fifth of a millisecond
WAITING = 4  # such parts per process, counted ahead of the one that is shown next
MAX_JOBS = 256

SHORTEST_PATH = 20  # a path is cut at its start, down to so many characters
MOST_PASSED = 5  # files that are named
MOST_REASONS = 20  # shown; the JSON has each file's own

HEADS = ("model", "params", "active_params", "kv/token", "matmul_flops")
ALIGN = "<>>>>"

# What lies beside a model's config.json and describes no model.
COMPANIONS = frozenset((
    "adapter_config.json", "added_tokens.json", "chat_template.json",
    "config_sentence_transformers.json", "generation_config.json", "image_processor.json",
    "modules.json", "preprocessor_config.json", "processor_config.json",
    "sentence_bert_config.json", "special_tokens_map.json", "tokenizer.json",
    "tokenizer_config.json", "video_preprocessor_config.json", "vocab.json"
))  # fmt: skip
INDEX = ".index.json"  # which file of a checkpoint holds which tensor


@frozen
class Listing:
    """What lies below a folder: the files to count, by their path from it, in order.

    `unreadable` says of a folder why it could not be listed. `companions` and `links` are what was
    passed over: files that go with a model but describe none, and links to other folders.
    """

    folder: str
    files: tuple[str, ...]
    unreadable: dict[str, str]
    companions: int
    links: int

    @property
    def paths(self) -> list[str]:
        """Of every outcome that is to come, in order."""
        return sorted([*self.files, *self.unreadable])


@frozen
class Outcome:
    """One file: its figures, as `count --json` gives them, or the error that stands for them.

    `passed`: it describes no model, and has neither.
    """

    path: str
    data: Json
    error: str | None
    passed: bool = False


def list_folder(folder: str) -> Listing:
    """Find every `*.json` below `folder`; names with a leading dot are left out."""
    if not os.path.lexists(folder):
        raise InputError(f"--folder {shown(folder)}: no such folder")
    if not os.path.isdir(folder):
        raise InputError(f"--folder {shown(folder)}: is no folder; give a file as MODEL")
    files: list[str] = []
    unreadable: dict[str, str] = {}
    companions = links = 0
    waiting = [""]
    while waiting:
        below = waiting.pop()
        try:
            with os.scandir(os.path.join(folder, below)) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    path = os.path.join(below, entry.name)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(path)
                    elif entry.is_symlink() and os.path.isdir(entry.path):
                        links += 1  # it may lead back up: nothing would end
                    elif entry.name in COMPANIONS or entry.name.endswith(INDEX):
                        companions += 1
                    elif entry.name.lower().endswith(ENDING):
                        files.append(path)
        except OSError as error:
            unreadable[below or "."] = f"cannot be listed: {error.strerror}"
    if not files and not unreadable:
        raise InputError(
            f"--folder {shown(folder)}: holds no {ENDING} file that could describe a model"
        )
    return Listing(
        folder=folder,
        files=tuple(sorted(files)),
        unreadable=unreadable,
        companions=companions,
        links=links,
    )


def count_folder(
    listing: Listing,
    workload: Workload | Request,
    *,
    settings: Sequence[str] = (),
    jobs: int | None = None,
) -> Iterator[list[Outcome]]:
    """Count in `jobs` processes (None: one for each usable core); yield outcomes, in order.

    Few parts are held at a time, however many files there are. Raises `InputError` when a process
    dies.
    """
    paths = listing.paths
    parts = [paths[i : i + FILES_AT_ONCE] for i in range(0, len(paths), FILES_AT_ONCE)]
    job = _Job(listing, workload, tuple(settings))
    if jobs is not None and not 1 <= jobs <= MAX_JOBS:
        raise InputError(f"--jobs must be 1 to {MAX_JOBS}: got {jobs}")
    n_processes = min(usable_cores() if jobs is None else jobs, len(parts))
    if n_processes == 1:
        yield from map(job, parts)
        return
    from contextlib import closing

    from metacount.many.pool import Failed, answers

    done: dict[int, list[Outcome]] = {}
    shown = 0
    found = answers(job, parts, processes=n_processes, ahead=WAITING * n_processes)
    with closing(found):
        for number, answer in found:
            if isinstance(answer, Failed):
                raise InputError("a process that counted has died; --jobs 1 counts without any")
            done[number] = answer
            while shown in done:
                yield done.pop(shown)
                shown += 1


def usable_cores() -> int:
    """Count the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Job:
    """Counts the files of one part; is sent to the processes, so it holds plain data only."""

    def __init__(
        self, listing: Listing, workload: Workload | Request, settings: tuple[str, ...]
    ) -> None:
        self.folder, self.unreadable = listing.folder, listing.unreadable
        self.workload, self.settings = workload, settings

    def __call__(self, part: Sequence[str]) -> list[Outcome]:
        return [self._outcome(path) for path in part]

    def _outcome(self, path: str) -> Outcome:
        if path in self.unreadable:
            return Outcome(path=path, data={}, error=self.unreadable[path])
        whole = os.path.join(self.folder, path)
        try:
            return Outcome(path=path, data=self._data(whole), error=None)
        except NoModel:
            return Outcome(path=path, data={}, error=None, passed=True)
        except (InputError, SpecError) as error:
            said = printable(error).removeprefix(f"{shown(whole)}: ")
            if not os.path.exists(whole):
                said = "leads to no file"
        except Exception as error:
            # whatever one file does, the others are counted; no rule foresaw this one
            said = f"not foreseen: {type(error).__name__}: {shown(error)}"
        return Outcome(path=path, data={}, error=said)

    def _data(self, whole: str) -> Json:
        from metacount.textbook.count import count
        from metacount.textbook.proven import count_data

        found = find_in_file(whole, self.settings)
        text = found.text if isinstance(found, TransformersOnly) else None
        model = found if text is None else text
        if isinstance(model, TransformersOnly):
            raise InputError(f"has no formula: {model.problem}; `metacount count FILE` measures it")
        counted = count(model.spec, self.workload, notes=model.notes, quantised=model.quantised)
        return count_data(model, counted) | ({} if text is None else {"part": "text"})


# ---- what is written of them


def counted_folder(
    folder: str, request: Request, settings: list[str], jobs: int | None, *, as_json: bool
) -> Pieces:
    """Count every model below a folder; what is counted is written as it comes."""
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
