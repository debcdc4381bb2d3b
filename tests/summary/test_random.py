"""Modules drawn at random: their FLOPs are what torch's counter sees when they really run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from helpers.release import one_day_in
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import metacount
from metacount import InputError
from metacount.measure import operators

WIDTH = 8


class Runs(nn.Module):
    """A module that runs another one in some way."""

    def __init__(self, inner: nn.Module, run: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.inner, self.run = inner, run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self.inner, x)


def attend(qkv: nn.Module, x: Tensor) -> Tensor:
    q, k, v = (part.unsqueeze(1) for part in qkv(x).chunk(3, -1))
    return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(1)


@st.composite
def layers(draw: st.DrawFn) -> nn.Module:
    """A layer that takes [B, S, 8] to as many values."""
    kinds = [
        lambda: nn.Linear(WIDTH, WIDTH, bias=draw(st.booleans())),
        lambda: nn.Sequential(nn.Linear(WIDTH, 24), nn.GLU(-1), nn.Linear(12, WIDTH)),
        lambda: Runs(
            nn.Linear(WIDTH, WIDTH, bias=False),
            lambda m, x: torch.einsum("...d,od->...o", x, m.weight),
        ),
        lambda: Runs(
            nn.MultiheadAttention(WIDTH, draw(st.sampled_from([1, 2, 4])), batch_first=True),
            lambda m, x: m(x, x, x, need_weights=False)[0],
        ),
        lambda: Runs(nn.Linear(WIDTH, 3 * WIDTH), attend),
        lambda: Runs(
            draw(st.sampled_from([nn.LSTM, nn.GRU, nn.RNN]))(WIDTH, WIDTH, batch_first=True),
            lambda m, x: m(x)[0],
        ),
        lambda: nn.TransformerEncoderLayer(
            WIDTH, 2, 16, batch_first=True, norm_first=draw(st.booleans())
        ),
        lambda: draw(st.sampled_from([nn.LayerNorm(WIDTH), nn.RMSNorm(WIDTH)])),
        lambda: draw(st.sampled_from([nn.GELU(), nn.Softmax(-1), nn.Dropout(0.1)])),
        lambda: Runs(draw(layers()), lambda m, x: x + m(x)),
        lambda: nn.Sequential(draw(layers()), draw(layers())),
    ]
    return draw(st.sampled_from(kinds))()


@contextmanager
def as_products() -> Iterator[None]:
    """No fused kernel of a CPU, which torch's own counter takes for nothing."""
    fast, mkldnn = torch.backends.mha.get_fastpath_enabled(), torch.backends.mkldnn.enabled
    torch.backends.mha.set_fastpath_enabled(False)
    torch.backends.mkldnn.enabled = False
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        torch.backends.mkldnn.enabled = mkldnn


def ran(module: nn.Module, x: Tensor, *, backward: bool) -> int:
    """What torch's counter sees of a forward, or of both ways."""
    with as_products(), FlopCounterMode(display=False) as counter:
        out = module(x)
        if backward:
            out.sum().backward()
    return counter.get_total_flops()


@one_day_in(6)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    inner=st.lists(layers(), min_size=1, max_size=3),
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 5)),
    training=st.booleans(),
)
def test_any_module(inner: list[nn.Module], sizes: tuple[int, int], training: bool) -> None:
    module, x = nn.Sequential(*inner).train(training), torch.randn(*sizes, WIDTH)
    found = metacount.summary(module)
    assert found.params == sum(p.numel() for p in set(module.parameters()))
    assert found.flops(x) == ran(module, x, backward=False)
    if found.params:
        step = metacount.train(module.train(), input_size=tuple(x.shape))
        both = step.matmul_flops + step.backward_matmul_flops
        assert both == ran(module, x, backward=True)


def test_a_planted_error_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = nn.Sequential(nn.Linear(WIDTH, 3)), torch.randn(2, WIDTH)
    assert metacount.summary(module).flops(x) == ran(module, x, backward=False) == 2 * 2 * 8 * 3
    monkeypatch.setitem(operators.PRICED, torch.ops.aten.addmm, lambda *_: 48)
    assert metacount.summary(module).flops(x) != ran(module, x, backward=False)


def test_a_module_without_parameters_is_not_trained() -> None:
    with pytest.raises(InputError):
        metacount.train(nn.Sequential(nn.GELU()), input_size=(2, 3))
