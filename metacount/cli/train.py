"""`metacount train`: what one training step computes, keeps and holds, measured or by formulas."""

from __future__ import annotations

from metacount import units
from metacount.cli.answer import Answer, figures_table, prepare_for_torch
from metacount.cli.options import own_module, request_of
from metacount.cli.report import Amount, Block, Cell, Grid, Notes, Report, Share, Text, bold, title
from metacount.figures import FLOPS
from metacount.resolve import Model, find_any, find_model
from metacount.training.setup import ATTENTIONS, CHECKPOINTINGS, LOSSES, OPTIMIZERS, Setup, Training

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Sequence

    from metacount.files import Json
    from metacount.textbook.training import TrainingCount

# The choices that a step is made of, and what each of their words means.
CHOICES = {
    "optimizer": OPTIMIZERS,
    "attention": ATTENTIONS,
    "checkpointing": CHECKPOINTINGS,
    "loss": LOSSES,
}
PHASES = ("matmul_flops", "backward_matmul_flops", "train_matmul_flops", "recompute_matmul_flops")


def run(args: argparse.Namespace) -> Answer:
    from metacount.frozen import fields

    setup = Setup(**{name: getattr(args, name) for name in fields(Setup)})
    own = own_module(args)
    if args.formula:
        return _by_formula(args, setup)
    model = find_any(args.model, args.settings) if own is None else own
    prepare_for_torch()
    from metacount.summary.training_step import train

    if own is None:
        training = train(model, request_of(args), setup, reference=args.reference)
    else:
        from metacount.summary.modules import typed_inputs

        inputs = typed_inputs(own.module, args.input)
        training = train(own.module, inputs=inputs, setup=setup, device=args.device)
    return Answer(
        report=lambda: report_of(training),
        data=training.to_dict,
        table=lambda: figures_table(training.to_dict()),
        model=model,
    )


def _by_formula(args: argparse.Namespace, setup: Setup) -> Answer:
    from metacount.api import count_training

    model = find_model(args.model, args.settings)
    counted = count_training(model, request_of(args), setup)
    return Answer(
        report=lambda: counted_report(model, setup, counted),
        data=lambda: _counted_data(model, setup, counted),
        table=lambda: figures_table(counted.to_dict()),
        model=model,
    )


# ---- what both ways to count it say


def _head(names: tuple[str, str], how: str, run: Json, setup: Json, *, loss: bool) -> list[Block]:
    work = ", ".join(f"{field} {value}" for field, value in run.items() if value)
    choices = [
        (word, f"{setup[word]}: {meanings[setup[word]]}")
        for word, meanings in CHOICES.items()
        if loss or word != "loss"
    ]
    head = Text(f"one training step, {how}", unbroken=True)
    return [
        title(*names),
        head,
        *([Text(work, unbroken=True)] if work else []),
        Notes(choices, pad=13),
    ]


def _bytes(rows: Sequence[tuple[str, int | None, str]]) -> Grid:
    shown: list[tuple[Cell, ...]] = [
        (name, n, _gib(n), words)
        for name, n, words in rows
        if n is not None and (n or name in ("gradient_bytes", "optimizer_bytes"))
    ]
    return Grid(heads=("bytes", "exact", "", "what it is"), rows=shown, align="<>>", prose=True)


def _held(training: Training | TrainingCount, state: str) -> list[tuple[str, int | None, str]]:
    return [
        ("param_bytes", training.param_bytes, f"{units.exact(training.params)} parameters"),
        ("master_weight_bytes", training.master_weight_bytes, "float32 copies"),
        (
            "gradient_bytes",
            training.gradient_bytes,
            f"{units.exact(training.trainable_params)} trained",
        ),
        ("optimizer_bytes", training.optimizer_bytes, state),
        ("activation_bytes", training.activation_bytes, "kept for the backward"),
    ]


def _gib(n: int) -> Amount:
    return Amount(n, units.gib, always=True)


def _flops(n: int) -> Amount:
    return Amount(n, units.flops, always=True)


def _phases(training: Training | TrainingCount, optimizer: int = 0) -> Grid:
    values = {name: getattr(training, name) for name in PHASES}
    values["optimizer_matmul_flops"] = optimizer
    rows = [(name, n, _flops(n)) for name, n in values.items() if n]
    return Grid(heads=(f"{FLOPS}s", "exact", ""), rows=rows, align="<>>")


def _roles(training: Training | TrainingCount) -> Grid:
    saved = training.activation_bytes_by_role
    flops = {
        "forward": training.matmul_flops_by_role,
        "backward": training.backward_matmul_flops_by_role,
    }
    if training.recompute_matmul_flops:
        flops["recompute"] = training.recompute_matmul_flops_by_role
    known = {head: by_role for head, by_role in flops.items() if by_role is not None}
    heads = ["role", *(["activation_bytes", "share"] if saved is not None else []), *known]
    rows: list[tuple[Cell, ...]] = []
    for role in dict.fromkeys(role for part in (saved, *known.values()) for role in part or ()):
        size = (saved or {}).get(role, 0)
        ran = [by_role.get(role, 0) for by_role in known.values()]
        if size or any(ran):
            share = Share(part=size, whole=training.activation_bytes or 0)
            held: tuple[Cell, ...] = () if saved is None else (size, share)
            rows.append((role, *held, *map(_flops, ran)))
    return Grid(heads=heads, rows=rows, align="<" + ">" * (len(heads) - 1))


# ---- measured


def report_of(training: Training) -> Report:
    """Report everything of a measured step in tables, widest last."""
    names = (training.name, training.model)
    # a loss that is a sum is told by a note
    loss = bool(training.logits_bytes)
    where = f"in the {_where(training.peak_phase, training.peak_place)}"
    rows = [
        *_held(training, ", ".join(training.optimizer_state)),
        ("held_bytes", training.held_bytes, "alive then, though no backward needs them"),
        ("logits_bytes", training.logits_bytes, "while forward and loss run"),
        ("logits_float32_bytes", training.logits_float32_bytes, "while the loss runs"),
        ("peak_bytes", training.peak_bytes, where),
    ]
    peak = training.peak_bytes
    parts: list[tuple[Cell, ...]] = [
        (part, n, Share(part=n, whole=peak)) for part, n in training.peak_parts.items() if n
    ]
    parts.append(("peak_bytes", peak, "100 %"))
    versions = ", ".join(f"{name} {version}" for name, version in training.versions.items())
    notes = [("not counted", "; ".join(training.not_counted))]
    notes += [("note", note) for note in (*training.notes, versions)]
    how = "measured on the meta device" if training.device == "meta" else "measured on the CPU"
    return [
        _head(names, how, training.workload, training.setup, loss=loss),
        [_bytes(rows)],
        [_phases(training, training.optimizer_matmul_flops)],
        [_against_formulas(training)],
        [_roles(training)] if training.source != "given" else [],
        [_saved("kept in", _by_layer(training))],
        [_timeline(training)],
        [Text(f"at the peak, {where}", bold), Grid(heads=(), rows=parts, align="<>>")],
        [Notes(notes, pad=11)],
    ]


def _where(phase: str, place: str) -> str:
    return phase if place in ("", phase) else f"{phase}, at {place}"


def _against_formulas(training: Training) -> Notes:
    equal: list[str] = []
    notes: list[str] = []
    for name, counted in training.formula.items():
        measured = getattr(training, name)
        if counted is None:
            notes.append(f"{name}: no formula: {training.uncovered[name]}")
        elif counted != measured:
            notes.append(f"{name}: {units.exact(counted)}, {units.signed(counted - measured)}")
        elif counted:
            equal.append(name)
    same = [f"equal: {', '.join(equal)}"] if equal else []
    return Notes(("formula", text) for text in (*same, *notes))


def _saved(where: str, rows: Iterable[tuple[str, int, int]]) -> Grid:
    cells: list[tuple[Cell, ...]] = [(name, n, size, _gib(size * n)) for name, n, size in rows]
    return Grid(heads=(where, "times", "bytes each", "in all"), rows=cells, align="<>>>")


def _by_layer(training: Training) -> Iterator[tuple[str, int, int]]:
    places = list(training.activation_bytes_by_layer.items())
    for name, run in folded(places):  # equal neighbours in one line
        yield name, len(run), places[run[0]][1]


def _timeline(training: Training) -> Grid:
    stages = training.timeline
    keys = [
        (f"{s.phase} {s.place}", (s.peak_bytes - s.start_bytes, s.end_bytes - s.start_bytes))
        for s in stages
    ]
    rows: list[tuple[Cell, ...]] = []
    for name, run in folded(keys):
        some = [stages[i] for i in run]
        most = max(s.peak_bytes for s in some)
        sizes = (some[0].start_bytes, most, some[-1].end_bytes)
        rows.append((some[0].phase, name.partition(" ")[2], *map(_gib, sizes)))
    return Grid(heads=("timeline", "", "start", "most", "end"), rows=rows, align="<<>>>")


def folded(places: Sequence[tuple[str, object]]) -> list[tuple[str, list[int]]]:
    """Fold neighbours that differ in their number alone and have the same beside them.

    Returns: of each run its name and its places in the list.

    >>> folded([("layers.0", 7), ("layers.1", 7), ("layers.2", 8), ("norm", 8)])
    [('layers.0-1', [0, 1]), ('layers.2', [2]), ('norm', [3])]
    """
    rows: list[tuple[str, list[int]]] = []
    before: object = None
    for i, (name, numbers) in enumerate(places):
        stem, _, number = name.rpartition(".")
        alike = (stem, numbers) if number.isdecimal() else None
        if alike is not None and alike == before:
            _, run = rows[-1]
            rows[-1] = (f"{places[run[0]][0]}-{number}", [*run, i])
        else:
            rows.append((name, [i]))
        before = alike
    return rows


# ---- by formulas


def counted_report(model: Model, setup: Setup, counted: TrainingCount) -> Report:
    """Report a step that formulas count; what they leave open, with the reason."""
    reasons: dict[str, list[str]] = {}
    for name, why in counted.uncovered.items():
        reasons.setdefault(why, []).append(name)
    missing = [("no formula", f"{', '.join(names)}: {why}") for why, names in reasons.items()]
    notes = [("source", "formulas, of metacount's reference module")]
    notes += [("note", note) for note in _counted_notes(model, counted)]
    # of a model without logits a reason tells
    loss = model.spec.embedding is not None and model.spec.head is not None
    run = counted.workload.to_dict()
    return [
        _head((model.name, model.id), "by formulas", run, setup.to_dict(), loss=loss),
        [_bytes(_held(counted, f"state of {setup.optimizer}"))],
        [_phases(counted)],
        [_roles(counted)],
        [_saved("kept in one block", _by_block(counted))],
        [Notes(missing)],
        [Notes(notes, pad=10)],
    ]


def _counted_data(model: Model, setup: Setup, counted: TrainingCount) -> Json:
    chosen = setup.to_dict()
    figures = {name: value for name, value in counted.to_dict().items() if name not in chosen}
    return {
        "model": model.id,
        "name": model.name,
        "source": figures.pop("source"),
        "workload": figures.pop("workload"),
        "setup": chosen,
        **figures,
        "notes": list(_counted_notes(model, counted)),
    }


def _counted_notes(model: Model, counted: TrainingCount) -> Iterator[str]:
    from metacount.spec.model import left_out
    from metacount.textbook.count import said_of_too_many

    yield from said_of_too_many(model.spec, counted.workload)
    yield from left_out(model.spec)


def _by_block(counted: TrainingCount) -> Iterator[tuple[str, int, int]]:
    for kind, size in (counted.activation_bytes_of_block or {}).items():
        yield kind, counted.n_blocks[kind], size
