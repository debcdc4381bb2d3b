"""`metacount fit --device-map`: where accelerate places parts, and what each place then holds."""

from __future__ import annotations

import json

import accelerate
import pytest
from helpers.command_line import Ask
from helpers.small_configs import SMALL_LLAMA

from metacount.resolve import find_any, model_of
from metacount.sharding import placed
from metacount.sharding.fit import Device
from metacount.sharding.placed import place_module

AUTO = pytest.mark.skipif(
    tuple(map(int, accelerate.__version__.split(".")[:2])) < (1, 15),
    reason="accelerate before 1.15 balances only devices that are there",
)

TABLE = 2 * 101 * 26  # bytes in bf16
LAYER = 2 * (4 * 26**2 + 3 * 26 * 17 + 2 * 26)
NORM, ROTARY = 2 * 26, 2 * 4 * 13  # frequencies in float32, and as they were at first


def device(n_bytes: int) -> Device:
    return Device(id="toy", name="toy", bytes=n_bytes, source="by hand")


def test_parts_by_hand() -> None:
    # the first device keeps room for the largest layer, as the CPU does; the second is full
    rooms = [device(LAYER + TABLE + LAYER), device(2 * LAYER)]
    found = place_module(
        model_of(SMALL_LLAMA), rooms, device_map="sequential", cpu_memory=2 * TABLE + NORM + ROTARY
    )
    places = [*"0011", *["cpu"] * 3]
    names = ("embed_tokens", *(f"layers.{i}" for i in range(3)), "norm", "rotary_emb")
    names = (*(f"model.{name}" for name in names), "lm_head")
    assert found["parts"] == dict(zip(names, places, strict=True))
    sums = [
        ("0", TABLE + LAYER, 0),
        ("1", 2 * LAYER, 0),
        ("cpu", NORM + TABLE, ROTARY),
    ]
    for place, (key, params, buffers) in zip(found["places"], sums, strict=True):
        assert (place["id"], place["param_bytes"], place["buffer_bytes"]) == (key, params, buffers)
        assert place["accelerate_bytes"] == place["bytes"] == params + buffers
    assert found["formula_bytes"] == 2 * TABLE + 3 * LAYER + NORM
    assert (found["fits"], found["differences"]) == (True, [])
    # a byte less on the second device, and none for the CPU: all after its one layer is on disk
    rooms[1] = device(2 * LAYER - 1)
    less = place_module(model_of(SMALL_LLAMA), rooms, device_map="sequential")
    assert less["parts"]["model.layers.1"] == "1"
    assert less["parts"]["model.layers.2"] == less["parts"]["lm_head"] == "disk"
    assert (less["fits"], less["places"][-1]["room"]) == (False, None)


@AUTO
@pytest.mark.parametrize("model", ["llama3-8b", "type:gpt2", "type:qwen3_next"])
def test_our_count_and_accelerates_are_equal_in_each_place(ask: Ask, model: str) -> None:
    found = ask.json(f"fit {model} --device-map auto --gpu 2xl4,4xh200 --cpu-memory 100GB")
    assert found["differences"] == []
    assert found["param_bytes"] == ask.json(f"count {model}")["param_bytes"]
    for place in found["places"]:
        assert place["bytes"] == place["accelerate_bytes"]
        assert place["room"] is None or place["bytes"] <= place["room"]
    assert [place["name"] for place in found["places"]][:6] == ["l4"] * 2 + ["h200"] * 4
    assert {*found["parts"].values()} <= {place["id"] for place in found["places"]}


@AUTO
def test_what_goes_to_disk_does_not_fit(ask: Ask) -> None:
    asked = "fit llama3-8b --device-map auto --gpu t4 --dtype fp32"
    code, out, _ = ask.all(f"{asked} --json")
    found = json.loads(out)
    assert (code, found["fits"]) == (1, False)
    assert found["kv_cache_bytes"] == 2 * 32 * 8 * 128 * 4 * 2048
    code, text, _ = ask.all(asked)
    assert code == 1 and "does not fit  what no memory holds goes to disk" in text
    assert max(map(len, text.splitlines())) <= 80
    # the CPU holds it
    assert "decoder.layers.13-31  cpu" in ask(f"{asked} --cpu-memory 64GB")


@AUTO
def test_what_has_no_formula_is_placed_too(ask: Ask) -> None:
    found = ask.json("fit type:gemma3 --device-map auto --gpu h100")
    assert find_any("type:gemma3").name
    assert found["formula_bytes"] is found["kv_cache_bytes"] is None
    assert found["param_bytes"] > 10**9
    assert found["differences"] == []


def test_a_difference_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(placed.DTYPE_BYTES, "bf16", 1)
    found = place_module(model_of(SMALL_LLAMA), [device(10**6)], device_map="sequential")
    n = 2 * TABLE + 3 * LAYER + NORM
    said = f"of the module are {n:,} bytes; by formula, in bf16, they are {n // 2:,}"
    assert found["differences"] == [f"all parameters {said}"]
