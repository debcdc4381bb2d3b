"""`metacount shard`: a model on a mesh of devices."""

from __future__ import annotations

import argparse

from metacount.commands import json_text, prepare_for_torch
from metacount.commands.options import add_json, add_model, whole_number
from metacount.errors import InputError
from metacount.resolve import find_model
from metacount.settings.values import bytes_size, dtype, length
from metacount.sharding.by_formula import STATES
from metacount.sharding.mesh import PER_MACHINE
from metacount.sharding.shard import SCHEDULES, Asked
from metacount.training.setup import ATTENTIONS, CHECKPOINTINGS

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.commands import Result
    from metacount.files import Json
    from metacount.sharding.result import Sharded


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser, several=False)
    parser.add_argument(
        "--mesh",
        metavar="DEGREES",
        help="degrees of parallelism: dp=64,tp=8,pp=4 (data, tensor, pipeline), ep=8 (experts, "
        "over the ranks of a stage), cp=2 (context)",
    )
    parser.add_argument(
        "--world", type=whole_number, metavar="N", help="the ranks that the mesh must make"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--rank", type=whole_number, metavar="R", help="show this rank")
    which.add_argument("--ranks", choices=("all",), help="show every kind of rank in full")
    parser.add_argument(
        "--plan",
        metavar="FILE",
        help="how modules are cut, as JSON; without it, ours",
    )
    parser.add_argument(
        "--fits",
        metavar="SIZE",
        help="whether the largest rank fits in so much (80GiB, 80GB), and what would; else exit 1",
    )
    parser.add_argument(
        "--formula", action="store_true", help="count by formulas alone, without torch"
    )
    parser.add_argument("-o", dest="output", metavar="FILE", help="draw the mesh: .svg, .png, .pdf")
    add_job(parser)
    add_json(parser)


def add_job(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what is done on the mesh."""
    parser.add_argument("--train", action="store_true", help="a step of training, not serving")
    parser.add_argument(
        "--zero",
        type=whole_number,
        metavar="N",
        help="what is spread over dp: 1 optimizer, 2 and gradients, 3 and parameters (default 3)",
    )
    parser.add_argument(
        "--optimizer",
        default=Asked().optimizer,
        metavar="NAME",
        help=f"{', '.join(STATES)} (default {Asked().optimizer})",
    )
    parser.add_argument(
        "--master-weights",
        action="store_true",
        help="keep parameters, gradients and the optimizer's state in float32",
    )
    for name, known in (
        ("attention", ATTENTIONS),
        ("checkpointing", CHECKPOINTINGS),
        ("schedule", SCHEDULES),
    ):
        default = getattr(Asked(), name)
        parser.add_argument(
            f"--{name}",
            default=default,
            metavar="NAME",
            help=f"in training: {', '.join(known)} (default {default})",
        )
    parser.add_argument(
        "--batch",
        type=whole_number,
        metavar="N",
        help="sequences of all ranks together (default: one for each at a time)",
    )
    parser.add_argument(
        "--micro-batches",
        type=whole_number,
        metavar="N",
        help="how often a rank runs in a step (default: pp)",
    )
    parser.add_argument(
        "--seq",
        type=lambda text: length(text) or whole_number(text),
        metavar="N",
        help="tokens of each sequence; 128k is 128·1,024 (default 2048)",
    )
    parser.add_argument(
        "--per-machine",
        type=whole_number,
        default=PER_MACHINE,
        metavar="N",
        help=f"ranks of one machine, which follow each other (default {PER_MACHINE})",
    )
    parser.add_argument(
        "--dtype",
        type=dtype,
        default="bf16",
        metavar="DTYPE",
        help="that is computed with (default bf16)",
    )


def how_of(args: argparse.Namespace) -> Json:
    """Collect the options of `add_job`, as the API takes them."""
    return {
        "zero": args.zero,
        "optimizer": args.optimizer,
        "master_weights": args.master_weights,
        "batch_size": args.batch,
        "seq_len": args.seq,
        "micro_batches": args.micro_batches,
        "dtype": args.dtype,
        "attention": args.attention,
        "checkpointing": args.checkpointing,
        "schedule": args.schedule,
        "per_machine": args.per_machine,
    }


def run(args: argparse.Namespace) -> Result:
    from metacount.sharding.mesh import parse_mesh
    from metacount.sharding.shard import shard

    if args.mesh is None:
        raise InputError("shard needs --mesh, for example --mesh dp=8,tp=8")
    mesh = parse_mesh(args.mesh, args.world)
    if args.rank is not None and not 0 <= args.rank < mesh.world:
        raise InputError(f"--rank must be 0 to {mesh.world - 1} on this mesh: got {args.rank}")
    if args.output is not None:
        from metacount.views.pictures.picture import check_output

        check_output(args.output)
    room = None if args.fits is None else bytes_size(args.fits)
    model = find_model(args.model, args.settings)
    if not args.formula:
        prepare_for_torch()
    found = shard(
        model, mesh, train=args.train, plan=args.plan, formula=args.formula, **how_of(args)
    )
    fits = None
    if room is not None:
        from metacount.sharding.fit import verdict

        fits = verdict(model, found, room)
    if args.output is not None:
        _draw(found, args.output)
    code = 0 if fits is None or fits.fits else 1
    if args.json:
        data = found.to_dict()
        if args.rank is not None:
            data["rank"] = {"rank": args.rank, **found.kind_of(args.rank).to_dict()}
        if fits is not None:
            data["fits"] = fits.to_dict()
        return json_text(data), code
    from metacount.views.shard import shard_text

    return shard_text(found, rank=args.rank, every=args.ranks == "all", fits=fits), code


def _draw(found: Sharded, path: str) -> None:
    from metacount.views.pictures.mesh import mesh_figure
    from metacount.views.pictures.picture import save

    save(mesh_figure(found), path)
