"""What claims state in letters: compared for all sizes, then with the models of the catalog.

The difference of a formula and the exact one, as a sum of products of sizes, decides. Sizes are
positive: a difference whose terms all have one sign is zero for no sizes, the formula is wrong.
With both signs it holds under a condition, if a model of the catalog or small sizes that were tried
make it zero. Nothing left: equal for all sizes.

Each function returns the values that the texts of its judge in `data/judges.json` speak of, and
where those do not say what has to hold, `verdict`.
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial
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
from metacount.spec import ModelSpec, Workload, legend
from metacount.spec.rules import beyond_branches
from metacount.teaching.parts import RUNS, computation, in_numbers, letters, models, value
from metacount.teaching.texts import (
    CONDITIONAL,
    RIGHT,
    WRONG,
    Values,
    apart,
    computed,
    evaluated,
    label,
    number,
)
from metacount.textbook.closed_form import readable
from metacount.textbook.training import activation_amounts, count_step, inputs_of_blocks
from metacount.training.setup import Setup
from metacount.units import signed

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from metacount.catalog import CatalogEntry
    from metacount.formulas.dim import Dim

    Pairs = Sequence[tuple[str, str]]  # equations between sizes

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


def _related(entry: CatalogEntry, id: str) -> bool:
    return entry.family == catalog.entry(id).family


# which models of the catalog a statement is about
AMONG: dict[str, Callable[[CatalogEntry, ModelSpec], bool]] = {
    "attention": lambda _, s: s.attention == "gqa",
    "mla": lambda _, s: s.attention == "mla",
    "gelu": lambda _, s: _dense(s) and not s.gated and s.activation.startswith("gelu"),
    "swiglu": lambda _, s: _dense(s) and _silu(s),
    "swiglu_moe": lambda _, s: s.is_moe and _silu(s),
    "gelu_blocks": lambda e, s: AMONG["gelu"](e, s) and _alike(s) and not s.has_encoder,
    "swiglu_blocks": lambda e, s: AMONG["swiglu"](e, s) and _alike(s) and s.attention == "gqa",
    "original": lambda e, _: _related(e, "transformer-base"),
    "qwen2": lambda e, _: _related(e, "qwen2-7b"),
    "qwen3_dense": lambda e, s: _dense(s) and _related(e, "qwen3-32b"),
}


def part_formula(
    spec: ModelSpec,
    formula: str,
    part: str,
    among: str,
    where: Pairs,
    only_where: Mapping[str, str] | None,
) -> Values:
    """Judge a formula for a part, in letters and at every model that is spoken of.

    `where` are equations between sizes that are tried as a reason; `only_where`, a condition on a
    model's fields that is tried as what decides in the catalog.
    """
    symbols = legend.sympy_symbols(term.name for term in legend.MODEL_TERMS)
    stated, truth = evaluated(formula, symbols), letters(spec, part)
    difference, verdict = compared(truth, stated)
    rows = _in_catalog(formula, part, among, truth)
    equal = [row["model"] for row in rows if row["holds"]]
    if verdict == RIGHT and len(equal) < len(rows):
        verdict = CONDITIONAL
    if verdict == CONDITIONAL and not equal and not _zero_somewhere(difference):
        verdict = WRONG
    counted = [row for row in rows if row["is_counted_so"]]
    decides = only_where is not None and all(
        row["holds"] is (computed(only_where["is"], row["spec"].to_dict()) is True) for row in rows
    )
    mixed = bool(_mixed(difference))
    few = bool(sympy.Add.make_args(sympy.expand(difference))[0].as_coeff_Mul()[0] > 0)
    return {
        "verdict": verdict,
        "here": value(spec, part),
        "stated": number(Fraction(evaluated(formula, _sizes(spec)))),
        "truth": in_letters(truth),
        "said": in_letters(stated),
        **_condition(difference, verdict),
        "as_where": _as_where(where, difference),
        "only_where": only_where["say"] if only_where and decides else "",
        "steps": computation(spec, part).rpartition(" = ")[0],
        # how far the stated formula is from the exact one, at any sizes if it has one sign
        "mixed": mixed,
        "few": few,
        "far": in_letters(difference if few and not mixed else -difference),
        "equal": equal,
        "n": len(equal),
        "all": len(rows),
        "holds_for": "none" if not equal else "all" if len(equal) == len(rows) else "some",
        "farthest": _farthest(counted),
        "n_counted": len(counted),
        "off": sorted((r for r in counted if not r["holds"]), key=lambda r: r["ratio"]),
        "other_formula": [r["model"] for r in rows if not r["is_counted_so"] and not r["holds"]],
    }


def _sizes(spec: ModelSpec) -> dict[str, Any]:
    return {term.name: getattr(spec, term.name) for term in legend.MODEL_TERMS}


def _as_where(where: Pairs, difference: Dim) -> list[str]:
    pairs = _pairs(where, legend.sympy_symbols(term.name for term in legend.MODEL_TERMS))
    for left, right in reversed(pairs):
        difference = difference.subs(left, right)
    return _equations(pairs) if pairs and sympy.expand(difference) == 0 else []


def _pairs(pairs: Pairs, symbols: Mapping[str, Dim]) -> list[tuple[Dim, Dim]]:
    return [(evaluated(left, symbols), evaluated(right, symbols)) for left, right in pairs]


def _equations(pairs: Sequence[tuple[Dim, Dim]]) -> list[str]:
    return [f"{in_letters(left)} = {in_letters(right)}" for left, right in pairs]


def compared(truth: Dim, stated: Dim) -> tuple[Dim, str]:
    """Compute the difference of two closed forms, and the verdict that its terms' signs give."""
    expanded = sympy.expand(truth - stated)
    if expanded == 0:
        return expanded, RIGHT
    signs = {term.as_coeff_Mul()[0] > 0 for term in sympy.Add.make_args(expanded)}
    return readable(expanded), CONDITIONAL if len(signs) == 2 else WRONG


def _condition(difference: Dim, verdict: str) -> Values:
    """Write a difference, and the equations, any one of which makes it zero."""
    equations = []
    for factor in _mixed(difference) if verdict == CONDITIONAL else ():
        terms = sympy.Add.make_args(sympy.expand(factor))
        left = sum(t for t in terms if t.as_coeff_Mul()[0] > 0)
        right = -sum(t for t in terms if t.as_coeff_Mul()[0] < 0)
        equations.append((sympy.factor(left), sympy.factor(right)))
    return {
        "difference": in_letters(difference),
        "differs": difference != 0,
        "equations": _equations(equations),
    }


def _mixed(difference: Dim) -> list[Dim]:
    """Find the factors of a difference that are not of one sign for all positive sizes."""
    return [
        base
        for base, _ in sympy.factor_list(difference)[1]
        if compared(base, sympy.Integer(0))[1] == CONDITIONAL
    ]


def _zero_somewhere(difference: Dim) -> bool:
    """Tell whether a difference is zero at some of the small sizes that are tried."""
    for factor in _mixed(difference):
        free = sorted(factor.free_symbols, key=str)
        sizes = SMALL_SIZES if len(free) <= 4 else SMALL_SIZES[::2]
        for picked in islice(product(sizes, repeat=len(free)), TRIED):
            if factor.subs(dict(zip(free, picked, strict=True))) == 0:
                return True
    return False


def _in_catalog(formula: str, part: str, among: str, truth: Dim) -> list[dict[str, Any]]:
    """Lay the part beside the exact and the stated formula, for each model that is spoken of.

    `holds` says whether the stated formula counts it, `is_counted_so` whether the exact one of the
    claim's model does: the model has nothing besides. `ratio` is how far they are apart.
    """
    rows = []
    for entry, spec in models():
        if AMONG[among](entry, spec):
            sizes = _sizes(spec)
            symbols = legend.sympy_symbols(sizes)
            count = value(spec, part)
            exact = value_at(truth, {symbols[name]: n or 0 for name, n in sizes.items()})
            stated = Fraction(evaluated(formula, sizes))
            row = {"model": entry.id, "spec": spec, "ratio": (stated - exact) / exact}
            rows.append({**row, "holds": stated == count, "is_counted_so": exact == count})
    return rows


def _farthest(counted: list[dict[str, Any]]) -> list[dict[str, Any]]:
    ends = [pick(counted, key=lambda row: row["ratio"]) for pick in (min, max) if counted]
    return [end for n, end in enumerate(ends) if end["ratio"] and end not in ends[:n]]


def dense_flops(spec: ModelSpec) -> Values:
    """Lay the FLOPs of a mixture beside those of a dense layer as wide as one of its experts."""
    names = legend.sympy_symbols(["top_k", "d_model", "d_ff_expert"])
    moe = value(spec, "moe_flops")
    dense = int(sublayers.ffn_matmul_flops(1, spec.d_model, spec.d_ff_expert, gated=spec.gated))
    truth = letters(spec, "moe_flops").subs(names["top_k"], spec.top_k)
    sizes = names["d_model"], names["d_ff_expert"]
    stated = sublayers.ffn_matmul_flops(1, *sizes, gated=spec.gated)
    difference, verdict = compared(truth, stated)
    forms = {"moe": truth, "dense": stated, "more": difference}
    return {
        "verdict": verdict,
        "moe": moe,
        "dense": dense,
        "more": moe - dense,
        "truth": in_letters(truth),
        **{
            f"{name}_steps": f"{in_letters(form)} = {in_numbers(in_letters(form), spec)}"
            for name, form in forms.items()
        },
    }


def whole_formula(id: str, formula: str, quantity: str) -> Values:
    """Judge a formula for a whole model, as `metacount check` does."""
    from metacount.check import check

    judged = check(formula, id, quantity=quantity)
    verdicts = {"equal": RIGHT, "equal_where_tried": RIGHT, "equal_here": CONDITIONAL}
    wrong = judged.verdict == "wrong"
    return {
        "verdict": verdicts.get(judged.verdict, WRONG),
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
        "known_condition": judged.condition or "",
    }


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


def step_ratio(spec: ModelSpec, claimed: str, ratio: str) -> Values:
    """Judge one of `RATIOS`, of a step, in letters and in the catalog's dense decoders."""
    printed, pair_of = label(claimed), RATIOS[ratio]
    if not _is_dense_decoder(spec):
        raise SpecError("claim", "is about dense decoders", spec.kind, "name one of the catalog")
    ratios = {
        entry.id: Fraction(*pair_of(s, min(LENGTH, s.longest or LENGTH)))
        for entry, s in models()
        if _is_dense_decoder(s)
    }
    names = [t.name for t in legend.MODEL_TERMS if getattr(spec, t.name) and t.name != "moe_every"]
    symbols = legend.sympy_symbols([*names, "seq_len"])
    in_symbols = spec.substituted(**{name: symbols[name] for name in names})
    above, below = map(sympy.sympify, pair_of(in_symbols, symbols["seq_len"]))
    stated = sympy.Rational(printed.value.numerator, printed.value.denominator) * below
    difference, verdict = compared(above, stated)
    others = [id for id, n in ratios.items() if not printed.holds(n)]
    if verdict == RIGHT and others:
        verdict = CONDITIONAL
    first, *_, last = by_size = sorted(ratios, key=lambda id: ratios[id])
    last = max(ratios, key=lambda id: ratios[id])  # the first of those that are alike
    return {
        "verdict": verdict,
        "ratio": ratio,
        "label": printed.text,
        "models": [{"model": id, "ratio": float(ratios[id])} for id in by_size],
        "first": first,
        "last": last,
        "least": float(ratios[first]),
        "most": float(ratios[last]),
        "n": len(ratios) - len(others),
        "all": len(ratios),
        "others": others,
        **_condition(difference, verdict),
    }


def _is_dense_decoder(spec: ModelSpec) -> bool:
    trained = spec.last_stack.uniform and None not in (spec.head, spec.embedding)
    alone = not spec.is_moe and not beyond_branches(spec)
    return trained and spec.kind == "decoder" and alone


# what may be stored for each parameter: bytes of weights and gradients, float32 copies of both
STORED: dict[str, tuple[int, int, bool]] = {
    "everything in 32 bits": (4, 4, False),
    "everything in 16 bits": (2, 2, False),
    "weights and gradients in 16 bits, master weights in 32": (2, 2, True),
    "weights in 16 bits, gradients and master weights in 32": (2, 4, True),
    "weights and gradients in 16 bits, copies of both in 32": (2, 6, True),
}


def bytes_per_parameter(spec: ModelSpec, claimed: str) -> Values:
    """Count the bytes that are stored for each parameter with AdamW, its step counters apart."""
    ways, counters = [], 0
    for words, (weights, gradients, master) in STORED.items():
        dtype = "fp32" if weights == 4 else "bf16"
        step = count_step(spec, Workload(seq_len=1, dtype=dtype), Setup(master_weights=master))
        moments = 2 * (4 if master else weights) * step.trainable_params
        counters = step.optimizer_bytes - moments
        stored = (weights + gradients) * step.params + step.master_weight_bytes + moments
        each = Fraction(stored, step.params)
        row = {"way": words, "bytes": number(each), "params": step.params, "whole": number(stored)}
        ways.append({**row, "holds": label(claimed).holds(each)})
    return {"ways": ways, "counters": counters}


def kept_formula(spec: ModelSpec, formula: str, given: Pairs, checkpointing: str) -> Values:
    """Judge a formula of the bytes that all blocks keep for their backward, in letters.

    `given` are equations between sizes that it takes for granted.
    """
    if checkpointing not in (NONE, FULL):
        raise SpecError("claim", "names no checkpointing", checkpointing, f"choose {NONE}, {FULL}")
    names = [t.name for t in legend.MODEL_TERMS if getattr(spec, t.name)]
    symbols = legend.sympy_symbols([*names, "batch_size", "seq_len"])
    in_symbols = spec.substituted(**{name: symbols[name] for name in names if name != "moe_every"})
    pairs = _pairs(given, symbols)
    stated = sympy.sympify(evaluated(formula, symbols))
    ways, differences = [], []
    for way, saved_bytes in _saved(
        in_symbols, symbols["batch_size"], symbols["seq_len"], checkpointing
    ).items():
        count = sympy.sympify(saved_bytes)
        for left, right in pairs:
            count = count.subs(left, right)
        # one key/value head of one sequence is not copied: here there are several
        count = count.replace(lambda e: isinstance(e, sympy.Min), lambda e: sympy.Integer(1))
        differences.append(sympy.factor(sympy.expand(count - stated.subs(pairs))))
        steps = in_letters(sympy.expand(count))
        ways.append({"way": way, "steps": steps, "holds": differences[-1] == 0})
    first = differences[0]
    equal = any(way["holds"] for way in ways)
    return {
        "verdict": RIGHT if first == 0 and not pairs else CONDITIONAL if equal else WRONG,
        "ways": ways,
        "way": ways[0]["way"],
        "held": [way for way in ways if way["holds"]],
        "given": _equations(pairs),
        "said": in_letters(stated),
        "difference": in_letters(first),
        "truth": in_letters(sympy.factor(sympy.expand(first + stated))),
    }


def _saved(spec: ModelSpec, batch_size: Dim, n: Dim, checkpointing: str) -> dict[str, Dim]:
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


def adapter_state(spec: ModelSpec, rank: int, targets: Sequence[str]) -> Values:
    """Count what AdamW keeps for adapters of low rank, and for all parameters."""
    run = Workload(seq_len=min(LENGTH, spec.longest or LENGTH))
    adapters = count_step(spec, run, Setup(lora_rank=rank, lora_targets=tuple(targets)))
    n, trained = adapters.optimizer_bytes, adapters.trainable_params
    every = count_step(spec, run, Setup()).optimizer_bytes
    return {"n": n, "trained": trained, "counters": n - 4 * trained, "whole": every}


def same_at_length(spec: ModelSpec, of: str, start: int, end: int) -> Values:
    """Judge whether a count is the same from some length on: what n further tokens add is 0.

    `of` is `decode_matmul_flops` of a token that attends to so many positions, with itself, or
    `kept_values` of the KV cache after so many; `end` is a longer one, to be shown.
    """
    if not 0 < start < end:
        raise ValueError(f"the second length is the longer one: got {start} and {end}")
    counted = partial(RUNS[of], spec, 1)
    more = sympy.Symbol("n", integer=True, nonnegative=True)
    first = int(counted(start))
    step = int(counted(start + 1)) - first
    added = sympy.expand(counted(start + more) - first)
    linear = bool(added == step * more)
    return {
        "same": bool(added == 0),
        "start": start,
        "end": end,
        "first": first,
        "last": int(counted(end)),
        "step": step,
        "linear": linear,
        "flops": of == "decode_matmul_flops",
        "formula": f"{number(step)}·n" if linear and step else in_letters(added),
    }
