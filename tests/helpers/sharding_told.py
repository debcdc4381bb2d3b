"""Jobs on a mesh, and all that is said of the kinds of ranks, to be compared."""

from __future__ import annotations

from collections import Counter
from typing import Any

from metacount.sharding.mesh import parse_mesh
from metacount.sharding.result import Job, Kind


def job(mesh: str, zero: int = 3, **changes: Any) -> Job:
    """A step on a mesh, of odd sizes; `serve` instead of training with zero -1."""
    made = parse_mesh(mesh)
    micro = changes.pop("micro_batches", 1)
    given = {"dtype": "fp32", "optimizer": "adamw", "seq_len": 9 * made.cp, **changes}
    return Job(
        mesh=made,
        train=zero >= 0,
        zero=max(zero, 0),
        micro_batches=micro,
        batch_size=made.dp * micro,
        **given,
    )


def as_told(kinds: list[Kind]) -> list[dict[str, Any]]:
    """All that is said of each kind but its peak, which a run knows more often."""
    found = []
    for kind in kinds:
        data = {name: n for name, n in kind.to_dict().items() if not name.startswith("peak_")}
        data["collectives"] = Counter(tuple(sorted(c.items())) for c in data["collectives"])
        data["sent_bytes"] = Counter(data["sent_bytes"])
        found.append(data)
    return found
