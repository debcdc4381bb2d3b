"""What is run of a model: its module on meta, ours or transformers' own, and the workload."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metacount.errors import InputError
from metacount.frozen import frozen
from metacount.resolve import Model, Source, TransformersOnly
from metacount.textbook.count import fitted, said_of_too_many
from metacount.verify.compare import fitted_outside

if TYPE_CHECKING:
    from typing import Any

    from torch import nn

    from metacount.spec import Request, Workload

OURS, THEIRS = "reference", "transformers"


@frozen
class Subject:
    """A module, whose it is, what it is called, what it runs and what is to be said of that.

    `choice`: which of transformers' classes it is; empty of a module that was in hand, and of ours.
    """

    source: str
    id: str
    name: str
    module: Any
    run: Workload
    choice: str = ""
    notes: tuple[str, ...] = ()


def subject_of(
    model: Model | TransformersOnly,
    request: Workload | Request,
    *,
    reference: bool = False,
    dtype: str = "",
) -> Subject:
    """Build the module of a model: of a spec, or with `reference`, ours, in `dtype` or the run's;
    of a config transformers' own.
    """
    if isinstance(model, Model) and (reference or model.source is None):
        from metacount.modules.build import build

        run = fitted(model.spec, request)
        return Subject(
            source=OURS,
            id=model.id,
            name=model.name,
            module=build(model.spec, dtype=dtype or run.dtype),
            run=run,
            notes=said_of_too_many(model.spec, run),
        )
    if reference:
        assert isinstance(model, TransformersOnly)  # a model with a spec has one
        raise InputError(f"{model.name} has no reference module: {model.problem}")
    from metacount.huggingface.module.model import build_transformers
    from metacount.huggingface.module.witness import run_dtype

    assert model.source is not None
    run, why = fitted_outside(model.source, request)
    module, choice = build_transformers(model.source, dtype=run_dtype(run))
    class_text = f"transformers: {choice}"
    return Subject(
        source=THEIRS,
        id=model.id,
        name=model.name,
        module=module,
        run=run,
        choice=class_text,
        notes=(class_text, *([why] if why else [])),
    )


def maker_of(module: nn.Module) -> str:
    """Tell whose a module in hand is that runs tokens: ours, transformers'; else nobody's."""
    from metacount.modules.model import Model as ReferenceModel

    if isinstance(module, ReferenceModel):
        return OURS
    packages = {kind.__module__.partition(".")[0] for kind in type(module).__mro__}
    return THEIRS if "transformers" in packages and hasattr(module, "config") else ""


def subject_in_hand(module: Any, name: str, request: Workload | Request) -> Subject:
    """Return a module of tokens, on meta, that is there already, and what it runs."""
    source = maker_of(module)
    if source == OURS:
        run = fitted(module.spec, request)
        notes = said_of_too_many(module.spec, run)
    else:
        config = {**module.config.to_dict(), "architectures": [type(module).__name__]}
        run, why = fitted_outside(Source(config=config), request)
        notes = (why,) if why else ()
    return Subject(source=source, id=name, name=name, module=module, run=run, notes=notes)
