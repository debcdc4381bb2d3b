"""Claims about training: what a step multiplies, what its backward keeps, what is stored for it."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

from metacount.claims import labels
from metacount.claims.facts import evaluated
from metacount.claims.finding import CONDITIONAL, RIGHT, WRONG, Claim, Finding
from metacount.claims.judges.algebra import compared, zero
from metacount.claims.judges.counted import number
from metacount.claims.parts import model_of, models, percent, spec_of
from metacount.claims.text import Words, listed, say
from metacount.errors import SpecError
from metacount.formulas import model
from metacount.formulas.forward import FULL, NONE, Pass
from metacount.formulas.kept import bytes_of
from metacount.formulas.kept_model import blocks_terms, check_covered
from metacount.formulas.training import backward_matmul_flops, recompute_matmul_flops
from metacount.spec import Workload, legend
from metacount.textbook.training import TrainingCount, training_count
from metacount.textbook.training.memory import activation_amounts, inputs_of_blocks
from metacount.units import exact

if TYPE_CHECKING:
    from collections.abc import Callable

    from metacount.spec import ModelSpec

LENGTH = 2048
WITNESS = say("formula, over the catalog")


def step(spec: ModelSpec, **ways: Any) -> TrainingCount:
    """One sequence of 2,048 tokens, or of all positions that a model has, trained."""
    return training_count(spec, Workload(seq_len=min(LENGTH, spec.longest or LENGTH)), **ways)


def _flops(spec: ModelSpec, run: Pass) -> tuple[Any, Any]:
    """FLOPs of a forward and of its backward, in numbers or letters."""
    sizes = {"batch_size": run.batch_size, "seq_len": run.seq_len}
    return model.matmul_flops(spec, **sizes), backward_matmul_flops(spec, run)


def _step(spec: ModelSpec, n: Any) -> tuple[Any, Any]:
    return sum(_flops(spec, Pass(batch_size=1, seq_len=n))), n * model.params(spec)


def _backward(spec: ModelSpec, n: Any) -> tuple[Any, Any]:
    forward, backward = _flops(spec, Pass(batch_size=1, seq_len=n))
    return backward, forward


def _recomputation(spec: ModelSpec, n: Any) -> tuple[Any, Any]:
    run = Pass(batch_size=1, seq_len=n, checkpointing=FULL)
    return recompute_matmul_flops(spec, run), sum(_flops(spec, run))


# What is compared with what: in words, and both as computed of a model and a length.
RATIOS: dict[str, tuple[str, Callable[[ModelSpec, Any], tuple[Any, Any]]]] = {
    "step": ("FLOPs of forward and backward, for each stored parameter and token", _step),
    "backward": ("FLOPs of the backward, of the forward's", _backward),
    "recomputation": ("FLOPs that full checkpointing adds, of a step's", _recomputation),
}


def step_ratio(claim: Claim) -> Finding:
    """A ratio of FLOPs of a training step: in letters, and in every dense decoder of the catalog.

    Options: `ratio`, one of `RATIOS`.
    """
    import sympy

    from metacount.algebra.writing import in_letters

    words, ratio = RATIOS[claim.options["ratio"]]
    label, spec = labels.parse(claim.claimed), spec_of(claim)
    if not _is_dense_decoder(spec):
        raise SpecError("claim", "is about dense decoders", claim.model, "name one of the catalog")
    found = {entry.id: Fraction(*ratio(spec, min(LENGTH, spec.longest or LENGTH)))
             for entry, spec in models() if _is_dense_decoder(spec)}  # fmt: skip
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
    """Whether it is a decoder without experts that has logits to train by."""
    return spec.kind == "decoder" and not spec.is_moe and None not in (spec.head, spec.embedding)


def _short(value: Fraction) -> str:
    return f"{float(value):.4f}"


# What may be stored for each parameter: bytes of weights and gradients, float32 copies of both.
STORED: dict[str, tuple[int, int, bool]] = {
    "everything in 32 bits": (4, 4, False),
    "everything in 16 bits": (2, 2, False),
    "weights and gradients in 16 bits, master weights in 32": (2, 2, True),
    "weights in 16 bits, gradients and master weights in 32": (2, 4, True),
    "weights and gradients in 16 bits, copies of both in 32": (2, 6, True),
}


def bytes_per_parameter(claim: Claim) -> Finding:
    """Bytes that are stored for each parameter with AdamW, its step counters apart."""
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
    told = listed((say("{part}: {steps}", part=say(words), steps=number(value))
                   for words, value in found.items()), "; ", capital=True)  # fmt: skip
    return Finding(
        verdict=RIGHT if len(holds) == len(found) else CONDITIONAL if holds else WRONG,
        says=say("{told}. Step counters, 4 bytes a tensor, are {counters} bytes more.",
                 told=told, counters=exact(counters)),
        correct=told,
        computation=tuple(say("{part}: {steps}", part=say(words), steps=_bytes(spec, value))
                          for words, value in found.items()),
        values={},
        witness=say("formula"),
        condition=say("it means {readings}", readings=listed(holds, " or ")),
    )  # fmt: skip


def _bytes(spec: ModelSpec, value: Fraction) -> str:
    params = step(spec).params
    return f"{number(value)}·{exact(params)} = {number(value * params)}"


def kept_formula(claim: Claim) -> Finding:
    """A formula of the bytes that all blocks keep for their backward, in letters.

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


def _readings(spec: ModelSpec, batch_size: Any, n: Any, checkpointing: str) -> dict[str, Any]:
    """What blocks keep, as our modules run first, then by the conventions of formulas."""
    run = Pass(batch_size=batch_size, seq_len=n)
    check_covered(spec, run)
    if checkpointing == FULL:
        return {"every block keeps its input alone": inputs_of_blocks(spec, run)}
    a = activation_amounts(spec, batch_size, n)
    kept = blocks_terms(spec, run, n, spec.last_stack.n_layers, cross=False)
    return {
        "as our modules run, norms and softmax in 32 bits and no dropout": bytes_of(kept),
        "in 16 bits, of a norm its input alone, with dropout after each branch and softmax": (
            a["J"] + a["N"] + a["O"] + a["V"]
        ),
    }


def adapter_state(claim: Claim) -> Finding:
    """What AdamW keeps for adapters of low rank. Options: `rank`, `targets`."""
    spec, options = spec_of(claim), claim.options
    label = labels.parse(claim.claimed)
    whole = step(spec)
    one = step(spec, lora_rank=options["rank"], lora_targets=tuple(options["targets"]))
    share = percent(Fraction(one.optimizer_bytes, whole.optimizer_bytes), 3)
    return Finding(
        verdict=RIGHT if label.holds(one.optimizer_bytes) else WRONG,
        says=say("AdamW keeps {n} bytes for {trained} trained parameters, {share} of what it keeps "
                 "for all.", n=exact(one.optimizer_bytes), trained=exact(one.trainable_params),
                 share=share),
        correct=exact(one.optimizer_bytes),
        computation=(
            say("{part}: {steps}", part=say("adapters"),
                steps=f"2·2·{exact(one.trainable_params)} + "
                      f"{exact(one.optimizer_bytes - 4 * one.trainable_params)} = "
                      f"{exact(one.optimizer_bytes)}"),
            say("{part}: {steps}", part=say("all parameters"), steps=exact(whole.optimizer_bytes)),
        ),
        values={},
        witness=say("formula"),
    )  # fmt: skip
