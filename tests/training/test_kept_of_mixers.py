"""What autograd keeps of one mixer alone, at random sizes, against its formula.

The witness is torch's own hook on saved tensors around the module of a mixer; sizes of 1, where
tensors lie as a product wants them and no copy is made, and whole chunks are among them.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection
from typing import Any

import numpy as np
import pytest
import torch
from helpers.miniatures import miniature
from helpers.release import daily, one_day_in
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from metacount.catalog import entry
from metacount.errors import SpecError
from metacount.formulas import folds
from metacount.formulas.mixers import convolution, delta, gates, lightning, run_mixer, state_space
from metacount.formulas.pieces import run_of
from metacount.formulas.step import activation_bytes_by_role
from metacount.formulas.tape import TOKENS, Pass, Tape
from metacount.modules.recurrent import make_recurrent
from metacount.spec import DTYPE_BYTES, ModelSpec, Workload
from metacount.tensors import DTYPES
from metacount.textbook.closed_form import closed_form
from metacount.textbook.training import training_count

SCALES = {"gate": 0.5, "x": 2.0, "b": 0.7, "c": 0.3, "step": 1.5, "out": 3.0}
# of each mixer a model, and sizes that make another case of it
CASES: dict[str, tuple[dict[str, Any], ...]] = {
    "lfm2-1.2b": ({}, {"conv_kernel": 1}, {"short_conv_bias": True}),
    "recurrentgemma-2b": (
        *({"lru_activation": name} for name in ("gelu_tanh", "relu", "gelu")),
        {"lru_activation": "silu", "conv_kernel": 1},
        {"lru_width": 1, "n_lru_blocks": 1, "conv_kernel": 1},
    ),
    "minimax-text-01": ({}, {"n_linear_heads": 1}, {"linear_chunk_size": 3}),
    "xlstm-7b": (
        *({}, {"linear_chunk_size": 2}, {"n_linear_heads": 1, "linear_k_head_dim": 1}),
        {"linear_chunk_size": 3, "linear_v_head_dim": 1},
    ),
    "mamba-2.8b": ({}, {"d_ssm": 1}, {"dt_rank": 1, "ssm_state_dim": 1}),
    "jamba-1.5-mini": ({},),
    "falcon-mamba-7b": ({},),
    "mamba2-130m": (
        *({}, {"n_ssm_groups": 3}, {"ssm_dt_max": 0.5}),
        {"ssm_head_dim": 1, "ssm_chunk_size": 2},
    ),
    "falcon-h1-0.5b": ({}, {"ssm_scales": SCALES}),
    "falcon-h1-7b": ({"ssm_scales": SCALES},),
    "bamba-9b": ({},),
    "qwen3-next-80b-a3b": (
        *({}, {"n_linear_k_heads": 6}, {"n_linear_k_heads": 1, "n_linear_v_heads": 1}),
        {"linear_chunk_size": 2, "linear_v_head_dim": 1},
    ),
    "olmo-hybrid-7b": ({"linear_k_head_dim": 1},),
    "kimi-linear-48b-a3b": (
        *({}, {"linear_chunk_size": 2}, {"linear_head_dim": 1}),
        {"linear_chunk_size": 3, "n_linear_heads": 1},
    ),
}
EVERY = [(name, changes) for name, cases in CASES.items() for changes in cases]
RUNS = ((2, 11, "bf16"), (1, 8, "fp32"), (3, 4, "fp64"), (1, 1, "fp32"), (1, 4, "bf16"))


def spec_of(name: str, **changes: Any) -> ModelSpec:
    return miniature(entry(name).spec()).replace(**changes)


class Held:
    """A tensor that autograd holds until its node is gone."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def make(spec: ModelSpec) -> Any:
    """The module of a mixer."""
    stack = spec.last_stack
    with torch.device("meta"):
        return make_recurrent(stack.recurrent, spec.d_model, stack.norms, n_layers=2)


def measured(
    spec: ModelSpec, run: tuple[int, int, str], trained: Collection[str] | None = None
) -> int:
    """Bytes of distinct storages that a mixer keeps, its parameters and its input apart.

    All is trained and the input has a gradient; or the parameters of some names alone have one.
    """
    alive: weakref.WeakSet[Held] = weakref.WeakSet()

    def pack(tensor: Tensor) -> Held:
        held = Held(tensor.detach())
        alive.add(held)
        return held

    batch_size, seq_len, dtype = run
    module = make(spec).to(DTYPES[dtype])
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(trained is None or name in trained)
    with torch.device("meta"):
        x = torch.zeros(batch_size, seq_len, spec.d_model, dtype=DTYPES[dtype])
        x = x.requires_grad_(trained is None) * 1
        with saved_tensors_hooks(pack, lambda held: held.tensor):
            y = module(x)
    own = {t.untyped_storage()._cdata for t in (*module.parameters(), x)}
    stores = [held.tensor.untyped_storage() for held in alive]
    assert y.requires_grad
    return sum({s._cdata: s.nbytes() for s in stores if s._cdata not in own}.values())


def formula(
    spec: ModelSpec, run: tuple[Any, Any, str], trained: Collection[str] | None = None
) -> Any:
    batch_size, seq_len, dtype = run
    sizes = Pass(batch_size=batch_size, seq_len=seq_len, bytes_per_value=DTYPE_BYTES[dtype])
    tape = Tape(run_of(spec, sizes))
    if trained is not None:  # on the tape a name begins with that of the mixer
        tape.is_trained = lambda name: name.partition(".")[2] in trained  # type: ignore[method-assign]
    x = tape.tensor(spec.d_model, TOKENS, grad=trained is None)
    run_mixer(tape, spec.last_stack.recurrent, x)
    return sum(n_bytes for _, n_bytes in folds.saved_bytes(tape.ops, (x.store,)))


@daily(12)
@pytest.mark.parametrize(("name", "changes"), EVERY)
def test_every_case(name: str, changes: dict[str, Any]) -> None:
    """All of it in each run, and each parameter alone in one of them."""
    spec = spec_of(name, **changes)
    for run in RUNS:
        assert formula(spec, run) == measured(spec, run), run
    for number, (parameter, _) in enumerate(make(spec).named_parameters()):
        run = RUNS[number % len(RUNS)]
        assert formula(spec, run, {parameter}) == measured(spec, run, {parameter}), parameter


@one_day_in(6)
@settings(max_examples=60, suppress_health_check=list(HealthCheck), deadline=None)
@given(
    st.sampled_from(EVERY),
    st.tuples(st.integers(1, 3), st.integers(1, 13), st.sampled_from(["bf16", "fp32", "fp64"])),
    st.none() | st.randoms(use_true_random=False),
)
def test_random_runs(
    case: tuple[str, dict[str, Any]], run: tuple[int, int, str], chance: Any
) -> None:
    """Of all of a mixer, or of some parameters."""
    spec, some = spec_of(case[0], **case[1]), None
    if chance is not None:
        names = [name for name, _ in make(spec).named_parameters()]
        some = chance.sample(names, chance.randint(1, len(names)))
    assert formula(spec, run, some) == measured(spec, run, some)


def test_by_hand() -> None:
    # 2 sequences of 5, d 13, filters of 4: B, C and x; what is convolved, made; what goes out
    short = 2 * (10 * 3 * 13 + 2 * 13 * 5 + 2 * 13 * (5 + 3) + 10 * 13)
    assert formula(spec_of("lfm2-1.2b"), (2, 5, "bf16")) == short
    # 1 sequence of 4 in a chunk of 4, d 13, 3 heads of 7: one chunk, whose state nobody reads.
    # before the activation and behind it; scores and decays; of queries and keys; the zeros
    chunk = 2 * (2 * 4 * 63 + 2 * 3 * 16 + 3 * 4 + 3 * 7 * 7)
    chunk += 4 * (2 * 4 * 21 + 4) + 2 * 3 * 4 * 21  # the norm; gate, normed, product
    assert formula(spec_of("minimax-text-01"), (1, 4, "bf16")) == chunk


@pytest.mark.parametrize(
    ("module", "name", "wrong", "model"),
    [
        (convolution, "longest", lambda n, kernel: kernel, "lfm2-1.2b"),
        (gates, "causal_convolution", lambda t, x, kernel, name, **_: x, "lfm2-1.2b"),
        (gates, "rounds", lambda n: n.bit_length(), "recurrentgemma-2b"),
        (gates, "several", lambda *counts: 0, "recurrentgemma-2b"),
        (state_space, "rounds", lambda n: n.bit_length() + 1, "mamba-2.8b"),
        (state_space, "_doubled", lambda t, decay, added, n: added, "jamba-1.5-mini"),
        (state_space, "several", lambda *counts: 0, "mamba2-130m"),
        (state_space, "FLAG", 4, "mamba2-130m"),
        (lightning, "several", lambda *counts: 0, "minimax-text-01"),
        (delta, "floor_div", lambda one, other: one // other - 1, "qwen3-next-80b-a3b"),
        (delta, "handing_grad", lambda handing, grad: False, "qwen3-next-80b-a3b"),
        (delta, "exact_div", lambda one, other: one, "kimi-linear-48b-a3b"),
        (delta, "smaller", lambda one, other: one, "kimi-linear-48b-a3b"),
    ],
)
def test_a_planted_error_is_caught(
    module: Any, name: str, wrong: Any, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, run = spec_of(model), (2, 8, "bf16")
    found = measured(spec, run)
    assert formula(spec, run) == found
    monkeypatch.setattr(module, name, wrong)
    assert formula(spec, run) != found


def test_sizes_may_be_an_array() -> None:
    lengths = np.array([1, 2, 7, 8, 9], dtype=object)

    def kept(spec: ModelSpec, seq_len: Any) -> Any:
        return sum(activation_bytes_by_role(spec, Pass(batch_size=2, seq_len=seq_len)).values())

    for name in CASES:
        swept = kept(spec_of(name), lengths)
        assert [*swept] == [kept(spec_of(name), int(n)) for n in lengths]
    spec, heads = spec_of("mamba2-130m"), np.array([2, 3, 6], dtype=object)
    swept = formula(spec.substituted(n_ssm_heads=heads), (2, 8, "bf16"))
    each = (spec.replace(n_ssm_heads=int(n)) for n in heads)
    assert [*swept] == [formula(one, (2, 8, "bf16")) for one in each]


def test_what_has_no_formula_is_said() -> None:
    """Of one head torch takes a tensor for an image, whose channels it lays last."""
    spec = spec_of("mamba2-130m", n_ssm_heads=1)
    step = training_count(spec, Workload(batch_size=1, seq_len=8))
    assert step.activation_bytes is None and step.backward_matmul_flops is not None
    assert "n_ssm_heads has no formula for training: got 1" in step.uncovered["activation_bytes"]
    some = spec.substituted(n_ssm_heads=np.array([2, 1], dtype=object))
    with pytest.raises(SpecError, match="n_ssm_heads"):
        activation_bytes_by_role(some, Pass(batch_size=2, seq_len=8))
    with pytest.raises(SpecError, match="seq_len"):
        closed_form(spec_of("mamba-2.8b"), Workload(), "activation_bytes")


def test_a_scan_in_letters() -> None:
    spec, work = spec_of("mamba2-130m"), Workload(batch_size=2, seq_len=8)
    form = closed_form(spec, work, "activation_bytes")
    assert form.total == training_count(spec, work).activation_bytes
