"""The tensors of one block, layer by layer, against the module's."""

from __future__ import annotations

import pytest
from helpers.miniatures import miniature

from metacount.catalog import entries, entry
from metacount.formulas import block
from metacount.formulas.terms import params_of
from metacount.modules.build import build
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
    spec = miniature(entry(name).spec())
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
