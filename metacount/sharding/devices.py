"""Accelerators and their memory, as their makers state it."""

from __future__ import annotations

from metacount.errors import InputError, nearest, shown
from metacount.frozen import frozen


@frozen
class Device:
    """An accelerator: its memory in bytes (a maker's GB taken as 10^9) and who says so."""

    id: str
    name: str
    bytes: int
    source: str


def devices() -> dict[str, Device]:
    """Read every device that is known, by its id.

    >>> devices()["h200"].bytes
    141000000000
    """
    import json
    import os

    path = os.path.join(os.path.dirname(__file__), "devices.json")
    with open(path, encoding="utf-8") as file:
        return {row["id"]: Device(**row) for row in json.load(file)}


def devices_named(text: str) -> list[Device]:
    """Find the devices of a list such as `h100-80gb,h200`."""
    known, found = devices(), []
    for name in (part.strip().lower() for part in text.split(",")):
        if name not in known:
            close = nearest(name, known, f"choose among {', '.join(known)}")
            raise InputError(f"--gpu '{shown(name)}' is unknown; {close}")
        found.append(known[name])
    return found
