"""Numbers as somebody printed them: what they say, and how far they are from the exact ones."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

from metacount.frozen import frozen
from metacount.units import exact

if TYPE_CHECKING:
    from collections.abc import Callable

UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


@frozen
class Label:
    """A number as somebody printed it. `step` is one unit of its last digit, 0 if it is exact.

    A whole number with all its digits is exact. Any other number says its last digit and no more:
    67.11M is right for what rounds to it, 67,105,000 to 67,115,000. K, M, B are powers of 1000.
    """

    text: str
    value: Fraction
    step: Fraction

    def holds(self, exact: int | Fraction) -> bool:
        """Tell whether `exact` is the number, or rounds to it."""
        return 2 * abs(exact - self.value) <= self.step

    def rounded(self, exact: int | Fraction) -> str:
        """Format `exact` with as many decimals as the label has, in its unit.

        >>> label("46B").rounded(46_702_792_704), label("67 %").rounded(Fraction(1, 3))
        ('47B', '33 %')
        """
        if not self.step:
            return f"{exact:,}" if isinstance(exact, int) else str(exact)
        number, unit = _split(self.text)
        places = len(number.partition(".")[2])
        digits = round(exact / self.step)
        whole, rest = divmod(digits, 10**places)
        return (f"{whole:,}.{rest:0{places}d}" if places else f"{whole:,}") + unit


def label(text: str) -> Label:
    """Read the number that a text prints.

    >>> printed = label("67.11M")
    >>> printed.holds(67_108_864), printed.holds(67_115_001), printed.holds(67_104_999)
    (True, False, False)
    >>> label("2.25").holds(Fraction(22495, 10000)), label("9/4").holds(Fraction(22495, 10000))
    (True, False)
    >>> label("7 apples")
    Traceback (most recent call last):
    ValueError: a claimed number is 1,234, 67.11M, 0.67, 67 % or 9/4: got '7 apples'
    """
    number, unit = _split(text)
    plain = number.replace(",", "")
    try:
        value = Fraction(plain)
    except ValueError:
        value = None
    scale = Fraction(1, 100) if unit.strip() == "%" else Fraction(UNITS.get(unit, 0))
    if value is None or not scale:
        raise ValueError(f"a claimed number is 1,234, 67.11M, 0.67, 67 % or 9/4: got {text!r}")
    decimals = len(plain.partition(".")[2])
    exact = "/" in plain or (not unit and not decimals)
    return Label(
        text=text, value=value * scale, step=Fraction(0) if exact else scale / 10**decimals
    )


def _split(text: str) -> tuple[str, str]:
    """Split a label into digits and unit.

    >>> _split("67.11M"), _split("67 %")
    (('67.11', 'M'), ('67', ' %'))
    """
    end = max(i for i, char in enumerate("0" + text) if char.isdigit())
    return text[:end], text[end:]


def beside(stated: Label, count: int | Fraction) -> dict[str, Any]:
    """Lay a claimed number beside the exact one: does it hold, to what that rounds, how far off."""
    return {
        "label": stated.text,
        "exact": count,
        "holds": stated.holds(count),
        "rounds": bool(stated.step),
        "rounded": stated.rounded(count),
        **apart(stated.value, count),
    }


def number(n: int | Fraction, written: Callable[[int], str] = exact) -> str:
    """Format a number, which need not be whole.

    >>> number(1234), number(Fraction(1, 3))
    ('1,234', '1/3')
    """
    return written(int(n)) if Fraction(n).denominator == 1 else str(n)


def apart(said: int | Fraction, count: int | Fraction) -> dict[str, Any]:
    """Compute how far a number is from the exact one.

    >>> apart(7, 10), apart(1010, 10)
    ({'few': True, 'off': '3'}, {'few': False, 'off': '1,000'})
    """
    return {"few": said < count, "off": number(abs(Fraction(said) - count))}
