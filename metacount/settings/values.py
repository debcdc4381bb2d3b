"""What a value in `--set` says: a value of the field's type, or arithmetic over other sizes."""

from __future__ import annotations

from metacount.errors import MAX_DIGITS, InputError, nearest, shown
from metacount.spec import FIELDS
from metacount.spec.legend import MODEL_TERMS, SWITCHES, ours
from metacount.spec.model import every_path

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Mapping

    from metacount.spec import ModelSpec
    from metacount.spec.field import Field


# The gated family: what is between its matrices, by the name it goes under.
GATED = {"swiglu": "silu", "geglu": "gelu", "reglu": "relu", "glu": "sigmoid"}
GATED |= {"bilinear": "identity"}
# Numbers of positions, in which 128k is 128 · 1,024.
LENGTHS = ("window", "n_positions", "max_distance")
TIMES = {"k": 1024, "m": 1024**2}
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16"}
DTYPES |= {"float32": "fp32", "float": "fp32", "float64": "fp64", "double": "fp64"}


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
    number = plain(text)
    if number is not None:
        return number
    number = length(text)
    if number is not None and field.name not in LENGTHS:
        thousands = int(text[:-1]) * {"k": 10**3, "m": 10**6}[text[-1].lower()]
        raise InputError(
            f"--set {name}: k and m are powers of 1,024 in lengths only; write "
            f"{thousands} or {number}: got '{shown(text)}'"
        )
    if number is not None:
        return number
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
    number = plain(text)
    if number is None or not 1 <= number <= 2**20:
        raise InputError(
            f"--set {MULTIPLE_OF} must be a whole number from 1 to {2**20}: got '{shown(text)}'"
        )
    return number


# One switch for all of them: a bias on every matrix of the blocks that this model can have one on.
BIAS = "bias"
QKV_BIAS = SWITCHES["q_bias"]  # of queries, keys and values
ATTENTION_BIASES = ("q_bias", "k_bias", "v_bias", "o_bias")
MULTIPLE_OF = "multiple_of"  # what a width given as arithmetic is rounded up to


def meant(name: str) -> tuple[str, ...]:
    """Return the flat names, or one path, that `name` may mean; several where others do not agree.

    >>> meant("h_kv"), meant("num_key_value_heads"), meant("tie_word_embeddings")
    (('n_kv_heads',), ('n_kv_heads',), ('tie_embeddings',))
    >>> meant("intermediate_size")  # of a dense block, or of an expert
    ('d_ff', 'd_ff_expert')
    """
    if name in FIELDS or name in every_path():
        return (name,)
    names = _spelled(name)
    if names:
        return names
    words = [*FIELDS, *every_path()] if "." in name else [*FIELDS, *_elsewhere()]
    remedy = nearest(name, _about_as_near(name, words), "see `metacount models --fields`")
    raise InputError(f"--set: '{shown(name)}' is not a field of a model; {remedy}")


def _about_as_near(name: str, words: list[str]) -> list[str]:
    """List the words that are hardly less like `name` than the nearest of all: there are many."""
    from difflib import SequenceMatcher

    like = {word: SequenceMatcher(None, word, name[:80].lower()).ratio() for word in words}
    return [word for word, ratio in like.items() if ratio > max(like.values()) - 0.1]


def known(name: str) -> bool:
    """Tell whether `name` means a field."""
    return name in FIELDS or bool(_spelled(name))


def _spelled(name: str) -> tuple[str, ...]:
    names = tuple(term.name for term in MODEL_TERMS if term.letter == name)
    names = names or tuple(word for word in ours(name) if word in FIELDS)
    return names or tuple(
        n for n, words in SWITCHES.items() if name in words and words is not QKV_BIAS
    )


def _elsewhere() -> list[str]:
    words = [word for term in MODEL_TERMS for word in term.elsewhere]
    return words + [word for spellings in SWITCHES.values() for word in spellings]


def field_of(name: str) -> Field:
    """Return the declaration of what `name` means; the first, where it may mean several alike."""
    first = meant(name)[0]
    return FIELDS.get(first) or every_path()[first]


def flat_name(spec: ModelSpec, typed: str, paths: Mapping[str, str]) -> str:
    """Return the one flat name that `typed` means in this model,
    whose `paths` lead to flat names.
    """
    names = meant(typed)
    if len(names) > 1:
        present = [name for name in names if getattr(spec, name)]
        names = tuple(present) if len(present) == 1 else names
    if len(names) > 1:
        raise InputError(f"--set: {shown(typed)} is {' or '.join(names)} here; say which")
    (name,) = names
    if name in FIELDS:
        return name
    if name not in paths:
        remedy = nearest(name, paths, "see `metacount models --fields`")
        raise InputError(f"--set: this model has no {shown(name)}; {remedy}")
    stack, _, below = name.partition(".")
    if spec.has_encoder and stack in ("encoder", "decoder") and below != "n_layers":
        raise InputError(
            f"--set {name}: encoder and decoder are made alike; set {paths[name]}, which is of both"
        )
    return paths[name]


def biases(spec: ModelSpec, flat: Mapping[str, object]) -> tuple[str, ...]:
    """List the biases that matrices of this model's blocks can have,
    with other values of `flat`.
    """
    value = {**spec.to_dict(), **flat}
    of_attention = ATTENTION_BIASES if value["attention"] == "gqa" else ("mla_bias",)
    return (
        *of_attention,
        *(("ffn_bias",) if value["d_ff"] is not None else ()),
        *(("expert_bias",) if value["n_experts"] is not None else ()),
    )
