"""Prefill and decode through the KV cache give the logits of one forward; what the cache keeps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.module_loops import assert_near, randomised
from helpers.module_specs import ENCODER_DECODER, MLA, MOE, ROPE, small
from helpers.release import daily, one_in
from torch import Tensor

from metacount.modules import Attention, Cache, Model
from metacount.spec import ModelSpec

SPECS: dict[str, ModelSpec] = {
    "no positions": small(),
    "gqa rope": small(ROPE),
    "interleaved partial rope": small(ROPE, rotary_dim=4, rope_style="interleaved"),
    "qk norm": small(ROPE, qk_norm="full"),
    "l2 norm, some layers unrotated": small(ROPE, qk_norm="l2", nope_every=2),
    "mqa alibi": small(position="alibi", n_kv_heads=1, embedding_norm=True),
    "alibi in a window": small(position="alibi", window=3, window_pattern="LG"),
    "t5 decoder": small(position="t5", n_buckets=8, max_distance=20),
    "t5 decoder in a window": small(
        position="t5", n_buckets=8, max_distance=20, window=3, window_pattern="LG"
    ),
    "t5 encoder-decoder": small(ENCODER_DECODER),
    "sinusoidal encoder-decoder": small(
        kind="encoder-decoder", n_encoder_layers=2, position="sinusoidal", norm_placement="post"
    ),
    "transformer-xl": small(position="transformer_xl"),
    "transformer-xl in a window": small(position="transformer_xl", window=3),
    "mla": small(MLA),
    "mla, whole queries": small(MLA, q_lora_rank=None),
    "mla in a window": small(MLA, window=4, window_pattern="LG", rope_theta_windowed=50.0),
    "sliding window": small(ROPE, window=4),
    "smallest window": small(ROPE, window=2),
    "sliding and global": small(ROPE, window=4, window_pattern="LLG"),
    "window beyond the prompt": small(ROPE, window=29),
    "chunked window": small(ROPE, window=4, window_kind="chunked"),
    "chunked and global": small(ROPE, window=3, window_kind="chunked", window_pattern="LLG"),
    "sinks": small(ROPE, attention_sinks=True, attention_softcap=2.0),
    "sinks in a window": small(ROPE, attention_sinks=True, window=3, window_pattern="LG"),
    "learned positions": small(position="learned", n_positions=23, position_offset=2),
    "sinusoidal": small(position="sinusoidal"),
    "pangu": small(position="learned", n_positions=23, n_query_positions=29),
    "moe": small(ROPE, MOE, n_dense_layers=1, n_shared_experts=1),
    "parallel": small(ROPE, norm_placement="parallel_two"),
    "body only": small(ROPE, vocab_size=None, window=3, window_pattern="LG"),
}

SPLITS = {
    "prefill then token by token": [7, 1, 1, 1, 1],
    "in parts": [3, 2, 1, 5],
    "parts across windows": [5, 1, 4, 1],
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
    pattern = spec.window_pattern * spec.n_layers
    return [
        length if spec.window is None or letter == "G" else min(length, spec.window - 1)
        for letter in pattern[: spec.n_layers]
    ]


@daily(9)
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", one_in(2, SPECS))
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
        kept = [[t.shape[-2] for t in layer.tensors] for layer in cache.layers]
        n_tensors = 1 if spec.attention == "mla" else 2
        assert kept == [[rows] * n_tensors for rows in rows_kept(spec, 11)]


def test_a_prompt_longer_than_the_window() -> None:
    """After every part the cache holds window - 1 rows, in storage of just that size."""
    spec = small(ROPE, window=4, window_pattern="LG")
    model: Model = randomised(Model(spec))
    x, cache = draw(model, 11), model.new_cache()
    whole, done = end(model, x), []
    for size, seen, windowed in ((2, 2, 2), (6, 8, 3), (1, 9, 3), (2, 11, 3)):
        part = x[:, seen - size : seen]
        done.append(end(model, part, cache=cache))
        shapes = [tuple(t.shape) for layer in cache.layers for t in layer.tensors]
        # [batch, key/value heads, rows, head_dim], keys and values
        assert shapes == [(2, 2, rows, 10) for rows in (windowed, seen, windowed) for _ in "kv"]
        assert [layer.start for layer in cache.layers] == [seen - windowed, 0, seen - windowed]
        for tensor in cache.tensors():
            assert tensor.untyped_storage().nbytes() == tensor.numel() * 8
    assert_near(torch.cat(done, dim=1), whole, 1e-10)


def test_cross_attention_keeps_the_source_once() -> None:
    model: Model = randomised(Model(SPECS["t5 encoder-decoder"]))
    source = draw(model, 5)
    calls = {"encoder": 0, "k_proj": 0, "v_proj": 0, "q_proj": 0}

    def counted(module: Any, name: str) -> None:
        def count(*_: Any) -> None:
            calls[name] += 1

        module.register_forward_hook(count)

    counted(model.encoder, "encoder")
    for block in model.decoder.layers:
        cross = block.get_submodule("cross_attn")
        assert isinstance(cross, Attention)
        for name in ("k_proj", "v_proj", "q_proj"):
            counted(getattr(cross, name), name)
    memory, cache = model.encode(source), model.new_cache()
    in_parts(model, draw(model, 9), [4, 1, 1, 3], cache, memory_BTD=memory)
    # three layers, four parts: the source is projected in the first of them
    assert calls == {"encoder": 1, "k_proj": 3, "v_proj": 3, "q_proj": 12}
    assert [tuple(t.shape) for layer in cache.cross for t in layer.tensors] == [(2, 2, 5, 5)] * 6
    assert [tuple(t.shape) for layer in cache.layers for t in layer.tensors] == [(2, 2, 9, 5)] * 6


def test_a_prefix_is_read_at_once_and_then_decoded() -> None:
    model: Model = randomised(Model(small(ROPE, kind="prefix-decoder")))
    x = draw(model, 11)
    whole = end(model, x, prefix_len=6)
    for split in ([6, 5], [6, 1, 1, 1, 1, 1], [8, 1, 2]):
        cache, parts = model.new_cache(), x.split(split, 1)
        first = end(model, parts[0], cache=cache, prefix_len=6)
        rest = [end(model, part, cache=cache) for part in parts[1:]]
        assert_near(torch.cat([first, *rest], dim=1), whole, 1e-10)


def test_a_prefix_cannot_be_read_in_parts() -> None:
    """Its first tokens would have to see the ones that have not come yet."""
    model: Model = randomised(Model(small(ROPE, kind="prefix-decoder")))
    x, cache = draw(model, 11), model.new_cache()
    with pytest.raises(ValueError, match="prefix_len"):
        end(model, x[:, :4], cache=cache, prefix_len=6)
    assert cache.length == 0
    first = end(model, x[:, :4], cache=cache, prefix_len=4)
    with pytest.raises(ValueError, match="prefix_len"):
        end(model, x[:, 4:], cache=cache, prefix_len=6)
    rest = end(model, x[:, 4:], cache=cache, prefix_len=4)  # all of it is past: nothing opens
    assert_near(torch.cat([first, rest], dim=1), end(model, x, prefix_len=4), 1e-10)
