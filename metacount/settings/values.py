"""What a value in `--set` says: a value of the field's type, or arithmetic over other sizes."""

from __future__ import annotations

from metacount.errors import MAX_DIGITS, InputError, shown
from metacount.settings.names import MULTIPLE_OF, known

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.spec.field import Field

# The gated family: what is between its matrices, by the name it goes under.
GATED = {
    "swiglu": "silu",
    "geglu": "gelu",
    "reglu": "relu",
    "glu": "sigmoid",
    "bilinear": "identity",
}
# Numbers of positions, in which 128k is 128 · 1,024.
LENGTHS = ("window", "n_positions", "max_distance")
TIMES = {"k": 1024, "m": 1024**2}
DTYPES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "float64": "fp64",
    "double": "fp64",
}


class Arithmetic:
    """A size written as arithmetic over others, read and not yet computed."""

    __slots__ = ("text", "tree", "words")

    def __init__(self, text: str) -> None:
        from metacount.algebra.text import read

        formula = read(text)
        self.text, self.tree, self.words = text, formula.tree, formula.names


def length(text: str) -> int | None:
    """Read a number of positions with k or m behind it, which are 1,024 and its square; else None.

    >>> length("128k"), length("1M"), length("4096")
    (131072, 1048576, None)
    """
    digits, times = text[:-1].strip(), TIMES.get(text[-1:].lower())
    if times is None or not digits.isdecimal() or len(digits) > MAX_DIGITS:
        return None
    return int(digits) * times


BYTES = {"gib": 2**30, "mib": 2**20, "tib": 2**40, "gb": 10**9, "mb": 10**6, "tb": 10**12}


def bytes_size(text: str) -> int:
    """Read a number of bytes with its unit: GiB is 2^30 of them, GB is 10^9.

    >>> bytes_size("80GiB"), bytes_size("141 GB")
    (85899345920, 141000000000)
    """
    digits = text.strip().rstrip("".join(BYTES) + "".join(BYTES).upper()).strip()
    unit = BYTES.get(text.strip()[len(digits) :].strip().lower())
    if unit is None or not digits.isascii() or not digits.isdigit() or len(digits) > 9:
        raise InputError(
            f"a size of memory is a whole number and GiB or GB, as in 80GiB: got '{shown(text)}'"
        )
    return int(digits) * unit


def dtype(text: str) -> str:
    """Return a dtype under our name for it.

    >>> dtype("bfloat16"), dtype("fp8")
    ('bf16', 'fp8')
    """
    word = text.lower().removeprefix("torch.")
    return DTYPES.get(word, word)


def value_of(field: Field, name: str, text: str) -> object:
    """Read the value that `text` gives the field that was called `name`."""
    optional = field.optional or field.lacking
    lower = text.lower()
    if optional and lower in ("none", "null"):
        return None
    if field.takes == "object":
        raise InputError(f"--set {name} takes none only: write it in a model's file")
    if field.takes == "flag":
        return flag(name, text)
    if field.takes in ("choice", "pattern"):
        return lower if field.takes == "choice" else text
    return _whole(field, name, text) if field.takes == "whole" else _number(field, name, text)


def flag(name: str, text: str) -> bool:
    """Read true or false."""
    if text.lower() not in ("true", "false"):
        raise InputError(f"--set {name} must be true or false: got '{shown(text)}'")
    return text.lower() == "true"


def _whole(field: Field, name: str, text: str) -> int | Arithmetic:
    found = plain(text)
    if found is not None:
        return found
    found = length(text)
    if found is not None and field.name not in LENGTHS:
        thousands = int(text[:-1]) * {"k": 10**3, "m": 10**6}[text[-1].lower()]
        raise InputError(
            f"--set {name}: k and m are powers of 1,024 in lengths only; write "
            f"{thousands} or {found}: got '{shown(text)}'"
        )
    if found is not None:
        return found
    if _is_arithmetic(text):
        try:
            return Arithmetic(text)
        except InputError as error:
            raise InputError(f"--set {name}: {error}") from None
    rule = "a whole number" + (", or none" if field.optional or field.lacking else "")
    raise InputError(
        f"--set {name} must be {rule}, or arithmetic over sizes such as 4*d_model: "
        f"got '{shown(text)}'"
    )


def _is_arithmetic(text: str) -> bool:
    """Tell whether somebody means arithmetic:
    there is a sign in it, or it is the name of a size.
    """
    return any(sign in text[1:] for sign in "+-*/%(·×^") or known(text.lstrip("+-"))


def plain(text: str) -> int | None:
    """Read a whole number in digits; else None."""
    try:
        return int(text) if len(text) <= MAX_DIGITS else None
    except ValueError:
        return None


def _number(field: Field, name: str, text: str) -> float:
    try:
        if len(text) > MAX_DIGITS:
            raise ValueError
        return float(text)
    except ValueError:
        rule = "a number" + (", or none" if field.optional or field.lacking else "")
        raise InputError(f"--set {name} must be {rule}: got '{shown(text)}'") from None


def multiple(text: str) -> int:
    """Read the number that widths given as arithmetic are rounded up to a multiple of."""
    found = plain(text)
    if found is None or not 1 <= found <= 2**20:
        raise InputError(
            f"--set {MULTIPLE_OF} must be a whole number from 1 to {2**20}: got '{shown(text)}'"
        )
    return found
