"""Every model below a folder: its files found, counted in parallel processes, without torch.

A file that cannot be counted is an outcome with the reason, in its place among the others.
"""

from __future__ import annotations

import os

from metacount.errors import InputError, NoModel, SpecError, printable, shown
from metacount.frozen import frozen
from metacount.resolve import TransformersOnly, find_in_file

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from metacount.files import Json
    from metacount.spec import Request, Workload

ENDING = ".json"
FILES_AT_ONCE = 200  # that a process takes, of which each is a fifth of a millisecond
WAITING = 4  # such parts per process, counted ahead of the one that is shown next
MAX_JOBS = 256

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
