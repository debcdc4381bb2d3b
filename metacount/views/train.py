"""A measured training step as text: bytes, FLOPs, what is kept, the step in time, and its peak."""

from __future__ import annotations

from metacount import units
from metacount.frozen import frozen
from metacount.training.setup import ATTENTIONS, CHECKPOINTINGS, LOSSES, OPTIMIZERS
from metacount.views.layout import bold, columns, noted_table, paragraph, table

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from metacount.training.result import Stage, Training

# The choices that a step is made of, and what each of their words means.
MEANINGS = {
    "optimizer": OPTIMIZERS,
    "attention": ATTENTIONS,
    "checkpointing": CHECKPOINTINGS,
    "loss": LOSSES,
}


def train_text(found: Training) -> str:
    """Everything in tables, widest last."""
    width = columns()
    parts = [
        _title(found, width),
        _bytes(found, width),
        _flops(found),
        _roles(found),
        _kept_places(found),
        _stages(found),
        _peak(found),
        _notes(found, width),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _title(found: Training, width: int) -> list[str]:
    run, name = found.workload, bold(found.name)
    work = ", ".join(f"{field} {value}" for field, value in run.items() if value)
    lines = [name + (f"  ({found.model})" if found.model != found.name else "")]
    lines += ["one training step, measured on the meta device", *([work] if work else [])]
    for word, meanings in MEANINGS.items():
        if word == "loss" and not found.logits_bytes:
            continue  # a sum, of which a note tells
        chosen = found.setup[word]
        lines += paragraph(f"{word:13}", f"{chosen}: {meanings[chosen]}", width)
    return lines


def _bytes(found: Training, width: int) -> list[str]:
    trained = f"{units.exact(found.trainable_params)} trained"
    state = ", ".join(found.optimizer_state)
    rows = [
        ("param_bytes", found.param_bytes, f"{units.exact(found.params)} parameters"),
        ("master_weight_bytes", found.master_weight_bytes, "float32 copies"),
        ("gradient_bytes", found.gradient_bytes, trained),
        ("optimizer_bytes", found.optimizer_bytes, state),
        ("activation_bytes", found.activation_bytes, "kept for the backward"),
        ("held_bytes", found.held_bytes, "alive then, though no backward needs them"),
        ("logits_bytes", found.logits_bytes, "while forward and loss run"),
        ("logits_float32_bytes", found.logits_float32_bytes, "while the loss runs"),
        ("peak_bytes", found.peak_bytes, f"in the {_where(found.peak_phase, found.peak_place)}"),
    ]
    shown = [
        (name, units.exact(n), units.gib(n), said)
        for name, n, said in rows
        if n or name in ("gradient_bytes", "optimizer_bytes")
    ]
    return noted_table(("bytes", "exact", "", "what it is"), shown, "<>>", width)


def _where(phase: str, place: str) -> str:
    return phase if place in ("", phase) else f"{phase}, at {place}"


def _flops(found: Training) -> list[str]:
    rows = [
        ("matmul_flops", found.matmul_flops),
        ("backward_matmul_flops", found.backward_matmul_flops),
        ("recompute_matmul_flops", found.recompute_matmul_flops),
        ("optimizer_matmul_flops", found.optimizer_matmul_flops),
    ]
    shown = [(name, units.exact(n), units.flops(n)) for name, n in rows if n]
    return table(("FLOPs", "exact", ""), shown, "<>>")


def _roles(found: Training) -> list[str]:
    if found.source == "given":
        return []  # what has which role is known of transformers' modules and ours alone
    heads = ["role", "activation_bytes", "share", "forward", "backward"]
    flops = [found.matmul_flops_by_role, found.backward_matmul_flops_by_role]
    if found.recompute_matmul_flops:
        heads.append("recompute")
        flops.append(found.recompute_matmul_flops_by_role)
    rows = []
    for role, kept in found.activation_bytes_by_role.items():
        ran = [by_role.get(role, 0) for by_role in flops]
        if kept or any(ran):
            share = units.share(kept, found.activation_bytes)
            rows.append((role, units.exact(kept), share, *(map(units.flops, ran))))
    return table(heads, rows, "<" + ">" * (len(heads) - 1))


def _kept_places(found: Training) -> list[str]:
    """What each layer keeps, equal neighbours in one line."""
    places = list(found.activation_bytes_by_layer.items())
    rows = []
    for run in _runs([(place, (size,)) for place, size in places]):
        size = places[run[0]][1]
        name = _named([places[i][0] for i in run])
        rows.append((name, str(len(run)), units.exact(size), units.gib(size * len(run))))
    return table(("kept in", "times", "bytes each", "in all"), rows, "<>>>")


@frozen
class _Group:
    """Stages in one line."""

    phase: str
    place: str
    start: int
    most: int
    end: int


def _stages(found: Training) -> list[str]:
    """The step in time: layers one after the other that do the same are one line."""
    rows = [
        (g.phase, g.place, units.gib(g.start), units.gib(g.most), units.gib(g.end))
        for g in _groups(found.timeline)
    ]
    return table(("timeline", "", "start", "most", "end"), rows, "<<>>>")


def _groups(stages: Sequence[Stage]) -> list[_Group]:
    keys = [
        (f"{s.phase} {s.place}", (s.peak_bytes - s.start_bytes, s.end_bytes - s.start_bytes))
        for s in stages
    ]
    found = []
    for run in _runs(keys):
        some = [stages[i] for i in run]
        found.append(
            _Group(
                phase=some[0].phase,
                place=_named([s.place for s in some]),
                start=some[0].start_bytes,
                most=max(s.peak_bytes for s in some),
                end=some[-1].end_bytes,
            )
        )
    return found


def _runs(places: Sequence[tuple[str, tuple[int, ...]]]) -> list[list[int]]:
    """Neighbours that differ in their number alone, and do the same, by their places in a list."""
    found: list[list[int]] = [[0]] if places else []
    for i in range(1, len(places)):
        (one, size), (other, same) = places[i - 1], places[i]
        if size == same and _stem(one) == _stem(other) and _stem(one)[1]:
            found[-1].append(i)
        else:
            found.append([i])
    return found


def _stem(place: str) -> tuple[str, bool]:
    """A name without the number at its end, and whether there is one."""
    head, _, tail = place.rpartition(".")
    return (head, True) if tail.isdecimal() else (place, False)


def _named(places: list[str]) -> str:
    first, last = places[0], places[-1].rpartition(".")[2]
    return first if len(places) == 1 else f"{first}-{last}"


def _peak(found: Training) -> list[str]:
    rows = [
        (part, units.exact(n), units.share(n, found.peak_bytes))
        for part, n in found.peak_parts.items()
        if n
    ]
    rows.append(("peak_bytes", units.exact(found.peak_bytes), "100 %"))
    at = f"at the peak, in the {_where(found.peak_phase, found.peak_place)}"
    return [bold(at), *table(("", "", ""), rows, "<>>")]


def _notes(found: Training, width: int) -> list[str]:
    lines = paragraph("not counted", "; ".join(found.not_counted), width)
    versions = ", ".join(f"{name} {version}" for name, version in found.versions.items())
    for note in (*found.notes, versions):
        lines += paragraph("note       ", note, width)
    return lines
