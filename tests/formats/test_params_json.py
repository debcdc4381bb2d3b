"""params.json as Meta and Mistral publish it, against the catalog's sizes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from helpers.command_line import refused, run_json

from metacount import catalog
from metacount.errors import InputError
from metacount.resolve import Model, find_any, model_of

LLAMA_7B = {
    "dim": 4096,
    "multiple_of": 256,
    "n_heads": 32,
    "n_layers": 32,
    "norm_eps": 1e-6,
    "vocab_size": -1,
}
LLAMA2_7B = {**LLAMA_7B, "norm_eps": 1e-5}
LLAMA_65B = {**LLAMA2_7B, "dim": 8192, "n_heads": 64, "n_layers": 80}
LLAMA2_70B = {**LLAMA_65B, "multiple_of": 4096, "ffn_dim_multiplier": 1.3, "n_kv_heads": 8}
LLAMA3_8B = {
    "dim": 4096,
    "n_layers": 32,
    "n_heads": 32,
    "n_kv_heads": 8,
    "vocab_size": 128256,
    "multiple_of": 1024,
    "ffn_dim_multiplier": 1.3,
    "norm_eps": 1e-5,
    "rope_theta": 500000.0,
}
LLAMA3_70B = {**LLAMA3_8B, "dim": 8192, "n_heads": 64, "n_layers": 80, "multiple_of": 4096}
LLAMA31_405B = {
    **LLAMA3_70B,
    "dim": 16384,
    "n_heads": 128,
    "n_layers": 126,
    "ffn_dim_multiplier": 1.2,
    "use_scaled_rope": True,
}
MISTRAL_7B = {
    "dim": 4096,
    "n_layers": 32,
    "head_dim": 128,
    "hidden_dim": 14336,
    "n_heads": 32,
    "n_kv_heads": 8,
    "norm_eps": 1e-5,
    "sliding_window": 4096,
    "vocab_size": 32000,
}
MIXTRAL = {
    **{k: v for k, v in MISTRAL_7B.items() if k != "sliding_window"},
    "moe": {"num_experts_per_tok": 2, "num_experts": 8},
}
NEMO = {
    "dim": 5120,
    "n_layers": 40,
    "head_dim": 128,
    "hidden_dim": 14336,
    "n_heads": 32,
    "n_kv_heads": 8,
    "rope_theta": 1000000.0,
    "norm_eps": 1e-5,
    "vocab_size": 131072,
    "model_type": "transformer",
}


def read(data: dict[str, Any]) -> Model:
    return model_of(data)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (LLAMA_7B, "llama-7b"),
        (LLAMA_65B, "llama-65b"),
        (LLAMA2_70B, "llama2-70b"),
        (LLAMA3_8B, "llama3-8b"),
        (LLAMA3_70B, "llama3-70b"),
        (LLAMA31_405B, "llama3.1-405b"),
        (MISTRAL_7B, "mistral-7b"),
        (MIXTRAL, "mixtral-8x7b"),
    ],
)
def test_a_published_file_is_the_catalogs_model(data: dict[str, Any], name: str) -> None:
    mine, theirs = read(data).spec.to_dict(), catalog.entry(name).spec().to_dict()
    # a catalog's entry may leave the scaling of RoPE open; both routers weigh the chosen two alike
    said = {"rope_scaling", "router"} if name in ("llama3.1-405b", "mixtral-8x7b") else set()
    if name == "llama-65b":
        said = {"norm_eps"}  # the catalog has one eps for LLaMA's four sizes
    assert {k: v for k, v in mine.items() if theirs[k] != v}.keys() <= said


def test_llama_2_is_llama_but_for_the_eps_of_its_norms() -> None:
    assert read(LLAMA2_7B).spec == catalog.entry("llama-7b").spec().replace(norm_eps=1e-5)


def test_scaled_rope_is_that_of_llama_3_1() -> None:
    scaling = read(LLAMA31_405B).spec.rope_scaling
    assert (scaling.kind, scaling.factor, scaling.n_trained) == ("llama3", 8.0, 8192)
    other = read({**LLAMA31_405B, "rope_scaling_factor": 32, "rope_high_freq_factor": 4})
    assert other.spec.rope_scaling.factor == 32.0


def test_mistral_nemo_has_heads_narrower_than_the_model() -> None:
    # 2 tables 131,072·5,120; a layer: q and o 5,120·4,096, k and v 5,120·1,024, FFN, two norms
    layer = 2 * 5120 * 4096 + 2 * 5120 * 1024 + 3 * 5120 * 14336 + 2 * 5120
    from metacount.formulas.model import params

    assert params(read(NEMO).spec) == 2 * 131072 * 5120 + 40 * layer + 5120


def test_what_is_taken_for_granted_is_said() -> None:
    notes = "\n".join(read(LLAMA2_7B).notes)
    assert "d_ff 11008 by its rule from dim, multiple_of and ffn_dim_multiplier" in notes
    assert "vocab_size -1 is the tokenizer's, 32000 pieces" in notes
    assert "does not say whether the head is tied" in notes
    assert "rope_theta is not given: 10000, as Mistral's code" in "\n".join(read(MISTRAL_7B).notes)
    assert read({**MISTRAL_7B, "rope_theta": 7e5}).spec.rope_theta == 7e5
    assert read({**MISTRAL_7B, "tied_embeddings": True}).spec.tie_embeddings


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({**LLAMA2_7B, "hidden_dim": 11008}, "hidden_dim"),
        ({k: v for k, v in LLAMA2_7B.items() if k != "multiple_of"}, "multiple_of is missing"),
        ({k: v for k, v in LLAMA2_7B.items() if k != "n_heads"}, "n_heads is missing"),
        ({k: v for k, v in MISTRAL_7B.items() if k != "vocab_size"}, "vocab_size is missing"),
        ({**LLAMA2_7B, "rope_theta": 1e6}, "vocab_size"),
        ({**LLAMA2_7B, "vocab_size": -2}, "vocab_size"),
        ({**LLAMA2_7B, "n_heads": 31}, "n_heads"),
        ({**LLAMA2_7B, "n_kv_heads": 5}, "n_kv_heads must divide n_heads: 32 % 5 = 2: got 5"),
        ({**LLAMA2_7B, "moe_args": {"num_experts": 16}}, "moe_args"),
        ({**MISTRAL_7B, "vision_encoder": {"hidden_size": 1024}}, "vision_encoder is not a key"),
        ({**MISTRAL_7B, "q_lora_rank": 1536}, "q_lora_rank"),
        ({**MISTRAL_7B, "use_biases": True}, "use_biases"),
        ({**MIXTRAL, "moe": 8}, "moe"),
        ({k: v for k, v in MISTRAL_7B.items() if k != "norm_eps"}, "norm_eps is missing"),
        ({**MIXTRAL, "moe": {"num_experts": 8}}, "num_experts_per_tok is missing"),
        ({**MIXTRAL, "moe": {"num_experts": 8, "num_experts_per_tok": 9}}, "num_experts_per_tok"),
        ({**MIXTRAL, "moe": {**MIXTRAL["moe"], "num_shared_experts": 1}}, "num_shared_experts is"),
        ({**LLAMA2_7B, "dim": 4096.5}, "dim"),
        ({**LLAMA2_7B, "dim": 10**30}, "dim"),
        ({**LLAMA2_7B, "ffn_dim_multiplier": "1.3"}, "ffn_dim_multiplier"),
        ({**LLAMA2_7B, "multiple_of": 0}, "multiple_of"),
    ],
)
def test_what_is_wrong_is_one_line_in_the_files_words(data: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)) as error:
        read(data)
    assert "\n" not in str(error.value)


def test_a_folder_with_a_params_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "Llama-2-7b"
    folder.mkdir()
    (folder / "params.json").write_text(json.dumps(LLAMA2_7B))
    data = run_json(capsys, "count", str(folder))
    assert data["params"] == 6_738_415_616  # Llama 2 7B: 2·32,000·4,096 + 32·202,383,360 + 4,096
    model = find_any(str(folder))
    assert isinstance(model, Model)
    assert (model.name, model.source is not None) == ("Llama-2-7b", True)
    # transformers' own file goes first
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    assert run_json(capsys, "count", str(folder))["params"] == 6_738_415_616
    (folder / "config.json").write_text("{")
    assert "config.json: is not JSON" in refused(capsys, "count", str(folder))


def test_how_it_is_run_is_no_part_of_the_model() -> None:
    run = {
        "max_batch_size": 32,
        "max_seq_len": 2048,
        "max_position_embeddings": 4096,
        "model_parallel_size": 2,
        "causal": True,
        "tokenizer_path": "tokenizer.model",
    }
    assert read({**LLAMA3_8B, **run}).spec == read(LLAMA3_8B).spec
