"""From the names that a checkpoint stores to the names that a module has.

Two ways of storing are bridged: a prefix that one side has, and experts stored one by one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from metacount.frozen import frozen
from metacount.huggingface.checkpoint.formats import APART, Weight
from metacount.huggingface.checkpoint.header import Shape

if TYPE_CHECKING:
    from torch import nn

# One expert's matrices and their place in the fused tensors of transformers 5.
FUSED = {
    "gate_proj": ("gate_up_proj", 0),
    "up_proj": ("gate_up_proj", 1),
    "down_proj": ("down_proj", 0),
    "w1": ("gate_up_proj", 0),
    "w3": ("gate_up_proj", 1),
    "w2": ("down_proj", 0),
}
FUSED_PARTS = {"gate_up_proj": 2, "down_proj": 1}
# Modules whose name changed between the checkpoints of a model and transformers 5.
RENAMED_MODULES = {"block_sparse_moe": "mlp"}


@frozen
class ModuleTensors:
    """What a module on meta says of itself. `tied` maps a name to the one that is counted."""

    parameters: Mapping[str, Shape]
    tied: Mapping[str, str] = {}
    buffers: Mapping[str, Shape] = {}
    base_prefix: str = ""
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


class Names:
    """The module's names, and the prefix by which the stored names differ from them."""

    def __init__(self, module: ModuleTensors, weights: Sequence[Weight]) -> None:
        self.known = {*module.parameters, *module.tied, *module.buffers}
        self.strip = self.add = self.said = ""
        stored = [weight.name for weight in weights]
        best = sum(name in self.known for name in stored)
        if best * 2 >= len(self.known) or not stored:
            return
        for strip, add in _prefixes(module, stored):
            n_found = sum(_change(name, strip, add) in self.known for name in stored)
            if n_found > best:
                best, self.strip, self.add = n_found, strip, add
        if self.strip:
            self.said = f"stored names begin with {self.strip!r}, the module's do not"
        elif self.add:
            self.said = f"the module's names begin with {self.add!r}, the stored ones do not"

    def renamed(self, weight: Weight) -> Weight:
        """Return the weight under the module's name."""
        if weight.name in self.known:
            return weight
        name = _change(weight.name, self.strip, self.add)
        newer = ".".join(RENAMED_MODULES.get(step, step) for step in name.split("."))
        return _under(weight, newer if newer in self.known else name)

    def outside(self, weight: Weight) -> bool:
        """Tell whether only the prefix tells that this is another head's, not the base model's."""
        return bool(self.strip) and not weight.sources[0].startswith(self.strip)


def _change(name: str, strip: str, add: str) -> str:
    return add + name.removeprefix(strip)


def _under(weight: Weight, name: str) -> Weight:
    if name == weight.name:
        return weight
    return weight._replace(name=name)


def _prefixes(module: ModuleTensors, stored: Sequence[str]) -> list[tuple[str, str]]:
    """List the prefixes of one or two parts that one side may have before the other's names."""

    def starts(names: Iterable[str]) -> dict[str, None]:
        found: dict[str, None] = {}
        for name in names:
            parts = name.split(".")
            for n in (1, 2):
                if len(parts) > n:
                    found[".".join(parts[:n]) + "."] = None
            if len(found) > 64:  # names with no common start at all
                break
        return found

    base = {module.base_prefix + ".": None} if module.base_prefix else {}
    return [(start, "") for start in {**base, **starts(stored)}] + [
        ("", start) for start in {**base, **starts(module.parameters)}
    ]


def fold(weights: Sequence[Weight], known: set[str]) -> list[Weight]:
    """Join experts stored one by one, or in stacks, into the fused tensors [E, ..] of the module.

    gate [m, d] over up [m, d] -> [2m, d] for each expert; only where all are there in one shape.
    """
    groups: dict[str, dict[tuple[int, int], Weight]] = {}
    stacks: dict[str, dict[int, Weight]] = {}
    rest: list[Weight] = []
    for weight in weights:
        *stem, owner, matrix, leaf = ["", "", *weight.name.split(".")]
        if (owner, leaf) == ("switch_mlp", "weight") and matrix in FUSED:  # MLX: [E, ..] each
            joined, part = FUSED[matrix]
            if (name := ".".join([*stem[2:], "experts", joined])) in known:
                stacks.setdefault(name, {})[part] = weight
                continue
        place = _expert_place(weight.name, known)
        if place is None:
            rest.append(weight)
        else:
            target, expert, part = place
            groups.setdefault(target, {})[expert, part] = weight
    for target, pieces in groups.items():
        fused = _fused(target, pieces)
        rest += pieces.values() if fused is None else [fused]
    for target, stack in stacks.items():
        rest += join_stacks(target, [stack[part] for part in sorted(stack)])
    return rest


def join_stacks(target: str, pieces: list[Weight]) -> list[Weight]:
    """Join the stacks of all experts' matrices: [E, m, d] over [E, m, d] -> [E, 2m, d]."""
    first = pieces[0].shape
    if any(piece.shape != first for piece in pieces) or (first is not None and len(first) != 3):
        return pieces
    shape = None if first is None else (first[0], len(pieces) * first[1], first[2])
    apart = APART if len(pieces) > 1 else ""
    return [
        pieces[0]._replace(
            name=target,
            shape=shape,
            n_values=None if shape is None else math.prod(shape),
            sources=tuple(source for piece in pieces for source in piece.sources),
            how=", ".join(filter(None, (apart, pieces[0].how))),
        )
    ]


def _expert_place(name: str, known: set[str]) -> tuple[str, int, int] | None:
    """Find the fused tensor of the module, the expert and the part, of
    `X.experts.3.up_proj.weight`.
    """
    parts = name.split(".")
    if (
        len(parts) < 4
        or parts[-4] != "experts"
        or not parts[-3].isdecimal()
        or not parts[-3].isascii()
    ):
        return None
    if parts[-2] not in FUSED or parts[-1] not in ("weight", "bias") or len(parts[-3]) > 9:
        return None
    matrix, part = FUSED[parts[-2]]
    leaf = matrix if parts[-1] == "weight" else f"{matrix}_bias"
    for stem in (parts[:-3], [RENAMED_MODULES.get(step, step) for step in parts[:-3]]):
        target = ".".join([*stem, leaf])
        if target in known:
            return target, int(parts[-3]), part
    return None


def _fused(target: str, pieces: Mapping[tuple[int, int], Weight]) -> Weight | None:
    n_parts = FUSED_PARTS[target.rpartition(".")[2].removesuffix("_bias")]
    n_experts, over = divmod(len(pieces), n_parts)
    whole = {(expert, part) for expert in range(n_experts) for part in range(n_parts)}
    shapes = {piece.shape for piece in pieces.values()}
    if over or pieces.keys() != whole or len(shapes) != 1:
        return None
    ordered = [pieces[place] for place in sorted(pieces)]
    one = ordered[0]
    shape = one.shape and (n_experts, n_parts * one.shape[0], *one.shape[1:])
    counts = [piece.n_values for piece in ordered]
    return Weight(
        name=target,
        shape=shape or None,
        n_values=None if None in counts else sum(n for n in counts if n is not None),
        sources=tuple(source for piece in ordered for source in piece.sources),
        dtype=one.dtype,
        how=", ".join(filter(None, ("stored per expert", one.how))),
        packed=one.packed,
    )
