"""Records a forward of our own modules over a workload, with the equations of its steps."""

from __future__ import annotations

from metacount.measure.flow.record import Recording
from metacount.measure.flow.step import Step
from metacount.measure.flow.steps import steps_of
from metacount.measure.ours.equations import explain
from metacount.measure.ours.flops import ReferenceCounter
from metacount.measure.ours.forward import run_decode, run_encoder, run_prefill
from metacount.modules.model import Model
from metacount.spec import Workload


class ReferenceRecording(Recording, ReferenceCounter):
    """Counts and remembers what our own modules run."""


def reference_steps(model: Model, workload: Workload, *, decode: bool = False) -> tuple[Step, ...]:
    """Record the steps of a forward of `model` (on meta): of the workload, or of its last token."""
    counter = ReferenceRecording()
    if decode:
        run_decode(model, workload, counter)
    elif model.spec.kind == "encoder":
        run_encoder(model, workload, counter)
    else:
        run_prefill(model, workload, workload.seq_len, counter)
    return steps_of(counter.root, model, explain)
