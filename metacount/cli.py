"""The command line: parse, call, print. No arithmetic, and nothing imported before it is needed.

Every command returns its text (whole, or in pieces as they come) and its exit code; only `main`
writes.
Exit codes: 0 fine, 1 witnesses disagree or a formula is refuted, 2 the request or an input is
wrong, 130 interrupted by Ctrl-C: what was finished by then is printed.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from functools import partial

from metacount import __version__
from metacount.errors import (
    EXIT_BROKEN_PIPE,
    EXIT_INTERRUPTED,
    EXIT_WRONG_INPUT,
    InputError,
    SpecError,
    printable,
)

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence
    from types import ModuleType
    from typing import Any, NoReturn


OBJECTS_BEFORE_COLLECTING = 50_000  # of Python's own 700: some MB of memory
UNTIL_INTERRUPTED_AGAIN = 0.05  # seconds: the destructor has ended by then
LONGEST_MESSAGE = 500  # characters of argparse's messages, which repeat what was typed


COMMANDS = {
    "models": "list the published models, with their counts",
    "count": "parameters, FLOPs and KV cache of a model, or of several side by side",
    "formula": "the closed form of a count, in letters and in numbers",
    "check": "a formula of your own against what the model has",
    "code": "the code of a module or of a formula",
    "tree": "the module tree of a model, with shapes and parameters",
    "flow": "the forward in execution order, with equations and shapes",
    "train": "what a training step computes, keeps and holds, measured",
    "diff": "two models part by part: added, taken away, replaced, resized",
    "verify": "every witness of a model's counts side by side",
    "claims": "well-known statements, each judged right, conditional or wrong",
    "lesson": "a page of teaching on one topic, computed as it is printed",
    "audit": "the formulas that frameworks and papers use, judged",
    "bench": "how long the variants of a layer take, beside what the device can do",
    "shard": "a model on a mesh of devices: what each rank holds and sends",
    "fit": "on how many devices a model fits",
    "plot": "pictures of counts, caches, activations and benchmarks, and a page with sliders",
    "completion": "a script that completes commands, options and names in a shell",
    "survey": "every architecture of the installed transformers, measured",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code. Without `argv` the process is ours, and ends here."""
    if argv is not None:
        return _run(list(argv))
    # Collecting garbage takes a fifth of a short command: later while it runs, and not at its end,
    # where `freeze` leaves nothing to look through. What has to be closed is closed before.
    gc.set_threshold(OBJECTS_BEFORE_COLLECTING)
    sys.unraisablehook = _raise_interrupt_later
    try:
        return _run(sys.argv[1:])
    finally:
        gc.freeze()


def _raise_interrupt_later(unraisable: sys.UnraisableHookArgs) -> None:
    """Raise an interrupt again that came within a destructor, where Python only prints it."""
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
        return
    import signal
    from threading import Timer, get_ident

    # to this thread itself, so that a call it waits in is interrupted too
    again = Timer(UNTIL_INTERRUPTED_AGAIN, signal.pthread_kill, (get_ident(), signal.SIGINT))
    again.daemon = True
    again.start()


def _run(arguments: Sequence[str]) -> int:
    if sys.stdout is not None and hasattr(sys.stdout, "reconfigure"):
        # a terminal that cannot show × gets its escape, not a crash
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        args = _parsed(arguments)
        if hasattr(args, "settle"):
            args.settle(args)
        text, code = args.run(args)
        return _write(text) or (code if isinstance(code, int) else code())
    except (InputError, SpecError) as error:
        print(f"metacount: error: {printable(error)}", file=sys.stderr)
        return EXIT_WRONG_INPUT
    except KeyboardInterrupt:
        # where the interrupt came in code compiled from text (a dataclass of somebody's library),
        # Python would end by the signal and not with our code; running text makes it forget that
        exec("")
        print("metacount: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except SystemExit as done:  # argparse has printed the help or the version
        return _write("") or int(done.code or 0)
    except BrokenPipeError:  # while it printed them
        return _reader_gone()


def _write(text: str | Generator[str, None, None]) -> int:
    if sys.stdout is None:
        return 0
    try:
        if isinstance(text, str):
            sys.stdout.write(text)
        else:
            from metacount.commands.writing import write_pieces

            write_pieces(text)
        sys.stdout.flush()
    except BrokenPipeError:
        return _reader_gone()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"metacount: error: cannot write the result: {error.strerror}", file=sys.stderr)
        return EXIT_WRONG_INPUT
    return 0


def _reader_gone() -> int:
    """Close stdout where its reader has seen enough, or Python would complain once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_BROKEN_PIPE


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(f"{printable(message[:LONGEST_MESSAGE])}; see `{self.prog} --help`")

    def format_help(self) -> str:
        from metacount.views.layout import columns

        self.formatter_class = partial(_formatter, width=min(columns(), 100) - 2)
        return super().format_help()


class _Help(argparse.HelpFormatter):
    """Help whose commands stand in one column with what they do."""

    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        if action.dest == "command":
            # argparse forgets that it indents them once more
            self._action_max_length = max(self._action_max_length, 4 + max(map(len, COMMANDS)))


def _formatter(prog: str, width: int = 80) -> argparse.HelpFormatter:
    """Make a formatter; only help that is printed needs to know its width."""
    return _Help(prog, max_help_position=28, width=width)


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the options of the command that comes first;
    without one, argparse says what there is.
    """
    name = next(iter(arguments), None)
    if name in COMMANDS:
        # to set up the other commands beside it takes longer than to count
        parser = _Parser(prog=f"metacount {name}", **_said(name))
        _add_options(parser, name)
        return parser.parse_args(arguments[1:])
    return _parser(arguments).parse_args(arguments)


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """Build the parser of all commands, with the options of those that are named."""
    parser = _Parser(
        prog="metacount",
        description="Count large language models exactly: parameters, FLOPs, KV cache, "
        "and the formulas behind the numbers.",
        epilog="Try: metacount count llama-7b",
        formatter_class=_formatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"metacount {__version__}")
    # with prog given, argparse formats no usage line to find it
    commands = parser.add_subparsers(
        prog="metacount", metavar="COMMAND", required=True, dest="command"
    )
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, **_said(name))
        if name in arguments:
            _add_options(command, name)
    return parser


def _said(name: str) -> dict[str, Any]:
    """Return what a command's parser says of it."""
    summary = COMMANDS[name]
    return {
        "description": summary[0].upper() + summary[1:] + ".",
        "formatter_class": _formatter,
        "allow_abbrev": False,
    }


def _add_options(parser: argparse.ArgumentParser, name: str) -> None:
    file = _file(name)
    file.add_arguments(parser)
    # completion alone asks for the options of all commands
    parser.set_defaults(run=file.run, all_commands=_all_commands)


def _all_commands() -> Iterable[tuple[str, str, Callable[[argparse.ArgumentParser], None]]]:
    """List the name of each command, what it is for, and what adds its options to a parser."""
    return [(name, summary, _file(name).add_arguments) for name, summary in COMMANDS.items()]


def _file(command: str) -> ModuleType:
    """Load the file of a command by name: only the one at hand is."""
    from importlib import import_module

    return import_module(f"metacount.commands.{command}")
