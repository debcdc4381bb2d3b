"""A restated formula at a model: its terms, their values, and the value by its convention."""

from __future__ import annotations

from fractions import Fraction
from functools import cache, lru_cache

from metacount.algebra.numeric import at
from metacount.algebra.text import read
from metacount.audit.names import Absent, Place, Structure, reference
from metacount.errors import InputError
from metacount.spec import DTYPE_BYTES
from metacount.spec.rules import beyond_branches
from metacount.spec.stack import BESIDE
from metacount.teaching.texts import computed

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from typing import Any

    from metacount.algebra.text import Formula as Written
    from metacount.audit.record import Formula, Term
    from metacount.spec import ModelSpec, Workload

Case = tuple["ModelSpec", "Workload"]
SPOKEN_OF = "a model of one stack with attention in every layer and no indexer"


@cache
def written(text: str) -> Written:
    """Parse a text of the data; the same text is parsed once."""
    return read(text)


def holds(condition: str, spec: ModelSpec) -> bool:
    """Tell whether a condition of the data is true of a model.

    >>> from metacount.catalog import entry
    >>> holds("kind == 'decoder' and not is_moe", entry("mixtral-8x7b").spec())
    False
    """
    return condition == "True" or computed(condition, Structure(spec)) is True


def outside(spec: ModelSpec) -> str:
    """Say why no formula of the audit speaks of such a model; empty where they do.

    >>> from metacount.catalog import entry
    >>> outside(entry("t5-small").spec())
    'an encoder-decoder has tokens of two kinds, and an audited formula one'
    >>> outside(entry("jamba-1.5-mini").spec())
    'an audited formula is of attention and a feed-forward in every layer'
    >>> outside(entry("deepseek-v3.2").spec())
    'an audited formula knows no indexer'
    >>> outside(entry("llama-7b").spec())
    ''
    """
    if spec.has_encoder:
        return "an encoder-decoder has tokens of two kinds, and an audited formula one"
    if BESIDE in spec.ffn_pattern:
        return "an audited formula knows no experts beside a feed-forward"
    if not spec.last_stack.uniform:
        return "an audited formula is of attention and a feed-forward in every layer"
    if spec.index_top_k is not None or spec.index_block_len is not None:
        return "an audited formula knows no indexer"
    if spec.n_zero_experts:
        return "an audited formula knows no zero experts"
    more = beyond_branches(spec)
    return f"an audited formula knows no {more}" if more else ""


def check_inside(spec: ModelSpec, id: str) -> None:
    """Raise `InputError` for a model that no formula of the audit speaks of."""
    why = outside(spec)
    if why:
        raise InputError(f"{id}: {why}; choose {SPOKEN_OF}")


def there(terms: tuple[Term, ...], spec: ModelSpec) -> tuple[Term, ...]:
    """Return the terms that a model of this structure has."""
    return tuple(term for term in terms if holds(term.where, spec))


@lru_cache(maxsize=1024)
def place_of(case: Case) -> Place:
    """Return a model and a run as names with ints behind them; the same for every formula."""
    spec, run = case
    return Place(spec, run.batch_size, run.seq_len, DTYPE_BYTES[run.dtype])


def value_of(text: str, names: Any) -> Fraction:
    """Compute the exact value of a text of the data."""
    return Fraction(at(written(text).tree, names))


def values(terms: tuple[Term, ...], place: Place) -> tuple[Fraction, ...]:
    """Compute the value of each term; `Absent` where one asks for what the model does not have."""
    return tuple(value_of(term.text, place) for term in there(terms, place.spec))


def both(formula: Formula, case: Case) -> tuple[Fraction, Fraction]:
    """Compute what the formula gives, and what its convention gives by our counts."""
    place = place_of(case)
    theirs = sum(values(formula.terms, place), Fraction(0))
    return theirs, by_convention(formula, place)


def by_convention(formula: Formula, place: Place) -> Fraction:
    """Compute the count that the formula says it is, by our formulas."""
    if formula.convention is None:
        raise ValueError(f"{formula.id} has no convention")
    return value_of(formula.convention, reference(place, formula.kind))


def missed(formula: Formula, case: Case) -> Fraction:
    """Sum the recorded misses of a formula, theirs less ours."""
    return sum(values(formula.misses, place_of(case)), Fraction(0))


__all__ = [
    "Absent",
    "both",
    "by_convention",
    "check_inside",
    "holds",
    "missed",
    "outside",
    "place_of",
    "there",
    "value_of",
    "values",
    "written",
]
