"""Records a forward of a module that is not ours over a workload."""

from __future__ import annotations

from torch import nn

from metacount.measure.flow.known import of_torch
from metacount.measure.flow.record import Recording
from metacount.measure.flow.step import Step
from metacount.measure.flow.steps import steps_of
from metacount.measure.others.flops import CounterByClass
from metacount.measure.others.fold import folded
from metacount.measure.others.forward import Runner, as_it_runs, kind_of
from metacount.measure.others.params import routing
from metacount.measure.others.roles import Roles
from metacount.spec import Workload


class ForeignRecording(Recording, CounterByClass):
    """Counts and remembers what others' modules run."""


class NoDecode(ValueError):
    """The model keeps nothing from which one more token could be computed."""


def foreign_steps(
    model: nn.Module, workload: Workload, *, decode: bool = False
) -> tuple[tuple[Step, ...], tuple[str, ...], int]:
    """Return the steps of a forward of transformers' `model`, what was assumed,
    and the FLOPs of idle experts.
    """
    roles = Roles(model)
    roles.routed = routing(model)[0]
    counter, note = as_it_runs(model, lambda: _recorded(model, workload, roles, decode))
    assumed = (*sorted(counter.ordinary.assumed | counter.said), *note)
    return steps_of(counter.root, model, of_torch), assumed, counter.idle()


def _recorded(model: nn.Module, workload: Workload, roles: Roles, decode: bool) -> ForeignRecording:
    with folded(model) as folding:
        run = Runner(model, workload, roles, kind_of(model), folding)
        if decode:
            _, cache = run.prefill()
            if cache is None or run.no_cache or workload.seq_len < 2:
                raise NoDecode(run.no_cache or "it returns no cache")
            _, cache = run.forward(workload.seq_len - 1)
            run.counter = ForeignRecording
            counter, _ = run.forward(1, cache=cache)
        else:
            run.counter = ForeignRecording
            counter, _ = run.prefill()
    assert isinstance(counter, ForeignRecording)
    return counter
