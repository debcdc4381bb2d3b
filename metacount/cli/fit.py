"""`metacount fit`: on how many devices a model fits, by formula."""

from __future__ import annotations

from metacount import units
from metacount.cli.answer import Answer
from metacount.cli.layout import bold
from metacount.cli.options import FORMATS, MODEL, flag, option, whole_number
from metacount.cli.report import Amount, Grid, Notes, Text
from metacount.cli.shard import JOB, fits_said, how_of, work_said
from metacount.resolve import find_model

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from metacount.cli.options import Option
    from metacount.cli.report import Block, Cell, Report
    from metacount.resolve import Model
    from metacount.sharding.devices import Device
    from metacount.sharding.fit import Fit
    from metacount.sharding.result import Job

APART = (("--serve", "--train"),)
GPUS = "h100-80gb,h200,b200,mi300x"
HEADS = ("device", "memory", "devices", "largest rank", "largest batch", "longest seq")


def options() -> Sequence[Option]:
    return (
        *MODEL,
        option(
            "--gpu",
            "NAME,...",
            f"devices (default {GPUS}), with their number or without: h100, 8xh100; `all` of those "
            "that are known",
            default=GPUS,
        ),
        option(
            "--devices",
            "N",
            "a mesh of exactly so many, and exit 1 where none fits (default: the fewest)",
            type=whole_number,
        ),
        flag("--serve", "serving, which is the default"),
        *JOB,
        *FORMATS,
    )


def run(args: argparse.Namespace) -> Answer:
    from metacount.sharding.devices import devices
    from metacount.sharding.fit import assumed, fit

    model = find_model(args.model, args.settings)
    gpu = ",".join(devices()) if args.gpu == "all" else args.gpu
    found, notes = fit(model, gpu, train=args.train, devices=args.devices, **how_of(args))
    return Answer(
        report=lambda: report_of(model, found, notes),
        data=lambda: {
            "model": model.id,
            "train": args.train,
            "assumed": next((assumed(each.job) for each in found if each.job), ""),
            "answers": [each.to_dict() for each in found],
            "missing": notes,
            "source": "formula",
        },
        code=0 if all(each.mesh is not None for each in found) else 1,
    )


def report_of(model: Model, found: Sequence[Fit], notes: Sequence[str]) -> Report:
    """Report a row for each device, then the commands, then what is not in the figures."""
    from metacount.sharding.fit import assumed

    done = next((each.job for each in found if each.job is not None), None)
    head: list[Block] = [Text(f"{bold(model.name)}  ({model.id})", whole=True)]
    if done is not None:
        of = "the smallest mesh"
        if any(each.asked for each in found):
            of = "the mesh of so many devices that cuts least, of those that fit,"
        head.append(Text(f"{of} for {work_said(done, batch=False)}; by formula"))
        head.append(Notes([("assumed", assumed(done))]))
    longest = max(len(each.device.id) for each in found)
    commands: list[Block] = []
    for each in found:
        commands.append(Notes([(each.device.id, each.command or _why(each))], pad=longest))
        commands.append(Notes([] if each.closest is None else fits_said(each.closest)))
    fits = done is not None and any(each.mesh is not None for each in found)
    last = _columns(found, done) if fits and done is not None else []
    last += [("memory", _source(each.device)) for each in found]
    if any(each.device.usable_bytes is None for each in found):
        said = "a process gets some hundred MiB less than the driver reports (H200: 615 MiB)"
        last.append(("note", said))
    return [
        head,
        [Grid(heads=HEADS, rows=[_row(each) for each in found], align="<>>>>>")],
        commands,
        [Notes([*last, *(("note", note) for note in notes)])],
    ]


def _why(each: Fit) -> str:
    if each.unknown:
        return f"cannot tell: {each.unknown}"
    closest = ""
    if each.closest is not None and each.job is not None:
        closest = f"; the closest is {each.job.mesh}"
    return f"no mesh that was tried holds it{closest}"


def _source(device: Device) -> str:
    """Say who says how much memory a device has, and what it is compared with."""
    if device.by_maker:
        return f"{device.id}: {device.source}, as its maker says (GB = 10^9 bytes)"
    said = f"{device.id}: {units.exact(device.bytes // 2**20)} MiB by {device.source}"
    if device.usable_bytes is None:
        return said
    return f"{said}; of these CUDA gives a process {units.exact(device.usable_bytes)} bytes"


def _columns(found: Sequence[Fit], job: Job) -> list[tuple[str, str]]:
    """Say what the two last columns are, and what limits them beside memory."""
    from metacount.sharding.fit import MOST

    fitting = [each for each in found if each.mesh is not None]
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
    said = f"of all ranks together, sequences of {units.exact(job.seq_len)} tokens"
    grows = "nothing that is counted grows with it" if None in lengths | sequences else ""
    return [(HEADS[-2], said), (HEADS[-1], seq), ("-", grows)]


def _row(each: Fit) -> tuple[Cell, ...]:
    memory = Amount(each.device.room, units.gib, always=True)
    if each.mesh is None or each.largest is None:
        return (each.device.id, memory, "none", "", "", "")
    total = Amount(each.largest.total_bytes, units.gib, always=True)
    return (each.device.id, memory, each.mesh.world, total, each.batch_size, each.seq_len)
