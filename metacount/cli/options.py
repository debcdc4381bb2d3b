"""The options of all commands, a row each in `options.tsv`; what reads their values; the parser.

In the table a name in brackets begins a command (with its group, what it is for, and other words
that people try), or with @ a set that several take. A row has the names of an option (a positional
has no hyphen); its metavar, choices in braces, and one of ?, * and + where it takes so many values,
or nothing where it is given or not; `type` (a reader), `default`, `dest`, `const`, and `words`,
those that may stand there; and its help. What is written as `module:NAME` is looked up when it is
needed. `# ` begins a group of the help; after `apart` are options that exclude each other, after
`belongs` some that belong to one of others.
"""

from __future__ import annotations

import argparse
import re
from functools import cache, partial
from importlib import import_module

from metacount.errors import InputError, nearest, printable, shown
from metacount.package import read_of_package
from metacount.resolve import LIKE, OwnModule, file_and_name
from metacount.settings.values import dtype, length
from metacount.spec import Request

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from fractions import Fraction
    from typing import Any, NoReturn

    Run = Callable[[argparse.Namespace], object]

MODEL_HELP = (
    "a name from `metacount models`, a config.json or its folder, a params.json, a GGUF file, a "
    "script with Megatron-LM's arguments, a config of nanoGPT's, a Hugging Face repository id "
    "(org/name), type:NAME for a model type of transformers, or FILE.py:NAME for a module of your "
    "own"
)
MODEL_WORDS = ("MODEL", "A", "B")  # metavars of options that name a model
INPUT_SHOWN = "its sizes, as in --input 2,16,64, or of tokens --input 2,16:int64"
WAYS = (
    "; of a training step also run in other ways: activation_bytes:flash:full, "
    "optimizer_bytes:muon, ..."
)
EXCLUSIVE = "formats"  # a group of options of which one at most is given
IN_HELP = re.compile(r"\{([\w.:]+)\}")


# ---- readers of values, by the name that the table has for them


def whole_number(text: str) -> int:
    """Read a whole number."""
    try:
        if len(text) <= 40:
            return int(text)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"must be a whole number: got '{shown(text)}'")


def tokens(text: str) -> int:
    """Read a number of tokens, in which 128k is 128·1,024."""
    if "," in text:
        raise argparse.ArgumentTypeError(
            "takes one length here; `metacount plot`, `metacount audit` and `metacount bench` take "
            "several"
        )
    return length(text) or whole_number(text)


def counted(text: str, *, most: int, rule: str, lengths: bool = True) -> int:
    """Read a number from 1 to `most`; with `lengths`, also 4k."""
    plain = int(text) if text.isascii() and text.isdecimal() and len(text) < 12 else 0
    n = (length(text) if lengths else None) or plain
    if not 0 < n <= most:
        raise argparse.ArgumentTypeError(f"must be {rule}: got '{shown(text)}'")
    return n


def _amount(text: str) -> Fraction:
    from fractions import Fraction

    try:
        amount = Fraction(text.replace("_", "").replace(",", "")[:40])
    except (ValueError, ZeroDivisionError):
        amount = Fraction(0)
    if not 0 < amount < 10**18:
        raise argparse.ArgumentTypeError(f"must be a number more than 0: got '{shown(text)}'")
    return amount


def limited(text: str, *, what: str, least: float, most: float, above: bool = False) -> float:
    """Read a number from `least` to `most`; with `above`, not `least` itself."""
    try:
        value = float(text[:40])
    except ValueError:
        value = -1.0
    if not least <= value <= most or (above and value == least):  # no number is refused too
        wide = f"more than {least:g} and at most" if above else f"{least:g} to"
        raise argparse.ArgumentTypeError(f"must be {what}, {wide} {most:g}: got '{shown(text)}'")
    return value


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


LARGEST, LONGEST, MAX_JOBS = 2**24, 2**31, 64
READERS: dict[str, Callable[[str], object]] = {
    "int": int,
    "whole": whole_number,
    "tokens": tokens,
    "dtype": dtype,
    "names": _names,
    "given_names": lambda text: tuple(filter(None, _names(text))),
    "size": partial(counted, most=LARGEST, rule="a whole number from 1"),
    "length": partial(counted, most=LONGEST, rule=f"a whole number from 1 to {LONGEST}"),
    "jobs": partial(counted, most=MAX_JOBS, rule=f"1 to {MAX_JOBS}", lengths=False),
    "amount": _amount,
    "timeout": partial(limited, what="seconds", least=0, most=3600, above=True),
    "seconds": partial(limited, what="seconds", least=0, most=3600),
    "budget": partial(limited, what="seconds", least=0, most=7 * 86400),
    "percent": partial(limited, what="percent", least=0, most=100),
}


def _reader(name: str) -> Callable[[str], object]:
    """Find a reader; `each:NAME` reads values with commas between them."""
    each, _, of = name.partition(":")
    read = READERS[of or each]
    return (lambda text: [read(part.strip()) for part in text.split(",")]) if of else read


class _Several(argparse.Action):
    """Puts the values of several lists in one."""

    def __call__(
        self, _: object, namespace: argparse.Namespace, given: Any, __: Any = None
    ) -> None:
        setattr(namespace, self.dest, [value for part in given for value in part])


# ---- the table


def _settings() -> Iterable[str]:
    """Yield `FIELD=VALUE` for each value of a field that has few, `FIELD=` for other fields."""
    from metacount.spec.model import FIELDS

    for name, field in FIELDS.items():
        values = ("true", "false") if field.takes == "flag" else field.choices
        yield from (f"{name}={value}" for value in values) if values else (f"{name}=",)


# Words that may stand for a metavar, whichever command has it.
WORDS = dict.fromkeys(MODEL_WORDS, "catalog:ids")
WORDS |= {"FIELD=VALUE": "cli.options:_settings", "DTYPE": "spec:DTYPE_BYTES"}


def _looked_up(reference: str) -> Any:
    """Find what `module:NAME` is, or what a function of that name gives; after a dot stands an
    attribute, of a class or of each item.
    """
    module, _, path = reference.partition(":")
    name, _, attribute = path.partition(".")
    value = getattr(import_module(f"metacount.{module}"), name)
    if isinstance(value, type):
        return getattr(value, attribute)
    value = value() if callable(value) else value
    return dict.fromkeys(getattr(item, attribute) for item in value) if attribute else value


class Option:
    """An option of a command, or a positional, made of a row; `keywords` are argparse's."""

    def __init__(self, row: str, group: str) -> None:
        names, value, how, self._help = row.split("\t")
        self.names, self.group, self.is_named = names.split(), group, names.startswith("-")
        more = dict(word.partition("=")[::2] for word in how.split(" ") if word)
        nargs = value[-1] if value[-1:] in ("?", "*", "+") else None
        metavar, _, choices = value.removesuffix(nargs or "").removesuffix("}").partition("{")
        self._words = more.get("words") or choices or WORDS.get(metavar, "")
        self.is_plural, self.takes = nargs in ("*", "+"), bool(value)
        keywords: dict[str, Any] = {
            "metavar": metavar or None,
            "nargs": nargs,
            "choices": self.words() if choices else None,
            "type": _reader(more["type"]) if "type" in more else None,
            "dest": more.get("dest"),
            "const": more.get("const"),
            "default": _default(more["default"]) if "default" in more else None,
        }
        if not value:
            keywords["action"] = "store_const" if "const" in more else "store_true"
        elif "repeat" in more:
            keywords |= {"action": "append", "default": []}
        elif self.is_plural and more.get("type", "").startswith("each:"):
            keywords["action"] = _Several
        self.keywords = {name: given for name, given in keywords.items() if given is not None}
        long = [name for name in self.names if name.startswith("--")] or [self.names[-1]]
        self.dest = str(keywords["dest"] or long[0].lstrip("-").replace("-", "_"))

    def words(self) -> tuple[str, ...]:
        """List the words that may stand there, those that are known."""
        given = self._words
        return tuple(_looked_up(given) if ":" in given else filter(None, given.split("|")))

    @property
    def help(self) -> str:
        """Its help, with words and defaults put in."""

        def put_in(match: re.Match[str]) -> str:
            name = match[1]
            if name == "plain":
                return ", ".join(word for word in self.words() if ":" not in word)
            if name == "default":
                default = self.keywords["default"]
                return ",".join(default) if isinstance(default, tuple) else str(default)
            value = self.words() if name == "words" else _looked_up(name)
            return str(value) if isinstance(value, str | int) else ", ".join(value)

        return IN_HELP.sub(put_in, self._help)


def _default(text: str) -> object:
    if ":" in text:
        return _looked_up(text)
    if text.isdecimal():
        return int(text)
    return () if text == "()" else float(text) if text[:1].isdecimal() else text


@cache
def _table() -> str:
    return read_of_package("cli/options.tsv").decode()


def _rows_of(name: str, group: str = "") -> Iterator[tuple[str, str]]:
    """Yield the rows of a command or set, those of the sets in it too, each with its group."""
    text = f"\n{_table()}".partition(f"\n[{name}]")[2].partition("\n\n")[0]
    for row in text.splitlines()[1:]:
        if row.startswith("@"):
            yield from _rows_of(row, group)
        elif row.startswith("#"):
            group = row[2:]
        else:
            yield group, row


def options_of(name: str) -> list[Option]:
    """List the options of a command or of a set."""
    return [Option(row, group) for group, row in _rows_of(name) if not row.startswith(RULES)]


def rules_of(name: str, kind: str) -> list[list[str]]:
    """List what a command's table says of a kind: `apart`, `belongs` or `epilog`."""
    rows = (row.split("\t") for _, row in _rows_of(name))
    return [rest for first, *rest in rows if first == kind]


RULES = ("apart\t", "belongs\t", "epilog\t")


def check_quantity(name: str, known: Iterable[str]) -> None:
    """Raise `InputError` unless --quantity is one of `known`."""
    from metacount.figures import OF_A_STEP

    figure = name.partition(":")[0]
    if figure in OF_A_STEP and not any(other.startswith(figure) for other in known):
        problem = "is of a training step, which no code is read for"
        raise InputError(f"--quantity {shown(name)} {problem}; `metacount train` measures it")
    check_known("--quantity", name, known, "see --help for those that are known", "is unknown")


def check_known(
    what: str, name: str | None, known: Iterable[str], otherwise: str, wrong: str = "is not known"
) -> None:
    """Raise `InputError` unless a name is one of those that are known, or not given."""
    if name is not None and name not in known:
        raise InputError(f"{what} '{shown(name)}' {wrong}; {nearest(name, known, otherwise)}")


def _is_given(args: argparse.Namespace, option: Option) -> bool:
    """Tell whether an option was given, or a positional: whether it is not what it is otherwise."""
    value = getattr(args, option.dest)
    action = option.keywords.get("action")
    if action == "store_const":
        return bool(value == option.keywords["const"])
    default = option.keywords.get("default", False if action == "store_true" else None)
    return value is not None and value not in (default, [], ())


def check_together(args: argparse.Namespace, command: str, options: Sequence[Option]) -> None:
    """Raise `InputError` for options that exclude each other, or belong to one that is not there.

    The table writes each with spaces between names; a positional goes by its metavar.
    """
    given = {
        name: None
        for option in options
        if _is_given(args, option)
        for name in (option.names if option.is_named else (option.keywords["metavar"],))
    }
    for names, others in rules_of(command, "apart"):
        excluding = [name for name in given if name in names.split()]
        for name in excluding:
            for other in (word for word in given if word in others.split() and word != name):
                raise InputError(f"{name} does not go with {other}; leave one of them out")
    for names, others in rules_of(command, "belongs"):
        for name in (word for word in given if word in names.split()):
            if not given.keys() & {*others.split()}:
                where = " or ".join(others.split())
                raise InputError(f"{name} belongs to {where}; leave it out")


def take_like(args: argparse.Namespace) -> None:
    """Make `--like NAME` the MODEL that it stands for."""
    if isinstance(args.model, list):
        args.model = [*args.model, *([] if args.like is None else [LIKE + args.like])]
    elif args.like is not None and args.model is not None:
        raise InputError("--like takes the place of MODEL; leave one of them out")
    elif args.like is not None:
        args.model = LIKE + args.like
    elif args.model is None:
        raise InputError("MODEL is missing; give one, or --like NAME")


def own_module(args: argparse.Namespace, *, runs: bool = True) -> OwnModule | None:
    """Find the module of FILE.py:NAME that is measured as it is, over --input where it `runs`: one
    that has no config, or is given inputs; None where MODEL is a model.
    """
    if not isinstance(args.model, OwnModule):
        if args.input:
            raise InputError(
                "--input is for FILE.py:NAME; a model of tokens takes --batch and --seq"
            )
        return None
    if args.model.model is not None and not args.input:
        return None
    if runs and not args.input:
        raise InputError(f"FILE.py:NAME needs --input: {INPUT_SHOWN}")
    for name in ("settings", "decode", "reference", "formula"):
        if getattr(args, name, None):
            option = "set" if name == "settings" else name
            raise InputError(f"--{option} is not for a module of your own; leave it out")
    return args.model


def request_of(args: argparse.Namespace) -> Request:
    """Read what the options ask to be run; the model decides what they leave open."""
    return Request(
        batch_size=args.batch,
        seq_len=args.seq,
        dtype=args.dtype,
        source_len=args.source_len,
        prefix_len=args.prefix,
    )


# ---- one command's parser

LONGEST_MESSAGE = 500  # characters of argparse's messages, which repeat what was typed


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(f"{printable(message[:LONGEST_MESSAGE])}; see `{self.prog} --help`")

    def format_help(self) -> str:
        from metacount.cli.report import columns

        self.formatter_class = partial(_formatter, width=min(columns(), 100) - 2)
        return super().format_help()


def _formatter(prog: str, width: int = 80) -> argparse.HelpFormatter:
    """Make a formatter; only help that is printed needs to know its width."""
    return argparse.HelpFormatter(prog, max_help_position=28, width=width)


def parsed(name: str, summary: str, run: Run, arguments: Sequence[str]) -> argparse.Namespace:
    """Parse what follows a command's name."""
    is_help = bool({"-h", "--help"} & {*arguments})
    parser = _Parser(
        prog=f"metacount {name}",
        description=summary[0].upper() + summary[1:] + ".",
        epilog=next((text for (text,) in rules_of(name, "epilog")), None),
        formatter_class=_formatter,
        allow_abbrev=False,
    )
    options = options_of(name)
    groups: dict[str, Any] = {"": parser}
    for option in options:
        if option.group not in groups:
            groups[option.group] = (
                parser.add_mutually_exclusive_group()
                if option.group == EXCLUSIVE
                else parser.add_argument_group(option.group)
            )
        text = option.help if is_help else None
        groups[option.group].add_argument(*option.names, help=text, **option.keywords)
    args = parser.parse_args(arguments)
    args.run = run
    named = [getattr(args, o.dest) for o in options if o.keywords.get("metavar") in MODEL_WORDS]
    texts = [text for value in named for text in (value if isinstance(value, list) else [value])]
    args.modules = [text for text in texts if text and file_and_name(text)]
    check_together(args, name, options)
    if "like" in args:
        take_like(args)
    return args
