"""`metacount count --folder`: every model below a folder, counted in parallel processes.

A line of JSON for each, or a table, and what was refused and why. A file that cannot be counted is
an outcome with the reason, in its place among the others. What has no formula is measured after
all that have one, in processes that load torch; no other process loads it.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter

from metacount import units
from metacount.cli.answer import Pieces, enveloped, prepare_for_torch
from metacount.cli.progress import say
from metacount.cli.report import GAP, Grid, Notes, cells, columns, in_text, width_of
from metacount.errors import (
    EXIT_INTERRUPTED,
    EXIT_WRONG_INPUT,
    InputError,
    NoModel,
    SpecError,
    interrupted,
    missing_library,
    printable,
    shown,
)
from metacount.frozen import frozen
from metacount.resolve import Model, TransformersOnly, find_in_file
from metacount.spec import DTYPE_BYTES, SEQ_LEN, Request, Workload

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from typing import TypeAlias

    from metacount.files import Json

    Measure: TypeAlias = Callable[[Model | TransformersOnly, Workload | Request], Json]

ENDING = ".json"
FILES_AT_ONCE = 200  # that a process takes, of which each is a fifth of a millisecond
WAITING = 4  # such parts per process, counted ahead of the one that is shown next
MAX_JOBS = 256

MEASURE_S = 60  # seconds that measuring one file may take
MAX_MEMORY = 4 * 2**30  # bytes of data of a process that measures
WITHOUT_LIMITS = "`metacount count FILE` limits neither time nor memory"

SHORTEST_PATH = 32  # a path is cut in its middle, down to so many characters
MARKS = {"text": "*", "measured": "+"}
SHARED_ENDS = ("/config.json", "_config.json", ENDING)  # not shown where every name has it
MOST_PASSED = 5  # files that are named
MOST_REASONS = 20  # shown; the JSON has each file's own

HEADS = ("model", "params", "active_params", "kv/token", "matmul_flops")
FIGURES = ("params", "active_params", "kv_cache_bytes_per_token", "matmul_flops")
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
    """What lies below a folder: the paths from it, in order, of files and of unreadable folders.

    `unreadable` says why not. `companions` and `links` are how many were passed over: files that go
    with a model but describe none, and links to other folders.
    """

    folder: str
    paths: list[str]
    unreadable: dict[str, str]
    companions: int
    links: int


@frozen
class Outcome:
    """One file: its figures, as `count --json` gives them, or the error that stands for them.

    `passed`: it describes no model, and has neither. `problem`: why it has no formula, where it is
    to be measured.
    """

    path: str
    data: Json
    error: str | None = None
    passed: bool = False
    problem: str = ""


def list_folder(folder: str) -> Listing:
    """Find every `*.json` below `folder`; names with a leading dot are left out."""
    if not os.path.lexists(folder):
        raise InputError(f"--folder {shown(folder)}: no such folder")
    if not os.path.isdir(folder):
        raise InputError(f"--folder {shown(folder)}: is no folder; give a file as MODEL")
    paths: list[str] = []
    unreadable: dict[str, str] = {}
    companions = links = 0
    waiting = [""]
    while waiting:
        below = waiting.pop()
        try:
            with os.scandir(os.path.join(folder, below)) as entries:
                for entry in entries:
                    path = os.path.join(below, entry.name)
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(path)
                    elif entry.is_symlink() and os.path.isdir(entry.path):
                        links += 1  # it may lead back up: nothing would end
                    elif entry.name in COMPANIONS or entry.name.endswith(INDEX):
                        companions += 1
                    elif entry.name.lower().endswith(ENDING):
                        paths.append(path)
        except OSError as error:
            unreadable[below or "."] = f"cannot be listed: {error.strerror}"
    paths = sorted([*paths, *unreadable])
    if not paths:
        what = f"holds no {ENDING} file that could describe a model"
        raise InputError(f"--folder {shown(folder)}: {what}")
    return Listing(
        folder=folder, paths=paths, unreadable=unreadable, companions=companions, links=links
    )


def count_folder(
    listing: Listing,
    workload: Workload | Request,
    measure: Measure,
    *,
    settings: Sequence[str] = (),
    jobs: int | None = None,
) -> Iterator[list[Outcome]]:
    """Count in `jobs` processes (None: one for each usable core); yield outcomes, in order.

    What has no formula is left to `measure`, a function of a module, and comes after all else. Few
    parts are held at a time, however many files there are. Raises `InputError` when a process that
    counts by formula dies.
    """
    if jobs is not None and not 1 <= jobs <= MAX_JOBS:
        raise InputError(f"--jobs must be 1 to {MAX_JOBS}: got {jobs}")
    n_processes = usable_cores() if jobs is None else jobs
    job = _Job(listing, workload, tuple(settings), measure)
    left: list[Outcome] = []
    for part in _by_formula(job, listing.paths, n_processes):
        left += [outcome for outcome in part if outcome.problem]
        yield [outcome for outcome in part if not outcome.problem]
    if left:
        yield from _measured(job, left, n_processes)


def _by_formula(job: _Job, paths: list[str], n_processes: int) -> Iterator[list[Outcome]]:
    parts = [paths[i : i + FILES_AT_ONCE] for i in range(0, len(paths), FILES_AT_ONCE)]
    n_processes = min(n_processes, len(parts))
    if n_processes == 1:
        yield from map(job, parts)
        return
    from contextlib import closing

    from metacount.many.pool import Failed, answers, in_order

    counted = answers(job, parts, processes=n_processes, ahead=WAITING * n_processes)
    with closing(counted):
        for answer in in_order(counted):
            if isinstance(answer, Failed):
                raise InputError("a process that counted has died; --jobs 1 counts without any")
            yield answer


def _measured(job: _Job, left: list[Outcome], n_processes: int) -> Iterator[list[Outcome]]:
    from contextlib import closing

    from metacount.many.pool import Failed, WithTorch, answers, in_order

    work = WithTorch(job.measured, max_memory=MAX_MEMORY)
    paths = [outcome.path for outcome in left]
    measured = answers(work, paths, processes=n_processes, timeout_s=MEASURE_S)
    with closing(measured):
        for outcome, answer in zip(left, in_order(measured), strict=True):
            if isinstance(answer, Failed):
                answer = Outcome(
                    path=outcome.path, data={}, error=f"{answer.reason}; {WITHOUT_LIMITS}"
                )
            if answer.error is not None:
                error = f"has no formula: {outcome.problem}; measuring it: {answer.error}"
                answer = Outcome(path=outcome.path, data={}, error=error)
            yield [answer]


def usable_cores() -> int:
    """Count the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Job:
    """Counts the files of one part; is sent to the processes, so it holds plain data only."""

    def __init__(
        self,
        listing: Listing,
        workload: Workload | Request,
        settings: tuple[str, ...],
        measure: Measure,
    ) -> None:
        self.folder, self.unreadable = listing.folder, listing.unreadable
        self.workload, self.settings, self.measure = workload, settings, measure

    def __call__(self, part: Sequence[str]) -> list[Outcome]:
        return [self._outcome(path, self._by_formula) for path in part]

    def measured(self, path: str) -> Outcome:
        """Measure one file, as `metacount count FILE` does."""
        prepare_for_torch()
        return self._outcome(path, self._by_module)

    def _outcome(self, path: str, count_file: Callable[[str], Json]) -> Outcome:
        if path in self.unreadable:
            return Outcome(path=path, data={}, error=self.unreadable[path])
        file = os.path.join(self.folder, path)
        try:
            return Outcome(path=path, data=count_file(file))
        except NoModel:
            return Outcome(path=path, data={}, passed=True)
        except _NoFormula as error:
            return Outcome(path=path, data={}, problem=str(error))
        except (InputError, SpecError) as error:
            reason = printable(error).removeprefix(f"{shown(file)}: ")
            if not os.path.exists(file):
                reason = "leads to no file"
        except Exception as error:
            # whatever one file does, the others are counted; no rule foresaw this one
            reason = f"not foreseen: {type(error).__name__}: {shown(error)}"
        return Outcome(path=path, data={}, error=reason)

    def _by_formula(self, file: str) -> Json:
        from metacount.textbook.count import count
        from metacount.textbook.proven import count_data

        model = find_in_file(file, self.settings)
        of_text = {}
        if isinstance(model, TransformersOnly):
            if model.text is None:
                raise _NoFormula(model.problem)
            model, of_text = model.text, {"part": "text"}
        counted = count(model.spec, self.workload, notes=model.notes, quantised=model.quantised)
        return count_data(model, counted) | of_text

    def _by_module(self, file: str) -> Json:
        try:
            return self.measure(find_in_file(file, self.settings), self.workload)
        except ModuleNotFoundError as error:
            raise missing_library(error) from None
        except MemoryError:
            what = f"took more than {units.gib(MAX_MEMORY)} of memory; {WITHOUT_LIMITS}"
            raise InputError(what) from None


class _NoFormula(Exception):
    """A model that is to be measured."""


# ---- what is written of them


def counted_folder(
    folder: str,
    request: Request,
    measure: Measure,
    *,
    settings: list[str],
    jobs: int | None,
    as_json: bool,
) -> Pieces:
    """Count every model below a folder; what is counted is written as it comes."""
    listing = list_folder(folder)
    counted = count_folder(listing, request, measure, settings=settings, jobs=jobs)
    view = FolderView(listing, request, counted, as_json=as_json)
    return Pieces(text=view.pieces(), code=view.closing)


class FolderView:
    """Takes the outcomes as they come, and knows at the end what became of all."""

    def __init__(
        self,
        listing: Listing,
        request: Request,
        counted: Iterator[list[Outcome]],
        *,
        as_json: bool,
    ) -> None:
        self.listing, self.request, self.counted = listing, request, counted
        self.as_json, self.interrupted = as_json, False
        self.n_seen = self.n_counted = self.n_shorter = self.n_text = self.n_measured = 0
        self.refused: dict[str, list[tuple[str, str]]] = {}
        self.passed: list[str] = []

    def pieces(self) -> Generator[str, None, None]:
        """Yield an object a line, in the paths' order and last what was measured, a refused file
        with its path and `error`; or a table of what was counted, with how many were refused and
        why.
        """
        import json

        encode = json.JSONEncoder(separators=(",", ":")).encode
        rows: dict[str, tuple[str, ...]] = {}
        try:
            for part in self.counted:
                lines = []
                for outcome in part:
                    if self.as_json and not outcome.passed:
                        error = {"model": outcome.path, "error": outcome.error}
                        data = {**outcome.data, "model": outcome.path}
                        lines.append(f"{encode(error if outcome.error else enveloped(data))}\n")
                    elif outcome.data:
                        rows[outcome.path] = _row(outcome)
                self._book(part)  # what is ready to be shown: an interrupt leaves the two alike
                say(f"counted {self.n_seen} of {len(self.listing.paths)} files")
                yield "".join(lines)
        except KeyboardInterrupt:
            self.interrupted = True  # what was counted stands there already
        if not self.as_json:
            yield in_text([[_grid(rows)] if rows else [], [self._sums()]])

    def closing(self) -> int:
        """Return the exit code, after saying on stderr too what was refused."""
        if self.interrupted:
            interrupted(self.n_seen, len(self.listing.paths), "files")
            return EXIT_INTERRUPTED
        if self.passed and self.as_json:
            print(f"metacount: passed over {self._no_models()}", file=sys.stderr)
        n_refused = sum(map(len, self.refused.values()))
        n_files = n_refused + self.n_counted
        if not n_files:
            print("metacount: error: no file of the folder describes a model", file=sys.stderr)
            return EXIT_WRONG_INPUT
        if not n_refused:
            return 0
        if self.as_json:
            print("\n".join(Notes(self._reasons()).lines(columns())), file=sys.stderr)
        some = f"{units.exact(n_refused)} of {units.exact(n_files)}"
        print(f"metacount: error: {some} files refused", file=sys.stderr)
        return EXIT_WRONG_INPUT

    def _book(self, part: list[Outcome]) -> None:
        self.n_seen += len(part)
        for outcome in part:
            if outcome.passed:
                self.passed.append(outcome.path)
            elif outcome.error is None:
                self.n_counted += 1
                self.n_shorter += outcome.data["workload"]["seq_len"] < SEQ_LEN
                self.n_text += "part" in outcome.data
                self.n_measured += _is_measured(outcome.data)
            else:
                # what errors share that differ in their numbers and values only
                kind = re.sub(r"\d+", "#", re.split(": got |: line |: byte ", outcome.error)[0])
                self.refused.setdefault(kind, []).append((outcome.path, outcome.error))

    def _sums(self) -> Notes:
        run, listing = self.request, self.listing
        length = f"seq {SEQ_LEN if run.seq_len is None else run.seq_len}"
        if run.seq_len is None and self.n_shorter:
            length += f" (in {_number(self.n_shorter, 'file')} with fewer positions, all of them)"
        by = ""
        if self.n_measured:
            n_by_formula = units.exact(self.n_counted - self.n_measured)
            by = f"{n_by_formula} by formula, {units.exact(self.n_measured)} measured; "
        counted = (
            f"{units.exact(self.n_counted)} of {_number(self.n_seen - len(self.passed), 'file')}: "
            f"{by}batch {run.batch_size}, {length}, {run.dtype} ({DTYPE_BYTES[run.dtype]} bytes "
            "per value)"
        )
        text = f"of {_number(self.n_text, 'file')} the text part alone: what sees or hears is "
        module = (
            f"{_number(self.n_measured, 'file')} without a formula: transformers' module of each"
        )
        left = f"{units.exact(len(listing.paths) - self.n_seen)} files to go"
        what = f"{_number(listing.companions, 'file')} of tokenizers and the like"
        passed = {
            f"{what}, which describe no model": listing.companions,
            self._no_models(): self.passed,
            f"{_number(listing.links, 'link')} to other folders": listing.links,
        }
        figures = "kv/token in bytes (KiB = 2^10) over all layers; --json has every figure of each"
        notes = [
            ("counted", counted),
            (MARKS["text"], f"{text}measured by `metacount count FILE`" if self.n_text else ""),
            (MARKS["measured"], f"{module} on the meta device" if self.n_measured else ""),
            ("stopped", f"by an interrupt, with {left}" if self.interrupted else ""),
            *self._reasons(),
            ("passed", "; ".join(text for text, some in passed.items() if some)),
            ("figures", figures),
        ]
        return Notes(notes, pad=7)

    def _no_models(self) -> str:
        names = ", ".join(shown(path) for path in self.passed[:MOST_PASSED])
        more = len(self.passed) - MOST_PASSED
        what = f"{_number(len(self.passed), 'file')} without a size of a model: {names}"
        return f"{what} and {units.exact(more)} more" if more > 0 else what

    def _reasons(self) -> list[tuple[str, str]]:
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


def _is_measured(data: Json) -> bool:
    return bool(data["source"] != "formula")


def _row(outcome: Outcome) -> tuple[str, ...]:
    data = outcome.data
    mark = MARKS["text"] if "part" in data else MARKS["measured"] if _is_measured(data) else ""
    shorts = (units.exact, units.exact, units.gib, units.flops)
    figures = [data[name] for name in FIGURES]
    return (
        mark,
        *("-" if n is None else short(n) for n, short in zip(figures, shorts, strict=True)),
    )


def _grid(rows: dict[str, tuple[str, ...]]) -> Grid:
    paths = sorted(rows)
    routed = any(row[1] != row[2] for row in rows.values())
    heads = [head for head in HEADS if routed or head != "active_params"]
    body = [[rows[path][HEADS.index(head)] for head in heads] for path in paths]
    names, marks = _names(paths), [f" {row[0]}" if row[0] else "" for row in body]

    def table(room: int) -> Grid:
        cuts = _cut(names, room - max(map(len, marks)))
        named = [[cut + mark, *row[1:]] for cut, mark, row in zip(cuts, marks, body, strict=True)]
        return Grid(heads=heads, rows=named, align=ALIGN[: len(heads)], drops=heads[:1:-1])

    n_shown = len(heads) - len(table(SHORTEST_PATH).dropped(columns()))
    others = width_of(heads[1:n_shown], [row[1:n_shown] for row in body])
    return table(max(SHORTEST_PATH, columns() - others - len(GAP)))


def _names(paths: Sequence[str]) -> list[str]:
    for end in SHARED_ENDS:
        if all(path.endswith(end) and path != end for path in paths):
            return [shown(path.removesuffix(end)) for path in paths]
    return [shown(path) for path in paths]


def _cut(names: list[str], room: int) -> list[str]:
    """Cut what is longer than `room` about its middle, or where two stay different."""
    cuts = names
    for off in (0, 4, -4, 8, -8, 12, -12):
        start = (room - 3) // 2 + off
        end = room - 3 - start
        shared = {cut for cut, n in Counter(cuts).items() if n > 1 or cells(cut) > room}
        if not shared:
            break
        cuts = [
            f"{name[:start]}...{name[-end:]}" if cut in shared and cells(name) > room else cut
            for name, cut in zip(names, cuts, strict=True)
        ]
    return cuts
