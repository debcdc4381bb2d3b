"""Processes that Ctrl-C does not reach: the terminal sends it to all, and one of them answers."""

from __future__ import annotations

from contextlib import contextmanager

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def shielded() -> Iterator[None]:
    """Start processes inside: they never see Ctrl-C, not even while they are starting.

    They inherit that the signal is blocked. Here it is only put off to the end of the block.
    """
    import signal
    from multiprocessing import resource_tracker

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
