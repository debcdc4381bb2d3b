"""Errors that are one line for the person who asked, and somebody else's text made printable."""

from __future__ import annotations

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# Exit codes beside 0.
EXIT_DISAGREE = 1  # two witnesses disagree, or a formula is refuted
EXIT_WRONG_INPUT = 2
EXIT_INTERRUPTED = 130  # what a shell says of a process that Ctrl-C ended
EXIT_BROKEN_PIPE = 141

MAX_DIGITS = 40  # of a whole number as text; no size comes near
MAX_SHOWN = 100  # characters of somebody else's text in a message of ours


class InputError(ValueError):
    """The request or an input is wrong: one line that says where, what and the remedy."""


class NoModel(InputError):
    """A file has none of the keys of a model."""


def missing_library(error: ModuleNotFoundError) -> InputError:
    """Say which library is needed; an error for a module of our own is raised as it is."""
    library = (error.name or "").partition(".")[0]
    if library in ("", "metacount"):
        raise error
    return InputError(f"this needs {library}, which is not installed: pip install {library}")


def shown_value(value: object) -> str:
    """Show `value` in at most 60 characters of one line, whatever it is."""
    try:
        text = " ".join(repr(value).split())
    except (ValueError, RecursionError):  # an integer of over 4300 digits; a list in itself
        return "a value too long to print"
    return text if len(text) <= 60 else text[:57] + "..."


def shown_name(key: object) -> str:
    """Show `key` bare when it could be a field, else as a value."""
    plain = isinstance(key, str) and key.isidentifier() and len(key) <= 60
    return str(key) if plain else shown_value(key)


class SpecError(ValueError):
    """A size or a choice that no model can have: field, rule, value, remedy, in one line.

    Without a remedy of its own: a field without a value is to be set, any other to be left out.
    """

    def __init__(self, field: str, rule: str, value: object, remedy: str = "") -> None:
        remedy = remedy or (f"set {field}" if value is None else f"leave {field} out")
        self.field, self.rule, self.value, self.remedy = field, rule, value, remedy
        shown = shown_value(value)
        super().__init__(f"{field} {rule}: got {shown}; {remedy}")

    def reworded(self, unset: Callable[[str], str], give: Callable[[str], str]) -> SpecError:
        """Return the same error where fields are not left out and set,
        but in the words of another medium.
        """
        import re

        def other(match: re.Match[str]) -> str:
            if match[2]:
                return give(match[2])
            name = self.field if match[1] == "it" else match[1]
            return match[0] if "." in name else unset(name)  # a part of a record is no field

        remedy = re.sub(r"\bleave (\w+) out\b|\bset (\w+)\b", other, self.remedy)
        return type(self)(self.field, self.rule, self.value, remedy)


RELATED = 0.7  # how alike the names of two model types are that have to do with each other


def nearest(word: str, known: Iterable[str], otherwise: str, *, alike: float = 0.57) -> str:
    """Return `did you mean ...` for the known words closest to `word`, or `otherwise`.

    `alike`: from 0 to 1, how much of two words is the same at least.

    >>> nearest("lama", ["llama", "olmo"], "none"), nearest("foo", ["olmo"], "none", alike=0.7)
    ('did you mean llama?', 'none')
    """
    import difflib

    close = difflib.get_close_matches(word[:80].lower(), sorted(known), n=3, cutoff=alike)
    return f"did you mean {', '.join(close)}?" if close else otherwise


def printable(text: object) -> str:
    r"""Put text on one line, without characters that could steer a terminal.

    >>> printable("a\nb\x1b[31m")
    'a\\nb\\x1b[31m'
    """
    plain = str(text)
    if plain.isprintable():
        return plain
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in plain)


def shown(text: object) -> str:
    """Shorten somebody else's text to one printable line."""
    plain = printable(str(text)[: MAX_SHOWN + 1])
    return plain if len(plain) <= MAX_SHOWN else plain[: MAX_SHOWN - 3] + "..."


def interrupted(done: int, total: int, things: str) -> str:
    """Say on stderr how far a command came before Ctrl-C; return the sentence for its text."""
    import sys

    message = f"interrupted after {done} of {total} {things}"
    print(f"metacount: {message}", file=sys.stderr)
    return message
