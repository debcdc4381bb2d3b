"""A checkpoint's tensors beside a module's, name by name and shape by shape.

Every tensor that is on one side only is named and, where there is a reason, given it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from metacount.formats.tensors import Shape, StoredTensor
from metacount.frozen import frozen
from metacount.huggingface.checkpoint.formats import (
    APART,
    INTEGERS,
    WORD,
    Quantization,
    Weight,
    unpack,
)
from metacount.units import exact

if TYPE_CHECKING:
    from torch import nn


# Why a checkpoint holds a tensor that is no parameter of the module.
BUFFER = "buffer"
TIED = "tied copy"
SCALE = "scale"
PREDICTION = "prediction-layer tensor"
OUTSIDE = "foreign tensor"  # outside the base model: of another head
IGNORED = "ignored tensor"  # the class passes over it
UNEXPLAINED = "unexplained tensor"

# Buffers that older versions stored and newer ones compute, by the last part of the name.
OLD_BUFFERS = (
    "inv_freq",
    "masked_bias",
    "position_ids",
    "token_type_ids",
    "cos_cached",
    "sin_cached",
    "num_batches_tracked",
)
Convert = Callable[[Sequence[Weight]], Sequence[Weight]]


# ---- prediction modules: a layer beyond the last (DeepSeek-V3, GLM-4.5), or names in `mtp` ----

# What such a layer has and no other layer.
PREDICTION_PARTS = ("eh_proj", "enorm", "hnorm", "shared_head")
PREDICTION_ROOTS = ("mtp", "mtp_layers", "mtp_block")
# Among its tensors: copies of the model's embedding and head, and values that are no parameters.
COPIES = (("embed_tokens",), ("shared_head", "head"))
BUFFERS = ("e_score_correction_bias",)


def prediction_layers(parameters: Iterable[str], stored: Iterable[str]) -> set[str]:
    """Find the layers beyond a module's last that hold what only a prediction layer has.

    A layer beyond the last without it means a wrong number of layers, and stays unexplained.

    >>> stored = ["model.layers.1.eh_proj.weight", "model.layers.2.mlp.up_proj.weight"]
    >>> prediction_layers(["model.layers.0.mlp.up_proj.weight"], stored)
    {'model.layers.1'}
    """
    n_layers: dict[str, int] = {}
    for name in parameters:
        for folder, layer, _ in _numbered(name):
            n_layers[folder] = max(n_layers.get(folder, 0), layer + 1)
    return {
        f"{folder}.{layer}"
        for name in stored
        for folder, layer, part in _numbered(name)
        if part in PREDICTION_PARTS and folder in n_layers and layer >= n_layers[folder]
    }


def is_prediction(name: str, layers: set[str]) -> bool:
    """Say whether a stored tensor is a prediction module's; `layers` are those found above."""
    parts = name.split(".")
    return any(step in PREDICTION_ROOTS for step in parts[:2]) or any(
        ".".join(parts[:n]) in layers for n in range(1, len(parts))
    )


def by_kind(values: Mapping[str, int]) -> dict[str, int]:
    """Add up the values of a module's tensors, by name, as params, copies and buffers.

    >>> by_kind({"model.layers.61.enorm.weight": 7168, "model.layers.61.embed_tokens.weight": 9})
    {'params': 7168, 'copies': 9, 'buffers': 0}
    """
    sizes = {"params": 0, "copies": 0, "buffers": 0}
    for name, n_values in values.items():
        parts = tuple(name.split(".")[:-1])
        kind = "copies" if any(parts[-len(end) :] == end for end in COPIES) else "params"
        kind = "buffers" if name.endswith(BUFFERS) else kind
        sizes[kind] += n_values
    return sizes


def said_besides(values: Mapping[str, int]) -> list[str]:
    """Say what prediction modules hold that is no parameter of theirs; nothing where nothing is.

    >>> said_besides({"params": 7168, "copies": 1000, "buffers": 0})
    ['of the prediction layers, 1,000 values are copies of embedding and head']
    """
    words = {"copies": "copies of embedding and head", "buffers": "buffers"}
    parts = [
        f"{exact(values[kind])} values are {word}" for kind, word in words.items() if values[kind]
    ]
    return [f"of the prediction layers, {' and '.join(parts)}"] if parts else []


def _numbered(name: str) -> Iterator[tuple[str, int, str]]:
    """Split a name around each number in it:
    `model.layers.61.enorm.weight` gives model.layers, 61, enorm.
    """
    parts = name.split(".")
    for n, part in enumerate(parts[1:-1], start=1):
        if part.isdecimal() and part.isascii() and len(part) < 10:
            yield ".".join(parts[:n]), int(part), parts[n + 1]


# ---- both sides ----


@frozen
class ModuleTensors:
    """What a module on meta says of itself. `tied` maps a name to the one that is counted."""

    parameters: Mapping[str, Shape]
    tied: Mapping[str, str] = {}
    buffers: Mapping[str, Shape] = {}
    base_prefix: str = ""  # of the names of a base model in a class with a head
    ignored: tuple[str, ...] = ()  # patterns of names that the class itself passes over


def module_tensors(module: nn.Module) -> ModuleTensors:
    """List the tensors of any `nn.Module`; a transformers model says more of itself."""
    parameters: dict[str, Shape] = {}
    tied: dict[str, str] = {}
    first: dict[int, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if first.setdefault(id(parameter), name) == name:
            parameters[name] = tuple(parameter.shape)
        else:
            tied[name] = first[id(parameter)]
    return ModuleTensors(
        parameters=parameters,
        tied=tied,
        buffers={name: tuple(buffer.shape) for name, buffer in module.named_buffers()},
        base_prefix=getattr(module, "base_model_prefix", ""),
        ignored=tuple(getattr(module, "_keys_to_ignore_on_load_unexpected", None) or ()),
    )


@frozen
class Extra:
    """A tensor of the checkpoint that is no parameter of the module, and why."""

    name: str
    kind: str
    n_values: int
    n_tensors: int = 1  # stored ones, where several make one weight


@frozen
class ShapeDifference:
    """A weight that both sides have in different shapes."""

    name: str
    stored: Shape
    module: Shape


@frozen
class Comparison:
    """Both sides, tensor by tensor."""

    same: tuple[str, ...]
    per_expert: tuple[Weight, ...]  # of those, the ones that are stored expert by expert
    packed: tuple[Weight, ...]  # of those, the ones in which stored values hold several
    missing: tuple[str, ...]
    extra: tuple[Extra, ...]
    differs: tuple[ShapeDifference, ...]
    not_comparable: dict[str, str]  # the reason, by name
    formats: dict[str, int]
    params: int | None  # stored values that are parameters: all but the explained extras

    @property
    def agree(self) -> bool:
        """No tensor that can be compared differs, is missing or is unexplained."""
        return not (self.missing or self.differs or self.extra_of(UNEXPLAINED))

    def extra_of(self, kind: str) -> tuple[Extra, ...]:
        """Return the extra tensors of one kind."""
        return tuple(extra for extra in self.extra if extra.kind == kind)

    @property
    def prediction(self) -> dict[str, int]:
        """Values of prediction modules: params, copies of embedding and head, buffers."""
        return by_kind({extra.name: extra.n_values for extra in self.extra_of(PREDICTION)})

    def differences(self) -> tuple[str, ...]:
        """Write one line for each tensor on which the sides differ without a reason."""
        lines = [f"{name}: in the module, not in the checkpoint" for name in self.missing]
        lines += [
            f"{extra.name}: in the checkpoint ({exact(extra.n_values)} values), not in the module"
            for extra in self.extra_of(UNEXPLAINED)
        ]
        lines += [
            f"{differs.name}: {list(differs.stored)} in the checkpoint, "
            f"{list(differs.module)} in the module"
            for differs in self.differs
        ]
        return tuple(lines)


def compare(
    module: ModuleTensors,
    tensors: Iterable[StoredTensor],
    *,
    convert: Convert | None = None,
    quantization: Quantization | None = None,
) -> Comparison:
    """Lay the stored tensors beside the module's.

    `convert` turns stored names and shapes into the module's, as transformers does on loading.
    `quantization` is what the config says of a packed format that does not show it. Of a module
    with a tensor that cannot be read nothing is judged.
    """
    by_name = {tensor.name: tensor for tensor in tensors}
    unpacked = unpack(by_name.values(), quantization)
    weights = unpacked.weights if convert is None else convert(unpacked.weights)
    rest, joined = fold_stacks(weights, lambda name: _mlx_stack(name, module.parameters))
    sides = _Sides(module, [*rest, *joined])
    missing = sides.missing()
    scales = [(name, by_name[name].n_values) for name in unpacked.scales]
    extra = sides.extra + [Extra(name=name, kind=SCALE, n_values=n) for name, n in scales]
    same = sides.same.values()
    return Comparison(
        same=tuple(sides.same),
        per_expert=tuple(w for w in same if len(w.sources) > 1 and APART not in w.how),
        packed=tuple(w for w in same if w.packed),
        missing=missing,
        extra=tuple(extra),
        differs=tuple(sides.differs),
        not_comparable=sides.not_comparable,
        formats=unpacked.formats,
        params=None if sides.not_comparable else sides.params,
    )


# The matrices of experts in MLX's stacks: the tensor of the module, and the place in it.
STACKED = {
    "gate_proj": ("gate_up_proj", 0),
    "up_proj": ("gate_up_proj", 1),
    "down_proj": ("down_proj", 0),
}


def _mlx_stack(name: str, known: Mapping[str, object]) -> tuple[str, int]:
    """X.switch_mlp.up_proj stands second in a fused tensor of the module, if that has one."""
    *stem, owner, matrix, leaf = ["", "", *name.split(".")]
    joined, place = STACKED.get(matrix, ("", 0))
    target = ".".join([*stem[2:], "experts", joined])
    return target if (owner, leaf) == ("switch_mlp", "weight") and target in known else "", place


def fold_stacks(
    weights: Iterable[Weight], stack_of: Callable[[str], tuple[str, int]]
) -> tuple[list[Weight], list[Weight]]:
    """Return the weights that are no stacks of experts' matrices, and the fused ones that the
    others make: [E, m, d] over [E, m, d] -> [E, 2m, d].

    `stack_of` gives the fused tensor that a stack belongs to, or "", and its place there.
    """
    stacks: dict[str, dict[int, Weight]] = {}
    rest: list[Weight] = []
    joined: list[Weight] = []
    for weight in weights:
        target, place = stack_of(weight.name)
        if target:
            stacks.setdefault(target, {})[place] = weight
        else:
            rest.append(weight)
    for target, places in stacks.items():
        pieces = [places[place] for place in sorted(places)]
        first, how = pieces[0].shape, [APART] * (len(pieces) > 1)
        if any(piece.shape != first for piece in pieces) or len(first or (0, 0, 0)) != 3:
            joined += pieces
            continue
        shape = None if first is None else (first[0], len(pieces) * first[1], first[2])
        joined.append(
            pieces[0]._replace(
                name=target,
                shape=shape,
                n_values=None if shape is None else math.prod(shape),
                sources=tuple(source for piece in pieces for source in piece.sources),
                how=", ".join([*how, *filter(None, [pieces[0].how])]),
            )
        )
    return rest, joined


class _Sides:
    """The comparison while it is made."""

    def __init__(self, module: ModuleTensors, arrived: Sequence[Weight]) -> None:
        self.module = module
        # a class with a head stores the base model under a prefix, which the base model drops
        start = f"{module.base_prefix}."
        is_base = start != "." and not any(name.startswith(start) for name in module.parameters)
        stored_below = any(w.sources[0].startswith(start) for w in arrived)
        self.start = start if is_base and stored_below else ""
        self.found: set[str] = set()
        self.same: dict[str, Weight] = {}
        self.extra: list[Extra] = []
        self.differs: list[ShapeDifference] = []
        self.not_comparable: dict[str, str] = {}
        self.params = 0
        self._ignored = [re.compile(pattern) for pattern in module.ignored]
        self._predicting = prediction_layers(module.parameters, (w.name for w in arrived))
        # a tied copy may come first: what is stored under the counted name goes before it
        for weight in sorted(arrived, key=lambda weight: weight.name in module.tied):
            self._put(weight)

    def missing(self) -> tuple[str, ...]:
        """List the module's parameters that are not stored.

        What is missing or unexplained in a module with a tensor that cannot be read is not
        comparable either: it may be that tensor, or belong to its format.
        """
        absent = [name for name in self.module.parameters if name not in self.found]
        unread = [name.split(".") for name in self.not_comparable]
        inside = {".".join(steps[:n]) for steps in unread for n in range(1, len(steps))}
        owners = {".".join(steps[:-1]) for steps in unread}
        for name in absent:
            if name.rpartition(".")[0] in inside:
                self.not_comparable[name] = "stored in a format not known"
        for extra in self.extra[:]:
            if extra.kind == UNEXPLAINED and extra.name.rpartition(".")[0] in owners:
                self.extra.remove(extra)
                self.not_comparable[extra.name] = "beside a tensor in a format not known"
        return tuple(name for name in absent if name not in self.not_comparable)

    def _put(self, weight: Weight) -> None:
        name = self.module.tied.get(weight.name, weight.name)
        wanted = self.module.parameters.get(name)
        if wanted is None:
            self._put_extra(weight, self._why(weight))
        elif name not in self.found:
            self.found.add(name)
            self._put_parameter(name, weight, wanted)
        elif weight.name in self.module.tied and weight.shape == wanted:
            self._put_extra(weight, TIED)
        else:  # two stored names for one parameter
            self._put_extra(weight, UNEXPLAINED)

    def _put_parameter(self, name: str, weight: Weight, wanted: Shape) -> None:
        n_wanted, n_values = math.prod(wanted), weight.n_values
        if n_values is None:
            self.not_comparable[name] = weight.how
            return
        if weight.shape is None:
            # the last byte of an odd count is half empty
            n_values -= weight.packed and n_values - n_wanted == 1
            fits = n_values == n_wanted
            if not fits:
                self.not_comparable[name] = (
                    f"{weight.how}: {exact(n_values)} values for {list(wanted)}"
                )
        else:
            fits = weight.shape == wanted or (weight.packed and _turned(weight.shape) == wanted)
            padding = 0
            if weight.packed and wanted and weight.shape[:-1] == wanted[:-1]:
                padding = weight.shape[-1] - wanted[-1]
            if not fits and weight.dtype in INTEGERS and not weight.packed:
                self.not_comparable[name] = f"stored as {weight.dtype} in a format not known"
            elif 0 < padding < WORD:  # a word is filled up: the header does not say how far
                self.not_comparable[name] = (
                    f"{weight.how}: {weight.shape[-1]} values a row at most, {wanted[-1]} here"
                )
            elif not fits:
                self.differs.append(ShapeDifference(name=name, stored=weight.shape, module=wanted))
        if fits:
            self.same[name] = weight
        self.params += n_values

    def _put_extra(self, weight: Weight, kind: str) -> None:
        n_values = weight.n_values
        unknown_integers = weight.dtype in INTEGERS and not weight.packed
        if n_values is None or (kind == UNEXPLAINED and unknown_integers):
            how = weight.how or f"stored as {weight.dtype} in a format not known"
            self.not_comparable[weight.name] = how
            return
        n_tensors = len(weight.sources)
        self.extra.append(
            Extra(name=weight.name, kind=kind, n_values=n_values, n_tensors=n_tensors)
        )
        self.params += n_values if kind == UNEXPLAINED else 0

    def _why(self, weight: Weight) -> str:
        name, parts = weight.name, weight.name.split(".")
        square = weight.shape is not None and weight.shape == (1, 1, *weight.shape[3:] * 2)
        if name in self.module.buffers or parts[-1] in OLD_BUFFERS:
            return BUFFER
        if parts[-1] == "bias" and square:  # GPT-2's causal mask [1, 1, n, n]
            return BUFFER
        if self.start and not weight.sources[0].startswith(self.start):
            return OUTSIDE
        if is_prediction(name, self._predicting):
            return PREDICTION
        if any(pattern.search(name) for pattern in self._ignored):
            return IGNORED
        return UNEXPLAINED


def _turned(shape: Shape) -> Shape:
    """Exchange the last two sizes: packed formats keep [out, in] where a module has [in, out]."""
    return shape if len(shape) < 2 else (*shape[:-2], shape[-1], shape[-2])
