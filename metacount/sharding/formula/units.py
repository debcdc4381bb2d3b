"""The parts of a model as formulas count them: the layers that are alike, and the two ends."""

from __future__ import annotations

from metacount.formulas import sharding
from metacount.formulas.block import block_weights, width_norm_weights
from metacount.formulas.sharding import Cut
from metacount.formulas.stack import shared_weights
from metacount.frozen import frozen
from metacount.spec import ModelSpec
from metacount.spec.position import Rope


@frozen
class Unit:
    """A part of the model: the layers that are alike, and its tensors, those gathered at once."""

    cuts: tuple[tuple[Cut, ...], ...]
    layers: tuple[int, ...] = ()
    mixer: str = "A"
    ffn: str = "F"
    rotated: bool = False
    first_norm: bool = True
    indexed: bool = False
    window: int | None = None
    first: bool = False
    last: bool = False


def units_of(spec: ModelSpec, pp: int) -> list[Unit]:
    """Split a model into its parts, those layers together that are alike."""
    stack, positions = spec.last_stack, spec.positions
    alike: dict[tuple[str, str, bool, bool, bool, bool], list[int]] = {}
    for i in range(stack.n_layers):
        lacks = i == 0 and not stack.norms.first
        rotated = isinstance(positions, Rope) and positions.law.holds(i)
        which = spec.is_windowed_layer(i), spec.has_index_layer(i)
        key = stack.mixer_of(i), stack.ffn_of(i), *which, rotated, lacks
        alike.setdefault(key, []).append(i)
    window = stack.attention.window
    found = []
    for (mixer, ffn, windowed, indexed, rotated, lacks), layers in alike.items():
        cuts = sharding.cuts_of(block_weights(spec, mixer=mixer, ffn=ffn, indexed=indexed))
        if lacks:
            for cut in sharding.cuts_of(width_norm_weights(spec)):
                cuts.remove(cut)
        near = window.size if windowed and window is not None else None
        found.append(
            Unit(
                cuts=(tuple(cuts),),
                mixer=mixer,
                ffn=ffn,
                layers=tuple(layers),
                window=near,
                rotated=rotated,
                first_norm=not lacks,
                indexed=indexed,
            )
        )
    (table, *others), head = sharding.end_cuts(spec)
    # blocks that layers share are gathered with what else the model has outside its layers
    others += sharding.cuts_of(shared_weights(spec, stack.n_layers))
    if spec.head is not None and spec.head.tied and pp == 1:
        return [*found, Unit(cuts=((table, *others, *head),), first=True, last=True)]
    head = [*head, *sharding.own_head_cut(spec)]
    # a pooler is gathered apart from the head and its norms
    ends = (
        tuple(cut for cut in head if cut.role != "other"),
        tuple(cut for cut in head if cut.role == "other"),
    )
    return [Unit(cuts=((table,), tuple(others)), first=True), *found, Unit(cuts=ends, last=True)]


def copies_of(unit: Unit, own: range, *, first: bool, last: bool) -> int:
    """Count how many of a unit a stage has, whose layers are `own`."""
    if unit.layers:
        return sum(i in own for i in unit.layers)
    return int((first or not unit.first) and (last or not unit.last))
