"""The tensors of a model and of each layer, by name and shape, against the module's."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.miniatures import miniature
from helpers.random_specs import specs
from helpers.release import daily, one_day_in
from helpers.same_tensors import unmatched
from helpers.structures import OTHER_WAYS, first_of_each
from hypothesis import given

from metacount.catalog import entry
from metacount.formulas import block, ends, model
from metacount.formulas.terms import Weight
from metacount.modules.build import build
from metacount.modules.norm import LayerNorm, RMSNorm
from metacount.spec import ModelSpec


def weights_of(spec: ModelSpec, index: int, *, cross: bool) -> tuple[Weight, ...]:
    """The tensors of a layer by the formula."""
    last = spec.last_stack
    return block.block_weights(
        spec,
        mixer=last.mixer_of(index),
        ffn=last.ffn_of(index),
        cross=cross,
        indexed=spec.has_index_layer(index),
        borrows=last.borrows(index),
        second=last.feed_forward is not None and last.feed_forward.is_second(index),
    )


@daily(4)
@pytest.mark.parametrize("name", first_of_each())
def test_each_layer_has_the_tensors_of_the_module(name: str) -> None:
    assert_alike(miniature(entry(name).spec()))


@daily(4)
@pytest.mark.parametrize("name", first_of_each())
def test_a_model_has_the_tensors_of_the_module(name: str) -> None:
    spec = miniature(entry(name).spec())
    assert unmatched(build(spec), model.weights(spec)) == (set(), {})


@pytest.mark.parametrize(("name", "changed"), OTHER_WAYS)
def test_other_ways_of_a_layer_have_the_tensors_of_the_module(
    name: str, changed: dict[str, Any]
) -> None:
    spec = miniature(entry(name).spec()).replace(**changed)
    assert unmatched(build(spec), model.weights(spec)) == (set(), {})


@one_day_in(6)
@given(specs())
def test_a_random_model_has_the_tensors_of_the_module(spec: ModelSpec) -> None:
    assert unmatched(build(spec), model.weights(spec)) == (set(), {})


def test_layers_of_two_widths() -> None:
    spec = miniature(entry("gemma-3n-e2b-text").spec())
    assert_alike(spec.replace(d_ff_second=29, d_ff_pattern="MWMMW"))


def assert_alike(spec: ModelSpec) -> None:
    """Every layer has the tensors of the module's."""
    built = build(spec)
    for stack, cross in ((built.encoder, False), (built.decoder, spec.has_encoder)):
        for index, layer in enumerate(() if stack is None else stack.layers):
            weights = weights_of(spec, index, cross=cross)
            assert unmatched(layer, weights) == (set(), {}), (cross, index)


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


def test_a_pooler_reads_one_token_of_each_sequence() -> None:
    spec = entry("bert-base").spec()
    assert ends.pooler_flops(spec.replace(pooler=True), batch_size=3) == {
        "other": 2 * 3 * 768 * 768
    }
    assert ends.pooler_flops(spec.replace(pooler=False), batch_size=3) == {"other": 0}


def test_tables_are_looked_up() -> None:
    spec = entry("bert-base").spec()
    # of tokens and of token types
    assert ends.looked_up_params(spec) == 30522 * 768 + 2 * 768
    layered = entry("gemma-3n-e2b-text").spec()
    assert ends.looked_up_params(layered) == 262400 * 2048 + 262144 * 30 * 256
    body = entry("textbook-block").spec()
    assert (body.embedding, ends.looked_up_params(body)) == (None, 0)
    assert ends.end_flops(body, n_tokens=3) == {"embedding": 0, "head": 0}


def test_what_multiplies_outside_of_blocks_and_is_no_table_or_head() -> None:
    run = {"tokens": 5, "sequences": 3}
    pooled = entry("bert-base").spec().replace(pooler=True)
    assert ends.other_flops(pooled, run) == 3 * 2 * 768 * 768
    # three copies are made and three come back; the table of the layers is projected
    layered = entry("gemma-3n-e2b-text").spec()
    assert ends.other_flops(layered, run) == 5 * 2 * (6 * 2048 * 2048 + 2048 * 30 * 256)
    assert ends.other_flops(entry("llama-7b").spec(), run) == 0
