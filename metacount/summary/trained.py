"""A training step of a module that somebody has in hand, measured on a copy without values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from metacount.errors import InputError, SpecError
from metacount.measure.torch_private import tree_map
from metacount.modules.model import Model as ReferenceModel
from metacount.resolve import Source
from metacount.spec import Request, Workload
from metacount.summary import training_step
from metacount.summary.copied import copied_on_meta, named, said
from metacount.summary.ran import Sizes, made_inputs
from metacount.summary.training_step import told, train_reference, train_transformers
from metacount.training.checkpointing import outermost_layers
from metacount.training.result import Training
from metacount.training.result import Training as Record
from metacount.training.setup import Setup, check_dtypes
from metacount.training.step import Program

if TYPE_CHECKING:
    from metacount.resolve import Given


def train(
    model: Given,
    workload: Workload | Request | None = None,
    setup: Setup | None = None,
    *,
    reference: bool = False,
    inputs: Sequence[object] = (),
    input_size: Sizes | None = None,
    loss: Callable[..., Tensor] | None = None,
) -> Training:
    """Measure one training step: FLOPs of the backward, bytes kept, gradients, state, the peak.

    `setup` says with which optimizer, attention, checkpointing and loss, and what is trained. A
    module of somebody's own runs over `inputs`, or over an `input_size`; `loss` is a function of
    what it gives. The module in hand is not touched: a copy on the meta device is trained.

    >>> found = train("gpt2")
    >>> found.matmul_flops, found.backward_matmul_flops, found.gradient_bytes
    (291648307200, 583296614400, 248879616)
    """
    if not isinstance(model, nn.Module):
        if inputs or input_size is not None or loss is not None:
            raise InputError("inputs, sizes and a loss are for a module: a model runs tokens")
        return _shown(training_step.train(model, workload, setup, reference=reference))
    if reference:
        raise InputError("reference is for a config: a module in hand is trained itself")
    if input_size is not None:
        inputs = made_inputs(model, input_size, None)
    return _shown(trained(model, inputs, workload=workload, setup=setup, loss=loss))


def _shown(found: Record) -> Training:
    return Training(**vars(found))


def trained(
    module: nn.Module,
    inputs: Sequence[object] = (),
    *,
    workload: Workload | Request | None = None,
    setup: Setup | None = None,
    loss: Callable[..., Tensor] | None = None,
) -> Record:
    """Run a training step of a copy of `module`:
    over `inputs`, or over tokens where it takes these.

    `loss` is of what the module gives; without one it is the sum of that, which itself keeps
    nothing.
    """
    copied, chosen = copied_on_meta(module), setup or Setup()
    names = (named(module), named(module))
    made_by = {kind.__module__.partition(".")[0] for kind in type(module).__mro__}
    if not inputs and isinstance(copied, ReferenceModel):
        given = workload or Request(dtype=_dtype(copied))
        check_dtypes(chosen, _dtype(copied))
        return train_reference(copied, names, given, chosen)
    if not inputs and "transformers" in made_by and hasattr(copied, "config"):
        return _of_transformers(copied, names, workload, chosen)
    if not inputs:
        raise InputError(f"{names[0]} runs no tokens: give inputs, or input_size and dtype")
    return _of_any(copied, names, inputs, chosen, loss)


def _dtype(module: nn.Module) -> str:
    from metacount.tensors import DTYPES

    kind = next((p.dtype for p in module.parameters() if p.is_floating_point()), None)
    if kind is None:
        raise InputError(f"{named(module)}: it has no parameters to train")
    found = next((name for name, known in DTYPES.items() if known == kind), None)
    if found is None:
        raise InputError(f"{named(module)}: its parameters are of {kind}, which is not trained")
    return found


def _of_transformers(
    module: Any, names: tuple[str, str], workload: Workload | Request | None, setup: Setup
) -> Record:
    from metacount.verify.compare import fitted_outside

    config = {**module.config.to_dict(), "architectures": [type(module).__name__]}
    given = workload or Request(dtype=_dtype(module))
    fitting, why = fitted_outside(Source(config=config), given)
    check_dtypes(setup, _dtype(module))
    return train_transformers(module, names, fitting, setup, (why,) if why else ())


def _of_any(
    module: nn.Module,
    names: tuple[str, str],
    inputs: Sequence[object],
    setup: Setup,
    loss: Callable[..., Tensor] | None,
) -> Record:
    given = tree_map(lambda v: v.detach().to("meta") if isinstance(v, Tensor) else v, tuple(inputs))
    tensors = tuple(v for v in given if isinstance(v, Tensor))

    def forward(*some: Tensor) -> object:
        left = iter(some)
        out = module(*(next(left) if isinstance(v, Tensor) else v for v in given))
        return out if loss is None else loss(out)

    check_dtypes(setup, _dtype(module))
    program = Program(
        model=module, inputs=tensors, run=forward, targets=None, layers=outermost_layers(module)
    )
    notes: tuple[str, ...] = (
        ("the loss is the sum of what the module gives",) if loss is None else ()
    )
    if module.training:
        notes += ("in training mode, as it was given: dropout runs",)
    try:
        return told(names, "given", program, {}, setup, notes)
    except (InputError, SpecError):
        raise
    except Exception as error:
        # whatever somebody else's forward raises
        text = f"{names[0]}: its training step was not run on meta: {said(error)}"
        raise InputError(text) from None
