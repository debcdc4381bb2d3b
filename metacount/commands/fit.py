"""`metacount fit`: on how many devices a model fits, by formula."""

from __future__ import annotations

from metacount.commands import json_text
from metacount.commands.options import add_json, add_model, whole_number
from metacount.commands.shard import add_job, how_of
from metacount.errors import InputError
from metacount.resolve import find_model

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse

    from metacount.commands import Result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser, several=False)
    parser.add_argument(
        "--gpu",
        metavar="NAME,...",
        default="h100-80gb,h200,b200,mi300x",
        help="devices (default h100-80gb,h200,b200,mi300x), with their number or without: h100, "
        "8xh100; `all` of those that are known",
    )
    parser.add_argument(
        "--devices",
        type=whole_number,
        metavar="N",
        help="a mesh of exactly so many, and exit 1 where none fits (default: the fewest)",
    )
    parser.add_argument("--serve", action="store_true", help="serving, which is the default")
    add_job(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> Result:
    from metacount.sharding.devices import devices
    from metacount.sharding.fit import assumed, fit

    if args.serve and args.train:
        raise InputError("--serve and --train exclude each other; leave one of them out")
    model = find_model(args.model, args.settings)
    gpu = ",".join(devices()) if args.gpu == "all" else args.gpu
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
