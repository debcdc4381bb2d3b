"""`metacount completion`: a script that completes commands, options and names in a shell."""

from __future__ import annotations

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse

    from metacount.commands import Result

SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "shell",
        metavar="SHELL",
        choices=SHELLS,
        help='bash, zsh or fish; to try it: eval "$(metacount completion bash)" (zsh the same), '
        "metacount completion fish | source",
    )


def run(args: argparse.Namespace) -> Result:
    from metacount.views.completion_scripts import script

    return script(args.shell, args.all_commands()), 0
