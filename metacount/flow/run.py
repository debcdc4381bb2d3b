"""From what a person has in hand to the steps of its forward."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from torch import nn

from metacount.errors import InputError
from metacount.flow.equations import explain, of_torch
from metacount.flow.letters import BATCHES, LENGTHS, Letters, letters_of_run, named, other_sizes
from metacount.flow.letters import unnamed as unnamed
from metacount.flow.result import Flow, Letter
from metacount.flow.steps import Recording, Step, steps_of
from metacount.measure.ours import ReferenceForwards
from metacount.measure.theirs import Runner, as_it_runs
from metacount.resolve import any_of
from metacount.spec import Request, Workload, legend
from metacount.verify.subject import OURS, subject_of

if TYPE_CHECKING:
    from metacount.modules.model import Model as RunModel
    from metacount.resolve import Given
    from metacount.verify.subject import Subject


def reference_steps(
    model: RunModel, workload: Workload, *, decode: bool = False
) -> tuple[Step, ...]:
    """Record the steps of a forward of `model` (on meta): of the workload, or of its last token."""
    run = ReferenceForwards(model, workload)
    counter = run.last_token(Recording) if decode else run.prefill(Recording)[0]
    assert isinstance(counter, Recording)
    return steps_of(counter.root, model, explain)


class NoDecode(ValueError):
    """The model keeps nothing from which one more token could be computed."""


def foreign_steps(
    model: nn.Module, workload: Workload, *, decode: bool = False
) -> tuple[tuple[Step, ...], tuple[str, ...], int]:
    """Return the steps of transformers' `model`, what was assumed, FLOPs of idle experts."""
    (counter, assumed), note = as_it_runs(model, lambda: _recorded(model, workload, decode))
    notes = (*sorted(assumed | counter.said), *note)
    return steps_of(counter.root, model, of_torch), notes, counter.other_flops(idle=True)


def _recorded(model: nn.Module, workload: Workload, decode: bool) -> tuple[Recording, set[str]]:
    """Record a forward, and return what was assumed in it, too."""
    run = Runner(model, workload)
    if decode:
        _, cache = run.prefill()
        if cache is None or workload.seq_len < 2:
            raise NoDecode(run.no_cache or "it returns no cache")
        counter = run.last_token(Recording)
    else:
        counter, _ = run.prefill(Recording)
    assert isinstance(counter, Recording)
    return counter, run.assumed


def flow(
    model: Given,
    workload: Workload | Request | None = None,
    *,
    decode: bool = False,
    reference: bool = False,
) -> Flow:
    """Return the forward of a model in execution order: see `metacount.flow`."""
    request = workload or Request()
    subject = subject_of(any_of(model), request, reference=reference, dtype="bf16")
    return flow_of(subject, decode=decode)


def flow_of(subject: Subject, *, decode: bool) -> Flow:
    """Return the forward of a module (on meta): of ours with equations and every letter of the
    spec, of transformers' with the letters of the run.
    """
    steps_of_module = _our_steps if subject.source == OURS else _their_steps
    steps, letters, notes = steps_of_module(subject, decode)
    made = Flow(
        steps=steps,
        letters=_legend(letters),
        model=subject.id,
        name=subject.name,
        source=subject.source,
        workload=subject.run.to_dict(),
        decode=decode,
        notes=(*subject.notes, *notes),
    )
    every = sum({id(p): p.numel() for p in subject.module.parameters()}.values())
    return Flow(**{**vars(made), "unused": every - made.params})


# The steps, the numbers of the letters, and notes.
StepsOfRun: TypeAlias = tuple[tuple[Step, ...], dict[str, int], tuple[str, ...]]


def _our_steps(subject: Subject, decode: bool) -> StepsOfRun:
    from metacount.modules.build import build

    spec, run = subject.module.spec, subject.run
    if decode and spec.kind == "encoder":
        raise InputError(
            f"{subject.name} is an encoder, which writes no tokens: leave --decode out"
        )
    letters = letters_of_run(spec, run, decode=decode)
    steps = reference_steps(subject.module, run, decode=decode)
    runs = other_sizes(spec, run, decode=decode)
    others = [reference_steps(build(o.spec), o.workload, decode=decode) for o in runs]
    return named(steps, others, Letters([letters, *(o.letters for o in runs)])), letters, ()


def _their_steps(subject: Subject, decode: bool) -> StepsOfRun:
    from metacount.huggingface.module.witness import shortfall

    module, run, name = subject.module, subject.run, subject.name
    try:
        steps, assumed, idle = foreign_steps(module, run, decode=decode)
    except NoDecode as error:
        raise InputError(f"{name} cannot decode: {error}; leave --decode out") from None
    except Exception as error:
        # whatever somebody else's forward raises
        raise InputError(f"{name}: its forward was not run: {shortfall(error)}") from None
    letters = _run_letters(run, module, decode)
    lengths = [_lengths(run, n) for n in range(len(BATCHES))]
    try:
        others = [foreign_steps(module, workload, decode=decode)[0] for workload in lengths]
    except Exception:  # likewise, at lengths that it was not made for
        steps = tuple(map(unnamed, steps))
    else:
        runs = [letters, *(_run_letters(workload, module, decode) for workload in lengths)]
        steps = named(steps, others, Letters(runs))
    of_idle = f"{idle:,} FLOPs are experts run on tokens that did not choose them"
    return steps, letters, (*([of_idle] if idle else []), *assumed)


def _lengths(run: Workload, n: int) -> Workload:
    seq_len, source = LENGTHS[n]
    return Workload(batch_size=BATCHES[n], seq_len=seq_len, dtype=run.dtype, source_len=source)


def _run_letters(run: Workload, module: nn.Module, decode: bool) -> dict[str, int]:
    letters = {"B": run.batch_size, "T" if decode else "S": run.seq_len}
    if getattr(module.config, "is_encoder_decoder", False):
        letters["S_e"] = run.encoder_len
    return letters


def _legend(values: dict[str, int]) -> tuple[Letter, ...]:
    """Return the meaning of each letter, in the words of the spec."""
    terms = {term.letter: term for term in legend.TERMS}
    return tuple(
        Letter(letter=letter, name=terms[letter].name, value=value, meaning=terms[letter].meaning)
        for letter, value in values.items()
    )
