"""The figures of models as one table: a row for each figure, a column for each model."""

from __future__ import annotations

from metacount.figures import COUNTED, is_shown
from metacount.views.tables import Table

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from metacount.files import Json
    from metacount.views.tables import Cell

RUN = ("batch_size", "seq_len", "source_len", "prefix_len", "dtype")
# What `count --json` has by role or by name, and what stands before these in a table.
BY_NAME = {"by_role": "", "active_by_role": "active ", "buffers": "buffer ",
           "checkpoint_parts": "checkpoint "}  # fmt: skip


def count_table(data: Sequence[Json]) -> Table:
    """Tabulate what `count --json` says of each model, without words: roles, workload, figures."""
    rows: list[tuple[Cell, ...]] = []
    for group, before in BY_NAME.items():
        parts = [model.get(group) or {} for model in data]
        for name in dict.fromkeys(name for part in parts for name in part):
            values = [part.get(name) for part in parts]
            # nothing is said twice: who uses all parameters has the roles alone
            known = [model["by_role"].get(name) for model in data]
            if any(values) and (group != "active_by_role" or values != known):
                rows.append((before + name, *values))
    for name in RUN:
        values = [model["workload"].get(name) for model in data]
        if any(value is not None for value in values) and (any(values) or name != "prefix_len"):
            rows.append((name, *values))
    for name in COUNTED:
        values = [model.get(name) for model in data]
        if is_shown(name, values):
            rows.append((name, *values))
    heads = ("figure", *(str(model["model"]) for model in data))
    return Table(heads=heads, rows=tuple(rows), align="<" + ">" * len(data))
