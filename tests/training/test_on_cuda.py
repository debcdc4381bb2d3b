"""A real step on CUDA against what was measured on meta; skipped, with its reason, elsewhere."""

from __future__ import annotations

import pytest
import torch

from metacount import Setup, Workload, catalog
from metacount.modules.build import build
from metacount.summary.training_step import train
from metacount.training.programs import reference_program
from metacount.training.step import Step


@pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason="no CUDA device: the peak is not compared with max_memory_allocated",
)
def test_cuda_allocates_what_was_measured_and_its_rounding() -> None:
    spec = catalog.entry("gpt2").spec()
    workload, setup = Workload(batch_size=2, seq_len=512, dtype="bf16"), Setup()
    found = train(spec, workload, setup)
    model = build(spec, device="cuda", dtype="bf16")
    program = reference_program(model, workload, setup, device="cuda")
    with Step(program, setup) as step:
        step.updates.prepare()
        torch.cuda.reset_peak_memory_stats()
        with program.context():
            step.loss_of(step.forward()).backward()
        step.updates.step()
        allocated = torch.cuda.max_memory_allocated()
    # the numbers of steps are on the host
    predicted = found.peak_bytes - found.optimizer_state["step"]
    print(f"predicted {predicted}, allocated {allocated}, {allocated - predicted} more")
    # blocks are rounded up, and the library of products has a workspace: never less
    assert allocated >= predicted
