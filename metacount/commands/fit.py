"""`metacount fit`: on how many devices a model fits, by formula."""

from __future__ import annotations

from metacount.commands import json_text, prepare_for_torch
from metacount.commands.options import add_json, add_model, whole_number
from metacount.commands.shard import add_job, how_of
from metacount.errors import InputError
from metacount.resolve import Model, find_any, find_model
from metacount.settings.values import bytes_size

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse

    from metacount.commands import Result


GPUS = "h100-80gb,h200,b200,mi300x"
BESIDE = ("train", "zero", "master_weights", "micro_batches")  # options of no device map


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser, several=False)
    parser.add_argument(
        "--gpu",
        metavar="NAME,...",
        help=f"devices (default {GPUS}), with their number or without: h100, "
        "8xh100; `all` of those that are known",
    )
    parser.add_argument(
        "--devices",
        type=whole_number,
        metavar="N",
        help="a mesh of exactly so many, and exit 1 where none fits (default: the fewest)",
    )
    parser.add_argument(
        "--device-map",
        choices=("auto", "sequential"),
        help="where accelerate puts each part of the module, built on meta: all of --gpu together",
    )
    parser.add_argument(
        "--cpu-memory",
        metavar="SIZE",
        help="with --device-map: for what the devices do not hold (64GB, 64GiB; default none)",
    )
    parser.add_argument("--serve", action="store_true", help="serving, which is the default")
    add_job(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> Result:
    from metacount.sharding.devices import devices
    from metacount.sharding.fit import assumed, fit

    if args.serve and args.train:
        raise InputError("--serve and --train exclude each other; leave one of them out")
    if args.device_map is not None:
        return _placed(args)
    if args.cpu_memory is not None:
        raise InputError("--cpu-memory goes with --device-map auto; add it, or leave it out")
    model = find_model(args.model, args.settings)
    gpu = ",".join(devices()) if args.gpu == "all" else args.gpu or GPUS
    found, notes = fit(model, gpu, train=args.train, devices=args.devices, **how_of(args))
    code = 0 if all(each.mesh is not None for each in found) else 1
    if args.json:
        answers = [each.to_dict() for each in found]
        data = {
            "model": model.id,
            "train": args.train,
            "assumed": next((assumed(each.job) for each in found if each.job), ""),
            "answers": answers,
            "missing": notes,
            "source": "formula",
        }
        return json_text(data), code
    from metacount.views.fit import fit_text

    return fit_text(model, found, notes, train=args.train), code


def _placed(args: argparse.Namespace) -> Result:
    """Say where accelerate puts the parts of the module; exit 1 where some go to disk."""
    from metacount.sharding.devices import devices_named

    for name in BESIDE:
        if getattr(args, name):
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"--device-map places weights to serve: leave out {option}")
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
    from metacount.sharding.placed import place_module

    found = place_module(
        model, gpus, device_map=args.device_map, cpu_memory=memory, dtype=args.dtype
    )
    cache = None
    if isinstance(model, Model):
        from metacount.spec import Request
        from metacount.textbook.count import count

        request = Request(batch_size=args.batch or 1, seq_len=args.seq, dtype=args.dtype)
        cache = count(model.spec, request).kv_cache_bytes
    code = 0 if found.fits else 1
    if args.json:
        return json_text({"model": model.id, **found.to_dict(), "kv_cache_bytes": cache}), code
    from metacount.views.fit import placed_text

    return placed_text(model, found, cache), code
