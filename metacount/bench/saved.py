"""Results on disk, and this run beside an older one. No torch.

The difference between two runs of one command is what a figure can be trusted to.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING

from metacount.bench.rows import OK, Ceiling, Row
from metacount.errors import InputError, shown
from metacount.output_file import not_written

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
    return data if "format" in data else _from_format_1(data)


def _from_format_1(line: Json) -> Json:
    """Bring a line of format 1 up to date: what was compiled then was the joined block."""
    name = line["variant"]
    if line["topic"] == "ffn" and name.startswith("swiglu") and name.endswith("-compiled"):
        name = name.removesuffix("-compiled") + "-joined-compiled"
    return {**line, "format": 1, "variant": name}


# what makes two lines the same point; the device and the versions may differ, and are named
POINT = ("topic", "model", "sizes", "workload", "dtype", "variant", "state", "launch", "direction")
PLACE = ("device", "torch", "driver", "commit", "threads")
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
    return list({_key(line, "device", "torch"): line for line in lines}.values())


def _key(line: Json, *more: str) -> str:
    key = [line.get(name, "forward" if name == "direction" else None) for name in (*POINT, *more)]
    return json.dumps(key, sort_keys=True)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One point in both runs. `apart` says that the intervals of the medians do not touch.

    None where one of them has no interval.
    """

    line: Json
    old_s: float
    new_s: float
    apart: bool | None

    @property
    def change(self) -> float:
        """The new time over the old one, less 1."""
        return self.new_s / self.old_s - 1


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Points in both runs, how many only one has, and where the two were measured differently."""

    pairs: list[Pair]
    only_new: int
    only_old: int
    places: dict[str, tuple[str, str]]

    @property
    def median_change(self) -> float | None:
        """The middle of the changes, without their signs."""
        return median([abs(pair.change) for pair in self.pairs]) if self.pairs else None


def compare(new: Sequence[Json], old: Sequence[Json]) -> Comparison:
    """Compare the lines of two runs, as `--save` writes them; only timed ones are compared."""
    before = {_key(line): line for line in old if line["status"] == OK}
    after = {_key(line): line for line in new if line["status"] == OK}
    pairs = [
        Pair(
            line=line,
            old_s=before[point]["median_s"],
            new_s=line["median_s"],
            apart=_apart(before[point], line),
        )
        for point, line in after.items()
        if point in before
    ]
    places = {}
    for name in PLACE:
        values = [
            sorted({json.dumps(line.get(name)) for line in lines.values()})
            for lines in (before, after)
        ]
        if all(values) and values[0] != values[1]:
            places[name] = (", ".join(values[0]), ", ".join(values[1]))
    return Comparison(
        pairs=pairs,
        only_new=len(after.keys() - before.keys()),
        only_old=len(before.keys() - after.keys()),
        places=places,
    )


def _apart(old: Json, new: Json) -> bool | None:
    ends = [line.get(name) for line in (old, new) for name in ("low_s", "high_s")]
    old_low, old_high, new_low, new_high = ends
    if old_low is None or old_high is None or new_low is None or new_high is None:
        return None
    return bool(old_high < new_low or new_high < old_low)
