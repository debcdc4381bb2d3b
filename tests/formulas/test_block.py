"""The tensors of one block, layer by layer, against the module's."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.miniatures import miniature

from metacount.catalog import entries, entry
from metacount.formulas import block
from metacount.formulas.terms import params_of
from metacount.modules.build import build
from metacount.modules.norm import LayerNorm, RMSNorm
from metacount.spec import ModelSpec
from metacount.textbook.proof_record import structure


def of_the_catalog() -> list[str]:
    """The first model of each structure of the catalog."""
    found: dict[str, str] = {}
    for one in entries():
        if one.sizes is not None:
            found.setdefault(structure(one.spec()), one.id)
    return [*found.values()]


def counted(spec: ModelSpec, index: int, *, cross: bool) -> int:
    """Parameters of a layer by the formula; the first may be without the norm before it."""
    last = spec.last_stack
    weights = block.block_weights(
        spec,
        mixer=last.mixer_of(index),
        ffn=last.ffn_of(index),
        cross=cross,
        indexed=spec.has_index_layer(index),
        borrows=last.borrows(index),
        second=last.feed_forward is not None and last.feed_forward.is_second(index),
    )
    first = index == 0 and not last.norms.first
    return params_of(weights) - (block.width_norm_params(spec) if first else 0)


@pytest.mark.parametrize("name", of_the_catalog())
def test_each_layer_has_what_the_module_has(name: str) -> None:
    assert_alike(miniature(entry(name).spec()))


def test_layers_of_two_widths() -> None:
    spec = miniature(entry("gemma-3n-e2b-text").spec())
    assert_alike(spec.replace(d_ff_second=29, d_ff_pattern="MWMMW"))


def assert_alike(spec: ModelSpec) -> None:
    """Every layer has as many parameters by the formula as the module's."""
    model = build(spec)
    for stack, cross in ((model.encoder, False), (model.decoder, spec.has_encoder)):
        for index, layer in enumerate(() if stack is None else stack.layers):
            held = sum(tensor.numel() for tensor in layer.parameters())
            assert counted(spec, index, cross=cross) == held, (cross, index)


def test_the_tensors_of_an_index_by_hand() -> None:
    spec = entry("minimax-m3-text").spec()
    without, indexed = block.block_weights(spec), block.block_weights(spec, indexed=True)
    # 4 heads of 128 and one key, of the stream's 6,144; a norm over each
    assert [(one.name, one.shape) for one in indexed if one not in without] == [
        ("self_attn.indexer.q_proj.weight", (512, 6144)),
        ("self_attn.indexer.k_proj.weight", (128, 6144)),
        ("self_attn.indexer.q_norm.weight", (128,)),
        ("self_attn.indexer.k_norm.weight", (128,)),
    ]


def small(name: str) -> tuple[ModelSpec, Any]:
    """A model's structure, and a decoder block of the module that has all its sublayers."""
    spec = miniature(entry(name).spec())
    return spec, build(spec).decoder.layers[-1]


def numel(*modules: Any) -> int:
    return sum(tensor.numel() for module in modules for tensor in module.parameters())


@pytest.mark.parametrize("name", ["qwen3-0.6b", "deepseek-v3", "gpt2", "t5-small"])
def test_the_parts_of_an_attention(name: str) -> None:
    spec, layer = small(name)
    norms = [m for m in layer.self_attn.modules() if isinstance(m, RMSNorm | LayerNorm)]
    own = block.attention_norm_params(spec)
    assert own == numel(*norms) and (own > 0) == (name in ("qwen3-0.6b", "deepseek-v3"))
    attended = numel(layer.self_attn) - own
    assert block.self_attention_params(spec) == attended
    whole = block.block_params(spec, moe=False, cross=spec.has_encoder)
    assert whole["attention"] == attended + (numel(layer.cross_attn) if spec.has_encoder else 0)


def test_sinks_are_of_the_attention_to_itself() -> None:
    spec, layer = small("gpt-oss-20b")
    assert block.gqa_params(spec, sinks=True) == numel(layer.self_attn)
    spec = miniature(entry("t5-small").spec()).replace(attention_sinks=True)
    layer = build(spec).decoder.layers[-1]
    assert block.gqa_params(spec, sinks=True) == numel(layer.self_attn)
    assert block.gqa_params(spec, sinks=False) == numel(layer.cross_attn)
    assert numel(layer.self_attn) == numel(layer.cross_attn) + spec.n_heads


def test_the_parts_of_a_feed_forward() -> None:
    spec, layer = small("mixtral-8x7b")
    router, experts = (
        spec.d_model * spec.n_experts,
        numel(layer.mlp) - spec.d_model * spec.n_experts,
    )
    assert block.moe_layer_params(spec, active=False) == router + experts
    chosen = experts * spec.top_k // spec.n_experts
    assert block.moe_layer_params(spec, active=True) == router + chosen
    assert block.block_params(spec, moe=True, active=True)["moe"] == router + chosen
    plain, one = small("gpt2")
    assert block.dense_ffn_params(plain) == numel(one.mlp)
