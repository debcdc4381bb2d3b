"""Options that several commands share, and what they stand for."""

from __future__ import annotations

import argparse

from metacount.errors import InputError, nearest, shown
from metacount.spec import DTYPE_BYTES, SEQ_LEN, Request

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Iterable

MODEL_HELP = (
    "a name from `metacount models`, a config.json or its folder, a Hugging Face repository id "
    "(org/name), or type:NAME for a model type of transformers"
)


def file_and_name(text: str) -> tuple[str, str] | None:
    """The two parts of FILE.py:NAME; None of anything else.

    >>> file_and_name("mine.py:count"), file_and_name("type:llama")
    (('mine.py', 'count'), None)
    """
    path, _, name = text.rpartition(":")
    named = path.endswith(".py") and path != ".py" and name.isidentifier()
    return (path, name) if named else None


def _whole_number(text: str) -> int:
    try:
        if len(text) <= 40:
            return int(text)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"must be a whole number: got '{shown(text)}'")


def add_model(parser: argparse.ArgumentParser, *, several: bool) -> None:
    parser.add_argument("model", metavar="MODEL", nargs="+" if several else None, help=MODEL_HELP)
    add_settings(parser)


def add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        metavar="FIELD=VALUE",
        action="append",
        default=[],
        dest="settings",
        help="change a size of the model; may be repeated; `metacount models --fields` lists them",
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
        type=_whole_number,
        metavar="N",
        help="processes that count a folder (default: one for each core)",
    )


def add_workload(parser: argparse.ArgumentParser) -> None:
    default = Request()
    parser.add_argument(
        "--batch",
        type=_whole_number,
        default=default.batch_size,
        metavar="N",
        help=f"sequences (default {default.batch_size})",
    )
    parser.add_argument(
        "--seq",
        type=_whole_number,
        metavar="N",
        help=f"tokens of each sequence (default {SEQ_LEN}, or all that the model has positions "
        "for, if these are fewer)",
    )
    parser.add_argument(
        "--dtype",
        default=default.dtype,
        metavar="DTYPE",
        help=f"of weights and KV cache: {', '.join(DTYPE_BYTES)} (default {default.dtype})",
    )
    parser.add_argument(
        "--source-len",
        type=_whole_number,
        metavar="N",
        help="tokens that an encoder-decoder reads (default: --seq)",
    )
    parser.add_argument(
        "--prefix",
        type=_whole_number,
        default=0,
        metavar="N",
        help="first tokens that a prefix-decoder sees both ways (default 0)",
    )


def add_quantity(parser: argparse.ArgumentParser, known: Iterable[str], more: str = "") -> None:
    parser.add_argument(
        "--quantity",
        default="params",
        metavar="NAME",
        help=f"{', '.join(known)} (default params){more}",
    )


def check_quantity(quantity: str, known: Iterable[str]) -> None:
    """Raise `InputError` unless --quantity is one of `known`."""
    if quantity not in known:
        close = nearest(quantity, known, f"choose one of {', '.join(known)}")
        raise InputError(f"--quantity '{shown(quantity)}' is unknown; {close}")


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def request_of(args: argparse.Namespace) -> Request:
    """What the options ask to be run; the model decides what they leave open."""
    return Request(
        batch_size=args.batch,
        seq_len=args.seq,
        dtype=args.dtype,
        source_len=args.source_len,
        prefix_len=args.prefix,
    )
