"""`metacount fit`: on how many devices a model fits, by formula."""

from __future__ import annotations

from metacount import units
from metacount.cli.answer import Answer, prepare_for_torch
from metacount.cli.report import Amount, Block, Cell, Grid, Notes, Report, Text, bold
from metacount.cli.shard import fit_notes, how_of, peak_notes, work_text, workload_of
from metacount.errors import InputError
from metacount.resolve import Model, find_any, find_model
from metacount.settings.values import bytes_size

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from metacount.files import Json
    from metacount.given import TransformersOnly
    from metacount.sharding.fit import Device, Fit, Fits
    from metacount.sharding.result import Job

HEADS = ("device", "memory", "devices", "largest rank", "largest batch", "longest seq")


def run(args: argparse.Namespace) -> Answer:
    from metacount.sharding.fit import devices, fit
    from metacount.sharding.mesh import GPUS

    if args.device_map is not None:
        return _placed(args)
    model = find_model(args.model, args.settings)
    gpu = ",".join(devices()) if args.gpu == "all" else args.gpu or GPUS
    fits = fit(model, gpu, train=args.train, devices=args.devices, **how_of(args))
    return Answer(
        report=lambda: report_of(fits),
        data=lambda: {"train": args.train, **fits.to_dict()},
        code=0 if all(each.mesh is not None for each in fits.answers) else 1,
        model=model,
        workload=None if fits.job is None else workload_of(fits.job),
    )


def _placed(args: argparse.Namespace) -> Answer:
    from metacount.sharding.fit import devices_named
    from metacount.sharding.placed import place_module

    if args.gpu in (None, "all"):
        raise InputError("--device-map needs the devices: --gpu h100, --gpu 2xl4,t4")
    named = devices_named(args.gpu)
    many = args.devices if len(named) == 1 and named[0][1] is None else None
    if args.devices is not None and many is None:
        raise InputError("--devices goes with one kind of --gpu, named without a number")
    gpus = [device for device, number in named for _ in range(many or number or 1)]
    memory = 0 if args.cpu_memory is None else bytes_size(args.cpu_memory)
    model = find_any(args.model, args.settings)
    prepare_for_torch()
    placement = place_module(
        model, gpus, device_map=args.device_map, cpu_memory=memory, dtype=args.dtype
    )
    cache = None
    if isinstance(model, Model):
        from metacount.spec import Request
        from metacount.textbook.count import count

        request = Request(batch_size=args.batch or 1, seq_len=args.seq, dtype=args.dtype)
        cache = count(model.spec, request).kv_cache_bytes
    return Answer(
        report=lambda: _placed_report(model, placement, cache),
        data=lambda: {"model": model.id, **placement, "kv_cache_bytes": cache},
        code=0 if placement["fits"] else 1,
        model=model,
    )


def _placed_report(model: Model | TransformersOnly, placement: Json, cache: int | None) -> Report:
    from metacount.cli.train import folded

    where = f"{placement['module']} on meta, in {placement['dtype']}, "
    where += f"placed by accelerate {placement['accelerate']}, device map {placement['device_map']}"
    names: dict[str, str] = {}
    rows: list[tuple[Cell, ...]] = []
    for place in placement["places"]:
        key, name = place["id"], place["name"]
        names[key] = key if key == name else f"{key} {name}"
        sizes = (place[n] for n in ("room", "param_bytes", "buffer_bytes", "accelerate_bytes"))
        rows.append((names[key], *(Amount(n, units.gib, always=True) for n in sizes)))
    heads = ("device", "memory", "parameters", "buffers", "accelerate's sum")
    placed = list(placement["parts"].items())
    parts = [(part or "the whole module", names[placed[run[0]][1]]) for part, run in folded(placed)]
    notes = [] if placement["fits"] else [("does not fit", "what no memory holds goes to disk")]
    notes += [("differs", difference) for difference in placement["differences"]]
    if not placement["differences"]:
        note = "accelerate's sizes in each place"
        note += " and the formula in all" if placement["formula_bytes"] is not None else ""
        notes.append(("equal", f"our count, tensor by tensor, and {note}"))
    left = "activations" if cache is None else f"the KV cache ({units.gib(cache)}) and activations"
    notes.append(("note", f"weights alone: no room is kept for {left}"))
    note = "where something is offloaded, a device keeps room for the largest layer"
    notes.append(("note", f"{note}; tied tensors are held once"))
    return [
        [Text(f"{bold(model.name)}  ({model.id})", unbroken=True), Text(where)],
        [Grid(heads=heads, rows=rows, align="<>>>>")],
        [Grid(heads=("part", "device"), rows=parts, align="<<")],
        [Notes(notes)],
    ]


def report_of(answer: Fits) -> Report:
    """Report a row for each device, then the commands, then what is not in the figures."""
    from metacount.sharding.fit import assumed

    model, answers, done = answer.model, answer.answers, answer.job
    head: list[Block] = [Text(f"{bold(model.name)}  ({model.id})", unbroken=True)]
    if done is not None:
        of = "the smallest mesh"
        if any(each.asked for each in answers):
            of = "the mesh of so many devices that cuts least, of those that fit,"
        head.append(Text(f"{of} for {work_text(done, batch=False)}; by formula"))
        head.append(Notes([("assumed", assumed(done))]))
    if (stored := answer.stored) is not None:
        size = units.gib(stored.n_bytes)
        spread = "spread over ranks in proportion to the values of each role; `shard` has --dtype"
        head.append(Notes([("weights", f"as stored, {size}: {stored.how}; {spread}")]))
    longest = max(len(each.device.id) for each in answers)
    commands: list[Block] = []
    for each in answers:
        commands.append(Notes([(each.device.id, each.command or _why(each))], pad=longest))
        commands.append(Notes([] if each.closest is None else fit_notes(each.closest)))
        if each.largest is not None and each.job is not None:
            commands.append(Notes(peak_notes(each.largest, each.job)))
    fits = done is not None and any(each.mesh is not None for each in answers)
    last = _columns(answers, done) if fits and done is not None else []
    last += [("memory", _source(each.device)) for each in answers]
    if any(each.device.usable_bytes is None for each in answers):
        caution = "a process gets some hundred MiB less than the driver reports (H200: 615 MiB)"
        last.append(("note", caution))
    return [
        head,
        [Grid(heads=HEADS, rows=[_row(each) for each in answers], align="<>>>>>")],
        commands,
        [Notes([*last, *(("note", note) for note in answer.not_counted)])],
    ]


def _why(each: Fit) -> str:
    if each.unknown:
        return f"cannot tell: {each.unknown}"
    closest = ""
    if each.closest is not None and each.job is not None:
        closest = f"; the closest is {each.job.mesh}"
    return f"no mesh that was tried holds it{closest}"


def _source(device: Device) -> str:
    if device.by_maker:
        return f"{device.id}: {device.source}, as its maker says (GB = 10^9 bytes)"
    text = f"{device.id}: {units.exact(device.bytes // 2**20)} MiB by {device.source}"
    if device.usable_bytes is None:
        return text
    return f"{text}; of these CUDA gives a process {units.exact(device.usable_bytes)} bytes"


def _columns(fits: Sequence[Fit], job: Job) -> list[tuple[str, str]]:
    from metacount.sharding.fit import MOST

    fitting = [each for each in fits if each.mesh is not None]
    lengths, sequences = {each.seq_len for each in fitting}, {each.batch_size for each in fitting}
    batches = {each.job.batch_size for each in fitting if each.job is not None}
    batch = f"with batch {min(batches)}" if len(batches) == 1 else "with its command's batch"
    seq, positions = f"tokens of a sequence, {batch}", fitting[0].positions
    if positions is not None and positions in lengths:
        seq += f"; {units.exact(positions)} are all positions of the model"
    elif positions is None and lengths != {None}:
        seq += ", by memory alone: how many positions the model was made for is not known here"
    if any(n is not None and n >= MOST for n in lengths | sequences):
        seq += f"; no more than {units.exact(MOST)} are looked for"
    label = f"of all ranks together, sequences of {units.exact(job.seq_len)} tokens"
    grows = "nothing that is counted grows with it" if None in lengths | sequences else ""
    return [(HEADS[-2], label), (HEADS[-1], seq), ("-", grows)]


def _row(each: Fit) -> tuple[Cell, ...]:
    memory = Amount(each.device.room, units.gib, always=True)
    if each.mesh is None or each.largest is None:
        return (each.device.id, memory, "none", "", "", "")
    total = Amount(each.largest.total_bytes, units.gib, always=True)
    return (each.device.id, memory, each.mesh.world, total, each.batch_size, each.seq_len)
