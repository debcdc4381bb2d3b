"""This run beside an older one: how far the same points lie apart. No torch.

The difference between two runs of one command is what a figure can be trusted to.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from metacount.bench.clocks.statistics import median
from metacount.bench.results.rows import OK

if TYPE_CHECKING:
    from metacount.files import Json

# what makes two lines the same point; the device and the versions may differ, and are named
POINT = ("topic", "model", "sizes", "workload", "dtype", "variant", "state", "launch", "direction")
PLACE = ("device", "torch", "driver", "commit", "threads")


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
    before = {_point(line): line for line in old if line["status"] == OK}
    after = {_point(line): line for line in new if line["status"] == OK}
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


def _point(line: Json) -> str:
    key = [line.get(name, "forward" if name == "direction" else None) for name in POINT]
    return json.dumps(key, sort_keys=True)


def _apart(old: Json, new: Json) -> bool | None:
    ends = [line.get(name) for line in (old, new) for name in ("low_s", "high_s")]
    old_low, old_high, new_low, new_high = ends
    if old_low is None or old_high is None or new_low is None or new_high is None:
        return None
    return bool(old_high < new_low or new_high < old_low)
