"""`metacount diff`: what was added, taken away, replaced or resized, and that it adds up."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest
from helpers.command_line import refused, run, run_json
from helpers.release import one_day_in, one_in

import metacount
from metacount import catalog
from metacount.cli.diff import TITLES
from metacount.diff.compared import QUANTITIES, Diff, parts
from metacount.figures import COUNTED, OF_SOME
from metacount.textbook.count import count, fitted

BUILT = [e.id for e in catalog.entries() if e.sizes is not None]


def statuses(found: Diff) -> dict[str, str]:
    return {f"{row.stack} {row.name}".strip(): row.status for row in found.rows}


@pytest.mark.parametrize("name", one_in(6, BUILT))
def test_the_parts_of_a_model_add_up_to_its_count(name: str) -> None:
    spec = catalog.entry(name).spec()
    run_ = fitted(spec, metacount.Request(batch_size=3, seq_len=33))
    figures = count(spec, run_).to_dict()
    made = parts(spec, run_)
    for quantity in QUANTITIES:
        assert sum(part.values[quantity] for part in made) == figures[quantity], quantity
    assert all(part.one * part.copies == part.values["params"] for part in made)


def test_only_the_feed_forward_was_replaced() -> None:
    found = metacount.diff("llama-7b", "mixtral-8x7b")
    by_name = statuses(found)
    assert [name for name, status in by_name.items() if status == "replaced"] == ["feed-forward"]
    assert by_name == {
        "embedding": "same",
        "positions": "changed",
        "attention": "resized",
        "feed-forward": "replaced",
        "norms": "changed",
        "head": "same",
    }
    row = found.row("feed-forward")
    assert row.values("params") == (32 * 3 * 4096 * 11008, 32 * 4096 * 8 * (3 * 14336 + 1))
    # two experts and the whole router, for each token
    assert row.values("active_params")[1] == 32 * 4096 * (2 * 3 * 14336 + 8)
    assert found.row("attention").fields == {"n_kv_heads": (32, 8)}
    assert found.row("attention").values("kv_cache_bytes") == (2**30, 2**28)


def test_the_screen_says_so(capsys: pytest.CaptureFixture[str], eighty_columns: None) -> None:
    text = run(capsys, "diff", "llama-7b", "mixtral-8x7b")
    assert "\nreplaced  feed-forward → mixture\nresized   attention\n" in text
    assert "\nthe same  embedding, head\n" in text
    assert "MHA 32 → GQA 32/8" in text
    assert "3·d·m = 135,266,304 in each of 32 blocks" in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("llama2-70b", "llama-7b", {"attention": "resized", "feed-forward": "resized"}),
        (
            "gpt2",
            "llama-7b",
            {"positions": "replaced", "feed-forward": "replaced", "norms": "replaced"},
        ),
        (
            "llama2-70b",
            "deepseek-v3",
            {"attention": "replaced", "mixture": "added", "feed-forward": "resized"},
        ),
        ("deepseek-v3", "llama2-70b", {"attention": "replaced", "mixture": "removed"}),
        (
            "bert-base",
            "gpt2",
            {
                "pooler": "removed",
                "head": "added",
                "feed-forward": "changed",
                "attention": "same",
                "norms": "changed",
            },
        ),
        (
            "gpt2",
            "t5-small",
            {
                "encoder attention": "added",
                "decoder cross-attention": "added",
                "decoder attention": "resized",
                "positions": "replaced",
            },
        ),
        (
            "t5-small",
            "bert-base",
            {"decoder attention": "removed", "encoder attention": "resized", "pooler": "added"},
        ),
        ("mixtral-8x7b", "llama-7b", {"feed-forward": "replaced"}),
    ],
)
def test_what_was_done(a: str, b: str, expected: dict[str, str]) -> None:
    found = statuses(metacount.diff(a, b))
    assert {name: found.get(name) for name in expected} == expected


def test_widths_of_the_feed_forward_are_told_in_d(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "diff", "gpt2", "llama-7b")
    assert "gelu_tanh(up), m = 3072 = 4·d → silu(gate) · up, m = 11008 = 2.688·d" in text
    assert "2·d·m + d + m = 4,722,432 in each of 12 blocks" in text


PAIRS = [("llama-7b", "mixtral-8x7b"), ("t5-small", "bert-base"), ("deepseek-v3", "llama2-70b")]


@pytest.mark.parametrize("pair", PAIRS)
def test_printed_columns_add_up(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, pair: tuple[str, str]
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    lines = run(capsys, "diff", *pair).splitlines()
    tables = [lines.index(title) + 2 for title in TITLES.values() if title in lines]
    assert len(tables) >= 3
    for start in tables:
        rows = lines[start : lines.index("", start)]
        numbers = [
            [int(cell.replace(",", "")) for cell in re.split(r"\s{2,}", row)[1:4]]
            for row in rows
            if not row.startswith("---")
        ]
        *each, total = numbers
        assert [sum(column) for column in zip(*each, strict=True)] == total
        assert all(b - a == difference for a, b, difference in numbers)


def test_json_and_csv_hold_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, "diff", "llama-7b", "mixtral-8x7b")
    assert data["models"] == ["llama-7b", "mixtral-8x7b"]
    assert set(data["figures"]) == set(COUNTED) - set(OF_SOME)
    for quantity in QUANTITIES:
        for side in ("a", "b"):
            parts_ = sum(part[quantity][side] for part in data["parts"])
            assert parts_ == data["figures"][quantity][side]
    kv = data["figures"]["kv_cache_bytes"]
    assert (kv["difference"], kv["ratio"]) == (-(3 * 2**28), 0.25)
    table = list(
        csv.DictReader(io.StringIO(run(capsys, "diff", "llama-7b", "mixtral-8x7b", "--csv")))
    )
    (row,) = [r for r in table if (r["part"], r["quantity"]) == ("attention", "params")]
    assert (row["llama-7b"], row["difference"], row["ratio"]) == (
        "2147483648",
        "-805306368",
        "0.625",
    )


def test_a_model_against_itself_changed(capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, "diff", "llama-7b", "--set", "n_kv_heads=8")
    assert data["models"] == ["llama-7b", "n_kv_heads=8"]
    assert {part["part"]: part["status"] for part in data["parts"]}["attention"] == "resized"
    assert [p["part"] for p in data["parts"] if p["status"] != "same"] == ["attention"]
    assert "Nothing differs." in run(capsys, "diff", "gpt2", "gpt2")
    assert metacount.diff("gpt2", "gpt2").same


def test_a_field_beside_the_parts_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "diff", "llama-7b", "--set", "residual_scale=0.5")
    assert "beside the parts  residual_scale 1 → 0.5" in text


@one_day_in(6)
def test_without_a_formula_roles_are_compared(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "rwkv.json"
    file.write_text(
        json.dumps(
            {"model_type": "rwkv", "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2}
        )
    )
    data = run_json(capsys, "diff", str(file), "gpt2", "--seq", "16")
    said = run_json(capsys, "count", str(file), "--seq", "16")
    assert data["figures"]["params"]["a"] == said["params"]
    for quantity in ("params", "matmul_flops", "kv_cache_bytes"):
        for side in ("a", "b"):
            assert (
                sum(part[quantity][side] for part in data["parts"])
                == (data["figures"][quantity][side])
            )
    assert {part["part"]: part["status"] for part in data["parts"]}["attention"] == "added"
    assert "by role alone" in data["notes"][0]
    assert "added" in run(capsys, "diff", str(file), "gpt2", "--seq", "16")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("gpt2",), "diff needs a second MODEL, or --set FIELD=VALUE"),
        (("gpt2", "gpt2-medium", "--set", "n_layers=2"), "leave out B or --set"),
        (("gpt2", "gpt3"), "model 'gpt3' is not in the catalog"),
        (("gpt2", "--set", "n_layrs=2"), "'n_layrs' is not a field of a model"),
        (("gpt2", "llama-7b", "--csv", "--latex"), "not allowed with argument --csv"),
        (("gpt2", "llama-7b", "--source-len", "3"), "source_len belongs to an encoder-decoder"),
    ],
)
def test_bad_requests_are_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    assert said in refused(capsys, "diff", *arguments)


@one_day_in(6)
def test_both_run_as_many_tokens_where_no_length_is_asked_for() -> None:
    found = metacount.diff("gpt2", "deepseek-v3")
    run = metacount.Workload(seq_len=1024)  # all the positions of GPT-2
    for side, name in ((found.a, "gpt2"), (found.b, "deepseek-v3")):
        assert side.figures["matmul_flops"] == metacount.count(name, run).matmul_flops
    rwkv = {
        "model_type": "rwkv",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "vocab_size": 100,
        "attention_hidden_size": 64,
        "intermediate_size": 256,
        "context_length": 48,
    }
    measured = metacount.diff("llama-7b", rwkv)  # of whose config the context is 48
    assert (measured.a.workload.seq_len, measured.b.workload.seq_len) == (48, 48)
    asked = metacount.diff("gpt2", "llama-7b", metacount.Workload(seq_len=16))
    assert asked.b.workload.seq_len == 16
