"""Files: somebody else's JSON, bounded and strict; what a command writes, whole or not at all.

Whatever is wrong is one line. Nothing here waits or reads on. `json` does the parsing, by its own
hooks; here stand what they refuse, the checks of the file, and the line of each error.
"""

from __future__ import annotations

import json
import math
import os
import stat

from metacount.errors import MAX_DIGITS, InputError, shown

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, BinaryIO, TypeAlias

    Json: TypeAlias = dict[str, Any]  # a JSON object
else:
    Json = dict

CONFIG = "config.json"
MODULES = "name a module of your own as FILE.py:NAME, as in `metacount tree FILE.py:NAME`"
MAX_FILE_BYTES = 2**24  # 16 MiB; a description of a model is a few KiB


class NotStrict(ValueError):
    """What Python's JSON takes and no model has: the fact, and the remedy for who wrote it."""

    def __init__(self, fact: str, remedy: str) -> None:
        self.fact, self.remedy = fact, remedy
        super().__init__(f"{fact}; {remedy}")


# How transformers 5 writes what JSON has no number for: {"__float__": "Infinity"}.
FLOAT_TAG = "__float__"
NOT_FINITE = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}


def untagged(value: object) -> object:
    """Return the number that an object stands for,
    if it is one of transformers' tags; else the object.

    >>> untagged({"__float__": "-Infinity"}), untagged({"__float__": "7"})
    (-inf, {'__float__': '7'})
    """
    if isinstance(value, dict) and value.keys() == {FLOAT_TAG}:
        tag = value[FLOAT_TAG]
        return NOT_FINITE.get(tag, value) if isinstance(tag, str) else value
    return value


def _once_each(pairs: list[tuple[str, object]]) -> Json:
    data = dict(pairs)
    if len(data) != len(pairs):
        times = dict.fromkeys(data, 0)
        for key, _ in pairs:
            times[key] += 1
        twice = next(key for key in times if times[key] > 1)
        raise NotStrict(f"{shown(twice)} is given twice", "leave one out")
    return data


def _whole_number(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise NotStrict(f"a number of {len(digits)} digits is no size", "write a smaller one")
    return int(digits)


def _no_constant(name: str) -> float:
    raise NotStrict(f"{name} is not a number of JSON", "write a number or null")


def _untagged_once_each(pairs: list[tuple[str, object]]) -> object:
    return untagged(_once_each(pairs))


# made once: making it costs as much as decoding a short text
STRICT_JSON = json.JSONDecoder(
    object_pairs_hook=_once_each, parse_int=_whole_number, parse_constant=_no_constant
)
# A config may hold NaN and Infinity, bare (Python's own spelling) or tagged: transformers reads
# both, and writes them. What may not be such a number is for whoever reads the key to say.
CONFIG_JSON = json.JSONDecoder(
    object_pairs_hook=_untagged_once_each,
    parse_int=_whole_number,
    parse_constant=NOT_FINITE.__getitem__,
)


def read_json(path: str) -> Json:
    """Read the JSON object in a regular file of at most 16 MiB, or raise an `InputError`."""
    return parse_json(_read_bytes(path), shown(path))


def parse_json(content: bytes, where: str) -> Json:
    """Parse the bytes of a file that holds one JSON object; `where` names it in an `InputError`."""
    text = _decode(content, where, "a JSON file")
    try:
        data = CONFIG_JSON.decode(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{where}: is not JSON: line {error.lineno}, column {error.colno}: {error.msg}"
        ) from None
    except RecursionError:
        raise InputError(f"{where}: is nested too deeply; a model is one flat object") from None
    except NotStrict as error:
        raise InputError(f"{where}: {error}") from None
    if not isinstance(data, dict):
        raise InputError(f"{where}: must be a JSON object {{...}}: got {_json_kind(data)}")
    return data


def read_text(path: str, kind: str = "a JSON file") -> str:
    """Read a regular file of at most 16 MiB, or raise an `InputError`; `kind` is what to give."""
    return _decode(_read_bytes(path), shown(path), kind)


def _decode(content: bytes, where: str, kind: str) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where}: is not text in UTF-8: byte {error.start} is "
            f"0x{content[error.start]:02x}; give {kind}"
        ) from None
    if not text.strip():
        raise InputError(
            f"{where}: is empty; give a JSON object"
            if "JSON" in kind
            else f"{where}: is empty; give {kind}"
        )
    if "\0" in text:
        raise InputError(f"{where}: is not text: it has a NUL byte; give {kind}")
    return text


def wrong(where: str, fault: str, remedy: str = "write the file again") -> InputError:
    """Say what is wrong with a file, in one line."""
    return InputError(f"{where}: {fault}; {remedy}")


def check_no_pointer(start: bytes, where: str) -> None:
    """Refuse what Git LFS leaves where a file should be."""
    if start.startswith(b"version "):
        raise wrong(where, "is a Git LFS pointer, not the file", "fetch it with `git lfs pull`")


def open_regular(path: str, kind: str, missing: Callable[[str], str] | None = None) -> BinaryIO:
    """Open a regular file, so that a FIFO or a device can neither wait nor answer."""
    where = shown(path)
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise wrong(where, "is a folder", f"give the {kind} file in it")
        if not stat.S_ISREG(mode):
            raise wrong(where, "is not a regular file", f"give a {kind} file")
        # what was a file a moment ago may be a FIFO now: open without waiting, look again
        flags = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        file = os.fdopen(os.open(path, os.O_RDONLY | flags), "rb")
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.close()
            raise wrong(where, "is not a regular file", f"give a {kind} file")
    except FileNotFoundError:
        if missing is not None:
            raise InputError(missing(path)) from None
        raise wrong(where, "no such file", "check the path, or fetch the file") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        if isinstance(error, InputError):
            raise
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"{where}: cannot be read: {reason}") from None
    return file


def _read_bytes(path: str) -> bytes:
    where, limit = shown(path), f"a model's description has at most {MAX_FILE_BYTES}"
    with open_regular(path, "JSON", _missing) as file:
        if (size := os.path.getsize(path)) > MAX_FILE_BYTES:
            raise InputError(f"{where}: has {size} bytes; {limit}")
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise InputError(f"{where}: has more than {MAX_FILE_BYTES} bytes")
    return content


def _missing(path: str) -> str:
    folder, name = os.path.split(path)
    if name == CONFIG and os.path.isdir(folder):
        where = shown(folder)
        message = f"{where}: this folder holds no {CONFIG}; give a file or another folder"
        below = (os.path.join(folder, name, CONFIG) for name in _names_in(folder))
        if any(map(os.path.isfile, below)):
            message += f"; `metacount count --folder {where}` counts every model below it"
        return message
    return f"{shown(path)}: no such file; give a JSON file, or a name from `metacount models`"


def _names_in(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _json_kind(data: object) -> str:
    kinds = {list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return kinds.get(type(data), "a number")


# ---- a file that a command writes


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
        number, temporary = tempfile.mkstemp(dir=os.path.dirname(target), prefix=".metacount-")
    except OSError:
        _in_place(target, data)
        return
    try:
        with os.fdopen(number, "wb") as stream:
            stream.write(data)
        os.chmod(temporary, _mode(target))
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
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
