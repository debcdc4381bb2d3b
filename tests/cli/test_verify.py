"""`metacount verify`: witnesses side by side, wide or narrow; exit 1 where two disagree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.command_line import Ask
from helpers.miniatures import TINY_PARAMS


def test_verify_of_a_small_model(ask: Ask, tiny: str) -> None:
    data = ask.json(f"verify {tiny} --seq 7")
    assert (data["model"], data["agree"], len(data["witnesses"])) == ("tiny", True, 2)
    for witness in data["witnesses"]:
        keys = {"name", "active_params", "matmul_flops", "kv_cache_bytes", "detail"}
        assert keys <= set(witness) and witness["params"] == TINY_PARAMS


def test_verify_exits_1_when_witnesses_differ(
    ask: Ask, monkeypatch: pytest.MonkeyPatch, tiny: str
) -> None:
    from metacount.formulas import block

    # a column for each witness; a cache of nothing is no line
    lines = ask("verify textbook-block --seq 7").splitlines()
    rows = {words[0]: words[1:] for line in lines if (words := line.split())}
    assert rows["params"] == [*["3,147,776"] * 3, "equal"] and "kv_cache_bytes" not in rows
    # the formulas forget every feed-forward
    monkeypatch.setattr(block, "feed_forward", lambda t, part, x, width: x)
    code, out, _ = ask.all(f"verify {tiny} --seq 7 --json")
    data = json.loads(out)
    ours = TINY_PARAMS - 3 * 663
    gap = f"params: formula - reference = {ours:,} - {TINY_PARAMS:,} = -{3 * 663:,}"
    assert (code, data["agree"], data["differences"][0]) == (1, False, gap)
    for width, said in (
        (100, f"params {ours:,} {TINY_PARAMS:,} differ"),
        (44, f"params {ours:,} formula {TINY_PARAMS:,} reference"),
    ):
        text = " ".join(ask.all(f"verify {tiny} --seq 7", width=width)[1].split())
        assert said in text and f"DISAGREE {gap}" in text
    text = " ".join(ask.all(f"verify {tiny} textbook-block --seq 7", width=100)[1].split())
    assert "0 of 2 models agree" in text and f"tiny: {gap}" in text


def test_verify_has_all_figures_of_bert(ask: Ask) -> None:
    data = ask.json("verify type:bert")
    assert data["workload"]["seq_len"] == 512
    assert "seq_len 512: all its positions" in data["notes"]
    said = {w["name"]: w["matmul_flops"] for w in data["witnesses"]}
    assert said.keys() == {"formula", "reference", "transformers"}
    assert None not in said.values() and len({*said.values()}) == 1
    assert ask.json("verify bert-base --seq 512")["notes"] == []  # asked for: no word of it


def test_one_witness_alone_is_said_to_be_alone(ask: Ask, tmp_path: Path) -> None:
    config = {"model_type": "ctrl", "n_embd": 8, "n_layer": 2, "n_head": 2, "dff": 12}
    (tmp_path / "c.json").write_text(json.dumps({**config, "vocab_size": 17, "n_positions": 9}))
    assert "one witness  there is nothing to compare it with" in ask(f"verify {tmp_path}/c.json")
