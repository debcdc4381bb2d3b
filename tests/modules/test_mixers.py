"""Mixers that keep a state: whole and in pieces with one cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.module_loops import assert_near, randomised

from metacount.modules import delta, state_space
from metacount.modules.cache import StateCache
from metacount.modules.recurrent import make_recurrent
from metacount.spec.field import altered
from metacount.spec.mixers import (
    GatedDelta,
    KimiDelta,
    Lightning,
    Mamba,
    Mamba2,
    MLstm,
    RgLru,
    ShortConv,
)
from metacount.spec.stack import Norms

D, EPS, N_LAYERS = 11, 0.2, 5
RMS = Norms(kind="rmsnorm", eps=EPS)

# 4 value heads of 7 on 2 key heads of 5; or 3 heads of 5; chunks of 4
DELTA = GatedDelta(
    conv_kernel=3, n_k_heads=2, n_v_heads=4, k_head_dim=5, v_head_dim=7, chunk_size=4
)
KIMI = KimiDelta(conv_kernel=3, n_heads=3, head_dim=5, chunk_size=4)
LIGHTNING = Lightning(n_heads=3, head_dim=5, chunk_size=4)
# d_i=6, d_s=5, r_t=3
MAMBA = Mamba(conv_kernel=4, state_dim=5, d_ssm=6, dt_rank=3)
# 6 heads of 5 = 30 channels, 2 groups with a state of 7, chunks of 4
MAMBA2 = Mamba2(conv_kernel=3, state_dim=7, n_heads=6, head_dim=5, n_groups=2, chunk_size=4)
MLSTM = MLstm(n_heads=3, k_head_dim=5, v_head_dim=7, chunk_size=4)
SHORT = ShortConv(conv_kernel=3, conv_bias=True)
GRIFFIN = RgLru(conv_kernel=4, lru_width=10, n_lru_blocks=2, activation="gelu_tanh")
BIASED = {"in_bias": True, "out_bias": True}


LAST = {"layer": N_LAYERS - 1}
# a part, and the layer that it is made for
CASES: dict[str, tuple[Any, dict[str, int]]] = {
    "gated delta": (DELTA, {}),
    "gated delta, a key head a value head": (altered(DELTA, n_k_heads=4, chunk_size=1), {}),
    "gated delta, negative": (altered(DELTA, negative=True, norm_eps=0.7, chunk_size=64), {}),
    "kimi delta": (KIMI, {}),
    "kimi delta, chunks of one": (altered(KIMI, chunk_size=1), {}),
    "kimi delta, one chunk": (altered(KIMI, chunk_size=64), {}),
    "lightning": (LIGHTNING, {"layer": 2}),
    "lightning, chunks of one": (altered(LIGHTNING, chunk_size=1), {"layer": 0}),
    "lightning, last layer": (altered(LIGHTNING, norm_eps=0.7, chunk_size=64), LAST),
    "mamba": (MAMBA, {}),
    "mamba, biases": (altered(MAMBA, **BIASED), {}),
    "mamba, plain convolution": (altered(MAMBA, conv_bias=False), {}),
    "mamba, norms": (altered(MAMBA, norms="affine"), {}),
    "mamba, norms without weights": (altered(MAMBA, norms="plain", norm_eps=0.3), {}),
    "mamba, kernel of one": (altered(MAMBA, conv_kernel=1), {}),
    "mamba 2": (MAMBA2, {}),
    "mamba 2, biases": (altered(MAMBA2, **BIASED), {}),
    "mamba 2, plain convolution": (altered(MAMBA2, conv_bias=False), {}),
    "mamba 2, norm before the gate": (altered(MAMBA2, norm="before_gate", norm_eps=0.3), {}),
    "mamba 2, gate alone": (altered(MAMBA2, norm="none"), {}),
    "mamba 2, limits of a step": (altered(MAMBA2, dt_min=0.4, dt_max=0.9), {}),
    "mamba 2, one group": (altered(MAMBA2, n_groups=1, chunk_size=64), {}),
    "mamba 2, a group a head": (altered(MAMBA2, n_groups=6), {}),
    "mamba 2, one head": (altered(MAMBA2, n_heads=1, n_groups=1), {}),
    "mamba 2, chunks of two": (altered(MAMBA2, chunk_size=2), {}),
    "mlstm": (altered(MLSTM, divisor_eps=0.1), {}),
    "mlstm, chunks of two": (altered(MLSTM, chunk_size=2, norm_eps=0.7), {}),
    "mlstm, a low cap": (altered(MLSTM, chunk_size=64, gate_softcap=0.5), {}),
    "short": (SHORT, {}),
    "short, plain": (altered(SHORT, conv_kernel=4, conv_bias=False), {}),
    "short, kernel of one": (altered(SHORT, conv_kernel=1), {}),
    "griffin": (GRIFFIN, {}),
    "griffin, kernel of two": (altered(GRIFFIN, conv_kernel=2, activation="gelu"), {}),
}  # fmt: skip
CUTS = ((1,) * 9, (3, 1, 5), (4, 4, 1), (8, 1), (2, 7))


def made(part: Any, depth: dict[str, int]) -> Any:
    return randomised(make_recurrent(part, D, RMS, n_layers=N_LAYERS, **depth))


@pytest.mark.parametrize("lengths", CUTS, ids=str)
@pytest.mark.parametrize(("part", "depth"), CASES.values(), ids=[*CASES])
def test_in_pieces_it_is_the_same(
    part: Any, depth: dict[str, int], lengths: tuple[int, ...]
) -> None:
    """Chunks, steps, and what goes on from a state, in storage of just its size."""
    module, x = made(part, depth), torch.randn(2, 9, D, dtype=torch.float64)
    cache = StateCache()
    pieces = [module(piece, cache=cache) for piece in x.split(lengths, dim=1)]
    assert_near(torch.cat(pieces, dim=1), module(x))
    for state in cache.states.values():
        assert state.untyped_storage().nbytes() == 8 * state.numel()
    assert cache.length == 9


def test_a_state_that_decays_fast_stays_finite() -> None:
    """Where exp(-log α) of one of two positions is infinite, or exp of a difference 0 · inf."""
    q, k, v, state = (torch.randn(2, 3, *shape).double() for shape in ((40, 5),) * 3 + ((5, 5),))
    beta, decay = 2 * torch.rand(2, 3, 40).double(), torch.full((2, 3, 40, 5), -300.0).double()
    for chunks, width in ((delta.in_chunks, 1), (delta.in_chunks_by_channel, 5)):
        given = decay[..., 0] if width == 1 else decay
        found, _ = chunks(q, k, v, given, beta, state, 40)
        expected = delta.step_by_step(q, k, v, decay[..., :width], beta, state)[0]
        assert_near(found, expected)
    x, b, c = (torch.randn(1, 40, 1, n).double() for n in (2, 3, 3))
    states = torch.zeros(1, 1, 2, 3).double()
    found, _ = state_space.in_chunks(x, decay[:1, :1, :, 0].mT, b, c, None, 40)
    assert_near(found, state_space.step_by_step(x, decay[:1, :1, :, 0].mT, b, c, states)[0])
