"""Mamba against a loop over positions, in pieces; both forms of its scan."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers.module_loops import (
    Rows,
    assert_near,
    convolved,
    dot,
    linear,
    randomised,
    rms_norm,
    silu,
)
from helpers.recurrent_cache import in_pieces

from metacount.modules import mamba
from metacount.modules.mamba import Mamba
from metacount.spec import mixers as parts
from metacount.spec.stack import Norms

# d=11, d_i=6, d_s=5, r_t=3
SIZES: dict[str, Any] = {"conv_kernel": 4, "state_dim": 5, "d_ssm": 6, "dt_rank": 3}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "biases": {"in_bias": True, "out_bias": True},
    "without the convolution's bias": {"conv_bias": False},
    "norms": {"norms": "affine"},
    "norms without weights": {"norms": "plain", "norm_eps": 0.3},
    "a kernel of one": {"conv_kernel": 1},
}
RMS = Norms(kind="rmsnorm", eps=0.2)


def make(name: str) -> Mamba:
    module = Mamba(parts.Mamba(**{**SIZES, **CASES[name]}), 11, norms=RMS)
    return randomised(module)  # type: ignore[no-any-return]


def by_loop(module: Any, rows: Rows, options: dict[str, Any]) -> Rows:
    """Algorithm 2, one token, channel and value of the state after the other."""
    projected = [linear(module.in_proj, row) for row in rows]
    xs, zs = [row[:6] for row in projected], [row[6:] for row in projected]
    a = [[-math.exp(x) for x in row] for row in module.A_log.tolist()]
    skip = module.D.tolist()
    state = [[0.0] * 5 for _ in range(6)]
    out = []
    for s in range(len(rows)):
        x = [silu(v) for v in convolved(module.conv1d, xs, s)]
        read = linear(module.x_proj, x)
        dt, b, c = read[:3], read[3:8], read[8:]
        if "norms" in options:
            eps = options.get("norm_eps", 0.2)
            layers = (module.dt_layernorm, module.b_layernorm, module.c_layernorm)
            weights = [None if n.weight is None else n.weight.tolist() for n in layers]
            dt, b, c = (rms_norm(v, eps, w) for v, w in zip((dt, b, c), weights, strict=True))
        step = [math.log1p(math.exp(v)) for v in linear(module.dt_proj, dt)]
        y = []
        for i in range(6):
            state[i] = [
                math.exp(step[i] * a[i][n]) * state[i][n] + step[i] * x[i] * b[n] for n in range(5)
            ]
            y.append((dot(state[i], c) + skip[i] * x[i]) * silu(zs[s][i]))
        out.append(linear(module.out_proj, y))
    return out


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_papers_loop(name: str) -> None:
    module, x = make(name), torch.randn(2, 6, 11, dtype=torch.float64)
    assert_near(module(x), [by_loop(module, rows, CASES[name]) for rows in x.tolist()])


@pytest.mark.parametrize("planted", ["A_log", "D", "dt_proj.bias", "conv1d.weight"])
def test_the_loop_notices(planted: str) -> None:
    """One value of one tensor changed between the two."""
    module, x = make("plain"), torch.randn(1, 6, 11, dtype=torch.float64)
    found = module(x)
    with torch.no_grad():
        module.get_parameter(planted).view(-1)[0] += 0.1
    with pytest.raises(AssertionError):
        assert_near(found, [by_loop(module, x[0].tolist(), {})])


@pytest.mark.parametrize("lengths", [(1,) * 7, (3, 1, 3), (6, 1), (2, 5)])
@pytest.mark.parametrize("name", CASES)
def test_in_pieces_it_is_the_same(name: str, lengths: tuple[int, ...]) -> None:
    module, x = make(name), torch.randn(2, 7, 11, dtype=torch.float64)
    pieces, cache = in_pieces(module, x, *lengths)
    assert_near(pieces, module(x))
    kept = {key: tuple(state.shape) for key, state in cache.states.items()}
    assert kept == {"conv": (2, 6, module.conv1d.kernel_size[0]), "recurrent": (2, 6, 5)}
    assert cache.length == 7


@pytest.mark.parametrize("n", [1, 2, 3, 8, 13])
def test_both_scans_give_the_same_states(n: int) -> None:
    decay, added = torch.rand(2, n, 3, 5).double(), torch.randn(2, n, 3, 5).double()
    for state in (torch.zeros(2, 3, 5).double(), torch.randn(2, 3, 5).double()):
        slowly = mamba.step_by_step(decay, added, state)
        assert_near(mamba.by_doubling(decay, added, state), slowly)
        wrong = mamba.by_doubling(decay, added, state + 1)
        assert (wrong - slowly).abs().max() > 1e-3


def test_which_tensors_there_are() -> None:
    def shapes(name: str) -> dict[str, tuple[int, ...]]:
        return {key: tuple(p.shape) for key, p in make(name).named_parameters()}

    plain = {
        "in_proj.weight": (12, 11),
        "conv1d.weight": (6, 1, 4),
        "conv1d.bias": (6,),
        "x_proj.weight": (13, 6),  # 3 + 2·5
        "dt_proj.weight": (6, 3),
        "dt_proj.bias": (6,),
        "A_log": (6, 5),
        "D": (6,),
        "out_proj.weight": (11, 6),
    }
    assert shapes("plain") == shapes("norms without weights") == plain
    assert shapes("biases") == plain | {"in_proj.bias": (12,), "out_proj.bias": (11,)}
    norms = {"dt_layernorm.weight": (3,), "b_layernorm.weight": (5,), "c_layernorm.weight": (5,)}
    assert shapes("norms") == plain | norms
