"""By hand what `tests/huggingface/module/test_computes_the_same.py` does not reach: Transformer-XL,
queries that grow at far positions, SparseMixer's near ties.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers.module_loops import assert_near, randomised

from metacount.modules import Attention, Visibility, sinusoid
from metacount.modules.moe import mixed
from metacount.modules.position import grown
from metacount.spec.attention import Attention as PlainAttention
from metacount.spec.position import QueryGrowth
from metacount.spec.stack import Norms


@pytest.mark.parametrize("n_kv_heads", [3, 1])
@pytest.mark.parametrize("window", [None, 3])
def test_transformer_xl_attention_is_the_papers(n_kv_heads: int, window: int | None) -> None:
    """Dai et al. 2019, section 3.3: (a) + (b) + (c) + (d), each term on its own."""
    part = PlainAttention(n_heads=3, n_kv_heads=n_kv_heads, head_dim=5)
    module: Attention = randomised(Attention(part, 7, norms=Norms(kind="rmsnorm"), relative=True))
    relative: Any = module.relative
    x = torch.randn(8, 7, dtype=torch.float64)
    q, k, v = (p(x).unflatten(-1, (-1, 5)) for p in (module.q_proj, module.k_proj, module.v_proj))
    k, v = (each.expand(8, 3, 5) for each in (k, v))
    r = relative.r_proj(sinusoid(torch.arange(8), 7)).unflatten(-1, (3, 5))
    rows = []
    for s in range(8):
        seen = range(max(0, s + 1 - window) if window else 0, s + 1)
        scores = [
            (q[s] * k[t] + q[s] * r[s - t]).sum(-1)
            + (relative.content_bias * k[t] + relative.position_bias * r[s - t]).sum(-1)
            for t in seen
        ]
        shares = (torch.stack(scores) / math.sqrt(5)).softmax(0)
        rows.append(sum(w[:, None] * v[t] for w, t in zip(shares, seen, strict=True)).flatten())
    sees = Visibility(n_queries=8, n_keys=8, window=window)
    assert_near(module(x[None], sees)[0], module.o_proj(torch.stack(rows)))


@pytest.mark.parametrize(("shift", "steps"), [(0, [0, 0, 1, 1, 2, 2]), (1, [0, 1, 1, 2, 2, 3])])
def test_queries_grow_by_steps(shift: int, steps: list[int]) -> None:
    """Steps are floor((p + shift) / 2)."""
    q = torch.ones(1, 1, 6, 1, dtype=torch.float64)
    found = grown(q, torch.arange(6), QueryGrowth(weight=0.5, step=2.0, shift=shift))
    assert_near(found.flatten(), [1 + 0.5 * math.log(1 + step) for step in steps])


def test_sparse_mixer_takes_one_expert_after_the_other() -> None:
    logits = torch.tensor([[1.0, 2.0, 1.97, -3.0]], dtype=torch.float64)
    chosen, weights = mixed(logits, 2, 0.01)
    assert chosen.tolist() == [[1, 2]]
    # (2 - 1.97)/2 = 0.015 is within 0.02, 1.0 is not: 1/(1 + e^-0.03); then 1.97 is alone
    assert_near(weights, [[1 / (1 + math.exp(-0.03)), 1.0]])
    near = mixed(torch.tensor([[-1.0, -1.01, -3.0]], dtype=torch.float64), 2, 0.01)
    # (-1 + 1.01)/1.01 = 0.0099 is within 0.02
    assert_near(near[1], [[1 / (1 + math.exp(-0.01)), 1.0]])
