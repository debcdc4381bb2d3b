"""Multi-token-prediction modules: by hand, by our modules on meta, by published totals."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.release import daily
from helpers.same_tensors import unmatched
from helpers.small_specs import DENSE, MLA, MOE

from metacount.catalog import entry
from metacount.formulas import model, mtp
from metacount.formulas.tape import Weight
from metacount.measure.ours import measure_params, measure_prediction
from metacount.modules.build import build, build_prediction
from metacount.spec import ModelSpec, Workload
from metacount.textbook.count import count

HYBRID = {"recurrent": "gated_delta", "conv_kernel": 3, "linear_chunk_size": 4}
HYBRID |= {"n_linear_k_heads": 2, "n_linear_v_heads": 4}
HYBRID |= {"linear_k_head_dim": 5, "linear_v_head_dim": 7}
EXPERTS = {"n_experts": 12, "top_k": 2, "d_ff_expert": 7, "n_shared_experts": 2}
INDEX = {"index_top_k": 3, "n_index_heads": 2, "index_head_dim": 8}
BIASES = {"head_bias": True, "q_bias": True, "ffn_bias": True, "norm_bias": True}
ALL_EXPERTS = "every layer of experts, modules dense"
SPECS: dict[str, dict[str, Any]] = {
    "dense": {**DENSE, "n_mtp_layers": 1},
    "three, tied": {**DENSE, **BIASES, "n_mtp_layers": 3, "tie_embeddings": True}
    | {"norm": "layernorm"},
    "experts": {**MOE, "n_mtp_layers": 2, "selection_bias": True, "router": "sigmoid_renorm"},
    "dense beside experts": {**MOE, "n_mtp_layers": 2, "mtp_dense": True},
    "mla, experts": {**MLA, **EXPERTS, "n_dense_layers": 1, "n_mtp_layers": 1},
    "mla, an index": {**MLA, **INDEX, "n_mtp_layers": 1},
    "windows": {**DENSE, "window": 3, "window_pattern": "LG", "n_mtp_layers": 1},
    "a hybrid that ends with a state": {**DENSE, **HYBRID, "mixer_pattern": "RAR"}
    | {"n_mtp_layers": 1, "output_gate": True},
    ALL_EXPERTS: {**DENSE, **EXPERTS, "n_mtp_layers": 1, "mtp_dense": True},
    "without positions": {**DENSE, "position": "none", "n_mtp_layers": 1},
    "norms without weights": {**DENSE, "norm": "layernorm", "norm_affine": False}
    | {"n_mtp_layers": 1},
}
RUN = {"batch_size": 2, "seq_len": 5}


def made(base: dict[str, Any], **changes: Any) -> ModelSpec:
    return ModelSpec.from_dict({**base, **changes})


def counted(quantity: str, spec: ModelSpec) -> dict[str, Any]:
    return mtp.PREDICTION[quantity](spec, {**RUN, "bytes_per_value": 4})


@daily(5)
@pytest.mark.parametrize("name", SPECS)
def test_modules_on_meta_have_the_same(name: str) -> None:
    """By role, by tensor, and each of the ten figures that `count` gives."""
    spec, work = made(SPECS[name]), Workload(batch_size=3, seq_len=7)
    main = build(spec)
    modules = build_prediction(main)
    found, whole = measure_params(modules.layers), measure_params(main)
    assert found.by_role == mtp.params_by_role(spec)
    assert found.active_by_role == counted("mtp_active_params", spec)
    assert unmatched(modules.layers, mtp.module_weights(spec)) == (set(), {})
    own = {id(tensor) for tensor in main.parameters()}
    rest = sum(tensor.numel() for tensor in modules.parameters() if id(tensor) not in own)
    assert rest == found.params
    ran, run = measure_prediction(modules, work), {"batch_size": 3, "seq_len": 7, "kv_len": 7}
    assert ran.decode is not None
    for name, measured in (
        ("mtp_matmul_flops", ran.prefill.by_role),
        ("mtp_causal_matmul_flops", ran.prefill.causal_by_role),
        ("mtp_decode_matmul_flops", ran.decode.by_role),
    ):
        assert mtp.PREDICTION[name](spec, run) == measured
    shared, active = whole.by_role["embedding"] + whole.by_role["head"], found.active_by_role
    forward = sum(ran.prefill.by_role.values())
    assert count(spec, work).prediction == {
        "mtp_params": rest,
        "mtp_params_with_copies": rest + spec.n_mtp_layers * shared,
        "mtp_active_params": sum(active.values()),
        "mtp_active_params_with_shared": sum(active.values()) + shared,
        "mtp_buffers": found.buffers.get("selection_bias", 0),
        "mtp_matmul_flops": forward,
        "mtp_matmul_flops_no_head": forward - ran.prefill.by_role["head"],
        "mtp_causal_matmul_flops": sum(ran.prefill.causal_by_role.values()),
        "mtp_decode_matmul_flops": sum(ran.decode.by_role.values()),
        "mtp_kv_cache_bytes": ran.cache.kv_bytes,
    }


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
