"""Prefill and decode through the KV cache give the logits of one forward; what the cache keeps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.miniatures import miniature
from helpers.module_loops import assert_near, randomised
from helpers.release import daily, one_in
from helpers.small_specs import OF_LATENTS, ROPE, small
from torch import Tensor

from metacount.catalog import entry
from metacount.formulas import model as formulas
from metacount.measure.ours import measure_forward
from metacount.measure.tree import module_tree
from metacount.modules import Cache, Model
from metacount.modules.build import build
from metacount.spec import ModelSpec, Workload
from metacount.tensors import tensor_bytes

T5: dict[str, Any] = {"position": "t5", "n_buckets": 8, "max_distance": 20}
LG: dict[str, Any] = {"window": 3, "window_pattern": "LG"}
SPECS: dict[str, ModelSpec] = {
    "no positions": small(),
    "alibi in a window": small(LG, position="alibi"),
    "t5 decoder in a window": small(T5, LG),
    "sinusoidal encoder-decoder": small(
        kind="encoder-decoder", n_encoder_layers=2, position="sinusoidal", norm_placement="post"
    ),
    "transformer-xl in a window": small(position="transformer_xl", window=3),
    "mla in a window": small(OF_LATENTS, LG, q_lora_rank=None, rope_theta_windowed=50.0),
    "smallest window": small(ROPE, window=2),
    "window beyond the prompt": small(ROPE, window=29),
    "chunked window": small(ROPE, window=4, window_kind="chunked"),
    "learned positions": small(position="learned", n_positions=23, position_offset=2),
    "pangu": small(position="learned", n_positions=23, n_query_positions=29),
    "body only": small(ROPE, LG, vocab_size=None),
}

SPLITS = {
    "prefill then token by token": [7, 1, 1, 1, 1],
    "in parts": [3, 2, 1, 5],
    "token by token": [1] * 11,
    "all at once": [11],
}


def draw(model: Model, length: int) -> Tensor:
    if model.spec.vocab_size is None:
        return torch.randn(2, length, 13, dtype=torch.float64)
    return torch.randint(0, 101, (2, length))


def end(model: Model, x: Tensor, **rest: Any) -> Tensor:
    out = model(x, **rest)
    return out.hidden_BSD if out.logits_BSV is None else out.logits_BSV  # type: ignore[no-any-return]


def in_parts(model: Model, x: Tensor, split: list[int], cache: Cache, **rest: Any) -> Tensor:
    assert sum(split) == x.shape[1]
    return torch.cat([end(model, part, cache=cache, **rest) for part in x.split(split, 1)], dim=1)


def rows_kept(spec: ModelSpec, length: int) -> list[int]:
    """Windowed layers keep window - 1: the next token sees itself too."""
    pattern = (spec.window_pattern * spec.n_layers)[: spec.n_layers]
    most = {"G": length, "L": length if spec.window is None else min(length, spec.window - 1)}
    return [most[letter] for letter in pattern]


@daily(9)
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", one_in(2, SPECS))
@torch.no_grad()
def test_in_parts_is_all_at_once(name: str, split: str) -> None:
    spec = SPECS[name]
    model: Model = randomised(Model(spec))
    x = draw(model, 11)
    extra: dict[str, Any] = {}
    if spec.has_encoder:
        extra["memory_BTD"] = model.encode(draw(model, 5))
    whole = end(model, x, **extra)
    for absorbed in {False, spec.attention == "mla"}:
        cache = model.new_cache()
        parts = in_parts(model, x, SPLITS[split], cache, absorbed=absorbed, **extra)
        assert_near(parts, whole, 1e-10)
        assert cache.length == 11
        kept = [[t.shape[-2] for t in layer.tensors] for layer in cache.layers if layer.tensors]
        n_tensors = 1 if spec.attention == "mla" else 2
        assert kept == [[rows] * n_tensors for rows in rows_kept(spec, 11)]
        # in storage of just that size
        sizes = {"batch_size": 2, "seq_len": 11, "bytes_per_value": 8}
        counted = formulas.kv_cache_bytes(spec, source_len=5 * spec.has_encoder, **sizes)
        assert tensor_bytes(cache.tensors()) == counted
        assert counted == sum(t.untyped_storage().nbytes() for t in cache.tensors())


def test_a_prefix_is_read_at_once_and_then_decoded() -> None:
    """Its first tokens see those that come after: it cannot be read in parts."""
    model: Model = randomised(Model(small(ROPE, kind="prefix-decoder")))
    x = draw(model, 11)
    whole = end(model, x, prefix_len=6)
    for split in ([6, 5], [8, 1, 2]):
        cache, parts = model.new_cache(), x.split(split, 1)
        first = end(model, parts[0], cache=cache, prefix_len=6)
        rest = [end(model, part, cache=cache) for part in parts[1:]]
        assert_near(torch.cat([first, *rest], dim=1), whole, 1e-10)
    cache = model.new_cache()
    with pytest.raises(ValueError, match="prefix_len"):
        end(model, x[:, :4], cache=cache, prefix_len=6)
    assert cache.length == 0
    end(model, x[:, :4], cache=cache, prefix_len=4)
    with pytest.raises(ValueError, match="prefix_len"):
        end(model, x[:, 4:], cache=cache, prefix_len=6)


def test_flops_of_a_shared_block_stand_at_the_block_for_all_of_its_uses() -> None:
    """On meta a layer that is like another does not run: what it runs in the block still counts."""
    spec = miniature(entry("zamba2-1.2b").spec())  # RSSRS: of 20 layers 12 use the block
    model = build(spec)
    found = measure_forward(model, Workload(seq_len=9)).prefill
    assert sum(found.by_module.values()) == found.matmul_flops
    q = found.by_module["decoder.shared_blocks.0.self_attn.q_proj"]
    assert q == 12 * 2 * 9 * (6 * spec.head_dim) * (2 * 13)
    linears = [found.by_module[f"decoder.layers.{i}.shared_use.linear"] for i in (1, 2, 4, 19)]
    assert linears == [2 * 9 * 13 * 13] * 4
    tree = module_tree(model, flops=found.by_module)
    assert tree.flops == found.matmul_flops
    assert tree.params == formulas.params(spec)
