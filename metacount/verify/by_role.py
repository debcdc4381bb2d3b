"""Two models role by role, where at least one of them is measured and has no formula."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metacount.diff.compared import QUANTITIES, Diff, Part, Row, Side
from metacount.figures import COUNTED
from metacount.spec import DTYPE_BYTES
from metacount.textbook.count import count, fitted
from metacount.verify.compare import fitted_outside, outside_witnesses

if TYPE_CHECKING:
    from metacount.resolve import Model, TransformersOnly
    from metacount.spec import Request, Workload

CACHE = "cache"  # the row of what no role of a measured model has


def diff_by_role(
    a: Model | TransformersOnly, b: Model | TransformersOnly, request: Workload | Request
) -> Diff:
    """Compare two models by role, each as `count` gives it."""
    (left, parts_a, said_a), (other, parts_b, said_b) = (_measured(m, request) for m in (a, b))
    rows = []
    for name in parts_a:
        both = parts_a[name], parts_b[name]
        first, second = (part if any(part.values.values()) else None for part in both)
        if first is None and second is None:
            continue
        if first is None or second is None:
            status = "added" if first is None else "removed"
        else:
            status = "same" if first.values == second.values else "resized"
        rows.append(
            Row(name=name, stack="", status=status, a=first, b=second, fields={}, forms=("", ""))
        )
    return Diff(a=left, b=other, rows=tuple(rows), fields={}, notes=(*said_a, *said_b))


def _measured(
    model: Model | TransformersOnly, request: Workload | Request
) -> tuple[Side, dict[str, Part], tuple[str, ...]]:
    """Return a model's figures, its roles, and what is to be said of it."""
    from metacount.resolve import Model, Source

    if isinstance(model, Model):
        run = fitted(model.spec, request)
        data = count(model.spec, run).to_dict()
        from metacount.formulas.model import matmul_flops_by_role

        flops = matmul_flops_by_role(
            model.spec, batch_size=run.batch_size, seq_len=run.seq_len, source_len=run.source_len
        )
        by_role, active = data["by_role"], data["active_by_role"]
        notes: tuple[str, ...] = ()
    else:
        source = Source(config=model.source.config)
        run, _ = fitted_outside(source, request)
        (remarks, *_), _ = outside_witnesses(source, run)
        params = remarks.figures["params"]
        assert params is not None  # what builds has parameters
        matmul_flops = remarks.figures["matmul_flops"]
        data = {
            **remarks.figures,
            "param_bytes": params * DTYPE_BYTES[run.dtype],
            "macs": None if matmul_flops is None else matmul_flops // 2,
        }
        by_role, active = remarks.parts["by_role"] or {}, remarks.parts["active_by_role"] or {}
        flops = remarks.parts["matmul_flops_by_role"] or {}
        notes = (f"{model.id}: by role alone, {model.problem}; measured: {remarks.detail}",)
    parts = {}
    for role in by_role:
        values = dict.fromkeys(QUANTITIES, 0)
        values["params"] = by_role[role]
        values["active_params"] = active.get(role, 0)
        values["matmul_flops"] = flops.get(role, 0)
        parts[role] = _part(role, values)
    sums = {**dict.fromkeys(QUANTITIES, 0), "kv_cache_bytes": data["kv_cache_bytes"] or 0}
    parts[CACHE] = _part(CACHE, sums)
    figures = {name: data.get(name) for name in COUNTED}
    return Side(name=model.id, workload=run, figures=figures), parts, notes


def _part(name: str, values: dict[str, int]) -> Part:
    return Part(
        name=name,
        stack="",
        kind=name,
        described="",
        copies=1,
        one=values["params"],
        values=values,
        fields=(),
    )
