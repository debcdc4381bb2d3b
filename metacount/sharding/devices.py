"""Accelerators and their memory, as the driver reports it, else as their makers state it."""

from __future__ import annotations

from metacount.errors import InputError, nearest, shown
from metacount.frozen import frozen

UNITS = {"mib": 2**20, "gb": 10**9}  # a driver counts MiB; a maker's GB are taken as 10^9 bytes


@frozen
class Device:
    """An accelerator: its memory in bytes and who says so.

    `usable_bytes` are what CUDA gives a process at most (`total_memory` of the device), where it
    was read; the driver keeps the rest. `by_maker`: no driver's figure is known here.
    """

    id: str
    name: str
    bytes: int
    source: str
    usable_bytes: int | None = None
    by_maker: bool = False

    @property
    def room(self) -> int:
        """Bytes that what fits is compared with."""
        return self.bytes if self.usable_bytes is None else self.usable_bytes


def devices() -> dict[str, Device]:
    """Read every device that is known, by its id.

    >>> devices()["h200"].bytes == 143771 * 2**20, devices()["h200"].room
    (True, 150109880320)
    """
    import json
    import os

    path = os.path.join(os.path.dirname(__file__), "devices.json")
    with open(path, encoding="utf-8") as file:
        rows = json.load(file)
    found = {}
    for row in rows:
        ((unit, size),) = [(unit, row.pop(unit)) for unit in UNITS if unit in row]
        found[row["id"]] = Device(**row, bytes=size * UNITS[unit], by_maker=unit == "gb")
    return found


def devices_named(text: str) -> list[tuple[Device, int | None]]:
    """Find the devices of a list such as `h100,A100-80GB,8xh200`, each with its number if given.

    >>> [(device.id, n) for device, n in devices_named("h100,A100 80GB,8xh200")]
    [('h100-80gb', None), ('a100-80gb', None), ('h200', 8)]
    """
    known = devices()
    found: list[tuple[Device, int | None]] = []
    for part in text.split(","):
        number, times, name = part.strip().lower().partition("x")
        if times and number.strip().isascii() and number.strip().isdigit() and len(number) < 10:
            found.append((_device_named(name, known), int(number)))
        else:
            found.append((_device_named(part, known), None))
    return found


def _device_named(text: str, known: dict[str, Device]) -> Device:
    """Find the device of an id, of its beginning (`h100`) or of a maker's name."""
    name = _dashed(text)
    if name in known:
        return known[name]
    found = [
        device
        for device in known.values()
        if any(f"{whole}-".startswith(f"{name}-") for whole in (device.id, _dashed(device.name)))
    ]
    if name and len(found) == 1:
        return found[0]
    if name and found:
        choices = " or ".join(device.id for device in found)
        raise InputError(f"--gpu '{shown(text)}' may be {choices}; say which")
    close = nearest(name, known, f"choose among {', '.join(known)}")
    raise InputError(f"--gpu '{shown(text)}' is unknown; {close}")


def _dashed(text: str) -> str:
    """Write a name as ids are written.

    >>> _dashed("A100 80GB"), _dashed("rtx_4090")
    ('a100-80gb', 'rtx-4090')
    """
    return "-".join(text.lower().replace("_", " ").split())
