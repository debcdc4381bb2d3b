"""The text part of models that also see or hear, against transformers' whole module."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.beside_transformers import logits_apart
from helpers.in_float64 import build_in_float64
from helpers.release import daily, one_in
from helpers.small_configs import SMALL

from metacount.errors import InputError
from metacount.formulas import model as formulas
from metacount.huggingface.config.to_spec import COMPOSITES, LIKE, text_from_config
from metacount.huggingface.module.model import build_transformers, config_class
from metacount.huggingface.module.witness import transformers_witness
from metacount.huggingface.weights import load_weights
from metacount.measure.theirs import measure_any_forward, measure_any_params
from metacount.modules.build import build
from metacount.resolve import find_model, model_of
from metacount.spec import Workload

# What the composite class makes of a tie that is said beside the text part and in it.
TIES = [{}, {"tie_word_embeddings": True}, {"tie_word_embeddings": False}]
HEADS = {
    "llama4": "Llama4ForConditionalGeneration",
    "qwen3_5": "Qwen3_5ForConditionalGeneration",
    "qwen3_5_moe": "Qwen3_5MoeForConditionalGeneration",
}  # by default the class of the text part alone


# Of types that transformers has inside another model alone.
WITHIN: dict[str, dict[str, Any]] = {
    "step3p5": {
        **{"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 12},
        **{"intermediate_size": 72, "vocab_size": 101, "num_hidden_layers": 5, "sliding_window": 9},
        **{"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
        **{"share_expert_dim": 40, "attention_other_setting": {"num_attention_heads": 8}},
        **{"rope_theta": [7.0, 5.0, 5.0, 7.0, 5.0], "moe_layers_enum": "2,3,4", "pad_token_id": 0},
        "partial_rotary_factors": [0.5, 1.0, 1.0, 0.5, 1.0],
        "layer_types": ["full_attention", *["sliding_attention"] * 2] * 2,
        "num_nextn_predict_layers": 1,
    }
}


def small(model_type: str, outside: dict[str, Any], inside: dict[str, Any]) -> dict[str, Any]:
    kind = COMPOSITES[model_type][0]
    known = WITHIN[kind] if kind in WITHIN else SMALL[LIKE.get(kind, kind)]
    sizes = {k: v for k, v in known.items() if k != "tie_word_embeddings"}
    text = {**sizes, "model_type": kind, **inside}
    named = {"architectures": [HEADS[model_type]]} if model_type in HEADS else {}
    return {"model_type": model_type, **named, "text_config": text, **outside}


@daily(4)
@pytest.mark.parametrize("model_type", one_in(6, COMPOSITES))
def test_a_text_part_counts_like_transformers(model_type: str) -> None:
    for outside in TIES:
        for inside in TIES:
            config = small(model_type, outside, inside)
            theirs = measure_any_params(build_transformers(config)[0])
            found = text_from_config(config)
            assert found is not None
            spec = found[1].spec
            assert formulas.params(spec) == theirs.text_params, (outside, inside)
            assert formulas.active_params(spec) == theirs.text_active_params


@pytest.mark.parametrize(
    ("model_type", "figure", "tower"),
    [("llava", "vision_params", "vision_tower"), ("qwen3_asr", "audio_params", "audio_tower")],
)
def test_what_sees_or_hears_is_counted_apart(model_type: str, figure: str, tower: str) -> None:
    config = small(model_type, {}, {})
    theirs, _ = build_transformers(config)
    values = {name: p.numel() for name, p in theirs.named_parameters() if tower in name.split(".")}
    found = transformers_witness(config, Workload(seq_len=8)).figures
    assert found[figure] == sum(values.values()) > 0
    assert (found["text_params"] or 0) + sum(values.values()) <= (found["params"] or 0)


@pytest.mark.parametrize("model_type", ["qwen3_vl_moe", "step3p7"])
def test_a_text_part_runs_like_transformers(model_type: str) -> None:
    config, run = small(model_type, {}, {}), {"batch_size": 2, "seq_len": 24}
    theirs = measure_any_forward(build_transformers(config)[0], Workload(**run))
    found = text_from_config(config)
    assert found is not None and theirs.cache is not None
    assert theirs.prefill.matmul_flops == formulas.matmul_flops(found[1].spec, **run)
    kept = formulas.kv_cache_bytes(found[1].spec, **run, bytes_per_value=2)
    assert theirs.cache.kv_bytes == kept


@pytest.mark.parametrize(
    ("model_type", "tower"), [("qwen3_vl_moe", {"depth": 1}), ("step3p7", {"num_hidden_layers": 1})]
)
def test_a_text_part_computes_what_transformers_computes(
    model_type: str, tower: dict[str, Any]
) -> None:
    config = small(model_type, {"vision_config": tower}, {})
    theirs, found = build_in_float64(config), text_from_config(config)
    assert found is not None
    inner = "model.language_model."
    state = {
        name.replace(inner, "model."): value
        for name, value in theirs.state_dict().items()
        if name.startswith((inner, "lm_head."))
    }
    ours = build(found[1].spec, device="cpu", dtype="fp64", seed=1)
    load_weights(ours, state, found[1])
    assert logits_apart(ours, theirs) < 1e-11
    with torch.no_grad():  # which it would not be with one weight of another value
        ours.get_parameter("decoder.layers.0.self_attn.o_proj.weight").mul_(1.001)
    assert logits_apart(ours, theirs) > 1e-9


@pytest.mark.parametrize("kind", sorted(LIKE.keys() - {"qwen3_omni_moe_text"}))  # odd heads
def test_a_text_that_says_nothing_has_the_sizes_of_its_own_type(kind: str) -> None:
    whole = next(name for name, (text, _) in COMPOSITES.items() if text == kind)
    found = text_from_config({"model_type": whole, "text_config": {}})
    assert found is not None
    spec, theirs = found[1].spec, config_class(kind)()
    assert (spec.d_model, spec.n_layers, spec.n_heads, spec.n_kv_heads, spec.vocab_size) == (
        theirs.hidden_size,
        theirs.num_hidden_layers,
        theirs.num_attention_heads,
        theirs.num_key_value_heads,
        theirs.vocab_size,
    )


def test_flat_configs_are_read() -> None:
    """Qwen2-VL-2B as published: text beside vision_config."""
    sizes = {"hidden_size": 1536, "intermediate_size": 8960, "num_attention_heads": 12,
             "num_hidden_layers": 28, "num_key_value_heads": 2, "vocab_size": 151936}  # fmt: skip
    found = text_from_config({
        **sizes, "model_type": "qwen2_vl", "architectures": ["Qwen2VLForConditionalGeneration"],
        "vision_start_token_id": 151652, "tie_word_embeddings": True,
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
        "vision_config": {"depth": 32, "embed_dim": 1280, "hidden_size": 1536},
    })  # fmt: skip
    assert found is not None
    # Qwen2-1.5B: 1,543,714,304
    assert formulas.params(found[1].spec) == 1_543_714_304


def test_a_question_about_the_formula_is_one_about_the_text_part() -> None:
    model = model_of({"model_type": "llava"})
    assert model.name == "the text part of the config"
    assert any("what sees or hears is not in these figures" in note for note in model.notes)
    assert find_model("type:llava", ["n_layers=2"]).spec.n_layers == 2
    wrong = {"model_type": "llava", "text_config": {"hidden_act": "tanh"}}
    with pytest.raises(InputError, match="and its text part none: hidden_act has a value"):
        model_of(wrong)
