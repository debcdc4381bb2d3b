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
LLAMA2_70B = {**LLAMA2_7B, "dim": 8192, "n_heads": 64, "n_layers": 80, "multiple_of": 4096,
               "ffn_dim_multiplier": 1.3, "n_kv_heads": 8}  # fmt: skip
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
LLAMA31_405B = {**LLAMA3_8B, "dim": 16384, "n_heads": 128, "n_layers": 126, "multiple_of": 4096,
                "ffn_dim_multiplier": 1.2, "use_scaled_rope": True}  # fmt: skip
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


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (LLAMA_7B, "llama-7b"),
        (LLAMA2_70B, "llama2-70b"),
        (LLAMA3_8B, "llama3-8b"),
        (LLAMA31_405B, "llama3.1-405b"),
        (MISTRAL_7B, "mistral-7b"),
        (MIXTRAL, "mixtral-8x7b"),
    ],
)
def test_a_published_file_is_the_catalogs_model(data: dict[str, Any], name: str) -> None:
    mine, theirs = model_of(data).spec.to_dict(), catalog.entry(name).spec().to_dict()
    # a catalog's entry may leave the scaling of RoPE open; both routers weigh the chosen two alike
    said = {"rope_scaling", "router"} if name in ("llama3.1-405b", "mixtral-8x7b") else set()
    assert {k: v for k, v in mine.items() if theirs[k] != v}.keys() <= said


def test_what_is_taken_for_granted_is_said() -> None:
    notes = "\n".join(model_of(LLAMA2_7B).notes)
    assert "d_ff 11008 by its rule from dim, multiple_of and ffn_dim_multiplier" in notes
    assert "vocab_size -1 is the tokenizer's, 32000 pieces" in notes
    assert "does not say whether the head is tied" in notes
    assert "rope_theta is not given: 10000, as Mistral's code" in "\n".join(
        model_of(MISTRAL_7B).notes
    )
    assert model_of({**MISTRAL_7B, "rope_theta": 7e5}).spec.rope_theta == 7e5
    assert model_of({**MISTRAL_7B, "tied_embeddings": True}).spec.tie_embeddings


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({**LLAMA2_7B, "hidden_dim": 11008}, "hidden_dim"),
        ({k: v for k, v in LLAMA2_7B.items() if k != "multiple_of"}, "multiple_of is missing"),
        ({k: v for k, v in MISTRAL_7B.items() if k != "vocab_size"}, "vocab_size is missing"),
        ({**LLAMA2_7B, "rope_theta": 1e6}, "vocab_size"),
        ({**LLAMA2_7B, "n_kv_heads": 5}, "n_kv_heads must divide n_heads: 32 % 5 = 2: got 5"),
        ({**LLAMA2_7B, "moe_args": {"num_experts": 16}}, "moe_args"),
        ({**MISTRAL_7B, "vision_encoder": {"hidden_size": 1024}}, "vision_encoder is not a key"),
        ({k: v for k, v in MISTRAL_7B.items() if k != "norm_eps"}, "norm_eps is missing"),
        ({**MIXTRAL, "moe": {"num_experts": 8}}, "num_experts_per_tok is missing"),
        ({**MIXTRAL, "moe": {"num_experts": 8, "num_experts_per_tok": 9}}, "num_experts_per_tok"),
        ({**MIXTRAL, "moe": {**MIXTRAL["moe"], "num_shared_experts": 1}}, "num_shared_experts is"),
        ({**LLAMA2_7B, "dim": 4096.5}, "dim"),
        ({**LLAMA2_7B, "ffn_dim_multiplier": "1.3"}, "ffn_dim_multiplier"),
    ],
)
def test_what_is_wrong_is_one_line_in_the_files_words(data: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)) as error:
        model_of(data)
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
