"""Prefill and decode through the KV cache give the logits of one forward; what the cache keeps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.module_loops import assert_near, randomised
from helpers.module_specs import ENCODER_DECODER, MLA, MOE, ROPE, small
from helpers.release import daily, one_in
from torch import Tensor

from metacount.formulas import model as formulas
from metacount.measure.ours import measure_forward
from metacount.measure.tree import module_tree
from metacount.modules import Attention, Cache, Model
from metacount.modules.build import build
from metacount.spec import ModelSpec, Workload
from metacount.tensors import tensor_bytes

T5: dict[str, Any] = {"position": "t5", "n_buckets": 8, "max_distance": 20}
LG: dict[str, Any] = {"window": 3, "window_pattern": "LG"}
GEMMA_3N: dict[str, Any] = {
    **ROPE, "n_layers": 6, "qk_norm": "head", "v_norm": True, "n_kv_shared_layers": 2, "window": 4,
    "window_pattern": "LLG", "activation": "gelu_tanh", "norm_placement": "sandwich",
}  # fmt: skip
AROUND: dict[str, dict[str, Any]] = {
    "copies": {"n_altup_inputs": 3, "altup_active": 2},
    "laurel": {"laurel_rank": 5},
    "embeddings": {"d_per_layer": 11, "vocab_size_per_layer": 101},
    "sparse": {"activation_sparsity": 0.7, "sparsity_pattern": "TF"},
    "widths": {"d_ff_second": 19, "d_ff_pattern": "MW"},
}
ALL_AROUND = {key: value for one in AROUND.values() for key, value in one.items()}
ZAMBA2: dict[str, Any] = {
    **ROPE, "d_model": 7, "n_layers": 6, "tie_embeddings": True, "n_heads": 4, "head_dim": 6,
    "activation": "gelu", "recurrent": "mamba2", "mixer_pattern": "RSS", "ffn_pattern": "N",
    "conv_kernel": 3, "n_ssm_heads": 6, "ssm_head_dim": 3, "n_ssm_groups": 2, "ssm_chunk_size": 4,
    "ssm_state_dim": 5, "n_shared_blocks": 2, "adapter_rank": 3,
}  # fmt: skip
NO_MAMBA2 = dict.fromkeys(("n_ssm_heads", "ssm_head_dim", "n_ssm_groups", "ssm_chunk_size"))
SPECS: dict[str, ModelSpec] = {
    "no positions": small(),
    "interleaved partial rope": small(ROPE, rotary_dim=4, rope_style="interleaved"),
    "qk norm": small(ROPE, qk_norm="full"),
    "l2 norm, some layers unrotated": small(ROPE, qk_norm="l2", nope_every=2),
    "mqa alibi": small(position="alibi", n_kv_heads=1, embedding_norm=True),
    "alibi in a window": small(LG, position="alibi"),
    "t5 decoder in a window": small(T5, LG),
    "t5 encoder-decoder": small(ENCODER_DECODER),
    "sinusoidal encoder-decoder": small(
        kind="encoder-decoder", n_encoder_layers=2, position="sinusoidal", norm_placement="post"
    ),
    "transformer-xl in a window": small(position="transformer_xl", window=3),
    "mla": small(MLA),
    "mla in a window": small(MLA, LG, q_lora_rank=None, rope_theta_windowed=50.0),
    "smallest window": small(ROPE, window=2),
    "sliding and global": small(ROPE, window=4, window_pattern="LLG"),
    "window beyond the prompt": small(ROPE, window=29),
    "chunked window": small(ROPE, window=4, window_kind="chunked"),
    "chunked and global": small(ROPE, window=3, window_kind="chunked", window_pattern="LLG"),
    "sinks in a window": small(ROPE, LG, attention_sinks=True, attention_softcap=2.0),
    "learned positions": small(position="learned", n_positions=23, position_offset=2),
    "pangu": small(position="learned", n_positions=23, n_query_positions=29),
    "moe": small(ROPE, MOE, n_dense_layers=1, n_shared_experts=1),
    "parallel": small(ROPE, norm_placement="parallel_two"),
    "body only": small(ROPE, LG, vocab_size=None),
    **{f"gemma 3n, {name}": small(GEMMA_3N, one) for name, one in AROUND.items()},
    "gemma 3n": small(GEMMA_3N, ALL_AROUND),
    "as Zamba2-2.7B": small(ZAMBA2, position="none"),
    "shared blocks, all adapters": small(ZAMBA2, attention_adapters=True, n_shared_blocks=1),
    "a block a use, no adapters": small(ZAMBA2, adapter_rank=None, n_shared_blocks=4),
    "the first layer shares": small(ZAMBA2, mixer_pattern="SR"),
    "shared blocks without gates": small(ZAMBA2, gated=False, ffn_bias=True, q_bias=True),
    "shared blocks before Mamba": small(ZAMBA2, NO_MAMBA2, recurrent="mamba", d_ssm=5, dt_rank=2),
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
    """Windowed layers keep window - 1: the next token sees itself too; borrowed keys nobody's."""
    pattern = spec.window_pattern * spec.n_layers
    return [
        length if spec.window is None or letter == "G" else min(length, spec.window - 1)
        for letter in pattern[: spec.n_layers - (spec.n_kv_shared_layers or 0)]
    ]


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
        if spec.recurrent == "none":
            assert kept == [[rows] * n_tensors for rows in rows_kept(spec, 11)]
        # in storage of just that size
        sizes = {"batch_size": 2, "seq_len": 11, "bytes_per_value": 8}
        counted = formulas.kv_cache_bytes(spec, source_len=5 * spec.has_encoder, **sizes)
        assert tensor_bytes(cache.tensors()) == counted
        assert counted == sum(t.untyped_storage().nbytes() for t in cache.tensors())


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
    spec = small(ZAMBA2, n_shared_blocks=1)
    model = build(spec)
    found = measure_forward(model, Workload(seq_len=9)).prefill
    assert sum(found.by_module.values()) == found.matmul_flops
    q = found.by_module["decoder.shared_blocks.0.self_attn.q_proj"]
    assert q == 4 * 2 * 9 * (4 * 6) * (2 * 7)  # four uses
    linears = [found.by_module[f"decoder.layers.{i}.shared_use.linear"] for i in (1, 2, 4, 5)]
    assert linears == [2 * 9 * 7 * 7] * 4
    tree = module_tree(model, flops=found.by_module)
    assert tree.flops == found.matmul_flops
    assert tree.params == formulas.params(spec)
