"""Completion scripts for shells, written from what every command tells its parser.

The words are those of the version that writes the script: no process is started to complete one.
"""

from __future__ import annotations

from metacount.views.completion import Command, Option, described

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator

LINES = "\n"
GLOBAL = ("--help", "--version")  # without a command


def script(
    shell: str, commands: Iterable[tuple[str, str, Callable[[argparse.ArgumentParser], None]]]
) -> str:
    """Write a shell's completion script; a command is its name, what it is for, its options."""
    return WRITERS[shell](tuple(described(*command) for command in commands))


def quoted(text: str) -> str:
    """Put a text in single quotes, for any of the shells.

    >>> quoted("Shazeer's")
    "'Shazeer'\\\\''s'"
    """
    return "'" + text.replace("'", "'\\''") + "'"


def _cases(commands: tuple[Command, ...]) -> Iterator[tuple[str, Option]]:
    """Yield `command option` for each option that takes something, and the option."""
    for command in commands:
        for option in command.options:
            if option.takes:
                yield "|".join(quoted(f"{command.name} {name}") for name in option.names), option


def _assigned(option: Option) -> str:
    """Write what a script remembers of an option: its words, whether files, whether a list."""
    said = f"words={quoted(LINES.join(option.words))}"
    if option.files:
        said += " files=1"
    return said + (" list=1" if option.listed else "")


def _choices(commands: tuple[Command, ...]) -> list[str]:
    """Write the part bash and zsh share: `words` by the command, the last option and its place."""
    lines = ['  case "$command $option" in']
    for case, option in _cases(commands):
        after = "" if option.several else ' [ "$previous" = "$option" ] &&'
        lines.append(f"    {case})")
        lines.append(f"     {after} {{ {_assigned(option)} taken=1; }} ;;")
    lines += ["  esac", '  if [ -z "$taken" ]; then', '    case "$command" in']
    for command in commands:
        names = [name for option in command.options for name in option.names]
        words = dict.fromkeys(word for one in command.positionals for word in one.words)
        files = any(one.files for one in command.positionals)
        lines.append(f"      {quoted(command.name)})")
        lines.append(f"        options={quoted(LINES.join(names))}")
        lines.append(f"        words={quoted(LINES.join(words))}{' files=1' if files else ''} ;;")
    names = [command.name for command in commands]
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


def _bash(commands: tuple[Command, ...]) -> str:
    return BASH.replace("@CHOICES@", "\n".join(_choices(commands)))


def _zsh(commands: tuple[Command, ...]) -> str:
    return ZSH.replace("@CHOICES@", "\n".join(_choices(commands)))


def _fish(commands: tuple[Command, ...]) -> str:
    """Write a line for each option; fish quotes inside single quotes by a backslash."""
    lines = ["# fish completion of metacount", "complete -c metacount -f"]
    lines += [f"complete -c metacount -n __fish_use_subcommand -l {name[2:]}" for name in GLOBAL]
    for command in commands:
        lines.append(
            f"complete -c metacount -n __fish_use_subcommand -a {command.name} "
            f"-d {_in_fish(command.help)}"
        )
    for command in commands:
        start = f"complete -c metacount -n '__fish_seen_subcommand_from {command.name}'"
        for option in command.options:
            parts = [start]
            parts += [
                f"-l {name[2:]}" if name[:2] == "--" else f"-s {name[1:]}" for name in option.names
            ]
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
