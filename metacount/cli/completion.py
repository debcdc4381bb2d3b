"""`metacount completion`: a script for a shell, which asks this command what may follow a line."""

from __future__ import annotations

import os
from glob import escape, glob

from metacount.cli.answer import Pieces
from metacount.cli.options import Option, options_of

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    Words = dict[str, str]  # what may be typed, and what it is for

FILES = frozenset(["MODEL", "A", "B", "FILE", "DIR", "RESULTS", "OLD"])  # metavars that take files
LISTS = frozenset(["NAMES", "NAME,..."])  # words with commas between them
OPEN = ("=", "/")  # more is typed after these
# Each asks for the words after the line up to the cursor; one that ends in a space is complete.
SCRIPTS = {
    "bash": r"""# bash completion of metacount
_metacount() {
  local IFS=$'\n'
  COMPREPLY=($(metacount completion bash --line "${COMP_LINE:0:COMP_POINT}" 2>/dev/null))
}
complete -o nospace -F _metacount metacount
""",
    "zsh": r"""#compdef metacount
_metacount() {
  local line="${(j: :)words[1,CURRENT]}"
  local -a all open closed
  all=(${(f)"$(metacount completion zsh --line "$line" 2>/dev/null)"})
  open=(${(M)all:#*[=/]}) closed=(${all:#*[=/]})
  (( $#open )) && compadd -S '' -a open
  (( $#closed )) && compadd -a closed
  return 0
}
if [ "$funcstack[1]" = "_metacount" ]; then _metacount "$@"; else compdef _metacount metacount; fi
""",
    "fish": r"""# fish completion of metacount
complete -c metacount -f -a '(metacount completion fish --line (commandline -cp | string collect))'
""",
}


def run(args: argparse.Namespace) -> Pieces:
    if args.line is None:
        return Pieces(text=SCRIPTS[args.shell])
    current = "" if args.line[-1:].isspace() else args.line.split()[-1]
    before = args.line.split()[1 : None if not current else -1]
    words = {
        word: purpose
        for word, purpose in _following(before, current, args).items()
        if word.startswith(current)
    }
    return Pieces(text="".join(f"{line}\n" for line in _lines(words, current, args.shell)))


def _following(before: Sequence[str], current: str, args: argparse.Namespace) -> Words:
    command = next((word for word in before if not word.startswith("-")), None)
    if command is None:
        return {**args.commands, "--help": "", "--version": ""}
    if command not in args.commands:
        return {}
    options = options_of(command)
    last = next((word for word in reversed(before) if word.startswith("-")), None)
    for taker in (each for each in options if last in each.names):
        if taker.takes and (taker.is_plural or before[-1] == last):
            return _values(taker, current)
    if current.startswith("-"):
        names = {name: o.help for o in options for name in o.names}
        return {"--help": "", "-h": "", **{n: h for n, h in names.items() if n.startswith("-")}}
    return {w: "" for o in options if not o.is_named for w in _values(o, current)}


def _values(option: Option, current: str) -> Words:
    metavar = option.keywords.get("metavar", "")
    start = current[: current.rfind(",") + 1] if metavar in LISTS else ""
    words = {f"{start}{word}": "" for word in option.words()}
    return words | (_files(current) if metavar in FILES else {})


def _files(start: str) -> Words:
    home = os.path.expanduser(start)
    paths = sorted(glob(escape(home) + "*"))
    return {start + path[len(home) :] + "/" * os.path.isdir(path): "" for path in paths}


def _lines(words: Words, current: str, shell: str) -> list[str]:
    if shell == "fish":
        return [
            f"{word}\t{' '.join(purpose.split()).replace('%%', '%')}" if purpose else word
            for word, purpose in words.items()
        ]
    if shell == "zsh":
        return [*words]
    # readline takes what stands after the last = or : for the word
    cut = max(current.rfind("="), current.rfind(":")) + 1
    ends = {word: "" if word.endswith(OPEN) else " " for word in words}
    return [word[cut:].replace(" ", "\\ ") + end for word, end in ends.items()]
