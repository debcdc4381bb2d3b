"""Multi-token prediction on the command line: a part with figures of its own."""

from __future__ import annotations

import pytest
from helpers.command_line import refused, run, run_json
from helpers.release import daily, one_day_in

from metacount.cli import main

pytestmark = pytest.mark.usefixtures("eighty_columns")

PARTS = ("params", "selection_bias", "mtp_params", "mtp_buffers", "mtp_copies", "others")


def test_count_says_what_the_modules_add(capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, "count", "deepseek-v3", "--seq", "128")
    found = {name: value for name, value in data.items() if name.startswith("mtp_")}
    assert len(found) == 10
    assert data["mtp_matmul_flops"] - data["mtp_matmul_flops_no_head"] == 2 * 128 * 129280 * 7168
    assert tuple(data["checkpoint_parts"]) == PARTS
    assert sum(data["checkpoint_parts"].values()) == 684_531_386_000
    text = run(capsys, "count", "deepseek-v3")
    assert "1 multi-token-prediction module, in none of the figures above" in text
    assert "671,026,404,352" in text and "11,610,067,968" in text


def test_a_model_without_modules_says_nothing_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert not [name for name in run_json(capsys, "count", "llama-7b") if "mtp" in name]
    assert "prediction" not in run(capsys, "count", "llama-7b")


def test_modules_are_set_like_any_size(capsys: pytest.CaptureFixture[str]) -> None:
    before = run_json(capsys, "count", "llama-7b")
    after = run_json(capsys, "count", "llama-7b", "--set", "num_nextn_predict_layers=2")
    assert {name: after[name] for name in before if name != "changes"} == {
        name: value for name, value in before.items() if name != "changes"
    }
    # enorm, hnorm, norm and two norms of the layer; eh_proj; attention and feed-forward of a layer
    assert after["mtp_params"] == 2 * (5 * 4096 + 2 * 4096**2 + 4 * 4096**2 + 3 * 4096 * 11008)
    changed = run_json(capsys, "count", "deepseek-v3", "--set", "n_mtp_layers=2")
    assert "checkpoint_parts" not in changed
    assert run_json(capsys, "count", "glm-4.5", "--set", "n_mtp_layers=none")["params"]


def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "n_mtp_layers" in refused(capsys, "count", "bert-base", "--set", "n_mtp_layers=1")


def test_a_formula_of_the_modules(capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, "formula", "glm-4.5", "--quantity", "mtp_params")
    assert data["total"] == 3_988_069_632
    assert {"letter": "N_p", "name": "n_mtp_layers"}.items() <= data["legend"][-1].items()
    assert data["parts"]["other"]["letters"] == "2·N_p·d²"
    out = run(capsys, "formula", "llama-7b", "--quantity", "mtp_params")
    assert out.splitlines()[-1] == "total  0, whatever the sizes"


def test_somebody_s_formula_of_the_modules_is_judged(capsys: pytest.CaptureFixture[str]) -> None:
    quantity = ("--quantity", "mtp_kv_cache_bytes", "--seq", "64")
    right = "n_mtp_layers*batch_size*seq_len*(kv_lora_rank + qk_rope_head_dim)*bytes_per_value"
    assert "equal for all sizes" in run(capsys, "check", right, "deepseek-v3", *quantity)
    assert main(["check", "seq_len*kv_lora_rank*2", "deepseek-v3", *quantity]) == 1
    assert capsys.readouterr().out.startswith("wrong: short by 8,192")


@one_day_in(6)
def test_verify_compares_the_modules(capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, "verify", "glm-4.5", "--seq", "5", "--dtype", "fp8")
    said = {witness["name"]: witness for witness in data["witnesses"]}
    assert data["agree"]
    for name in ("mtp_params", "mtp_matmul_flops", "mtp_kv_cache_bytes", "mtp_by_role"):
        assert said["formula"][name] == said["reference"][name], name
    assert said["formula"]["mtp_kv_cache_bytes"] == 5 * 2 * 8 * 128


def test_columns_and_fields_know_them(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "count", "glm-4.5", "llama-7b", "--columns", "n_mtp_layers,mtp_params")
    assert out.splitlines()[1].split() == ["glm-4.5", "1", "3,988,069,632"]
    fields = run_json(capsys, "models", "--fields")
    field = next(row for row in fields if row["field"] == "n_mtp_layers")
    assert (field["letter"], field["path"]) == ("N_p", "prediction.n_modules")
    assert "num_nextn_predict_layers" in field["elsewhere"]


@daily(3)
@pytest.mark.parametrize(
    "arguments",
    [
        ("tree", "deepseek-v3", "--depth", "0"),
        ("shard", "deepseek-v3", "--mesh", "dp=64,ep=64", "--formula"),
        ("fit", "deepseek-v3", "--gpu", "h200", "--serve"),
        ("train", "deepseek-v3", "--formula"),
        ("train", "qwen3-next-80b-a3b", "--set", "n_layers=4", "--seq", "8"),
    ],
)
def test_what_leaves_the_modules_out_says_so(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    said = "not counted: 1 multi-token-prediction module; `count` says what they add"
    assert said in " ".join(run(capsys, *arguments).split())
    without = run(capsys, *arguments, "--set", "n_mtp_layers=none")
    assert "prediction" not in without
