"""What `check` answers: a verdict, both sides, and the difference term by term."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from metacount.frozen import frozen

if TYPE_CHECKING:
    import sympy

    from metacount.files import Json

EQUAL, TRIED, HERE, WRONG = "equal", "equal_where_tried", "equal_here", "wrong"
UNTRIED = "untried"


@frozen
class Term:
    """A part of a difference, theirs less ours: in letters, in numbers, and in words.

    `expr` is None where only numbers are known. `known` is False for what no part accounts for.
    """

    expr: sympy.Expr | None
    value: Fraction
    words: str
    known: bool = True


@frozen
class Counterexample:
    """Sizes of a valid model at which the two sides differ."""

    sizes: dict[str, int]
    theirs: Fraction
    ours: int


@frozen
class Judgement:
    """A formula beside what the model has. `theirs` and `difference` are None for a function that
    only takes numbers; values are at the model's own sizes.

    verdict: `equal` for all sizes; `equal_where_tried`, at the model's sizes and at `tried` others
    of `planned`; `equal_here`, at the model's sizes but not at the counterexample's, or with an
    error at all that do not meet the condition; `untried`, at the model's sizes and at no other, as
    none could be tried; `wrong`. `rests_on` says what stands behind the model's side.
    """

    verdict: str
    quantity: str
    model: str
    structure: str
    rests_on: str
    free: tuple[str, ...]
    theirs: sympy.Expr | None
    ours: sympy.Expr
    difference: sympy.Expr | None
    theirs_value: Fraction
    ours_value: int
    terms: tuple[Term, ...] = ()
    condition: str | None = None
    counterexample: Counterexample | None = None
    tried: int = 0
    planned: int = 0
    notes: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether it agrees at the model's sizes and wherever else it was tried."""
        return self.verdict in (EQUAL, TRIED)

    @property
    def difference_value(self) -> Fraction:
        """Theirs less ours at the model's sizes."""
        return self.theirs_value - self.ours_value

    @property
    def letters(self) -> dict[str, str]:
        """The letters of both sides, each with the size that it stands for."""
        from metacount.check.names import NAMES

        sides = [side for side in (self.theirs, self.ours) if side is not None]
        used = {letter.name for side in sides for letter in side.free_symbols}
        return {letter: name for letter, name in NAMES.items() if letter in used}

    def to_dict(self) -> Json:
        """Convert to plain data: expressions, and fractions that are no ints, as text."""
        keys = (  # in the order in which they are written
            "verdict holds quantity model structure rests_on free letters theirs ours difference "
            "theirs_value ours_value difference_value terms condition counterexample tried planned "
            "notes"
        )
        return {key: _plain(getattr(self, key)) for key in keys.split()}


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Term | Counterexample):
        return {name: _plain(item) for name, item in vars(value).items()}
    if isinstance(value, Fraction) and value.denominator == 1:
        return int(value)
    return value if isinstance(value, str | int | dict | None) else str(value)
