"""The options of `metacount plot`."""

from __future__ import annotations

from metacount.commands.options import (
    MODEL_HELP,
    add_over,
    add_quantity,
    add_settings,
)
from metacount.errors import InputError
from metacount.languages import LANGUAGES
from metacount.settings.values import dtype

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse

RESULT_DTYPES = ("bf16", "fp16", "tf32", "fp32")
# What can be drawn, by option; one of them is asked for.
KINDS = {
    "model": "MODEL",
    "caches": "--caches MODEL",
    "activations": "--activations NAME",
    "roofline": "--roofline RESULTS",
    "curves": "--curves RESULTS",
}
# Options that belong to some of these alone, where they are not given: None or an empty list.
BELONGS = {
    "settings": ("--set", ("model", "caches")),
    "over": ("--over", ("model",)),
    "seq": ("--seq", ("model", "caches")),
    "batch": ("--batch", ("model", "caches")),
    "lang": ("--lang", ("model", "caches", "activations")),
    "html": ("--html", ("model",)),
    "launch": ("--launch", ("roofline", "curves")),
    "dtype": ("--dtype", ("model", "caches", "roofline", "curves")),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from metacount.textbook.closed_form import FORWARD

    parser.add_argument("model", metavar="MODEL", nargs="*", help=MODEL_HELP)
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="the picture: a name that ends in .svg, .png or .pdf"
    )
    parser.add_argument(
        "--html",
        metavar="PAGE.html",
        help="in place of a picture: a page for a browser, which needs no network; "
        "its sizes are sliders, its numbers closed forms that it evaluates, each "
        "with what is proven of it",
    )
    add_quantity(parser, FORWARD, "; by its parts, absolute and in percent")
    add_over(parser)
    parser.add_argument(
        "--seq",
        metavar="N,N,...",
        help="a bar for each length of a sequence: 1k,4k,16k,64k; with --caches "
        "the points of its lines",
    )
    parser.add_argument("--batch", type=int, metavar="N", help="sequences (default 1)")
    parser.add_argument(
        "--caches",
        metavar="MODEL",
        help="the KV caches that MHA, GQA, MQA and MLA would need in this model, beside each other",
    )
    parser.add_argument(
        "--activations",
        nargs="+",
        metavar="NAME",
        help="activations and their derivatives, as the modules run them: relu, gelu, silu, ...",
    )
    parser.add_argument(
        "--roofline",
        nargs="+",
        metavar="RESULTS",
        help="rates over intensity, from what `bench --save` wrote",
    )
    parser.add_argument(
        "--curves",
        nargs="+",
        metavar="RESULTS",
        help="GELU and SwiGLU over the tokens, from such files",
    )
    parser.add_argument(
        "--state",
        choices=("hot", "cold"),
        default="hot",
        help="which rows of the results (default hot)",
    )
    parser.add_argument(
        "--launch",
        choices=("eager", "graph"),
        help="which rows of the results (default graph, where there are any)",
    )
    parser.add_argument(
        "--dtype",
        type=dtype,
        metavar="DTYPE",
        help="of a model's KV cache (default bf16); of results, which rows: "
        f"{', '.join(RESULT_DTYPES)} (default: of the last one)",
    )
    parser.add_argument(
        "--lang", choices=LANGUAGES, help="the language of the labels: English (default) or Chinese"
    )
    add_settings(parser)
    parser.add_argument(
        "--json",
        action="store_true",
        help="print the numbers of a picture as JSON instead of drawing it",
    )


def asked_kind(args: argparse.Namespace) -> str:
    """Find what is to be drawn; raise `InputError` unless it is one thing, with its own options."""
    wanted = [kind for kind in KINDS if getattr(args, kind)]
    if len(wanted) != 1:
        raise InputError(
            f"plot needs one of {', '.join(list(KINDS.values())[:-1])} and "
            f"{list(KINDS.values())[-1]}; see `metacount plot --help`"
        )
    for name, (option, kinds) in BELONGS.items():
        if getattr(args, name) and wanted[0] not in kinds:
            those = " and ".join(KINDS[kind].partition(" ")[0] for kind in kinds)
            raise InputError(f"{option} belongs to {those}; leave it out here")
    if args.quantity != "params" and (wanted[0] != "model" or args.html):
        raise InputError("--quantity belongs to a picture of MODEL; leave it out here")
    if args.json and (args.html or args.output or args.lang):
        raise InputError(
            "--json prints numbers in place of a picture; leave out -o, --html and --lang"
        )
    if args.html and (args.output or args.over or args.lang):
        raise InputError(
            "--html takes the place of -o, and a page has no --over and no --lang; leave them out"
        )
    return wanted[0]
