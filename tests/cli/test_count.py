"""`metacount count`: exact figures, whole numbers at every width, every model of the catalog."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from helpers.command_line import assert_readable, number, run, run_json
from helpers.miniatures import TINY_PARAMS
from helpers.release import daily
from helpers.small_configs import OTHERS

from metacount import catalog
from metacount.cli import main

GEMMA4_TEXT = {"model_type": "gemma4_text"}

pytestmark = pytest.mark.usefixtures("eighty_columns")


def test_count_json_has_every_key_and_sums(capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, "count", "deepseek-v3")
    assert list(data["by_role"]) == [
        "embedding",
        "position",
        "attention",
        "recurrent",
        "ffn",
        "moe",
        "norm",
        "head",
        "other",
    ]
    assert sum(data["by_role"].values()) == data["params"] == 671026404352
    assert sum(data["active_by_role"].values()) == data["active_params"] == 37552282624
    assert data["active_params_no_embed"] == 37552282624 - 129280 * 7168
    assert data["buffers"] == {"selection_bias": 58 * 256}
    assert data["param_bytes"] == 2 * 671026404352
    assert data["workload"] == {
        "batch_size": 1,
        "seq_len": 2048,
        "dtype": "bf16",
        "source_len": None,
        "prefix_len": 0,
    }
    assert data["matmul_flops"] == 2 * data["macs"]
    assert data["causal_matmul_flops"] < data["matmul_flops"]
    assert data["kv_cache_bytes_per_token"] == 61 * (512 + 64) * 2
    assert data["kv_cache_bytes"] == 2048 * 61 * (512 + 64) * 2
    assert (data["cross_kv_cache_bytes"], data["state_bytes"]) == (0, 0)
    assert isinstance(data["decode_matmul_flops"], int)
    assert (data["model"], data["source"], data["inferred"]) == ("deepseek-v3", "formula", [])
    assert data["warnings"] == []


def test_the_least_that_a_token_uses_is_said_where_it_is_less(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """LongCat-Flash: 28 layers, in each of which all 12 choices may fall on experts of nothing."""
    longcat = run_json(capsys, "count", "longcat-flash")
    chosen = 28 * 12 * 3 * 6144 * 2048
    assert longcat["active_params"] - longcat["least_active_params"] == chosen
    assert "least_active_params" not in run_json(capsys, "count", "mixtral-8x7b")


def test_several_models_give_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, "count", "llama-7b", "bert-base")
    assert [d["model"] for d in data] == ["llama-7b", "bert-base"]
    # an encoder has no step that gives one more token
    assert data[1]["decode_matmul_flops"] is None
    assert (data[1]["kv_cache_bytes"], data[1]["kv_cache_bytes_per_token"]) == (0, 0)
    assert data[1]["warnings"] == []


def test_the_workload_is_counted(capsys: pytest.CaptureFixture[str], tiny: str) -> None:
    one = run_json(capsys, "count", tiny, "--seq", "7")
    more = run_json(capsys, "count", tiny, "--seq", "7", "--batch", "5", "--dtype", "fp32")
    assert one["params"] == TINY_PARAMS
    assert more["matmul_flops"] == 5 * one["matmul_flops"]
    assert more["param_bytes"] == 4 * TINY_PARAMS
    # 7 tokens, 3 layers, keys and values of 2 heads of 4 values, 4 bytes each
    assert more["kv_cache_bytes"] == 5 * 7 * 3 * 2 * 2 * 4 * 4
    # 2 per multiply-add; 7 tokens through 3 blocks of 832 + 663 weights and the head,
    # and in each block 7*7 pairs, 2 products, 6 heads of 4 values
    assert one["matmul_flops"] == 2 * (7 * (3 * (832 + 663) + 1313) + 3 * 49 * 2 * 24)
    # of the 49 pairs the mask keeps 28
    assert one["matmul_flops"] - one["causal_matmul_flops"] == 2 * 3 * (49 - 28) * 2 * 24


def test_source_and_prefix(capsys: pytest.CaptureFixture[str]) -> None:
    t5 = run_json(capsys, "count", "t5-small", "--seq", "3", "--source-len", "5")
    assert t5["workload"]["source_len"] == 5
    # 6 layers, keys and values of 8 heads of 64, 2 bytes; 5 source tokens and 3 own
    assert t5["cross_kv_cache_bytes"] == 5 * 6 * 2 * 512 * 2
    assert t5["kv_cache_bytes"] == (5 + 3) * 6 * 2 * 512 * 2
    assert run_json(capsys, "count", "t5-small")["workload"]["source_len"] == 2048
    glm = run_json(capsys, "count", "glm-130b", "--prefix", "100")
    assert glm["causal_matmul_flops"] > run_json(capsys, "count", "glm-130b")["causal_matmul_flops"]


def test_set_changes_sizes_and_drops_the_published_count(
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = run_json(capsys, "count", "llama-7b", "--set", "n_layers=1", "--set", "vocab_size=none")
    assert data["params"] == 4 * 4096**2 + 3 * 4096 * 11008 + 3 * 4096
    assert data["changes"] == {"n_layers": 1, "vocab_size": None}
    text = run(capsys, "count", "llama-7b", "--set", "n_layers=1")
    assert "changed  n_layers=1" in text
    assert "published" not in text
    assert "published" in run(capsys, "count", "llama-7b")


def test_huge_workloads_are_exact(capsys: pytest.CaptureFixture[str]) -> None:
    huge = str(2**40)
    # what looked at each position would never end
    for name in ("gemma3-27b-text", "llama4-scout-text", "gpt3-175b", "t5-11b", "deepseek-v3"):
        data = run_json(capsys, "count", name, "--seq", huge, "--batch", huge)
        assert data["matmul_flops"] % 2**80 == 0
        run(capsys, "count", name, "--seq", huge, "--batch", huge)
        run(capsys, "formula", name, "--seq", huge, "--quantity", "causal_matmul_flops")


@daily(7)
@pytest.mark.parametrize("name", catalog.ids())
def test_every_model_of_the_catalog_with_a_spec_is_counted(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    if catalog.entry(name).sizes is None:
        return  # counted by transformers: tests/huggingface/module/test_catalog_configs.py
    data = run_json(capsys, "count", name)
    assert sum(data["by_role"].values()) == data["params"]
    lines = run(capsys, "count", name, "--verbose").splitlines()
    assert_readable(lines, 80)
    assert_readable(run(capsys, "count", name).splitlines(), 80)
    # the printed columns, read again, are the printed totals
    start = next(i for i, line in enumerate(lines) if line.startswith("role "))
    rule = next(i for i, line in enumerate(lines) if line.startswith("---"))
    rows = [line.split() for line in lines[start + 1 : rule + 2] if not line.startswith("---")]
    *roles, total = rows
    assert total[0] == "total"
    assert sum(number(row[1]) for row in roles) == number(total[1]) == data["params"]
    assert total[2:4] == ["100", "%"]
    if len(total) == 5:
        assert sum(number(row[4]) for row in roles) == number(total[4]) == data["active_params"]


def test_a_dense_model_fits_one_screen_with_its_figures_last(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("gpt2", "llama-7b", "llama3-8b", "qwen3-8b", "olmo2-7b", "mistral-7b"):
        lines = run(capsys, "count", name).splitlines()
        assert len(lines) <= 24 and max(map(len, lines)) <= 80, name
        assert lines[-1].startswith("kv_cache_bytes ")
        assert len(run(capsys, "count", name, "--verbose").splitlines()) > 24
        (hint,) = (line for line in lines if line.startswith("--verbose"))
        assert "sources" in hint


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_tables_fit_the_width_or_keep_their_numbers_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    names = ("llama-7b", "mixtral-8x7b", "deepseek-v3", "t5-11b")
    text = run(capsys, "count", *names)
    data = run_json(capsys, "count", *names)
    numbers = re.findall(r"\d[\d,]*", text)
    for result in data:
        for key in ("params", "active_params", "matmul_flops", "kv_cache_bytes"):
            assert f"{result[key]:,}" in numbers
    if width >= 60:
        assert_readable(text.splitlines(), width)
    one = run(capsys, "count", "deepseek-v3", "--seq", str(2**40))
    assert f"{run_json(capsys, 'count', 'deepseek-v3', '--seq', str(2**40))['macs']:,}" in one


def test_a_comparison_shows_as_many_columns_as_fit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def heads(width: str) -> list[list[str]]:
        monkeypatch.setenv("COLUMNS", width)
        lines = run(capsys, "count", "gpt2", "llama-7b", "bert-base").splitlines()
        return [line.split() for line in lines if re.match(r" +(gpt2|llama-7b|bert-base)", line)]

    assert heads("120") == [["gpt2", "llama-7b", "bert-base"]]
    assert heads("66") == [["gpt2", "llama-7b"], ["bert-base"]]
    assert heads("40") == [["gpt2"], ["llama-7b"], ["bert-base"]]


def test_the_text_part_of_a_multimodal_model_has_its_own_figures(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = OTHERS["gemma4"]
    for name, data in (("all", config), ("text", {**config["text_config"], **GEMMA4_TEXT})):
        (tmp_path / f"{name}.json").write_text(json.dumps(data))
    both, text = (run_json(capsys, "count", str(tmp_path / f"{n}.json")) for n in ("all", "text"))
    assert both["text_params"] == text["params"] < both["params"]
    assert both["text_active_params"] == text["active_params"] < both["active_params"]
    assert text["text_params"] is text["text_active_params"] is None
    lines = run(capsys, "count", str(tmp_path / "all.json"), "--csv").splitlines()
    assert f"text_active_params,{text['active_params']}" in lines


def test_an_encoder_shows_a_dash_and_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "count", "bert-base", "--seq", "512")
    assert re.search(r"^decode_matmul_flops +-  an encoder has no decode step$", text, re.M)
    assert "warning" not in text
    assert "warning" in run(capsys, "count", "bert-base", "--seq", "513")


@pytest.mark.parametrize(
    ("model", "dtype", "n"),
    [("mamba-2.8b", "fp64", 1), ("mamba-2.8b", "fp32", 0), ("lfm2-1.2b", "fp64", 0)],
)
def test_a_state_that_a_module_keeps_wider_is_said(
    capsys: pytest.CaptureFixture[str], model: str, dtype: str, n: int
) -> None:
    data = run_json(capsys, "count", model, "--dtype", dtype)
    said = [one for one in data["warnings"] if "the formula counts the state of a" in one]
    assert len(said) == len(data["warnings"]) == n


def test_a_chunk_at_its_fullest_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["count", "llama4-scout-text", "--seq", "20000", "--json"]) == 0
    (warning,) = json.loads(capsys.readouterr().out)["warnings"]
    assert "take a chunk of 8192 positions at its fullest: an upper bound" in warning
    assert main(["count", "llama4-scout-text", "--seq", "8192", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["warnings"] == []
