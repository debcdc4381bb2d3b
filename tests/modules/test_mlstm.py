"""The mLSTM: whole chunks and single steps give the same, as do pieces that go on from a cache."""

from __future__ import annotations

import pytest
import torch
from helpers.module_loops import assert_near, randomised
from helpers.recurrent_cache import in_pieces

from metacount.modules.mlstm import MLstm
from metacount.spec.mixers import MLstm as Part
from metacount.spec.stack import Norms


def make(chunk_size: int) -> MLstm:
    part = Part(n_heads=3, k_head_dim=5, v_head_dim=7, chunk_size=chunk_size)
    module: MLstm = randomised(MLstm(part, 11, norms=Norms(kind="rmsnorm", eps=0.2)))
    return module


@pytest.mark.parametrize("chunk_size", [2, 3, 4, 9])
@pytest.mark.parametrize("lengths", [(9,), (1,) * 9, (3, 1, 5), (4, 4, 1), (2, 7)])
def test_chunks_and_steps_are_the_same(chunk_size: int, lengths: tuple[int, ...]) -> None:
    x = torch.randn(2, 9, 11, dtype=torch.float64)
    step_by_step = make(64)(x)  # no whole chunk
    pieces, cache = in_pieces(make(chunk_size), x, *lengths)
    assert_near(pieces, step_by_step)
    shapes = {name: tuple(state.shape) for name, state in cache.states.items()}
    assert shapes == {"cell": (2, 3, 5, 7), "normalizer": (2, 3, 5), "highest": (2, 3)}
    assert cache.length == 9
