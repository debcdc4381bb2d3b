"""Latent attention: expanded and absorbed against a loop, and against each other; its cache."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers.module_loops import (
    Rows,
    assert_near,
    dot,
    linear,
    norm,
    parts,
    randomised,
    rope,
    times,
    weighted,
)
from helpers.module_parts import make_mla
from torch import Tensor

from metacount.modules import LatentAttention, LayerCache, Visibility

SIZES = {
    "d_model": 13,
    "n_heads": 3,
    "kv_lora_rank": 11,
    "qk_nope_head_dim": 7,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
}
CASES: dict[str, dict[str, Any]] = {
    "compressed queries": {"q_lora_rank": 17},
    "whole queries": {"q_lora_rank": None},
    "biases": {"q_lora_rank": 17, "bias": True},
    "biases, whole queries": {"q_lora_rank": None, "bias": True},
    "scale and softcap": {"q_lora_rank": 17, "scale": 0.7, "softcap": 1.5},
    "half rope": {"q_lora_rank": None, "rope_style": "half", "rope_theta": 50.0},
    "eps": {"q_lora_rank": 17, "norm_eps": 0.2},
    "scaled latents": {"q_lora_rank": 17, "scaled": True},
    "scaled latent, whole queries": {"q_lora_rank": None, "scaled": True},
}


def make(name: str) -> LatentAttention:
    return randomised(make_mla(**SIZES, **CASES[name]))  # type: ignore[no-any-return]


def mla_by_loop(module: Any, rows: Rows, options: dict[str, Any], window: int) -> Rows:
    """Expanded as the paper writes it (appendix C), one vector after the other."""
    heads, nope, rope_dim, rank = 3, 7, 4, 11
    turn = (4, options.get("rope_theta", 10000.0), options.get("rope_style", "interleaved"))
    q_n, q_p, k_n, k_p, values = [], [], [], [], []
    for position, x in enumerate(rows):
        if options["q_lora_rank"]:
            q = linear(module.q_b_proj, norm(module.q_a_layernorm, linear(module.q_a_proj, x)))
            q = times(q, math.sqrt(13 / 17)) if options.get("scaled") else q
        else:
            q = linear(module.q_proj, x)
        of_heads = parts(q, nope + rope_dim)
        q_n.append([head[:nope] for head in of_heads])
        q_p.append([rope(head[nope:], position, *turn) for head in of_heads])
        down = linear(module.kv_a_proj_with_mqa, x)
        k_p.append(rope(down[rank:], position, *turn))
        latent = norm(module.kv_a_layernorm, down[:rank])
        latent = times(latent, math.sqrt(13 / 11)) if options.get("scaled") else latent
        up = parts(linear(module.kv_b_proj, latent), nope + 5)
        k_n.append([head[:nope] for head in up])
        values.append([head[nope:] for head in up])
    scale, cap = options.get("scale") or 1 / math.sqrt(nope + rope_dim), options.get("softcap")

    def score(h: int, s: int, t: int) -> float:
        x = (dot(q_n[s][h], k_n[t][h]) + dot(q_p[s][h], k_p[t])) * scale
        return x if cap is None else cap * math.tanh(x / cap)

    by_head = [[v[h] for v in values] for h in range(heads)]
    mixed = weighted(score, by_head, heads, len(rows), lambda s, t: t <= s < t + window)
    return [linear(module.o_proj, row) for row in mixed]


@pytest.mark.parametrize("absorbed", [False, True])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("name", CASES)
def test_both_forms_are_the_papers_loop(name: str, window: int | None, absorbed: bool) -> None:
    module, x = make(name), torch.randn(2, 6, 13, dtype=torch.float64)
    sees = Visibility(n_queries=6, n_keys=6, window=window)
    expected = [mla_by_loop(module, rows, CASES[name], window or 99) for rows in x.tolist()]
    assert_near(module(x, sees, absorbed=absorbed), expected)


def test_which_form_runs() -> None:
    """Equal values cannot tell: expanded makes keys and values, absorbed never does."""
    module, x = make("compressed queries"), torch.randn(2, 6, 13, dtype=torch.float64)
    widths: list[tuple[int, int, int]] = []

    def note(_: Any, args: tuple[Any, ...]) -> None:
        q, k, v = args[:3]
        widths.append((k.shape[1], q.shape[-1], v.shape[-1]))

    calls: list[str] = []
    module.core.register_forward_pre_hook(note)
    module.kv_b_proj.register_forward_hook(lambda *_: calls.append("kv_b_proj"))
    sees = Visibility(n_queries=6, n_keys=6)
    module(x, sees, absorbed=False)
    # three key/value heads, 7 + 4 wide, values 5 wide
    assert (widths, calls) == ([(3, 11, 5)], ["kv_b_proj"])
    module(x, sees, absorbed=True)
    # one shared key/value head: the latent of 11 with its rotated key of 4
    assert (widths[1:], calls) == ([(1, 15, 11)], ["kv_b_proj"])
    module(x, sees)
    assert len(calls) == 2  # expanded unless asked


@pytest.mark.parametrize("absorbed", [False, True])
def test_the_cache_holds_the_latent_and_the_rotated_key(absorbed: bool) -> None:
    module, x, cache = make("compressed queries"), torch.randn(2, 6, 13).double(), LayerCache()
    whole = module(x, Visibility(n_queries=6, n_keys=6))
    done: list[Tensor] = []
    for start, n in ((0, 3), (3, 1), (4, 2)):
        sees = Visibility(n_queries=n, n_keys=start + n, query_start=start)
        part = x[:, start : start + n]
        done.append(module(part, sees, cache=cache, absorbed=absorbed))
        # 11 + 4 values per token, once for all heads
        assert [tuple(t.shape) for t in cache.tensors] == [(2, start + n, 15)]
    assert_near(torch.cat(done, dim=1), whole)
    kept = cache.tensors[0].tolist()
    for rows, inputs in zip(kept, x.tolist(), strict=True):
        for position, (row, token) in enumerate(zip(rows, inputs, strict=True)):
            down = linear(module.kv_a_proj_with_mqa, token)
            latent = norm(module.kv_a_layernorm, down[:11])
            key = rope(down[11:], position, 4, 10000.0, "interleaved")
            assert_near(torch.tensor(row, dtype=torch.float64), latent + key)
