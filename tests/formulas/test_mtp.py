"""Multi-token-prediction modules: by hand, by our modules on meta, by published totals."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.structures import PREDICTING

from metacount.catalog import entry
from metacount.formulas import model, mtp
from metacount.formulas.tape import Weight
from metacount.measure.ours import measure_params
from metacount.modules.build import build, build_prediction
from metacount.spec import ModelSpec, Workload
from metacount.textbook.count import count

RUN = {"batch_size": 2, "seq_len": 5}


def counted(quantity: str, spec: ModelSpec) -> dict[str, Any]:
    return mtp.PREDICTION[quantity](spec, {**RUN, "bytes_per_value": 4})


@pytest.mark.parametrize("name", ["dense", "three, tied", "experts"])
def test_what_modules_share_with_the_model_is_counted_apart(name: str) -> None:
    """The other figures: `tests/verify/test_witnesses.py`."""
    spec, work = ModelSpec.from_dict(PREDICTING[name]), Workload(batch_size=3, seq_len=7)
    main = build(spec)
    modules = build_prediction(main)
    found, shared = measure_params(modules.layers), 101 * 13 * (2 - spec.tie_embeddings)
    shared += 101 * spec.head_bias
    own = {id(tensor) for tensor in main.parameters()}
    rest = sum(tensor.numel() for tensor in modules.parameters() if id(tensor) not in own)
    head = 2 * 3 * 7 * 101 * 13 * spec.n_mtp_layers
    figures = count(spec, work).prediction
    assert figures["mtp_params"] == rest == found.params
    assert figures["mtp_params_with_copies"] == rest + spec.n_mtp_layers * shared
    active = figures["mtp_active_params_with_shared"] - figures["mtp_active_params"]
    assert active == shared
    assert figures["mtp_buffers"] == found.buffers.get("selection_bias", 0)
    assert figures["mtp_matmul_flops"] - figures["mtp_matmul_flops_no_head"] == head


# model -> values of its public checkpoint (with prediction modules), and what of it is scales
PUBLISHED = {"deepseek-v3": (684_531_386_000, 2), "deepseek-v3.2": (None, 2)}
PUBLISHED |= {"glm-4.5": (358_337_791_296, 2), "qwen3-next-80b-a3b": (81_324_862_720, 0)}


def scales(weights: tuple[Weight, ...]) -> int:
    """One scale for each block of 128 x 128 of the matrices that DeepSeek-V3 stores in FP8."""
    n = 0
    for one in weights:
        stored_in_8_bits = one.role in ("attention", "ffn", "moe") and one.rows
        if stored_in_8_bits and not one.name.startswith("mlp.gate."):
            rows, columns = one.shape[-2:]
            n += one.size // (rows * columns) * one.times * -(-rows // 128) * -(-columns // 128)
    return n


@pytest.mark.parametrize("id", [id for id, (total, _) in PUBLISHED.items() if total])
def test_published_checkpoints_are_the_model_its_modules_and_copies(id: str) -> None:
    spec, (total, copies) = entry(id).spec(), PUBLISHED[id]
    stored = entry(id).stored_checkpoint
    assert stored is not None and stored.total == total
    found = model.params(spec) + mtp.params(spec)
    found += sum(model.buffers(spec).values()) + sum(counted("mtp_buffers", spec).values())
    found += mtp.shared_params(spec) if copies else 0
    if id == "deepseek-v3":
        # experts' gate and up are one tensor here, two of the same size there
        found += scales((*model.weights(spec), *mtp.module_weights(spec)))
    assert found == total
