"""AltUp, LAuReL, each layer's own embedding, borrowed keys and values: by hand and as measured."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.release import one_day_in
from hypothesis import given, settings
from hypothesis import strategies as st

from metacount.diff.parts import parts
from metacount.errors import SpecError
from metacount.formulas import caches, model, named, stack
from metacount.formulas.around import around_products
from metacount.formulas.backward import backward_matmul_flops_by_role
from metacount.formulas.forward import Pass
from metacount.measure.ours.forward import measure_forward
from metacount.measure.ours.params import measure_params
from metacount.modules.build import build
from metacount.spec import ModelSpec, Workload

SMALL: dict[str, Any] = {
    "kind": "decoder",
    "d_model": 13,
    "n_layers": 7,
    "vocab_size": 101,
    "n_heads": 6,
    "n_kv_heads": 2,
    "head_dim": 10,
    "qk_norm": "head",
    "v_norm": True,
    "d_ff": 17,
    "activation": "gelu_tanh",
    "gated": True,
    "norm": "rmsnorm",
    "norm_placement": "sandwich",
    "position": "rope",
}
COPIES = {"n_altup_inputs": 3, "altup_active": 1}
PER_LAYER = {"d_per_layer": 11, "vocab_size_per_layer": 97}
BORROWING = {"n_kv_shared_layers": 3, "window": 5, "window_pattern": "LLG"}
D, N, TOKENS = 13, 7, 2 * 29


def made(**changes: Any) -> ModelSpec:
    return ModelSpec.from_dict({**SMALL, **changes})


def added(**changes: Any) -> tuple[int, int]:
    """What fields add to the parameters, and to the FLOPs of 2 sequences of 29 tokens."""
    counts = [
        (model.params(spec), model.matmul_flops(spec, batch_size=2, seq_len=29))
        for spec in (made(), made(**changes))
    ]
    return counts[1][0] - counts[0][0], counts[1][1] - counts[0][1]


def test_altup_by_hand() -> None:
    a = 3
    # each layer: router a·d, coefficients a²·a and a·a, a norm; outside two matrices a copy but one
    params = N * (a * D + a**3 + a**2 + D) + 2 * (a - 1) * D * D
    # the router twice a layer, every copy predicted from all: d·a²
    multiply_adds = N * (2 * a * D + a**3 + a**2 + D * a * a) + 2 * (a - 1) * D * D
    assert added(**COPIES) == (params, 2 * TOKENS * multiply_adds)
    assert [one.name for one in around_products(made(**COPIES))] == ["predictions of copies"]


def test_laurel_by_hand() -> None:
    assert added(laurel_rank=5) == (N * (2 * 5 * D + D), 2 * TOKENS * N * 2 * 5 * D)


def test_each_layers_embedding_by_hand() -> None:
    p, rows = 11, 97
    inside = N * 2 * p * D  # gate and projection
    params = rows * N * p + N * p * D + p + inside + N * D  # table, projection, norms
    assert added(**PER_LAYER) == (params, 2 * TOKENS * (N * p * D + inside))
    # beside copies the corrected one is scaled before the gate reads it
    both, copies = added(**PER_LAYER, **COPIES)[0], added(**COPIES)[0]
    assert both == params + copies + N * D


def test_borrowed_keys_and_values_by_hand() -> None:
    # of 3 layers neither k nor v, and no norm of keys; pairs are what they were
    one = 2 * D * 2 * 10
    assert added(n_kv_shared_layers=3) == (-3 * (one + 10), -2 * TOKENS * 3 * one)
    spec = made(**BORROWING)
    # LLGLLGL: of the four that make some three see the window; at most 5 - 1 positions are kept
    assert stack.caching_layers(spec) == (3, 1)
    assert caches.kv_cache_bytes_per_token(spec, bytes_per_value=2) == 4 * 2 * 2 * 10 * 2
    kept = (3 * 4 + 1 * 29) * 2 * 2 * 10
    assert caches.kv_cache_bytes(spec, batch_size=2, seq_len=29, bytes_per_value=2) == 2 * kept * 2


def test_a_second_width_by_hand() -> None:
    wide = {"d_ff_second": 19, "d_ff_pattern": "MWM"}  # layers 1 and 4 of 7
    assert added(**wide) == (2 * 3 * D * 2, 2 * TOKENS * 2 * 3 * D * 2)
    assert added(activation_sparsity=0.9) == (0, 0)


def test_tables_that_tokens_look_up_are_left_out_of_what_a_token_multiplies_with() -> None:
    spec = made(**PER_LAYER)
    looked_up = 101 * D + 97 * N * 11
    assert model.active_params_no_embed(spec) == model.active_params(spec) - looked_up
    tied = spec.replace(tie_embeddings=True)
    assert model.active_params_no_embed(tied) == model.active_params(tied) - 97 * N * 11


NORMS: list[dict[str, Any]] = [
    {"norm": "rmsnorm"},
    {"norm": "rmsnorm", "norm_affine": False},
    {"norm": "layernorm", "norm_bias": True},
    {"norm": "layernorm"},
]


@pytest.mark.parametrize("norms", NORMS)
def test_tensors_are_those_of_the_module_whatever_the_norms(norms: dict[str, Any]) -> None:
    spec = made(**COPIES, **PER_LAYER, **BORROWING, **norms, laurel_rank=5, n_layers=7)
    module = build(spec)
    assert model.params_by_role(spec) == measure_params(module).by_role
    shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
    assert {name: w.shape for name, w in named.tensors_by_path(spec).items()} == shapes


@st.composite
def structures(draw: st.DrawFn) -> ModelSpec:
    n_layers = draw(st.integers(2, 8))
    fields: dict[str, Any] = {"n_layers": n_layers, "tie_embeddings": draw(st.booleans())}
    fields["norm_placement"] = draw(st.sampled_from(["sandwich", "pre"]))
    fields |= draw(st.sampled_from(NORMS))
    fields["qk_norm"] = draw(st.sampled_from(["none", "head", "full", "layernorm"]))
    if draw(st.booleans()):
        n_inputs = draw(st.integers(1, 4))
        fields |= {"n_altup_inputs": n_inputs, "altup_active": draw(st.integers(0, n_inputs - 1))}
    if draw(st.booleans()):
        fields["laurel_rank"] = draw(st.integers(1, 7))
    if draw(st.booleans()):
        fields |= {"d_per_layer": draw(st.integers(1, 7)), "vocab_size_per_layer": 97}
    if draw(st.booleans()):
        fields |= {"window": 5, "window_pattern": draw(st.sampled_from(["LLG", "GL", "L"]))}
    fields["n_kv_shared_layers"] = draw(st.integers(0, n_layers - 1))
    if draw(st.booleans()):
        fields |= {"d_ff_second": 19, "d_ff_pattern": draw(st.sampled_from(["MW", "W", "WMM"]))}
    if draw(st.booleans()):
        fields |= {"activation_sparsity": 0.8, "sparsity_pattern": "TF"}
    try:
        return made(**fields)
    except SpecError as error:  # no layer before them sees as far
        assert error.field == "n_kv_shared_layers"
        return made(**{**fields, "n_kv_shared_layers": 0})


@one_day_in(6)
@settings(max_examples=12)
@given(spec=structures())
def test_any_structure_is_what_the_module_has_and_runs(spec: ModelSpec) -> None:
    module, run = build(spec), Workload(batch_size=2, seq_len=9)
    found, ran = measure_params(module), measure_forward(module, run)
    assert model.params_by_role(spec) == found.by_role
    assert model.active_params_no_embed(spec) == found.no_embed
    size = {"batch_size": 2, "seq_len": 9}
    assert model.matmul_flops_by_role(spec, **size) == ran.prefill.by_role
    assert model.causal_matmul_flops_by_role(spec, **size) == ran.prefill.causal_by_role
    assert ran.decode is not None and ran.cache is not None
    step = model.decode_matmul_flops_by_role(spec, batch_size=2, kv_len=9)
    assert step == ran.decode.by_role
    assert model.kv_cache_bytes(spec, **size, bytes_per_value=2) == ran.cache.kv_bytes
    per_token = model.kv_cache_bytes_per_token(spec, bytes_per_value=2)
    assert per_token == ran.kv_bytes_per_token
    shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
    assert {name: w.shape for name, w in named.tensors_by_path(spec).items()} == shapes
    compared = parts(spec, run)
    for name, whole in (
        ("params", model.params(spec)),
        ("matmul_flops", model.matmul_flops(spec, **size)),
        ("kv_cache_bytes", ran.cache.kv_bytes),
    ):
        assert sum(one.values[name] for one in compared) == whole, name


def test_embeddings_that_go_nowhere_have_no_formula_for_training() -> None:
    spec, run = made(n_altup_inputs=1, **PER_LAYER), Pass(batch_size=1, seq_len=9)
    with pytest.raises(SpecError, match="n_altup_inputs"):
        backward_matmul_flops_by_role(spec, run)
    two = spec.replace(n_altup_inputs=2)
    by_role = backward_matmul_flops_by_role(two, run)
    assert sum(by_role.values()) == 2 * model.matmul_flops(two, batch_size=1, seq_len=9)
