"""transformers' own module from any config: totals, roles, class, limits, and no allocation."""

from __future__ import annotations

import resource
from typing import Any

import pytest
from helpers import one_line
from helpers.small_configs import small_config

torch = pytest.importorskip("torch")

from metacount.errors import SpecError  # noqa: E402
from metacount.huggingface.module.model import build_transformers  # noqa: E402

TINY_MIXTRAL = small_config("mixtral")


def test_class_named_by_architectures_and_by_type() -> None:
    named = {**TINY_MIXTRAL, "architectures": ["MixtralForCausalLM"]}
    assert str(build_transformers(named)[1]) == "MixtralForCausalLM (named by architectures)"
    for model_type, said in [
        ("llama", "LlamaForCausalLM (the causal-LM class of type llama)"),
        ("t5", "T5ForConditionalGeneration (the seq2seq class of type t5)"),
        ("albert", "AlbertForMaskedLM (the masked-LM class of type albert)"),
        ("internlm3", "LlamaForCausalLM (the causal-LM class of type internlm3)"),
    ]:
        small = {"model_type": model_type, "num_hidden_layers": 1, "num_layers": 1}
        assert str(build_transformers(small)[1]) == said


def test_remote_code_is_never_run_and_said() -> None:
    config = {
        **TINY_MIXTRAL,
        "architectures": ["EvilForCausalLM"],
        "auto_map": {"AutoModelForCausalLM": "evil--modeling.EvilForCausalLM"},
    }
    _, choice = build_transformers(config)
    assert choice.class_name == "MixtralForCausalLM"
    assert "EvilForCausalLM is remote code" in choice.reason
    assert any("auto_map is ignored" in note for note in choice.notes)


def test_an_unknown_type_is_that_of_the_class_that_is_named() -> None:
    named = {**TINY_MIXTRAL, "model_type": "mixtral_ref", "architectures": ["MixtralForCausalLM"]}
    module, choice = build_transformers(named)
    same, _ = build_transformers(TINY_MIXTRAL)
    assert [p.shape for p in module.parameters()] == [p.shape for p in same.parameters()]
    said = "model_type mixtral_ref is not known to transformers: counted as mixtral"
    assert choice.model_type == "mixtral" and choice.notes[0] == said


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"model_type": "mixtrall", "architectures": ["NoSuchForCausalLM"]}, "mixtral"),
        ({"model_type": None}, "model_type"),
        ({"architectures": ["NoSuchForCausalLM"]}, "names no model"),
        ({"architectures": ["BertModel"]}, "model_type"),
        ({"architectures": ["logger"]}, "names no model"),
        ({"architectures": [3]}, ""),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is too large"),
        ({"vocab_size": "many"}, "makes no MixtralConfig"),
        ({"hidden_size": None}, "makes no Mixtral"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"use_pretrained_backbone": True}, ""),
    ],
)
def test_a_wrong_config_is_one_clear_line(change: dict[str, Any], match: str) -> None:
    with pytest.raises(SpecError, match=match or None) as caught:
        build_transformers({**TINY_MIXTRAL, **change})
    one_line(caught.value)


def test_a_library_that_a_class_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(*_: Any, **__: Any) -> None:
        raise ImportError("It needs the frame library.\nInstall it:\n`pip install frame`. Restart.")

    monkeypatch.setattr("transformers.MixtralForCausalLM.__init__", raises)
    with pytest.raises(SpecError) as caught:
        build_transformers(TINY_MIXTRAL)
    assert caught.value.remedy == "pip install frame"
    one_line(caught.value)


def test_no_weight_is_allocated() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    module, _ = build_transformers("deepseek_v3")
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert all(p.is_meta for p in module.parameters())
    assert all(b.is_meta for b in module.buffers())
    # one expert tensor would be 30 GB; the module itself and transformers' code stay below this
    assert grown < 600_000  # KiB
