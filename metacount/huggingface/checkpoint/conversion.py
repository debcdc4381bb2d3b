"""transformers' own renames and fusions, run on shapes alone: what loading would make of them.

`compare` takes what is made here as its option.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any

from metacount.errors import shown
from metacount.formats.gguf import ARCHITECTURE, Header, read_header
from metacount.given import Source
from metacount.huggingface.checkpoint.compare import Convert, fold_stacks
from metacount.huggingface.checkpoint.formats import Weight
from metacount.huggingface.checkpoint.witness import (
    CheckpointReport,
    find_checkpoint,
    join,
    read_checkpoint,
    read_repository,
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
        renamed, pattern = self._rename(name, self.renamings, self.converters)
        if renamed not in self.state and name in self.state:
            renamed, pattern = self._rename(name, [], [])
        if renamed not in self.state and pattern is None:
            return name, None  # of no use to the module: it keeps the name it is stored under
        return renamed, pattern

    def _rename(
        self, name: str, renamings: list[WeightRenaming], converters: list[WeightConverter]
    ) -> tuple[str, str | None]:
        from transformers.core_model_loading import rename_source_key

        return rename_source_key(name, renamings, converters, self.prefix, self.state)


def _natural(name: str) -> list[tuple[int, str]]:
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
        stored, header = read_gguf(source.gguf)
        return stored, gguf_conversion(module, header)
    if source.repository is not None:
        return read_repository(source.repository), transformers_conversion(module)
    path = None if source.folder is None else find_checkpoint(source.folder)
    return None if path is None else (read_checkpoint(path), transformers_conversion(module))


# A stack of experts' matrices -> the module's tensor, and its place where it holds two.
EXPERTS = {
    "ffn_gate_exps": ("gate_up_proj", 0),
    "ffn_up_exps": ("gate_up_proj", 1),
    "ffn_down_exps": ("down_proj", 0),
}
# Tables of RoPE, which a module computes.
ROPE = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def read_gguf(path: str) -> tuple[CheckpointReport, Header]:
    """Read what a GGUF file holds, and its header."""
    header = read_header(path)
    return join(shown(path), None, [list(header.tensors)]), header


def gguf_conversion(module: nn.Module, header: Header) -> Convert:
    """Build the conversion of a file's tensors into those of a module of transformers.

    Names are the library's to say; gate and up of all experts stand together in the module.
    """
    from gguf.constants import MODEL_ARCH_NAMES
    from gguf.tensor_mapping import get_tensor_name_map

    name = header.keys[ARCHITECTURE]
    kind = next(kind for kind, known in MODEL_ARCH_NAMES.items() if known == name)
    table = get_tensor_name_map(kind, header.keys[f"{name}.block_count"])
    theirs: dict[str, str] = {}
    experts: dict[tuple[str, str], str] = {}
    for parameter, _ in module.named_parameters(remove_duplicate=False):
        gguf_name = table.get_name(parameter, try_suffixes=(".weight", ".bias"))
        if gguf_name is not None:
            theirs[gguf_name] = parameter
        stem, _, leaf = parameter.rpartition(".")
        numbers = [step for step in stem.split(".") if step.isdecimal()]
        if leaf in ("gate_up_proj", "down_proj") and len(numbers) == 1:
            experts[numbers[0], leaf] = parameter

    def convert(weights: Sequence[Weight]) -> list[Weight]:
        rest, joined = fold_stacks(weights, stack_of)
        names = {name: f"{name.removesuffix('.weight')}.inv_freq" for name in ROPE} | theirs
        return [*(w._replace(name=names.get(w.name, w.name)) for w in rest), *joined]

    def stack_of(name: str) -> tuple[str, int]:
        parts = name.split(".")
        leaf, place = EXPERTS.get(parts[2], ("", 0)) if len(parts) == 4 else ("", 0)
        return experts.get((parts[1], leaf), "") if leaf else "", place

    return convert
