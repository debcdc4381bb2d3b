"""The figures of models as one table: a row for each figure, a column for each model."""

from __future__ import annotations

from metacount.views.tables import Table

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from metacount.files import Json
    from metacount.views.tables import Cell

# Under `count --json`'s names, in its order.
RUN = ("batch_size", "seq_len", "source_len", "dtype")
FIGURES = (
    "params",
    "active_params",
    "active_params_no_embed",
    "text_params",
    "text_active_params",
    "param_bytes",
    "matmul_flops",
    "causal_matmul_flops",
    "macs",
    "decode_matmul_flops",
    "kv_cache_bytes_per_token",
    "kv_cache_bytes",
    "cross_kv_cache_bytes",
    "state_bytes",
    "mtp_params",
    "mtp_params_with_copies",
    "mtp_active_params",
    "mtp_active_params_with_shared",
    "mtp_buffers",
    "mtp_matmul_flops",
    "mtp_matmul_flops_no_head",
    "mtp_causal_matmul_flops",
    "mtp_decode_matmul_flops",
    "mtp_kv_cache_bytes",
)
# What few models have: a row only where one of the models does.
RARE = (
    *(name for name in FIGURES if name.startswith("mtp_")),
    "text_params",
    "text_active_params",
    "cross_kv_cache_bytes",
    "state_bytes",
)


def count_table(data: Sequence[Json]) -> Table:
    """Tabulate what `count --json` says of each model, without words: roles, workload, figures."""
    roles = [role for role in data[0]["by_role"] if any(model["by_role"][role] for model in data)]
    rows: list[tuple[Cell, ...]] = []
    for role in roles:
        rows.append((role, *(model["by_role"][role] for model in data)))
    for active in roles:
        values = [(model["active_by_role"] or {}).get(active) for model in data]
        if values != [model["by_role"][active] for model in data]:
            rows.append((f"active {active}", *values))
    for name in RUN:
        values = [model["workload"].get(name) for model in data]
        if any(value is not None for value in values):
            rows.append((name, *values))
    for name in FIGURES:
        values = [model.get(name) for model in data]
        if name not in RARE or any(values):
            rows.append((name, *values))
    heads = ("figure", *(str(model["model"]) for model in data))
    return Table(heads=heads, rows=tuple(rows), align="<" + ">" * len(data))
