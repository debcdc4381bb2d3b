"""Asks the formulas and our modules about multi-token-prediction modules."""

from __future__ import annotations

from metacount.formulas import mtp
from metacount.spec import DTYPE_BYTES, ModelSpec, Workload
from metacount.tensors import DTYPES
from metacount.witness import PREDICTED

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.modules.model import Model


def formula_parts(spec: ModelSpec, run: Workload) -> dict[str, dict[str, int] | None]:
    """Give the formulas' parts by breakdown; None of each in a model without modules."""
    if spec.prediction is None:
        return {"mtp_by_role": None, "mtp_matmul_flops_by_role": None}
    flops = mtp.matmul_flops_by_role(spec, batch_size=run.batch_size, seq_len=run.seq_len)
    return {"mtp_by_role": mtp.params_by_role(spec), "mtp_matmul_flops_by_role": flops}


def measured_prediction(
    model: Model, run: Workload
) -> tuple[dict[str, int | None], dict[str, dict[str, int] | None]]:
    """Measure the figures and the parts that our modules show beside `model`, by name."""
    if model.spec.prediction is None:
        return dict.fromkeys(PREDICTED), {"mtp_by_role": None, "mtp_matmul_flops_by_role": None}
    from metacount.measure.ours.forward import measure_prediction
    from metacount.measure.ours.params import measure_params
    from metacount.modules.build import build_prediction

    module = build_prediction(model)
    found, ran = measure_params(module.layers), measure_prediction(module, run)
    assert ran.decode and ran.cache  # prediction modules belong to a decoder
    # a cache of bf16 stands for one in a dtype that no module runs in
    bytes_here = DTYPE_BYTES[run.dtype if run.dtype in DTYPES else "bf16"]
    figures: dict[str, int | None] = {
        "mtp_params": found.params,
        "mtp_active_params": found.active_params,
        "mtp_matmul_flops": ran.prefill.matmul_flops,
        "mtp_causal_matmul_flops": ran.prefill.causal_matmul_flops,
        "mtp_decode_matmul_flops": ran.decode.matmul_flops,
        "mtp_kv_cache_bytes": ran.cache.kv_bytes // bytes_here * DTYPE_BYTES[run.dtype],
    }
    parts: dict[str, dict[str, int] | None] = {
        "mtp_by_role": found.by_role,
        "mtp_matmul_flops_by_role": ran.prefill.by_role,
    }
    return figures, parts
