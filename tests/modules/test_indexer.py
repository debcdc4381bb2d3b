"""The lightning indexer against a loop over positions and against transformers' own."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers.module_loops import Rows, assert_near, dot, linear, parts, randomised
from torch import Tensor

from metacount.modules import Visibility
from metacount.modules.indexer import Indexer
from metacount.spec import attention as spec
from metacount.spec.position import Rope

# heads enough that a score is rarely 0, which would tie with another
D, R, HEADS, WIDTH, TURNED = 13, 11, 9, 6, 4


def make(top_k: int = 3) -> Any:
    part = spec.Indexer(top_k=top_k, n_heads=HEADS, head_dim=WIDTH)
    return randomised(
        Indexer(part, D, q_lora_rank=R, rope_dim=TURNED, rope=Rope(style="interleaved"))
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


def layer_norm(module: Any, row: list[float]) -> list[float]:
    mean = math.fsum(row) / len(row)
    wide = math.sqrt(math.fsum((x - mean) ** 2 for x in row) / len(row) + 1e-6)
    weights, biases = module.weight.tolist(), module.bias.tolist()
    return [(x - mean) / wide * w + b for x, w, b in zip(row, weights, biases, strict=True)]


def by_loop(module: Any, rows: Rows, latents: Rows) -> Rows:
    keys = [
        turned(layer_norm(module.k_norm, linear(module.wk, row)), t) for t, row in enumerate(rows)
    ]
    found = []
    for t, (row, latent) in enumerate(zip(rows, latents, strict=True)):
        heads = [turned(head, t) for head in parts(linear(module.wq_b, latent), WIDTH)]
        weights = linear(module.weights_proj, row)
        found.append(
            [
                math.fsum(
                    w * HEADS**-0.5 * max(0.0, dot(head, key) * WIDTH**-0.5)
                    for w, head in zip(weights, heads, strict=True)
                )
                for key in keys
            ]
        )
    return found


def inputs(length: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return (
        torch.randn(2, length, D, dtype=torch.float64, generator=generator),
        torch.randn(2, length, R, dtype=torch.float64, generator=generator),
    )


def test_scores_equal_a_loop() -> None:
    module, (x, latent), sees = make(), inputs(7), Visibility(n_queries=7, n_keys=7)
    expected = [by_loop(module, *rows) for rows in zip(x.tolist(), latent.tolist(), strict=True)]
    assert_near(module.scores(x, latent, module.keys(x, sees), sees), expected)


@pytest.mark.parametrize("top_k", [1, 3, 7, 20])
def test_the_best_of_the_visible_are_read(top_k: int) -> None:
    module, (x, latent), sees = make(top_k), inputs(7), Visibility(n_queries=7, n_keys=7)
    keys = module.keys(x, sees)
    read = module(x, latent, keys, sees)[:, 0] == 0
    scores = module.scores(x, latent, keys, sees).tolist()
    for b in range(2):
        for t in range(7):
            best = sorted(scores[b][t][: t + 1], reverse=True)[:top_k]
            seen = [scores[b][t][s] for s in range(t + 1) if read[b, t, s]]
            assert sorted(seen, reverse=True) == best


def test_one_token_after_the_other_reads_the_same() -> None:
    module, (x, latent) = make(), inputs(7)
    sees = Visibility(n_queries=7, n_keys=7)
    keys = module.keys(x, sees)
    whole = module(x, latent, keys, sees)
    for t in range(7):
        one = Visibility(n_queries=1, n_keys=t + 1, query_start=t)
        # a processor may add up one row's products in another order than seven rows do
        torch.testing.assert_close(module.keys(x[:, t : t + 1], one), keys[:, t : t + 1])
        row = module(x[:, t : t + 1], latent[:, t : t + 1], keys[:, : t + 1], one)
        seen = whole[:, :, t : t + 1, : t + 1]
        # what is not visible may be chosen too, where fewer are visible than it may choose
        assert torch.equal(row == 0, seen == 0)


def test_it_chooses_what_transformers_chooses() -> None:
    from transformers import DeepseekV32Config
    from transformers.models.deepseek_v32.modeling_deepseek_v32 import (
        DeepseekV32Indexer,
        DeepseekV32RotaryEmbedding,
    )

    config = DeepseekV32Config(
        hidden_size=D,
        index_n_heads=HEADS,
        index_head_dim=WIDTH,
        q_lora_rank=R,
        qk_rope_head_dim=TURNED,
        index_topk=3,
        num_hidden_layers=1,
    )
    ours, theirs = make(), DeepseekV32Indexer(config, 0).double()
    theirs.load_state_dict(ours.state_dict())
    x, latent = inputs(9)
    at, sees = torch.arange(9)[None], Visibility(n_queries=9, n_keys=9)
    angles = DeepseekV32RotaryEmbedding(config)(x, at)
    mask = sees.keep(x.device)[None].expand(2, -1, -1)
    chosen = theirs(x, latent, angles, mask, at)
    read = ours(x, latent, ours.keys(x, sees), sees)[:, 0] == 0
    for b in range(2):
        for t in range(9):
            assert {s for s in chosen[b, t].tolist() if s <= t} == {
                s for s in range(t + 1) if read[b, t, s]
            }
