"""The commands on configs: a folder, a repository, a model type; with and without a spec."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from helpers.release import one_day_in

import metacount
from metacount.cli import main

TINY = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "intermediate_size": 17,
    "vocab_size": 101,
    "tie_word_embeddings": False,
}
# embedding and head 2·101·12; per layer: q and o 2·12·60, k and v 2·12·20, FFN 3·12·17, norms 2·12;
# final norm 12
TINY_PARAMS = 2 * 101 * 12 + 3 * (2 * 12 * 60 + 2 * 12 * 20 + 3 * 12 * 17 + 2 * 12) + 12


def folder_of(path: Path, config: dict[str, Any]) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    return path


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    """Exit code and JSON of a command."""
    code = main([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_folder_with_a_config(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "tiny", TINY)
    for argument in (str(folder), str(folder / "config.json")):
        code, counted = answer(capsys, "count", argument)
        assert (code, counted["params"], counted["source"]) == (0, TINY_PARAMS, "formula")
    code, verified = answer(capsys, "verify", str(folder), "--seq", "7")
    assert (code, verified["agree"]) == (0, True)
    names = [witness["name"] for witness in verified["witnesses"]]
    assert names == ["formula", "reference", "transformers"]
    for quantity in ("params", "matmul_flops", "decode_matmul_flops", "kv_cache_bytes"):
        assert len({witness[quantity] for witness in verified["witnesses"]}) == 1


def test_a_model_without_a_spec_is_measured(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = folder_of(tmp_path / "odd", {**TINY, "a_key_of_tomorrow": 3})
    code, counted = answer(capsys, "count", str(folder))
    assert (code, counted["params"], counted["source"]) == (0, TINY_PARAMS, "transformers")
    assert "a_key_of_tomorrow" in counted["warnings"][0]
    assert main(["count", str(folder)]) == 0
    assert "no formula: a_key_of_tomorrow" in capsys.readouterr().out
    code, verified = answer(capsys, "verify", str(folder))
    assert [witness["name"] for witness in verified["witnesses"]] == ["transformers"]
    assert main(["verify", str(folder)]) == 0
    assert "there is nothing to compare it with" in capsys.readouterr().out
    assert main(["formula", str(folder)]) == 2


BERT = {"model_type": "nomic_bert", "architectures": ["NomicBertModel"], "vocab_size": 101,
        "hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 6,
        "intermediate_size": 17}  # fmt: skip
TEXT = {k: v for k, v in TINY.items() if k != "architectures"}
LLAVA = {"model_type": "llava", "text_config": TEXT}


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({**BERT, "n_layer": 5}, "n_layer"),
        ({**BERT, "num_key_value_heads": 2}, "num_key_value_heads"),
        ({**BERT, "num_experts": 8}, "num_experts"),
        ({**LLAVA, "hidden_size": 24}, "hidden_size"),
        ({**LLAVA, "text_config": {**TEXT, "n_layer": 5}}, "text_config.n_layer"),
        ({**LLAVA, "vision_config": {"n_head": 5}}, "vision_config.n_head"),
        ({**LLAVA, "llm_config": {**TEXT, "hidden_size": 24}}, "llm_config.hidden_size"),
        # those who have the sizes in place are told of no key to remove, if others are not read
        ({**LLAVA, "architectures": ["LlavaLlamaForCausalLM"], "odd": 3}, "architectures"),
    ],
)
def test_a_size_that_the_class_does_not_read_is_no_count(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, config: dict[str, Any], field: str
) -> None:
    folder = folder_of(tmp_path / "wrong", config)
    for command in ("count", "verify", "tree"):
        assert main([command, str(folder)]) == 2
        said = capsys.readouterr().err
        assert f"{field} " in said and "remove" not in said
        # nor is one told to give as many heads as there are for keys
        sizes = field not in ("num_key_value_heads", "num_experts", "architectures")
        assert ("write it as" in said) is sizes


def test_what_the_class_does_not_read_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Sizes are what was built: nothing is to be said of those."""
    sizes = {"n_layer": 3, "n_embd": 12, "num_key_value_heads": 6, "num_experts": 1}
    beside = {"odd_key": 7, "head_dims": {"n_layer": 5}, "unset": None, "temperature": 0.5}
    folder = folder_of(tmp_path / "odd", {**BERT, **sizes, **beside})
    code, counted = answer(capsys, "count", str(folder))
    # tables 101 and 2 (of types); per layer: 4·12², 3·12·17 and two norms; one after the embedding
    assert counted["params"] == 103 * 12 + 3 * (4 * 12**2 + 3 * 12 * 17 + 4 * 12) + 2 * 12
    assert code == 0 and "NomicBertConfig has no field for odd_key, head_dims" in counted["detail"]
    assert "no field for odd_key, head_dims" in str(metacount.summary(folder).notes)
    for name in (*sizes, "unset", "temperature"):
        assert name not in counted["detail"]
    saved = transformers.NomicBertConfig(**{k: v for k, v in BERT.items() if k != "model_type"})
    code, counted = answer(capsys, "count", str(folder_of(tmp_path / "saved", saved.to_dict())))
    assert (code, "has no field for" in counted["detail"]) == (0, False)


def test_a_checkpoint_beside_the_config(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = transformers.LlamaConfig(**{k: v for k, v in TINY.items() if k != "model_type"})
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "saved")
    code, verified = answer(capsys, "verify", str(tmp_path / "saved"), "--seq", "3")
    assert (code, verified["differences"]) == (0, [])
    assert verified["witnesses"][-1]["name"] == "checkpoint"
    assert verified["witnesses"][-1]["params"] == TINY_PARAMS
    # the config now speaks of one layer more than the file holds
    folder_of(tmp_path / "saved", {**TINY, "num_hidden_layers": 4})
    code, verified = answer(capsys, "verify", str(tmp_path / "saved"), "--seq", "3")
    assert (code, verified["agree"]) == (1, False)
    assert any("model.layers.3.mlp.up_proj.weight" in line for line in verified["differences"])


@one_day_in(6)
def test_a_head_of_its_own_that_the_class_shares_is_a_difference(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """T5 v1.1: transformers' config class ties what the config and the file keep apart."""
    from safetensors.torch import load_file, save_file

    config = transformers.T5Config(
        vocab_size=101, d_model=12, d_kv=4, d_ff=17, num_layers=2, num_heads=3
    )
    folder = tmp_path / "t5"
    transformers.T5ForConditionalGeneration(config).save_pretrained(folder)
    code, verified = answer(capsys, "verify", str(folder), "--seq", "5")
    assert (code, verified["differences"]) == (0, [])
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = torch.randn(101, 12)
    save_file(tensors, folder / "model.safetensors")
    stored = json.loads((folder / "config.json").read_text())
    folder_of(folder, {**stored, "tie_word_embeddings": False})
    code, verified = answer(capsys, "verify", str(folder), "--seq", "5")
    assert code == 1
    (line,) = verified["differences"]
    assert line.startswith("checkpoint: lm_head.weight (1,212 values): the config says")


def test_a_type_whose_default_makes_no_spec(capsys: pytest.CaptureFixture[str]) -> None:
    """DeepSeek-V2's default names no number of experts per token."""
    code, verified = answer(capsys, "verify", "type:deepseek_v2", "--seq", "16")
    assert code == 0
    (theirs,) = verified["witnesses"]
    assert (theirs["name"], theirs["active_params"]) == ("transformers", None)
    assert theirs["params"] > 10**10
    assert "num_experts_per_tok must be a whole number: got None" in verified["notes"][0]


def in_a_process(hub: Any, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    return subprocess.run(
        [sys.executable, "-m", "metacount", *arguments],
        env={**plain, "HF_HOME": str(hub.cache), "HF_ENDPOINT": hub.url, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@one_day_in(6)
def test_a_repository(hub: Any) -> None:
    config = transformers.LlamaConfig(**{k: v for k, v in TINY.items() if k != "model_type"})
    transformers.LlamaForCausalLM(config).save_pretrained(hub.folder)
    counted = in_a_process(hub, "count", "org/name", "--json")
    assert json.loads(counted.stdout)["params"] == TINY_PARAMS
    verified = in_a_process(hub, "verify", "org/name", "--seq", "3", "--json")
    data = json.loads(verified.stdout)
    assert [witness["name"] for witness in data["witnesses"]][-1] == "checkpoint"
    assert (verified.returncode, data["differences"]) == (0, [])
    # from the cache, without the hub
    again = in_a_process(hub, "count", "org/name", "--json", HF_HUB_OFFLINE="1")
    assert json.loads(again.stdout)["params"] == TINY_PARAMS


def test_a_repository_that_cannot_be_had(hub: Any) -> None:
    done = in_a_process(hub, "count", "org/name", HF_HUB_OFFLINE="1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "HF_HUB_OFFLINE forbids the hub" in done.stderr
    assert done.stderr.count("\n") == 1
