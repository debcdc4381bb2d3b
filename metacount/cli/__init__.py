"""The command line: parse, call, print. A file a command: its options, its run, its report.

Nothing is imported before it is needed. A command returns an `Answer` (what it found, as data, as a
report and as a table), or pieces of text as they come; only `main` writes.
Exit codes: 0 fine, 1 witnesses disagree or a formula is refuted, 2 the request or an input is
wrong, 130 interrupted by Ctrl-C: what was finished by then is printed.
"""

from __future__ import annotations

import gc
import os
import sys
from io import StringIO

from metacount import __version__
from metacount.errors import (
    EXIT_BROKEN_PIPE,
    EXIT_INTERRUPTED,
    EXIT_WRONG_INPUT,
    InputError,
    SpecError,
    missing_library,
    nearest,
    printable,
    shown,
)
from metacount.package import read_of_package

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Generator, Sequence
    from types import ModuleType
    from typing import Any

    from metacount.cli.report import Block

OBJECTS_BEFORE_COLLECTING = 50_000  # of Python's own 700: some MB of memory

# Of each command: its name in brackets, its group, what it is for, other words that people try.
HEADS = [
    line.split("\t")
    for line in read_of_package("cli/options.tsv").decode().splitlines()
    if line.startswith("[") and "\t" in line
]
COMMANDS = {name.strip("[]"): purpose for name, _, purpose, *_ in HEADS}
PAGES = ("-h", "--help", "help", "--version")
EXAMPLES = (
    "metacount count llama-7b",
    "metacount train llama-7b --formula --seq 4k",
    'metacount check "12*n_layers*d_model**2" gpt2',
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code. Without `argv` the process is ours, and ends here."""
    if argv is not None:
        return _run(list(argv))
    # Collecting garbage takes a fifth of a short command: later while it runs, and not at its end,
    # where `freeze` leaves nothing to look through. What has to be closed is closed before.
    gc.set_threshold(OBJECTS_BEFORE_COLLECTING)
    talk: Any = _Talk()
    sys.stderr = talk
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in PAGES:  # printed before signals would be loaded
        return _run(arguments)
    from metacount.cli.interrupts import end_with, hear_interrupts

    hear_interrupts(main.__code__)
    try:
        code = _run(arguments)
        gc.freeze()
        end_with(code)
    except KeyboardInterrupt:  # after the answer
        code = _interrupted()
        end_with(code)
    return code


class _Talk:
    """stderr: where it is closed or full what is said is lost, and the result is as it is."""

    def __init__(self) -> None:
        # Python has no stderr where it is closed, and `print` would write to stdout
        self._stream = sys.stderr or StringIO()
        self._is_in_line = False

    def write(self, text: str) -> int:
        self._is_in_line = not text.endswith("\n")
        try:
            return self._stream.write(text)
        except OSError:
            return len(text)

    def end_line(self) -> None:
        """End the line that an interrupt cut off; a terminal's moving line is no such."""
        if self._is_in_line and not self.isatty():
            self.write("\n")

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            return

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _run(arguments: Sequence[str]) -> int:
    if sys.stdout is not None and hasattr(sys.stdout, "reconfigure"):
        # a terminal that cannot show × gets its escape, not a crash
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        _check_working_folder()
        if not arguments or arguments[0] in PAGES:
            version = arguments[:1] == ["--version"]
            return _write(f"metacount {__version__}\n" if version else _help())
        if arguments[0] == "bench" or sys.stderr is None or not sys.stderr.isatty():
            return _answered(arguments)  # bench has lines of its own
        from metacount.cli.progress import Running

        with Running(f"metacount {arguments[0]}") as line:
            return _answered(arguments, line.stop)
    except (InputError, SpecError) as error:
        return _refuse(error, as_json="--json" in arguments)
    except ModuleNotFoundError as error:
        return _refuse(missing_library(error), as_json="--json" in arguments)
    except KeyboardInterrupt:
        return _interrupted()
    except SystemExit as done:  # argparse has printed the help
        return _write("") or int(done.code or 0)
    except BrokenPipeError:  # while it printed it
        return _reader_gone()


def _interrupted() -> int:
    # where the interrupt came in code compiled from text (a dataclass of somebody's library),
    # Python would end by the signal and not with our code; running text makes it forget that
    exec("")
    from metacount.cli.interrupts import INTERRUPTED, hear_no_more

    hear_no_more()
    if isinstance(sys.stderr, _Talk):
        sys.stderr.end_line()
    print(INTERRUPTED, file=sys.stderr)
    return EXIT_INTERRUPTED


def _check_working_folder() -> None:
    """Refuse to run in a folder that is gone: MKL ends the process there, in words of its own."""
    try:
        os.getcwd()
    except OSError as error:
        raise InputError(
            f"the working folder cannot be read: {error.strerror}; change to another one"
        ) from None


def _answered(arguments: Sequence[str], before: Callable[[], None] | None = None) -> int:
    """Run a command and write what it gives; `before` is called before its text is written."""
    args = parsed_arguments(arguments)
    if args.modules:
        from metacount.cli.answer import run_apart

        text, code = run_apart(args, arguments)
    else:
        text, code = args.run(args).written(args)
    if before is not None and isinstance(text, str):
        before()
    return _write(text) or (code if isinstance(code, int) else code())


def _refuse(error: Exception, *, as_json: bool) -> int:
    if as_json:
        import json

        names = ("field", "rule", "value", "remedy") if isinstance(error, SpecError) else ()
        parts = {name: printable(getattr(error, name)) for name in names}
        message = {"metacount": __version__, "error": printable(error), **parts}
        print(json.dumps(message), file=sys.stderr)
    else:
        print(f"metacount: error: {printable(error)}", file=sys.stderr)
    return EXIT_WRONG_INPUT


def _write(text: str | Generator[str, None, None]) -> int:
    if sys.stdout is None:
        return 0
    try:
        if isinstance(text, str):
            sys.stdout.write(text)
        else:
            from metacount.cli.answer import write_pieces

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


def parsed_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the options of the command that comes first."""
    name, *others = arguments
    if name not in COMMANDS:
        known = {
            word: other.strip("[]")
            for other, _, _, *words in HEADS
            for word in " ".join(words).split()
        }
        close = f"did you mean {known[name.lower()]}?" if name.lower() in known else ""
        remedy = close or nearest(name, COMMANDS, "`metacount --help` lists the commands")
        what = "option" if name.startswith("-") else "command"
        raise InputError(f"unknown {what} '{shown(name)}'; {remedy}")
    from metacount.cli.options import parsed

    args = parsed(name, COMMANDS[name], file_of(name).run, others)
    args.commands = COMMANDS  # for completion
    return args


def _help() -> str:
    from metacount.cli.report import Grid, Text, bold, in_text

    about = (
        "Count large language models exactly: parameters, FLOPs, KV cache, memory of training, and "
        "the formulas behind the numbers."
    )
    sections: list[list[Block]] = [[Text("usage: metacount COMMAND ...")], [Text(about)]]
    indent = max(map(len, COMMANDS)) + 2
    for group in dict.fromkeys(group for _, group, *_ in HEADS):
        rows = [
            (f"{name:{indent - 2}}", COMMANDS[name])
            for name, (_, of, *_) in zip(COMMANDS, HEADS, strict=True)
            if of == group
        ]
        sections.append(
            [Text(group, bold), Grid(heads=(), rows=rows, align="<", prose=True, indent=2)]
        )
    lines = [Text(example, indent=2, unbroken=True) for example in EXAMPLES]
    sections.append([Text("Try", bold), *lines])
    sections.append([Text("metacount COMMAND --help says more; metacount --version.")])
    return in_text(sections)


def file_of(command: str) -> ModuleType:
    """Load the file of a command by name: only the one at hand is."""
    from importlib import import_module

    return import_module(f"metacount.cli.{command}")
