"""One run's MFU under the training formula of every framework."""

from __future__ import annotations

from fractions import Fraction

from metacount.audit.names import Absent
from metacount.audit.record import chosen
from metacount.audit.restated import check_inside, holds, place_of, value_of, values
from metacount.errors import InputError
from metacount.frozen import frozen
from metacount.spec import Workload

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Iterable

    from metacount.audit.record import Formula
    from metacount.resolve import Given
    from metacount.spec import ModelSpec

OURS = "3·(W + C)"


@frozen
class Utilization:
    """One formula's FLOPs per token, and the MFU of a run by it, at each length.

    `formula` is None for metacount's own count. None stands where the formula cannot be asked.
    """

    formula: Formula | None
    in_scope: bool
    per_token: tuple[Fraction | None, ...]
    mfu: tuple[Fraction | None, ...]


def mfu(
    model: Given, lengths: Iterable[int], *, tokens_per_second: Fraction, peak_tflops: Fraction
) -> tuple[Utilization, ...]:
    """Compute the MFU of the same run under every training formula, at each length; ours first.

    >>> rows = mfu("llama3-8b", [8192], tokens_per_second=Fraction(8000), peak_tflops=Fraction(989))
    >>> round(float(rows[0].mfu[0]), 3)
    0.416
    """
    from metacount.resolve import model_of

    if tokens_per_second <= 0 or peak_tflops <= 0:
        raise InputError("tokens per second and peak must be more than 0")
    one = model_of(model)
    check_inside(one.spec, one.id)
    spec = one.spec
    share = tokens_per_second / (peak_tflops * 10**12)
    at = tuple(lengths)
    rows = [_row(None, spec, at, share)]
    rows += [_row(f, spec, at, share) for f in chosen(()) if f.kind == "training" and f.judged]
    return tuple(rows)


def _row(
    formula: Formula | None, spec: ModelSpec, lengths: tuple[int, ...], share: Fraction
) -> Utilization:
    found = tuple(_per_token(formula, spec, n) for n in lengths)
    return Utilization(
        formula=formula,
        in_scope=formula is None or holds(formula.scope, spec),
        per_token=found,
        mfu=tuple(None if n is None else n * share for n in found),
    )


def _per_token(formula: Formula | None, spec: ModelSpec, seq_len: int) -> Fraction | None:
    place = place_of((spec, Workload(batch_size=1, seq_len=seq_len)))
    if formula is None:
        return value_of(OURS, place.amounts.letters()) / seq_len
    try:
        return sum(values(formula.terms, place), Fraction(0)) / seq_len
    except (Absent, ZeroDivisionError):
        return None
