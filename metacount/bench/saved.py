"""Results on disk. No torch."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

from metacount.bench.rows import OK, Ceiling, Row
from metacount.errors import InputError, shown
from metacount.files import not_written

if TYPE_CHECKING:
    from metacount.files import Json

FORMAT = 2  # of a line; lines of format 1 say nothing of it
MAX_FILE_BYTES = 2**28


def lines_of(
    rows: Sequence[Row], ceilings: Mapping[str, Ceiling], environment: Json, date: str
) -> list[Json]:
    """Make a dict of each row: the row, its dtype's roof (if any), the environment, the date."""
    return [
        {
            "date": date,
            **environment,
            "ceiling": asdict(ceilings[row.dtype]) if row.dtype in ceilings else None,
            **row.to_dict(),
        }
        for row in rows
    ]


def default_file(topic: str) -> str:
    """Name the file of `--save` without one: metacount-bench-TOPIC.jsonl in the current folder.

    >>> default_file("ffn")
    'metacount-bench-ffn.jsonl'
    """
    return f"metacount-bench-{topic}.jsonl"


def append(file: str, lines: list[Json]) -> None:
    """Append the lines, all or none; the file keeps its own."""
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    try:
        with open(file, "ab", buffering=0) as out:
            before = out.tell()
            try:
                if out.write(text.encode()) < len(text.encode()):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                with suppress(OSError):  # a device has no end
                    out.truncate(before)
                raise
    except OSError as error:
        raise not_written("--save", file, error) from None


def read(file: str) -> list[Json]:
    """Read every line of a results file; an `InputError` names the first that is no result."""
    try:
        if os.path.getsize(file) > MAX_FILE_BYTES:
            raise InputError(f"{shown(file)} is larger than {MAX_FILE_BYTES // 2**20} MiB")
        with open(file, encoding="utf-8") as lines:
            return [_line(file, number, text) for number, text in enumerate(lines, 1)]
    except OSError as error:
        raise InputError(
            f"{shown(file)} cannot be read: {error.strerror}; give a file that "
            "`metacount bench --save` wrote"
        ) from None
    except UnicodeDecodeError:
        raise InputError(
            f"{shown(file)} is not text; give a file that `metacount bench --save` wrote"
        ) from None


def _line(file: str, number: int, text: str) -> Json:
    problem = f"{shown(file)}, line {number}: not a result of `metacount bench --save`"
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(problem) from None
    if not isinstance(data, dict) or not _is_result(data):
        raise InputError(problem)
    if "format" in data:
        return data
    name = data["variant"]
    if data["topic"] == "ffn" and name.startswith("swiglu") and name.endswith("-compiled"):
        # what was compiled then was the joined block
        name = name.removesuffix("-compiled") + "-joined-compiled"
    return {**data, "format": 1, "variant": name}


# what makes two lines the same point; the device and the versions may differ
POINT = ("topic", "model", "sizes", "workload", "dtype", "variant", "state", "launch", "direction")
TEXTS = ("date", "device", "torch", "status", *(set(POINT) - {"sizes", "workload", "direction"}))
NUMBERS = ("median_s", "p20_s", "p80_s", "intensity", "tflops_per_s")  # of a timed row


def _is_result(data: Json) -> bool:
    """Tell whether a line holds what a picture is drawn from, each of the right type."""

    def number(value: object) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool)

    def positive(value: object) -> bool:
        return isinstance(value, int | float) and value > 0

    roof = data.get("ceiling", "missing")
    return (
        all(isinstance(data.get(name), str) for name in TEXTS)
        and all(isinstance(data.get(name), dict) for name in ("sizes", "workload"))
        and (data["status"] != OK or all(number(data.get(name)) for name in NUMBERS))
        and (data["topic"] != "ffn" or positive(data["workload"].get("tokens")))
        and (
            roof is None
            or (
                isinstance(roof, dict)
                and all(positive(roof.get(name)) for name in ("flops_per_s", "bytes_per_s"))
                and isinstance(shape := roof.get("shape"), list)
                and len(shape) == 3
            )
        )
    )


def latest_run(lines: list[Json]) -> list[Json]:
    """Keep the last line of each point on each device and torch.

    A file grows by one run after another; a picture shows one point for each.
    """
    return list({point_of(line, "device", "torch"): line for line in lines}.values())


def point_of(line: Json, *more: str) -> str:
    """Write what makes a line the point that it is, and `more` of it."""
    key = [line.get(name, "forward" if name == "direction" else None) for name in (*POINT, *more)]
    return json.dumps(key, sort_keys=True)
