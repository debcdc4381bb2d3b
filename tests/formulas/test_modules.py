"""What a step trains, and the parts of an attention, against the module that is built.

All tensors by path and shape: `tests/verify/test_witnesses.py`.
"""

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
from metacount.formulas import sublayers
from metacount.formulas.step import Part, chosen_tensors, is_inner, trained_tensors
from metacount.modules.build import build
from metacount.modules.norm import LayerNorm, RMSNorm
from metacount.spec import ModelSpec
from metacount.training.model import trainable
from metacount.training.setup import Setup

BIASES = dict.fromkeys(("q_bias", "k_bias", "v_bias", "o_bias", "ffn_bias", "head_bias"), True)

# --- sublayers of a block -------------------------------------------------------------------------


def numel(*modules: Any) -> int:
    return sum(tensor.numel() for module in modules for tensor in module.parameters())


SINKS = {"attention_sinks": True}


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        *((name, {}) for name in ("qwen3-0.6b", "deepseek-v3", "gpt2", "t5-small")),
        ("gpt-oss-20b", {}),  # sinks are of the attention to itself
        ("t5-small", SINKS),
    ],
)
def test_the_parts_of_an_attention(name: str, changed: dict[str, Any]) -> None:
    spec = miniature(entry(name).spec()).replace(**changed)
    layer = build(spec).decoder.layers[-1]
    norms = [m for m in layer.self_attn.modules() if isinstance(m, RMSNorm | LayerNorm)]
    assert bool(norms) == (name in ("qwen3-0.6b", "deepseek-v3"))
    tape = sublayers.attention_tape(spec)
    assert sublayers.params_of_role(tape, "norm") == numel(*norms)
    attended = numel(layer.self_attn) - numel(*norms)
    assert sublayers.self_attention_params(spec) == attended
    assert sublayers.block_params(spec, moe=spec.is_moe)["attention"] == attended
    if changed:
        assert attended == numel(layer.cross_attn) + spec.n_heads


# --- what a step trains ---------------------------------------------------------------------------

WITHOUT_GRADIENT = ("pooler.", ".indexer.")
BIASED = ModelSpec.from_dict({**TINY, **BIASES, "tie_embeddings": True})
TRAINED: dict[str, ModelSpec] = {
    **with_logits(),
    "ends": ModelSpec.from_dict(
        {**TINY, "kind": "encoder", "n_token_types": 3, "head_transform": True, "d_embedding": 7}
    ),
    "pooler": miniature(entry("bert-base").spec()).replace(has_head=True),
    "biases": BIASED,
}
ALL_LINEAR = {"lora_rank": 2, "lora_targets": ("all-linear",)}
CHOICES = (
    Setup(),
    Setup(**ALL_LINEAR),
    Setup(**ALL_LINEAR, freeze=("layers.0", "lora_b")),
    Setup(freeze=("layers.0",)),
    *(Setup(freeze=(name,)) for name in ("embed_tokens", "lm_head")),  # tied, either name
)
Tensors = tuple[dict[str, tuple[int, ...]], set[str]]


def of_module(spec: ModelSpec, setup: Setup) -> Tensors:
    """Shapes by path with the adapters of a setup, and what of it the loss has a gradient of."""
    module = build(spec)
    with trainable(module, setup, getattr(module, "lm_head", None)):
        found = dict(module.named_parameters())
        required = {path for path, tensor in found.items() if tensor.requires_grad}
        unseen = {path for path in found if any(name in path for name in WITHOUT_GRADIENT)}
        return {path: tuple(tensor.shape) for path, tensor in found.items()}, required - unseen


def of_formulas(spec: ModelSpec, setup: Setup) -> Tensors:
    part = Part(rank=setup.lora_rank, targets=setup.lora_targets, freeze=setup.freeze)
    found = chosen_tensors(spec, part)
    assert all(w.size == prod(w.shape) for w in found.stored.values())
    return {path: w.shape for path, w in found.stored.items()}, set(found.trained)


@daily(6)
@pytest.mark.parametrize("name", TRAINED)
def test_what_is_trained(name: str) -> None:
    spec = TRAINED[name]
    for setup in CHOICES:
        assert of_formulas(spec, setup) == of_module(spec, setup)
    # an optimizer has those of blocks and those of ends apart, each as often as it stands there
    shapes, seen = of_module(spec, Setup())
    for inner in (True, False):
        weights = [weight for weight, stands_in in trained_tensors(spec) if stands_in is inner]
        counted = sorted(weight.shape for weight in weights for _ in range(weight.times))
        assert counted == sorted(shapes[path] for path in seen if is_inner(path) == inner)


@pytest.mark.parametrize(
    ("part", "field", "said"),
    [
        (Part(rank=2, targets=("q_porj",)), "lora_targets", "q_proj"),
        # tables, norms and the head have weights too
        *(
            (Part(rank=2, targets=(name,)), "lora_targets", "down_proj")
            for name in ("embed_tokens", "norm", "lm_head")
        ),
        (Part(freeze=("q_porj",)), "freeze", "q_proj"),
        (Part(freeze=("xyz",)), "freeze", "'xyz'"),
        (Part(freeze=("embed_tokens", "decoder", "lm_head")), "freeze", "embed_tokens,decoder"),
    ],
)
def test_what_cannot_be_chosen_is_said(part: Part, field: str, said: str) -> None:
    with pytest.raises(SpecError) as refused:
        chosen_tensors(ModelSpec.from_dict(TINY), part)
    assert refused.value.field == field and said in one_line(refused.value)
