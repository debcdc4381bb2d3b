"""Weights that are not those of the reference: the error names the tensor, and nothing is loaded.

What is loaded right is tested by what it computes: `test_computes_the_same.py`.
"""

from __future__ import annotations

import pytest
import torch
from helpers.in_float64 import build_in_float64
from torch import Tensor

from metacount.huggingface.config.to_spec import spec_from_config
from metacount.huggingface.weights import WeightsError, load_weights
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


ATTENTION, NORM = "transformer.h.0.attn.c_attn.weight", "transformer.h.3.ln_1.weight"
# The tensors that are given besides (None: left out) -> what is said of them.
CASES: dict[str, dict[str, Tensor | None]] = {
    r"^transformer\.h\.0\.attn\.masked_bias is left over: no place": {
        "transformer.h.0.attn.masked_bias": torch.zeros(42)
    },
    rf"^{NORM} is left over: the reference has no decoder\.layers\.3\.input_layernorm": {
        NORM: torch.zeros(42)
    },
    "left over: no place": {"transformer.h.x.ln_1.weight": torch.zeros(42)},
    r"^nothing is given for decoder\.layers\.1\.self_attn\.k_proj\.bias and 2 more of": {
        "transformer.h.1.attn.c_attn.bias": None
    },
    r"another shape: \[41\]; the reference needs \[42\]": {
        "transformer.ln_f.bias": torch.zeros(41)
    },
    rf"^{ATTENTION} has another shape: .*the reference needs \[42, 42\]": {
        ATTENTION: torch.zeros(126, 42)
    },
    rf"^{ATTENTION} has another shape: \[42, 4\]; it cannot be taken apart": {
        ATTENTION: torch.zeros(42, 4)
    },
    r"another shape: \[\]; it cannot be taken apart": {ATTENTION: torch.zeros(())},
    r"^lm_head\.weight differs from transformer\.wte\.weight: both are the one embed_tokens": {
        "lm_head.weight": torch.ones(101, 42)
    },
    r"^transformer\.wte\.weight is on meta": {
        "transformer.wte.weight": torch.zeros(101, 42, device="meta")
    },
}


@pytest.mark.parametrize("match", CASES)
def test_weights_that_are_not_those_of_the_reference_are_named(match: str) -> None:
    """gpt2 has fused and tied tensors; nothing is loaded where one is wrong."""
    ours = build(spec_from_config(GPT2).spec, device="cpu", dtype="fp64", seed=1)
    given = {**build_in_float64(GPT2).state_dict(), **CASES[match]}
    weights = {name: value for name, value in given.items() if value is not None}
    before = {name: value.clone() for name, value in ours.state_dict().items()}
    with pytest.raises(WeightsError, match=match):
        load_weights(ours, weights, spec_from_config(GPT2))
    assert all(torch.equal(value, before[name]) for name, value in ours.state_dict().items())


def test_tied_tensors_may_be_given_once_and_others_names_not() -> None:
    ours = build(spec_from_config(GPT2).spec, device="cpu", dtype="fp64", seed=1)
    weights = dict(build_in_float64(GPT2).state_dict())
    tied = weights.pop("lm_head.weight")
    load_weights(ours, weights, spec_from_config(GPT2))
    with pytest.raises(WeightsError, match="no known family"):
        load_weights(ours, {"trunk.table.weight": tied}, spec_from_config(GPT2))
    with pytest.raises(WeightsError, match="embed_tokens"):
        load_weights(build(ours.spec), weights, spec_from_config(GPT2))
