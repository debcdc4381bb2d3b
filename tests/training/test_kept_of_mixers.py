"""What autograd keeps of one mixer alone, at random sizes, against its formula.

The witness is torch's own hook on saved tensors around the module of a mixer; sizes of 1, where
tensors lie as a product wants them and no copy is made, and whole chunks are among them.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest
import torch
from helpers import one_line
from helpers.miniatures import miniature
from helpers.release import daily, one_day_in
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from metacount.catalog import entry
from metacount.errors import SpecError
from metacount.formulas import kept_delta, kept_gates, kept_mixing, kept_scans
from metacount.formulas.forward import Pass
from metacount.formulas.kept import bytes_of
from metacount.formulas.kept_recurrent import KEPT, recurrent_terms
from metacount.formulas.training import activation_bytes
from metacount.modules.recurrent import make_recurrent
from metacount.spec import DTYPE_BYTES, ModelSpec, Workload
from metacount.spec.short_conv import ShortConv
from metacount.tensors import DTYPES
from metacount.textbook.closed_form import closed_form
from metacount.textbook.training import block_bytes, training_count

SCALES = {"gate": 0.5, "x": 2.0, "b": 0.7, "c": 0.3, "step": 1.5, "out": 3.0}
# of each mixer a model, and sizes that make another case of it
CASES: dict[str, tuple[dict[str, Any], ...]] = {
    "lfm2-1.2b": ({}, {"conv_kernel": 1}, {"short_conv_bias": True}),
    "recurrentgemma-2b": (
        {},
        {"lru_activation": "relu"},
        {"lru_activation": "gelu"},
        {"lru_activation": "silu", "conv_kernel": 1},
        {"lru_width": 1, "n_lru_blocks": 1, "conv_kernel": 1},
    ),
    "minimax-text-01": ({}, {"n_linear_heads": 1}, {"linear_chunk_size": 3}),
    "mamba-2.8b": ({}, {"d_ssm": 1}, {"dt_rank": 1, "ssm_state_dim": 1}),
    "jamba-1.5-mini": ({},),
    "falcon-mamba-7b": ({},),
    "mamba2-130m": (
        {},
        {"n_ssm_groups": 3},
        {"ssm_head_dim": 1, "ssm_chunk_size": 2},
        {"ssm_dt_max": 0.5},
    ),
    "falcon-h1-0.5b": ({}, {"ssm_scales": SCALES}),
    "falcon-h1-7b": ({"ssm_scales": SCALES},),
    "bamba-9b": ({},),
    "qwen3-next-80b-a3b": (
        {},
        {"n_linear_k_heads": 6},
        {"n_linear_k_heads": 1, "n_linear_v_heads": 1},
        {"linear_chunk_size": 2, "linear_v_head_dim": 1},
    ),
    "olmo-hybrid-7b": ({"linear_k_head_dim": 1},),
    "kimi-linear-48b-a3b": (
        {},
        {"linear_chunk_size": 2},
        {"linear_chunk_size": 3, "n_linear_heads": 1},
        {"linear_head_dim": 1},
    ),
}
EVERY = [(name, changes) for name, cases in CASES.items() for changes in cases]


def spec_of(name: str, changes: dict[str, Any]) -> ModelSpec:
    return miniature(entry(name).spec()).replace(**changes)


class Held:
    """A tensor that autograd holds until its node is gone."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def measured(spec: ModelSpec, batch_size: int, seq_len: int, dtype: str) -> int:
    """Bytes of distinct storages that a mixer keeps, its parameters and its input apart."""
    alive: weakref.WeakSet[Held] = weakref.WeakSet()

    def pack(tensor: Tensor) -> Held:
        held = Held(tensor.detach())
        alive.add(held)
        return held

    stack, kind = spec.last_stack, DTYPES[dtype]
    with torch.device("meta"):
        module = make_recurrent(stack.recurrent, spec.d_model, stack.norms, n_layers=2).to(kind)
        x = torch.zeros(batch_size, seq_len, spec.d_model, dtype=kind, requires_grad=True) * 1
        with saved_tensors_hooks(pack, lambda held: held.tensor):
            y = module(x)
    own = {t.untyped_storage()._cdata for t in (*module.parameters(), x)}
    stores = [held.tensor.untyped_storage() for held in alive]
    assert y.requires_grad
    return sum({s._cdata: s.nbytes() for s in stores if s._cdata not in own}.values())


def formula(spec: ModelSpec, batch_size: int, seq_len: int, dtype: str) -> int:
    run = Pass(batch_size=batch_size, seq_len=seq_len, bytes_per_value=DTYPE_BYTES[dtype])
    return int(bytes_of(recurrent_terms(spec, run, seq_len)))


@daily(12)
@pytest.mark.parametrize(("name", "changes"), EVERY)
def test_every_case(name: str, changes: dict[str, Any]) -> None:
    spec = spec_of(name, changes)
    for run in ((2, 11, "bf16"), (1, 8, "fp32"), (3, 4, "fp64"), (1, 1, "fp32"), (1, 4, "bf16")):
        assert formula(spec, *run) == measured(spec, *run), run


@one_day_in(6)
@settings(max_examples=40, suppress_health_check=list(HealthCheck), deadline=None)
@given(
    st.sampled_from(EVERY),
    st.integers(1, 3),
    st.integers(1, 13),
    st.sampled_from(["bf16", "fp32", "fp64"]),
)
def test_random_runs(
    case: tuple[str, dict[str, Any]], batch_size: int, seq_len: int, dtype: str
) -> None:
    spec = spec_of(*case)
    assert formula(spec, batch_size, seq_len, dtype) == measured(spec, batch_size, seq_len, dtype)


def test_by_hand() -> None:
    # 2 sequences of 5, d 13, filters of 4: B, C and x; what is convolved, made; what goes out
    short = 2 * (10 * 3 * 13 + 2 * 13 * 5 + 2 * 13 * (5 + 3) + 10 * 13)
    assert formula(spec_of("lfm2-1.2b", {}), 2, 5, "bf16") == short
    # 1 sequence of 4 in a chunk of 4, d 13, 3 heads of 7: one chunk, whose state nobody reads.
    # before the activation and behind it; scores and decays; of queries and keys; the zeros
    lightning = 2 * (2 * 4 * 63 + 2 * 3 * 16 + 3 * 4 + 3 * 7 * 7)
    lightning += 4 * (2 * 4 * 21 + 4) + 2 * 3 * 4 * 21  # the norm; gate, normed, product
    assert formula(spec_of("minimax-text-01", {}), 1, 4, "bf16") == lightning


@pytest.mark.parametrize(
    ("module", "name", "wrong", "model"),
    [
        (kept_gates, "convolution_kept", lambda run, channels, kernel: [], "lfm2-1.2b"),
        (kept_gates, "rounds", lambda n: n.bit_length(), "recurrentgemma-2b"),
        (kept_gates, "several", lambda *counts: 0, "recurrentgemma-2b"),
        (kept_scans, "rounds", lambda n: n.bit_length() + 1, "mamba-2.8b"),
        (kept_scans, "_read", lambda *given: [], "jamba-1.5-mini"),
        (kept_scans, "several", lambda *counts: 0, "mamba2-130m"),
        (kept_scans, "FLAG", 4, "mamba2-130m"),
        (kept_scans, "several", lambda *counts: 0, "minimax-text-01"),
        (kept_delta, "floor_div", lambda one, other: one // other - 1, "qwen3-next-80b-a3b"),
        (kept_delta, "handed_on", lambda *given: [], "qwen3-next-80b-a3b"),
        (kept_delta, "exact_div", lambda one, other: one, "kimi-linear-48b-a3b"),
        (kept_mixing, "smaller", lambda one, other: one, "kimi-linear-48b-a3b"),
    ],
)
def test_a_planted_error_is_caught(
    module: Any, name: str, wrong: Any, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, run = spec_of(model, {}), (2, 8, "bf16")
    found = measured(spec, *run)
    assert formula(spec, *run) == found
    monkeypatch.setattr(module, name, wrong)
    assert formula(spec, *run) != found


def test_blocks_and_ends_are_the_whole() -> None:
    """What `training_count` says of one block of each kind, as often as it stands there."""
    spec = miniature(entry("jamba-1.5-mini").spec())
    spec = spec.replace(n_layers=4, mixer_pattern="RA", ffn_pattern="FE")
    more = spec.replace(n_layers=6)
    blocks = block_bytes(spec, Pass(batch_size=2, seq_len=5))
    assert [*blocks] == ["recurrent, dense", "attention, experts"]
    run = Pass(batch_size=2, seq_len=5)
    assert activation_bytes(more, run) - activation_bytes(spec, run) == sum(blocks.values())


def test_lengths_may_be_an_array() -> None:
    lengths = np.array([1, 2, 7, 8, 9], dtype=object)
    for name in CASES:
        spec = spec_of(name, {})
        swept = activation_bytes(spec, Pass(batch_size=2, seq_len=lengths))
        for n, kept in zip(lengths, swept, strict=True):
            assert activation_bytes(spec, Pass(batch_size=2, seq_len=int(n))) == kept


def test_what_has_no_formula_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_of("mamba2-130m", {"n_ssm_heads": 1})
    with pytest.raises(SpecError, match="n_ssm_heads"):
        activation_bytes(spec, Pass(batch_size=1, seq_len=8))
    step = training_count(spec, Workload(batch_size=1, seq_len=8))
    assert step.activation_bytes is None and step.backward_matmul_flops is not None
    assert "n_ssm_heads has no formula" in step.uncovered["activation_bytes"]
    some = spec.substituted(n_ssm_heads=np.array([2, 1], dtype=object))
    with pytest.raises(SpecError, match="n_ssm_heads"):
        recurrent_terms(some, Pass(batch_size=2, seq_len=8), 8)
    heads = np.array([2, 3, 6], dtype=object)
    run = Pass(batch_size=2, seq_len=8)
    swept = bytes_of(recurrent_terms(spec.substituted(n_ssm_heads=heads), run, 8))
    each = [spec.replace(n_ssm_heads=int(n)) for n in heads]
    assert [*swept] == [bytes_of(recurrent_terms(one, run, 8)) for one in each]
    monkeypatch.delitem(KEPT, ShortConv)
    with pytest.raises(SpecError) as refused:
        formula(spec_of("lfm2-1.2b", {}), 2, 5, "bf16")
    assert "recurrent" in one_line(refused.value)
    with pytest.raises(SpecError, match="seq_len"):
        closed_form(spec_of("mamba-2.8b", {}), Workload(), "activation_bytes")


def test_a_scan_in_letters() -> None:
    spec, work = spec_of("mamba2-130m", {}), Workload(batch_size=2, seq_len=8)
    form = closed_form(spec, work, "activation_bytes")
    assert form.total == training_count(spec, work).activation_bytes
