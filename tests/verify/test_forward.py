"""`metacount verify --forward`: both modules run with the same weights; a difference is seen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.command_line import refused, run, run_json
from helpers.small_configs import small_config

from metacount.cli import main
from metacount.cli.report import in_text
from metacount.cli.verify import forward_report
from metacount.resolve import model_of
from metacount.verify import forward

BASE: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 3,
    "hidden_size": 42,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "intermediate_size": 71,
    "vocab_size": 101,
    "pad_token_id": 0,
}
# Bytes in float32: the table, a layer (q and o, k and v, the feed-forward, two norms).
TABLE, LAYER = 4 * 101 * 42, 4 * (2 * 42 * 60 + 2 * 42 * 20 + 3 * 42 * 71 + 2 * 42)

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": BASE,
    "tied": {**BASE, "tie_word_embeddings": True},
    **{name: small_config(name) for name in ("qwen3", "gemma2", "mixtral", "gpt2", "t5", "mamba")},
    "bert": {**small_config("bert"), "architectures": ["BertForMaskedLM"]},
}


@pytest.fixture
def file(tmp_path: Path) -> Any:
    def written(config: dict[str, Any]) -> str:
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config), encoding="utf-8")
        return str(path)

    return written


@pytest.mark.parametrize("name", CONFIGS)
def test_both_modules_compute_the_same(
    name: str, file: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("verify", file(CONFIGS[name]), "--seq", "7", "--batch", "2", "--forward", "cpu")
    found = run_json(capsys, *asked)["forward"]
    assert (found["agree"], found["refused"], found["compared"]) == (True, "", "logits")
    assert found["values"] == 2 * 7 * CONFIGS[name]["vocab_size"]
    assert found["largest_difference"] < 1e-5
    assert found["largest_value"] > 1e-2
    assert found["offloaded_bytes"] == {"transformers": 0, "reference": 0}


@pytest.mark.parametrize("tied", [False, True])
def test_a_module_larger_than_the_device_runs_through_accelerate(tied: bool) -> None:
    model = model_of({**BASE, "tie_word_embeddings": tied})
    ends = (1 if tied else 2) * TABLE + 4 * 42
    # room for the ends, a layer, and what accelerate keeps free for the largest layer
    found = forward.compare_forwards(model, memory=ends + 2 * LAYER + TABLE)
    for bytes_away in found.offloaded_bytes:
        assert bytes_away % LAYER == 0
        assert 0 < bytes_away <= 2 * LAYER
    whole = forward.compare_forwards(model)
    assert found.largest_difference == whole.largest_difference
    assert whole.offloaded_bytes == (0, 0)
    assert "offloaded  through accelerate's dispatch" in in_text([forward_report("toy", found)])
    assert "offloaded" not in in_text([forward_report("toy", whole)])


def test_a_difference_is_seen(
    file: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    load = forward.load_weights

    def loaded_wrongly(reference: Any, *given: Any) -> None:
        load(reference, *given)
        with torch.no_grad():
            next(reference.last_stack.layers[1].parameters()).mul_(1.01)

    monkeypatch.setattr(forward, "load_weights", loaded_wrongly)
    asked = ("verify", file(BASE), "--seq", "7", "--forward", "cpu")
    assert main([*asked, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["agree"], found["forward"]["agree"]) == (True, False)
    assert found["forward"]["largest_difference"] > forward.TOLERANCE
    assert main(list(asked)) == 1
    assert "DIFFERENT" in capsys.readouterr().out


def test_what_cannot_be_loaded_is_not_run(
    file: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: Any) -> None:
        raise forward.WeightsError("lm_head.weight is left over")

    monkeypatch.setattr(forward, "load_weights", refuses)
    asked = ("verify", file(BASE), "--seq", "7", "--forward", "cpu")
    assert run_json(capsys, *asked)["forward"]["agree"] is None
    assert "not run  lm_head.weight is left over" in run(capsys, *asked)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("gpt2 --forward cpu", "--forward needs a config that both sides run: gpt2 has none"),
        ("--all --forward cpu", "--forward needs a config that both sides run"),
        ("type:gpt2 --set n_layers=2 --forward cpu", "type:NAME of a mapped type, a config.json"),
        ("type:gpt2 --memory 1GB", "--memory belongs to --forward"),
        ("type:gpt2 --forward cpu --memory 1MB", "must hold what is outside the blocks"),
        ("type:gpt2 --forward gpu", "invalid choice: 'gpu'"),
        ("type:deepseek_v3 --forward cpu --seq 7", "give a config with fewer layers"),
    ],
)
def test_what_cannot_run_is_one_line(
    capsys: pytest.CaptureFixture[str], asked: str, said: str
) -> None:
    assert said in refused(capsys, "verify", *asked.split())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_cuda_is_asked_for_where_there_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "verify", "type:gpt2", "--seq", "7", "--forward", "cuda")
    assert "torch finds no CUDA device here; choose cpu" in said
