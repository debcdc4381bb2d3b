"""A file that a command writes: what stands against it is one line that names the option."""

from __future__ import annotations

import os

from metacount.errors import InputError, shown


def check_writable(option: str, file: str) -> None:
    """Raise `InputError`, before anything is computed, if `file` could not be written."""
    folder = os.path.dirname(file) or "."
    if not os.path.isdir(folder):
        raise InputError(f"{option}: there is no folder {shown(folder)}; make it first")
    if os.path.isdir(file):
        raise InputError(f"{option}: {shown(file)} is a folder; give a file")
    if not os.access(file if os.path.exists(file) else folder, os.W_OK):
        raise not_written(option, file)


def not_written(option: str, file: str, reason: OSError | None = None) -> InputError:
    """The error of a file that cannot be written, with the system's word for it if there is one."""
    why = "" if reason is None else f": {reason.strerror}"
    return InputError(f"{option}: {shown(file)} cannot be written{why}; choose another file")
