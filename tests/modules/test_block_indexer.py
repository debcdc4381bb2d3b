"""The indexer of blocks against a loop over positions, in a model, and against transformers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers.miniatures import miniature
from helpers.module_loops import Rows, assert_near, dot, linear, parts, randomised
from torch import Tensor

from metacount.catalog import entry
from metacount.modules import Visibility
from metacount.modules.build import build
from metacount.modules.indexer import CHOOSING, BlockIndexer, Indexer
from metacount.spec import ModelSpec
from metacount.spec import attention as spec
from metacount.spec.position import Rope
from metacount.spec.stack import Norms

D, HEADS, WIDTH, TURNED, SIZE, ATTENDING = 13, 3, 6, 4, 3, 6


def make(top_blocks: int = 3, local_blocks: int = 1) -> Any:
    part = spec.BlockIndexer(
        n_heads=HEADS,
        head_dim=WIDTH,
        block_len=SIZE,
        top_blocks=top_blocks,
        local_blocks=local_blocks,
    )
    norms = Norms(kind="rmsnorm", unit_offset=True, eps=1e-6)
    return randomised(
        BlockIndexer(part, D, n_heads=ATTENDING, rotary_dim=TURNED, rope=Rope(), norms=norms)
    )


def turned(row: list[float], position: int) -> list[float]:
    """The first TURNED values, half against half; the rest as they are."""
    half = TURNED // 2
    new = list(row)
    for i in range(half):
        angle = position * 10000.0 ** (-2 * i / TURNED)
        a, b = row[i], row[i + half]
        new[i] = a * math.cos(angle) - b * math.sin(angle)
        new[i + half] = b * math.cos(angle) + a * math.sin(angle)
    return new


def normed(module: Any, row: list[float]) -> list[float]:
    root = math.sqrt(math.fsum(x * x for x in row) / len(row) + 1e-6)
    return [x / root * (1 + w) for x, w in zip(row, module.weight.tolist(), strict=True)]


def by_loop(module: Any, rows: Rows) -> list[Rows]:
    """[heads][queries][positions]."""
    keys = [turned(normed(module.k_norm, linear(module.k_proj, x)), t) for t, x in enumerate(rows)]
    queries = [
        [turned(normed(module.q_norm, head), t) for head in parts(linear(module.q_proj, x), WIDTH)]
        for t, x in enumerate(rows)
    ]
    return [[[dot(q[head], key) for key in keys] for q in queries] for head in range(HEADS)]


def inputs(length: int) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(2, length, D, dtype=torch.float64, generator=generator)


def test_scores_equal_a_loop() -> None:
    module, x, sees = make(), inputs(8), Visibility(n_queries=8, n_keys=8)
    found = module.scores(x, module.keys(x, sees), sees)
    for b, rows in enumerate(x.tolist()):
        assert_near(found[b], by_loop(module, rows))


@pytest.mark.parametrize("length", [2, 3, 4, 9, 10, 17])
@pytest.mark.parametrize(("top_blocks", "local_blocks"), [(1, 1), (3, 1), (3, 2), (3, 3), (9, 2)])
def test_the_best_blocks_are_read(length: int, top_blocks: int, local_blocks: int) -> None:
    """Below a block, at k blocks and beyond: the local ones, then those of the best score."""
    module, x = make(top_blocks, local_blocks), inputs(length)
    sees = Visibility(n_queries=length, n_keys=length)
    read = module(x, module.keys(x, sees), sees) == 0
    assert read.shape == (2, ATTENDING, length, length)
    for b, rows in enumerate(x.tolist()):
        scores = by_loop(module, rows)
        for head in range(ATTENDING):
            for t in range(length):
                visible = scores[head // (ATTENDING // HEADS)][t][: t + 1]
                best = {j: max(visible[j * SIZE : (j + 1) * SIZE]) for j in range(t // SIZE + 1)}
                local = [j for j in best if t // SIZE - j < local_blocks]
                others = sorted(best.keys() - set(local), key=best.__getitem__, reverse=True)
                expected = {*local, *others[: top_blocks - len(local)]}
                assert {s // SIZE for s in range(t + 1) if read[b, head, t, s]} == expected


def model(**changes: Any) -> ModelSpec:
    sizes: dict[str, Any] = {
        "kind": "decoder",
        "d_model": 13,
        "n_layers": 3,
        "vocab_size": 101,
        "n_heads": 6,
        "n_kv_heads": 2,
        "head_dim": 8,
        "d_ff": 17,
        "activation": "silu",
        "gated": True,
        "norm": "rmsnorm",
        "position": "rope",
        "index_block_len": 3,
        "index_top_blocks": 2,
        "index_local_blocks": 1,
        "n_index_heads": 3,
        "index_head_dim": 10,
        "index_pattern": "GI",
    }
    return ModelSpec(**{**sizes, **changes})


@pytest.mark.parametrize("length", [2, 3, 6, 7, 20])
def test_one_token_after_the_other_gives_the_same(length: int) -> None:
    reference = build(model(), device="cpu", dtype="fp64", seed=5)
    tokens = torch.randint(0, 101, (2, length), generator=torch.Generator().manual_seed(1))
    whole, cache = reference(tokens).logits_BSV, reference.new_cache()
    steps = [reference(tokens[:, t : t + 1], cache=cache).logits_BSV for t in range(length)]
    assert whole is not None
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, rtol=0, atol=1e-12)
    kept = sum(tensor.numel() for tensor in cache.tensors())
    # keys and values of 3 layers, and the keys of one index
    assert kept == 2 * length * (3 * 2 * 2 * 8 + 10)


def test_what_is_read_matters_and_only_beyond_the_blocks() -> None:
    """With blocks enough for all positions the logits are those of a model without an index."""
    sparse = build(model(), device="cpu", dtype="fp64", seed=5)
    enough = build(model(index_top_blocks=7), device="cpu", dtype="fp64", seed=5)
    none = dict.fromkeys(("index_block_len", "index_top_blocks", "index_local_blocks"), None)
    plain = build(
        model(**none, n_index_heads=None, index_head_dim=None, index_pattern="I"),
        device="cpu",
        dtype="fp64",
        seed=5,
    )
    state = sparse.state_dict()
    plain.load_state_dict({k: v for k, v in state.items() if ".indexer." not in k})
    enough.load_state_dict(state)
    tokens = torch.randint(0, 101, (1, 20), generator=torch.Generator().manual_seed(1))
    dense, whole, chosen = (each(tokens).logits_BSV for each in (plain, enough, sparse))
    assert dense is not None and whole is not None and chosen is not None
    assert torch.equal(dense, whole)
    torch.testing.assert_close(chosen[:, :6], dense[:, :6], rtol=0, atol=1e-12)  # two blocks
    assert not torch.allclose(chosen[:, 6:], dense[:, 6:])


def test_it_chooses_what_transformers_chooses() -> None:
    from transformers.models.minimax_m3_vl.configuration_minimax_m3_vl import MiniMaxM3VLTextConfig
    from transformers.models.minimax_m3_vl.modeling_minimax_m3_vl import (
        MiniMaxM3VLIndexer,
        MiniMaxM3VLRotaryEmbedding,
    )

    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    config = MiniMaxM3VLTextConfig(
        hidden_size=D,
        head_dim=2 * TURNED,
        num_attention_heads=ATTENDING,
        rope_parameters=rope,
        index_n_heads=HEADS,
        index_head_dim=WIDTH,
        index_block_size=SIZE,
        index_topk_blocks=3,
        index_local_blocks=2,
        num_hidden_layers=1,
    )
    ours, theirs = make(3, 2), MiniMaxM3VLIndexer(config, 0).double()
    theirs.load_state_dict(ours.state_dict())
    x, at, sees = inputs(17), torch.arange(17)[None], Visibility(n_queries=17, n_keys=17)
    angles = MiniMaxM3VLRotaryEmbedding(config)(x, at)
    chosen = theirs(x, angles, None, at.expand(2, -1))
    read = ours(x, ours.keys(x, sees), sees) == 0
    for b in range(2):
        for head in range(ATTENDING):
            for t in range(17):
                blocks = {j for j in chosen[b, head // 2, t].tolist() if j >= 0}
                assert {s // SIZE for s in range(t + 1) if read[b, head, t, s]} == blocks


@pytest.mark.parametrize(
    ("name", "kind"), [("deepseek-v3.2", Indexer), ("minimax-m3-text", BlockIndexer)]
)
def test_an_indexers_choice_passes_no_gradient(name: str, kind: type) -> None:
    model = build(miniature(entry(name).spec()), device="cpu", dtype="fp64", seed=0)
    model(torch.randint(0, 101, (2, 9))).logits_BSV.sum().backward()
    choosing = {id(p) for m in model.modules() if isinstance(m, CHOOSING) for p in m.parameters()}
    assert choosing == {
        id(p) for m in model.modules() if isinstance(m, kind) for p in m.parameters()
    }
    for name, parameter in model.named_parameters():
        if id(parameter) in choosing:
            assert parameter.grad is None, name
