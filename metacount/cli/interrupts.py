"""Ctrl-C: raised at the first moment at which others' code can be left.

Torch ends the process where an exception leaves the middle of an operator's dispatch, and an import
that is cut short leaves half a library behind. There the signal is held, and sent again.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
from _thread import get_ident, start_new_thread

from metacount.errors import EXIT_INTERRUPTED

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from types import CodeType, FrameType

INTERRUPTED = "metacount: interrupted"
LONGEST = 30.0  # seconds that it is held: somebody's import may have a loop without end
AGAIN = 0.02  # seconds
IMPORTS = "<frozen importlib"
# In an operator of torch, and between the entering and the leaving of one of its modes.
DISPATCH = ("__torch_dispatch__", "__torch_function__")
OF_TORCH = os.sep + "torch" + os.sep
SWITCHES = ("__enter__", "__exit__")
SYMBOLS = "sym_node.py"  # what its sizes ask, in the middle of an operator

_codes: list[int] = []  # with which the process is to end


class _Handler:
    """Raises `KeyboardInterrupt`, or puts it off while code runs that cannot be left."""

    def __init__(self, outermost: CodeType) -> None:
        self.outermost, self.since = outermost, 0.0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        self.since = self.since or now
        if now - self.since < LONGEST and self._cannot_leave(frame):
            send_again()
            return
        self.since = 0.0
        raise KeyboardInterrupt

    def _cannot_leave(self, frame: FrameType | None) -> bool:
        while frame is not None and frame.f_code is not self.outermost:
            name, file = frame.f_code.co_name, frame.f_code.co_filename
            if file.startswith(IMPORTS) or name in DISPATCH:
                return True
            if OF_TORCH in file and (name in SWITCHES or file.endswith(SYMBOLS)):
                return True
            frame = frame.f_back
        return False


def send_again() -> None:
    """Send the signal to this thread once more, so that a call it waits in is interrupted too."""
    # no `Timer`, whose locks the code that was interrupted may hold
    start_new_thread(_send, (get_ident(),))


def _send(thread: int) -> None:
    time.sleep(AGAIN)
    signal.pthread_kill(thread, signal.SIGINT)


def hear_interrupts(outermost: CodeType) -> None:
    """Hold Ctrl-C where it has to be, in what `outermost` calls; not where it is ignored."""
    atexit.register(_end)  # before others register anything: it comes after that
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _Handler(outermost))
        sys.unraisablehook = _raise_later


def hear_no_more() -> None:
    """Let another Ctrl-C end the process at once: all is written."""
    if isinstance(signal.getsignal(signal.SIGINT), _Handler):
        signal.signal(signal.SIGINT, lambda *_: os._exit(EXIT_INTERRUPTED))


def end_with(code: int) -> None:
    """Let the process end with `code` once all is written; a Ctrl-C until then is still one.

    It ends after what others want done at the end, before Python takes its modules apart: there
    no handler would run any more.
    """
    handler = signal.getsignal(signal.SIGINT)
    if isinstance(handler, _Handler):
        signal.signal(signal.SIGINT, _end_interrupted)
        if handler.since:  # it is still held
            _end_interrupted(signal.SIGINT, None)
    _codes.append(code)


def _end() -> None:
    if not _codes:
        return
    try:
        sys.stdout.flush()
    finally:  # also where it is closed, or there is none
        os._exit(_codes[-1])


def _end_interrupted(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print(INTERRUPTED, file=sys.stderr)
    os._exit(EXIT_INTERRUPTED)


def _raise_later(unraisable: sys.UnraisableHookArgs) -> None:
    """Raise an interrupt again that came within a destructor, where Python only prints it."""
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        send_again()
    else:
        sys.__unraisablehook__(unraisable)
