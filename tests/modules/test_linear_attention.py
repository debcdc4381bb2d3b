"""Gated DeltaNet, Kimi delta and lightning attention against loops over positions, in pieces."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.module_loops import (
    Row,
    Rows,
    add,
    assert_near,
    convolved,
    dot,
    linear,
    parts,
    randomised,
    rms_norm,
    sigmoid,
    silu,
    times,
)
from helpers.recurrent_cache import in_pieces
from torch import Tensor

from metacount.errors import SpecError
from metacount.modules import gated_delta, kimi_delta, lightning
from metacount.modules.gated_delta import GatedDelta
from metacount.modules.kimi_delta import KimiDelta
from metacount.modules.lightning import Lightning
from metacount.spec.mixers import GatedDelta as GatedDeltaPart
from metacount.spec.mixers import KimiDelta as KimiDeltaPart
from metacount.spec.mixers import Lightning as LightningPart
from metacount.spec.mixers import MLstm as MLstmPart
from metacount.spec.stack import Norms

# d=11; 4 value heads of 7 on 2 key heads of 5; or 3 heads of 5; chunks of 4
DELTA: dict[str, Any] = {
    "conv_kernel": 3,
    "n_k_heads": 2,
    "n_v_heads": 4,
    "k_head_dim": 5,
    "v_head_dim": 7,
    "chunk_size": 4,
}
HEADS: dict[str, Any] = {"n_heads": 3, "head_dim": 5, "chunk_size": 4}
RMS = Norms(kind="rmsnorm", eps=0.2)
LENGTHS = (1, 3, 4, 5, 8, 9)  # shorter than a chunk, equal to, longer

MAKE: dict[str, Callable[[], Any]] = {
    "gated delta": lambda: GatedDelta(GatedDeltaPart(**DELTA), 11, norms=RMS),
    "a key head a value head": lambda: GatedDelta(
        GatedDeltaPart(**{**DELTA, "n_k_heads": 4}), 11, norms=RMS
    ),
    "negative eigenvalues": lambda: GatedDelta(
        GatedDeltaPart(**DELTA, negative=True, norm_eps=0.7), 11, norms=RMS
    ),
    "kimi delta": lambda: KimiDelta(KimiDeltaPart(conv_kernel=3, **HEADS), 11, norms=RMS),
    "lightning": lambda: Lightning(LightningPart(**HEADS), 11, norms=RMS, layer=2, n_layers=5),
    "lightning's last layer": lambda: Lightning(
        LightningPart(**HEADS, norm_eps=0.7), 11, norms=RMS, layer=4, n_layers=5
    ),
}


def make(name: str) -> Any:
    return randomised(MAKE[name]())


def softplus(x: float) -> float:
    return math.log1p(math.exp(x))


def unit(row: Row) -> Row:
    return times(row, 1 / math.sqrt(dot(row, row) + 1e-6))


def delta(state: Rows, q: Row, k: Row, v: Row, decay: Row, beta: float) -> Row:
    """One token: the state decays, is corrected and read; `decay` has a factor for each key."""
    for i, factor in enumerate(decay):
        state[i] = times(state[i], factor)
    read = [dot(k, [row[j] for row in state]) for j in range(len(v))]
    wrong = [beta * (a - b) for a, b in zip(v, read, strict=True)]
    for i, key in enumerate(k):
        state[i] = add(state[i], times(wrong, key))
    return [dot(q, [row[j] for row in state]) for j in range(len(v))]


def empty(keys: int, values: int) -> Rows:
    return [[0.0] * values for _ in range(keys)]


def gated_delta_by_loop(module: Any, rows: Rows) -> Rows:
    three = (module.q_proj, module.k_proj, module.v_proj)
    mixed = [[x for layer in three for x in linear(layer, row)] for row in rows]
    n_k = (len(mixed[0]) - 28) // 10
    states, out = [empty(5, 7) for _ in range(4)], []
    for s, row in enumerate(rows):
        now = [silu(x) for x in convolved(module.conv1d, mixed, s)]
        q, k = parts(now[: 5 * n_k], 5), parts(now[5 * n_k : 10 * n_k], 5)
        v, z = parts(now[10 * n_k :], 7), parts(linear(module.g_proj, row), 7)
        a, b = linear(module.a_proj, row), linear(module.b_proj, row)
        y: Row = []
        for h, state in enumerate(states):
            group = h * n_k // 4
            step = softplus(a[h] + module.dt_bias.tolist()[h])
            decay = math.exp(-math.exp(module.A_log.tolist()[h]) * step)
            beta = sigmoid(b[h]) * (2 if module.negative else 1)
            query = times(unit(q[group]), 5**-0.5)
            of_head = delta(state, query, unit(k[group]), v[h], [decay] * 5, beta)
            eps = 0.7 if module.negative else 0.2
            normed = rms_norm(of_head, eps, module.o_norm.weight.tolist())
            y += [x * silu(gate) for x, gate in zip(normed, z[h], strict=True)]
        out.append(linear(module.o_proj, y))
    return out


def kimi_delta_by_loop(module: Any, rows: Rows) -> Rows:
    three = (module.q_proj, module.k_proj, module.v_proj)
    mixed = [[x for layer in three for x in linear(layer, row)] for row in rows]
    gate, states, out = module.forget_gate, [empty(5, 5) for _ in range(3)], []
    rates = [math.exp(x) for x in gate.A_log.flatten().tolist()]
    for s, row in enumerate(rows):
        now = parts([silu(x) for x in convolved(module.conv1d, mixed, s)], 5)
        steps = parts(
            add(linear(gate.f_b_proj, linear(gate.f_a_proj, row)), gate.dt_bias.tolist()), 5
        )
        z = parts(linear(module.g_b_proj, linear(module.g_a_proj, row)), 5)
        b, y = linear(module.b_proj, row), []
        for h, state in enumerate(states):
            decay = [math.exp(-rates[h] * softplus(x)) for x in steps[h]]
            query = times(unit(now[h]), 5**-0.5)
            of_head = delta(state, query, unit(now[3 + h]), now[6 + h], decay, sigmoid(b[h]))
            normed = rms_norm(of_head, 0.2, module.o_norm.weight.tolist())
            y += [x * sigmoid(g) for x, g in zip(normed, z[h], strict=True)]
        out.append(linear(module.o_proj, y))
    return out


def lightning_by_loop(module: Any, rows: Rows, layer: int) -> Rows:
    states, out = [empty(5, 5) for _ in range(3)], []
    for row in rows:
        heads = parts([silu(x) for x in linear(module.qkv_proj, row)], 15)
        y: Row = []
        for h, state in enumerate(states):
            q, k, v = parts(heads[h], 5)
            rate = 2 ** (-8 * (h + 1) / 3) * (1 - layer / (4 + 1e-5) + 1e-5)
            for i, key in enumerate(k):
                state[i] = add(times(state[i], math.exp(-rate)), times(v, key))
            y += [dot(q, [of[j] for of in state]) for j in range(5)]
        normed = rms_norm(y, 0.7 if layer == 4 else 0.2, module.o_norm.weight.tolist())
        gates = [sigmoid(x) for x in linear(module.output_gate, row)]
        out.append(linear(module.o_proj, [x * g for x, g in zip(normed, gates, strict=True)]))
    return out


def by_loop(name: str, module: Any, rows: Rows) -> Rows:
    if name.startswith("lightning"):
        return lightning_by_loop(module, rows, 2 if name == "lightning" else 4)
    return (kimi_delta_by_loop if name == "kimi delta" else gated_delta_by_loop)(module, rows)


@pytest.mark.parametrize("name", MAKE)
def test_it_is_the_papers_loop(name: str) -> None:
    module = make(name)
    for length in LENGTHS:
        x = torch.randn(2, length, 11, dtype=torch.float64)
        assert_near(module(x), [by_loop(name, module, rows) for rows in x.tolist()])


@pytest.mark.parametrize("name", ["gated delta", "kimi delta", "lightning"])
def test_the_loop_notices_any_tensor(name: str) -> None:
    """One value of one tensor changed between the two."""
    x = torch.randn(1, 6, 11, dtype=torch.float64)
    found = make(name)(x)
    for planted, _ in make(name).named_parameters():
        module = make(name)
        with torch.no_grad():
            module.get_parameter(planted).view(-1)[0] += 0.1
        with pytest.raises(AssertionError):
            assert_near(found, [by_loop(name, module, x[0].tolist())])


@pytest.mark.parametrize("lengths", [(1,) * 9, (3, 1, 5), (4, 4, 1), (8, 1), (2, 7)])
@pytest.mark.parametrize("name", MAKE)
def test_in_pieces_it_is_the_same(name: str, lengths: tuple[int, ...]) -> None:
    """Chunks, steps, and what goes on from a state."""
    module, x = make(name), torch.randn(2, 9, 11, dtype=torch.float64)
    pieces, cache = in_pieces(module, x, *lengths)
    assert_near(pieces, module(x))
    states = {
        "gated delta": {"conv": (2, 48, 3), "recurrent": (2, 4, 5, 7)},
        "a key head a value head": {"conv": (2, 68, 3), "recurrent": (2, 4, 5, 7)},
        "kimi delta": {"conv": (2, 45, 3), "recurrent": (2, 3, 5, 5)},
        "lightning": {"recurrent": (2, 3, 5, 5)},
    }
    states["negative eigenvalues"] = states["gated delta"]
    states["lightning's last layer"] = states["lightning"]
    assert {key: tuple(state.shape) for key, state in cache.states.items()} == states[name]
    assert cache.length == 9


def factors(n: int, *, channels: int) -> tuple[Tensor, ...]:
    """q, k, v, log of the decays, β, and a state."""
    q, k = torch.randn(2, 2, 3, n, 5).double()
    decay = -3 * torch.rand(2, 3, n, channels).double()
    beta, v = 2 * torch.rand(2, 3, n).double(), torch.randn(2, 3, n, 7).double()
    return q, gated_delta.unit(k), v, decay, beta, torch.randn(2, 3, 5, 7).double()


@pytest.mark.parametrize("chunk_size", [1, 2, 3, 5, 64])
@pytest.mark.parametrize("n", [1, 2, 5, 11])
@pytest.mark.parametrize("channels", [1, 5])
def test_both_forms_of_the_delta_rule_are_equal(n: int, chunk_size: int, channels: int) -> None:
    q, k, v, decay, beta, state = factors(n, channels=channels)
    if channels == 1:
        chunks, of_chunks = gated_delta.in_chunks, decay[..., 0]
    else:
        chunks, of_chunks = kimi_delta.in_chunks, decay
    for first in (None, state):
        slowly, last = gated_delta.step_by_step(
            q, k, v, decay, beta, torch.zeros_like(state) if first is None else first
        )
        chunked, chunked_last = chunks(q, k, v, of_chunks, beta, first, chunk_size)
        assert_near(chunked, slowly)
        assert_near(chunked_last, last)
        wrong, _ = chunks(k, q, v, of_chunks, beta, first, chunk_size)
        assert n == 1 or (wrong - slowly).abs().max() > 1e-3


@pytest.mark.parametrize("chunk_size", [1, 2, 3, 5, 64])
@pytest.mark.parametrize("n", [1, 2, 5, 11])
def test_both_forms_of_lightning_are_equal(n: int, chunk_size: int) -> None:
    q, k, v = torch.randn(3, 2, 3, n, 5).double()
    rate = torch.tensor([0.1, 0.7, 2.0]).double()
    slowly, last = lightning.step_by_step(q, k, v, rate, torch.zeros(2, 3, 5, 5).double())
    chunked, chunked_last = lightning.in_chunks(q, k, v, rate, chunk_size)
    assert_near(chunked, slowly)
    assert_near(chunked_last, last)
    wrong, _ = lightning.in_chunks(q, k, v, 1.01 * rate, chunk_size)
    assert n == 1 or (wrong - slowly).abs().max() > 1e-3


@pytest.mark.parametrize("channels", [1, 5])
def test_a_state_that_decays_fast_stays_finite(channels: int) -> None:
    """Where exp(-log α) of one of two positions would be infinite."""
    q, k, v, decay, beta, state = factors(40, channels=channels)
    decay = torch.full_like(decay, -300.0)
    if channels == 1:
        chunked, _ = gated_delta.in_chunks(q, k, v, decay[..., 0], beta, state, 40)
    else:
        chunked, _ = kimi_delta.in_chunks(q, k, v, decay, beta, state, 40)
    assert_near(chunked, gated_delta.step_by_step(q, k, v, decay, beta, state)[0])


def test_a_full_rate_overwrites_what_a_key_had() -> None:
    """The delta rule's purpose: with β = 1 and no decay, the key reads the new value alone."""
    k = torch.tensor([[[[0.6, 0.8]]]], dtype=torch.float64)
    state, v = torch.randn(1, 1, 2, 3).double(), torch.randn(1, 1, 1, 3).double()
    none, one = torch.zeros(1, 1, 1, 1).double(), torch.ones(1, 1, 1).double()
    read, _ = gated_delta.step_by_step(k, k, v, none, one, state)
    assert_near(read, v)


def test_which_tensors_there_are() -> None:
    def shapes(name: str) -> dict[str, tuple[int, ...]]:
        return {key: tuple(p.shape) for key, p in make(name).named_parameters()}

    assert shapes("gated delta") == {
        "q_proj.weight": (10, 11),
        "k_proj.weight": (10, 11),
        "v_proj.weight": (28, 11),
        "a_proj.weight": (4, 11),
        "b_proj.weight": (4, 11),
        "g_proj.weight": (28, 11),
        "conv1d.weight": (48, 1, 3),
        "dt_bias": (4,),
        "A_log": (4,),
        "o_norm.weight": (7,),
        "o_proj.weight": (11, 28),
    }
    assert shapes("kimi delta") == {
        **{f"{name}_proj.weight": (15, 11) for name in "qkv"},
        "conv1d.weight": (45, 1, 3),
        "forget_gate.f_a_proj.weight": (5, 11),
        "forget_gate.f_b_proj.weight": (15, 5),
        "forget_gate.dt_bias": (15,),
        "forget_gate.A_log": (1, 1, 3, 1),
        "b_proj.weight": (3, 11),
        "g_a_proj.weight": (5, 11),
        "g_b_proj.weight": (15, 5),
        "o_norm.weight": (5,),
        "o_proj.weight": (11, 15),
    }
    assert shapes("lightning") == {
        "qkv_proj.weight": (45, 11),
        "o_norm.weight": (15,),
        "output_gate.weight": (15, 11),
        "o_proj.weight": (11, 15),
    }


@pytest.mark.parametrize(
    ("kind", "options", "rule"),
    [
        (
            GatedDeltaPart,
            {**DELTA, "n_k_heads": 3},
            "n_linear_k_heads must divide n_linear_v_heads: 4 % 3 = 1",
        ),
        (
            GatedDeltaPart,
            {**DELTA, "n_k_heads": 5},
            "n_linear_k_heads",
        ),
        (GatedDeltaPart, {**DELTA, "chunk_size": 0}, "linear_chunk_size"),
        (KimiDeltaPart, {**HEADS, "conv_kernel": 0}, "conv_kernel"),
        (LightningPart, {**HEADS, "chunk_size": 0}, "linear_chunk_size"),
        (
            MLstmPart,
            {"n_heads": 3, "k_head_dim": 5, "v_head_dim": 7, "chunk_size": 1},
            "linear_chunk_size must be at least 2 in an mLSTM",
        ),
    ],
)
def test_what_cannot_be_is_one_line(kind: Any, options: dict[str, Any], rule: str) -> None:
    with pytest.raises(SpecError, match=rule):
        kind(**options)
