"""Indexers, one token after the other and in a model; others: `test_computes_the_same.py`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.miniatures import miniature
from helpers.module_loops import (
    randomised,
)
from torch import Tensor

from metacount.catalog import entry
from metacount.modules import Visibility
from metacount.modules.attention import CHOOSING, BlockIndexer, Indexer
from metacount.modules.build import build
from metacount.spec import attention as spec
from metacount.spec.position import Rope

# heads enough that a score is rarely 0, which would tie with another
D, R, HEADS, WIDTH, TURNED = 13, 11, 9, 6, 4
SIZE, ATTENDING, CHOOSERS = 3, 6, 3  # of the indexer of blocks


def of_positions(top_k: int = 3) -> Any:
    part = spec.Indexer(top_k=top_k, n_heads=HEADS, head_dim=WIDTH)
    how: dict[str, Any] = {"rope_dim": TURNED, "rope": Rope(style="interleaved")}
    return randomised(Indexer(part, D, q_lora_rank=R, **how))


def drawn(length: int, width: int = D) -> Tensor:
    return torch.randn(2, length, width, dtype=torch.float64)


def causal(length: int) -> Visibility:
    return Visibility(n_queries=length, n_keys=length)


def test_one_token_after_the_other_reads_the_same() -> None:
    module, x, latent, sees = of_positions(), drawn(7), drawn(7, R), causal(7)
    keys = module.keys(x, sees)
    whole = module(x, latent, keys, sees)
    for t in range(7):
        one, at = Visibility(n_queries=1, n_keys=t + 1, query_start=t), slice(t, t + 1)
        # a processor may add up one row's products in another order than seven rows do
        torch.testing.assert_close(module.keys(x[:, at], one), keys[:, at])
        row = module(x[:, at], latent[:, at], keys[:, : t + 1], one)
        # what is not visible may be chosen too, where fewer are visible than it may choose
        assert torch.equal(row == 0, whole[:, :, at, : t + 1] == 0)


# --- in a model -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind"), [("deepseek-v3.2", Indexer), ("minimax-m3-text", BlockIndexer)]
)
def test_an_indexers_choice_passes_no_gradient(name: str, kind: type) -> None:
    model = build(miniature(entry(name).spec()), device="cpu", dtype="fp64", seed=0)
    model(torch.randint(0, 101, (2, 9))).logits_BSV.sum().backward()
    found = [m for m in model.modules() if isinstance(m, CHOOSING)]
    assert found and all(isinstance(m, kind) for m in found)
    choosing = {id(p) for m in found for p in m.parameters()}
    assert all(p.grad is None for p in model.parameters() if id(p) in choosing)
