"""What the comparison with other tools compares with is still what we count."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest
from helpers import ROOT, benchmark
from helpers.catalog_counts import MEASURED
from helpers.release import one_day_in

from metacount import catalog, shard
from metacount.huggingface.config.to_spec import spec_from_config
from metacount.spec import Workload
from metacount.textbook.count import count

BENCHMARKS = ROOT / "benchmarks"
CONFIGS: dict[str, Any] = {
    file.stem: json.loads(file.read_text("utf-8"))
    for file in sorted((BENCHMARKS / "peer_models").glob("*.json"))
}
RUN = Workload(seq_len=128)


RESULTS = json.loads((BENCHMARKS / "results" / "peers.json").read_text("utf-8"))


@pytest.mark.parametrize("name", CONFIGS)
def test_each_config_is_the_published_model_of_that_name(name: str) -> None:
    # the catalog's sizes were written from other sources than the configs
    ours = count(catalog.entry(name).spec(), RUN)
    theirs = count(spec_from_config(CONFIGS[name]).spec, RUN)
    assert theirs.to_dict() == ours.to_dict()


def test_the_saved_results_are_of_these_models_and_still_right() -> None:
    now = {}
    for name, config in CONFIGS.items():
        ours = count(spec_from_config(config).spec, RUN)
        now[name] = {"params": ours.params, "active_params": ours.active_params}
        now[name] |= {"flops": ours.matmul_flops, "kv_cache_bytes": ours.kv_cache_bytes}
    assert RESULTS["truth"] == now
    of_ours = [run for run in RESULTS["runs"] if run["tool"].startswith("metacount")]
    assert len(of_ours) == 2 * len(CONFIGS)
    assert all(run["figures"] == now[run["model"]] for run in of_ours)
    # and the summary is that of the runs
    script = benchmark("peer_results")
    runs = [script.Result(**run) for run in RESULTS["runs"]]
    collected = script.collected(RESULTS["truth"], runs, RESULTS["versions"])
    assert collected["summary"] == RESULTS["summary"]
    assert {each["tool"] for each in RESULTS["summary"]} == set(script.TOOLS)


SAVED: dict[str, Any] = json.loads(
    (BENCHMARKS / "results" / "peers_training.json").read_text("utf-8")
)
SETTINGS = {each["name"]: each for each in SAVED["settings"]}
TRUTH = {run["setting"]: run["figures"] for run in SAVED["runs"] if run["tool"] == "metacount"}


def sharded(name: str, *, formula: bool) -> Any:
    """The figures of a setting: what `shard` says of its mesh."""
    each = SETTINGS[name]
    config = str(BENCHMARKS / "peer_models" / f"{each['model']}.json")
    mesh = ",".join(f"{degree}={each[degree]}" for degree in ("dp", "tp", "pp", "ep"))
    how = {key: each[key] for key in ("zero", "dtype", "attention", "checkpointing")}
    how |= {"mixed_precision": each["master"], "seq_len": each["seq"]}
    found = shard(config, mesh, train=True, formula=formula, **how)
    return benchmark("peer_training_tools").figures(found.to_dict())


MESHES = [name for name, each in SETTINGS.items() if each["zero"]]


def test_the_saved_settings_are_those_that_the_benchmark_runs() -> None:
    now = json.loads(json.dumps([asdict(each) for each in benchmark("peer_training").SETTINGS]))
    assert SAVED["settings"] == now
    assert len(now) == 10
    assert list(TRUTH) == list(SETTINGS)
    tools = {run["tool"] for run in SAVED["runs"]}
    assert tools == set(benchmark("peer_training").TOOLS)
    assert len(SAVED["runs"]) == len(tools) * len(now)


@pytest.mark.parametrize("name", MESHES)
def test_the_formulas_of_today_give_what_was_measured_on_each_mesh(name: str) -> None:
    assert sharded(name, formula=True) == TRUTH[name]


@one_day_in(6)
def test_what_was_measured_on_a_mesh_is_measured_today() -> None:
    assert sharded("7", formula=False) == TRUTH["7"]


def test_model_states_differ_only_by_what_the_bytes_show() -> None:
    # each tool's arithmetic is written down; nothing of a difference is left
    said = benchmark("peer_training_results").said_of(SAVED, "states")
    figures = {(run["tool"], run["setting"]): run["figures"] for run in SAVED["runs"]}
    seen, reasons = set(), benchmark("peer_training_reasons").difference
    for (tool, name), each in said.items():
        parts = reasons(tool, "states", SETTINGS[name], TRUTH[name], figures[tool, name])
        assert sum(n_bytes for n_bytes, _ in parts) == each.value - each.truth
        assert "not accounted for" not in [text for _, text in parts]
        one_more = {**figures[tool, name], "states": figures[tool, name]["states"] + 1}
        odd = reasons(tool, "states", SETTINGS[name], TRUTH[name], one_more)
        assert odd[-1] == (1, "not accounted for")
        seen |= {tool} if each.value != each.truth else set()
    assert seen == {"accelerate", "deepspeed", "megatron-lm", "torch tracker"}


# one of each kind of class; the whole table takes a minute: python benchmarks/measured_counts.py
SAMPLE = ("bert-base", "gpt2", "qwen3-0.6b", "olmo2-1b", "t5-small", "switch-base-8", "gemma3-270m")
SAMPLE += ("pythia-12b", "gpt-oss-20b", "falcon-180b")
script = benchmark("measured_counts")


@pytest.mark.parametrize("id", SAMPLE)
def test_a_class_of_transformers_counts_what_the_table_says(id: str) -> None:
    count, by = script.counted(id)
    assert count == MEASURED[id]
    assert by != "algebra"


def test_three_flop_literals_of_checks_tests() -> None:
    text = (ROOT / "tests" / "check" / "words.json").read_text("utf-8")
    figures = dict(script.flop_figures())
    forward, half, twice = figures.values()
    # 2·2048·(32000·4096 + 32·202,375,168) + 4·32·2048²·4096
    assert forward == 2 * 2048 * (32_000 * 4096 + 32 * 202_375_168) + 4 * 32 * 2048**2 * 4096
    assert f"half of {forward:,}" in text and f"three times {forward:,}" in text
    assert f"-{half}]" in text and f" {twice}]" in text


def test_a_wrong_size_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = json.loads((script.CATALOG / "gpt2.json").read_text("utf-8"))["spec"]
    monkeypatch.setattr(script, "sizes", lambda _: {**sizes, "n_layers": 13})
    assert script.counted("gpt2")[0] != MEASURED["gpt2"]
