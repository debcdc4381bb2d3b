"""AdamW in 8 bits: torchao's optimizer stepped on meta and on the CPU; its state by formula."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from helpers.command_line import Ask
from helpers.miniatures import miniature
from helpers.real_step import on_meta, really
from torch import nn

import metacount
from metacount import Setup, Workload, catalog
from metacount.formulas.step import (
    adam8bit_state,
    optimizer_bytes_by_role,
)
from metacount.formulas.tape import Weight
from metacount.training.optimizers import Updates

needs_torchao = pytest.mark.skipif(
    find_spec("torchao") is None,
    reason="torchao is not installed: pip install 'metacount[adam8bit]'",
)
# below and above 4,096 values, in whole blocks of 256 and not
SHAPES = ((64, 128), (100, 50), (33,), (4096,), (4095,), (5000,), (16, 16), (17, 256), (3, 2, 768))


def weight(*shape: Any) -> Weight:
    return Weight(role="ffn", name="w", shape=shape)


def parameters(device: str, dtype: torch.dtype) -> dict[str, nn.Parameter]:
    return {
        str(i): nn.Parameter(torch.empty(shape, device=device, dtype=dtype).fill_(1))
        for i, shape in enumerate(SHAPES)
    }


def state_of(named: dict[str, nn.Parameter], **choices: bool) -> int:
    """Bytes of the state that a first step makes."""
    updates = Updates(Setup(optimizer="adam8bit", **choices), named, set())
    updates.prepare()
    return sum(tensor.untyped_storage().nbytes() for _, tensor in updates.state())


def test_a_state_by_hand() -> None:
    # a code for each value, a float32 for each 256, and 256 float32 that the codes stand for
    assert adam8bit_state(weight(64, 128), 2) == 2 * (8192 + 4 * 32 + 4 * 256) + 4
    # 15 blocks are too few, and 5,000 values are no whole number of them
    assert adam8bit_state(weight(15, 256), 2) == 2 * 2 * 15 * 256 + 4
    assert adam8bit_state(weight(5000), 2) == 2 * 2 * 5000 + 4


@needs_torchao
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_real_step_keeps_the_same(dtype: torch.dtype) -> None:
    real, meta = (state_of(parameters(device, dtype)) for device in ("cpu", "meta"))
    assert real == meta == sum(adam8bit_state(weight(*s), dtype.itemsize) for s in SHAPES)


@needs_torchao
@pytest.mark.parametrize("choices", [{}, {"master_weights": True}])
def test_a_real_step_holds_what_was_measured_and_what_the_formula_says(choices: Any) -> None:
    # some tensors are kept in 8 bits, and some are not
    spec = miniature(catalog.entry("llama-7b").spec())
    spec = spec.replace(n_layers=2, vocab_size=256, d_model=48, d_ff=96)
    setup, workload = Setup(optimizer="adam8bit", **choices), Workload(batch_size=2, seq_len=11)
    assert on_meta(spec, workload, setup) == really(spec, workload, setup)
    found = metacount.train(spec, workload, setup)
    of_moments = {f"exp_avg{x}.{part}" for x in ("", "_sq") for part in ("codes", "scale", "qmap")}
    assert {*found.optimizer_state} == {"step", "exp_avg", "exp_avg_sq", *of_moments}
    by_role = optimizer_bytes_by_role(
        spec, optimizer="adam8bit", bytes_per_value=2, master_weights=bool(choices)
    )
    assert found.optimizer_bytes == sum(found.optimizer_state.values())
    assert found.optimizer_bytes == sum(by_role.values()) and found.versions["torchao"]


def test_without_torchao_it_is_refused(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torchao", "torchao.optim"):
        monkeypatch.setitem(sys.modules, name, None)
    said = ask.refused("train gpt2 --optimizer adam8bit --seq 8")
    assert "torchao, which is not installed; pip install 'metacount[adam8bit]'" in said
