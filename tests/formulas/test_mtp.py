"""Multi-token-prediction modules: by hand, by our modules on meta, by published totals."""

from __future__ import annotations

from typing import Any

import pytest
import sympy
from helpers.release import daily
from helpers.same_tensors import unmatched
from helpers.small_specs import DENSE, MLA, MOE

from metacount.catalog import entry
from metacount.errors import SpecError
from metacount.formulas import ends, model, mtp
from metacount.formulas.terms import Weight
from metacount.measure.ours.forward import measure_prediction
from metacount.measure.ours.params import measure_params
from metacount.modules.build import build, build_prediction
from metacount.spec import ModelSpec, Workload
from metacount.spec.mtp import prediction_layers
from metacount.textbook.closed_form import closed_form
from metacount.textbook.count import count

HYBRID = {
    "recurrent": "gated_delta",
    "mixer_pattern": "RRA",
    "conv_kernel": 3,
    "n_linear_k_heads": 2,
    "n_linear_v_heads": 4,
    "linear_k_head_dim": 5,
    "linear_v_head_dim": 7,
    "linear_chunk_size": 4,
}
EXPERTS = {"n_experts": 12, "top_k": 2, "d_ff_expert": 7, "n_shared_experts": 2}
INDEX = {"index_top_k": 3, "n_index_heads": 2, "index_head_dim": 8}
SPECS: dict[str, dict[str, Any]] = {
    "dense": {**DENSE, "n_mtp_layers": 1},
    "three, tied, biases": {**DENSE, "n_mtp_layers": 3, "tie_embeddings": True, "head_bias": True,
                            "q_bias": True, "ffn_bias": True, "norm": "layernorm",
                            "norm_bias": True},
    "experts": {**MOE, "n_mtp_layers": 2, "selection_bias": True, "router": "sigmoid_renorm"},
    "dense beside experts": {**MOE, "n_mtp_layers": 2, "mtp_dense": True},
    "mla, experts": {**MLA, **EXPERTS, "n_dense_layers": 1, "n_mtp_layers": 1},
    "mla, an index": {**MLA, **INDEX, "n_mtp_layers": 1},
    "windows": {**DENSE, "window": 3, "window_pattern": "LG", "n_mtp_layers": 1},
    "a hybrid that ends with a state": {**DENSE, **HYBRID, "mixer_pattern": "RAR",
                                        "n_mtp_layers": 1, "output_gate": True},
    "every layer of experts, modules dense": {
        **DENSE, **EXPERTS, "n_mtp_layers": 1, "mtp_dense": True},
    "without positions": {**DENSE, "position": "none", "n_mtp_layers": 1},
    "norms without weights": {**DENSE, "norm": "layernorm", "norm_affine": False,
                              "n_mtp_layers": 1},
}  # fmt: skip


def test_params_by_hand() -> None:
    spec = ModelSpec.from_dict({**MOE, "n_mtp_layers": 2, "n_shared_experts": 1})
    # d = 13, h = 6, h_kv = 2, h_d = 10, E = 12, m_e = 7
    attention = 13 * 10 * (6 + 2 + 2) + 6 * 10 * 13  # q, k, v, then o
    moe = 12 * 3 * 13 * 7 + 12 * 13 + 3 * 13 * 7  # experts, router, the shared expert
    other = 2 * 13 * 13
    norm = 5 * 13  # enorm, hnorm, two in the layer, one before the head
    assert {name: n for name, n in mtp.params_by_role(spec).items() if n} == {
        "attention": 2 * attention, "moe": 2 * moe, "norm": 2 * norm, "other": 2 * other
    }  # fmt: skip
    both = 2 * 101 * 13
    assert mtp.params(spec) == 2 * (attention + moe + other + norm)
    assert mtp.params_with_copies(spec) == mtp.params(spec) + 2 * both
    assert mtp.active_params(spec) == mtp.params(spec) - 2 * 10 * 3 * 13 * 7  # 2 of 12 experts
    assert mtp.shared_params(spec) == both


def test_a_model_without_modules_has_none() -> None:
    spec = ModelSpec.from_dict(DENSE)
    assert mtp.module_weights(spec) == mtp.module_products(spec) == ()
    assert mtp.params_with_copies(spec) == 0
    assert mtp.buffers(spec) == {"selection_bias": 0}
    assert mtp.buffers(ModelSpec.from_dict({**MOE, "n_mtp_layers": 1})) == {"selection_bias": 0}
    run = {"batch_size": 2, "seq_len": 5, "bytes_per_value": 4}
    assert mtp.kv_cache_bytes_by_part(spec, **run) == {"self-attention": 0}


def test_the_shared_head() -> None:
    spec = ModelSpec.from_dict({**DENSE, "n_mtp_layers": 3})
    *others, head = mtp.module_products(spec)
    assert (head.name, head.role, head.width, head.times) == ("shared head", "head", 101 * 13, 3)
    assert all(one.role == "attention" for one in others)
    # tables of width 5, a head that transforms 13 to 5; what projects 5 to 13 is no part of it
    narrow = {**DENSE, "kind": "encoder", "d_embedding": 5, "head_transform": True}
    assert mtp.head_params(ModelSpec.from_dict(narrow)) == 101 * 5 + 13 * 5


def test_what_a_module_multiplies_of_a_prompt_is_not_what_it_does_of_one_token() -> None:
    spec = ModelSpec.from_dict({**MLA, "n_mtp_layers": 1})
    prompt, token = (mtp.module_products(spec, decode=decode) for decode in (False, True))
    assert mtp.module_products(spec) == prompt != token


def test_the_ten_figures_by_name() -> None:
    spec = ModelSpec.from_dict({**MOE, "n_mtp_layers": 2, "selection_bias": True})
    run = {"batch_size": 2, "seq_len": 5}
    flops = mtp.matmul_flops_by_role(spec, **run)
    assert mtp.predicted(spec, **run, bytes_per_value=4) == {
        "mtp_params": mtp.params(spec),
        "mtp_params_with_copies": mtp.params(spec) + 2 * 2 * 101 * 13,
        "mtp_active_params": mtp.active_params(spec),
        "mtp_active_params_with_shared": mtp.active_params(spec) + 2 * 101 * 13,
        "mtp_buffers": 2 * 12,
        "mtp_matmul_flops": sum(flops.values()),
        "mtp_matmul_flops_no_head": sum(flops.values()) - 2 * 2 * 10 * 101 * 13,
        "mtp_causal_matmul_flops": sum(mtp.causal_matmul_flops_by_role(spec, **run).values()),
        "mtp_decode_matmul_flops": sum(
            mtp.decode_matmul_flops_by_role(spec, batch_size=2, kv_len=5).values()
        ),
        "mtp_kv_cache_bytes": 2 * 2 * 5 * 2 * 2 * 10 * 4,
    }


def test_flops_by_hand() -> None:
    spec = ModelSpec.from_dict({**DENSE, "n_mtp_layers": 1})
    found = mtp.matmul_flops_by_role(spec, batch_size=2, seq_len=5)
    # per token 2 FLOPs a weight; 2 sequences of 5 x 5 pairs, 2 products, 6 heads of width 10
    assert found["attention"] == 2 * 10 * (13 * 10 * 10 + 6 * 10 * 13) + 2 * 2 * 25 * 2 * 6 * 10
    assert found["ffn"] == 2 * 10 * 3 * 13 * 17
    assert found["other"] == 2 * 10 * 2 * 13 * 13
    assert found["head"] == 2 * 10 * 101 * 13
    assert mtp.kv_cache_bytes_by_part(spec, batch_size=2, seq_len=5, bytes_per_value=4) == {
        "self-attention": 2 * 5 * 2 * 2 * 10 * 4
    }


@daily(5)
@pytest.mark.parametrize("name", SPECS)
def test_modules_on_meta_have_the_same(name: str) -> None:
    spec = ModelSpec.from_dict(SPECS[name])
    main = build(spec)
    modules = build_prediction(main)
    found, figures = measure_params(modules.layers), count(spec, Workload(batch_size=3, seq_len=7))
    assert found.by_role == mtp.params_by_role(spec)
    assert found.active_by_role == mtp.active_params_by_role(spec)
    assert found.buffers.get("selection_bias", 0) == figures.prediction["mtp_buffers"]
    assert unmatched(modules.layers, mtp.module_weights(spec)) == (set(), {})
    own = {id(tensor) for tensor in main.parameters()}
    rest = sum(tensor.numel() for tensor in modules.parameters() if id(tensor) not in own)
    assert rest == found.params == figures.prediction["mtp_params"]
    ran = measure_prediction(modules, Workload(batch_size=3, seq_len=7))
    run = {"batch_size": 3, "seq_len": 7}
    assert ran.prefill.by_role == mtp.matmul_flops_by_role(spec, **run)
    assert ran.prefill.causal_by_role == mtp.causal_matmul_flops_by_role(spec, **run)
    assert ran.decode is not None
    assert ran.decode.by_role == mtp.decode_matmul_flops_by_role(spec, batch_size=3, kv_len=7)
    assert ran.cache.kv_bytes == figures.prediction["mtp_kv_cache_bytes"]


@pytest.mark.parametrize("name", SPECS)
def test_no_figure_of_the_model_has_any_of_it(name: str) -> None:
    spec = ModelSpec.from_dict(SPECS[name])
    kept = {k: v for k, v in SPECS[name].items() if k not in ("n_mtp_layers", "mtp_dense")}
    if name == "every layer of experts, modules dense":
        del kept["d_ff"]
    run = Workload(batch_size=3, seq_len=7)
    with_modules, without = count(spec, run).to_dict(), count(ModelSpec.from_dict(kept), run)
    assert {k: v for k, v in with_modules.items() if not k.startswith("mtp_")} == without.to_dict()
    assert without.prediction == {} and mtp.params(ModelSpec.from_dict(kept)) == 0


def test_twice_the_modules_are_twice_the_count() -> None:
    one, two = (
        ModelSpec.from_dict({**MOE, "n_mtp_layers": n, "selection_bias": True}) for n in (1, 2)
    )
    run = {"batch_size": 2, "seq_len": 9, "bytes_per_value": 2}
    single, double = mtp.predicted(one, **run), mtp.predicted(two, **run)
    shared = mtp.shared_params(one)
    assert double.pop("mtp_active_params_with_shared") - shared == 2 * (
        single.pop("mtp_active_params_with_shared") - shared
    )
    assert double == {name: 2 * n for name, n in single.items()}


@pytest.mark.parametrize("quantity", ["mtp_params", "mtp_matmul_flops", "mtp_kv_cache_bytes"])
def test_letters_come_to_the_numbers(quantity: str) -> None:
    form = closed_form(entry("deepseek-v3").spec(), Workload(seq_len=100), quantity)
    assert (
        form.total == count(entry("deepseek-v3").spec(), Workload(seq_len=100)).prediction[quantity]
    )
    letter = sympy.Symbol("N_p", integer=True, positive=True)
    assert all(sympy.diff(sympy.log(part), letter) == 1 / letter for part in form.parts.values())


def test_a_module_has_the_kind_of_layer_that_its_model_ends_with() -> None:
    models = [e for e in map(entry, PUBLISHED) if e.spec().prediction is not None]
    assert len(models) == len(PUBLISHED)
    for each in models:
        last = each.spec().last_stack
        own = prediction_layers(each.spec()).last_stack
        ends_with = last.mixer_of(last.n_layers - 1), last.ffn_of(last.n_layers - 1)
        assert (own.mixer_of(0), own.ffn_of(0)) == ends_with == ("A", "E"), each.id


# model -> values of its public checkpoint (with prediction modules), and what of it is scales
PUBLISHED = {
    "deepseek-v3": (684_531_386_000, 2),
    "deepseek-v3.2": (None, 2),
    "glm-4.5": (358_337_791_296, 2),
    "qwen3-next-80b-a3b": (81_324_862_720, 0),
}


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
    found += sum(model.buffers(spec).values()) + sum(mtp.buffers(spec).values())
    found += mtp.shared_params(spec) if copies else 0
    if id == "deepseek-v3":
        # experts' gate and up are one tensor here, two of the same size there
        found += scales((*model.weights(spec), *mtp.module_weights(spec)))
    assert found == total


def test_the_modules_of_deepseek_v3_as_its_readme_prints_them() -> None:
    """README_WEIGHTS: 11.5B of its own, 2.4B activated with embedding and head."""
    spec = entry("deepseek-v3").spec()
    projection = 2 * 7168 * 7168
    # 11.6B and 2.5B; the printed numbers are those without eh_proj
    assert round(mtp.params(spec) / 1e8) == 116
    assert round((mtp.params(spec) - projection) / 1e8) == 115
    active = mtp.active_params(spec) + mtp.shared_params(spec)
    assert round(active / 1e8) == 25 and round((active - projection) / 1e8) == 24


def test_the_shared_head_is_the_model_s() -> None:
    for change in ({}, {"tie_embeddings": True}, {"head_bias": True}):
        spec = ModelSpec.from_dict({**DENSE, "n_mtp_layers": 1, **change})
        assert mtp.head_params(spec) == 101 * 13
        assert mtp.shared_params(spec) == sum(
            ends.end_params(spec)[role] for role in ("embedding", "head")
        )


@pytest.mark.parametrize("id", ["mamba-2.8b", "zamba2-7b", "bert-base", "gemma2-2b"])
def test_a_model_that_modules_do_not_go_with_is_refused_in_words_of_python(id: str) -> None:
    with pytest.raises(SpecError, match="n_mtp_layers"):
        entry(id).spec().replace(n_mtp_layers=1)
