"""Completion scripts for shells, written from the parsers of all commands.

The words are those of the version that writes the script: no process is started to complete one.
"""

from __future__ import annotations

import argparse

from metacount.frozen import frozen

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from metacount.claims.finding import Claim

FILE_METAVARS = frozenset(["FILE", "DIR", "RESULTS", "OLD"])
GLOBAL = ("--help", "--version")  # without a command
LISTS = frozenset(["NAMES"])  # words with commas between them


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


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """The completion script of a shell for a parser of commands."""
    return WRITERS[shell](tuple(commands_of(parser)))


def commands_of(parser: argparse.ArgumentParser) -> Iterator[Command]:
    """Every command below a parser."""
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            continue
        helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for name, below in action.choices.items():
            found = [_option(name, one) for one in below._actions if one.help != argparse.SUPPRESS]
            yield Command(
                name=name,
                help=helps[name],
                options=tuple(one for one in found if one.names),
                positionals=tuple(one for one in found if not one.names),
            )


def _option(command: str, action: argparse.Action) -> Option:
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    words = tuple(map(str, action.choices or known_words(command, action.dest, metavar)))
    return Option(
        names=tuple(action.option_strings),
        help=" ".join((action.help or "").replace("%%", "%").split()),
        words=words,
        takes=action.nargs != 0,
        several=action.nargs in ("+", "*"),
        files=metavar in FILE_METAVARS,
        listed=metavar in LISTS,
    )


def known_words(command: str, dest: str, metavar: str) -> Iterable[str]:
    """The words that may stand for a metavar, or for an option of a command."""
    special: dict[tuple[str, str], Callable[[], Iterable[str]]] = {
        ("claims", "ids"): lambda: (claim.id for claim in _claims()),
        ("claims", "topic"): lambda: dict.fromkeys(claim.topic for claim in _claims()),
        ("claims", "verdict"): _verdicts,
        ("models", "family"): _families,
        ("tree", "columns"): _tree_columns,
        ("bench", "model"): _models,
    }
    if (command, dest) in special:
        return special[command, dest]()
    if dest == "quantity":
        from metacount.textbook.closed_form import QUANTITIES

        return QUANTITIES
    if metavar == "DTYPE":
        from metacount.spec import DTYPE_BYTES

        return DTYPE_BYTES
    if metavar in ("MODEL", "A", "B"):
        return _models()
    return _settings() if metavar == "FIELD=VALUE" else ()


def _claims() -> tuple[Claim, ...]:
    from metacount.claims import claims

    return claims()


def _verdicts() -> Iterable[str]:
    from metacount.claims.finding import VERDICTS

    return VERDICTS


def _families() -> Iterable[str]:
    from metacount.catalog import entries

    return dict.fromkeys(entry.family for entry in entries())


def _tree_columns() -> Iterable[str]:
    from metacount.views.tree_columns import COLUMNS

    return COLUMNS


def _models() -> Iterable[str]:
    from metacount.catalog import ids

    return ids()


def _settings() -> Iterable[str]:
    """`FIELD=` for each field, and with each value where these are few."""
    from metacount.spec.flat import FIELDS

    for name, field in FIELDS.items():
        values = ("true", "false") if field.takes == "flag" else field.choices
        yield from (f"{name}={value}" for value in values) if values else (f"{name}=",)


def quoted(text: str) -> str:
    """A text in single quotes, for any of the shells.

    >>> quoted("Shazeer's")
    "'Shazeer'\\\\''s'"
    """
    return "'" + text.replace("'", "'\\''") + "'"


def _words(words: Iterable[str]) -> str:
    return "\n".join(words)


def _cases(commands: tuple[Command, ...]) -> Iterator[tuple[str, Option]]:
    """`command option` for each option that takes something."""
    for command in commands:
        for option in command.options:
            if option.takes:
                yield "|".join(quoted(f"{command.name} {name}") for name in option.names), option


def _assigned(option: Option) -> str:
    """What a script remembers of the words that may stand somewhere."""
    said = f"words={quoted(_words(option.words))}"
    if option.files:
        said += " files=1"
    return said + (" list=1" if option.listed else "")


def _choices(commands: tuple[Command, ...]) -> list[str]:
    """The part that bash and zsh share: `words` by the command, the last option and its place."""
    lines = ['  case "$command $option" in']
    for case, option in _cases(commands):
        after = "" if option.several else ' [ "$previous" = "$option" ] &&'
        lines.append(f"    {case})")
        lines.append(f"     {after} {{ {_assigned(option)} taken=1; }} ;;")
    lines += ["  esac", '  if [ -z "$taken" ]; then', '    case "$command" in']
    for command in commands:
        names = [name for option in command.options for name in option.names]
        words = dict.fromkeys(word for one in command.positionals for word in one.words)
        files = any(set(one.words) & set(_models()) for one in command.positionals)
        lines.append(f"      {quoted(command.name)})")
        lines.append(f"        options={quoted(_words(names))}")
        lines.append(f"        words={quoted(_words(words))}{' files=1' if files else ''} ;;")
    names = [command.name for command in commands]
    lines += [f"      '') words={quoted(_words(names))} options={quoted(_words(GLOBAL))} ;;"]
    lines.append("    esac")
    return [*lines, '    case "$current" in -*) words=$options files= ;; esac', "  fi"]


BASH = """# bash completion of metacount
_metacount() {
  local line=${COMP_LINE:0:COMP_POINT} current before previous= command= option= word
  local words= options= files= list= taken= prefix= IFS=$' \\t\\n'
  current=${line##*[[:space:]]}
  before=${line%"$current"}
  set -f
  for word in $before; do
    previous=$word
    case "$word" in
      -*) option=$word ;;
      *) [ -z "$command" ] && [ "$word" != "${COMP_WORDS[0]}" ] && command=$word ;;
    esac
  done
  set +f
@CHOICES@
  [ -n "$list" ] && case "$current" in *,*) prefix=${current%,*}, ;; esac
  IFS=$'\\n'
  COMPREPLY=($(compgen -W "$words" -- "${current#"$prefix"}"))
  [ -n "$prefix" ] && COMPREPLY=("${COMPREPLY[@]/#/$prefix}")
  if [ -n "$files" ]; then
    compopt -o filenames 2>/dev/null
    COMPREPLY+=($(compgen -f -- "$current"))
  fi
  # readline takes what stands after the last = or : for the word
  case "$current" in
    *[=:]*) COMPREPLY=("${COMPREPLY[@]#"${current%"${current##*[=:]}"}"}") ;;
  esac
  COMPREPLY=("${COMPREPLY[@]// /\\\\ }")
  case "${COMPREPLY[*]}" in *=) compopt -o nospace 2>/dev/null ;; esac
}
complete -F _metacount metacount
"""

ZSH = """#compdef metacount
_metacount() {
  local current=$words[CURRENT] previous= command= option= word
  local -a before=(${words[2,CURRENT-1]})
  local words= options= files= list= taken= prefix=
  for word in $before; do
    previous=$word
    case "$word" in
      -*) option=$word ;;
      *) [ -z "$command" ] && command=$word ;;
    esac
  done
@CHOICES@
  if [ -n "$list" ]; then compset -P '*,'; fi
  local -a all=(${(f)words}) open closed
  open=(${(M)all:#*=}) closed=(${all:#*=})
  (( $#open )) && compadd -S '' -a open
  (( $#closed )) && compadd -a closed
  [ -n "$files" ] && _files
  return 0
}
if [ "$funcstack[1]" = "_metacount" ]; then _metacount "$@"; else compdef _metacount metacount; fi
"""


def _bash(commands: tuple[Command, ...]) -> str:
    return BASH.replace("@CHOICES@", "\n".join(_choices(commands)))


def _zsh(commands: tuple[Command, ...]) -> str:
    return ZSH.replace("@CHOICES@", "\n".join(_choices(commands)))


def _fish(commands: tuple[Command, ...]) -> str:
    """A line for each option; fish quotes inside single quotes by a backslash."""
    lines = ["# fish completion of metacount", "complete -c metacount -f"]
    lines += [f"complete -c metacount -n __fish_use_subcommand -l {name[2:]}" for name in GLOBAL]
    for command in commands:
        lines.append(f"complete -c metacount -n __fish_use_subcommand -a {command.name} "
                     f"-d {_in_fish(command.help)}")  # fmt: skip
    for command in commands:
        start = f"complete -c metacount -n '__fish_seen_subcommand_from {command.name}'"
        for option in command.options:
            parts = [start]
            parts += [f"-l {name[2:]}" if name[:2] == "--" else f"-s {name[1:]}"
                      for name in option.names]  # fmt: skip
            parts += [f"-d {_in_fish(option.help)}"]
            if option.takes:
                parts.append("-r" if option.files else "-x")
                if option.words:
                    parts.append(f"-a {_in_fish(' '.join(_escaped(option.words)))}")
            lines.append(" ".join(parts))
        for one in command.positionals:
            if one.words:
                lines.append(f"{start} -F -a {_in_fish(' '.join(_escaped(one.words)))}")
    return "\n".join(lines) + "\n"


def _escaped(words: Iterable[str]) -> Iterator[str]:
    return (word.replace("\\", "\\\\").replace(" ", "\\ ") for word in words)


def _in_fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


WRITERS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
