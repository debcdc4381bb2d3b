"""transformers' own module from any config: totals, roles, class, limits, and no allocation."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import pytest
from helpers import one_line

torch = pytest.importorskip("torch")

import metacount  # noqa: E402
from metacount.errors import SpecError  # noqa: E402
from metacount.huggingface.config.limits import checked_config  # noqa: E402
from metacount.huggingface.module.model import build_transformers  # noqa: E402
from metacount.measure.theirs import measure_any_params  # noqa: E402

LLAMA_7B = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
# distinct primes wherever heads allow; every total below is worked out by hand
TINY_MIXTRAL = {
    "model_type": "mixtral",
    "vocab_size": 101,
    "hidden_size": 12,
    "intermediate_size": 17,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "sliding_window": None,
}
EXPERT = 3 * 12 * 17  # gate, up and down
TINY_ATTENTION = 12 * 24 + 2 * 12 * 8 + 24 * 12


def test_roles_and_active_by_hand() -> None:
    found = measure_any_params(build_transformers(TINY_MIXTRAL)[0])
    assert found.by_role == {
        "embedding": 101 * 12,
        "position": 0,
        "attention": 3 * TINY_ATTENTION,
        "recurrent": 0,
        "ffn": 0,
        "moe": 3 * (5 * EXPERT + 5 * 12),  # the router [5, 12] is whole
        "norm": (3 * 2 + 1) * 12,
        "head": 101 * 12,
        "other": 0,
    }
    assert found.active_by_role is not None
    assert found.active_by_role["moe"] == 3 * (2 * EXPERT + 5 * 12)
    assert found.no_embed == found.active_params - 101 * 12  # type: ignore[operator]
    assert found.unclaimed == ()


def test_experts_in_a_list() -> None:
    config = {
        "model_type": "switch_transformers",
        "d_model": 13,
        "d_kv": 5,
        "d_ff": 17,
        "num_heads": 3,
        "num_layers": 2,
        "num_decoder_layers": 2,
        "num_experts": 7,
        "num_sparse_encoder_layers": 1,
        "num_sparse_decoder_layers": 1,
        "vocab_size": 101,
    }
    found = measure_any_params(build_transformers(config)[0])
    assert found.active_by_role is not None
    layers = 2  # every second layer of each stack
    expert, router = 2 * 13 * 17, 7 * 13
    assert found.by_role["moe"] == layers * (7 * expert + router)
    assert found.active_by_role["moe"] == layers * (expert + router)  # one expert per token


def test_tied_weights_count_once_and_stay_active() -> None:
    tied = {**TINY_MIXTRAL, "tie_word_embeddings": True}
    found = measure_any_params(build_transformers(tied)[0])
    assert found.by_role["embedding"] == 101 * 12
    assert found.by_role["head"] == 0
    assert found.no_embed == found.active_params


def test_class_named_by_architectures_and_by_type() -> None:
    assert str(build_transformers(LLAMA_7B)[1]) == "LlamaForCausalLM (named by architectures)"
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


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"model_type": "mixtrall"}, "mixtral"),
        ({"model_type": None}, "model_type"),
        ({"model_type": 7}, "model_type"),
        ({"architectures": ["NoSuchForCausalLM"]}, "names no model"),
        ({"architectures": ["BertModel"]}, "model_type"),
        ({"architectures": ["logger"]}, "names no model"),
        ({"architectures": [3]}, ""),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is too large"),
        ({"num_hidden_layers": -(10**9)}, "num_hidden_layers"),
        ({"hidden_size": 2**40}, "hidden_size is too large"),
        ({"vocab_size": "many"}, "makes no MixtralConfig"),
        ({"hidden_size": None}, "makes no Mixtral"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"use_pretrained_backbone": True}, ""),
        ({"layer_types": ["full_attention"] * 100_000}, "at most 65536 items"),
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


def test_nesting_is_bounded() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"text_config": deep}
    with pytest.raises(SpecError, match="nested at most 12"):
        checked_config(deep)


def test_no_weight_is_allocated() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    module, _ = build_transformers("deepseek_v3")
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert all(p.is_meta for p in module.parameters())
    assert all(b.is_meta for b in module.buffers())
    # one expert tensor would be 30 GB; the module itself and transformers' code stay below this
    assert grown < 600_000  # KiB


def test_what_a_constructor_refuses_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    sizes = {"num_hidden_layers": 1, "hidden_size": 52, "vocab_size": 101, "num_attention_heads": 2}
    file.write_text(json.dumps({"model_type": "llama", **sizes, "pad_token_id": 101}))
    with pytest.raises(SpecError, match=r"mine\.json: config makes no LlamaForCausalLM"):
        metacount.verify(str(file), seq_len=8)
