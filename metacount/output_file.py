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
    """Return the error of a file that cannot be written,
    with the system's word for it if there is one.
    """
    why = "" if reason is None else f": {reason.strerror}"
    return InputError(f"{option}: {shown(file)} cannot be written{why}; choose another file")


def write_whole(option: str, file: str, data: bytes) -> None:
    """Write all of `data`, or leave the file as it was: a picture cut short is no picture."""
    try:
        replace_file(file, data)
    except OSError as error:
        raise not_written(option, file, error) from None


def replace_file(file: str, data: bytes) -> None:
    """Write all of `data`, or leave the file as it was and raise `OSError`.

    Where the folder takes no second file, or the file is a device, it is written in place.
    """
    import tempfile

    target = os.path.realpath(file)
    if os.path.exists(target) and not os.path.isfile(target):
        _in_place(target, data)
        return
    try:
        number, beside = tempfile.mkstemp(dir=os.path.dirname(target), prefix=".metacount-")
    except OSError:
        _in_place(target, data)
        return
    try:
        with os.fdopen(number, "wb") as stream:
            stream.write(data)
        os.chmod(beside, _mode(target))
        os.replace(beside, target)
    except BaseException:
        os.unlink(beside)
        raise


def _in_place(target: str, data: bytes) -> None:
    with open(target, "wb") as stream:
        stream.write(data)


def _mode(target: str) -> int:
    """Return the permissions that the file has, or that a new one would get."""
    if os.path.exists(target):
        return os.stat(target).st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
