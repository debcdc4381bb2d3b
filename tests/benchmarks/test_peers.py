"""The arithmetic of the benchmarks, and that what they compare with is still what we count."""

from __future__ import annotations

import importlib
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import ROOT
from helpers.release import one_day_in

from metacount import catalog
from metacount.huggingface.config.to_spec import spec_from_config
from metacount.many.folder import count_folder, list_folder
from metacount.spec import Workload
from metacount.textbook.count import count

BENCHMARKS = ROOT / "benchmarks"
CONFIGS: dict[str, Any] = {
    file.stem: json.loads(file.read_text("utf-8"))
    for file in sorted((BENCHMARKS / "peer_models").glob("*.json"))
}
RUN = Workload(seq_len=128)
TRUTH = {"params": 1000, "active_params": 400, "flops": 2000, "kv_cache_bytes": 0}


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    yield from loaded("peers", monkeypatch)


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    yield from loaded("peer_results", monkeypatch)


@pytest.fixture
def scale(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    yield from loaded("scale", monkeypatch)


def loaded(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module(name)
    for module in (name, "cold_start", *(m for m in [*sys.modules] if m.startswith("peer_"))):
        sys.modules.pop(module, None)


@pytest.mark.parametrize(
    ("value", "truth", "text"),
    [
        (7, 7, "exact"),
        (0, 0, "exact"),
        (3, 0, "not 0"),
        (0, 8, "-100 %"),
        (9, 8, "+12.5 %"),
        (18, 8, "+125 %"),
        (1_000_999, 1_000_000, "+0.100 %"),  # two digits or more
        (6_738_415_617, 6_738_415_616, "+0.000000015 %"),  # one too many is not exact
        (10**15 - 1, 10**15, "-0.00000000000010 %"),
    ],
)
def test_off_by(results: Any, value: int, truth: int, text: str) -> None:
    assert results.off_by(value, truth) == text


def saved_results() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((BENCHMARKS / "results" / "peers.json").read_text("utf-8"))
    return found


def result(results: Any, model: str = "a", **given: Any) -> Any:
    figures = {key: value for key, value in given.items() if key in TRUTH}
    error = given.get("error")
    return results.Result(
        tool="t",
        model=model,
        device=given.get("device", "meta"),
        figures=figures,
        error=error,
        seconds=given.get("seconds", 1.0),
        peak_bytes=given.get("mib", 1) * 2**20,
    )


def test_of_two_results_the_nearer_one_stands_for_the_tool(results: Any) -> None:
    off = result(results, params=1000, flops=1900)
    right = result(results, params=1000, flops=2000, device="cpu")
    failed = result(results, error="no")
    fewer = result(results, params=999, flops=2000)
    assert results.better([off, right, failed], TRUTH) is right
    assert results.better([failed, off], TRUTH) is off
    assert results.better([fewer, right], TRUTH) is right


def test_a_summary_counts_what_is_exact(results: Any) -> None:
    found = [
        result(results, "a", params=1000, flops=2000, seconds=1.0, mib=5),
        result(results, "b", params=1001, flops=1000, seconds=9.0, mib=7),
        result(results, "c", error="RuntimeError: no", seconds=2.0, mib=3),
    ]
    said = results.summary("t", "1.2.post3", found, {"a": TRUTH, "b": TRUTH, "c": TRUTH})
    assert said.exact == {
        "params": 1,
        "active_params": None,
        "flops": 1,
        "kv_cache_bytes": None,
    }
    assert (said.n_models, said.failed, said.worst_flops) == (3, 1, "-50.0 %")
    assert (said.median_seconds, said.median_peak_mib) == (2.0, 5.0)
    assert results.summary_lines([said]) == [
        "tool   params  active   FLOPs  worst FLOPs  KV cache  fails     s  MiB",
        "t 1.2  1 of 3       -  1 of 3      -50.0 %         -      1  2.00    5",
    ]


def test_real_weights_are_made_only_where_they_are_small(peers: Any) -> None:
    assert peers.devices("calflops", 2**32) == ("meta", "cpu")
    assert peers.devices("calflops", 2**32 + 1) == ("meta",)
    assert peers.devices("llm-flops", 1) == ("none",)


def test_a_message_names_no_folder_of_the_machine(peers: Any) -> None:
    process = sys.modules["peer_process"]
    said = process.without_paths("no /some/x7/a.json", ["/home/me/env", "/some/x7"])
    assert said == "no .../a.json"
    assert len(process.without_paths("x" * 999, ["/a"])) == process.LONGEST_ERROR


def test_there_are_fifteen_models() -> None:
    assert len(CONFIGS) == 15


@pytest.mark.parametrize("name", CONFIGS)
def test_each_config_is_the_published_model_of_that_name(name: str) -> None:
    # the catalog's sizes were written from other sources than the configs
    ours = count(catalog.entry(name).spec(), RUN)
    theirs = count(spec_from_config(CONFIGS[name]).spec, RUN)
    assert theirs.to_dict() == ours.to_dict()


def test_the_saved_results_are_of_these_models_and_still_right() -> None:
    saved = saved_results()
    now = {
        name: {
            "params": found.params,
            "active_params": found.active_params,
            "flops": found.matmul_flops,
            "kv_cache_bytes": found.kv_cache_bytes,
        }
        for name in CONFIGS
        for found in [count(spec_from_config(CONFIGS[name]).spec, RUN)]
    }
    assert saved["truth"] == now
    ours = [run for run in saved["runs"] if run["tool"].startswith("metacount")]
    assert len(ours) == 2 * len(CONFIGS)
    assert all(run["figures"] == now[run["model"]] for run in ours)


def test_the_saved_summary_is_that_of_the_saved_runs(results: Any) -> None:
    saved = saved_results()
    runs = [results.Result(**run) for run in saved["runs"]]
    assert results.collected(saved["truth"], runs, saved["versions"])["summary"] == saved["summary"]
    assert {each["tool"] for each in saved["summary"]} == set(results.TOOLS)


@one_day_in(6)
def test_the_folders_of_the_benchmark_hold_different_models_that_can_be_counted(
    scale: Any, tmp_path: Path
) -> None:
    scale.write_configs(tmp_path / "configs", 400)
    listing = list_folder(str(tmp_path / "configs"))
    outcomes = [o for part in count_folder(listing, Workload(), jobs=1) for o in part]
    assert [o.error for o in outcomes if o.error is not None] == []
    assert len(outcomes) == 400
    # a random size may come twice, not often
    assert len({(o.data["params"], o.data["matmul_flops"]) for o in outcomes}) > 395


def test_random_configs_are_the_same_each_time(scale: Any) -> None:
    bases = list(CONFIGS.values())
    one, two = ([scale.random_config(random.Random(3), bases) for _ in range(5)] for _ in range(2))
    assert one == two
