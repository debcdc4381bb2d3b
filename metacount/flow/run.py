"""From what a person has in hand to the steps of its forward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from metacount.errors import InputError
from metacount.flow.equations import explain, of_torch
from metacount.flow.letters import BATCHES, LENGTHS, Letters, letters_of_run, named, other_sizes
from metacount.flow.letters import unnamed as unnamed
from metacount.flow.result import Flow, Letter
from metacount.flow.steps import Recording, Step, steps_of
from metacount.measure.ours import ReferenceForwards
from metacount.measure.theirs import Runner, as_it_runs
from metacount.resolve import Model, Source, TransformersOnly, any_of
from metacount.spec import Request, Workload, legend
from metacount.textbook.count import fitted, said_of_too_many

if TYPE_CHECKING:
    from metacount.modules.model import Model as RunModel
    from metacount.resolve import Given


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
    model_of = any_of(model)
    request = workload or Request()
    if isinstance(model_of, Model) and (reference or model_of.source is None):
        return flow_of_spec(model_of, request, decode=decode)
    if reference:
        assert isinstance(model_of, TransformersOnly)  # a model with a spec has one
        raise InputError(f"{model_of.name} has no reference module: {model_of.problem}")
    return flow_of_config(model_of, request, decode=decode)


def flow_of_spec(model: Model, request: Workload | Request, *, decode: bool) -> Flow:
    """Return the forward of our reference module, with equations and every letter of the spec."""
    from metacount.modules.build import build

    return flow_of_reference(build(model.spec), (model.id, model.name), request, decode=decode)


def flow_of_reference(
    module: RunModel, names: tuple[str, str], request: Workload | Request, *, decode: bool
) -> Flow:
    """Return the forward of a reference module (on meta) that is there already."""
    from metacount.modules.build import build

    spec = module.spec
    run = fitted(spec, request)
    if decode and spec.kind == "encoder":
        raise InputError(f"{names[1]} is an encoder, which writes no tokens: leave --decode out")
    letters = letters_of_run(spec, run, decode=decode)
    steps = reference_steps(module, run, decode=decode)
    runs = other_sizes(spec, run, decode=decode)
    others = [reference_steps(build(o.spec), o.workload, decode=decode) for o in runs]
    steps_named = named(steps, others, Letters([letters, *(o.letters for o in runs)]))
    made = Flow(
        steps=steps_named,
        letters=_legend(letters),
        model=names[0],
        name=names[1],
        source="reference",
        workload=run.to_dict(),
        decode=decode,
        notes=said_of_too_many(spec, run),
    )
    return _with_unused(made, module)


def flow_of_config(
    model: Model | TransformersOnly, request: Workload | Request, *, decode: bool
) -> Flow:
    """Return the forward of transformers' own module, with the letters of the run."""
    from metacount.huggingface.module.model import build_transformers
    from metacount.huggingface.module.witness import run_dtype
    from metacount.verify.compare import fitted_outside

    assert model.source is not None
    run, why = fitted_outside(model.source, request)
    module, choice = build_transformers(model.source, dtype=run_dtype(run))
    notes = (f"transformers: {choice}", *([why] if why else []))
    return _of_theirs(module, (model.id, model.name), run, notes, decode=decode)


def flow_of_module(module: Any, name: str, request: Workload | Request, *, decode: bool) -> Flow:
    """Return the forward of a module of transformers' (on meta) that somebody has in hand."""
    from metacount.verify.compare import fitted_outside

    config = {**module.config.to_dict(), "architectures": [type(module).__name__]}
    run, why = fitted_outside(Source(config=config), request)
    notes = (why,) if why else ()
    return _of_theirs(module, (name, name), run, notes, decode=decode)


def _of_theirs(
    module: nn.Module,
    names: tuple[str, str],
    run: Workload,
    notes: tuple[str, ...],
    *,
    decode: bool,
) -> Flow:
    from metacount.huggingface.module.witness import shortfall

    try:
        steps, assumed, idle = foreign_steps(module, run, decode=decode)
    except NoDecode as error:
        raise InputError(f"{names[1]} cannot decode: {error}; leave --decode out") from None
    except Exception as error:
        # whatever somebody else's forward raises
        raise InputError(f"{names[1]}: its forward was not run: {shortfall(error)}") from None
    letters = _run_letters(run, module, decode)
    lengths = [_lengths(run, n) for n in range(len(BATCHES))]
    try:
        others = [foreign_steps(module, workload, decode=decode)[0] for workload in lengths]
    except Exception:  # likewise, at lengths that it was not made for
        steps = tuple(map(unnamed, steps))
    else:
        runs = [letters, *(_run_letters(workload, module, decode) for workload in lengths)]
        steps = named(steps, others, Letters(runs))
    if idle:
        notes += (f"{idle:,} FLOPs are experts run on tokens that did not choose them",)
    made = Flow(
        steps=steps,
        letters=_legend(letters),
        model=names[0],
        name=names[1],
        source="transformers",
        workload=run.to_dict(),
        decode=decode,
        notes=(*notes, *assumed),
    )
    return _with_unused(made, module)


def _lengths(run: Workload, n: int) -> Workload:
    seq_len, source = LENGTHS[n]
    return Workload(batch_size=BATCHES[n], seq_len=seq_len, dtype=run.dtype, source_len=source)


def _run_letters(run: Workload, module: nn.Module, decode: bool) -> dict[str, int]:
    letters = {"B": run.batch_size, "T" if decode else "S": run.seq_len}
    if getattr(module.config, "is_encoder_decoder", False):
        letters["S_e"] = run.encoder_len
    return letters


def _with_unused(made: Flow, module: nn.Module) -> Flow:
    """Add to the flow how many parameters of the module it does not use."""
    every = sum({id(p): p.numel() for p in module.parameters()}.values())
    return Flow(**{**vars(made), "unused": every - made.params})


def _legend(values: dict[str, int]) -> tuple[Letter, ...]:
    """Return the meaning of each letter, in the words of the spec."""
    terms = {term.letter: term for term in legend.TERMS}
    return tuple(
        Letter(letter=letter, name=terms[letter].name, value=value, meaning=terms[letter].meaning)
        for letter, value in values.items()
    )
