"""What a step trains, by formulas: the same tensors as of the module, by path."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
from helpers import one_line
from helpers.miniatures import TINY, miniature
from helpers.release import daily
from helpers.structures import with_logits

from metacount.catalog import entry
from metacount.errors import SpecError
from metacount.formulas.part import Part, chosen_tensors, is_inner
from metacount.formulas.trained import trained_tensors
from metacount.modules.build import build
from metacount.spec import ModelSpec
from metacount.training.adapters import trainable
from metacount.training.setup import Setup

WITHOUT_GRADIENT = ("pooler.", ".indexer.")
SPECS = with_logits()
SPECS["ends"] = ModelSpec.from_dict(
    {**TINY, "kind": "encoder", "n_token_types": 3, "head_transform": True, "d_embedding": 7}
)
SPECS["pooler"] = miniature(entry("bert-base").spec()).replace(has_head=True)
SPECS["biases"] = ModelSpec.from_dict(
    {**TINY, "q_bias": True, "k_bias": True, "v_bias": True, "o_bias": True, "ffn_bias": True}
    | {"tie_embeddings": True, "head_bias": True}
)
CHOICES: list[dict[str, Any]] = [
    {},
    {"lora_rank": 2, "lora_targets": ("all-linear",)},
    {"lora_rank": 2, "lora_targets": ("all-linear",), "freeze": ("layers.0", "lora_b")},
    {"freeze": ("layers.0",)},
    {"freeze": ("embed_tokens",)},
]


def of_module(spec: ModelSpec, setup: Setup) -> tuple[dict[str, tuple[int, ...]], set[str]]:
    """Shapes by path with the adapters of a setup, and what of it requires a gradient."""
    model = build(spec)
    with trainable(model, setup, getattr(model, "lm_head", None)):
        found = dict(model.named_parameters())
        return (
            {path: tuple(p.shape) for path, p in found.items()},
            {path for path, p in found.items() if p.requires_grad},
        )


def of_formulas(spec: ModelSpec, setup: Setup) -> tuple[dict[str, tuple[int, ...]], set[str]]:
    part = Part(rank=setup.lora_rank, targets=setup.lora_targets, freeze=setup.freeze)
    found = chosen_tensors(spec, part)
    assert all(w.size == prod(w.shape) for w in found.stored.values())
    return {path: w.shape for path, w in found.stored.items()}, set(found.trained)


@daily(12)
@pytest.mark.parametrize("name", SPECS)
def test_tensors_and_what_of_them_is_trained(name: str) -> None:
    for choices in CHOICES:
        setup = Setup(**choices)
        shapes, required = of_module(SPECS[name], setup)
        counted, trained = of_formulas(SPECS[name], setup)
        assert counted == shapes
        assert trained == {
            path for path in required if not any(each in path for each in WITHOUT_GRADIENT)
        }


@daily(3)
@pytest.mark.parametrize("name", SPECS)
def test_an_optimizer_has_the_tensors_of_the_module(name: str) -> None:
    """Those of blocks and those of ends apart, each as often as it stands there."""
    spec = SPECS[name]
    tensors, (shapes, required) = trained_tensors(spec), of_module(spec, Setup())
    seen = {path for path in required if not any(each in path for each in WITHOUT_GRADIENT)}
    for weights, inner in ((tensors.inner, True), (tensors.ends, False)):
        counted = sorted(weight.shape for weight in weights for _ in range(weight.times))
        assert counted == sorted(shapes[path] for path in seen if is_inner(path) == inner)


def test_some_layers_have_adapters() -> None:
    spec, targets = SPECS["biases"], ("q_proj", "down_proj")
    setup = Setup(lora_rank=2, lora_targets=targets)
    counted, trained = of_formulas(spec, setup)
    assert (counted, trained) == of_module(spec, setup)
    layers = {path.rpartition(".")[0] for path in trained}
    assert {path.rpartition(".")[2] for path in layers} == set(targets)
    assert len(layers) == 2 * spec.n_layers


def test_a_tied_head_is_frozen_by_either_name() -> None:
    spec = SPECS["biases"]
    for name in ("embed_tokens", "lm_head"):
        assert of_formulas(spec, Setup(freeze=(name,))) == of_module(spec, Setup(freeze=(name,)))


def test_targets_without_a_rank_are_no_adapters() -> None:
    spec = SPECS["biases"]
    for targets in (("all-linear",), ("no such layer",)):
        assert chosen_tensors(spec, Part(targets=targets)) == chosen_tensors(spec, Part())


def test_blocks_that_blocks_share_are_inside() -> None:
    assert is_inner("decoder.layers.0.mlp.up_proj.weight")
    assert is_inner("decoder.shared_blocks.1.self_attn.q_proj.weight")
    assert not is_inner("decoder.norm.weight")
    assert not is_inner("lm_head.weight")


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (
            Part(rank=2, targets=("q_porj",)),
            "lora_targets",
        ),
        (
            Part(rank=2, targets=("lm_head",)),
            "lora_targets",
        ),
        (
            Part(freeze=("q_porj",)),
            "'q_porj'",
        ),
        (
            Part(freeze=("xyz",)),
            "'xyz'",
        ),
        (
            Part(freeze=("embed_tokens", "decoder", "lm_head")),
            "'embed_tokens,decoder,lm_head'",
        ),
    ],
)
def test_what_cannot_be_chosen_is_said(part: Part, said: str) -> None:
    with pytest.raises(SpecError) as refused:
        chosen_tensors(ModelSpec.from_dict(TINY), part)
    assert said in one_line(refused.value)
