"""Every formula at every model of the catalog: what the table of `metacount audit` is made of."""

from __future__ import annotations

from functools import cache

from metacount import catalog
from metacount.audit.judge import LENGTHS, NOT_ASKED, judged
from metacount.audit.record import FLOPS, chosen, compared
from metacount.audit.restated import check_inside, outside
from metacount.check.judgement import EQUAL, HERE, WRONG
from metacount.frozen import frozen

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from metacount.audit.detail import Line
    from metacount.audit.judge import Found
    from metacount.audit.record import Formula
    from metacount.files import Json
    from metacount.many.pool import Failed
    from metacount.resolve import Given, Model
    from metacount.spec import ModelSpec

# kind -> the count whose recorded proofs stand behind our side
PROVEN = {
    "params": "params",
    "active_params": "active_params",
    "kv_cache": "kv_cache_bytes",
    "activations": "activation_bytes",
    "optimizer": "optimizer_bytes",
}


@frozen
class Audited:
    """One formula, and what it gives at every model; no `found` where there is nothing to judge by.

    `compared` says with which version of the real function the restatement was compared, and at how
    many random sizes; `witness` what our side rests on at the model where it is furthest off.
    """

    formula: Formula
    found: tuple[Found, ...]
    compared: Json | None
    witness: str = ""

    def of(self, verdict: str, *, in_scope: bool = True) -> tuple[Found, ...]:
        """Return the findings with a verdict, inside the scope the source claims, or outside."""
        return tuple(f for f in self.found if f.verdict == verdict and f.in_scope is in_scope)

    def asked(self, *, in_scope: bool = True) -> int:
        """Count the models that the formula was judged at."""
        return sum(f.in_scope is in_scope and f.verdict != NOT_ASKED for f in self.found)

    def worst(self, *, in_scope: bool = True) -> Found | None:
        """Find the model where the formula is furthest off; None where it is off nowhere."""
        off = self.of(WRONG, in_scope=in_scope)
        return max(off, key=lambda f: abs(f.off)) if off else None

    @property
    def conditions(self) -> tuple[str, ...]:
        """Under what it equals its convention, where it does not for all sizes."""
        return tuple(dict.fromkeys(f.condition for f in self.of(HERE)))

    @property
    def verdict(self) -> str:
        """The verdict on all models of its scope together."""
        if not self.found:
            return "not judged"
        if self.of(WRONG):
            return "off"
        return "equal under a condition" if self.of(HERE) else "equal"


def audit(
    names: str | Iterable[str] = (),
    *,
    model: Given | None = None,
    lengths: Iterable[int] = LENGTHS,
    jobs: int = 1,
) -> tuple[Audited, ...]:
    """Judge the formulas of these names, all where none is given, at `model` or the whole catalog.

    >>> (found,) = audit("slime-forward", model="qwen3-4b")
    >>> found.verdict, found.found[0].accounted
    ('off', True)
    """
    wanted = chosen((names,) if isinstance(names, str) else tuple(names))
    at = tuple(lengths)
    if model is None:
        found = dict(audited(wanted, at, jobs))
        return tuple(found[i] for i in range(len(wanted)))
    from metacount.resolve import model_of

    one = model_of(model)
    check_inside(one.spec, one.id)
    return tuple(
        _audited(f, (judged(f, one.spec, one.id, at),) if f.judged else (), one) for f in wanted
    )


def audited(
    wanted: tuple[Formula, ...], lengths: tuple[int, ...], jobs: int
) -> Iterator[tuple[int, Audited]]:
    """Judge formulas at the whole catalog; yields each with its number, as it is finished."""
    work = [(formula, lengths) for formula in wanted]
    done: Iterable[tuple[int, tuple[Found, ...] | Failed]]
    if jobs > 1 and len(work) > 1:
        from metacount.many.pool import answers

        done = answers(at_every_model, work, processes=jobs)
    else:
        done = ((i, at_every_model(job)) for i, job in enumerate(work))
    for i, answer in done:
        if not isinstance(answer, tuple):
            raise RuntimeError(f"{wanted[i].id} was not judged: {answer.reason}")
        yield i, _audited(wanted[i], answer, None)


def _audited(formula: Formula, found: tuple[Found, ...], model: Model | None) -> Audited:
    return Audited(
        formula=formula,
        found=found,
        compared=_compared().get(formula.id),
        witness=_witness(formula, found, model),
    )


@cache
def _compared() -> dict[str, Json]:
    return compared()


def at_every_model(job: tuple[Formula, tuple[int, ...]]) -> tuple[Found, ...]:
    """Judge one formula at every model of the catalog that the audit speaks of."""
    formula, lengths = job
    if not formula.judged:
        return ()
    return tuple(judged(formula, spec, id, lengths, outside=False) for id, spec in models())


@cache
def models() -> tuple[tuple[str, ModelSpec], ...]:
    """List the models of the catalog that a formula is judged at: sizes known, inside the audit."""
    built = ((one.id, one.spec()) for one in catalog.entries() if one.sizes is not None)
    return tuple((id, spec) for id, spec in built if not outside(spec))


def misses_at(formula: Formula, found: Found) -> list[Line]:
    """Return the recorded misses that make the difference at a model, the largest first."""
    from metacount.audit.detail import lines_of
    from metacount.audit.restated import place_of
    from metacount.spec import Workload

    spec = found.spec
    place = place_of((spec, Workload(batch_size=1, seq_len=found.seq_len)))
    lines = [line for line in lines_of(formula.misses, place) if line.value]
    return sorted(lines, key=lambda line: -abs(line.value))


def _witness(formula: Formula, found: tuple[Found, ...], model: Model | None) -> str:
    """Say what our count rests on at the model where the formula is furthest off, if it is off."""
    off = [f for f in found if f.verdict == WRONG and (f.in_scope or model is not None)]
    if not off:
        return ""
    from metacount.resolve import find_model

    worst = max(off, key=lambda f: abs(f.off))
    return rests_of(formula, worst, model or find_model(worst.model))


def rests_of(formula: Formula, found: Found, model: Model) -> str:
    """Say what our count of this kind rests on at `model`: what was proven against which code."""
    from metacount.check.ground import rests_on
    from metacount.spec import Workload

    if not formula.judged:
        return ""
    quantity = "matmul_flops" if formula.kind in FLOPS else PROVEN[formula.kind]
    return rests_on(model, Workload(seq_len=found.seq_len), quantity)


__all__ = ["EQUAL", "HERE", "NOT_ASKED", "WRONG", "Audited", "audit", "models"]
