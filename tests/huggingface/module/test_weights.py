"""Weights that are not those of the reference: the error names the tensor, and nothing is loaded.

What is loaded right is tested by what it computes: `test_logits.py`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.in_float64 import build_in_float64
from torch import Tensor

from metacount.huggingface.config.to_spec import Mapped, spec_from_config
from metacount.huggingface.weights import WeightsError, load_weights
from metacount.modules import Model
from metacount.modules.build import build

torch.set_num_threads(1)

GPT2 = {
    "model_type": "gpt2",
    "n_layer": 3,
    "n_embd": 42,
    "n_head": 6,
    "n_inner": 71,
    "vocab_size": 101,
    "n_positions": 29,
}
BLOOM = {"model_type": "bloom", "hidden_size": 42, "n_layer": 3, "n_head": 6, "vocab_size": 101}


def reference(config: dict[str, Any]) -> Model:
    return build(spec_from_config(config).spec, device="cpu", dtype="fp64", seed=1)


def mapped(ours: Model) -> Mapped:
    """What a config of this model would map to."""
    return Mapped(spec=ours.spec, model_type="", class_name="", notes=(), ignored=())


def small() -> tuple[Model, dict[str, Tensor]]:
    """A model of ours and what transformers has for it; gpt2 has fused and tied tensors."""
    return reference(GPT2), dict(build_in_float64(GPT2).state_dict())


def refused(ours: Model, weights: dict[str, Tensor], match: str) -> None:
    """The error says `match`, and nothing was loaded."""
    before = {name: value.clone() for name, value in ours.state_dict().items()}
    with pytest.raises(WeightsError, match=match):
        load_weights(ours, weights, mapped(ours))
    assert all(torch.equal(value, before[name]) for name, value in ours.state_dict().items())


def test_a_tensor_left_over_is_named() -> None:
    ours, weights = small()
    extra = torch.zeros(42)
    refused(
        ours,
        weights | {"transformer.h.0.attn.masked_bias": extra},
        r"^transformer\.h\.0\.attn\.masked_bias is left over: no place",
    )
    refused(
        ours,
        weights | {"transformer.h.3.ln_1.weight": extra},
        r"^transformer\.h\.3\.ln_1\.weight is left over: the reference has no "
        r"decoder\.layers\.3\.input_layernorm\.weight",
    )
    refused(ours, weights | {"transformer.h.x.ln_1.weight": extra}, "left over: no place")


def test_a_missing_tensor_is_named() -> None:
    ours, weights = small()
    del weights["transformer.h.1.attn.c_attn.bias"]
    refused(
        ours,
        weights,
        r"^nothing is given for decoder\.layers\.1\.self_attn\.k_proj\.bias and 2 more "
        "of the reference",
    )


@pytest.mark.parametrize(
    ("name", "shape", "match"),
    [
        ("transformer.ln_f.bias", (41,), r"\[41\]; the reference needs \[42\]"),
        ("transformer.wpe.weight", (42, 29), r"\[42, 29\]; the reference needs \[29, 42\]"),
        ("transformer.h.0.attn.c_attn.weight", (126, 42), r"the reference needs \[42, 42\]"),
        ("transformer.h.0.attn.c_attn.weight", (42, 4), "it cannot be taken apart"),
        ("transformer.h.0.attn.c_attn.weight", (), "it cannot be taken apart"),
    ],
)
def test_another_shape_is_named(name: str, shape: tuple[int, ...], match: str) -> None:
    ours, weights = small()
    refused(ours, weights | {name: torch.zeros(shape)}, f"^{name} has another shape: .*{match}")


def test_rows_that_are_not_those_of_the_groups_are_refused() -> None:
    ours, weights = reference(BLOOM), build_in_float64(BLOOM).state_dict()
    name = "transformer.h.0.self_attention.query_key_value.weight"
    weights[name] = torch.zeros(125, 42)
    refused(ours, weights, rf"^{name} has another shape: \[125, 42\]; it cannot be taken apart")


def test_tied_tensors_are_given_once_or_equal() -> None:
    ours, weights = small()
    tied = weights.pop("lm_head.weight")
    load_weights(ours, weights, mapped(ours))
    refused(
        ours,
        weights | {"lm_head.weight": tied + 1e-9},
        r"^lm_head\.weight differs from transformer\.wte\.weight: both are the one "
        r"embed_tokens\.weight",
    )


def test_names_of_another_family_are_refused() -> None:
    ours, weights = small()
    refused(ours, {"trunk.table.weight": weights["lm_head.weight"]}, "no known family")


def test_tensors_without_values_are_refused() -> None:
    ours, weights = small()
    meta = {name: value.to("meta") for name, value in weights.items()}
    refused(ours, meta, r"^transformer\.wte\.weight is on meta")
    with pytest.raises(WeightsError, match="embed_tokens"):
        load_weights(build(ours.spec), weights, mapped(ours))
