"""The flow of a model whose layers share a block: met once, run at each use, told in equations."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers.miniatures import miniature
from helpers.release import daily

from metacount import catalog
from metacount.flow.run import flow
from metacount.flow.steps import Step
from metacount.spec import Workload
from metacount.textbook.count import count

RUN = Workload(batch_size=2, seq_len=11)


def every(steps: tuple[Step, ...]) -> Iterator[Step]:
    for step in steps:
        yield step
        yield from every(step.inside)


@daily(2)
@pytest.mark.parametrize("name", ["zamba2-1.2b", "zamba2-2.7b"])
def test_parameters_are_met_once_and_multiplied_with_at_each_use(name: str) -> None:
    spec = miniature(catalog.entry(name).spec())
    found, expected = flow(spec, RUN), count(spec, RUN)
    assert (found.params, found.unused) == (expected.params, 0)
    assert found.matmul_flops == expected.matmul_flops
    steps = list(every(found.steps))
    for step in steps:  # what is inside is in the figure of the whole
        assert step.params >= sum(one.params * one.times for one in step.inside), step.path
    told = {step.equation for step in steps}
    both = "[x, x₀]: the hidden state and the embedding"
    assert {both, "read = x + what the shared block gives"} <= told
    adapters = {step.name for step in steps if step.module.endswith("Adapter")}
    of_attention = {f"shared_use.adapters.{name}" for name in "qkv"}
    assert adapters == {
        "shared_use.adapters.gate_up",
        *(of_attention if spec.attention_adapters else ()),
    }
    assert ("q = q + what its adapter gives" in told) == spec.attention_adapters
