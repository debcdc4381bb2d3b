"""Runs jobs in processes of their own: one that crashes or hangs costs its own job alone."""

from __future__ import annotations

import multiprocessing
import signal
import time
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import wait

from metacount.frozen import frozen

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from multiprocessing.connection import Connection
    from typing import Any, TypeVar

    Job = TypeVar("Job")
    Result = TypeVar("Result")

COLLECT_EVERY = 16  # jobs


@frozen
class Failed:
    """A job without an answer, and why."""

    reason: str


def answers(
    work: Callable[[Job], Result],
    jobs: Sequence[Job],
    *,
    processes: int,
    timeout_s: float | None = None,
    ahead: int | None = None,
) -> Generator[tuple[int, Result | Failed], None, None]:
    """Yield the number of each job and its answer, or `Failed`, as they come.

    `work` is sent to each process once, so it is a function of a module or an object of plain data.
    A job is given out when fewer than `ahead` are between it and the first that has no answer.
    Processes end with the iterator.
    """
    waiting, open_jobs = list(reversed(range(len(jobs)))), set(range(len(jobs)))
    workers: list[_Worker] = []
    try:
        for _ in range(max(1, min(processes, len(jobs)))):
            workers.append(_Worker(work))
        while open_jobs:
            oldest = min(open_jobs)
            for worker in workers:
                near = waiting and (ahead is None or waiting[-1] - oldest < ahead)
                if worker.job is None and near:
                    job = waiting.pop()
                    worker.give(job, jobs[job])
            wait([worker.connection for worker in workers if worker.job is not None], timeout=1.0)
            for i, worker in enumerate(workers):
                if worker.job is None:
                    continue
                job, answer = worker.job, worker.answer(timeout_s)
                if answer is None:
                    continue
                open_jobs.discard(job)
                if isinstance(answer[0], Failed):
                    worker.stop()
                    workers[i] = _Worker(work)
                yield job, answer[0]
    finally:
        for worker in workers:
            worker.stop()


def in_order(answered: Iterator[tuple[int, Result]]) -> Iterator[Result]:
    """Yield the answers in the order of their jobs; one that comes early is held back."""
    early: dict[int, Result] = {}
    due = 0
    for number, answer in answered:
        early[number] = answer
        while due in early:
            yield early.pop(due)
            due += 1


class _Worker:
    def __init__(self, work: Callable[..., object]) -> None:
        # spawned, not forked: whoever calls may have threads, which a fork would leave half-way
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, work), daemon=True)
        with shielded():
            self.process.start()
        theirs.close()
        self.job: int | None = None
        self.since = 0.0

    def give(self, job: int, what: object) -> None:
        self.job, self.since = job, time.monotonic()
        self.connection.send(what)

    def answer(self, timeout_s: float | None) -> tuple[Any] | None:
        """Return what the job came to, in a tuple, or None while it runs."""
        try:
            if self.connection.poll():
                done = (self.connection.recv(),)
                self.job = None
                return done
        except (EOFError, ConnectionError):
            self.process.join()
            return (Failed(reason=f"its process ended with code {self.process.exitcode}"),)
        if timeout_s is not None and time.monotonic() - self.since > timeout_s:
            return (Failed(reason=f"stopped after {timeout_s:g} s"),)
        return None

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


class WithTorch:
    """Work with torch, sent to the processes that do it: no other process loads it.

    `max_memory`: bytes of data that such a process may have, where the system can limit it.
    """

    def __init__(self, work: Callable[[Any], Any], *, max_memory: int | None = None) -> None:
        self.work, self.max_memory, self.n_done = work, max_memory, 0

    def __call__(self, job: Any) -> Any:
        import gc

        if not self.n_done:
            with suppress(ModuleNotFoundError):  # the work itself will say so
                import torch

                torch.set_num_threads(1)
            gc.disable()
            if self.max_memory is not None:
                _limit_data(self.max_memory)
        try:
            return self.work(job)
        finally:
            self.n_done += 1
            if self.n_done % COLLECT_EVERY == 0:
                # a collection looks at all of transformers: as long as measuring a model
                gc.collect()


def _limit_data(n_bytes: int) -> None:
    with suppress(ImportError, OSError, ValueError):  # not every system has it
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        limit = n_bytes if most == resource.RLIM_INFINITY else min(n_bytes, most)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, most))


@contextmanager
def shielded() -> Iterator[None]:
    """Start processes that never see Ctrl-C, which the terminal sends to all: one of them answers.

    They inherit that the signal is blocked. Here it is only put off to the end of the block.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # it is started with the first process, and would lift the block once it is
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(connection: Connection, work: Callable[..., object]) -> None:
    while True:
        try:
            job = connection.recv()
        except EOFError:  # who asked has gone
            return
        connection.send(work(job))
