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
from helpers.release import daily, one_day_in

from metacount.cli import main
from metacount.resolve import Model, TransformersOnly, find_any

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


def test_counting_a_config_imports_neither_torch_nor_transformers(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "tiny", TINY)
    code = (
        "import sys; from metacount.cli import main\n"
        f"assert main(['count', {str(folder)!r}]) == 0\n"
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


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


def test_several_models_of_both_sorts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    odd = folder_of(tmp_path / "odd", {**TINY, "a_key_of_tomorrow": 3})
    code, both = answer(capsys, "count", "gpt2", str(odd))
    assert (code, [data["source"] for data in both]) == (0, ["formula", "transformers"])


def test_the_tree_of_a_config_is_transformers_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, shown = answer(capsys, "tree", str(folder_of(tmp_path / "tiny", TINY)))
    assert code == 0
    assert shown["tree"]["module"] == "LlamaForCausalLM"
    assert shown["tree"]["params"] == TINY_PARAMS
    (stack,) = (node for node in shown["tree"]["children"] if node["name"] == "model")
    (layers,) = (node for node in stack["children"] if node["name"] == "layers")
    assert [(node["name"], node["count"]) for node in layers["children"]] == [("0-2", 3)]


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


@pytest.mark.parametrize("name", ["LlamaModel", "GPT2Model"])
def test_a_body_without_a_head_agrees(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    gpt2 = {"model_type": "gpt2", "n_embd": 12, "n_layer": 2, "n_head": 3, "vocab_size": 101}
    config = {**(TINY if name == "LlamaModel" else gpt2), "architectures": [name]}
    code, verified = answer(capsys, "verify", str(folder_of(tmp_path, config)), "--seq", "5")
    assert (code, verified["differences"]) == (0, [])
    formula, reference, theirs = verified["witnesses"]
    assert formula["kv_cache_bytes"] == reference["kv_cache_bytes"] > 0
    assert theirs["kv_cache_bytes"] is None


@one_day_in(6)
def test_a_wrong_model_among_others_leaves_no_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "metacount", "verify", "gpt2", "type:nosuch"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("metacount: error: ")
    assert done.stderr.count("\n") == 1


def test_changes_and_notes_are_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = str(folder_of(tmp_path, TINY))
    _, verified = answer(capsys, "verify", folder, "--set", "n_layers=2", "--seq", "5")
    assert any(note.startswith("changed n_layers=2") for note in verified["notes"])
    _, verified = answer(capsys, "verify", "gpt2", "--seq", "2000")
    assert any("cannot run 2000" in note for note in verified["notes"])
    _, counted = answer(capsys, "count", folder)
    assert counted["notes"] == ["LlamaForCausalLM (named by architectures)"]


def test_a_broken_checkpoint_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = folder_of(tmp_path / "tiny", TINY)
    (folder / "model.safetensors").write_bytes(b"\xff" * 100)
    assert main(["verify", str(folder)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("metacount: error: ")
    assert printed.err.count("\n") == 1


@daily(3)
@pytest.mark.parametrize("name", ["type:llama", "type:gpt_oss", "type:deepseek_v3"])
def test_a_model_type(capsys: pytest.CaptureFixture[str], name: str) -> None:
    code, verified = answer(capsys, "verify", name, "--seq", "16")
    assert (code, verified["differences"]) == (0, [])
    assert len(verified["witnesses"]) == 3


def test_a_type_whose_default_makes_no_spec(capsys: pytest.CaptureFixture[str]) -> None:
    """DeepSeek-V2's default names no number of experts per token."""
    code, verified = answer(capsys, "verify", "type:deepseek_v2", "--seq", "16")
    assert code == 0
    (theirs,) = verified["witnesses"]
    assert (theirs["name"], theirs["active_params"]) == ("transformers", None)
    assert theirs["params"] > 10**10
    assert "num_experts_per_tok must be a whole number: got None" in verified["notes"][0]


def test_sizes_that_were_changed_leave_the_config_behind(tmp_path: Path) -> None:
    folder = str(folder_of(tmp_path / "tiny", TINY))
    model = find_any(folder, ["n_layers=5"])
    assert isinstance(model, Model)
    assert (model.spec.n_layers, model.source) == (5, None)
    assert isinstance(find_any("type:zamba"), TransformersOnly)


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


@daily(4)
@pytest.mark.parametrize(
    ("argument", "variables", "message"),
    [
        ("org/other", {}, "the hub knows no such repository"),
        ("org/name", {}, "has no config.json that could be read"),
        ("org/name", {"HF_ENDPOINT": "http://127.0.0.1:9"}, "the hub cannot be reached"),
        ("org/name", {"HF_HUB_OFFLINE": "1"}, "the hub cannot be reached"),
    ],
)
def test_a_repository_that_cannot_be_had(
    hub: Any, argument: str, variables: dict[str, str], message: str
) -> None:
    done = in_a_process(hub, "count", argument, **variables)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@one_day_in(6)
def test_no_expert_is_allocated() -> None:
    """DeepSeek-V3's experts take 30 GB a tensor when they are made for real."""
    code = """
import resource, torch
import transformers.models.deepseek_v3.modeling_deepseek_v3
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
from metacount.huggingface.module.model import build_transformers
module, _ = build_transformers("deepseek_v3")
assert all(p.is_meta for p in module.parameters())
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert after - before < 200_000, (before, after)  # KiB
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert torch.get_default_device() == torch.device("cpu")
