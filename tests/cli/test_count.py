"""`metacount count`: exact figures, whole numbers at every width, every model of the catalog."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from helpers.command_line import Ask, assert_readable
from helpers.miniatures import TINY_PARAMS
from helpers.release import daily, one_day_in
from helpers.small_configs import OTHERS

import metacount
from metacount import catalog
from metacount.cli.columns import ROLES
from metacount.errors import InputError
from metacount.huggingface.module.model import longest_of

BUILT = [e.id for e in catalog.entries() if e.sizes is not None]


def test_count_json_has_every_key_and_sums(ask: Ask) -> None:
    data = ask.json("count deepseek-v3")
    assert tuple(data["by_role"]) == ROLES
    assert sum(data["by_role"].values()) == data["params"] == 671026404352
    assert sum(data["active_by_role"].values()) == data["active_params"] == 37552282624
    assert data["active_params_no_embed"] == 37552282624 - 129280 * 7168
    assert data["buffers"] == {"selection_bias": 58 * 256}
    assert data["param_bytes"] == 2 * 671026404352
    run = {"batch_size": 1, "seq_len": 2048, "dtype": "bf16", "source_len": None, "prefix_len": 0}
    assert data["workload"] == run
    assert data["matmul_flops"] == 2 * data["macs"]
    assert data["causal_matmul_flops"] < data["matmul_flops"]
    assert data["kv_cache_bytes_per_token"] == 61 * (512 + 64) * 2
    assert data["kv_cache_bytes"] == 2048 * 61 * (512 + 64) * 2
    assert (data["cross_kv_cache_bytes"], data["state_bytes"]) == (0, 0)
    assert (data["model"], data["source"], data["inferred"]) == ("deepseek-v3", "formula", [])
    assert data["warnings"] == []
    # LongCat-Flash: 28 layers, in each of which all 12 choices may fall on experts of nothing
    longcat = ask.json("count longcat-flash")
    chosen = 28 * 12 * 3 * 6144 * 2048
    assert longcat["active_params"] - longcat["least_active_params"] == chosen
    assert "least_active_params" not in data


def test_the_workload_is_counted(ask: Ask, tiny: str) -> None:
    one = ask.json(f"count {tiny} --seq 7")
    more = ask.json(f"count {tiny} --seq 7 --batch 5 --dtype fp32")
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


def test_source_and_prefix(ask: Ask) -> None:
    t5 = ask.json("count t5-small --seq 3 --source-len 5")
    assert t5["workload"]["source_len"] == 5
    # 6 layers, keys and values of 8 heads of 64, 2 bytes; 5 source tokens and 3 own
    assert t5["cross_kv_cache_bytes"] == 5 * 6 * 2 * 512 * 2
    assert t5["kv_cache_bytes"] == (5 + 3) * 6 * 2 * 512 * 2
    glm, plain = (ask.json(f"count glm-130b {more}") for more in ("--prefix 100", ""))
    assert glm["causal_matmul_flops"] > plain["causal_matmul_flops"]


def test_a_folder_that_has_the_name_of_a_model_is_said(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gpt2").mkdir()
    plain = ask("count gpt2")
    monkeypatch.chdir(tmp_path)
    assert "the folder of that name is ./gpt2" in ask("count gpt2")
    assert "./gpt2" in ask.json("count gpt2")["notes"][0] and "folder" not in plain


def test_huge_workloads_are_exact(ask: Ask) -> None:
    # what looked at each position would never end
    for name in ("gemma3-27b-text", "llama4-scout-text", "gpt3-175b", "t5-11b", "deepseek-v3"):
        line = f"{name} --seq {2**40} --batch {2**40}"
        data = ask.json(f"count {line}")
        assert data["matmul_flops"] % 2**80 == 0
        assert f"{data['macs']:,}" in ask(f"count {line}")
        ask(f"formula {line} --quantity causal_matmul_flops")


def test_a_dense_model_fits_one_screen_with_its_figures_last(ask: Ask) -> None:
    for name in ("gpt2", "llama-7b", "qwen3-8b", "olmo2-7b", "mistral-7b", "bert-base"):
        lines = ask(f"count {name}").splitlines()
        assert len(lines) <= 24 and max(map(len, lines)) <= 80, name
        last = "decode_matmul_flops" if name == "bert-base" else "kv_cache_bytes"
        assert lines[-1].startswith(f"{last} ")
        assert len(ask(f"count {name} --verbose").splitlines()) > 24
        (hint,) = (line for line in lines if line.startswith("--verbose"))
        assert "sources" in hint


@pytest.mark.parametrize(("width", "tables"), [(40, 4), (60, 4), (120, 1)])
def test_tables_fit_the_width_or_keep_their_numbers_whole(
    ask: Ask, width: int, tables: int
) -> None:
    names = "llama-7b mixtral-8x7b deepseek-v3 t5-11b"
    text = ask(f"count {names}", width=width)
    for result in ask.json(f"count {names}"):
        for key in ("params", "active_params", "matmul_flops", "kv_cache_bytes"):
            assert f"{result[key]:,}" in re.findall(r"\d[\d,]*", text)
    if width >= 60:
        assert_readable(text.splitlines(), width)
    # as many columns at once as fit
    heads = re.findall(r"^ +(?:llama|mixt|deeps|t5).*$", text, re.MULTILINE)
    assert " ".join(heads).split() == names.split() and len(heads) == tables


def test_the_text_part_of_a_multimodal_model_has_its_own_figures(ask: Ask, tmp_path: Path) -> None:
    config = OTHERS["gemma4"]
    text_config = {**config["text_config"], "model_type": "gemma4_text"}
    for name, data in (("all", config), ("text", text_config)):
        (tmp_path / f"{name}.json").write_text(json.dumps(data))
    both, text = (ask.json(f"count {tmp_path / name}.json") for name in ("all", "text"))
    assert both["text_params"] == text["params"] < both["params"]
    assert both["text_active_params"] == text["active_params"] < both["active_params"]
    # of the text part alone, which may have a formula, no part is told apart
    assert text.get("text_params") is text.get("text_active_params") is None


def test_bars_on_a_terminal_with_room_and_nowhere_else(ask: Ask) -> None:
    blocks = "█▏▎▍▌▋▊▉"
    lines = ask.on_a_terminal("count mixtral-8x7b", NO_COLOR="1").splitlines()
    rows = {line.split()[0]: line for line in lines if {*line} & {*blocks}}
    assert list(rows) == ["embedding", "attention", "moe", "norm", "head"]
    assert rows["moe"].count("█") > 10 and rows["norm"].endswith("▏")
    assert max(map(len, lines)) <= 80
    # the bars stand below each other
    assert len({min(line.find(c) for c in blocks if c in line) for line in rows.values()}) == 1
    assert "█" not in ask("count mixtral-8x7b")
    assert "█" not in ask.on_a_terminal("count mixtral-8x7b", width=50)
    assert "█" not in ask.on_a_terminal("count mixtral-8x7b", TERM="dumb")


WARNED = {
    "mamba-2.8b --dtype fp64": "the formula counts the state of a",
    "mamba-2.8b --dtype fp32": "",
    "lfm2-1.2b --dtype fp64": "",
    "llama4-scout-text --seq 20000": "take a chunk of 8192 positions at its fullest: an upp",
    "llama4-scout-text --seq 8192": "",
    "bert-base --seq 513": "the model has 512 learned positions and cannot run 513; the counts",
    # of OPT's 2,050 rows two come before the first position
    "type:opt --seq 2049": "has 2048 learned positions and cannot run 2049",
    "type:opt --seq 2048": "",
}


@pytest.mark.parametrize("line", WARNED)
def test_what_is_warned_of(ask: Ask, line: str) -> None:
    warnings = ask.json(f"count {line}")["warnings"]
    assert len(warnings) == bool(WARNED[line]) and WARNED[line] in "".join(warnings)


# ---- without --seq

# tokens that a model has positions for, or 2,048, by hand from what was published:
# BERT 512; GPT-2 1,024; OPT 2,048 (2,050 rows, of which the first two are never used)
LENGTHS = {
    "bert-base": 512, "gpt2": 1024, "llama-7b": 2048, "t5-11b": 2048, "type:opt": 2048,
    "type:roberta": 510,
}  # fmt: skip


@daily(6)
@pytest.mark.parametrize(("name", "length"), LENGTHS.items())
def test_every_command_runs_what_the_model_can_run(ask: Ask, name: str, length: int) -> None:
    alone = ask.json(f"count {name}")
    assert alone == ask.json(f"count {name} --seq {length}")
    assert (alone["workload"]["seq_len"], alone["warnings"]) == (length, [])
    assert metacount.count(name).to_dict().items() <= alone.items()
    lines = [f"formula {name} --quantity matmul_flops", f"check 0 {name} --quantity matmul_flops"]
    if name != "t5-11b":  # it is of models with one stack
        lines.append(f"count {name} --conventions")
    for line in lines:
        assert ask.all(f"{line} --json") == ask.all(f"{line} --json --seq {length}")


def test_a_model_without_a_formula_runs_what_its_config_says(ask: Ask) -> None:
    note = "seq_len 512: max_position_embeddings of its config"
    data = ask.json("count type:bert-generation")
    assert (data["workload"]["seq_len"], data["notes"]) == (512, [note])
    assert data["matmul_flops"] is not None
    assert longest_of("ctrl") == (256, "max_position_embeddings")
    assert longest_of("mamba") is None


# ---- --columns


def columns_of(ask: Ask, line: str) -> list[dict[str, Any]]:
    envelope = ("metacount", "schema", "changes", "workload", "not_counted", "notes")
    return [
        {name: value for name, value in row.items() if name not in envelope}
        for row in ask.json(line)
    ]


def test_columns_of_models(ask: Ask) -> None:
    names = "h_kv,gated,by_role.moe,share.moe,seq_len,window,d_ff/d_model"
    (row,) = columns_of(ask, f"count mixtral-8x7b --columns {names} --seq 64")
    assert [*row][1] == "n_kv_heads"
    moe = 45_098_205_184
    assert [*row.values()] == ["mixtral-8x7b", 8, True, moe, moe / 46_702_792_704, 64, None, None]
    models = "gpt2 mixtral-8x7b t5-small deepseek-v3"
    rows = columns_of(ask, f"count {models} --columns attention,ffn,layers,experts")
    assert [tuple(row.values()) for row in rows] == [
        ("gpt2", "MHA", "GELU (tanh)", "12", None),
        ("mixtral-8x7b", "GQA", "SwiGLU", "32", "2 of 8"),
        ("t5-small", "MHA", "ReLU", "6 + 6", None),
        ("deepseek-v3", "MLA", "SwiGLU", "61", "8 + 1 of 256 + 1"),
    ]


# ---- multi-token prediction, a part with figures of its own


def test_count_says_what_prediction_modules_add(ask: Ask) -> None:
    data = ask.json("count deepseek-v3 --seq 128")
    assert len([name for name in data if name.startswith("mtp_")]) == 10
    assert data["mtp_matmul_flops"] - data["mtp_matmul_flops_no_head"] == 2 * 128 * 129280 * 7168
    assert sum(data["checkpoint_parts"].values()) == 684_531_386_000
    text = ask("count deepseek-v3")
    assert "1 multi-token-prediction module, in none of the figures above" in text
    assert "671,026,404,352" in text and "11,610,067,968" in text
    before = ask.json("count llama-7b")
    assert "mtp" not in json.dumps(before)
    after = ask.json("count llama-7b --set num_nextn_predict_layers=2")
    assert {**{name: after[name] for name in before}, "changes": {}} == before
    # enorm, hnorm, norm and two norms of the layer; eh_proj; attention and feed-forward of a layer
    assert after["mtp_params"] == 2 * (5 * 4096 + 2 * 4096**2 + 4 * 4096**2 + 3 * 4096 * 11008)
    assert "checkpoint_parts" not in ask.json("count deepseek-v3 --set n_mtp_layers=2")


@daily(3)
@pytest.mark.parametrize(
    "line",
    [
        "tree deepseek-v3 --depth 0",
        "shard deepseek-v3 --mesh dp=64,ep=64 --formula",
        "fit deepseek-v3 --gpu h200 --serve",
        "train deepseek-v3 --formula",
        "train qwen3-next-80b-a3b --set n_layers=4 --seq 8",
    ],
)
def test_what_leaves_the_modules_out_says_so(ask: Ask, line: str) -> None:
    said = "not counted: 1 multi-token-prediction module; `count` says what they add"
    assert said in " ".join(ask(line).split())
    assert "prediction" not in ask(f"{line} --set n_mtp_layers=none")


# ---- the Python API takes a model in any form


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
