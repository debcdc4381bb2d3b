"""One door: whatever a person has in hand, measured without touching it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torch import nn

from metacount.errors import InputError
from metacount.flow import run as flows
from metacount.flow.result import Flow
from metacount.flow.steps import summed
from metacount.measure.isolated import isolated
from metacount.measure.ours import measure_params
from metacount.measure.tree import Node, module_tree
from metacount.resolve import Model, TransformersOnly, any_of
from metacount.spec import Request
from metacount.summary.modules import Sizes, copied, made_inputs, named, recorded
from metacount.textbook.count import count
from metacount.verify.subject import OURS, THEIRS, maker_of, subject_in_hand

if TYPE_CHECKING:
    import torch

    from metacount.files import Json
    from metacount.resolve import Given
    from metacount.spec import Workload


class Summary(ABC):
    """What something consists of and what it costs. Figures that are not known are None."""

    name: str
    source: str
    notes: tuple[str, ...] = ()
    params: int
    active_params: int | None = None
    by_role: dict[str, int] | None = None
    buffers: int = 0

    @property
    @abstractmethod
    def tree(self) -> Node:
        """The module tree, alike neighbours folded."""

    @abstractmethod
    def flow(self, *inputs: Any, **asked: Any) -> Flow:
        """Return the forward in execution order."""

    def flops(self, *inputs: object, **asked: object) -> int:
        """Count the FLOPs of one forward: products and convolutions, 2 per multiply-add."""
        return self.flow(*inputs, **asked).matmul_flops

    def to_dict(self) -> Json:
        """Return plain data."""
        return {
            "name": self.name,
            "source": self.source,
            "params": self.params,
            "active_params": self.active_params,
            "by_role": self.by_role,
            "buffers": self.buffers,
            "notes": list(self.notes),
            "tree": self.tree.to_dict(self.tree.params),
        }


class ModuleSummary(Summary):
    """Of an `nn.Module` that somebody made: all is measured, on a copy without values."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._copy = copied(module)
        self.name, self.source = named(module), "numel() of a copy on the meta device"
        self.params = sum(p.numel() for p in self._copy.parameters())
        self.buffers = sum(b.numel() for b in self._copy.buffers())
        self._made_by = maker_of(self._copy)
        if self._made_by == OURS:
            ours = measure_params(self._copy)
            self.by_role, self.active_params = ours.by_role, ours.active_params
        elif self._made_by == THEIRS:
            self._classify()
        else:
            text = "which parameters have which role is known of transformers' modules and ours"
            self.notes = (f"roles and active parameters unknown: {text} alone",)

    def _classify(self) -> None:
        """Find roles and active parameters by transformers' classes, which say what is what."""
        from metacount.measure.theirs import measure_any_params

        measured = measure_any_params(self._copy)
        self.by_role, self.active_params = measured.by_role, measured.active_params
        if measured.unknown_routing:
            text = f"no number of experts per token is known for {measured.unknown_routing[0]}"
            self.notes = (f"active parameters unknown: {text}",)
        if measured.text_params != measured.params and measured.text_active_params is not None:
            text = f"of the text model, which alone runs, {measured.text_active_params:,}"
            self.notes += (f"active parameters are of all towers; {text}",)

    @cached_property
    def tree(self) -> Node:
        """The module tree, alike neighbours folded."""
        return module_tree(self._copy)

    @isolated
    def flow(
        self,
        *inputs: object,
        input_size: Sizes | None = None,
        dtype: torch.dtype | str | None = None,
        workload: Workload | Request | None = None,
        decode: bool = False,
        device: str = "meta",
        **keywords: object,
    ) -> Flow:
        """Return the forward in execution order, run on meta over inputs, or over sizes and a type.

        A model of transformers' or ours runs the tokens of a workload where neither is given. One
        whose forward depends on data is run on the CPU (`device`), with random values where the
        inputs or the module have none.
        """
        if inputs and (input_size is not None or dtype is not None):
            raise InputError("inputs have sizes and types: leave input_size and dtype out")
        if self._made_by and not (inputs or keywords or input_size is not None):
            if device != "meta":
                raise InputError("device is for a module that is given inputs: leave it out")
            fresh = copied(self._module)
            subject = subject_in_hand(fresh, self.name, workload or Request())
            return flows.flow_of(subject, decode=decode)
        if workload is not None or decode:
            raise InputError("workload and decode are for models of tokens: give inputs alone")
        if not inputs and (input_size is not None or not keywords):
            inputs = made_inputs(self._module, input_size, dtype)
        steps, notes = recorded(self._module, inputs, keywords, device)
        return Flow(
            model=self.name,
            name=self.name,
            source="given",
            workload={},
            decode=False,
            steps=tuple(map(flows.unnamed, steps)),
            letters=(),
            unused=self.params - summed(steps)["params"],
            notes=notes,
            device=device,
        )


class ModelSummary(Summary):
    """Of a model with a spec: counted by formulas, its tree and its forward of a module."""

    def __init__(self, model: Model) -> None:
        self._model = model
        counted = count(model.spec, Request()).to_dict()
        self.name, self.source = model.name, "the formulas"
        self.params, self.active_params = counted["params"], counted["active_params"]
        self.by_role = counted["by_role"]
        self.notes = model.notes

    @cached_property
    @isolated
    def tree(self) -> Node:
        """The module tree of our reference module, or of transformers' own for a config."""
        if self._model.source is not None:
            from metacount.huggingface.module.model import build_transformers

            return module_tree(build_transformers(self._model.source)[0])
        from metacount.modules.build import build

        return module_tree(build(self._model.spec))

    @isolated
    def flow(
        self,
        workload: Workload | Request | None = None,
        *,
        decode: bool = False,
        reference: bool = False,
    ) -> Flow:
        """Return the forward in execution order over a workload."""
        return flows.flow(self._model, workload, decode=decode, reference=reference)


def summary(given: Given | nn.Module) -> Summary:
    """Measure what a model, a config or any module consists of, without touching it."""
    if isinstance(given, nn.Module):
        return ModuleSummary(given)
    model = any_of(given)
    if isinstance(model, TransformersOnly):
        from metacount.huggingface.module.model import build_transformers

        module, choice = build_transformers(model.source)
        made = ModuleSummary(module)
        made.name, made.source = (
            model.name,
            "numel() of transformers' own module on the meta device",
        )
        made.notes += (f"no formula: {model.problem}", str(choice))
        return made
    return ModelSummary(model)
