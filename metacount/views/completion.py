"""What can be completed: every command, its options, and the words that may stand after each."""

from __future__ import annotations

from metacount.frozen import frozen

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, TypedDict, Unpack

    from metacount.teaching.claim import Claim

    class Said(TypedDict, total=False):
        """What argparse is told of an option."""

        action: str
        choices: Iterable[object]
        const: object
        default: object
        dest: str
        help: str
        metavar: str
        nargs: str
        required: bool
        type: Callable[[str], object]


MODELS = frozenset(["MODEL", "A", "B"])  # names, or files
# Options of `train` whose words stand in a table of its setup.
TRAINING = {
    "optimizer": "OPTIMIZERS",
    "attention": "ATTENTIONS",
    "checkpointing": "CHECKPOINTINGS",
    "loss": "LOSSES",
}
FILE_METAVARS = MODELS | {"FILE", "DIR", "RESULTS", "OLD"}
LISTS = frozenset(["NAMES", "NAME,..."])  # words with commas between them


@frozen
class Option:
    """One option or positional: its names (none of a positional), and what may stand after it.

    `words`: those known; empty where any text may stand. `takes`: whether anything does; `several`:
    whether more than one word does; `listed`: whether the words have commas between them.
    """

    names: tuple[str, ...]
    help: str
    words: tuple[str, ...]
    takes: bool
    several: bool
    files: bool
    listed: bool


@frozen
class Command:
    """One command: its name, what it is for, its options and its positionals."""

    name: str
    help: str
    options: tuple[Option, ...]
    positionals: tuple[Option, ...]


class Recorder:
    """Takes what a command tells its parser, and remembers it."""

    def __init__(self, command: str) -> None:
        self.command = command
        self.said: list[Option] = [_option(command, ("-h", "--help"), action="help", help="help")]

    def add_argument(self, *names: str, **said: Unpack[Said]) -> None:
        """Remember an option or a positional."""
        self.said.append(_option(self.command, names, **said))

    def add_argument_group(self, *_: object, **__: object) -> Recorder:
        """Return the recorder itself: a group's options are the command's."""
        return self

    add_mutually_exclusive_group = add_argument_group

    def set_defaults(self, **_: object) -> None:
        """Ignore defaults: what is not typed is not completed."""


def described(name: str, summary: str, add_arguments: Callable[[Any], None]) -> Command:
    """Describe what a command adds to a parser."""
    recorder = Recorder(name)
    add_arguments(recorder)
    return Command(
        name=name,
        help=summary,
        options=tuple(one for one in recorder.said if one.names),
        positionals=tuple(one for one in recorder.said if not one.names),
    )


def _option(command: str, names: tuple[str, ...], **said: Unpack[Said]) -> Option:
    metavar, is_option = said.get("metavar", ""), names[0].startswith("-")
    dest = said.get("dest") or names[-1].lstrip("-").replace("-", "_")
    words = said.get("choices") or known_words(command, dest, metavar)
    return Option(
        names=names if is_option else (),
        help=" ".join(said.get("help", "").replace("%%", "%").split()),
        words=tuple(map(str, words)),
        takes=said.get("action", "store") in ("store", "append"),
        several=said.get("nargs") in ("+", "*"),
        files=metavar in FILE_METAVARS,
        listed=metavar in LISTS,
    )


def known_words(command: str, dest: str, metavar: str) -> Iterable[str]:
    """Find the words that may stand for a metavar, or for an option of a command."""
    special: dict[tuple[str, str], Callable[[], Iterable[str]]] = {
        ("claims", "ids"): lambda: (claim.id for claim in _claims()),
        ("claims", "topic"): lambda: dict.fromkeys(claim.topic for claim in _claims()),
        ("claims", "verdict"): _verdicts,
        ("models", "family"): _families,
        ("tree", "columns"): _tree_columns,
        ("count", "columns"): _count_columns,
        ("models", "columns"): _count_columns,
        ("bench", "model"): _models,
    }
    if (command, dest) in special:
        return special[command, dest]()
    if command == "train" and dest in TRAINING:
        return _training(dest)
    if dest == "quantity":
        from metacount.textbook.closed_form import COUNTS

        return COUNTS
    if metavar == "DTYPE":
        from metacount.spec import DTYPE_BYTES

        return DTYPE_BYTES
    if metavar in MODELS or dest == "like":
        return _models()
    return _settings() if metavar == "FIELD=VALUE" else ()


def _training(dest: str) -> Iterable[str]:
    from metacount.training import setup

    known: dict[str, str] = getattr(setup, TRAINING[dest])
    return known


def _claims() -> tuple[Claim, ...]:
    from metacount.teaching.claims import claims

    return claims()


def _verdicts() -> Iterable[str]:
    from metacount.teaching.claim import VERDICTS

    return VERDICTS


def _families() -> Iterable[str]:
    from metacount.catalog import entries

    return dict.fromkeys(entry.family for entry in entries())


def _tree_columns() -> Iterable[str]:
    from metacount.views.tree_columns import COLUMNS

    return COLUMNS


def _count_columns() -> Iterable[str]:
    from metacount.figures import COUNTED
    from metacount.spec.model import FIELDS
    from metacount.views.columns import BY_ROLE, ROLES

    return (*COUNTED, *FIELDS, *(f"{kind}.{role}" for kind in BY_ROLE for role in ROLES))


def _models() -> Iterable[str]:
    from metacount.catalog import ids

    return ids()


def _settings() -> Iterable[str]:
    """Yield `FIELD=VALUE` for each value of a field that has few, `FIELD=` for other fields."""
    from metacount.spec.model import FIELDS

    for name, field in FIELDS.items():
        values = ("true", "false") if field.takes == "flag" else field.choices
        yield from (f"{name}={value}" for value in values) if values else (f"{name}=",)
