"""transformers' own renames and fusions, run on shapes alone: what loading would make of them.

`compare` takes what is made here as its option.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any

from metacount.given import Source
from metacount.huggingface.checkpoint.compare import Convert
from metacount.huggingface.checkpoint.formats import Weight
from metacount.huggingface.checkpoint.witness import (
    CheckpointReport,
    find_checkpoint,
    read_checkpoint,
)

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers.core_model_loading import WeightConverter, WeightRenaming
    from transformers.modeling_utils import PreTrainedModel


# What an operation raises on shapes that are not what it expects.
FAULTS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


def transformers_conversion(model: Any) -> Convert:
    """Build the conversion by which transformers turns stored weights into those of `model`, a
    module of its own on meta.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming

    transforms = get_model_conversion_mapping(model)
    renamings = [t for t in transforms if isinstance(t, WeightRenaming)]
    converters = [t for t in transforms if isinstance(t, WeightConverter)]
    by_pattern = {pattern: c for c in converters for pattern in c.source_patterns}
    names = _Renames(model, renamings, converters)

    def convert(weights: Sequence[Weight]) -> list[Weight]:
        done: list[Weight] = []
        groups: dict[str, list[tuple[str, Weight]]] = {}
        for weight in sorted(weights, key=lambda weight: _natural(weight.name)):
            name, pattern = names.of(weight.name)
            if pattern is None:
                done.append(weight._replace(name=name))
            else:
                groups.setdefault(name, []).append((pattern, weight))
        for name, pieces in groups.items():
            done += _converted(model, by_pattern[pieces[0][0]], name, pieces)
        return done

    return convert


class _Renames:
    """The module's name of a stored one, and the pattern of the fusion it takes part in."""

    def __init__(
        self,
        model: PreTrainedModel,
        renamings: list[WeightRenaming],
        converters: list[WeightConverter],
    ) -> None:
        self.prefix: str = model.base_model_prefix
        self.state: dict[str, Tensor] = model.state_dict()
        self.renamings, self.converters = renamings, converters

    def of(self, name: str) -> tuple[str, str | None]:
        """Find a name as transformers does, one name after the other in natural order."""
        found, pattern = self._rename(name, self.renamings, self.converters)
        if found not in self.state and name in self.state:
            found, pattern = self._rename(name, [], [])
        if found not in self.state and pattern is None:
            return name, None  # of no use to the module: it keeps the name it is stored under
        return found, pattern

    def _rename(
        self, name: str, renamings: list[WeightRenaming], converters: list[WeightConverter]
    ) -> tuple[str, str | None]:
        from transformers.core_model_loading import rename_source_key

        return rename_source_key(name, renamings, converters, self.prefix, self.state)


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key for tensor names that puts expert 2 before expert 10."""
    return [
        (int(step), "") if step.isascii() and step.isdecimal() and len(step) < 10 else (-1, step)
        for step in name.split(".")
    ]


def _converted(
    model: PreTrainedModel, converter: Any, name: str, pieces: list[tuple[str, Weight]]
) -> list[Weight]:
    """Compute the weights that a fusion or a split makes,
    by running it on tensors without values.
    """
    import torch

    sources = [weight for _, weight in pieces]
    if any(weight.shape is None for weight in sources):
        return sources
    run = deepcopy(converter)
    for pattern, weight in pieces:
        # a callable is what transformers expects of a tensor that is not loaded yet
        made = partial(torch.empty, weight.shape, device="meta")
        run.add_tensor(name, weight.name, pattern, made)
    try:
        converted = run.convert(name, model=model, config=model.config)
    except FAULTS:
        return sources
    shapes = {
        target: tuple((value[0] if isinstance(value, list) else value).shape)
        for target, value in converted.items()
    }
    n_stored = sum(weight.n_values or 0 for weight in sources)
    if sum(map(math.prod, shapes.values())) != n_stored:
        return sources  # what a conversion drops or invents cannot be counted
    how = "stored in parts" if len(sources) > 1 else "converted"
    return [
        Weight(
            name=target,
            shape=shape,
            n_values=math.prod(shape),
            sources=tuple(source for weight in sources for source in weight.sources),
            dtype=sources[0].dtype,
            how=", ".join(filter(None, (how, sources[0].how))),
            packed=sources[0].packed,
        )
        for target, shape in shapes.items()
    ]


def checkpoint_of(source: Source, module: nn.Module) -> tuple[CheckpointReport, Convert] | None:
    """Read the checkpoint of a config's folder, repository or GGUF file; None without weights."""
    if source.gguf is not None:
        from metacount.huggingface.checkpoint.gguf import gguf_conversion, read_gguf

        stored, header = read_gguf(source.gguf)
        return stored, gguf_conversion(module, header)
    if source.repository is not None:
        from metacount.huggingface.checkpoint.hub import read_repository

        return read_repository(source.repository), transformers_conversion(module)
    path = None if source.folder is None else find_checkpoint(source.folder)
    return None if path is None else (read_checkpoint(path), transformers_conversion(module))
