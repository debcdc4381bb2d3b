"""Prediction modules: their mathematics in loops, token by token, and beside transformers' own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.beside_transformers import odd
from helpers.in_float64 import build_in_float64, in_float64, randomise
from helpers.module_loops import assert_near, randomised
from helpers.small_specs import DENSE, MLA

from metacount.huggingface.config.to_spec import spec_from_config
from metacount.huggingface.weights import load_weights
from metacount.measure.transformers_private import run_prediction
from metacount.modules.build import build, build_prediction
from metacount.modules.model import MultiTokenPrediction
from metacount.spec import ModelSpec

torch.set_num_threads(1)

N = 6  # tokens


def made(sizes: dict[str, Any]) -> MultiTokenPrediction:
    """Prediction modules and their model on the CPU in float64, nothing left at 0 or 1."""
    main = build(ModelSpec.from_dict(sizes), device="cpu", dtype="fp32", seed=1)
    return randomised(build_prediction(main))


def given(modules: MultiTokenPrediction) -> tuple[torch.Tensor, torch.Tensor]:
    """What a model gives over a few tokens, and the tokens after each, and more for each module."""
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, 101, (2, N + len(modules.layers)), generator=generator)
    hidden = modules.main(tokens[:, :N]).hidden_BSD
    return hidden, tokens[:, 1:]


@pytest.mark.parametrize("sizes", [{**DENSE, "n_mtp_layers": 2}, {**MLA, "n_mtp_layers": 1}])
def test_token_by_token_gives_the_same(sizes: dict[str, Any]) -> None:
    modules = made(sizes)
    hidden, tokens = given(modules)
    more = len(modules.layers) - 1
    with torch.no_grad():
        whole, cache = modules(hidden, tokens), modules.new_cache()
        steps = [
            modules(
                hidden[:, i : i + 1],
                tokens[:, i : i + 1 + more],
                cache=cache,
                absorbed=sizes.get("attention") == "mla",
            )
            for i in range(N)
        ]
    for k, logits in enumerate(whole):
        assert_near(torch.cat([step[k] for step in steps], dim=1), logits)


CONFIG = {**odd("deepseek_v3"), "num_hidden_layers": 1, "first_k_dense_replace": 0}
CONFIG |= {"kv_lora_rank": 14, "qk_nope_head_dim": 6, "num_nextn_predict_layers": 1}


def test_logits_are_those_of_transformers_own_modules() -> None:
    transformers = pytest.importorskip("transformers.modeling_layers")
    if not hasattr(transformers, "MtpModel"):
        pytest.skip("this version of transformers makes no prediction modules")
    theirs = build_in_float64(CONFIG)
    with in_float64():
        their_modules = transformers.MtpModel(theirs, 1).to(torch.float64).eval()
    randomise(their_modules.layers, seed=5)
    mapped = spec_from_config(CONFIG)
    main = build(mapped.spec, device="cpu", dtype="fp32").double()
    load_weights(main, theirs.state_dict(), mapped)
    # the layer of their module has the names of a layer of the model: a second model takes it
    carrier = build(mapped.spec, device="cpu", dtype="fp32").double()
    own = "mtp_block."
    state = {k: v for k, v in theirs.state_dict().items() if "layers.0." not in k}
    layer = their_modules.layers[0].state_dict()
    state |= {f"model.layers.0.{k[len(own) :]}": v for k, v in layer.items() if k.startswith(own)}
    load_weights(carrier, state, mapped)
    modules = build_prediction(main)
    (one,) = modules.each
    one.layer.load_state_dict(carrier.last_stack.blocks[0].state_dict())
    names = {"enorm": "enorm", "hnorm": "hnorm", "eh_proj": "eh_proj", "norm": "post_norm"}
    for mine, other in names.items():
        getattr(one, mine).weight.data.copy_(layer[f"{other}.weight"])
    hidden, tokens = given(modules)
    with torch.no_grad(), in_float64():
        (expected,) = run_prediction(their_modules, hidden, tokens)
    with torch.no_grad():
        (found,) = modules(hidden, tokens)
    assert_near(found, expected, relative=1e-10)
