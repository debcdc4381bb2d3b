"""Without --seq, a model runs what it can run, and says so; with it, what was asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.command_line import run, run_json
from helpers.release import daily, one_day_in

import metacount
from metacount import catalog
from metacount.cli import main
from metacount.errors import InputError
from metacount.huggingface.module.model import longest_of

# tokens that a model has positions for, or 2,048, by hand from what was published:
# BERT 512; GPT-2 1,024; OPT 2,048 (2,050 rows, of which the first two are never used)
LENGTHS = {
    "bert-base": 512,
    "gpt2": 1024,
    "llama-7b": 2048,
    "t5-11b": 2048,
    "type:opt": 2048,
    "type:roberta": 510,
}


@daily(6)
@pytest.mark.parametrize(("name", "length"), LENGTHS.items())
def test_every_command_runs_what_the_model_can_run(
    capsys: pytest.CaptureFixture[str], name: str, length: int
) -> None:
    alone, asked = (run_json(capsys, "count", name, *more) for more in ((), ("--seq", str(length))))
    assert alone == asked
    assert alone["workload"]["seq_len"] == length
    assert alone["warnings"] == []
    assert metacount.count(name).to_dict().items() <= alone.items()
    for command in (
        ("formula", name, "--quantity", "matmul_flops", "--json"),
        ("check", "0", name, "--quantity", "matmul_flops", "--json"),
        ("count", name, "--conventions", "--json"),
    ):
        if name == "t5-11b" and "--conventions" in command:
            continue  # it is of models with one stack
        codes = [main([*command, *seq]) for seq in ((), ("--seq", str(length)))]
        out = capsys.readouterr().out
        assert codes[0] == codes[1] and out[: len(out) // 2] == out[len(out) // 2 :]


def test_a_length_that_is_the_model_s_own_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert "seq 512 (all its positions)" in run(capsys, "count", "bert-base")
    assert "seq 1024 (all its positions)" in run(capsys, "count", "gpt2")
    assert "positions)" not in run(capsys, "count", "llama-7b")
    assert "positions)" not in run(capsys, "count", "gpt2", "--seq", "1000")
    assert "seq_len 1024 (all its positions)" in run(capsys, "count", "gpt2", "--conventions")
    formula = run(capsys, "formula", "gpt2", "--quantity", "kv_cache_bytes")
    assert "1,024" in formula
    assert "(all its positions)" in formula


def test_models_of_different_lengths_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(capsys, "count", "bert-base", "gpt2", "llama-7b").splitlines()
    assert lines[0] == "batch 1, bf16 (2 bytes per value)"
    assert ["seq_len", "512", "1024", "2048"] in [line.split() for line in lines]
    assert not any("warning" in line for line in lines)
    lines = run(capsys, "count", "bert-base", "gpt2", "--seq", "77").splitlines()
    assert lines[0] == "batch 1, seq 77, bf16 (2 bytes per value)"
    assert not any(line.startswith("seq_len") for line in lines)


def test_a_length_that_was_asked_for_stays(capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, "count", "bert-base", "--seq", "513")
    assert data["workload"]["seq_len"] == 513
    assert data["warnings"] == [
        "the model has 512 learned positions and cannot run 513; the counts go on as if it could"
    ]
    # of OPT's 2,050 rows two come before the first position
    data = run_json(capsys, "count", "type:opt", "--seq", "2049")
    assert "has 2048 learned positions and cannot run 2049" in data["warnings"][0]
    assert run_json(capsys, "count", "type:opt", "--seq", "2048")["warnings"] == []


def test_verify_has_all_figures_of_bert(capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, "verify", "type:bert")
    assert data["workload"]["seq_len"] == 512
    assert "seq_len 512: all its positions" in data["notes"]
    said = {w["name"]: w["matmul_flops"] for w in data["witnesses"]}
    assert said.keys() == {"formula", "reference", "transformers"}
    assert None not in said.values()
    assert len({*said.values()}) == 1
    for length in ("7", "512"):  # what was asked for needs no word, even if it is all positions
        assert run_json(capsys, "verify", "bert-base", "--seq", length)["notes"] == []


def test_a_model_without_a_formula_runs_what_its_config_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = run_json(capsys, "count", "type:bert-generation")
    assert data["workload"]["seq_len"] == 512
    assert data["matmul_flops"] is not None
    assert data["notes"] == ["seq_len 512: max_position_embeddings of its config"]
    data = run_json(capsys, "verify", "type:bert-generation")
    assert data["workload"]["seq_len"] == 512
    assert "seq_len 512: max_position_embeddings of its config" in data["notes"]
    assert longest_of("ctrl") == (256, "max_position_embeddings")
    assert longest_of("mamba") is None


@one_day_in(6)
def test_the_api_takes_a_model_in_any_form(tmp_path: Path) -> None:
    from transformers import GPT2Config

    llama = 6_738_415_616
    entry = metacount.entry("llama-7b")
    config = {"model_type": "gpt2", "n_layer": 3}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    assert {
        metacount.count(form).params
        for form in ("llama-7b", "LLaMA-7B", entry.spec(), metacount.find_model("llama-7b"))
    } == {llama}
    small = metacount.count(str(tmp_path)).params
    assert {
        metacount.count(form).params
        for form in (str(file), file, tmp_path, config, GPT2Config(n_layer=3))
    } == {small}
    assert metacount.check("0", config).ours_value == small
    assert metacount.check("0", GPT2Config(n_layer=3)).ours_value == small
    assert metacount.count("llama-7b", metacount.Workload(seq_len=7)).workload.seq_len == 7
    assert metacount.count("gpt2", metacount.Request(batch_size=3)).workload.seq_len == 1024
    found = metacount.verify(config, metacount.Workload(seq_len=5))
    assert found.agree
    assert [w.name for w in found.witnesses] == ["formula", "reference", "transformers"]
    alone = metacount.verify("type:rwkv", metacount.Workload(seq_len=5))
    assert [w.name for w in alone.witnesses] == ["transformers"]
    for wrong, said in (
        (7, "a model is a name, a path"),
        ("lama-7b", "did you mean"),
        ({"model_type": "rwkv"}, "has no textbook spec"),
        ({"model_type": "gpt2", "n_head": 5}, "n_head"),
        ({"d_model": 8}, "missing: kind .*, n_layers "),
        (tmp_path / "none.json", "none.json"),
    ):
        for ask in (metacount.count, lambda model: metacount.check("0", model)):
            with pytest.raises(InputError, match=said):
                ask(wrong)


def test_every_model_of_the_catalog_has_a_length_it_can_run() -> None:
    lengths = {
        e.id: metacount.count(e.spec()).workload.seq_len
        for e in catalog.entries()
        if e.sizes is not None
    }
    assert set(lengths.values()) >= {512, 1024, 2048}
    assert all(
        not metacount.count(name).warnings or "chunk" in metacount.count(name).warnings[0]
        for name in lengths
    )
