"""The fields that a name in `--set` means: ours, a path, a letter, or how others call it."""

from __future__ import annotations

from metacount.errors import InputError, nearest, shown
from metacount.spec import FIELDS
from metacount.spec.legend import MODEL_TERMS, SWITCHES, ours
from metacount.spec.model import every_path

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Mapping

    from metacount.spec import ModelSpec
    from metacount.spec.field import Field

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
    found = _spelled(name)
    if found:
        return found
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
    """Return the fields of a letter, or of a word of others."""
    found = tuple(term.name for term in MODEL_TERMS if term.letter == name)
    found = found or tuple(word for word in ours(name) if word in FIELDS)
    return found or tuple(
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
    found = meant(typed)
    if len(found) > 1:
        here = [name for name in found if getattr(spec, name)]
        found = tuple(here) if len(here) == 1 else found
    if len(found) > 1:
        raise InputError(f"--set: {shown(typed)} is {' or '.join(found)} here; say which")
    (name,) = found
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
