"""Options as records, which the parser and the completion read; those of several commands."""

from __future__ import annotations

import argparse
from functools import partial

from metacount.errors import InputError, nearest, printable, shown
from metacount.resolve import LIKE, OwnModule, file_and_name
from metacount.settings.values import dtype, length
from metacount.spec import DTYPE_BYTES, SEQ_LEN, Request

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import ModuleType
    from typing import Any, NoReturn, Protocol

    class Takes(Protocol):
        """A parser, or a group of its options."""

        def add_argument(self, *names: str, **settings: Any) -> object:
            """Take one more option."""


FILE = "FILE"  # completed by files


class Option:
    """An option of a command, or a positional, whose `names` are one word without hyphens.

    `words`: what may stand for it, asked for by completion alone; `metavar` says which words where
    there are none. `settings`: what argparse is told besides.
    """

    def __init__(
        self,
        names: str,
        help: str,
        *,
        group: str = "",
        words: Callable[[], Iterable[str]] | None = None,
        **settings: Any,
    ) -> None:
        self.names, self.help, self.group, self.words = names.split(), help, group, words
        self.said = {name: value for name, value in settings.items() if value is not None}
        long = [name for name in self.names if name.startswith("--")] or [self.names[-1]]
        self.dest = str(settings.get("dest") or long[0].lstrip("-").replace("-", "_"))
        self.is_named = names.startswith("-")
        self.takes = settings.get("action", "store") in ("store", "append")
        self.is_plural = settings.get("nargs") in ("+", "*")


def option(names: str, metavar: str | None, help: str, **settings: Any) -> Option:
    """Declare an option that takes a value; `names` are with spaces between them."""
    return Option(names, help, metavar=metavar, **settings)


def flag(name: str, help: str) -> Option:
    """Declare an option that is given or not."""
    return Option(name, help, action="store_true")


def repeated(name: str, metavar: str, help: str, *, dest: str | None = None) -> Option:
    """Declare an option that may be given several times."""
    return Option(name, help, metavar=metavar, action="append", default=[], dest=dest)


def grouped(group: str, *options: Option) -> list[Option]:
    """Put options under a heading of their own in the help."""
    return [
        Option(" ".join(o.names), o.help, group=group, words=o.words, **o.said) for o in options
    ]


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


def each_of(read: Callable[[str], object]) -> Callable[[str], list[object]]:
    """Make what reads values with commas between them; an option takes several such with spaces."""

    def read_all(text: str) -> list[object]:
        return [read(part.strip()) for part in text.split(",")]

    return read_all


class Several(argparse.Action):
    """Puts the values of `each_of` in one list."""

    def __call__(
        self, _: object, namespace: argparse.Namespace, given: Any, __: Any = None
    ) -> None:
        """Keep them."""
        setattr(namespace, self.dest, [value for part in given for value in part])


def names(text: str) -> list[str]:
    """Read names with commas between them."""
    return [name.strip() for name in text.split(",")]


def limited(what: str, least: float, most: float, *, above: bool = False) -> Callable[[str], float]:
    """Make what reads a number from `least` to `most`; with `above`, not `least` itself."""

    def read(text: str) -> float:
        try:
            value = float(text[:40])
        except ValueError:
            value = -1.0
        if not least <= value <= most or (above and value == least):  # no number is refused too
            wide = f"more than {least:g} and at most" if above else f"{least:g} to"
            raise argparse.ArgumentTypeError(
                f"must be {what}, {wide} {most:g}: got '{shown(text)}'"
            )
        return value

    return read


def _models() -> Iterable[str]:
    from metacount.catalog import ids

    return ids()


def _settings() -> Iterable[str]:
    """Yield `FIELD=VALUE` for each value of a field that has few, `FIELD=` for other fields."""
    from metacount.spec.model import FIELDS

    for name, field in FIELDS.items():
        values = ("true", "false") if field.takes == "flag" else field.choices
        yield from (f"{name}={value}" for value in values) if values else (f"{name}=",)


# Words that may stand for a metavar, whichever command has it.
WORDS: dict[str, Callable[[], Iterable[str]]] = {
    "MODEL": _models,
    "A": _models,
    "B": _models,
    "FIELD=VALUE": _settings,
    "DTYPE": lambda: DTYPE_BYTES,
}

MODEL_HELP = (
    "a name from `metacount models`, a config.json or its folder, a params.json, a GGUF file, a "
    "script with Megatron-LM's arguments, a config of nanoGPT's, a Hugging Face repository id "
    "(org/name), type:NAME for a model type of transformers, or FILE.py:NAME for a module of your "
    "own"
)


SET = repeated(
    "--set",
    "FIELD=VALUE",
    "change a size of the model, by any of its names, to a number or to arithmetic "
    "(d_ff=8/3*d_model, rounded by multiple_of=256); may be repeated; `metacount models "
    "--fields` lists them",
    dest="settings",
)
LIKE_NAME = option(
    "--like",
    "NAME",
    "in place of MODEL: one built like this model or family of the catalog, whose other sizes "
    "follow those of --set",
    words=_models,
)
TIMEOUT = option(
    "--timeout",
    "SECONDS",
    "a module of FILE.py:NAME that takes longer is stopped (default 300)",
    type=limited("seconds", 0, 3600, above=True),
    default=300.0,
)
SETTINGS = (SET, LIKE_NAME, TIMEOUT)
MODELS = option("model", "MODEL", MODEL_HELP, nargs="*")
MODEL = (option("model", "MODEL", MODEL_HELP, nargs="?"), *SETTINGS)
MODEL_WORDS = ("MODEL", "A", "B")  # metavars of options that name a model
OVER = option(
    "--over",
    "FIELD=V,V,...",
    "MODEL at each of these values, side by side: d_ff=1024,2048,4*d_model",
)
BATCH = option("--batch", "N", "sequences (default 1)", type=whole_number, default=1)
SEQ = option(
    "--seq",
    "N",
    f"tokens of each sequence; 128k is 128·1,024 (default {SEQ_LEN}, or all that the model has "
    "positions for, if these are fewer)",
    type=tokens,
)
DTYPE = option(
    "--dtype",
    "DTYPE",
    f"of weights and KV cache: {', '.join(DTYPE_BYTES)} (default {Request().dtype})",
    type=dtype,
    default=Request().dtype,
)
WORKLOAD = (
    BATCH,
    SEQ,
    DTYPE,
    option(
        "--source-len",
        "N",
        "tokens that an encoder-decoder reads (default: --seq)",
        type=tokens,
    ),
    option(
        "--prefix",
        "N",
        "first tokens that a prefix-decoder sees both ways (default 0)",
        type=tokens,
        default=0,
    ),
)
INPUT_SHOWN = "its sizes, as in --input 2,16,64, or of tokens --input 2,16:int64"
INPUT = repeated(
    "--input",
    "SIZES",
    "of FILE.py:NAME: an input of these sizes (2,16,64; tokens: 2,16:int64); one for each",
)
DEVICE = option(
    "--device",
    None,
    "with --input: the CPU for a forward that depends on data, with real values (default meta)",
    default="meta",
    choices=("meta", "cpu"),
)
EXCLUSIVE = "formats"  # a group of options of which one at most is given
(JSON,) = grouped(EXCLUSIVE, flag("--json", "print JSON instead of text"))
# The formats of a table, by option.
TABLES = {"markdown": "Markdown", "csv": "CSV", "latex": "LaTeX"}
FORMATS = (
    JSON,
    *(
        Option(
            f"--{name}",
            f"print one table in {title}",
            group=EXCLUSIVE,
            action="store_const",
            const=name,
            dest="table",
        )
        for name, title in TABLES.items()
    ),
)
LANG = option("--lang", "LANG", "en or zh (default: that of the terminal, else en)")


def quantity(known: Iterable[str], more: str = "", otherwise: str = "") -> Option:
    """Declare --quantity; `otherwise` says what is chosen where it is not given."""
    plain = ", ".join(name for name in known if ":" not in name)
    return option(
        "--quantity",
        "NAME",
        f"{plain} (default {otherwise or 'params'}){more}",
        default=None if otherwise else "params",
        words=lambda: known,
    )


WAYS = (
    "; of a training step also run in other ways: activation_bytes:flash:full, "
    "optimizer_bytes:muon, ..."
)


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
    action = option.said.get("action")
    if action == "store_const":
        return bool(value == option.said["const"])
    default = option.said.get("default", False if action == "store_true" else None)
    return value is not None and value not in (default, [], ())


def check_together(
    args: argparse.Namespace,
    options: Sequence[Option],
    apart: Sequence[tuple[str, str]],
    belongs: Sequence[tuple[str, str]],
) -> None:
    """Raise `InputError` for options that exclude each other, or belong to one that is not there.

    Each is written with spaces between names; a positional goes by its metavar.
    """
    given = {
        name: None
        for option in options
        if _is_given(args, option)
        for name in (option.names if option.is_named else (option.said["metavar"],))
    }
    for names, others in apart:
        excluding = [name for name in given if name in names.split()]
        for name in excluding:
            for other in (word for word in given if word in others.split() and word != name):
                raise InputError(f"{name} does not go with {other}; leave one of them out")
    for names, others in belongs:
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
    groups: dict[str, Takes] = {"": parser}
    for option in options:
        if option.group not in groups:
            exclusive = option.group == EXCLUSIVE
            groups[option.group] = (
                parser.add_mutually_exclusive_group()
                if exclusive
                else parser.add_argument_group(option.group)
            )
        groups[option.group].add_argument(*option.names, help=option.help, **option.said)
    args = parser.parse_args(arguments)
    args.run = file.run
    named = [getattr(args, o.dest) for o in options if o.said.get("metavar") in MODEL_WORDS]
    texts = [text for value in named for text in (value if isinstance(value, list) else [value])]
    args.modules = [text for text in texts if text and file_and_name(text)]
    check_together(args, options, getattr(file, "APART", ()), getattr(file, "BELONGS", ()))
    if getattr(file, "TAKES_LIKE", any(option is LIKE_NAME for option in options)):
        take_like(args)
    return args
