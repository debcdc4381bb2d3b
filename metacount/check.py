"""Witnesses side by side: the only file that sees formulas and modules.

A witness is an independent opinion. Counts are compared with `==`, never with a tolerance.
"""

from __future__ import annotations

from typing import Any

from .catalog import CatalogEntry, compare_published
from .figures import count, fitted
from .frozen import frozen
from .spec import DTYPE_BYTES, ModelSpec, Workload
from .units import exact

# What witnesses are asked. Each is one integer, or None where a witness has no opinion.
QUANTITIES = (
    "params",
    "active_params",
    "active_params_no_embed",
    "matmul_flops",
    "causal_matmul_flops",
    "decode_matmul_flops",
    "kv_cache_bytes_per_token",
    "kv_cache_bytes",
    "cross_kv_cache_bytes",
)

# The same, role by role; and buffers by name. Compared too, so that no two errors cancel.
BREAKDOWNS = ("by_role", "active_by_role", "matmul_flops_by_role", "causal_matmul_flops_by_role",
              "decode_matmul_flops_by_role", "buffers")  # fmt: skip


@frozen
class Witness:
    """One opinion: `figures` by quantity, `parts` by breakdown, and where they come from."""

    name: str
    figures: dict[str, int | None]
    parts: dict[str, dict[str, int] | None]
    detail: str

    def to_dict(self) -> dict[str, Any]:
        """As plain data, every quantity under its own name."""
        return {"name": self.name, **self.figures, **self.parts, "detail": self.detail}


@frozen
class Verification:
    """All witnesses of one model, and where they differ (empty: they agree)."""

    model: str
    workload: Workload
    witnesses: tuple[Witness, ...]
    differences: tuple[str, ...]

    @property
    def agree(self) -> bool:
        """No two witnesses differ, and at least two gave a count of their own."""
        return not self.differences

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "model": self.model,
            "agree": self.agree,
            "workload": self.workload.to_dict(),
            "witnesses": [witness.to_dict() for witness in self.witnesses],
            "differences": list(self.differences),
        }


def formula_witness(spec: ModelSpec, workload: Workload) -> Witness:
    """What the formulas say."""
    from .formulas import model

    counted = count(spec, workload).to_dict()
    run = fitted(spec, workload)
    sizes = {"batch_size": run.batch_size, "source_len": run.source_len}
    forward = {**sizes, "seq_len": run.seq_len}
    decode = None
    if spec.kind != "encoder":
        decode = model.decode_matmul_flops_by_role(spec, **sizes, kv_len=run.seq_len)
    return Witness(
        name="formula",
        figures={name: counted[name] for name in QUANTITIES},
        parts={
            "by_role": counted["by_role"],
            "active_by_role": counted["active_by_role"],
            "matmul_flops_by_role": model.matmul_flops_by_role(spec, **forward),
            "causal_matmul_flops_by_role": model.causal_matmul_flops_by_role(
                spec, **forward, prefix_len=run.prefix_len
            ),
            "decode_matmul_flops_by_role": decode,
            "buffers": model.buffers(spec),
        },
        detail="algebra from the papers",
    )


def reference_witness(spec: ModelSpec, workload: Workload) -> Witness:
    """What our own module shows when it is instantiated and run on meta."""
    import torch

    from .build import DTYPES, build
    from .measure.params import measure_params
    from .measure.workload import measure_forward

    run = fitted(spec, workload)
    # no module runs in fp8 or int8: the cache is then measured in bf16 and its values re-priced
    dtype = run.dtype if run.dtype in DTYPES else "bf16"
    module = build(spec, dtype=dtype)
    found = measure_params(module)
    ran = measure_forward(module, run)

    def priced(n_bytes: int) -> int:
        return n_bytes // DTYPE_BYTES[dtype] * DTYPE_BYTES[run.dtype]

    return Witness(
        name="reference",
        figures={
            "params": found.params,
            "active_params": found.active_params,
            "active_params_no_embed": found.no_embed,
            "matmul_flops": ran.prefill.matmul_flops,
            "causal_matmul_flops": ran.prefill.causal_matmul_flops,
            "decode_matmul_flops": None if ran.decode is None else ran.decode.matmul_flops,
            "kv_cache_bytes_per_token": priced(ran.kv_cache_bytes_per_token),
            "kv_cache_bytes": priced(ran.kv_cache_bytes),
            "cross_kv_cache_bytes": priced(ran.cross_kv_cache_bytes),
        },
        parts={
            "by_role": found.by_role,
            "active_by_role": found.active_by_role,
            "matmul_flops_by_role": ran.prefill.by_role,
            "causal_matmul_flops_by_role": ran.prefill.causal_by_role,
            "decode_matmul_flops_by_role": None if ran.decode is None else ran.decode.by_role,
            "buffers": found.buffers,
        },
        detail=f"our module on meta, torch {torch.__version__}",
    )


def published_witness(entry: CatalogEntry, params: int) -> Witness | None:
    """What was published; None where nothing was. Only exact integers are figures.

    A rounded label is no figure to be equal to: the detail says how `params` compares with it.
    """
    published = entry.published
    if published.params is None and published.label is None:
        return None
    compared = compare_published(entry, params)
    said = f"label {published.label}" if published.params is None else published.params_source or ""
    if published.params is None:
        how = {"rounds": "our count rounds to it"}.get(
            compared.status, f"our count differs by {compared.percent}: {compared.explanation}"
        )
        said = f"{said}; {how}"
    figures: dict[str, int | None] = dict.fromkeys(QUANTITIES)
    figures["params"] = published.params
    figures["active_params"] = published.active_params
    return Witness(name="published", figures=figures, parts=dict.fromkeys(BREAKDOWNS), detail=said)


def differences(witnesses: tuple[Witness, ...]) -> tuple[str, ...]:
    """Every quantity, role and buffer on which two witnesses do not say the same integer."""
    found = []
    first, *others = witnesses
    for other in others:
        pair = f"{first.name} - {other.name}"
        for name in QUANTITIES:
            found += _difference(name, pair, first.figures[name], other.figures[name])
        for name in BREAKDOWNS:
            mine, theirs = first.parts[name], other.parts[name]
            if mine is None or theirs is None:
                continue
            for key in sorted({*mine, *theirs}):
                found += _difference(f"{name}.{key}", pair, mine.get(key, 0), theirs.get(key, 0))
    return tuple(found)


def _difference(name: str, pair: str, mine: int | None, theirs: int | None) -> list[str]:
    if mine is None or theirs is None or mine == theirs:
        return []
    return [f"{name}: {pair} = {exact(mine)} - {exact(theirs)} = {exact(mine - theirs)}"]


def verify(
    name: str, spec: ModelSpec, workload: Workload, *, entry: CatalogEntry | None = None
) -> Verification:
    """Put every witness of `spec` side by side.

    `entry` is the catalog's, when the published count belongs to exactly this spec. Raises
    `SpecError` for a model too large to be instantiated block by block.
    """
    formula = formula_witness(spec, workload)
    witnesses = [formula, reference_witness(spec, workload)]
    if entry is not None:
        params = formula.figures["params"]
        assert params is not None  # the formula has an opinion on everything
        published = published_witness(entry, params)
        witnesses += [published] if published is not None else []
    return Verification(
        model=name,
        workload=fitted(spec, workload),
        witnesses=tuple(witnesses),
        differences=differences(tuple(witnesses)),
    )
