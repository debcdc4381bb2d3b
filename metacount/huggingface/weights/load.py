"""transformers' weights in a reference module: each tensor of both sides used once, or an error.

What is loaded computes what transformers computes, or is refused: `Mapped.differs` says where the
reference module of a config is known to compute something else, though it counts the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from metacount.huggingface.config.to_spec import Mapped
from metacount.huggingface.weights.names import (
    BLOCK,
    COMPUTED,
    ELSEWHERE,
    OF_ENDS,
    POSITIONS,
    PREFIXES,
    VARIANTS,
    ZEROS,
    Elsewhere,
    Place,
    Table,
)
from metacount.modules.model import Model
from metacount.spec import ModelSpec
from metacount.spec.mixers import NoRecurrent

# Where tables say the names of another placement: OPT has blocks of both kinds, mBART the names
# of BART, VaultGemma those of a sandwich.
PLACED = {
    "post": {
        "input_layernorm": "self_attention_layernorm",
        "post_attention_layernorm": "feedforward_layernorm",
    },
    "pre": {
        "self_attention_layernorm": "input_layernorm",
        "feedforward_layernorm": "post_attention_layernorm",
        "pre_feedforward_layernorm": "post_attention_layernorm",
    },
}


# A block's number between what stands before and after it.
STACK = re.compile(r"(?:(encoder|decoder)\.)?(?:layers|layer|blocks|block|h)\.([0-9]{1,6})\.(.+)")


class WeightsError(ValueError):
    """Weights that are not those of the reference: which tensor, and why."""


def load_weights(reference: Model, theirs: Mapping[str, Tensor], mapped: Mapped) -> None:
    """Copy transformers' tensors into the reference module of a config, in the reference's dtype.

    `theirs` is a `state_dict` or a file's content, by transformers' names; tied tensors may be
    there once or under each of their names, if they are equal. `mapped` is what
    `spec_from_config` gave, and `reference` was built of its spec. Raises `WeightsError`, and loads
    nothing, when the reference would compute something else than transformers, and when a tensor is
    left over, missing on their side, given twice with different values, without values (on meta),
    or of another shape.
    """
    spec = mapped.spec
    if mapped.differs:
        raise WeightsError(f"the reference computes something else: {'; '.join(mapped.differs)}")
    if reference.spec != spec:
        raise WeightsError("the reference was built of another spec than the config's")
    ours = _tensors(reference)
    found = _matched(theirs, ours, spec)
    missing = sorted(ours.keys() - found.keys())
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise WeightsError(f"nothing is given for {missing[0]}{more} of the reference")
    with torch.no_grad():
        for target, (_, part) in found.items():
            ours[target].copy_(part)


@dataclass(frozen=True)
class _Name:
    """A name of theirs, split: of a block its stack and number, and the rest; else the rest."""

    whole: str
    stack: str
    number: int
    rest: str
    leaf: str


def _split(name: str, spec: ModelSpec) -> _Name:
    bare = next((name.removeprefix(p) for p in PREFIXES if name.startswith(p)), name)
    rest, _, leaf = bare.rpartition(".")
    if leaf not in ("weight", "bias"):
        rest, leaf = bare, ""
    found = None if rest in OF_ENDS else STACK.match(rest)
    if found is None:
        return _Name(name, "", 0, rest, leaf)
    return _Name(name, found[1] or _last_stack(spec), int(found[2]), found[3], leaf)


def _last_stack(spec: ModelSpec) -> str:
    return "encoder" if spec.kind == "encoder" else "decoder"


def _matched(
    theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor], spec: ModelSpec
) -> dict[str, tuple[str, Tensor]]:
    """Match each of our names with theirs and the value."""
    names = [_split(name, spec) for name in theirs]
    if not any(name.rest in OF_ENDS for name in names):
        known = ", ".join(list(OF_ENDS)[:8])
        raise WeightsError(f"names of no known family: none like {known} is there")
    tables = {name.stack: BLOCK for name in names}
    for stack in tables:
        rests = {name.rest for name in names if name.stack == stack}
        for mark in VARIANTS.keys() & rests:
            tables[stack] = {**tables[stack], **VARIANTS[mark]}
    moves = [find for mark, find in ELSEWHERE.items() if any(mark == n.rest for n in names)]
    found: dict[str, tuple[str, Tensor]] = {}
    for name in names:
        value = theirs[name.whole]
        if value.is_meta:
            raise WeightsError(f"{name.whole} is on meta: it has no values to load")
        if _is_no_weight(name, value):
            continue
        for target, part in _parts(name, value, tables[name.stack], moves, spec):
            if target == "lm_head.weight" and spec.tie_embeddings:
                target = "embed_tokens.weight"
            if target not in ours:
                raise WeightsError(f"{name.whole} is left over: the reference has no {target}")
            if part.shape != ours[target].shape:
                raise _other_shape(name.whole, value, [ours[target].shape])
            before, first = found.setdefault(target, (name.whole, part))
            if first is not part and not torch.equal(first, part):
                raise WeightsError(f"{name.whole} differs from {before}: both are the one {target}")
    return found


def _is_no_weight(name: _Name, value: Tensor) -> bool:
    """Tell whether a tensor only numbers positions, or holds the zeros that it must hold."""
    if name.rest.rpartition(".")[2] in COMPUTED and not name.leaf:
        return True
    if name.rest in POSITIONS:
        _check_positions(name.whole, value)
    elif name.rest in ZEROS and value.count_nonzero():
        raise WeightsError(f"{name.whole} holds other values than 0: the reference has none")
    return name.rest in POSITIONS or name.rest in ZEROS


def _tensors(reference: Model) -> dict[str, Tensor]:
    """Collect the parameters, each tied one once, and the buffers."""
    ours: dict[str, Tensor] = {**dict(reference.named_parameters())}
    ours |= dict(reference.named_buffers())
    for name, tensor in ours.items():
        if tensor.is_meta:
            raise WeightsError(f"{name} of the reference is on meta: build it on a real device")
    return ours


def _parts(
    name: _Name, value: Tensor, table: Table, moves: Sequence[Elsewhere], spec: ModelSpec
) -> Iterable[tuple[str, Tensor]]:
    """Split one of their tensors into our names and values."""
    stem, place = _place(name, table, moves, spec)
    if isinstance(place, str):
        place = PLACED.get(spec.norm_placement, {}).get(place, place)
    if place == "input_layernorm" and _feeds_forward_alone(stem, spec):
        place = "post_attention_layernorm"
    if place is None:
        raise WeightsError(f"{name.whole} is left over: no place in a reference is known for it")
    place = Place((place,)) if isinstance(place, str) else place
    if value.dim() not in (1, 2, 3, 4):
        raise _other_shape(name.whole, value, [])
    parts = place.apart(value, spec)
    if len(parts) != len(place.modules):
        raise _other_shape(name.whole, value, [])
    leaf = f".{name.leaf}" if name.leaf else ""
    return zip((f"{stem}{target}{leaf}" for target in place.modules), parts, strict=True)


def _feeds_forward_alone(stem: str, spec: ModelSpec) -> bool:
    """Tell whether a block has no mixer: its one norm is then the feed-forward's (Nemotron-H)."""
    index = stem.removesuffix(".").rpartition(".")[2]
    return index.isdecimal() and spec.last_stack.mixer_of(int(index)) == "N"


def _place(
    name: _Name, table: Table, moves: Sequence[Elsewhere], spec: ModelSpec
) -> tuple[str, str | Place | None]:
    """Find what stands before our names of a tensor, and its entry in the table."""
    if not name.stack:
        end = OF_ENDS.get(name.rest)
        return "", None if end is None else end.format(_last_stack(spec))
    for find in moves:
        if (elsewhere := find(name.number, name.rest, spec)) is not None:
            return elsewhere[0], table.get(elsewhere[1])
    rest = name.rest
    if rest.startswith("self_attn.") and _is_linear(spec, name.number):
        rest = "linear_attn" + rest.removeprefix("self_attn")
    return f"{name.stack}.layers.{name.number}.", table.get(rest)


def _is_linear(spec: ModelSpec, index: int) -> bool:
    """Tell whether a layer's attention is linear (Kimi Linear and MiniMax call both alike)."""
    stack = spec.last_stack
    return stack.recurrent != NoRecurrent() and stack.mixer_of(index) == "R"


def _other_shape(name: str, value: Tensor, wanted: list[torch.Size]) -> WeightsError:
    needs = f"the reference needs {list(wanted[0])}" if wanted else "it cannot be taken apart"
    return WeightsError(f"{name} has another shape: {list(value.shape)}; {needs}")


def _check_positions(name: str, value: Tensor) -> None:
    expected = torch.arange(value.numel(), device=value.device)
    if not torch.equal(value.flatten().long(), expected):
        raise WeightsError(f"{name} holds other positions than 0, 1, 2, ...")
