"""Indexers of positions and of blocks against loops over positions, alone and in a model."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers.miniatures import miniature
from helpers.module_loops import (
    Rows,
    assert_near,
    dot,
    layer_norm,
    linear,
    parts,
    randomised,
    rms_norm,
    rope,
)
from torch import Tensor

from metacount.catalog import entry
from metacount.modules import Visibility
from metacount.modules.build import build
from metacount.modules.indexer import CHOOSING, BlockIndexer, Indexer
from metacount.spec import ModelSpec
from metacount.spec import attention as spec
from metacount.spec.position import Rope
from metacount.spec.stack import Norms

# heads enough that a score is rarely 0, which would tie with another
D, R, HEADS, WIDTH, TURNED = 13, 11, 9, 6, 4
SIZE, ATTENDING, CHOOSERS = 3, 6, 3  # of the indexer of blocks
TURN = (TURNED, 10000.0, "half")


def of_positions(top_k: int = 3) -> Any:
    part = spec.Indexer(top_k=top_k, n_heads=HEADS, head_dim=WIDTH)
    how: dict[str, Any] = {"rope_dim": TURNED, "rope": Rope(style="interleaved")}
    return randomised(Indexer(part, D, q_lora_rank=R, **how))


def of_blocks(top_blocks: int = 3, local_blocks: int = 1) -> Any:
    sizes = {"block_len": SIZE, "top_blocks": top_blocks, "local_blocks": local_blocks}
    part = spec.BlockIndexer(n_heads=CHOOSERS, head_dim=WIDTH, **sizes)
    norms = Norms(kind="rmsnorm", unit_offset=True, eps=1e-6)
    how: dict[str, Any] = {"rotary_dim": TURNED, "rope": Rope(), "norms": norms}
    return randomised(BlockIndexer(part, D, n_heads=ATTENDING, **how))


def drawn(length: int, width: int = D) -> Tensor:
    return torch.randn(2, length, width, dtype=torch.float64)


def causal(length: int) -> Visibility:
    return Visibility(n_queries=length, n_keys=length)


def scores_of_positions(module: Any, rows: Rows, latents: Rows) -> Rows:
    """[queries][positions]."""
    norm = (module.k_norm.weight.tolist(), module.k_norm.bias.tolist())
    keys = [
        rope(layer_norm(linear(module.wk, row), 1e-6, *norm), t, *TURN)
        for t, row in enumerate(rows)
    ]
    found = []
    for t, (row, latent) in enumerate(zip(rows, latents, strict=True)):
        heads = [rope(head, t, *TURN) for head in parts(linear(module.wq_b, latent), WIDTH)]
        weights = [w / math.sqrt(HEADS * WIDTH) for w in linear(module.weights_proj, row)]
        found.append([dot(weights, [max(0.0, dot(h, key)) for h in heads]) for key in keys])
    return found


def scores_of_blocks(module: Any, rows: Rows) -> list[Rows]:
    """[heads][queries][positions]."""

    def turned(row: list[float], norm: Any, t: int) -> list[float]:
        return rope(rms_norm(row, 1e-6, norm.weight.tolist(), 1.0), t, *TURN)

    keys = [turned(linear(module.k_proj, x), module.k_norm, t) for t, x in enumerate(rows)]
    queries = [
        [turned(head, module.q_norm, t) for head in parts(linear(module.q_proj, x), WIDTH)]
        for t, x in enumerate(rows)
    ]
    return [[[dot(q[head], key) for key in keys] for q in queries] for head in range(CHOOSERS)]


@pytest.mark.parametrize("top_k", [1, 3, 7, 20])
def test_the_best_of_the_visible_are_read(top_k: int) -> None:
    module, x, latent, sees = of_positions(top_k), drawn(7), drawn(7, R), causal(7)
    keys = module.keys(x, sees)
    expected = [
        scores_of_positions(module, *rows) for rows in zip(x.tolist(), latent.tolist(), strict=True)
    ]
    assert_near(module.scores(x, latent, keys, sees), expected)
    read = module(x, latent, keys, sees)[:, 0] == 0
    for b, scores in enumerate(expected):
        for t in range(7):
            best = sorted(range(t + 1), key=scores[t].__getitem__, reverse=True)[:top_k]
            assert {s for s in range(t + 1) if read[b, t, s]} == {*best}


@pytest.mark.parametrize("length", [2, 3, 4, 9, 10, 17])
@pytest.mark.parametrize(("top_blocks", "local_blocks"), [(1, 1), (3, 1), (3, 2), (3, 3), (9, 2)])
def test_the_best_blocks_are_read(length: int, top_blocks: int, local_blocks: int) -> None:
    """Below a block, at k blocks and beyond: the local ones, then those of the best score."""
    module, x, sees = of_blocks(top_blocks, local_blocks), drawn(length), causal(length)
    keys = module.keys(x, sees)
    expected = [scores_of_blocks(module, rows) for rows in x.tolist()]
    assert_near(module.scores(x, keys, sees), expected)
    read = module(x, keys, sees) == 0
    assert read.shape == (2, ATTENDING, length, length)
    for b, scores in enumerate(expected):
        for head in range(ATTENDING):
            for t in range(length):
                visible = scores[head // (ATTENDING // CHOOSERS)][t][: t + 1]
                best = {j: max(visible[j * SIZE : (j + 1) * SIZE]) for j in range(t // SIZE + 1)}
                local = [j for j in best if t // SIZE - j < local_blocks]
                others = sorted(best.keys() - set(local), key=best.__getitem__, reverse=True)
                chosen = {*local, *others[: top_blocks - len(local)]}
                assert {s // SIZE for s in range(t + 1) if read[b, head, t, s]} == chosen


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

SIZES: dict[str, Any] = {
    **{"kind": "decoder", "d_model": 13, "n_layers": 3, "vocab_size": 101, "n_heads": 6},
    **{"n_kv_heads": 2, "head_dim": 8, "d_ff": 17, "activation": "silu", "gated": True},
    **{"norm": "rmsnorm", "position": "rope"},
}
INDEX = {"index_block_len": 3, "index_top_blocks": 2, "index_local_blocks": 1}
INDEX |= {"n_index_heads": 3, "index_head_dim": 10}


def model(**changes: Any) -> Any:
    return build(ModelSpec(**{**SIZES, **changes}), device="cpu", dtype="fp64", seed=5)


def test_what_is_read_matters_and_only_beyond_the_blocks() -> None:
    """With blocks enough for all positions the logits are those of a model without an index."""
    sparse = model(**INDEX, index_pattern="GI")
    enough = model(**{**INDEX, "index_top_blocks": 7}, index_pattern="GI")
    plain, state = model(), sparse.state_dict()
    plain.load_state_dict({k: v for k, v in state.items() if ".indexer." not in k})
    enough.load_state_dict(state)
    tokens = torch.randint(0, 101, (2, 20))
    dense, whole, chosen = (each(tokens).logits_BSV for each in (plain, enough, sparse))
    assert torch.equal(dense, whole)
    torch.testing.assert_close(chosen[:, :6], dense[:, :6], rtol=0, atol=1e-12)  # two blocks
    assert not torch.allclose(chosen[:, 6:], dense[:, 6:])
    cache = sparse.new_cache()
    steps = [sparse(token, cache=cache).logits_BSV for token in tokens.split(1, dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), chosen, rtol=0, atol=1e-12)
    # keys and values of 3 layers, and the keys of one index
    assert sum(t.numel() for t in cache.tensors()) == 2 * 20 * (3 * 2 * 2 * 8 + 10)


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
