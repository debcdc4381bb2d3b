"""One command's parser: its options, and what argparse says of them."""

from __future__ import annotations

import argparse
from functools import partial

from metacount.cli import options as given
from metacount.errors import InputError, printable

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType
    from typing import NoReturn

LONGEST_MESSAGE = 500  # characters of argparse's messages, which repeat what was typed


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(f"{printable(message[:LONGEST_MESSAGE])}; see `{self.prog} --help`")

    def format_help(self) -> str:
        from metacount.cli.layout import columns

        self.formatter_class = partial(_formatter, width=min(columns(), 100) - 2)
        return super().format_help()


def _formatter(prog: str, width: int = 80) -> argparse.HelpFormatter:
    """Make a formatter; only help that is printed needs to know its width."""
    return argparse.HelpFormatter(prog, max_help_position=28, width=width)


def parsed(
    name: str, summary: str, file: ModuleType, arguments: Sequence[str]
) -> argparse.Namespace:
    """Parse what follows a command's name; its file declares the options, and which go together."""
    parser = _Parser(
        prog=f"metacount {name}",
        description=summary[0].upper() + summary[1:] + ".",
        epilog=getattr(file, "EPILOG", None),
        formatter_class=_formatter,
        allow_abbrev=False,
    )
    options = file.options()
    groups: dict[str, argparse._ActionsContainer] = {"": parser}
    for option in options:
        if option.group not in groups:
            exclusive = option.group == given.EXCLUSIVE
            groups[option.group] = (
                parser.add_mutually_exclusive_group()
                if exclusive
                else parser.add_argument_group(option.group)
            )
        option.add_to(groups[option.group])
    args = parser.parse_args(arguments)
    args.run = file.run
    given.check_together(args, options, getattr(file, "APART", ()), getattr(file, "BELONGS", ()))
    if getattr(file, "TAKES_LIKE", any(option is given.LIKE_NAME for option in options)):
        given.take_like(args)
    return args
