"""Torch's own log of the CPU's allocator against what was measured on meta."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.miniatures import miniature
from helpers.release import daily
from torch.profiler import ProfilerActivity, profile

from metacount import Setup, Workload, catalog
from metacount.modules.build import build
from metacount.summary.training_step import train
from metacount.training.programs import reference_program
from metacount.training.step import Step


def allocated(name: str, choices: dict[str, Any]) -> tuple[int, int]:
    """(bytes that the allocator gave at most above the step's start, those measured on meta)."""
    spec, setup = miniature(catalog.entry(name).spec()), Setup(**choices)
    workload = Workload(batch_size=3, seq_len=11, dtype="fp32")
    model = build(spec, device="cpu", dtype="fp32")
    program = reference_program(model, workload, setup, device="cpu")

    def once() -> None:
        with program.context():
            step.loss_of(step.forward()).backward()
        step.updates.step()

    with Step(program, setup) as step:
        once()  # the optimizer's state is there afterwards
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as log:
            once()
    now = most = 0
    events = [event for event in log.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    assert events and now == 0
    found = train(spec, workload, setup)
    return most, found.peak_bytes - found.timeline[0].start_bytes


def test_where_kernels_take_no_room_of_their_own_it_is_the_same() -> None:
    most, measured = allocated("gpt2", {"attention": "sdpa"})
    assert most == measured


@daily(2)
@pytest.mark.parametrize("choices", [{}, {"checkpointing": "full"}])
def test_it_never_gives_less(choices: dict[str, Any]) -> None:
    # what sums take inside of them is not counted: "workspaces inside kernels"
    most, measured = allocated("llama-7b", choices)
    assert most >= measured
