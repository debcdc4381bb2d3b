"""The Python API takes a model in any form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.release import one_day_in

import metacount
from metacount.errors import InputError


@one_day_in(6)
def test_the_api_takes_a_model_in_any_form(tmp_path: Path) -> None:
    from transformers import GPT2Config

    entry = metacount.entry("llama-7b")
    config = {"model_type": "gpt2", "n_layer": 3}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    llama = ("llama-7b", "LLaMA-7B", entry.spec(), metacount.find_model("llama-7b"))
    assert {metacount.count(form).params for form in llama} == {6_738_415_616}
    small = metacount.count(str(tmp_path)).params
    forms = (str(file), file, tmp_path, config, GPT2Config(n_layer=3))
    assert {metacount.count(form).params for form in forms} == {small}
    assert metacount.check("0", config).ours_value == small
    assert metacount.check("0", GPT2Config(n_layer=3)).ours_value == small
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
