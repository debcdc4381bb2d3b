"""`metacount diff`: what was added, taken away, replaced or resized, and that it adds up."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from helpers.command_line import Ask
from helpers.release import chosen, one_day_in

import metacount
from metacount import catalog
from metacount.cli.diff import TITLES
from metacount.diff.compared import QUANTITIES, parts
from metacount.textbook.count import count, fitted

BUILT = [e.id for e in catalog.entries() if e.sizes is not None]
RWKV = {
    "model_type": "rwkv", "num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 100,
    "attention_hidden_size": 64, "intermediate_size": 256, "context_length": 48,
}  # fmt: skip


@pytest.mark.parametrize("name", chosen(BUILT, lambda i: i % 6 == 0 or "zamba2" in BUILT[i]))
def test_the_parts_of_a_model_add_up_to_its_count(name: str) -> None:
    spec = catalog.entry(name).spec()
    run = fitted(spec, metacount.Request(batch_size=3, seq_len=33))
    figures = count(spec, run).to_dict()
    made = parts(spec, run)
    for quantity in QUANTITIES:
        assert sum(part.values[quantity] for part in made) == figures[quantity], quantity
    assert all(part.one * part.copies == part.values["params"] for part in made)


def test_the_values_of_parts_by_hand() -> None:
    found = metacount.diff("llama-7b", "mixtral-8x7b")
    row = found.row("feed-forward")
    assert row.values("params") == (32 * 3 * 4096 * 11008, 32 * 4096 * 8 * (3 * 14336 + 1))
    # two experts and the whole router, for each token
    assert row.values("active_params")[1] == 32 * 4096 * (2 * 3 * 14336 + 8)
    assert found.row("attention").fields == {"n_kv_heads": (32, 8)}
    assert found.row("attention").values("kv_cache_bytes") == (2**30, 2**28)


# Of two models, every part that is not the same, by what was done to it.
DONE = {
    "llama-7b mixtral-8x7b": {
        "replaced": "feed-forward", "resized": "attention", "changed": "norms positions",
    },
    "llama2-70b deepseek-v3": {
        "replaced": "attention", "added": "mixture",
        "resized": "embedding feed-forward head norms", "changed": "positions",
    },
    "bert-base gpt2": {
        "removed": "pooler", "added": "head", "resized": "embedding positions",
        "changed": "feed-forward norms",
    },
    "t5-small bert-base": {
        "removed": "decoder_attention decoder_cross-attention decoder_feed-forward decoder_norms "
        "head",
        "replaced": "positions encoder_norms", "added": "pooler",
        "resized": "embedding encoder_attention encoder_feed-forward",
    },
    "gpt2 gpt2": {},
}  # fmt: skip


@pytest.mark.parametrize("pair", DONE)
def test_what_was_done(pair: str) -> None:
    done: dict[str, set[str]] = {}
    for row in metacount.diff(*pair.split()).rows:
        if row.status != "same":
            done.setdefault(row.status, set()).add(f"{row.stack} {row.name}".strip())
    named = {status: {*names.split()} for status, names in DONE[pair].items()}
    assert done == {
        status: {name.replace("_", " ") for name in names} for status, names in named.items()
    }


@pytest.mark.parametrize("pair", ["llama-7b mixtral-8x7b", "t5-small bert-base"])
def test_printed_columns_add_up(ask: Ask, pair: str) -> None:
    lines = ask(f"diff {pair}", width=140).splitlines()
    tables = [lines.index(title) + 2 for title in TITLES.values() if title in lines]
    assert len(tables) >= 3
    for start in tables:
        *each, total = (
            [int(cell.replace(",", "")) for cell in re.split(r"\s{2,}", row)[1:4]]
            for row in lines[start : lines.index("", start)]
            if not row.startswith("---")
        )
        assert [sum(column) for column in zip(*each, strict=True)] == total
        assert all(b - a == difference for a, b, difference in [*each, total])


def test_a_model_against_itself_changed(ask: Ask) -> None:
    data = ask.json("diff llama-7b --set n_kv_heads=8 --set residual_scale=0.5")
    assert data["models"] == ["llama-7b", "n_kv_heads=8, residual_scale=0.5"]
    assert [p["part"] for p in data["parts"] if p["status"] != "same"] == ["attention"]
    assert data["fields"] == {"residual_scale": [1.0, 0.5]}  # beside the parts
    assert metacount.diff("gpt2", "gpt2").same


@one_day_in(6)
def test_without_a_formula_roles_are_compared(ask: Ask, tmp_path: Path) -> None:
    file = tmp_path / "rwkv.json"
    file.write_text(json.dumps(RWKV))
    data = ask.json(f"diff {file} gpt2 --seq 16")
    assert data["figures"]["params"]["a"] == ask.json(f"count {file} --seq 16")["params"]
    for quantity in ("params", "matmul_flops", "kv_cache_bytes"):
        for side in ("a", "b"):
            total = sum(part[quantity][side] for part in data["parts"])
            assert total == data["figures"][quantity][side]
    assert {part["part"]: part["status"] for part in data["parts"]}["attention"] == "added"
    assert "by role alone" in data["notes"][0]


@one_day_in(6)
def test_both_run_as_many_tokens_where_no_length_is_asked_for() -> None:
    found = metacount.diff("gpt2", "deepseek-v3")
    run = metacount.Workload(seq_len=1024)  # all the positions of GPT-2
    for side, name in ((found.a, "gpt2"), (found.b, "deepseek-v3")):
        assert side.figures["matmul_flops"] == metacount.count(name, run).matmul_flops
    measured = metacount.diff("llama-7b", RWKV)  # of whose config the context is 48
    assert (measured.a.workload.seq_len, measured.b.workload.seq_len) == (48, 48)
    asked = metacount.diff("gpt2", "llama-7b", metacount.Workload(seq_len=16))
    assert asked.b.workload.seq_len == 16
