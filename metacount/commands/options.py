"""Options that several commands share, and what they stand for."""

from __future__ import annotations

import argparse

from metacount.errors import InputError, nearest, shown
from metacount.resolve import LIKE
from metacount.settings.values import dtype, length
from metacount.spec import DTYPE_BYTES, SEQ_LEN, Request

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Iterable

MODEL_HELP = (
    "a name from `metacount models`, a config.json or its folder, a params.json, a GGUF file, a "
    "script with Megatron-LM's arguments, a config of nanoGPT's, a Hugging Face repository id "
    "(org/name), or type:NAME for a model type of transformers"
)

WAYS = (
    "; of a training step also run in other ways: activation_bytes:flash:full, "
    "optimizer_bytes:muon, ..."
)
# The formats of a table, by option.
TABLES = {"markdown": "Markdown", "csv": "CSV", "latex": "LaTeX"}


def whole_number(text: str) -> int:
    try:
        if len(text) <= 40:
            return int(text)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"must be a whole number: got '{shown(text)}'")


def _tokens(text: str) -> int:
    return length(text) or whole_number(text)


def add_model(parser: argparse.ArgumentParser, *, several: bool) -> None:
    parser.add_argument("model", metavar="MODEL", nargs="*" if several else "?", help=MODEL_HELP)
    add_settings(parser)
    parser.set_defaults(needs_model=True)


def add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        metavar="FIELD=VALUE",
        action="append",
        default=[],
        dest="settings",
        help="change a size of the model, by any of its names, to a number or to arithmetic "
        "(d_ff=8/3*d_model, rounded by multiple_of=256); may be repeated; `metacount models "
        "--fields` lists them",
    )
    parser.add_argument(
        "--like",
        metavar="NAME",
        help="in place of MODEL: one built like this model or family of the catalog, whose other "
        "sizes follow those of --set",
    )
    parser.set_defaults(settle=_take_like)


def _take_like(args: argparse.Namespace) -> None:
    """Make `--like NAME` the MODEL that it stands for."""
    several = isinstance(args.model, list)
    if args.like is None:
        if not args.model and getattr(args, "needs_model", False):
            raise InputError("MODEL is missing; give one, or --like NAME")
    elif several:
        args.model = [*args.model, LIKE + args.like]
    elif args.model is not None:
        raise InputError("--like takes the place of MODEL; leave one of them out")
    else:
        args.model = LIKE + args.like


def add_over(parser: argparse.ArgumentParser) -> None:
    """Add --over: one model at several values of a size."""
    parser.add_argument(
        "--over",
        metavar="FIELD=V,V,...",
        help="MODEL at each of these values, side by side: d_ff=1024,2048,4*d_model",
    )


def add_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--folder",
        metavar="DIR",
        help="count every model that a .json file below DIR describes; --json then prints one "
        "object a line",
    )
    parser.add_argument(
        "--jobs",
        type=whole_number,
        metavar="N",
        help="processes that count a folder (default: one for each core)",
    )


def add_workload(parser: argparse.ArgumentParser) -> None:
    default = Request()
    parser.add_argument(
        "--batch",
        type=whole_number,
        default=default.batch_size,
        metavar="N",
        help=f"sequences (default {default.batch_size})",
    )
    parser.add_argument(
        "--seq",
        type=_tokens,
        metavar="N",
        help=f"tokens of each sequence; 128k is 128·1,024 (default {SEQ_LEN}, or all that the "
        "model has positions for, if these are fewer)",
    )
    parser.add_argument(
        "--dtype",
        type=dtype,
        default=default.dtype,
        metavar="DTYPE",
        help=f"of weights and KV cache: {', '.join(DTYPE_BYTES)} (default {default.dtype})",
    )
    parser.add_argument(
        "--source-len",
        type=_tokens,
        metavar="N",
        help="tokens that an encoder-decoder reads (default: --seq)",
    )
    parser.add_argument(
        "--prefix",
        type=_tokens,
        default=0,
        metavar="N",
        help="first tokens that a prefix-decoder sees both ways (default 0)",
    )


def add_input(parser: argparse.ArgumentParser) -> None:
    """Add --input: the sizes of what a module of somebody's own is given."""
    parser.add_argument(
        "--input",
        metavar="SIZES",
        action="append",
        default=[],
        help="of FILE.py:NAME: an input of these sizes (2,16,64; tokens: 2,16:int64); one for each",
    )


def add_quantity(parser: argparse.ArgumentParser, known: Iterable[str], more: str = "") -> None:
    parser.add_argument(
        "--quantity",
        default="params",
        metavar="NAME",
        help=f"{', '.join(name for name in known if ':' not in name)} (default params){more}",
    )


def check_quantity(quantity: str, known: Iterable[str]) -> None:
    """Raise `InputError` unless --quantity is one of `known`."""
    if quantity not in known:
        close = nearest(quantity, known, "see --help for those that are known")
        raise InputError(f"--quantity '{shown(quantity)}' is unknown; {close}")


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def add_formats(parser: argparse.ArgumentParser) -> None:
    """Add the options for JSON, or for the table of the result in a format of other programs."""
    formats = parser.add_mutually_exclusive_group()
    formats.add_argument("--json", action="store_true", help="print JSON instead of text")
    for name, title in TABLES.items():
        formats.add_argument(
            f"--{name}",
            action="store_const",
            const=name,
            dest="table",
            help=f"print one table in {title}",
        )


def refuse_table(args: argparse.Namespace, asked: str) -> None:
    """Raise `InputError` where what is `asked` for has no table."""
    if args.table is not None:
        raise InputError(f"--{args.table} does not go with {asked}; leave one of them out")


def add_columns(parser: argparse.ArgumentParser) -> None:
    """Add --columns: which columns a table of models has."""
    parser.add_argument(
        "--columns",
        metavar="NAME,...",
        type=_column_names,
        help="a table with a row for each model and these columns: fields of a model, figures, "
        "by_role.ROLE, active_by_role.ROLE, share.ROLE; also attention, ffn, layers, experts, "
        "d_ff/d_model",
    )


def _column_names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def refuse_columns(args: argparse.Namespace, asked: str) -> None:
    """Raise `InputError` where what is `asked` for has columns of its own."""
    if args.columns is not None:
        raise InputError(f"--columns does not go with {asked}; leave one of them out")


def request_of(args: argparse.Namespace) -> Request:
    """Read what the options ask to be run; the model decides what they leave open."""
    return Request(
        batch_size=args.batch,
        seq_len=args.seq,
        dtype=args.dtype,
        source_len=args.source_len,
        prefix_len=args.prefix,
    )
