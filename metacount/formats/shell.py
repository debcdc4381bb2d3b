"""The options that a shell script, or a file of arguments, gives a program: read, never run."""

from __future__ import annotations

import re

from metacount.errors import InputError

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_CHARACTERS = 2**18
MAX_WORDS = 2**15
BREAKS = ";&|"  # between commands

ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z_0-9]*)\+?=(.*)", re.DOTALL)
VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z_0-9]*)\}|([A-Za-z_][A-Za-z_0-9]*))")
OPTION = re.compile(r"--?[A-Za-z][A-Za-z_0-9-]*(?:=|$)")


def options(text: str, where: str) -> dict[str, list[list[str]]]:
    """Read every option of a text, with the words that follow it each time; variables are put in.

    >>> options("ARGS='--num-layers $N --swiglu'; N=24 # --not-this", "here")
    {'--num-layers': [['24']], '--swiglu': [[]]}
    """
    if len(text) > MAX_CHARACTERS:
        raise InputError(
            f"{where}: has {len(text)} characters; a script of arguments has at most "
            f"{MAX_CHARACTERS}"
        )
    words, variables = _words(text, where)
    found: dict[str, list[list[str]]] = {}
    following: list[str] = []
    for word in words:
        if not word.strip(BREAKS):
            following = []
        elif not OPTION.match(word):
            following.append(_put_in(word, variables))
        else:
            name, equals, value = word.partition("=")
            following = [_put_in(value, variables)] if equals else []
            found.setdefault(name, []).append(following)
    return found


def _words(text: str, where: str) -> tuple[list[str], dict[str, str | None]]:
    """Split a script into words, those in quotes apart too,
    and its variables: None where several.
    """
    import shlex

    lexer = shlex.shlex(text.replace("\\\n", " "), posix=True, punctuation_chars=BREAKS)
    lexer.whitespace_split = True
    words: list[str] = []
    variables: dict[str, str | None] = {}
    try:
        for word in lexer:
            words += _apart(word, variables)
            if len(words) > MAX_WORDS:
                raise InputError(f"{where}: has more than {MAX_WORDS} words; no arguments have")
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{where}: line {lexer.lineno}: {str(error).lower()}; close it") from None
    return words, variables


def _apart(word: str, variables: dict[str, str | None]) -> Iterable[str]:
    """Split a word of the script into the words of a command: `ARGS=(` and quotes fall away."""
    assigned = ASSIGNED.fullmatch(word)
    if assigned:
        name, word = assigned.groups()
        value = word.strip()
        if value.partition(" ")[0] == value and not value.startswith("("):
            variables[name] = value if variables.get(name, value) == value else None
            return ()
    return word.strip("()").split()


def _put_in(word: str, variables: dict[str, str | None]) -> str:
    """Replace in the word every variable that the script gives one plain value."""
    found = VARIABLE.fullmatch(word)
    value = variables.get(found[1] or found[2]) if found else None
    return word if value is None else value
