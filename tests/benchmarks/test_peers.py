"""What the comparison with other tools compares with is still what we count."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from helpers import ROOT

from metacount import catalog
from metacount.huggingface.config.to_spec import spec_from_config
from metacount.spec import Workload
from metacount.textbook.count import count

BENCHMARKS = ROOT / "benchmarks"
CONFIGS: dict[str, Any] = {
    file.stem: json.loads(file.read_text("utf-8"))
    for file in sorted((BENCHMARKS / "peer_models").glob("*.json"))
}
RUN = Workload(seq_len=128)


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    yield from loaded("peer_results", monkeypatch)


def loaded(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module(name)
    for module in (name, "cold_start", *(m for m in [*sys.modules] if m.startswith("peer_"))):
        sys.modules.pop(module, None)


def saved_results() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((BENCHMARKS / "results" / "peers.json").read_text("utf-8"))
    return found


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
