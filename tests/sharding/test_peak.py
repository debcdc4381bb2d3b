"""On one device, the total by formula is the peak of a measured step, or a bound above it."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.command_line import run, run_json
from helpers.miniatures import miniature

import metacount
from metacount.catalog import entry
from metacount.sharding.adding import Piece, in_backward
from metacount.spec import Workload
from metacount.training.setup import Setup

# Of many kinds: tied and not, LayerNorm, biases, mixtures, latents, windows, recurrent layers.
MODELS = (
    "gpt2",
    "llama-7b",
    "qwen3-0.6b",
    "gemma2-2b",
    "mixtral-8x7b",
    "deepseek-v3",
    "falcon-180b",
    "opt-175b",
    "mamba2-130m",
)
WAYS: tuple[dict[str, str], ...] = (
    {},
    {"attention": "flash", "optimizer": "sgd"},
    {"checkpointing": "full", "optimizer": "sgd-momentum"},
)


def compared(model: Any, seq_len: int, way: dict[str, str]) -> tuple[int | None, int, int]:
    """The peak by formula, the bound by formula, and the peak that is measured, less buffers."""
    found = metacount.shard(model, "dp=1", train=True, formula=True, seq_len=seq_len, **way)
    (kind,) = found.kinds
    run_ = Workload(batch_size=1, seq_len=seq_len, dtype="bf16")
    measured = metacount.train(model, run_, setup=Setup(foreach=True, **way))
    less_buffers = measured.peak_bytes - measured.peak_parts["buffers"]
    return kind.peak_bytes, kind.most_bytes, less_buffers


@pytest.mark.parametrize("seq_len", [2, 31])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(way.values()) or "plain")
@pytest.mark.parametrize("name", MODELS)
def test_the_peak_of_one_device_is_the_measured_one(
    name: str, way: dict[str, str], seq_len: int
) -> None:
    spec = miniature(entry(name).spec())
    if name == "gemma2-2b" and "attention" in way:
        pytest.skip("no fused kernel caps scores")
    peak, most, measured = compared(spec, seq_len, way)
    assert peak in (None, measured)
    assert measured <= most


@pytest.mark.parametrize(
    ("name", "seq_len", "way"),
    [
        ("qwen3-0.6b", 512, {}),  # in the step
        ("qwen3-0.6b", 128, {"optimizer": "sgd"}),  # where gradients of the tied table are summed
        ("qwen3-0.6b", 4096, {"attention": "flash"}),  # in the loss
        ("llama3-8b", 64, {"optimizer": "sgd"}),  # in the backward of the embedding
    ],
)
def test_each_moment_is_the_peak_of_some_step(name: str, seq_len: int, way: dict[str, str]) -> None:
    peak, most, measured = compared(name, seq_len, way)
    assert peak == most == measured


def piece(copies: int, saved: int, **where: bool) -> Piece:
    return Piece(
        copies=copies,
        held=(),
        collectives={},
        optimizer_bytes=0,
        kv_cache_bytes=0,
        activation_bytes=saved,
        **{"layer": False, **where},
    )


def test_gradients_come_as_activations_go_by_hand() -> None:
    # ten blocks that save 7 and have gradients of 5, four that save 3 and have gradients of 11
    pieces = [
        (piece(1, 1, first=True), 100),
        (piece(10, 7, layer=True), 5),
        (piece(4, 3, layer=True), 11),
        (piece(1, 50, last=True), 90),
    ]
    # the head's gradients and the four's; the embedding's indices, the ten's, and one of the ten
    # that has both (5 more, where one of the four would have 3 more)
    assert in_backward(pieces) == (90 + 4 * 11 + 5, 1 + 10 * 7)
    # one kind alone: all activations, and the first gradients
    assert in_backward(pieces[1:2]) == (5, 70)
    assert in_backward(pieces[2:3]) == (44, 3)


def test_the_peak_is_said_where_it_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("fit", "qwen3-0.6b", "--train", "--gpu", "h100", "--seq", "512")
    (found,) = run_json(capsys, *asked)["answers"]
    assert found["peak_bytes"] == found["total_bytes"] == found["most_bytes"]
    said = f"peak {found['peak_bytes']:,} bytes, as `metacount train --foreach` measures"
    assert said in " ".join(run(capsys, *asked).split())
    several = run_json(capsys, *asked, "--devices", "2")["answers"][0]
    assert several["peak_bytes"] is None
    bound = ("shard", "qwen3-0.6b", "--mesh", "dp=1", "--train", "--formula", "--seq", "4096")
    (kind,) = run_json(capsys, *bound)["kinds"]
    assert (kind["peak_bytes"], kind["most_bytes"] > kind["total_bytes"]) == (None, True)
    assert "at most, with what comes and goes" in " ".join(run(capsys, *bound).split())
