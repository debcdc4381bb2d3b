"""Mamba-2 against a loop over positions, in pieces; both forms of its scan."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers.module_loops import (
    Row,
    Rows,
    assert_near,
    convolved,
    dot,
    linear,
    parts,
    randomised,
    rms_norm,
    silu,
    times,
)
from helpers.recurrent_cache import in_pieces
from helpers.release import daily

from metacount.modules.mamba2 import Mamba2, in_chunks, step_by_step
from metacount.spec.mixers import Mamba2 as Part
from metacount.spec.stack import Norms

# d=11; 6 heads of 5 = 30 channels, 2 groups with a state of 7, chunks of 4
SIZES: dict[str, Any] = {
    "conv_kernel": 3,
    "state_dim": 7,
    "n_heads": 6,
    "head_dim": 5,
    "n_groups": 2,
    "chunk_size": 4,
}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "biases": {"in_bias": True, "out_bias": True},
    "without the convolution's bias": {"conv_bias": False},
    "norm before the gate": {"norm": "before_gate", "norm_eps": 0.3},
    "gate alone": {"norm": "none"},
    "steps with limits": {"dt_min": 0.4, "dt_max": 0.9},
    "one group": {"n_groups": 1},
    "a group a head": {"n_groups": 6},
    "one head": {"n_heads": 1, "n_groups": 1},
    "chunks of two": {"chunk_size": 2},
}
RMS = Norms(kind="rmsnorm", eps=0.2)
LENGTHS = (1, 3, 4, 5, 8, 9)  # shorter than a chunk, equal to, longer


def make(name: str) -> Mamba2:
    module = Mamba2(Part(**{**SIZES, **CASES[name]}), 11, norms=RMS)
    return randomised(module)  # type: ignore[no-any-return]


def by_loop(module: Any, rows: Rows, part: Part) -> Rows:
    """One token and head after the other."""
    heads, width, n = part.n_heads, part.head_dim, part.state_dim
    inner, shared = heads * width, part.n_groups * n
    projected = [linear(module.in_proj, row) for row in rows]
    mixed = [row[inner : 2 * inner + 2 * shared] for row in projected]
    a = [-math.exp(x) for x in module.A_log.tolist()]
    bias, skip = module.dt_bias.tolist(), module.D.tolist()
    state = [[[0.0] * n for _ in range(width)] for _ in range(heads)]
    out = []
    for s, row in enumerate(projected):
        now = [silu(v) for v in convolved(module.conv1d, mixed, s)]
        x = parts(now[:inner], width)
        b, c = parts(now[inner : inner + shared], n), parts(now[inner + shared :], n)
        y: Row = []
        for h in range(heads):
            group = h * part.n_groups // heads
            step = math.log1p(math.exp(row[-heads:][h] + bias[h]))
            step = min(max(step, part.dt_min or 0.0), part.dt_max or math.inf)
            for p in range(width):
                kept = times(state[h][p], math.exp(step * a[h]))
                state[h][p] = [old + step * x[h][p] * b[group][i] for i, old in enumerate(kept)]
                y.append(dot(state[h][p], c[group]) + skip[h] * x[h][p])
        out.append(linear(module.out_proj, gated(module, y, row[:inner], part)))
    return out


def gated(module: Any, y: Row, z: Row, part: Part) -> Row:
    """Gate and norm of each group, in one order or the other; or the gate alone."""
    gates = [silu(v) for v in z]
    if part.norm == "none":
        return [v * g for v, g in zip(y, gates, strict=True)]
    if part.norm == "gated":
        y = [v * g for v, g in zip(y, gates, strict=True)]
    eps, normed, size = part.norm_eps or 0.2, [], len(y) // part.n_groups
    weights = parts(module.norm.weight.tolist(), size)
    for group, weight in zip(parts(y, size), weights, strict=True):
        normed += rms_norm(group, eps, weight)
    if part.norm == "gated":
        return normed
    return [v * g for v, g in zip(normed, gates, strict=True)]


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_papers_loop(name: str) -> None:
    module, part = make(name), Part(**{**SIZES, **CASES[name]})
    for length in LENGTHS if name == "plain" else (6,):
        x = torch.randn(2, length, 11, dtype=torch.float64)
        assert_near(module(x), [by_loop(module, rows, part) for rows in x.tolist()])


@pytest.mark.parametrize("planted", ["A_log", "D", "dt_bias", "conv1d.weight", "norm.weight"])
def test_the_loop_notices(planted: str) -> None:
    """One value of one tensor changed between the two."""
    module, x = make("plain"), torch.randn(1, 6, 11, dtype=torch.float64)
    found = module(x)
    with torch.no_grad():
        module.get_parameter(planted).view(-1)[0] += 0.1
    with pytest.raises(AssertionError):
        assert_near(found, [by_loop(module, x[0].tolist(), Part(**SIZES))])


@daily(3)
@pytest.mark.parametrize("lengths", [(1,) * 9, (3, 1, 5), (4, 4, 1), (8, 1), (2, 7)])
@pytest.mark.parametrize("name", CASES)
def test_in_pieces_it_is_the_same(name: str, lengths: tuple[int, ...]) -> None:
    """Chunks, steps, and chunks that go on from a state."""
    module, x = make(name), torch.randn(2, 9, 11, dtype=torch.float64)
    pieces, cache = in_pieces(module, x, *lengths)
    assert_near(pieces, module(x))
    part = Part(**{**SIZES, **CASES[name]})
    channels = part.n_heads * 5 + 2 * part.n_groups * 7
    kept = {key: tuple(state.shape) for key, state in cache.states.items()}
    assert kept == {"conv": (2, channels, 3), "recurrent": (2, part.n_heads, 5, 7)}
    assert cache.length == 9


@pytest.mark.parametrize("chunk_size", [2, 3, 5, 64])
@pytest.mark.parametrize("n", [1, 2, 5, 11])
def test_both_forms_of_the_scan_are_equal(n: int, chunk_size: int) -> None:
    x, decay = torch.randn(2, n, 3, 5).double(), -torch.rand(2, n, 3).double()
    b, c = torch.randn(2, 2, n, 3, 7).double()
    for state in (torch.zeros(2, 3, 5, 7).double(), torch.randn(2, 3, 5, 7).double()):
        slowly, last = step_by_step(x, decay, b, c, state)
        chunked, chunked_last = in_chunks(x, decay, b, c, state, chunk_size)
        assert_near(chunked, slowly)
        assert_near(chunked_last, last)
        wrong, _ = in_chunks(x, decay, c, b, state, chunk_size)
        assert n == 1 or (wrong - slowly).abs().max() > 1e-3
    assert_near(
        in_chunks(x, decay, b, c, None, chunk_size)[0],
        step_by_step(x, decay, b, c, torch.zeros_like(state))[0],
    )


def test_a_state_that_decays_fast_stays_finite() -> None:
    """Where exp of a difference of sums would be 0 · inf."""
    x, decay = torch.randn(1, 40, 1, 2).double(), torch.full((1, 40, 1), -300.0).double()
    b, c = torch.randn(2, 1, 40, 1, 3).double()
    chunked, _ = in_chunks(x, decay, b, c, None, 40)
    assert_near(chunked, step_by_step(x, decay, b, c, torch.zeros(1, 1, 2, 3).double())[0])


def test_which_tensors_there_are() -> None:
    def shapes(name: str) -> dict[str, tuple[int, ...]]:
        return {key: tuple(p.shape) for key, p in make(name).named_parameters()}

    bare = {
        "in_proj.weight": (94, 11),  # 30 + (30 + 2·2·7) + 6
        "conv1d.weight": (58, 1, 3),
        "conv1d.bias": (58,),
        "dt_bias": (6,),
        "A_log": (6,),
        "D": (6,),
        "out_proj.weight": (11, 30),
    }
    assert shapes("gate alone") == bare
    assert shapes("plain") == bare | {"norm.weight": (30,)}
    assert shapes("biases") == shapes("plain") | {"in_proj.bias": (94,), "out_proj.bias": (11,)}


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"n_groups": 4}, "n_ssm_groups must divide n_ssm_heads: 6 % 4 = 2"),
        ({"n_groups": 7}, "n_ssm_groups"),
        ({"chunk_size": 0}, "ssm_chunk_size"),
        ({"state_dim": 1}, "ssm_state_dim"),
        ({"conv_kernel": 0}, "conv_kernel"),
        ({"dt_min": 2.0, "dt_max": 1.0}, "ssm_dt_min"),
    ],
)
def test_what_cannot_be_is_one_line(change: dict[str, Any], rule: str) -> None:
    from metacount.errors import SpecError

    with pytest.raises(SpecError, match=rule):
        Part(**{**SIZES, **change})
