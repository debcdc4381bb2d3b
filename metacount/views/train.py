"""A training step as text: bytes, FLOPs, what is kept; where measured, the step in time too."""

from __future__ import annotations

from metacount import units
from metacount.frozen import frozen
from metacount.training.setup import ATTENTIONS, CHECKPOINTINGS, LOSSES, OPTIMIZERS
from metacount.views.layout import bold, columns, noted_table, paragraph, table

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from metacount.files import Json
    from metacount.textbook.training import TrainingCount
    from metacount.training.result import Stage, Training

# The choices that a step is made of, and what each of their words means.
MEANINGS = {
    "optimizer": OPTIMIZERS,
    "attention": ATTENTIONS,
    "checkpointing": CHECKPOINTINGS,
    "loss": LOSSES,
}


def train_text(found: Training) -> str:
    """Write everything of a measured step in tables, widest last."""
    width = columns()
    # a loss that is a sum is told by a note
    silent = () if found.logits_bytes else ("loss",)
    names, how = (found.name, found.model), "measured on the meta device"
    return joined(
        title(names, how, found.workload, found.setup, width, silent=silent),
        _bytes(found, width),
        flops_table(found, found.optimizer_matmul_flops),
        _beside(found, width),
        role_table(found) if found.source != "given" else [],
        _kept_places(found),
        _stages(found),
        _peak(found),
        _notes(found, width),
    )


def joined(*parts: list[str]) -> str:
    """Write parts with an empty line between them; a part without lines is left out."""
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def title(
    names: tuple[str, str],
    how: str,
    run: Json,
    setup: Json,
    width: int,
    *,
    silent: tuple[str, ...] = (),
) -> list[str]:
    """Name a model, how its step was counted, the workload, and each choice but the silent ones."""
    name, model = names
    work = ", ".join(f"{field} {value}" for field, value in run.items() if value)
    lines = [bold(name) + (f"  ({model})" if model != name else "")]
    lines += [f"one training step, {how}", *([work] if work else [])]
    for word, meanings in MEANINGS.items():
        if word not in silent:
            chosen = setup[word]
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
    return bytes_table(rows, width)


def bytes_table(rows: Sequence[tuple[str, int | None, str]], width: int) -> list[str]:
    """Show bytes with what they are of; what is unknown or nothing is left out."""
    shown = [
        (name, units.exact(n), units.gib(n), said)
        for name, n, said in rows
        if n is not None and (n or name in ("gradient_bytes", "optimizer_bytes"))
    ]
    return noted_table(("bytes", "exact", "", "what it is"), shown, "<>>", width)


def _where(phase: str, place: str) -> str:
    return phase if place in ("", phase) else f"{phase}, at {place}"


def flops_table(found: Training | TrainingCount, optimizer_matmul_flops: int = 0) -> list[str]:
    """Show the FLOPs of each phase that has some."""
    rows = [
        ("matmul_flops", found.matmul_flops),
        ("backward_matmul_flops", found.backward_matmul_flops),
        ("recompute_matmul_flops", found.recompute_matmul_flops),
        ("optimizer_matmul_flops", optimizer_matmul_flops),
    ]
    shown = [(name, units.exact(n), units.flops(n)) for name, n in rows if n]
    return table(("FLOPs", "exact", ""), shown, "<>>") if shown else []


def _beside(found: Training, width: int) -> list[str]:
    """Write what the formulas say of what was measured: equal, how far off, or why nothing."""
    alike: list[str] = []
    lines: list[str] = []
    for name, counted in found.formula.items():
        measured = getattr(found, name)
        if counted is None:
            said = f"{name}: no formula: {found.uncovered[name]}"
            lines += paragraph("formula", said, width)
        elif counted != measured:
            said = f"{name}: {units.exact(counted)}, {units.signed(counted - measured)}"
            lines += paragraph("formula", said, width)
        elif counted:
            alike.append(name)
    same = paragraph("formula", f"equal: {', '.join(alike)}", width) if alike else []
    return same + lines


def role_table(found: Training | TrainingCount) -> list[str]:
    """Show kept bytes and FLOPs by role; a column that has no figures is left out."""
    kept = found.activation_bytes_by_role
    flops = {
        "forward": found.matmul_flops_by_role,
        "backward": found.backward_matmul_flops_by_role,
    }
    if found.recompute_matmul_flops:
        flops["recompute"] = found.recompute_matmul_flops_by_role
    known = {head: by_role for head, by_role in flops.items() if by_role is not None}
    heads = ["role", *(["activation_bytes", "share"] if kept is not None else []), *known]
    rows = []
    for role in dict.fromkeys(role for part in (kept, *known.values()) for role in part or ()):
        size = (kept or {}).get(role, 0)
        ran = [by_role.get(role, 0) for by_role in known.values()]
        if size or any(ran):
            held = (
                []
                if kept is None
                else [units.exact(size), units.share(size, found.activation_bytes or 0)]
            )
            rows.append((role, *held, *map(units.flops, ran)))
    return table(heads, rows, "<" + ">" * (len(heads) - 1)) if rows else []


def _kept_places(found: Training) -> list[str]:
    """Write what each layer keeps, equal neighbours in one line."""
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
    """Write the step in time: layers one after the other that do the same are one line."""
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
    """Group neighbours that differ in their number alone and do the same, by places in a list."""
    found: list[list[int]] = [[0]] if places else []
    for i in range(1, len(places)):
        (one, size), (other, same) = places[i - 1], places[i]
        if size == same and _stem(one) == _stem(other) and _stem(one)[1]:
            found[-1].append(i)
        else:
            found.append([i])
    return found


def _stem(place: str) -> tuple[str, bool]:
    """Cut the number off the end of a name, and tell whether there is one."""
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
