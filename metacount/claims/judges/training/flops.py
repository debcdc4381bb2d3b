"""Claims about the FLOPs of a training step: ratios, in letters and over the catalog."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from metacount.claims import labels
from metacount.claims.finding import CONDITIONAL, RIGHT, Claim, Finding
from metacount.claims.judges.algebra import compared, zero
from metacount.claims.parts import model_of, models, spec_of
from metacount.claims.text import Words, listed, say
from metacount.errors import SpecError
from metacount.formulas import model
from metacount.formulas.step import (
    backward_matmul_flops_by_role,
    recompute_matmul_flops_by_role,
)
from metacount.formulas.tape import FULL, Pass
from metacount.spec import legend
from metacount.spec.rules import beyond_branches

if TYPE_CHECKING:
    from collections.abc import Callable

    from metacount.formulas.dim import Dim
    from metacount.spec import ModelSpec

LENGTH = 2048
WITNESS = say("formula, over the catalog")


def _flops(spec: ModelSpec, run: Pass) -> tuple[Dim, Dim]:
    """Count the FLOPs of a forward and of its backward, in numbers or letters."""
    sizes = {"batch_size": run.batch_size, "seq_len": run.seq_len}
    backward = backward_matmul_flops_by_role(spec, run)
    return model.matmul_flops(spec, **sizes), sum(backward.values())


def _step(spec: ModelSpec, n: Dim) -> tuple[Dim, Dim]:
    return sum(_flops(spec, Pass(batch_size=1, seq_len=n))), n * model.params(spec)


def _backward(spec: ModelSpec, n: Dim) -> tuple[Dim, Dim]:
    forward, backward = _flops(spec, Pass(batch_size=1, seq_len=n))
    return backward, forward


def _recomputation(spec: ModelSpec, n: Dim) -> tuple[Dim, Dim]:
    run = Pass(batch_size=1, seq_len=n, checkpointing=FULL)
    return sum(recompute_matmul_flops_by_role(spec, run).values()), sum(_flops(spec, run))


# What is compared with what: in words, and both as computed of a model and a length.
RATIOS: dict[str, tuple[str, Callable[[ModelSpec, Dim], tuple[Dim, Dim]]]] = {
    "step": ("FLOPs of forward and backward, for each stored parameter and token", _step),
    "backward": ("FLOPs of the backward, of the forward's", _backward),
    "recomputation": ("FLOPs that full checkpointing adds, of a step's", _recomputation),
}


def step_ratio(claim: Claim) -> Finding:
    """Judge a ratio of FLOPs of a training step:
    in letters, and in every dense decoder of the catalog.

    Options: `ratio`, one of `RATIOS`.
    """
    import sympy

    from metacount.algebra.writing import in_letters

    words, ratio = RATIOS[claim.options["ratio"]]
    label, spec = labels.parse(claim.claimed), spec_of(claim)
    if not _is_dense_decoder(spec):
        raise SpecError("claim", "is about dense decoders", claim.model, "name one of the catalog")
    found = {
        entry.id: Fraction(*ratio(spec, min(LENGTH, spec.longest or LENGTH)))
        for entry, spec in models()
        if _is_dense_decoder(spec)
    }
    names = [t.name for t in legend.MODEL_TERMS if getattr(spec, t.name) and t.name != "moe_every"]
    letters = legend.sympy_symbols([*names, "seq_len"])
    in_symbols = spec.substituted(**{name: letters[name] for name in names})
    above, below = map(sympy.sympify, ratio(in_symbols, letters["seq_len"]))
    stated = sympy.Rational(label.value.numerator, label.value.denominator) * below
    difference, verdict = compared(above, stated)
    holds = [name for name, value in found.items() if label.holds(value)]
    others = [name for name in found if name not in holds]
    if verdict == RIGHT and others:
        verdict = CONDITIONAL
    first, last = min(found, key=lambda m: found[m]), max(found, key=lambda m: found[m])
    told = say(
        "{part}: from {least} ({first}) to {most} ({last})",
        part=say(words),
        least=_short(found[first]),
        first=first,
        most=_short(found[last]),
        last=last,
    )
    exactly = say("exact - stated = {formula}", formula=in_letters(difference))
    condition: Words = say("the model is none of {models}", models=listed(others))
    if difference != 0 and verdict == CONDITIONAL:
        condition = zero(difference)
    return Finding(
        verdict=verdict,
        says=say(
            "{told}; {label} holds for {n} of {all} dense decoders of the catalog. "
            "{model}: {apart}.",
            told=told,
            label=label.text,
            n=len(holds),
            all=len(found),
            model=model_of(claim).name,
            apart=exactly,
        ),
        correct=told,
        computation=tuple(
            say("{part}: {steps}", part=name, steps=_short(found[name]))
            for name in sorted(found, key=lambda m: found[m])
        ),
        values={},
        witness=WITNESS,
        condition=condition,
    )


def _is_dense_decoder(spec: ModelSpec) -> bool:
    """Tell whether a model is a decoder without experts that has logits to train by."""
    trained = spec.last_stack.uniform and None not in (spec.head, spec.embedding)
    alone = not spec.is_moe and not beyond_branches(spec)
    return trained and spec.kind == "decoder" and alone


def _short(value: Fraction) -> str:
    return f"{float(value):.4f}"
