"""Claims in letters: compared for all sizes, then with the models of the catalog.

The difference of a formula and the exact one, as a sum of products of sizes, decides. Sizes are
positive: a difference whose terms all have one sign is zero for no sizes, the formula is wrong.
With both signs it holds under a condition, if a model of the catalog or small sizes that were tried
make it zero. Nothing left: equal for all sizes.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache, partial
from itertools import islice, product

import sympy

from metacount import catalog
from metacount.algebra.exact import value_at
from metacount.algebra.text import in_letters
from metacount.errors import SpecError
from metacount.formulas import model, sublayers
from metacount.formulas.step import (
    backward_matmul_flops_by_role,
    check_alike,
    check_saved,
    recompute_matmul_flops_by_role,
    saved_in_blocks,
)
from metacount.formulas.tape import FULL, NONE, Pass
from metacount.spec import Workload, legend
from metacount.spec.rules import beyond_branches
from metacount.teaching import parts
from metacount.teaching.parts import (
    RUNS,
    computation,
    in_numbers,
    letters,
    model_of,
    spec_of,
    value,
)
from metacount.teaching.texts import (
    CONDITIONAL,
    RIGHT,
    WRONG,
    Claim,
    Finding,
    apart,
    computed,
    evaluated,
    found,
    label,
    number,
)
from metacount.textbook.closed_form import readable
from metacount.textbook.training import (
    TrainingCount,
    activation_amounts,
    count_step,
    inputs_of_blocks,
)
from metacount.training.setup import Setup
from metacount.units import signed

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from metacount.catalog import CatalogEntry
    from metacount.formulas.dim import Dim
    from metacount.spec import ModelSpec

SMALL_SIZES = (1, 2, 3, 4, 6, 8, 12, 16)
TRIED = 5000


def _dense(spec: ModelSpec) -> bool:
    return spec.d_ff is not None and not spec.is_moe


def _silu(spec: ModelSpec) -> bool:
    # with another β it is Swish, the gate of Phi-3-small
    return bool(spec.gated and spec.activation == "silu" and spec.swish_beta == 1.0)


def _alike(spec: ModelSpec) -> bool:
    """Tell whether every block is attention and a feed-forward: no hybrid."""
    return spec.last_stack.uniform and not beyond_branches(spec)


@lru_cache
def _family(id: str) -> str:
    return catalog.entry(id).family


# which models of the catalog a statement is about
AMONG: dict[str, Callable[[CatalogEntry, ModelSpec], bool]] = {
    "attention": lambda _, s: s.attention == "gqa",
    "mla": lambda _, s: s.attention == "mla",
    "gelu": lambda _, s: _dense(s) and not s.gated and s.activation.startswith("gelu"),
    "swiglu": lambda _, s: _dense(s) and _silu(s),
    "swiglu_moe": lambda _, s: s.is_moe and _silu(s),
    "gelu_blocks": lambda e, s: AMONG["gelu"](e, s) and _alike(s) and not s.has_encoder,
    "swiglu_blocks": lambda e, s: AMONG["swiglu"](e, s) and _alike(s) and s.attention == "gqa",
    "original": lambda e, _: e.family == _family("transformer-base"),
    "qwen2": lambda e, _: e.family == _family("qwen2-7b"),
    "qwen3_dense": lambda e, s: _dense(s) and e.family == _family("qwen3-32b"),
}


def part_formula(claim: Claim) -> Finding:
    """Judge a formula for a part.

    Options: `formula`, `part`, `counts` (the part in words), `among`. `where` are equations between
    sizes that are tried as a reason; `only_where`, a condition on a model's fields that is tried as
    what decides in the catalog.
    """
    options, spec = claim.options, spec_of(claim)
    symbols = legend.sympy_symbols(term.name for term in legend.MODEL_TERMS)
    stated = evaluated(options["formula"], symbols)
    truth = letters(spec, options["part"])
    difference, verdict = compared(truth, stated)
    each = _in_catalog(claim, truth)
    equal = [row["model"] for row in each if row["holds"]]
    if verdict == RIGHT and len(equal) < len(each):
        verdict = CONDITIONAL
    if verdict == CONDITIONAL and not equal and not _zero_somewhere(difference):
        verdict = WRONG
    sizes = {term.name: getattr(spec, term.name) for term in legend.MODEL_TERMS}
    counted = [row for row in each if row["is_counted_so"]]
    only_where = options.get("only_where")
    mixed = bool(_mixed(difference))
    first = sympy.Add.make_args(sympy.expand(difference))[0]
    few = bool(first.as_coeff_Mul()[0] > 0)
    return Finding(
        verdict=verdict,
        values={
            "here": value(spec, options["part"]),
            "stated": number(Fraction(evaluated(options["formula"], sizes))),
            "counts": options["counts"],
            "truth": in_letters(truth),
            "said": in_letters(stated),
            "difference": in_letters(difference),
            "differs": difference != 0,
            "equations": zero(difference) if verdict == CONDITIONAL and difference != 0 else [],
            "as_where": _as_where(claim, difference),
            "only_where": only_where["say"]
            if only_where is not None
            and equal
            == [
                row["model"]
                for row in each
                if computed(only_where["is"], catalog.entry(row["model"]).spec().to_dict())
            ]
            else "",
            "steps": computation(spec, options["part"]).rpartition(" = ")[0],
            # how far the stated formula is from the exact one, at any sizes if it has one sign
            "mixed": mixed,
            "few": few,
            "far": in_letters(difference if few and not mixed else -difference),
            "equal": equal,
            "n": len(equal),
            "all": len(each),
            "holds_for": "none" if not equal else "all" if len(equal) == len(each) else "some",
            "farthest": _farthest(counted),
            "n_counted": len(counted),
            "off": sorted((r for r in counted if not r["holds"]), key=lambda r: r["ratio"]),
            "other_formula": [
                r["model"] for r in each if not r["is_counted_so"] and not r["holds"]
            ],
        },
    )


def _as_where(claim: Claim, difference: Dim) -> list[str]:
    """Return the claim's equations, if they make the difference zero."""
    symbols = legend.sympy_symbols(term.name for term in legend.MODEL_TERMS)
    pairs = [
        (evaluated(a, symbols), evaluated(b, symbols)) for a, b in claim.options.get("where", [])
    ]
    left = difference
    for one, other in reversed(pairs):
        left = left.subs(one, other)
    if not pairs or sympy.expand(left) != 0:
        return []
    return [f"{in_letters(a)} = {in_letters(b)}" for a, b in pairs]


def compared(truth: Dim, stated: Dim) -> tuple[Dim, str]:
    """Compute the difference of two closed forms, and the verdict that its terms' signs give."""
    expanded = sympy.expand(truth - stated)
    if expanded == 0:
        return expanded, RIGHT
    signs = {term.as_coeff_Mul()[0] > 0 for term in sympy.Add.make_args(expanded)}
    return readable(expanded), CONDITIONAL if len(signs) == 2 else WRONG


def _mixed(difference: Dim) -> list[Dim]:
    """Find the factors of a difference that are not of one sign for all positive sizes."""
    return [
        base
        for base, _ in sympy.factor_list(difference)[1]
        if compared(base, sympy.Integer(0))[1] == CONDITIONAL
    ]


def zero(difference: Dim) -> list[str]:
    """Write the equations, any one of which makes a difference zero."""
    equations = []
    for factor in _mixed(difference):
        terms = sympy.Add.make_args(sympy.expand(factor))
        left = sum(t for t in terms if t.as_coeff_Mul()[0] > 0)
        right = -sum(t for t in terms if t.as_coeff_Mul()[0] < 0)
        equations.append(f"{in_letters(sympy.factor(left))} = {in_letters(sympy.factor(right))}")
    return equations


def _zero_somewhere(difference: Dim) -> bool:
    """Tell whether a difference is zero at some of the small whole sizes that are tried."""
    for factor in _mixed(difference):
        free = sorted(factor.free_symbols, key=str)
        sizes = SMALL_SIZES if len(free) <= 4 else SMALL_SIZES[::2]
        for picked in islice(product(sizes, repeat=len(free)), TRIED):
            if factor.subs(dict(zip(free, picked, strict=True))) == 0:
                return True
    return False


def _in_catalog(claim: Claim, truth: Dim) -> list[dict[str, Any]]:
    """Lay the part beside the exact and the stated formula, for each model that is spoken of.

    `holds` says whether the stated formula counts it, `is_counted_so` whether the exact one of the
    claim's model does: the model has nothing besides. `ratio` is how far they are apart.
    """
    options, rows = claim.options, []
    for entry, spec in parts.models():
        if AMONG[options["among"]](entry, spec):
            sizes = {term.name: getattr(spec, term.name) for term in legend.MODEL_TERMS}
            symbols = legend.sympy_symbols(sizes)
            count = value(spec, options["part"])
            exact = value_at(truth, {symbols[name]: n or 0 for name, n in sizes.items()})
            stated = Fraction(evaluated(options["formula"], sizes))
            row = {"model": entry.id, "holds": stated == count, "is_counted_so": exact == count}
            rows.append({**row, "ratio": (stated - exact) / exact})
    return rows


def _farthest(counted: list[dict[str, Any]]) -> list[dict[str, Any]]:
    ends = [pick(counted, key=lambda row: row["ratio"]) for pick in (min, max) if counted]
    return [end for n, end in enumerate(ends) if end["ratio"] and end not in ends[:n]]


def dense_flops(claim: Claim) -> Finding:
    """Judge whether a mixture with k = 1 takes the FLOPs of a dense layer as wide."""
    spec = spec_of(claim)
    moe = value(spec, "moe_flops")
    d, m = spec.d_model, spec.d_ff_expert
    dense = int(sublayers.ffn_matmul_flops(1, d, m, gated=spec.gated))
    truth = letters(spec, "moe_flops").subs(legend.sympy_symbols(["top_k"])["top_k"], spec.top_k)
    symbols = legend.sympy_symbols(["d_model", "d_ff_expert"])
    said = sublayers.ffn_matmul_flops(
        1, symbols["d_model"], symbols["d_ff_expert"], gated=spec.gated
    )
    difference, verdict = compared(truth, said)

    def steps(formula: Dim) -> str:
        return f"{in_letters(formula)} = {in_numbers(in_letters(formula), spec)}"

    return Finding(
        verdict=verdict,
        values={
            "moe": moe,
            "dense": dense,
            "more": moe - dense,
            "ratio": Fraction(moe - dense, dense),
            "d": str(d),
            "m": str(m),
            "k": str(spec.top_k),
            "truth": in_letters(truth),
            "moe_steps": steps(truth),
            "dense_steps": steps(said),
            "more_steps": steps(difference),
        },
    )


def whole_formula(claim: Claim) -> Finding:
    """Judge a formula for a whole model, as `metacount check` does.

    Options: `formula`, `quantity`.
    """
    from metacount.check import check

    entry = model_of(claim)
    judged = check(claim.options["formula"], entry.id, quantity=claim.options["quantity"])
    wrong = judged.verdict == "wrong"
    verdicts = {"equal": RIGHT, "equal_where_tried": RIGHT, "equal_here": CONDITIONAL}
    return Finding(
        verdict=verdicts.get(judged.verdict, WRONG),
        values={
            "model": entry.name,
            "judged": judged.verdict,
            "tried": str(judged.tried),
            "ours": in_letters(judged.ours),
            "theirs": in_letters(judged.theirs),
            "exact": judged.ours_value,
            "stated": number(judged.theirs_value),
            **apart(judged.theirs_value, judged.ours_value),
            "difference": in_letters(judged.difference) if wrong else "",
            "more": number(judged.difference_value, signed) if wrong else "",
            # the words of `check` for the parts that explain a difference
            "terms": [
                {"part": term.words, "steps": number(term.value, signed)} for term in judged.terms
            ]
            if wrong
            else [],
            "one_cause": len(judged.terms) == 1 and judged.terms[0].known,
            "known_condition": judged.condition or "",
        },
    )


# Claims about a step of training.

LENGTH = 2048


def _run(spec: ModelSpec, n: Dim) -> tuple[Dim, Dim]:
    backward = backward_matmul_flops_by_role(spec, Pass(batch_size=1, seq_len=n))
    return model.matmul_flops(spec, batch_size=1, seq_len=n), sum(backward.values())


def _recomputed(spec: ModelSpec, n: Dim) -> Dim:
    run = Pass(batch_size=1, seq_len=n, checkpointing=FULL)
    return sum(recompute_matmul_flops_by_role(spec, run).values())


# what is compared with what, of a model and a length
RATIOS: dict[str, Callable[[ModelSpec, Dim], tuple[Dim, Dim]]] = {
    "step": lambda spec, n: (sum(_run(spec, n)), n * model.params(spec)),
    "backward": lambda spec, n: (_run(spec, n)[1], _run(spec, n)[0]),
    "recomputation": lambda spec, n: (_recomputed(spec, n), sum(_run(spec, n))),
}


def step_ratio(claim: Claim) -> Finding:
    """Judge a ratio of FLOPs of a training step, in letters and in the catalog's dense decoders.

    Options: `ratio`, one of `RATIOS`.
    """
    ratio = RATIOS[claim.options["ratio"]]
    printed, spec = label(claim.claimed), spec_of(claim)
    if not _is_dense_decoder(spec):
        raise SpecError("claim", "is about dense decoders", claim.model, "name one of the catalog")
    ratios = {
        entry.id: Fraction(*ratio(s, min(LENGTH, s.longest or LENGTH)))
        for entry, s in parts.models()
        if _is_dense_decoder(s)
    }
    names = [t.name for t in legend.MODEL_TERMS if getattr(spec, t.name) and t.name != "moe_every"]
    symbols = legend.sympy_symbols([*names, "seq_len"])
    in_symbols = spec.substituted(**{name: symbols[name] for name in names})
    above, below = map(sympy.sympify, ratio(in_symbols, symbols["seq_len"]))
    stated = sympy.Rational(printed.value.numerator, printed.value.denominator) * below
    difference, verdict = compared(above, stated)
    others = [id for id, n in ratios.items() if not printed.holds(n)]
    if verdict == RIGHT and others:
        verdict = CONDITIONAL
    by_size = sorted(ratios, key=lambda id: ratios[id])
    return Finding(
        verdict=verdict,
        values={
            "ratio": claim.options["ratio"],
            "label": printed.text,
            "models": [{"model": id, "ratio": float(ratios[id])} for id in by_size],
            "first": min(ratios, key=lambda id: ratios[id]),
            "last": max(ratios, key=lambda id: ratios[id]),
            "least": float(min(ratios.values())),
            "most": float(max(ratios.values())),
            "n": len(ratios) - len(others),
            "all": len(ratios),
            "others": others,
            "difference": in_letters(difference),
            "differs": difference != 0,
            "equations": zero(difference) if verdict == CONDITIONAL and difference != 0 else [],
        },
    )


def _is_dense_decoder(spec: ModelSpec) -> bool:
    trained = spec.last_stack.uniform and None not in (spec.head, spec.embedding)
    alone = not spec.is_moe and not beyond_branches(spec)
    return trained and spec.kind == "decoder" and alone


def step_of(spec: ModelSpec, setup: Setup | None = None) -> TrainingCount:
    """Count training on one sequence of 2,048 tokens, or of all a model's positions if fewer."""
    run = Workload(seq_len=min(LENGTH, spec.longest or LENGTH))
    return count_step(spec, run, setup or Setup())


# what may be stored for each parameter: bytes of weights and gradients, float32 copies of both
STORED: dict[str, tuple[int, int, bool]] = {
    "everything in 32 bits": (4, 4, False),
    "everything in 16 bits": (2, 2, False),
    "weights and gradients in 16 bits, master weights in 32": (2, 2, True),
    "weights in 16 bits, gradients and master weights in 32": (2, 4, True),
    "weights and gradients in 16 bits, copies of both in 32": (2, 6, True),
}


def bytes_per_parameter(claim: Claim) -> Finding:
    """Judge the bytes that are stored for each parameter with AdamW, its step counters apart."""
    printed, spec = label(claim.claimed), spec_of(claim)
    ways, counters = [], 0
    for words, (weights, gradients, master) in STORED.items():
        dtype = "fp32" if weights == 4 else "bf16"
        one = count_step(spec, Workload(seq_len=1, dtype=dtype), Setup(master_weights=master))
        moments = 2 * (4 if master else weights) * one.trainable_params
        counters = one.optimizer_bytes - moments
        stored = (weights + gradients) * one.params + one.master_weight_bytes + moments
        each = Fraction(stored, one.params)
        row = {
            "way": words,
            "bytes": number(each),
            "params": one.params,
            "holds": printed.holds(each),
        }
        ways.append({**row, "whole": number(each * one.params)})
    return found(
        (bool(way["holds"]) for way in ways),
        ways=ways,
        held=[way["way"] for way in ways if way["holds"]],
        counters=counters,
    )


def kept_formula(claim: Claim) -> Finding:
    """Judge a formula of the bytes that all blocks keep for their backward, in letters.

    Options: `formula`; `given`, equations between sizes that it takes for granted; `checkpointing`.
    """
    options, spec = claim.options, spec_of(claim)
    if options["checkpointing"] not in (NONE, FULL):
        raise SpecError(
            "claim", "names no way of checkpointing", claim.id, f"choose {NONE}, {FULL}"
        )
    names = [t.name for t in legend.MODEL_TERMS if getattr(spec, t.name)]
    symbols = legend.sympy_symbols([*names, "batch_size", "seq_len"])
    in_symbols = spec.substituted(**{name: symbols[name] for name in names if name != "moe_every"})
    pairs = [(evaluated(a, symbols), evaluated(b, symbols)) for a, b in options["given"]]
    stated = sympy.sympify(evaluated(options["formula"], symbols))
    ways, differences = [], []
    for way, kept in _kept(
        in_symbols, symbols["batch_size"], symbols["seq_len"], options["checkpointing"]
    ).items():
        count = sympy.sympify(kept)
        for one, other in pairs:
            count = count.subs(one, other)
        # one key/value head of one sequence is not copied: here there are several
        count = count.replace(lambda e: isinstance(e, sympy.Min), lambda e: sympy.Integer(1))
        differences.append(sympy.factor(sympy.expand(count - stated.subs(pairs))))
        steps = in_letters(sympy.expand(count))
        ways.append({"way": way, "steps": steps, "holds": differences[-1] == 0})
    first = differences[0]
    equal = any(way["holds"] for way in ways)
    return Finding(
        verdict=RIGHT if first == 0 and not pairs else CONDITIONAL if equal else WRONG,
        values={
            "ways": ways,
            "way": ways[0]["way"],
            "held": [way for way in ways if way["holds"]],
            "given": [f"{in_letters(a)} = {in_letters(b)}" for a, b in pairs],
            "said": in_letters(stated),
            "difference": in_letters(first),
            "truth": in_letters(sympy.factor(sympy.expand(first + stated))),
        },
    )


def _kept(spec: ModelSpec, batch_size: Dim, n: Dim, checkpointing: str) -> dict[str, Dim]:
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
    whole = step_of(spec)
    one = step_of(spec, Setup(lora_rank=options["rank"], lora_targets=tuple(options["targets"])))
    return found(
        [label(claim.claimed).holds(one.optimizer_bytes)],
        n=one.optimizer_bytes,
        trained=one.trainable_params,
        counters=one.optimizer_bytes - 4 * one.trainable_params,
        ratio=Fraction(one.optimizer_bytes, whole.optimizer_bytes),
        whole=whole.optimizer_bytes,
    )


def same_at_length(claim: Claim) -> Finding:
    """Judge whether a count is the same from some length on: what n further tokens add is 0.

    Options: `of` (`decode_matmul_flops` of a token that attends to so many positions, with itself;
    `kept_values` of the KV cache after so many), `from`, `to` (a longer one, to be shown).
    """
    spec, options = spec_of(claim), claim.options
    start, end, counted = options["from"], options["to"], partial(RUNS[options["of"]], spec, 1)
    if not 0 < start < end:
        raise ValueError(f"the second length is the longer one: got {start} and {end}")
    more = sympy.Symbol("n", integer=True, nonnegative=True)
    first, last = int(counted(start)), int(counted(end))
    step = int(counted(start + 1)) - first
    added = sympy.expand(counted(start + more) - first)
    linear = bool(added == step * more)
    return found(
        [added == 0],
        start=start,
        end=end,
        first=first,
        last=last,
        step=step,
        linear=linear,
        flops=options["of"] == "decode_matmul_flops",
        formula=f"{number(step)}·n" if linear and step else in_letters(added),
    )
