"""What a size may be, and the few operations that differ between kinds of size.

A `Dim` is a Python int (exact), a SymPy expression (closed form) or a NumPy integer array (sweep).
`+`, `-`, `*` and `//` mean the same for all three, so formulas just use them. int64 arrays wrap
silently past 2^63: give arrays of dtype object where a count may be larger.

SymPy and NumPy are never imported here; whoever passes a symbol has imported SymPy already.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from typing import Any, TypeAlias

    Dim: TypeAlias = Any
else:
    Dim = object


def is_symbolic(x: Dim) -> bool:
    """Tell whether `x` is a SymPy expression.

    >>> is_symbolic(4096)
    False
    """
    return hasattr(x, "free_symbols")


def is_zero(x: Dim) -> bool:
    """Tell whether `x` is 0, which says in a model's structure that it has none.

    A symbol is never zero here, neither is an array, whatever it holds, nor a number that is
    recorded: a form in letters is of all of them.

    >>> is_zero(0), is_zero(1)
    (True, False)
    """
    return (type(x) in (int, bool) or is_symbolic(x)) and bool(x == 0)


def chunk(size: Dim, degree: Dim, index: Dim) -> Dim:
    """Count the values of `size` that part `index` of `degree` has: ⌈size / degree⌉, then the rest.

    max(0, min(c, size - index·c)) with c = ⌈size / degree⌉

    Returns: a count; the last parts may have fewer, or none.
    Source: `torch.chunk`, by which torch's DTensor and FSDP2 cut.

    >>> [chunk(10, 4, index) for index in range(4)], [chunk(2, 4, index) for index in range(4)]
    ([3, 3, 3, 1], [1, 1, 0, 0])
    """
    each = -(-size // degree)
    mine = smaller(each, size - index * each)
    return mine - smaller(mine, 0)


def when(condition: bool, x: Dim) -> Dim:
    """Return x where the `condition` holds, else 0: a flag times a symbol is an error in SymPy.

    >>> when(True, 4096), when(False, 4096)
    (4096, 0)
    """
    return x if condition else 0


def exact_div(x: Dim, n: Dim) -> Dim:
    """Divide x by n where n divides x; raise an error where it does not.

    Returns: the quotient; of symbols, the exact rational expression.

    >>> exact_div(4096 * 4097, 2)
    8390656
    """
    if is_symbolic(x) or is_symbolic(n):
        return x / n
    ragged = x % n != 0
    if ragged if isinstance(ragged, bool) else ragged.any():
        raise ValueError(f"{n} must divide {x}: the remainder is {x % n}")
    return x // n


def floor_div(x: Dim, n: Dim) -> Dim:
    """Compute x // n; by 1, a symbol stays as it is instead of becoming floor(x).

    >>> floor_div(61, 2)
    30
    """
    if is_symbolic(x) and n == 1:
        return x
    return x // n


def ceil_div(x: Dim, n: Dim) -> Dim:
    """Divide x by n, rounding up; of symbols, give `ceiling`.

    >>> ceil_div(2049, 256)
    9
    """
    if is_symbolic(x) or is_symbolic(n):
        return sys.modules["sympy"].ceiling(x / n)
    return -(-x // n)


def smaller(a: Dim, b: Dim) -> Dim:
    """Compute min(a, b), elementwise for arrays, as `Min` for symbols.

    For ints and arrays alike: the mean of the two less half their distance.

    >>> smaller(2048, 4096)
    2048
    """
    if is_symbolic(a) or is_symbolic(b):
        return sys.modules["sympy"].Min(a, b)
    return exact_div(a + b - abs(a - b), 2)
