"""Medians, their intervals, and ratios of what was measured side by side. No torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

# Of six values that are independent, the smallest and the largest have the median between them
# with probability 1 - 2/2^6 = 96.9 %; of five with 93.75 %.
CONFIDENCE = 0.95
FEWEST_FOR_INTERVAL = 6

Interval = tuple[float, float]


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` of the values lie, between neighbours in proportion.

    >>> quantile([4.0, 1.0, 3.0, 2.0], 0.5), quantile([5.0, 1.0, 2.0, 4.0, 3.0, 6.0], 0.2)
    (2.5, 2.0)
    """
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    low, high = ordered[below], ordered[min(below + 1, len(ordered) - 1)]
    # x·(1 - t) + x·t may be rounded to less than x; x + 0·t is x
    return min(low + (high - low) * (place - below), high)


def median(values: Sequence[float]) -> float:
    """Return the middle value, or the mean of the two in the middle."""
    return quantile(values, 0.5)


def median_interval(values: Sequence[float]) -> Interval | None:
    """Find where the median lies with at least 95 % confidence, whatever the distribution.

    The k-th smallest and the k-th largest value, k as large as the binomial distribution allows;
    None for fewer than six values.

    >>> median_interval([3.0, 1.0, 2.0, 6.0, 5.0, 4.0])
    (1.0, 6.0)
    >>> median_interval([float(i) for i in range(1, 21)])  # P(less than 6 of 20 below) = 2.07 %
    (6.0, 15.0)
    >>> median_interval([1.0] * 5) is None
    True
    """
    n = len(values)
    if n < FEWEST_FOR_INTERVAL:
        return None
    outside, below = (1 - CONFIDENCE) / 2, 0
    total = math.comb(n, 0)
    while total / 2**n <= outside:
        below += 1
        total += math.comb(n, below)
    ordered = sorted(values)
    return ordered[below - 1], ordered[n - below]


def half_width(values: Sequence[float]) -> float:
    """Compute half of the interval as a share of the median; infinite where there is no interval.

    >>> half_width([9.0, 10.0, 10.0, 10.0, 10.0, 11.0]), half_width([1.0])
    (0.1, inf)
    """
    found = median_interval(values)
    return math.inf if found is None else (found[1] - found[0]) / 2 / median(values)


def drift(values: Sequence[float]) -> float:
    """Compute how far the medians of the first and second half lie apart, over the smaller one.

    >>> drift([1.0, 1.0, 1.5, 1.5])
    0.5
    """
    half = len(values) // 2
    if not half:
        return 0.0
    low, high = sorted((median(values[:half]), median(values[-half:])))
    return high / low - 1


def paired(values: Sequence[float], baseline: Sequence[float]) -> list[float]:
    """Divide each round's value by the baseline's of that round: what drifts does so for both."""
    return [value / other for value, other in zip(values, baseline, strict=True)]
