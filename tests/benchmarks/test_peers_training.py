"""The comparison of training memory: its arithmetic, its saved results, whether they hold."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from helpers import ROOT
from helpers.release import one_day_in

from metacount import shard

BENCHMARKS = ROOT / "benchmarks"
SAVED: dict[str, Any] = json.loads(
    (BENCHMARKS / "results" / "peers_training.json").read_text("utf-8")
)
SETTINGS = {each["name"]: each for each in SAVED["settings"]}
TRUTH = {run["setting"]: run["figures"] for run in SAVED["runs"] if run["tool"] == "metacount"}
FILES = (
    "peer_training",
    "peer_training_reasons",
    "peer_training_results",
    "peer_training_tools",
    "peer_process",
    "peer_results",
    "peer_tools",
)


@pytest.fixture(scope="module")
def files() -> Iterator[dict[str, ModuleType]]:
    sys.path.insert(0, str(BENCHMARKS))
    yield {name: importlib.import_module(name) for name in FILES}
    sys.path.remove(str(BENCHMARKS))
    for name in FILES:
        sys.modules.pop(name, None)


def config_of(model: str) -> str:
    return str(BENCHMARKS / "peer_models" / f"{model}.json")


def mesh_of(setting: dict[str, Any]) -> str:
    return ",".join(f"{name}={setting[name]}" for name in ("dp", "tp", "pp", "ep"))


def asked(setting: dict[str, Any]) -> dict[str, Any]:
    return {
        "zero": setting["zero"],
        "mixed_precision": setting["master"],
        "seq_len": setting["seq"],
        "dtype": setting["dtype"],
        "attention": setting["attention"],
        "checkpointing": setting["checkpointing"],
    }


MESHES = [name for name, each in SETTINGS.items() if each["zero"]]


def test_the_saved_settings_are_those_that_the_benchmark_runs(files: Any) -> None:
    from dataclasses import asdict

    now = json.loads(json.dumps([asdict(each) for each in files["peer_training"].SETTINGS]))
    assert SAVED["settings"] == now
    assert len(now) == 10
    assert list(TRUTH) == list(SETTINGS)
    tools = {run["tool"] for run in SAVED["runs"]}
    assert tools == set(files["peer_training"].TOOLS)
    assert len(SAVED["runs"]) == len(tools) * len(now)


@pytest.mark.parametrize("name", MESHES)
def test_the_formulas_of_today_give_what_was_measured_on_each_mesh(files: Any, name: str) -> None:
    each = SETTINGS[name]
    found = shard(config_of(each["model"]), mesh_of(each), train=True, formula=True, **asked(each))
    assert files["peer_training_tools"].figures(found.to_dict()) == TRUTH[name]


@one_day_in(6)
def test_what_was_measured_on_a_mesh_is_measured_today(files: Any) -> None:
    each = SETTINGS["7"]
    found = shard(config_of(each["model"]), mesh_of(each), train=True, **asked(each))
    assert files["peer_training_tools"].figures(found.to_dict()) == TRUTH["7"]


def test_model_states_differ_only_by_what_the_bytes_show(files: Any) -> None:
    # each tool's arithmetic is written down; nothing of a difference is left
    said = files["peer_training_results"].said_of(SAVED, "states")
    figures = {(run["tool"], run["setting"]): run["figures"] for run in SAVED["runs"]}
    seen = set()
    for (tool, name), each in said.items():
        parts = files["peer_training_reasons"].difference(
            tool, "states", SETTINGS[name], TRUTH[name], figures[tool, name]
        )
        assert sum(n_bytes for n_bytes, _ in parts) == each.value - each.truth
        assert "not accounted for" not in [text for _, text in parts]
        seen |= {tool} if each.value != each.truth else set()
    assert seen == {"accelerate", "deepspeed", "megatron-lm", "torch tracker"}


def test_a_byte_more_is_not_accounted_for(files: Any) -> None:
    (run,) = [
        each for each in SAVED["runs"] if each["tool"] == "deepspeed" and each["setting"] == "5"
    ]
    wrong = {**run["figures"], "states": run["figures"]["states"] + 1}
    parts = files["peer_training_reasons"].difference(
        "deepspeed", "states", SETTINGS["5"], TRUTH["5"], wrong
    )
    assert parts[-1] == (1, "not accounted for")
