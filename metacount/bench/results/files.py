"""Results on disk: one JSON line for each row, with where and when it was measured. No torch."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from metacount.bench.results.rows import OK, Ceiling, Row
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
    """Add the lines at the end; what is there stays."""
    try:
        with open(file, "a", encoding="utf-8") as out:
            out.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
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


TEXTS = (
    "date",
    "device",
    "torch",
    "topic",
    "model",
    "dtype",
    "variant",
    "state",
    "launch",
    "status",
)
NUMBERS = ("median_s", "p20_s", "p80_s", "intensity", "tflops_per_s")  # of a timed row


def _is_result(data: Json) -> bool:
    """Tell whether a line holds what a picture is drawn from, each of the right type."""
    roof = data.get("ceiling")
    return (
        all(isinstance(data.get(name), str) for name in TEXTS)
        and all(isinstance(data.get(name), dict) for name in ("sizes", "workload"))
        and (_is_roof(roof) or (roof is None and "ceiling" in data))
        and (data["status"] != OK or all(_is_number(data.get(name)) for name in NUMBERS))
        and (data["topic"] != "ffn" or _is_positive(data["workload"].get("tokens")))
    )


def _is_roof(roof: object) -> bool:
    return (
        isinstance(roof, dict)
        and all(_is_positive(roof.get(name)) for name in ("flops_per_s", "bytes_per_s"))
        and isinstance(shape := roof.get("shape"), list)
        and len(shape) == 3
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and value > 0


def latest_run(lines: list[Json]) -> list[Json]:
    """Keep the last line of each (device, torch, topic, case, variant, state, launch, direction).

    A file grows by one run after another; a picture shows one point for each.
    """
    found: dict[str, Json] = {}
    for line in lines:
        key = [
            line.get(name)
            for name in (
                "device",
                "torch",
                "topic",
                "model",
                "sizes",
                "workload",
                "dtype",
                "variant",
                "state",
                "launch",
                "direction",
            )
        ]
        found[json.dumps(key, sort_keys=True)] = line
    return list(found.values())
