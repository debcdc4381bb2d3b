"""A module of transformers as a program that can be trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metacount.errors import InputError
from metacount.measure.others.flops import CounterByClass
from metacount.measure.others.fold import folded
from metacount.measure.others.forward import Runner, as_it_runs, kind_of
from metacount.measure.others.params import routing
from metacount.measure.others.quiet import quiet
from metacount.measure.others.roles import Roles, told
from metacount.measure.others.transformers_private import attention_way
from metacount.measure.questions import ListQuestions, Ordinary
from metacount.spec import Workload
from metacount.training.attention import scale_of
from metacount.training.checkpointing import outermost_layers
from metacount.training.counter import BACKWARD, RoleBook
from metacount.training.setup import Setup
from metacount.training.step import Program, measure_step

if TYPE_CHECKING:
    from metacount.measure.torch_private import OpOverload

# Of our call of the kernel, among transformers' ways of attention; one with "flash" in its name
# would be looked for among its own.
NAME = "metacount_kernel"
LAYER = "GradientCheckpointingLayer"  # the class of what transformers itself checkpoints
NO_CACHE = "a training step keeps no cache"


class BookByClass(RoleBook):
    """Roles by class, and the answers of an ordinary run."""

    def __init__(self, model: nn.Module, last_position: int) -> None:
        roles = Roles(model)
        roles.routed = routing(model)[0]
        self.roles = roles
        self._counter = CounterByClass(roles, last_position=last_position)

    @property
    def ordinary(self) -> Ordinary:
        """What is answered, and what was assumed in doing so."""
        return self._counter.ordinary

    @ordinary.setter
    def ordinary(self, ordinary: Ordinary) -> None:
        self._counter.ordinary = ordinary

    def role(self, path: list[nn.Module]) -> str | None:
        """Return the role of the innermost module that has one."""
        return self._counter.role_and_detail(path)[0]

    def counts(self, path: list[nn.Module]) -> bool:
        """Tell whether what runs belongs to the figures: rotary tables are in no textbook's."""
        return not self._counter.role_and_detail(path)[1]

    def answer(self, func: OpOverload, args: tuple[object, ...], path: list[nn.Module]) -> object:
        """Answer a question about data as an ordinary run does."""
        return self._counter.answer_in(func, args, path)

    def note(self, func: OpOverload, out: object) -> None:
        """Remember what a later question may be about."""
        self.ordinary.note(func, out)


def foreign_program(model: nn.Module, workload: Workload, setup: Setup) -> Program:
    """Make a training step of transformers' `model` (on meta) over a workload."""
    book = BookByClass(model, workload.seq_len - 1)
    with folded(model, enabled=False) as unfolded:
        runner = Runner(model, workload, book.roles, kind_of(model), unfolded)
    runner.no_cache = NO_CACHE
    given = runner.inputs(workload.seq_len)
    names = [name for name, value in given.items() if isinstance(value, Tensor)]
    plain = {name: value for name, value in given.items() if name not in names}

    def run(*tensors: Tensor) -> object:
        with quiet():
            out = model(**dict(zip(names, tensors, strict=True)), **plain)
        logits = getattr(out, "logits", None)
        return out[0] if logits is None else logits

    main = given.get("decoder_input_ids", given.get("input_ids"))
    found = told(model, "get_output_embeddings")
    head = found if isinstance(found, nn.Module) else None
    return Program(
        model=model,
        inputs=tuple(given[name] for name in names),
        run=run,
        targets=None if head is None or main is None else torch.empty_like(main),
        layers=layers_of(model),
        head=head,
        book=book,
        context=lambda: as_trained(model, setup.attention),
        modes=lambda: _modes(book.ordinary),
    )


def measure_backward(
    model: nn.Module, workload: Workload
) -> tuple[int, int | None, tuple[str, ...]]:
    """Measure the backward of transformers' `model`: its FLOPs, bytes that it keeps, and notes.

    Eager attention, nothing recomputed; an optimizer without state, of which nothing is asked. No
    bytes of a model that ran in float32 alone.
    """
    setup = Setup(optimizer="sgd")

    found, widened = as_it_runs(
        model, lambda: measure_step(foreign_program(model, workload, setup), setup)
    )
    backward = sum(found.counter.flops(BACKWARD, "role").values())
    kept = None if widened else found.ledger.sum(found.numbers["activations"])
    return backward, kept, (*sorted(found.counter.said), *widened)


@contextmanager
def _modes(ordinary: Ordinary) -> Iterator[None]:
    with torch.device("meta"), ListQuestions(ordinary):
        yield


def layers_of(model: nn.Module) -> dict[str, nn.Module]:
    """Find the layers that transformers itself checkpoints, else children of outermost lists."""
    found: dict[str, nn.Module] = {}
    for path, module in model.named_modules():
        inside = any(path.startswith(f"{layer}.") for layer in found)
        if not inside and any(kind.__name__ == LAYER for kind in type(module).__mro__):
            found[path] = module
    return found or outermost_layers(model)


@contextmanager
def as_trained(model: Any, attention: str) -> Iterator[None]:
    """Run attention inside in a way of transformers'; set the way from before again after."""
    if attention == "eager":
        yield
        return
    if attention == "flash":
        _register()
    before = attention_way(model.config)
    try:
        with quiet():
            model.set_attn_implementation(NAME if attention == "flash" else attention)
    except ValueError as error:
        said = " ".join(str(error).split())[:160]
        raise InputError(f"attention {attention}: {said}; choose eager") from None
    try:
        yield
    finally:
        with quiet():
            model.set_attn_implementation(before)


def _register() -> None:
    """Make our call of the flash kernel one of transformers' ways of attention, without a mask."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, _flash)
    AttentionMaskInterface.register(NAME, lambda *_, **__: None)


def _flash(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **more: object,
) -> tuple[Tensor, None]:
    """Compute attention as transformers asks for it; windows are the kernel's own business."""
    has = {name for name in ("softcap", "s_aux", "position_bias") if more.get(name) is not None}
    if has or attention_mask is not None:
        what = ", ".join(sorted(has)) or "a mask of its own"
        raise InputError(f"attention flash takes no {what}: choose sdpa or eager")
    causal = bool(getattr(module, "is_causal", True)) if is_causal is None else is_causal
    grouped = bool(query.shape[1] != key.shape[1])  # of symbols too
    out = F.scaled_dot_product_attention(
        query, key, value, is_causal=causal, scale=scale_of(scaling), enable_gqa=grouped
    )
    return out.transpose(1, 2), None
