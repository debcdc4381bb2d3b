"""`metacount completion`: a script that completes commands, options and names in a shell.

The words are those of the version that writes the script: no process is started to complete one.
"""

from __future__ import annotations

from functools import partial

from metacount.cli.answer import Pieces
from metacount.cli.options import Option, option

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator, Sequence

    Command = tuple[str, str, Sequence["Word"]]  # its name, what it is for, its options

SHELLS = ("bash", "zsh", "fish")
LINES = "\n"
GLOBAL = ("--help", "--version")  # without a command
FILES = frozenset(["MODEL", "A", "B", "FILE", "DIR", "RESULTS", "OLD"])  # metavars that take files
LISTS = frozenset(["NAMES", "NAME,..."])  # words with commas between them
HELP = Option(names=("-h", "--help"), help="help", said={"action": "help"})


def options() -> Sequence[Option]:
    return (
        option(
            "shell",
            "SHELL",
            'bash, zsh or fish; to try it: eval "$(metacount completion bash)" (zsh the same), '
            "metacount completion fish | source",
            choices=SHELLS,
        ),
    )


def run(args: argparse.Namespace) -> Pieces:
    commands = tuple(
        (name, said, tuple(map(Word, (HELP, *args.file_of(name).options()))))
        for name, said in args.commands.items()
    )
    return Pieces(text=WRITERS[args.shell](commands))


class Word:
    """What may be typed for an option or a positional, and what may stand after it.

    `words`: those known; none where any text may stand. `takes`: whether anything does; `several`:
    whether more than one word does; `listed`: whether the words have commas between them.
    """

    def __init__(self, option: Option) -> None:
        from metacount.cli.options import WORDS

        said = option.said
        metavar = said.get("metavar", "")
        self.help = " ".join(option.help.replace("%%", "%").split())
        self.names = option.names if option.names[0].startswith("-") else ()
        known = said.get("choices") or (option.words or WORDS.get(metavar, tuple))()
        self.words = tuple(map(str, known))
        self.takes = said.get("action", "store") in ("store", "append")
        self.several = said.get("nargs") in ("+", "*")
        self.files, self.listed = metavar in FILES, metavar in LISTS


def quoted(text: str) -> str:
    """Put a text in single quotes, for any of the shells.

    >>> quoted("Shazeer's")
    "'Shazeer'\\\\''s'"
    """
    return "'" + text.replace("'", "'\\''") + "'"


def _cases(commands: Sequence[Command]) -> Iterator[tuple[str, Word]]:
    """Yield `command option` for each option that takes something, and the option."""
    for command, _, words in commands:
        for word in words:
            if word.takes and word.names:
                yield "|".join(quoted(f"{command} {name}") for name in word.names), word


def _assigned(option: Word) -> str:
    """Write what a script remembers of an option: its words, whether files, whether a list."""
    said = f"words={quoted(LINES.join(option.words))}"
    if option.files:
        said += " files=1"
    return said + (" list=1" if option.listed else "")


def _choices(commands: Sequence[Command]) -> list[str]:
    """Write the part bash and zsh share: `words` by the command, the last option and its place."""
    lines = ['  case "$command $option" in']
    for case, word in _cases(commands):
        after = "" if word.several else ' [ "$previous" = "$option" ] &&'
        lines.append(f"    {case})")
        lines.append(f"     {after} {{ {_assigned(word)} taken=1; }} ;;")
    lines += ["  esac", '  if [ -z "$taken" ]; then', '    case "$command" in']
    for command, _, given in commands:
        names = [name for word in given for name in word.names]
        words = dict.fromkeys(text for word in given if not word.names for text in word.words)
        files = any(word.files for word in given if not word.names)
        lines.append(f"      {quoted(command)})")
        lines.append(f"        options={quoted(LINES.join(names))}")
        lines.append(f"        words={quoted(LINES.join(words))}{' files=1' if files else ''} ;;")
    names = [command for command, *_ in commands]
    lines.append("      '')")
    lines.append(f"        words={quoted(LINES.join(names))}")
    lines.append(f"        options={quoted(LINES.join(GLOBAL))} ;;")
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


def _with_choices(script: str, commands: Sequence[Command]) -> str:
    return script.replace("@CHOICES@", "\n".join(_choices(commands)))


def _fish(commands: Sequence[Command]) -> str:
    """Write a line for each option; fish quotes inside single quotes by a backslash."""
    lines = ["# fish completion of metacount", "complete -c metacount -f"]
    lines += [f"complete -c metacount -n __fish_use_subcommand -l {name[2:]}" for name in GLOBAL]
    for command, said, _ in commands:
        lines.append(
            f"complete -c metacount -n __fish_use_subcommand -a {command} -d {_in_fish(said)}"
        )
    for command, _, words in commands:
        start = f"complete -c metacount -n '__fish_seen_subcommand_from {command}'"
        for given in (word for word in words if word.names):
            parts = [start]
            parts += [
                f"-l {name[2:]}" if name[:2] == "--" else f"-s {name[1:]}" for name in given.names
            ]
            parts += [f"-d {_in_fish(given.help)}"]
            if given.takes:
                parts.append("-r" if given.files else "-x")
                if given.words:
                    parts.append(f"-a {_in_fish(' '.join(_escaped(given.words)))}")
            lines.append(" ".join(parts))
        for one in words:
            if one.words and not one.names:
                lines.append(f"{start} -F -a {_in_fish(' '.join(_escaped(one.words)))}")
    return "\n".join(lines) + "\n"


def _escaped(words: Iterable[str]) -> Iterator[str]:
    return (word.replace("\\", "\\\\").replace(" ", "\\ ") for word in words)


def _in_fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


WRITERS: dict[str, Callable[[Sequence[Command]], str]] = {
    "bash": partial(_with_choices, BASH),
    "zsh": partial(_with_choices, ZSH),
    "fish": _fish,
}
