"""Claims about the memory of training: what blocks keep, what is stored for each parameter."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from metacount.claims import labels
from metacount.claims.facts import evaluated
from metacount.claims.finding import CONDITIONAL, RIGHT, WRONG, Claim, Finding
from metacount.claims.judges.counted import number
from metacount.claims.judges.training.flops import LENGTH
from metacount.claims.parts import percent, spec_of
from metacount.claims.text import Words, listed, say
from metacount.errors import SpecError
from metacount.formulas.step import check_alike, check_saved, saved_in_blocks
from metacount.formulas.tape import FULL, NONE, Pass
from metacount.formulas.trained import WHOLE, Part
from metacount.spec import Workload, legend
from metacount.textbook.training import (
    TrainingCount,
    activation_amounts,
    inputs_of_blocks,
    training_count,
)
from metacount.units import exact

if TYPE_CHECKING:
    from metacount.formulas.dim import Dim
    from metacount.spec import ModelSpec


def step(spec: ModelSpec, part: Part = WHOLE) -> TrainingCount:
    """Count what it takes to train on one sequence of 2,048 tokens,
    or of all a model's positions if fewer.
    """
    run = Workload(seq_len=min(LENGTH, spec.longest or LENGTH))
    return training_count(spec, run, part=part)


# What may be stored for each parameter: bytes of weights and gradients, float32 copies of both.
STORED: dict[str, tuple[int, int, bool]] = {
    "everything in 32 bits": (4, 4, False),
    "everything in 16 bits": (2, 2, False),
    "weights and gradients in 16 bits, master weights in 32": (2, 2, True),
    "weights in 16 bits, gradients and master weights in 32": (2, 4, True),
    "weights and gradients in 16 bits, copies of both in 32": (2, 6, True),
}


def bytes_per_parameter(claim: Claim) -> Finding:
    """Judge the bytes that are stored for each parameter with AdamW, its step counters apart."""
    label = labels.parse(claim.claimed)
    spec = spec_of(claim)
    found: dict[str, Fraction] = {}
    counters = 0
    for words, (weights, gradients, master) in STORED.items():
        dtype = "fp32" if weights == 4 else "bf16"
        one = training_count(spec, Workload(seq_len=1, dtype=dtype), master_weights=master)
        width = 4 if master else weights
        moments = 2 * width * one.trainable_params
        counters = one.optimizer_bytes - moments
        stored = (weights + gradients) * one.params + one.master_weight_bytes + moments
        found[words] = Fraction(stored, one.params)
    holds = [say(words) for words, value in found.items() if label.holds(value)]
    told = listed(
        (
            say("{part}: {steps}", part=say(words), steps=number(value))
            for words, value in found.items()
        ),
        "; ",
        capital=True,
    )
    return Finding(
        verdict=RIGHT if len(holds) == len(found) else CONDITIONAL if holds else WRONG,
        says=say(
            "{told}. Step counters, 4 bytes a tensor, are {counters} bytes more.",
            told=told,
            counters=exact(counters),
        ),
        correct=told,
        computation=tuple(
            say("{part}: {steps}", part=say(words), steps=_bytes(spec, value))
            for words, value in found.items()
        ),
        values={},
        witness=say("formula"),
        condition=say("it means {readings}", readings=listed(holds, " or ")),
    )


def _bytes(spec: ModelSpec, value: Fraction) -> str:
    params = step(spec).params
    return f"{number(value)}·{exact(params)} = {number(value * params)}"


def kept_formula(claim: Claim) -> Finding:
    """Judge a formula of the bytes that all blocks keep for their backward, in letters.

    Options: `formula`; `given`, equations between sizes that it takes for granted; `checkpointing`.
    """
    import sympy

    from metacount.algebra.writing import in_letters

    options, spec = claim.options, spec_of(claim)
    if options["checkpointing"] not in (NONE, FULL):
        raise SpecError(
            "claim", "names no way of checkpointing", claim.id, f"choose {NONE}, {FULL}"
        )
    names = [t.name for t in legend.MODEL_TERMS if getattr(spec, t.name)]
    letters = legend.sympy_symbols([*names, "batch_size", "seq_len"])
    in_symbols = spec.substituted(**{name: letters[name] for name in names if name != "moe_every"})
    pairs = [(evaluated(a, letters), evaluated(b, letters)) for a, b in options["given"]]
    stated = sympy.sympify(evaluated(options["formula"], letters))
    sizes = letters["batch_size"], letters["seq_len"]
    counted = _readings(in_symbols, *sizes, options["checkpointing"])
    given = listed(f"{in_letters(a)} = {in_letters(b)}" for a, b in pairs)
    lines: list[Words] = [say("stated: {formula}", formula=in_letters(stated))]
    equal, differences = [], []
    for words, found in counted.items():
        count = sympy.sympify(found)
        for one, other in pairs:
            count = count.subs(one, other)
        # one key/value head of one sequence is not copied: here there are several
        count = count.replace(lambda e: isinstance(e, sympy.Min), lambda e: sympy.Integer(1))
        differences.append(sympy.factor(sympy.expand(count - stated.subs(pairs))))
        if differences[-1] == 0:
            equal.append(say(words))
        expanded = in_letters(sympy.expand(count))
        lines.append(say("{part}: {steps}", part=say(words), steps=expanded))
    ours, first = say(next(iter(counted))), differences[0]
    verdict = RIGHT if first == 0 and not pairs else CONDITIONAL if equal else WRONG
    apart = say("exact - stated = {formula}", formula=in_letters(first))
    return Finding(
        verdict=verdict,
        says=say("{part}: {apart}.", part=ours, apart=apart),
        correct=in_letters(sympy.factor(sympy.expand(first + stated))),
        computation=tuple(lines),
        values={},
        witness=say("formula, for all sizes"),
        condition=listed([*([given] if pairs else []), *equal], "; "),
    )


def _readings(spec: ModelSpec, batch_size: Dim, n: Dim, checkpointing: str) -> dict[str, Dim]:
    """Count what blocks keep, first as our modules run, then by the conventions of formulas."""
    run = Pass(batch_size=batch_size, seq_len=n)
    check_alike(spec)
    check_saved(spec, run)
    if checkpointing == FULL:
        return {"every block keeps its input alone": inputs_of_blocks(spec, run)}
    a = activation_amounts(spec, batch_size, n)
    saved = sum(times * amount for times, _, amount in saved_in_blocks(spec, run))
    return {
        "as our modules run, norms and softmax in 32 bits and no dropout": saved,
        "in 16 bits, of a norm its input alone, with dropout after each branch and softmax": (
            a["J"] + a["N"] + a["O"] + a["V"]
        ),
    }


def adapter_state(claim: Claim) -> Finding:
    """Judge what AdamW keeps for adapters of low rank. Options: `rank`, `targets`."""
    spec, options = spec_of(claim), claim.options
    label = labels.parse(claim.claimed)
    whole = step(spec)
    one = step(spec, Part(rank=options["rank"], targets=tuple(options["targets"])))
    share = percent(Fraction(one.optimizer_bytes, whole.optimizer_bytes), 3)
    return Finding(
        verdict=RIGHT if label.holds(one.optimizer_bytes) else WRONG,
        says=say(
            "AdamW keeps {n} bytes for {trained} trained parameters, {share} of what it keeps "
            "for all.",
            n=exact(one.optimizer_bytes),
            trained=exact(one.trainable_params),
            share=share,
        ),
        correct=exact(one.optimizer_bytes),
        computation=(
            say(
                "{part}: {steps}",
                part=say("adapters"),
                steps=f"2·2·{exact(one.trainable_params)} + "
                f"{exact(one.optimizer_bytes - 4 * one.trainable_params)} = "
                f"{exact(one.optimizer_bytes)}",
            ),
            say("{part}: {steps}", part=say("all parameters"), steps=exact(whole.optimizer_bytes)),
        ),
        values={},
        witness=say("formula"),
    )
