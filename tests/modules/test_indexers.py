"""Indexers in a model; their values and caches: `test_computes_the_same.py`."""

from __future__ import annotations

import pytest
import torch
from helpers.miniatures import miniature

from metacount.catalog import entry
from metacount.modules.attention import CHOOSING, BlockIndexer, Indexer
from metacount.modules.build import build


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
